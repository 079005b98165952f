// Random worlds of several partitions whose sums need accumulators, with too few of them: half of the time
// enough for one partition only. In some of them slots come from a pool, too, which has as little. One
// program waits for each partition before it pushes the next one, in an order of its own, another is late,
// and one never pushes a partition that all the others do. Lanes break, loans are withdrawn, workers die.
// Checked: all rounds end, and every sum is exact.
#include <deque>
#include <numeric>
#include <random>

#include "server/testing/aggregator_harness.h"

namespace bps::accumulator_model_test {
namespace {

struct Answer {
  Round round;
  std::span<const std::byte> payload;
  std::uint32_t pin = 0;
  std::uint32_t weight = 0;
};

// What a worker does with one partition.
struct Push {
  enum class Phase { idle, sending, sent, refused };
  Phase phase = Phase::idle;
  bool begun = false;          // by the program: idle means that the library sends it (again)
  bool refused_early = false;  // while it was still being sent
  bool announced = false;      // refused: not sent at all
  bool asked = false;
  std::uint64_t round = 0;
  std::shared_ptr<TestLoan> loan;
  Destination destination;
  std::vector<std::byte> lane_buffer;
  std::deque<Answer> inbox;
  bool to_report = false;  // the server does not know that it has stored the round before
};

struct Worker {
  bool dead = false;
  bool broken = false;  // the server has not heard of it yet
  bool one_by_one = false;
  bool late = false;
  std::vector<std::size_t> order;  // one by one: partitions of this iteration, the next one last
  std::vector<Push> pushes;
};

struct Partition final : RoundPool::Owner {
  void on_memory() override {
    Actions actions;
    aggregator->on_memory(actions);
    obey(actions);
  }
  std::function<void(const Actions&)> obey;
  PartitionShape shape;
  std::unique_ptr<Aggregator> aggregator;
};

struct Plan {
  std::uint32_t workers = 3;
  std::size_t partitions = 2;  // besides one that is never over
  std::uint64_t rounds = 6;
  std::uint64_t budget_bytes = 0;
  std::uint64_t shared_bytes = 0;
  bool dies = false;
  Mode mode = Mode::sync;
  std::uint64_t shared_slots = 0;  // bytes, in mode slot
};

constexpr std::size_t kElements = 16;  // of the smallest partition
constexpr std::size_t kLargest = 3;    // times as many

class World {
 public:
  World(unsigned seed, const Plan& plan)
      : random_(seed),
        plan_(plan),
        pools_(plan.budget_bytes, plan.shared_bytes, kLargest * kElements * sizeof(std::int64_t)),
        contributors_(ranks(plan.workers)),
        partitions_(plan.partitions + 1),
        workers_(plan.workers) {
    if (plan.mode == Mode::slot)
      pools_.add_calls(kLargest * kElements * sizeof(std::int32_t), plan.shared_slots);
    for (Partition& partition : partitions_) {
      const auto index = static_cast<std::size_t>(&partition - partitions_.data());
      partition.obey = [this, index](const Actions& actions) { obey(index, actions); };
      partition.shape.tensor = "t";
      partition.shape.dtype = DType::i32;
      partition.shape.elements = kElements * (1 + pick(kLargest));
      partition.shape.mode = plan.mode;
      partition.aggregator = make_aggregator(partition.shape, contributors_, pools_.memory(partition));
    }
    if (plan.mode == Mode::sync && pick(2) == 0)
      pools_.slots.set_limit(pools_.slots.bytes_in_use());  // no second slots
    for (Worker& worker : workers_) {
      worker.pushes.resize(partitions_.size());
      for (std::size_t i = 0; i < partitions_.size(); ++i)
        worker.pushes[i].lane_buffer.resize(partitions_[i].shape.raw_bytes());
    }
    workers_[pick(workers_.size())].one_by_one = true;
    workers_[pick(workers_.size())].late = true;
    idle_rank_ = static_cast<std::uint32_t>(pick(workers_.size()));
    lenders_ = pick(3);
  }

  void run() {
    std::size_t steps = 0;
    while (!finished()) {
      if (++steps == 100000) FAIL("it hangs: " << describe());
      if (pick(4) == 0) pools_.serve();
      step(static_cast<std::uint32_t>(pick(workers_.size())));
    }
    partitions_.back().aggregator.reset();
    for (std::uint32_t rank = 0; rank < workers_.size(); ++rank)
      break_lane(rank);
    CHECK(pools_.budget.bytes_in_use() == 0);
    CHECK(pools_.accumulators.waiting() == 0);
    CHECK(pools_.accumulators.shared_in_use() == 0);
    if (plan_.mode == Mode::slot) check_slots_are_back();
    for (Partition& partition : partitions_)
      partition.aggregator.reset();
    pools_.calls.reset();
    CHECK(pools_.slots.bytes_in_use() == 0);
    CHECK(pools_.accumulators.memory().bytes_in_use() == BufferPool::class_bytes(pools_.reserve.bytes()));
  }

  std::size_t deaths() const { return deaths_; }

 private:
  std::size_t pick(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool never_ends(std::size_t partition) const { return partition + 1 == partitions_.size(); }

  // Nobody is in a round: partitions that are idle have nothing.
  void check_slots_are_back() {
    for (std::uint32_t rank = 0; rank < workers_.size(); ++rank)
      for (std::size_t i = 0; i < plan_.partitions; ++i)
        report(rank, i);
    CHECK(pools_.calls->pool.waiting() == 0);
    CHECK(pools_.calls->pool.shared_in_use() == 0);
    CHECK(pools_.slots.bytes_in_use() == BufferPool::class_bytes(pools_.calls->reserve.bytes()));
  }

  // That it has stored the round before.
  void report(std::uint32_t rank, std::size_t partition) {
    Push& push = workers_[rank].pushes[partition];
    if (!std::exchange(push.to_report, false) || workers_[rank].dead) return;
    Actions actions;
    partitions_[partition].aggregator->stored(rank, Round{push.round - 1}, actions);
    obey(partition, actions);
  }

  bool finished() const {
    for (const Worker& worker : workers_) {
      for (std::size_t i = 0; i < plan_.partitions && !worker.dead; ++i)
        if (worker.pushes[i].round < plan_.rounds) return false;
    }
    return true;
  }

  std::string describe() const {
    std::string text;
    for (const Worker& worker : workers_) {
      text += worker.dead ? " dead" : worker.one_by_one ? " one by one" : " free";
      for (const Push& push : worker.pushes)
        text += " " + std::to_string(push.round) + "idrs"[static_cast<std::size_t>(push.phase)];
      text += ";";
    }
    return text;
  }

  // Its own digit in element 0, anything in the others.
  static std::int32_t value_of(std::uint32_t rank, std::size_t partition, std::uint64_t round,
                               std::size_t element) {
    if (element == 0) return 1 << (4 * rank);
    std::minstd_rand engine(
        static_cast<unsigned>(rank * 7919 + partition * 31 + round * 104729 + element + 1));
    return static_cast<std::int32_t>(engine() * 2654435761u);
  }
  std::vector<std::byte> contribution(std::uint32_t rank, std::size_t partition, std::uint64_t round) const {
    std::vector<std::byte> bytes(partitions_[partition].shape.raw_bytes());
    for (std::size_t i = 0; i < bytes.size() / 4; ++i) {
      const std::int32_t value = value_of(rank, partition, round, i);
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    }
    return bytes;
  }

  // The program may begin the next round of it now.
  bool allows(std::uint32_t rank, std::size_t partition) {
    Worker& worker = workers_[rank];
    if (worker.pushes[partition].round == plan_.rounds && !never_ends(partition)) return false;
    if (never_ends(partition)) return rank != idle_rank_ && worker.pushes[partition].round == 0;
    if (worker.late && pick(16) != 0) return false;
    if (!worker.one_by_one) return true;
    if (worker.order.empty()) {
      worker.order.resize(plan_.partitions);
      std::iota(worker.order.begin(), worker.order.end(), std::size_t{0});
      std::shuffle(worker.order.begin(), worker.order.end(), random_);
    }
    return worker.order.back() == partition;
  }

  void step(std::uint32_t rank) {
    Worker& worker = workers_[rank];
    if (worker.dead) return;
    if (plan_.dies && deaths_ + 2 < workers_.size() && rank != idle_rank_ && pick(300) == 0) return die(rank);
    for (const Push& push : worker.pushes)
      worker.broken = worker.broken || (push.loan != nullptr && push.loan->withdrawn());
    if (worker.broken || pick(150) == 0) {
      for (Push& push : worker.pushes)
        if (push.loan != nullptr && !push.loan->given_back()) push.loan->withdraw();
      if (!std::exchange(worker.broken, true) && pick(2) == 0) return;
      return break_lane(rank);
    }
    const std::size_t partition = pick(partitions_.size());
    Push& push = worker.pushes[partition];
    if (!push.inbox.empty() && pick(2) == 0) return read_answer(rank, partition);
    if (plan_.mode == Mode::slot && pick(2) == 0) report(rank, partition);
    if (push.phase == Push::Phase::idle)
      begin(rank, partition);
    else if (push.phase == Push::Phase::sending)
      end(rank, partition);
  }

  void begin(std::uint32_t rank, std::size_t partition) {
    Push& push = workers_[rank].pushes[partition];
    if (!push.begun && !allows(rank, partition)) return;
    push.begun = true;
    Aggregator& aggregator = *partitions_[partition].aggregator;
    PushPull header;
    header.round = Round{push.round};
    header.count = kMaxTensorElements;  // all
    header.dtype = partitions_[partition].shape.dtype;
    header.weight = 1;
    const std::vector<std::byte> bytes = contribution(rank, partition, push.round);
    Actions actions;
    if (pick(2) < lenders_ && lend(rank, partition, header, bytes, actions)) return obey(partition, actions);
    if (!push.asked && pick(4) == 0) {
      header.rendezvous = true;
      CHECK(aggregator.begin(rank, header, 0, actions).kind == Destination::Kind::drop);
      aggregator.end(rank, nullptr, actions);
      push.phase = Push::Phase::refused;
      push.announced = true;
      return obey(partition, actions);
    }
    push.asked = false;
    push.destination = aggregator.begin(rank, header, bytes.size(), actions);
    push.phase = Push::Phase::sending;
    if (std::byte* const to = place(push)) std::memset(to, 0xEE, bytes.size() / 2);
    obey(partition, actions);
  }

  void end(std::uint32_t rank, std::size_t partition) {
    Push& push = workers_[rank].pushes[partition];
    const std::vector<std::byte> bytes = contribution(rank, partition, push.round);
    if (std::byte* const to = place(push)) std::memcpy(to, bytes.data(), bytes.size());
    push.phase = std::exchange(push.refused_early, false) ? Push::Phase::refused : Push::Phase::sent;
    const bool lane = push.destination.kind == Destination::Kind::lane;
    Actions actions;
    partitions_[partition].aggregator->end(rank, lane ? push.lane_buffer.data() : nullptr, actions);
    obey(partition, actions);
  }

  bool lend(std::uint32_t rank, std::size_t partition, const PushPull& header,
            const std::vector<std::byte>& bytes, Actions& actions) {
    Worker& worker = workers_[rank];
    Push& push = worker.pushes[partition];
    push.loan = std::make_shared<TestLoan>(bytes, pick(20) == 0);
    LentPayload payload(push.loan, 0, push.loan->bytes(), pick(2) == 0);
    if (partitions_[partition].aggregator->lend(rank, header, payload, actions)) {
      push.phase = Push::Phase::sent;
      return true;
    }
    CHECK(actions.empty());
    payload.reset();
    push.loan = nullptr;
    return false;
  }

  static std::byte* place(Push& push) {
    if (push.destination.kind == Destination::Kind::lane) return push.lane_buffer.data();
    return push.destination.memory;
  }

  void obey(std::size_t partition, const Actions& actions) {
    for (const Action& action : actions) {
      Worker& worker = workers_[action.contributor];
      Push& push = worker.pushes[partition];
      INFO("rank " << action.contributor << ", partition " << partition << ", round " << action.round.value);
      REQUIRE_FALSE(worker.dead);
      REQUIRE(action.round.value == push.round);
      switch (action.kind) {
        case Action::Kind::answer:
          REQUIRE_FALSE(push.refused_early);
          push.inbox.push_back({action.round, action.payload.bytes, action.pin, action.weight});
          break;
        case Action::Kind::not_ready:
          if (worker.broken) break;
          if (push.phase == Push::Phase::sending) {
            push.refused_early = true;
          } else {
            REQUIRE((push.phase == Push::Phase::sent || push.announced));
            push.phase = Push::Phase::refused;
          }
          break;
        case Action::Kind::clear_to_send:
          if (worker.broken) break;
          REQUIRE(push.phase == Push::Phase::refused);
          push.phase = Push::Phase::idle;
          push.announced = false;
          push.asked = true;
          break;
        default: FAIL("action " << static_cast<int>(action.kind) << ": " << action.error.message);
      }
    }
  }

  void read_answer(std::uint32_t rank, std::size_t partition) {
    Worker& worker = workers_[rank];
    Push& push = worker.pushes[partition];
    const Answer answer = push.inbox.front();
    push.inbox.pop_front();
    check_sum(rank, partition, answer);
    push.phase = Push::Phase::idle;
    push.announced = push.asked = push.begun = false;
    ++push.round;
    push.to_report = true;
    if (!worker.order.empty() && worker.order.back() == partition) worker.order.pop_back();
    Actions actions;
    if (answer.pin != Action::kNoPin) partitions_[partition].aggregator->unpin(answer.pin, actions);
    obey(partition, actions);
  }

  void check_sum(std::uint32_t rank, std::size_t partition, const Answer& answer) const {
    std::vector<std::uint32_t> sum(answer.payload.size() / 4);
    REQUIRE(sum.size() == partitions_[partition].shape.elements);
    std::memcpy(sum.data(), answer.payload.data(), answer.payload.size());
    const std::uint64_t round = answer.round.value;
    std::uint32_t weight = 0;
    std::vector<std::uint32_t> expected(sum.size());
    for (std::uint32_t other = 0; other < workers_.size(); ++other) {
      const std::uint32_t digit = sum[0] >> (4 * other) & 0xF;
      REQUIRE(digit <= 1);
      if (digit == 0) REQUIRE(workers_[other].dead);
      if (digit == 0) continue;
      ++weight;
      for (std::size_t i = 0; i < sum.size(); ++i)
        expected[i] += static_cast<std::uint32_t>(value_of(other, partition, round, i));
    }
    CAPTURE(rank, partition, round);
    REQUIRE(sum == expected);
    REQUIRE(answer.weight == weight);
  }

  // Answers that were not read are gone, and what was not answered is sent again.
  void break_lane(std::uint32_t rank) {
    Worker& worker = workers_[rank];
    worker.broken = false;
    for (std::size_t i = 0; i < partitions_.size(); ++i) {
      if (partitions_[i].aggregator == nullptr) continue;
      Push& push = worker.pushes[i];
      Actions actions;
      if (push.loan != nullptr && !push.loan->given_back()) push.loan->withdraw();
      partitions_[i].aggregator->lost(rank, actions);
      if (push.loan != nullptr) CHECK(push.loan->given_back());
      push.loan = nullptr;
      push.refused_early = push.announced = push.asked = false;
      for (const Answer& answer : push.inbox)
        if (answer.pin != Action::kNoPin) partitions_[i].aggregator->unpin(answer.pin, actions);
      push.inbox.clear();
      push.phase = Push::Phase::idle;
      push.to_report = push.round > 0;
      obey(i, actions);
    }
  }

  void die(std::uint32_t rank) {
    ++deaths_;
    break_lane(rank);
    workers_[rank].dead = true;
    contributors_[rank].loss = "it is gone";
    for (std::size_t i = 0; i < partitions_.size(); ++i) {
      Actions actions;
      partitions_[i].aggregator->died(rank, actions);
      obey(i, actions);
    }
  }

  std::mt19937 random_;
  const Plan plan_;
  TestPools pools_;
  std::vector<Contributor> contributors_;
  std::vector<Partition> partitions_;
  std::vector<Worker> workers_;
  std::uint32_t idle_rank_ = 0;  // never pushes the last partition
  std::size_t lenders_ = 0;      // 0 none, 1 half, 2 all
  std::size_t deaths_ = 0;
};

std::size_t run_worlds(unsigned seeds, bool dies, Mode mode = Mode::sync) {
  const std::uint64_t slot = BufferPool::class_bytes(kLargest * kElements * sizeof(std::int32_t));
  const std::uint64_t wide = BufferPool::class_bytes(kLargest * kElements * sizeof(std::int64_t));
  std::size_t deaths = 0;
  for (unsigned seed = 0; seed < seeds; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    Plan plan;
    plan.workers = 3 + random() % 4;
    plan.partitions = 2 + random() % 4;
    const std::uint64_t budgets[] = {0, slot, 3 * slot, 1 << 20};
    plan.budget_bytes = budgets[random() % 4];
    const std::uint64_t shared[] = {0, 0, 0, wide, 2 * wide, 4 * wide};
    plan.shared_bytes = shared[random() % 6];
    plan.dies = dies;
    plan.mode = mode;
    const std::uint64_t slots[] = {0, 0, slot, 4 * slot};
    if (mode == Mode::slot) plan.shared_slots = slots[random() % 4];
    World world(seed, plan);
    world.run();
    deaths += world.deaths();
  }
  return deaths;
}

TEST_CASE("random partitions with few accumulators: every round ends, whatever the programs wait for") {
  run_worlds(400, false);
}

TEST_CASE("random partitions with few accumulators, of which workers die") {
  CHECK(run_worlds(400, true) > 300);
}

TEST_CASE("random partitions with few accumulators and few slots: every round ends, and gives them back") {
  run_worlds(600, false, Mode::slot);
}

TEST_CASE("random partitions with few accumulators and few slots, of which workers die") {
  CHECK(run_worlds(600, true, Mode::slot) > 450);
}

}  // namespace
}  // namespace bps::accumulator_model_test
