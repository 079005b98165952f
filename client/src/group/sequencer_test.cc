#include "client/src/group/sequencer.h"

#include <catch2/catch.hpp>
#include <deque>
#include <functional>
#include <random>
#include <set>

namespace bps {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;

constexpr TimePoint kStart{1h};

Sequencer::Tensor tensor(std::uint32_t id, std::uint32_t count, std::int32_t priority = 0,
                         std::uint32_t first = 0) {
  return {TensorId{id}, "t" + std::to_string(id), priority, PartitionId{first}, count, 100, 60};
}

LocalReady ready(std::uint32_t id, std::uint64_t round = 0, Operation operation = Operation::sum) {
  return {TensorId{id}, Round{round}, operation, MemoryKind::host};
}

LocalAnswer answer(std::uint32_t id, std::uint32_t index, std::uint32_t weight = 4, std::uint64_t round = 0) {
  return {TensorId{id}, Round{round}, index, weight, {}};
}

struct Pair : Sequencer {
  explicit Pair(Traits traits = {}) : Sequencer({Rank{3}, Rank{5}}, traits) {}
  void both(const LocalReady& what) {
    for (std::uint32_t member = 0; member < 2; ++member)
      REQUIRE(Sequencer::ready(kStart, member, what).ok());
  }
  // What the batch says, in short: "reduce 1:0+2" is partitions 0 and 1 of tensor 1.
  std::string cut(TimePoint now = kStart) {
    const auto batch = next(now);
    std::string text = batch ? "" : "-";
    for (const LocalItem& item : batch ? batch->items : std::vector<LocalItem>{}) {
      constexpr const char* kNames[] = {"reduce", "spread", "refuse", "fail", "left"};
      text += (text.empty() ? "" : ", ") + std::string(kNames[static_cast<int>(item.kind)]) + " " +
              std::to_string(item.tensor.value) + ":" + std::to_string(item.first) + "+" +
              std::to_string(item.count);
    }
    return text;
  }
};

TEST_CASE("sequencer: a member that has dropped a tensor is named by the next round of another one") {
  Pair s;
  s.add(tensor(1, 1));
  const bool has_given = GENERATE(true, false);
  if (has_given) {
    s.both(ready(1));
    CHECK(s.cut() == "reduce 1:0+1");
    s.executed();
    REQUIRE(s.answered(kStart, 0, answer(1, 0)).ok());
    CHECK(s.cut() == "spread 1:0+1");
    s.executed();
  }
  const std::uint64_t round = has_given ? 1 : 0;
  const bool waits = GENERATE(true, false);
  if (waits) REQUIRE(s.ready(kStart, 0, ready(1, round)).ok());
  s.dropped(kStart, 1, TensorId{1});
  if (!waits) {
    CHECK(s.cut() == "-");
    REQUIRE(s.ready(kStart, 0, ready(1, round)).ok());
  }
  CHECK_FALSE(s.has_waiting());
  const auto batch = s.next(kStart);
  REQUIRE(batch);
  REQUIRE(batch->items.size() == 1);
  CHECK(batch->items[0].kind == LocalItem::Kind::fail);
  CHECK(batch->items[0].error.code == ErrorCode::configuration);
  CHECK(batch->items[0].error.message ==
        "round " + std::to_string(round) +
            " of t1 can never complete: rank 5, of this host, has dropped the tensor");
  s.executed();
  s.forget(TensorId{1});
  CHECK_FALSE(s.knows(TensorId{1}));
  s.add(tensor(2, 1));
  s.both(ready(2));
  CHECK(s.cut() == "reduce 2:0+1");
}

TEST_CASE("sequencer: a tensor is reduced when all members are ready, spread when its owners have answers") {
  Pair s;
  s.add(tensor(1, 3));
  REQUIRE(s.ready(kStart, 1, ready(1)).ok());
  CHECK(s.cut() == "-");
  CHECK_FALSE(s.due());
  REQUIRE(s.ready(kStart, 0, ready(1)).ok());
  CHECK(s.cut() == "reduce 1:0+3");
  REQUIRE(s.answered(kStart, 1, answer(1, 1)).ok());
  CHECK(s.cut() == "spread 1:1+1");
  s.executed();
  REQUIRE(s.answered(kStart, 0, answer(1, 2)).ok());
  REQUIRE(s.answered(kStart, 0, answer(1, 0, 3)).ok());
  CHECK(s.cut() == "spread 1:0+1, spread 1:2+1");
  s.executed();
  s.both(ready(1, 1));
  CHECK(s.cut() == "reduce 1:0+3");
}

TEST_CASE("sequencer: what is urgent comes first, and what ends something before what begins") {
  Pair s({.batch_bytes = 1000});
  s.add(tensor(1, 2, 5));
  s.add(tensor(2, 2, 9, 2));
  s.add(tensor(3, 2, 5, 4));
  s.both(ready(1));
  CHECK(s.cut() == "reduce 1:0+2");
  s.both(ready(3));
  s.both(ready(2));
  REQUIRE(s.answered(kStart, 0, answer(1, 0)).ok());
  CHECK(s.cut() == "reduce 2:0+2, spread 1:0+1, reduce 3:0+2");
}

TEST_CASE("sequencer: a batch is full, or has waited, and few are under way") {
  Pair s({.batch_bytes = 250, .batch_delay = 1ms, .max_open = 2});
  s.add(tensor(1, 2));
  s.add(tensor(2, 9, 0, 2));
  s.both(ready(1));
  CHECK(s.due() == kStart + 1ms);
  CHECK(s.cut() == "-");
  CHECK(s.cut(kStart + 1ms) == "reduce 1:0+2");
  s.both(ready(2));
  CHECK(s.due() == kStart);
  CHECK(s.cut() == "reduce 2:0+3");
  CHECK_FALSE(s.due());
  CHECK(s.cut(kStart + 1h) == "-");
  s.executed();
  CHECK(s.cut() == "reduce 2:3+3");
  s.executed();
  s.executed();
  CHECK(s.cut() == "reduce 2:6+3");
}

TEST_CASE("sequencer: partitions of all members go together where that is one collective") {
  Pair s({.wants_runs = true});
  s.add(tensor(1, 6, 0, 3));  // its first partition is the other one's
  s.both(ready(1));
  CHECK(s.cut() == "reduce 1:0+6");
  REQUIRE(s.answered(kStart, 0, answer(1, 1)).ok());
  REQUIRE(s.answered(kStart, 1, answer(1, 0)).ok());
  CHECK(s.cut() == "spread 1:0+1");  // the other half may come
  CHECK_FALSE(s.due());
  REQUIRE(s.answered(kStart, 1, answer(1, 2)).ok());
  CHECK(s.cut() == "-");  // two are open
  s.executed();
  CHECK(s.cut() == "spread 1:1+2");
  s.executed();
  s.executed();
  REQUIRE(s.answered(kStart, 1, answer(1, 4)).ok());
  CHECK(s.cut() == "spread 1:4+1");  // nothing is under way that it could wait for
}

TEST_CASE("sequencer: whole runs go together as far as there is room") {
  Pair s({.batch_bytes = 350, .wants_runs = true});
  s.add(tensor(1, 8, 0, 3));
  s.both(ready(1));
  CHECK(s.cut() == "reduce 1:0+5");  // 300 bytes are less, and a run is not cut
  CHECK(s.cut() == "reduce 1:5+3");
  s.executed();
  for (std::uint32_t i = 0; i < 8; ++i) {
    if (i != 4) REQUIRE(s.answered(kStart, (3 + i) % 2, answer(1, i)).ok());
  }
  CHECK(s.cut() == "spread 1:0+3, spread 1:5+2");
  s.executed();
  CHECK(s.cut() == "spread 1:7+1");  // partition 3 waits for 4
  REQUIRE(s.answered(kStart, 1, answer(1, 4)).ok());
  s.executed();
  CHECK(s.cut() == "spread 1:3+2");
}

TEST_CASE("sequencer: runs of other weights, and failed ones, go by themselves") {
  Pair s({.wants_runs = true});
  s.add(tensor(1, 8));
  s.both(ready(1));
  CHECK(s.cut() == "reduce 1:0+8");
  for (std::uint32_t i = 0; i < 8; ++i) {
    LocalAnswer said = answer(1, i, i < 4 ? 4 : 3);
    if (i == 7) said.error = make_error(ErrorCode::peer_lost, "gone");
    REQUIRE(s.answered(kStart, i % 2, said).ok());
  }
  CHECK(s.cut() == "spread 1:0+4, spread 1:4+2, spread 1:6+1, spread 1:7+1");
}

TEST_CASE("sequencer: members that disagree are told so, and the next round goes on") {
  Pair s;
  s.add(tensor(1, 2));
  REQUIRE(s.ready(kStart, 0, ready(1)).ok());
  REQUIRE(s.ready(kStart, 1, ready(1, 0, Operation::max)).ok());
  const auto batch = s.next(kStart);
  REQUIRE(batch);
  REQUIRE(batch->items.size() == 1);
  CHECK(batch->items[0].kind == LocalItem::Kind::refuse);
  CHECK_THAT(batch->items[0].error.message, Contains("rank 3 calls sum") && Contains("rank 5 calls max"));
  for (std::uint32_t i = 0; i < 2; ++i)
    REQUIRE(s.answered(kStart, i, {TensorId{1}, Round{0}, i, 0, batch->items[0].error}).ok());
  CHECK(s.cut() == "spread 1:0+1, spread 1:1+1");
  s.both(ready(1, 1));
  s.executed();
  CHECK(s.cut() == "reduce 1:0+2");
}

TEST_CASE("sequencer: a tensor that has failed ends once, in its place") {
  Pair s({.batch_bytes = 150});
  s.add(tensor(1, 4));
  s.add(tensor(2, 1, -1, 4));
  s.both(ready(1));
  CHECK(s.cut() == "reduce 1:0+2");
  REQUIRE(s.answered(kStart, 0, answer(1, 0)).ok());
  s.fail(kStart, TensorId{1}, make_error(ErrorCode::configuration, "another size"));
  s.fail(kStart, TensorId{1}, make_error(ErrorCode::configuration, "another size"));
  s.both(ready(2));
  CHECK(s.answered(kStart, 1, answer(1, 1)).ok());  // it had not heard of it
  CHECK(s.ready(kStart, 1, ready(1, 1)).ok());
  CHECK(s.cut() == "fail 1:0+4, reduce 2:0+1");
  s.executed();
  s.executed();
  CHECK_FALSE(s.due());
}

TEST_CASE("sequencer: when one leaves, nothing begins any more") {
  Pair s;
  s.add(tensor(1, 1));
  REQUIRE(s.ready(kStart, 0, ready(1)).ok());
  REQUIRE(s.left(kStart, 1).ok());
  CHECK(s.cut() == "left 0:0+0");
  CHECK(s.ready(kStart, 1, ready(1)).ok());
  CHECK(s.cut() == "-");
}

TEST_CASE("sequencer: a member that breaks the rules is found out") {
  Pair s;
  s.add(tensor(1, 2));
  CHECK_FALSE(s.ready(kStart, 0, ready(7)).ok());
  CHECK_FALSE(s.ready(kStart, 0, ready(1, 1)).ok());
  CHECK(s.ready(kStart, 0, ready(1)).ok());
  CHECK_FALSE(s.ready(kStart, 0, ready(1)).ok());
  CHECK_FALSE(s.answered(kStart, 0, answer(1, 0)).ok());
  CHECK(s.ready(kStart, 1, ready(1)).ok());
  CHECK(s.cut() == "reduce 1:0+2");
  CHECK_FALSE(s.answered(kStart, 1, answer(1, 0)).ok());
  CHECK_FALSE(s.answered(kStart, 0, answer(1, 2)).ok());
  CHECK_FALSE(s.answered(kStart, 0, answer(1, 0, 1, 1)).ok());
  CHECK(s.answered(kStart, 0, answer(1, 0)).ok());
  CHECK_FALSE(s.answered(kStart, 0, answer(1, 0)).ok());
  CHECK_FALSE(s.answered(kStart, 0, answer(8, 0)).ok());
  CHECK_FALSE(s.left(kStart, 1).ok());
}

TEST_CASE("sequencer: what waits for a member names it") {
  Pair s;
  s.add(tensor(1, 1));
  REQUIRE(s.ready(kStart, 0, ready(1)).ok());
  CHECK(s.waiting(kStart + 1s, 2s).empty());
  const auto waiting = s.waiting(kStart + 3s, 2s);
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].age_ms == 3000);
  CHECK(waiting[0].missing == std::vector<Rank>{Rank{5}});
}

// Members that are ready in any order, owners that have answers in any order, messages that take any time.
class World {
 public:
  explicit World(std::uint64_t seed)
      : random_(seed),
        size_(pick(1, 8)),
        traits_{pick(1, 20) * 100, pick(0, 2) * 1us, pick(1, 3), pick(0, 1) == 1},
        sequencer_(ranks(), traits_),
        members_(size_) {
    std::uint32_t first = 0;
    for (std::uint32_t id = 0, count = pick(1, 6); id < count; ++id) {
      tensors_.push_back(tensor(id, pick(1, 20), static_cast<std::int32_t>(pick(0, 2)), first));
      first += tensors_.back().count;
      sequencer_.add(tensors_.back());
    }
    for (std::uint32_t m = 0; m < size_; ++m) {
      members_[m].runs.resize(tensors_.size());
      for (std::uint32_t t = 0; t < tensors_.size(); ++t) {
        members_[m].runs[t].parts.resize(tensors_[t].count);
        begin(m, t);
      }
    }
  }

  void run() {
    for (;;) {
      std::vector<std::function<void()>> steps;
      for (std::uint32_t m = 0; m < size_; ++m) {
        Member& member = members_[m];
        if (!member.soon.empty()) steps.push_back([&, this] { say_one(member); });
        if (!member.said.empty()) steps.push_back([&] { hear_one(member); });
        if (!member.batches.empty()) steps.push_back([&, this, m] { execute_one(m); });
      }
      if (sequencer_.due()) steps.push_back([this] { now_ = std::max(now_, *sequencer_.due()); });
      if (steps.empty()) break;
      steps[pick(0, static_cast<std::uint32_t>(steps.size()) - 1)]();
      while (const auto batch = sequencer_.next(now_))
        check_and_send(*batch);
      REQUIRE(sequencer_.has_waiting() != sequencer_.waiting(now_, 0s).empty());
      REQUIRE(sequencer_.waiting(now_, 0s).size() == waiting());
    }
    CHECK_FALSE(sequencer_.has_waiting());
    for (const Member& member : members_) {
      for (const Run& run : member.runs)
        REQUIRE(run.round == kRounds);
    }
  }

 private:
  static constexpr std::uint64_t kRounds = 3;
  struct Part {
    bool reduced = false, spread = false;
    std::uint32_t weight = 0;
  };
  struct Run {
    std::uint64_t round = 0;
    std::size_t spread = 0;
    std::vector<Part> parts;
  };
  struct Member {
    std::vector<std::function<void()>> soon;  // in any order
    std::deque<std::function<void()>> said;   // on their way, in order
    std::deque<LocalBatch> batches;
    std::uint64_t executed = 0;
    std::vector<Run> runs;
  };

  std::uint32_t pick(std::uint32_t from, std::uint32_t to) {
    return from + static_cast<std::uint32_t>(random_() % (to - from + 1));
  }
  std::vector<Rank> ranks() const {
    std::vector<Rank> out;
    for (std::uint32_t i = 0; i < size_; ++i)
      out.push_back(Rank{i});
    return out;
  }

  void begin(std::uint32_t m, std::uint32_t t) {
    Member& member = members_[m];
    const std::uint64_t round = member.runs[t].round;
    member.soon.emplace_back([this, m, t, round] {
      ++said_[t];
      REQUIRE(sequencer_.ready(now_, m, {TensorId{t}, Round{round}, Operation::sum, MemoryKind::host}).ok());
    });
  }

  // Tensors that some of the members are ready for, and others are not.
  std::size_t waiting() const {
    std::size_t count = 0;
    for (const std::uint32_t said : said_)
      count += said % size_ != 0 ? 1 : 0;
    return count;
  }

  void say_one(Member& member) {
    const auto which = member.soon.begin() + pick(0, static_cast<std::uint32_t>(member.soon.size()) - 1);
    member.said.push_back(std::move(*which));
    member.soon.erase(which);
  }

  static void hear_one(Member& member) {
    const auto said = std::move(member.said.front());
    member.said.pop_front();
    said();
  }

  void check_and_send(const LocalBatch& batch) {
    REQUIRE(batch.number == sent_++);
    REQUIRE(sent_ - members_[0].executed <= traits_.max_open);
    std::uint64_t bytes = 0, last = 0;
    std::int32_t priority = INT32_MAX;
    for (const LocalItem& item : batch.items) {
      const Sequencer::Tensor& what = tensors_[item.tensor.value];
      REQUIRE(what.priority <= priority);
      priority = what.priority;
      REQUIRE(item.first + item.count <= what.count);
      REQUIRE(item.count > 0);
      bytes += last;
      const std::uint32_t end = item.first + item.count;
      const std::uint32_t last_unit = traits_.wants_runs ? last_run(what, item) : 1;
      bytes += (item.count - last_unit) * what.partition_bytes;
      last = (last_unit - 1) * what.partition_bytes +
             (end == what.count ? what.last_bytes : what.partition_bytes);
      if (traits_.wants_runs) check_runs(what, item);
    }
    REQUIRE(bytes < traits_.batch_bytes);  // all but the last partition, or run
    for (Member& member : members_)
      member.batches.push_back(batch);
  }

  std::uint32_t owner(const Sequencer::Tensor& what, std::uint32_t index) const {
    return (what.first.value + index) % size_;
  }
  bool begins_run(const Sequencer::Tensor& what, std::uint32_t index) const {
    return index == 0 || index == what.count || owner(what, index) == 0;
  }
  // How many at the item's end are in one run.
  std::uint32_t last_run(const Sequencer::Tensor& what, const LocalItem& item) const {
    return std::min(item.count, owner(what, item.first + item.count - 1) + 1);
  }
  // An item is of whole runs; but answers of one run may go one by one.
  void check_runs(const Sequencer::Tensor& what, const LocalItem& item) const {
    const bool is_whole = begins_run(what, item.first) && begins_run(what, item.first + item.count);
    const bool is_in_one = owner(what, item.first) + item.count <= size_;
    const bool is_good = is_whole || (item.kind == LocalItem::Kind::spread && is_in_one);
    REQUIRE(is_good);
  }

  void execute_one(std::uint32_t m) {
    Member& member = members_[m];
    const LocalBatch batch = std::move(member.batches.front());
    member.batches.pop_front();
    REQUIRE(batch.number == member.executed++);
    for (const LocalItem& item : batch.items) {
      Run& run = member.runs[item.tensor.value];
      REQUIRE(run.round == item.round.value);
      for (std::uint32_t i = item.first; i < item.first + item.count; ++i)
        item.kind == LocalItem::Kind::reduce ? reduce(m, item, i) : spread(run, item, i);
      if (run.spread < run.parts.size()) continue;
      run.spread = 0;
      std::fill(run.parts.begin(), run.parts.end(), Part());
      if (++run.round < kRounds) begin(m, item.tensor.value);
    }
    if (m == 0) sequencer_.executed();
  }

  void reduce(std::uint32_t m, const LocalItem& item, std::uint32_t index) {
    Part& part = members_[m].runs[item.tensor.value].parts[index];
    REQUIRE_FALSE(part.reduced);
    part.reduced = true;
    part.weight = item.round.value % 2 == 0 ? 4 : 4 + index % 2;
    if ((tensors_[item.tensor.value].first.value + index) % size_ != m) return;
    members_[m].soon.emplace_back(
        [this, m, index, id = item.tensor, round = item.round, weight = part.weight] {
          REQUIRE(sequencer_.answered(now_, m, {id, round, index, weight, {}}).ok());
        });
  }

  static void spread(Run& run, const LocalItem& item, std::uint32_t index) {
    REQUIRE(item.kind == LocalItem::Kind::spread);
    Part& part = run.parts[index];
    REQUIRE((part.reduced && !part.spread));
    REQUIRE(item.weight == part.weight);
    part.spread = true;
    ++run.spread;
  }

  std::mt19937_64 random_;
  const std::uint32_t size_;
  const Sequencer::Traits traits_;
  Sequencer sequencer_;
  TimePoint now_ = kStart;
  std::vector<Sequencer::Tensor> tensors_;
  std::vector<std::uint32_t> said_ = std::vector<std::uint32_t>(6);  // by tensor, over all rounds
  std::vector<Member> members_;
  std::uint64_t sent_ = 0;
};

TEST_CASE("random worlds of a sequencer: one order, everything once, nothing stands still") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    World(seed).run();
  }
}

}  // namespace
}  // namespace bps
