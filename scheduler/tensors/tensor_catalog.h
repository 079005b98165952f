// The tensors of a running job: the numbers, the declaration, the state and the owners of each. An owner is a
// lane; the assigner deals partitions to lanes by their share of the bytes.
//
//   declaring --> ready  ------------+     servers have confirmed it; workers know it
//       |  ^        |                v
//       v  |        v              ending  all ranks have dropped it; then it is removed
//     refused     failed             ^
//                   +----------------+
//
// Several tensors may have the same name: a rank has dropped all but one of those that it has declared. So
// groups without a common rank have names of their own. A rank that is not in a group may be ahead of those
// that are, and use the name in the next group before they use it in this one. Numbers are not used again.
//
// Owner: TensorTable, which changes states, and TensorDrops, which ends tensors; Handoff and Recovery change
// owners, through it. Pure. Limits: those of Config. A reference to a tensor is valid until it is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/base/assert.h"
#include "proto/base/rank_list.h"
#include "proto/base/result.h"
#include "proto/wire/limits.h"
#include "proto/wire/messages.h"
#include "proto/wire/tensor_shape.h"
#include "scheduler/placement/partition_assigner.h"
#include "scheduler/report.h"

namespace bps {

class TensorCatalog {
 public:
  struct Lane {
    ServerId server;
    std::uint32_t shard = 0;
    double share = 0;      // of the job's bytes
    bool retired = false;  // owns nothing any more
  };
  struct Config {
    JobRun run;
    std::string job;
    std::uint64_t partition_bytes = 0;
    std::vector<Lane> lanes;
    std::function<std::string(Rank)> name_of_rank;
    std::uint32_t world_size = 0;  // 0: it is of no interest who has declared what
    bool sums_on_hosts = false;    // ranks of a host are one contributor
    std::uint32_t max_tensors = kMaxTensorsPerJob;
    std::uint32_t max_partitions = kMaxPartitionsPerJob;
  };
  enum class State : std::uint8_t { declaring, ready, refused, failed, ending };
  struct Tensor {
    TensorDeclaration declaration;
    Rank declared_by;
    State state = State::declaring;
    Error error;  // refused, failed
    PartitionId first;
    Partitioner partitioner{0, DType::f32, kMinPartitionBytes};
    RankList ranks;  // that share it
    std::vector<LaneIndex> owners;
    std::uint64_t batch = 0;  // that servers have to confirm, of the TensorTable; 0: none
    // Of the ranks that share it. The others count as ranks that have declared it, and dropped it.
    std::vector<bool> has_it;   // has_it[r]: rank r has declared the tensor; empty: all ranks have
    std::vector<bool> dropped;  // dropped[r]: rank r has dropped the tensor; no rank past its end has
  };

  explicit TensorCatalog(Config config);

  // What one server has to know of tensors that are its, in part.
  struct Slices {
    ServerId server;
    std::uint64_t batch = 0;  // for acked(); 0: of none
    DeclareSlices message;    // its request number and epoch are the caller's
  };
  std::vector<Slices> slices_of(const std::vector<TensorId>& tensors) const;

  // Partitions that workers know of and that have another owner now.
  struct Relocation {
    std::vector<PartitionMove> moves;
    std::map<PartitionId, LaneIndex> before;  // of these, the owners so far
    std::map<PartitionId, TensorId> touched;  // these, and those that are just being declared
    std::vector<Slices> slices;               // for their new owners, `moved` if they are of no batch
  };
  // Lanes come and go: `lanes` are those known so far, with new shares, and perhaps more. What retired ones
  // own goes to others, and what is `refused`, whose lanes have no share.
  // For TensorTable::relocate(), which also tells the batches that wait for a server that is gone.
  Relocation deal_again(std::vector<Lane> lanes, const std::set<PartitionId>& refused);

  // What was relocated goes back to the owners it had `before`, which are not retired any more. Gives those
  // of its tensors that have failed since.
  std::vector<TensorId> call_off(const std::map<PartitionId, LaneIndex>& before, std::vector<Lane> lanes);

  // New shares for lanes that are known; none of them is retired by this.
  void set_lanes(std::vector<Lane> lanes);

  // ---- after a restart, before anything else ----
  // A tensor that workers know, with its owners; `error`: it has failed.
  Status restore(const KnownTensor& known, Rank reporter);
  // Numbers below these are not to be used for new ones.
  void skip(TensorId tensor, PartitionId partition);
  void restored() { assigner_.set_shares(shares_of(config_.lanes)); }
  // Another lane has it; TensorTable::relocate() follows.
  void give(TensorId tensor, PartitionId partition, LaneIndex lane);

  // A new name: an error if the job has no room for the tensor.
  Result<TensorId> add(Rank rank, const TensorDeclaration& declaration);
  void note_declared(TensorId id, Rank rank);
  bool has_declared(TensorId id, Rank rank) const;
  // It is one of the ranks that share the tensor, and has declared it.
  bool is_tensor_of(Rank rank, TensorId id) const {
    return (*this)[id].ranks.has(rank) && has_declared(id, rank);
  }
  // Nobody has it: servers have refused it. Or the rank has not: it has never heard the answer.
  void take_back(TensorId id);
  void take_back(TensorId id, Rank rank);

  // ---- tensors that are dropped ----
  void note_dropped(TensorId id, Rank rank);
  bool has_dropped(TensorId id, Rank rank) const;
  void remove(TensorId id);

  // ---- one tensor ----
  // Calls `visit(TensorId)` for each tensor of this name, in no order. It neither adds nor removes any.
  template <class Visit>
  void each_named(const std::string& name, const Visit& visit) const {
    const auto [begin, end] = by_name_.equal_range(name);
    for (auto entry = begin; entry != end; ++entry)
      visit(entry->second);
  }
  // The first one with this name and these ranks that the rank has not dropped: what it declares.
  std::optional<TensorId> find(const TensorDeclaration& declaration, Rank rank) const;
  // One with this name and other ranks that contradicts it: the rank has not dropped it, or another rank that
  // both are of uses it first, and this rank the other one, so that they would wait for each other.
  std::optional<TensorId> contradicted(const TensorDeclaration& declaration, Rank rank) const;
  bool has(TensorId id) const { return id.value < index_.size() && index_[id.value] != nullptr; }
  // False also if there was one.
  bool is_new(TensorId id) const { return id >= next_tensor_; }
  // One that it has.
  Tensor& operator[](TensorId id) {
    BPS_ASSERT(has(id));
    return *index_[id.value];
  }
  const Tensor& operator[](TensorId id) const {
    BPS_ASSERT(has(id));
    return *index_[id.value];
  }
  // nullptr: there is none.
  const TensorDeclaration* declaration_of(TensorId id) const;
  std::uint64_t partitions_of(const TensorDeclaration& declaration) const {
    return partitioner_of(declaration, config_.partition_bytes).count();
  }
  std::uint32_t world_size() const { return config_.world_size; }
  bool sums_on_hosts() const { return config_.sums_on_hosts; }
  std::set<ServerId> servers_of(const Tensor& tensor) const;
  LaneIndex owner_of(TensorId id, PartitionId partition) const {
    const Tensor& tensor = (*this)[id];
    return tensor.owners[partition.value - tensor.first.value];
  }
  bool is_at(ServerId server, LaneIndex owner) const { return config_.lanes[owner.value].server == server; }
  static bool alike(const TensorDeclaration& a, const TensorDeclaration& b);

  // ---- all of them ----
  const std::map<TensorId, Tensor>& all() const { return tensors_; }
  // One of them at least, whatever became of it, goes on without some ranks: it is asynchronous, or shared by
  // others.
  bool goes_on_without_some() const { return goes_on_without_some_; }
  std::uint64_t bytes() const;
  // Partitions that workers know of, and bytes that are placed.
  std::uint32_t partitions_at(ServerId server) const;
  std::uint64_t bytes_at(ServerId server) const;
  // Of the tensors that workers know of, the first one that the server has a part of; of those tensors, the
  // first asynchronous one if there is one.
  const TensorDeclaration* held_by(ServerId server) const;
  // The server has partitions that workers know of, besides those that are `known` to be somewhere else.
  bool has_ready_beside(ServerId server, const std::map<PartitionId, LaneIndex>& known) const;
  // An asynchronous tensor that workers know of, if one is among these.
  const TensorDeclaration* async_among(const std::map<PartitionId, TensorId>& partitions) const;

  JobRun run() const { return config_.run; }
  const std::string& job() const { return config_.job; }
  std::string name_of(Rank rank) const { return config_.name_of_rank(rank); }
  std::uint64_t partition_bytes() const { return config_.partition_bytes; }
  const PartitionAssigner& assigner() const { return assigner_; }

 private:
  static std::vector<double> shares_of(const std::vector<Lane>& lanes);
  static std::uint64_t bytes_of(const TensorDeclaration& declaration) {
    return declaration.elements * size_of(declaration.dtype);
  }
  std::pair<Tensor&, bool> insert(TensorId id);  // true: it is new
  void take_back(Tensor& tensor) const;
  PartitionSlice slice_of(const Tensor& tensor, std::uint32_t index) const;
  TensorSlices without_partitions(TensorId id) const;

  Config config_;
  PartitionAssigner assigner_;
  std::map<TensorId, Tensor> tensors_;
  std::vector<Tensor*> index_;  // of these, by TensorId: a job has many, and each is looked up often
  std::unordered_multimap<std::string, TensorId> by_name_;
  TensorId next_tensor_;
  std::uint64_t next_partition_ = 0;
  void note_who_shares(const TensorDeclaration& declaration) {
    if (declaration.mode == Mode::async || !declaration.ranks.empty()) goes_on_without_some_ = true;
  }
  bool goes_on_without_some_ = false;
};

}  // namespace bps
