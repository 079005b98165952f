// Random worlds against the aggregator: workers that push in any order and half at a time, or lend what they
// have and withdraw it, at the worst moment too; lanes that break and come back, answers that are read late,
// a budget that is nearly nothing; workers that die, and that drop the tensor, which is said more than once.
// Checked: every sum has the bits of the sum in rank order, of the ranks that its weight claims and the same
// for all, every worker gets each round exactly once, payloads stay unchanged while they are read, and all
// memory comes back.
#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "server/testing/aggregator_harness.h"

namespace bps::aggregator_model_test {
namespace {

constexpr std::size_t kElements = 3;
const std::size_t kBuffer = BufferPool::class_bytes(kElements * 8);

struct Answer {
  Round round;
  std::span<const std::byte> payload;
  std::vector<std::byte> copy;
  std::uint32_t pin = 0;
  std::uint32_t weight = 0;
  std::uint64_t version = 0;
  bool failed = false;
};

struct Worker {
  enum class State { idle, sending, sent, refused, done, dead };
  State state = State::idle;
  bool refused_early = false;  // while it was still sending
  bool rendezvous = false;     // refused: not sent at all
  bool asked = false;          // idle: the server wants it
  bool broken = false;         // the server has not heard of it yet
  bool dropped = false;        // begins no later round
  std::uint64_t round = 0;
  std::shared_ptr<TestLoan> loan;
  Destination destination;
  std::vector<std::byte> lane_buffer;
  std::deque<Answer> inbox;  // sent by the server, not yet read
};

class World {
 public:
  World(unsigned seed, Mode mode, DType dtype, std::uint32_t workers, std::uint64_t rounds,
        std::size_t budget_bytes, std::uint32_t staleness)
      : random_(seed), rounds_(rounds), pools_(budget_bytes), workers_(workers) {
    shape_.tensor = "t";
    shape_.dtype = dtype;
    shape_.elements = kElements;
    shape_.mode = mode;
    shape_.staleness = staleness;
    for (std::uint32_t i = 0; i < workers; ++i) {
      contributors_.push_back({Rank{i}, 1});
    }
    aggregator_ = make_aggregator(shape_, contributors_, pools_.memory());
    for (Worker& worker : workers_) {
      worker.lane_buffer.resize(shape_.raw_bytes());
    }
  }
  virtual ~World() = default;

  // Workers that are groups of up to four ranks.
  void make_groups() {
    for (Contributor& contributor : contributors_)
      contributor.weight = static_cast<std::uint32_t>(1 + pick(4));
    aggregator_ = make_aggregator(shape_, contributors_, pools_.memory());
  }
  // Of the workers from `first` on, all but one may die.
  void let_die(std::uint32_t first) { first_mortal_ = first; }
  std::size_t deaths() const { return deaths_; }
  // All but one may drop the tensor, with rounds left or without.
  void let_drop() { may_drop_ = true; }
  std::size_t drops() const { return drops_; }

  void run() {
    // Rank 0 is often the one that everybody waits for.
    const bool rank0_late = pick(2) == 0;
    // Often there is no memory for a second slot.
    if (pick(2) == 0) slots_.set_limit(slots_.bytes_in_use());
    lenders_ = pick(3);
    std::size_t steps = 0;
    while (!finished()) {
      REQUIRE(++steps < 200000);
      auto index = static_cast<std::uint32_t>(pick(workers_.size()));
      if (rank0_late && index == 0 && pick(8) != 0) index = static_cast<std::uint32_t>(pick(workers_.size()));
      step(index);
    }
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      break_lane(i);
    }
    CHECK(budget_.bytes_in_use() == 0);
    aggregator_.reset();
    CHECK(slots_.bytes_in_use() == 0);
  }

 protected:
  virtual PushPull header_of(std::uint32_t rank, std::uint64_t round) = 0;
  virtual std::vector<std::byte> contribution(std::uint32_t rank, std::uint64_t round) = 0;
  virtual void check_answer(std::uint32_t rank, const Answer& answer) = 0;

  std::size_t pick(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  bool finished() const {
    for (const Worker& worker : workers_) {
      if (worker.state < Worker::State::done) return false;
    }
    return true;
  }

  void die(std::uint32_t index) {
    ++deaths_;
    break_lane(index);
    workers_[index].state = Worker::State::dead;
    contributors_[index].loss = "rank " + std::to_string(index) + " is gone";
    Actions actions;
    aggregator_->died(index, actions);
    obey(actions);
  }

  void drop(std::uint32_t index) {
    Worker& worker = workers_[index];
    if (!std::exchange(worker.dropped, true) && worker.round < rounds_) ++drops_;
    worker.state = Worker::State::done;
    Actions actions;
    aggregator_->dropped(index, actions);
    obey(actions);
  }

  // Nothing of it is under way, except what it sent on a lane that is lost.
  bool drops_now(const Worker& worker) {
    if (!may_drop_) return false;
    if (worker.state == Worker::State::done) return pick(4) == 0;
    const auto dropped = std::count_if(workers_.begin(), workers_.end(), [](const Worker& w) {
      return w.dropped || w.state == Worker::State::dead;
    });
    const bool is_free = worker.state == Worker::State::idle && !worker.asked && !worker.broken;
    return is_free && worker.round > 0 && static_cast<std::size_t>(dropped) + 1 < workers_.size() &&
           pick(60) == 0;
  }

  void step(std::uint32_t index) {
    Worker& worker = workers_[index];
    if (worker.state == Worker::State::dead) return;
    if (drops_now(worker)) return drop(index);
    if (index >= first_mortal_ && deaths_ + 1 < workers_.size() && pick(60) == 0) return die(index);
    // Who has withdrawn something is about to be lost.
    if (worker.loan != nullptr && worker.loan->withdrawn()) worker.broken = true;
    if (worker.broken || pick(40) == 0) {
      if (worker.loan != nullptr && !worker.loan->given_back()) worker.loan->withdraw();
      // The server may hear of it later than it happens.
      if (!std::exchange(worker.broken, true) && pick(2) == 0) return;
      return break_lane(index);
    }
    if (!worker.inbox.empty() && pick(2) == 0) return read_answer(index);
    Actions actions;
    if (worker.state == Worker::State::idle) {
      PushPull header = header_of(index, worker.round);
      header.weight = contributors_[index].weight;
      auto bytes = contribution(index, worker.round);
      if (pick(2) < lenders_ && !bytes.empty() && lend(worker, index, header, bytes, actions)) {
        return obey(actions);
      }
      if (!bytes.empty() && !worker.asked && pick(4) == 0) return request_to_send(index, header);
      worker.asked = false;
      worker.destination = aggregator_->begin(index, header, bytes.size(), actions);
      worker.state = Worker::State::sending;
      // Half of it arrives, as garbage.
      if (std::byte* to = place(worker); to != nullptr && !bytes.empty())
        std::memset(to, 0xEE, bytes.size() / 2);
    } else if (worker.state == Worker::State::sending) {
      const auto bytes = contribution(index, worker.round);
      if (std::byte* to = place(worker); to != nullptr && !bytes.empty())
        std::memcpy(to, bytes.data(), bytes.size());
      worker.state =
          std::exchange(worker.refused_early, false) ? Worker::State::refused : Worker::State::sent;
      const bool lane = worker.destination.kind == Destination::Kind::lane;
      aggregator_->end(index, lane ? worker.lane_buffer.data() : nullptr, actions);
    }
    obey(actions);
  }

  void request_to_send(std::uint32_t index, PushPull header) {
    Actions actions;
    header.rendezvous = true;
    CHECK(aggregator_->begin(index, header, 0, actions).kind == Destination::Kind::drop);
    aggregator_->end(index, nullptr, actions);
    workers_[index].state = Worker::State::refused;
    workers_[index].rendezvous = true;
    obey(actions);
  }

  bool lend(Worker& worker, std::uint32_t index, const PushPull& header, const std::vector<std::byte>& bytes,
            Actions& actions) {
    worker.loan = std::make_shared<TestLoan>(bytes, pick(10) == 0);
    if (pick(40) == 0) worker.loan->withdraw();
    const bool scarce = pick(2) == 0;
    LentPayload payload(worker.loan, 0, worker.loan->bytes(), scarce);
    const bool taken = aggregator_->lend(index, header, payload, actions);
    if (taken) {
      worker.state = Worker::State::sent;
      ++taken_;
      if (scarce || payload) CHECK(worker.loan->given_back());
      CHECK_FALSE(payload);
    } else {
      CHECK(actions.empty());
      REQUIRE(payload);
      // A transport copies it, and looks afterwards.
      if (worker.loan->withdrawn()) worker.broken = true;
      payload.reset();
      worker.loan = nullptr;
    }
    return taken || worker.broken;
  }

  std::byte* place(Worker& worker) {
    if (worker.destination.kind == Destination::Kind::lane) return worker.lane_buffer.data();
    return worker.destination.memory;
  }

  void obey(const Actions& actions) {
    for (const Action& action : actions) {
      Worker& worker = workers_[action.contributor];
      INFO("rank " << action.contributor << " round " << action.round.value << ": " << action.error.message);
      REQUIRE(worker.state != Worker::State::dead);
      const bool failed = action.kind == Action::Kind::failed;
      if (failed) {
        if (action.error.code == ErrorCode::configuration) {
          REQUIRE(may_lack_a_dropper(action.round.value));
          first_lacking_ = std::min(first_lacking_, action.round.value);
        } else {
          REQUIRE(may_fail(action.round.value));
          REQUIRE(action.error.code == ErrorCode::peer_lost);
        }
        // A failure is told while what it concerns is still being refused, or asked for again.
        worker.refused_early = false;
        if (worker.state == Worker::State::refused) worker.rendezvous = true;
      }
      if (failed || action.kind == Action::Kind::answer) {
        REQUIRE(!worker.refused_early);
        Answer answer{action.round,  action.payload.bytes, {},    action.pin,
                      action.weight, action.version,       failed};
        answer.copy.assign(action.payload.bytes.begin(), action.payload.bytes.end());
        worker.inbox.push_back(std::move(answer));
        continue;
      }
      REQUIRE(action.round.value == worker.round);
      if (worker.broken) continue;  // it does not hear it any more
      if (action.kind == Action::Kind::not_ready) {
        if (worker.state == Worker::State::sending) {
          worker.refused_early = true;
          continue;
        }
        // Of a request to send: it was sent before, on another lane, and its sum is spoiled.
        REQUIRE((worker.state == Worker::State::sent || worker.rendezvous));
        worker.state = Worker::State::refused;
      } else {
        REQUIRE(worker.state == Worker::State::refused);
        worker.state = Worker::State::idle;
        worker.rendezvous = false;
        worker.asked = true;
      }
    }
  }

  void read_answer(std::uint32_t index) {
    Worker& worker = workers_[index];
    Answer answer = std::move(worker.inbox.front());
    worker.inbox.pop_front();
    REQUIRE(std::equal(answer.copy.begin(), answer.copy.end(), answer.payload.begin(), answer.payload.end()));
    REQUIRE(answer.round.value == worker.round);
    // To a request to send, too: it was sent before, on another lane.
    REQUIRE((worker.state == Worker::State::sent || worker.rendezvous));
    worker.rendezvous = false;
    worker.asked = false;
    if (!answer.failed) check_answer(index, answer);
    const auto [first, is_first] = outcomes_.try_emplace(answer.round.value, answer.failed);
    if (!is_first && shape_.mode == Mode::sync && !may_lack_a_dropper(answer.round.value))
      REQUIRE(first->second == answer.failed);
    Actions actions;
    if (answer.pin != Action::kNoPin) aggregator_->unpin(answer.pin, actions);
    obey(actions);
    ++worker.round;
    worker.state = worker.round == rounds_ ? Worker::State::done : Worker::State::idle;
  }

  // What the server queued but the worker did not read is gone; the worker sends again what was not answered.
  void break_lane(std::uint32_t index) {
    Worker& worker = workers_[index];
    Actions actions;
    if (worker.loan != nullptr && !worker.loan->given_back()) worker.loan->withdraw();
    aggregator_->lost(index, actions);
    if (worker.loan != nullptr) CHECK(worker.loan->given_back());
    worker.loan = nullptr;
    worker.broken = false;
    worker.refused_early = false;
    worker.rendezvous = false;
    worker.asked = false;
    while (!worker.inbox.empty()) {
      if (worker.inbox.front().pin != Action::kNoPin) aggregator_->unpin(worker.inbox.front().pin, actions);
      worker.inbox.pop_front();
    }
    if (worker.state < Worker::State::done) worker.state = Worker::State::idle;
    obey(actions);
  }

  bool is_dead(std::uint32_t rank) const { return workers_[rank].state == Worker::State::dead; }
  // The first that fails needs a part that never comes, and all others have come to it: they have the round
  // before. All later ones fail, too.
  bool may_lack_a_dropper(std::uint64_t round) const {
    if (round > first_lacking_) return true;
    const auto is_lacking = [&](const Worker& w) { return w.dropped && w.round <= round; };
    const auto has_come = [&](const Worker& w) {
      return w.dropped || w.state == Worker::State::dead || w.round >= round;
    };
    return shape_.mode == Mode::sync && std::any_of(workers_.begin(), workers_.end(), is_lacking) &&
           std::all_of(workers_.begin(), workers_.end(), has_come);
  }
  virtual bool may_fail(std::uint64_t) { return false; }

  std::mt19937 random_;
  std::uint64_t rounds_;
  std::size_t lenders_ = 0;  // 0 none, 1 half, 2 all
  std::uint64_t taken_ = 0;  // payloads that were lent and taken
  std::uint32_t first_mortal_ = UINT32_MAX;
  std::size_t deaths_ = 0;
  bool may_drop_ = false;
  std::size_t drops_ = 0;                   // with rounds left
  std::map<std::uint64_t, bool> outcomes_;  // of rounds: failed
  std::uint64_t first_lacking_ = UINT64_MAX;
  PartitionShape shape_;
  TestPools pools_;
  BufferPool& slots_ = pools_.slots;
  BufferPool& budget_ = pools_.budget;
  std::vector<Contributor> contributors_;
  std::unique_ptr<Aggregator> aggregator_;
  std::vector<Worker> workers_;
};

// f32 sums, averages, products and maxima with values whose order matters, and a broadcast now and then.
class SyncWorld : public World {
 public:
  using World::World;

 private:
  RoundCall call_of(std::uint64_t round) const {
    constexpr Operation operations[] = {Operation::sum, Operation::average, Operation::product,
                                        Operation::max, Operation::sum};
    if (round % 6 > 0) return operations[round % 6 - 1];
    return RoundCall::broadcast(Rank{static_cast<std::uint32_t>(round % workers_.size())});
  }

  static float value_of(std::uint32_t rank, std::uint64_t round, std::size_t element) {
    std::mt19937 engine(static_cast<unsigned>(rank * 7919 + round * 104729 + element));
    return std::uniform_real_distribution<float>(-1, 1)(engine) * static_cast<float>(1u << (engine() % 20));
  }

  PushPull header_of(std::uint32_t, std::uint64_t round) override {
    PushPull header;
    header.round = Round{round};
    header.count = kMaxTensorElements;  // all
    header.call = call_of(round);
    return header;
  }

  std::vector<std::byte> contribution(std::uint32_t rank, std::uint64_t round) override {
    const RoundCall call = call_of(round);
    if (call.is_broadcast() && call.root != Rank{rank}) return {};
    std::vector<std::byte> bytes(kElements * sizeof(float));
    for (std::size_t i = 0; i < kElements; ++i) {
      const float value = value_of(rank, round, i);
      std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
    }
    return bytes;
  }

  void check_answer(std::uint32_t rank, const Answer& answer) override {
    const std::uint64_t round = answer.round.value;
    const RoundCall call = call_of(round);
    CAPTURE(rank, round);
    if (call.is_broadcast()) REQUIRE(answer.weight == contributors_[call.root.value].weight);
    if (call.is_broadcast() && call.root == Rank{rank}) {
      REQUIRE(answer.payload.empty());
      return;
    }
    REQUIRE(answer.payload.size() == kElements * sizeof(float));
    // The first one to read it finds out whose parts are in it; all others get the same.
    const std::vector<std::byte> got(answer.payload.begin(), answer.payload.end());
    const auto [known, is_first] = answers_.try_emplace(round, got, answer.weight);
    REQUIRE(known->second == std::pair(got, answer.weight));
    if (is_first) REQUIRE(is_right(round, answer));
  }

  // Of all live ranks, all dead ones that were further on, none that had not come so far, and any of the
  // others.
  bool is_right(std::uint64_t round, const Answer& answer) const {
    if (const RoundCall call = call_of(round); call.is_broadcast()) {
      return is_reduction_of({call.root.value}, round, answer);
    }
    std::vector<std::uint32_t> doubtful, sure;
    for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
      if (is_dead(rank) && workers_[rank].round == round) {
        doubtful.push_back(rank);
      } else if (!is_dead(rank) || workers_[rank].round > round) {
        sure.push_back(rank);
      }
    }
    for (std::size_t choice = 0; choice < std::size_t{1} << doubtful.size(); ++choice) {
      std::vector<std::uint32_t> ranks = sure;
      for (std::size_t i = 0; i < doubtful.size(); ++i) {
        if ((choice >> i & 1) != 0) ranks.push_back(doubtful[i]);
      }
      std::sort(ranks.begin(), ranks.end());
      std::uint32_t weight = 0;
      for (const std::uint32_t rank : ranks)
        weight += contributors_[rank].weight;
      if (weight == answer.weight && is_reduction_of(ranks, round, answer)) return true;
    }
    return false;
  }

  bool is_reduction_of(const std::vector<std::uint32_t>& ranks, std::uint64_t round,
                       const Answer& answer) const {
    const Operation operation = call_of(round).operation;
    for (std::size_t i = 0; i < kElements; ++i) {
      float expected = value_of(ranks.front(), round, i);
      for (std::size_t k = 1; k < ranks.size(); ++k) {
        const float next = value_of(ranks[k], round, i);
        if (operation == Operation::max) expected = expected < next ? next : expected;
        if (operation == Operation::product) expected = expected * next;
        if (operation == Operation::sum || operation == Operation::average) expected = expected + next;
      }
      if (operation == Operation::average && answer.weight > 1)
        expected = expected / static_cast<float>(answer.weight);
      if (std::memcmp(&expected, answer.payload.data() + i * sizeof(float), sizeof(float)) != 0) return false;
    }
    return true;
  }

  bool may_fail(std::uint64_t round) override {
    const RoundCall call = call_of(round);
    return call.is_broadcast() && is_dead(call.root.value);
  }

  std::map<std::uint64_t, std::pair<std::vector<std::byte>, std::uint32_t>> answers_;
};

// Every delta adds 1 in the digit of its rank, so that the value tells how many deltas of each are in it.
class AsyncWorld : public World {
 public:
  using World::World;

 private:
  static std::uint64_t digit(std::uint64_t value, std::uint32_t rank) { return (value >> (8 * rank)) & 0xFF; }

  PushPull header_of(std::uint32_t rank, std::uint64_t round) override {
    PushPull header;
    header.round = Round{round};
    header.count = kMaxTensorElements;  // all
    header.dtype = shape_.dtype;
    // Rank 1, if there is one, sends its first delta before it knows of any broadcast.
    if (round == 0 && rank != 1) header.call = RoundCall::broadcast(Rank{0});
    return header;
  }

  std::vector<std::byte> contribution(std::uint32_t rank, std::uint64_t round) override {
    const bool broadcast = header_of(rank, round).call.is_broadcast();
    if (broadcast && rank != 0) return {};
    std::vector<std::byte> bytes(kElements * 8);
    const std::uint64_t delta = broadcast ? 0 : std::uint64_t{1} << (8 * rank);
    for (std::size_t i = 0; i < kElements; ++i) {
      std::memcpy(bytes.data() + i * 8, &delta, 8);
    }
    return bytes;
  }

  void check_answer(std::uint32_t rank, const Answer& answer) override {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kElements; ++i) {
      std::uint64_t value = 0;
      std::memcpy(&value, answer.payload.data() + i * 8, 8);
      if (i > 0) REQUIRE(value == sum);
      sum = value;
    }
    const auto deltas_of = [&](std::uint32_t r) { return digit(sum, r) + (r == 1 ? 0 : 1); };
    std::uint64_t deltas = 0;
    for (std::uint32_t r = 0; r < workers_.size(); ++r) {
      deltas += digit(sum, r);
    }
    REQUIRE(answer.version == 1 + deltas);  // and the broadcast
    REQUIRE(deltas_of(rank) == answer.round.value + 1);
    const bool delta = !header_of(rank, answer.round.value).call.is_broadcast();
    if (!delta || shape_.staleness == kUnboundedStaleness) return;
    for (std::uint32_t r = 0; r < workers_.size(); ++r) {
      // A broadcast counts as a round, but a rank that has not sent its own is not told apart by the digits.
      if (deltas_of(r) > 1 && !is_dead(r) && !workers_[r].dropped)
        REQUIRE(deltas_of(r) + shape_.staleness >= answer.round.value + 1);
    }
  }
};

// Of at most 6 workers.
AsyncWorld async_world(unsigned seed, std::uint32_t least_workers) {
  std::mt19937 random(seed);
  const auto workers = static_cast<std::uint32_t>(least_workers + random() % (7 - least_workers));
  const std::size_t budgets[] = {0, kBuffer, 2 * kBuffer, 1 << 20};
  const std::uint32_t bounds[] = {0, 1, 3, kUnboundedStaleness};
  return AsyncWorld(seed, Mode::async, DType::i64, workers, 12, budgets[random() % 4], bounds[random() % 4]);
}

TEST_CASE("random synchronous worlds: exact sums, once each, memory back to zero") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto workers = static_cast<std::uint32_t>(1 + random() % 8);
    const std::size_t budgets[] = {0, kBuffer, 2 * kBuffer, 1 << 20};
    SyncWorld world(seed, Mode::sync, DType::f32, workers, 12, budgets[random() % 4], kUnboundedStaleness);
    if (seed % 2 == 1) world.make_groups();
    world.run();
  }
}

TEST_CASE("random synchronous worlds in which workers die: the others go on, and all see the same") {
  std::size_t deaths = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto workers = static_cast<std::uint32_t>(2 + random() % 5);
    const std::size_t budgets[] = {0, kBuffer, 2 * kBuffer, 1 << 20};
    SyncWorld world(seed, Mode::sync, DType::f32, workers, 12, budgets[random() % 4], kUnboundedStaleness);
    world.let_die(0);
    if (seed % 2 == 1) world.make_groups();
    world.run();
    deaths += world.deaths();
  }
  CHECK(deaths > 1000);
}

TEST_CASE("random asynchronous worlds in which workers die: the bound counts the others") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    AsyncWorld world = async_world(seed, 2);
    world.let_die(1);
    world.run();
  }
}

TEST_CASE("random synchronous worlds in which workers drop the tensor: later rounds fail, for all others") {
  std::size_t drops = 0;
  std::size_t deaths = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto workers = static_cast<std::uint32_t>(2 + random() % 5);
    const std::size_t budgets[] = {0, kBuffer, 2 * kBuffer, 1 << 20};
    SyncWorld world(seed, Mode::sync, DType::f32, workers, 12, budgets[random() % 4], kUnboundedStaleness);
    world.let_drop();
    if (seed % 3 == 0) world.let_die(0);
    if (seed % 2 == 1) world.make_groups();
    world.run();
    drops += world.drops();
    deaths += world.deaths();
  }
  CHECK(drops > 500);
  CHECK(deaths > 200);
}

TEST_CASE("random asynchronous worlds in which workers drop the tensor: the bound counts the others") {
  std::size_t drops = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    AsyncWorld world = async_world(seed, 2);
    world.let_drop();
    if (seed % 2 == 1) world.let_die(1);
    world.run();
    drops += world.drops();
  }
  CHECK(drops > 100);
}

TEST_CASE("random asynchronous worlds: every delta counts once, staleness holds") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    AsyncWorld world = async_world(seed, 1);
    world.run();
  }
}

}  // namespace
}  // namespace bps::aggregator_model_test
