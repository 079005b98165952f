// Local groups whose members all live in one process, for tests of what stands on them.
//
// The problem: a real group reads and writes memory long after the call, ends things in an order of its own,
// and breaks in the middle; who stands on it must bear all of that, and keep its rules (local_group.h), long
// before a device or another process is there to show it. Here memory is really summed and copied, but at
// times that a seed decides; `out`, and the place of a sum, are rubbish from the call until they are written;
// and what breaks a rule is told to Options::on_violation:
//   numbers with gaps, pieces that differ between members, a `sum` or `answer` outside of allocate()'s
//   regions, a piece spread before stage() has said that it may be, memory that changes while it is being
//   read or is written by somebody else, calls before begin() has ended, destruction while a collective is
//   open
//
// A collective at a member is ended when each of its own pieces is; a member that never calls, or has ended
// by an abort, leaves the others waiting for ever, as in life: their owners are to abort them.
//
// Owner: FakeHost the test's, a FakeGroup its Owner's; the host goes last. Lives on: `loop`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "client/src/group/local_group.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class FakeGroup;

class FakeHost {
 public:
  struct Options {
    std::uint64_t seed = 1;
    Duration max_delay = std::chrono::milliseconds(1);  // of each step
    Sequencer::Traits traits = {};
    std::function<void(const std::string&)> on_violation = {};  // default: the process ends
  };

  FakeHost(EventLoop& loop, std::uint32_t size, Options options);
  ~FakeHost();
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;

  // Once each. `owner` outlives it; its send() is not used.
  std::unique_ptr<FakeGroup> join(std::uint32_t member, LocalGroup::Owner& owner);

 private:
  friend class FakeGroup;
  struct Part;
  struct Entry;

  void violated(const std::string& what) const;
  void later(std::function<void()> what);
  Duration delay();
  Entry* find(std::uint64_t number);
  void begun(FakeGroup& member, std::span<const std::byte> setup);
  void join_collective(FakeGroup& member, bool is_spread, const Collective& collective,
                       std::span<const LocalPiece> pieces);
  void compare(const Entry& entry, bool is_spread, const Collective& collective,
               std::span<const LocalPiece> pieces);
  void check_memory(const Part& part, const LocalPiece& piece, bool is_spread);
  void take_input(std::uint64_t number, std::uint32_t member);
  void sum(std::uint64_t number, std::size_t index);
  void copy(std::uint64_t number, std::size_t index, std::uint32_t to);
  void settle(std::uint64_t number, std::uint32_t member);
  void end(std::uint64_t number, std::uint32_t member);

  EventLoop& loop_;
  const std::uint32_t size_;
  const Options options_;
  std::mt19937_64 random_;
  std::vector<FakeGroup*> members_;
  std::vector<std::byte> setup_;
  std::uint32_t begun_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Entry>> entries_;  // collectives that are open somewhere
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class FakeGroup final : public LocalGroup {
 public:
  ~FakeGroup() override;

  // on_broken at the n-th call from now on of those that may fail (begin, when_readable, stage, reduce,
  // spread); 0: at once.
  void break_at(std::uint64_t call, const Error& error);
  // As on a GPU that does not come to rest: nothing ends any more, and kPatience after abort() that is said.
  void hang() { hangs_ = true; }
  static constexpr Duration kPatience = std::chrono::seconds(1);
  // What when_readable waits for has not happened, until it is told otherwise.
  void hold_readable(bool hold);
  void say_it_waits_for(std::string what) { waits_for_ = std::move(what); }
  void fail_allocations(std::optional<Error> error) { allocation_error_ = std::move(error); }
  std::size_t open() const { return open_.size(); }

  Sequencer::Traits traits() const override;
  void make_setup(std::function<void(Result<std::vector<std::byte>>)> done) override;
  void begin(std::span<const std::byte> setup, std::function<void(Status)> done) override;
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override;
  void when_readable(const OperationBuffer& buffer, std::function<void(Status)> then) override;
  void reduce(const Collective& collective, std::span<const LocalPiece> pieces) override;
  void stage(const LocalPiece& piece, std::function<void(Status)> then) override;
  void spread(const Collective& collective, std::span<const LocalPiece> pieces) override;
  void abort(const Error& error) override;
  std::string waits_for() const override { return waits_for_; }

 private:
  friend class FakeHost;
  FakeGroup(FakeHost& host, std::uint32_t member, Owner& owner)
      : host_(host), member_(member), owner_(owner) {}

  void tell(std::function<void(Status)> then);
  bool called(const char* what);  // false: it is broken
  void break_now(const Error& error);
  bool is_home(const LocalPiece& piece, const std::byte* begin) const;
  void collective(bool is_spread, const Collective& collective, std::span<const LocalPiece> pieces);

  FakeHost& host_;
  const std::uint32_t member_;
  Owner& owner_;
  std::function<void(Status)> begun_;
  bool is_begun_ = false;
  std::optional<std::uint64_t> next_;  // number
  std::set<std::uint64_t> open_;
  std::set<PartitionId> staged_;
  std::vector<std::shared_ptr<Region>> regions_;
  std::vector<std::function<void(Status)>> unreadable_;
  bool holds_ = false;
  bool hangs_ = false;
  std::string waits_for_;
  std::uint64_t calls_until_break_ = 0;  // 0: none
  Error break_error_;
  std::optional<Error> allocation_error_;
  std::optional<Error> broken_;
};

}  // namespace bps
