// What the simulated jobs compute. Everything that a round needs (operation, root, each rank's contribution
// and the right answer) is a function of the job's seed, so that workers and checkers agree without talking.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"
#include "proto/wire/tensor_shape.h"

namespace bps::sim {

struct TensorPlan {
  std::string name;
  DType dtype = DType::f32;
  std::uint64_t elements = 0;
  Mode mode = Mode::sync;
  std::uint32_t staleness = kUnboundedStaleness;
  std::int32_t priority = 0;
  std::vector<std::uint64_t> parts = {};  // by the place of a rank; empty: none
  std::vector<Rank> ranks = {};           // that share it, in their order; empty: all

  std::uint64_t bytes() const { return elements * size_of(dtype); }
  TensorDeclaration declaration() const {
    return {name, dtype, elements, priority, mode, staleness, Parts::shortest(parts), ranks};
  }
  bool is_shared_by(Rank rank) const {
    return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }
  // A rank's part.
  std::size_t part_begin(Rank rank) const {
    return std::accumulate(parts.begin(), parts.begin() + place_of(rank), std::uint64_t{0}) * size_of(dtype);
  }
  std::size_t part_bytes(Rank rank) const { return parts[place_of(rank)] * size_of(dtype); }

 private:
  std::ptrdiff_t place_of(Rank rank) const {
    return ranks.empty() ? std::ptrdiff_t{rank.value}
                         : std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
  }
};

struct WorkerPlan {
  Duration start{0};        // the process starts this long after the job
  Duration think{0};        // at most this long between rounds
  Duration close_after{0};  // its last round
  std::uint64_t credit_bytes = 4 * 1024 * 1024;
  bool one_by_one = false;  // its program waits for each tensor of an iteration before it pushes the next one
  bool retain = true;
  bool in_place = false;
  bool lives_with_a_server = false;  // same host, for placement
  std::uint32_t host = 0;            // of a job whose ranks sum on their hosts first
  bool has_gpu = false;              // some of its rounds are in that one's memory
};

// One rank that does not do as the others do; everybody is to hear of it, drops the tensor, declares it
// again, and goes on.
struct QuarrelPlan {
  enum class Kind {
    none,
    operation,  // in one round of tensor 0
    tensor,     // a tensor of another size
    too_large,  // all ranks declare a tensor that no server has room for
  };
  Kind kind = Kind::none;
  Rank rank;
  std::uint64_t round = 0;
};
inline constexpr std::uint64_t kQuarrelElements = 1000;  // one rank says one more
inline constexpr std::uint64_t kTooManyElements = 32 * 1024 * 1024;

// Calls without names, on each of these groups.
struct CallsPlan {
  std::vector<std::vector<Rank>> groups;  // empty ranks: all of the job, which is the first one
  std::uint64_t count = 0;                // on each
  std::uint32_t messages = 0;             // with each tag, from each rank to each other one
  std::uint32_t tags = 0;
  bool joins = false;           // ranks run out of calls, but the first of each group, and join
  bool may_lose_joins = false;  // a connection to the scheduler is lost meanwhile
  // One rank makes another call from this number on, or leaves one out.
  struct Odd {
    std::size_t group = 0;
    Rank rank;
    std::uint64_t number = 0;
    bool skips = false;
    bool is_named = false;  // no fault hides which call differs first
  };
  std::optional<Odd> odd;
};

struct CallPlan {
  RoundCall call;
  DType dtype = DType::f32;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> parts = {};  // of a call of parts, by the place of a rank
  // Of an exchange, and of parts whose lengths only their givers know: bytes, by place of the giver, then of
  // the taker.
  std::vector<std::vector<std::uint64_t>> lengths = {};
  bool is_given = false;  // such parts
  friend bool operator==(const CallPlan&, const CallPlan&) = default;
};

struct JobPlan {
  Duration scheduler_grace{0};
  std::uint64_t seed = 1;
  std::string name;
  Duration start{0};
  std::optional<std::size_t>
      follows;  // starts this long after that job has lost a worker, not after the beginning
  QuarrelPlan quarrel;
  std::uint64_t partition_bytes = kMinPartitionBytes;
  std::uint32_t rounds = 4;
  std::uint32_t drop_every = 0;  // rounds: then a synchronous tensor is dropped and declared again; 0: never
  bool opposite_orders = false;  // each worker pushes tensors in an order of its own
  bool free_running = false;     // a tensor's next round begins as soon as its last one is done
  bool declares_late = false;    // if free running: the last tensor while the others are trained
  bool may_be_refused = false;   // that one, because there is no memory for it: the job goes on without it
  bool barriers = false;
  bool broadcast_first = true;
  bool shrinks = false;       // goes on without workers that are lost
  bool unequal_sums = false;  // see HelloWorker
  bool sums_on_hosts = false;
  bool reduces = false;  // has rounds of the kinds reduce, reduce_scatter and all_gather
  CallsPlan calls;
  std::vector<TensorPlan> tensors;
  std::vector<WorkerPlan> workers;

  std::uint32_t world_size() const { return static_cast<std::uint32_t>(workers.size()); }
  std::uint64_t partitions() const;
  // Ranks that are one contributor, each by itself or those of a host, in the order in which they are summed.
  std::vector<std::vector<std::uint32_t>> contributors() const;
  // The same of a tensor.
  std::vector<std::vector<std::uint32_t>> contributors(std::size_t tensor) const;
  std::uint32_t sharing(std::size_t tensor) const {
    const std::vector<Rank>& ranks = tensors[tensor].ranks;
    return ranks.empty() ? world_size() : static_cast<std::uint32_t>(ranks.size());
  }
  // PushPull frames without any fault.
  std::uint64_t pushes() const;
};

// Before this round the tensor is dropped and declared again.
bool renews(const JobPlan& job, std::size_t tensor, std::uint64_t round);
// Its number since then: what the product says.
std::uint64_t said_round(const JobPlan& job, std::size_t tensor, std::uint64_t round);

RoundCall round_plan(const JobPlan& job, std::size_t tensor, std::uint64_t round);
// Of how many elements it is: the first ones of the tensor.
std::uint64_t count_plan(const JobPlan& job, std::size_t tensor, std::uint64_t round);
// How the rank's contribution counts in it.
Scale scale_plan(const JobPlan& job, std::size_t tensor, std::uint64_t round, Rank rank);
std::vector<std::byte> contribution(const JobPlan& job, std::size_t tensor, std::uint64_t round, Rank rank);

// What the round must give: if its operation is not a copy, as those are summed.
std::vector<std::byte> expected_copy(const JobPlan& job, std::size_t tensor, std::uint64_t round);
std::vector<std::byte> expected_sum(const JobPlan& job, std::size_t tensor, std::uint64_t round,
                                    const std::vector<std::vector<std::uint32_t>>& contributors);

// Numbers from 1 on. As this rank makes it.
CallPlan call_plan(const JobPlan& job, std::size_t group, std::uint64_t number, Rank rank);
// So many the rank makes in the group before it joins, if it does.
std::uint64_t own_calls(const JobPlan& job, std::size_t group, Rank rank);
// A message with a tag, the number-th from 0 on.
struct MessageKey {
  Rank from, to;
  std::uint64_t tag = 0;
  std::uint32_t number = 0;
  friend auto operator<=>(const MessageKey&, const MessageKey&) = default;
};
std::uint64_t message_length(const JobPlan& job, std::size_t group, const MessageKey& key);
std::vector<std::byte> message_bytes(const JobPlan& job, std::size_t group, const MessageKey& key);
// In the group with an odd rank: that one's call differs from the others'.
bool is_odd_call(const JobPlan& job, std::uint64_t number);
// As exchanges of one kind and root, of which only lengths of messages differ: a later call may be named.
bool is_odd_in_lengths(const JobPlan& job, std::uint64_t number);
// The first of these; past all calls: none differs.
std::uint64_t first_odd_call(const JobPlan& job);

// ---- asynchronous tensors: every delta adds 1 in the digit of its rank, so a value tells whose deltas it
// holds ----

inline constexpr std::uint32_t kMaxAsyncWorkers = 6;
inline constexpr std::uint32_t kMaxAsyncRounds = 14;  // digits of base 16: exact in f32 up to 6 ranks
std::uint64_t async_digit(std::uint64_t value, Rank rank);
// Element `index` of an asynchronous tensor's value (rank 0 sets it to 0 first). An error if it is no whole
// number.
Result<std::uint64_t> async_value(const TensorPlan& tensor, std::span<const std::byte> raw,
                                  std::uint64_t index);

// The right answers of synchronous rounds, each kept until every worker has compared.
class Expected {
 public:
  explicit Expected(const JobPlan& job) : job_(job) {}
  // Empty if `actual` is right from byte `begin` on, else what is wrong.
  std::string compare(std::size_t tensor, std::uint64_t round, std::size_t begin,
                      std::span<const std::byte> actual);

 private:
  struct Answer {
    std::vector<std::byte> bytes;
    std::uint32_t compared = 0;
  };
  const JobPlan& job_;
  std::map<std::pair<std::size_t, std::uint64_t>, Answer> answers_;
};

}  // namespace bps::sim
