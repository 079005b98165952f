// Random worlds in which a partition moves from one aggregator to the next, again and again, also while it is
// moving: workers know what they have stored and keep the last result, but for broadcasts and reduces, whose
// takers report what they have stored and whose givers give again; lanes break at every point; some rounds
// fail, because ranks disagree; some ranks leave when they have all, or drop the tensor, which each owner
// hears, and more than once; some die. Checked: every sum has the bits of the sum in rank order of the ranks
// that its weight claims, every worker gets each round once, in order, the same result as the others who
// live, and nobody waits for ever. In every third world slots are from a pool of one, which another partition
// has now and then.
#include <deque>
#include <map>
#include <random>

#include "server/testing/aggregator_harness.h"

namespace bps::aggregator_handoff_model_test {
namespace {

using Kind = Action::Kind;

constexpr std::size_t kElements = 3;
constexpr std::size_t kBytes = kElements * sizeof(float);
constexpr std::uint64_t kRounds = 12;

using Values = std::array<float, kElements>;

struct Worker {
  enum class State {
    down,      // no lane
    waiting,   // has resumed
    ready,     // may push
    pushing,   // half of it is there
    pushed,    // waits for the answer
    refused,   // waits to be asked again
    finished,  // has all rounds, but is still there
    gone,
    dead,
  };
  State state = State::down;
  bool resumes = true;      // when its lane is back: the partition has moved since, and it has not heard more
  std::uint64_t round = 0;  // the first that is not over here
  // The result of the round before, if it is kept for others; its error always is.
  bool keeps = true;
  bool reports = false;  // it is to report that it has stored it, on its present lane
  bool has_taken = false;
  Values kept{};
  std::uint32_t weight = 0;
  Error error;
  Destination destination;
  Values lane_buffer{};
  std::deque<Action> inbox;
  bool giving = false;   // a retained aggregate is half there
  bool dropped = false;  // it has all rounds, and keeps the last result
};

class World {
 public:
  World(unsigned seed, std::uint32_t workers, bool dies = false)
      : random_(seed),
        fails_(!dies && pick(2) == 0 && workers > 1),
        leaves_(pick(4) == 0),
        dies_(dies),
        drops_(pick(2) == 0),
        workers_(workers) {
    const std::size_t budgets[] = {0, BufferPool::class_bytes(kBytes), 1 << 20};
    pools_ = std::make_unique<TestPools>(budgets[pick(3)]);
    for (std::uint32_t i = 0; i < workers; ++i)
      contributors_.push_back({Rank{i}, 1});
    shape_.tensor = "t";
    shape_.elements = kElements;
    if (seed % 3 == 2) {
      shape_.mode = Mode::slot;
      pools_->add_calls(kBytes, 0);
      other_.emplace(pools_->calls->reserve, *pools_, kBytes);
    }
    move();
  }

  void run() {
    std::size_t steps = 0;
    while (!finished()) {
      REQUIRE(++steps < 100000);
      if (pick(60) == 0) move();
      if (other_) share_slots();
      step(static_cast<std::uint32_t>(pick(workers_.size())));
    }
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
      break_lane(i);
    CHECK(pools_->budget.bytes_in_use() == 0);
    aggregator_.reset();
    other_.reset();
    pools_->calls.reset();
    CHECK(pools_->slots.bytes_in_use() == 0);
  }

  bool has_fetched() const { return fetched_; }
  // Something was given again, or its end was asked for, after a move.
  bool has_repeated() const { return repeated_; }
  std::size_t deaths() const { return deaths_; }

 private:
  std::size_t pick(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  bool has_slots() const { return shape_.mode == Mode::slot; }
  // Another partition's rounds end by themselves. Who waits is told in a turn of its own.
  void share_slots() {
    if (pick(8) == 0) *other_ ? other_->give_back() : static_cast<void>(other_->take(true));
    const int told = pools_->told;
    const bool had = static_cast<bool>(*other_);
    pools_->serve();
    if (pools_->told == told || (pools_->told == told + 1 && had != static_cast<bool>(*other_))) return;
    Actions actions;
    aggregator_->on_memory(actions);
    obey(actions);
  }

  bool finished() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Worker& w) { return w.round == kRounds || w.state == Worker::State::dead; });
  }
  bool is_dead(std::size_t rank) const { return workers_[rank].state == Worker::State::dead; }

  // ---- what is pushed, and what must come of it ----

  static Rank root_of(std::uint64_t round, std::size_t n) {
    return Rank{static_cast<std::uint32_t>(round % n)};
  }
  RoundCall call_of(std::uint64_t round) const {
    const Rank root = root_of(round, workers_.size());
    if (round % 4 == 1) return RoundCall::broadcast(root);
    return round % 4 == 3 ? RoundCall::reduce(Operation::sum, root) : RoundCall();
  }
  bool is_root(std::uint32_t rank, std::uint64_t round) const {
    return root_of(round, workers_.size()) == Rank{rank};
  }
  // Without payload.
  bool is_empty(std::uint32_t rank, std::uint64_t round) const {
    return !call_of(round).gives(is_root(rank, round));
  }
  bool takes(std::uint32_t rank, std::uint64_t round) const {
    return call_of(round).takes(is_root(rank, round));
  }
  bool is_failing(std::uint64_t round) const { return fails_ && round % 4 == 2; }
  // A round fails without those who have not begun it: they may not even have heard of the one before.
  bool may_miss(std::uint64_t round) const { return is_failing(round + 1); }

  static float value_of(std::uint32_t rank, std::uint64_t round, std::size_t element) {
    std::mt19937 engine(static_cast<unsigned>(rank * 7919 + round * 104729 + element));
    return std::uniform_real_distribution<float>(-1, 1)(engine) * static_cast<float>(1u << (engine() % 20));
  }
  static Values values_of(std::uint32_t rank, std::uint64_t round) {
    Values values;
    for (std::size_t i = 0; i < kElements; ++i)
      values[i] = value_of(rank, round, i);
    return values;
  }
  // Of all who live, and any of the dead.
  bool is_right(std::uint64_t round, const Values& values, std::uint32_t weight) const {
    const auto equals = [&](const Values& right) { return std::memcmp(&values, &right, kBytes) == 0; };
    if (call_of(round).is_broadcast()) {
      return weight == 1 && equals(values_of(root_of(round, workers_.size()).value, round));
    }
    for (std::size_t choice = 0; choice < std::size_t{1} << workers_.size(); ++choice) {
      std::uint32_t count = 0;
      bool possible = true;
      Values sum{};
      for (std::uint32_t rank = 0; rank < workers_.size(); ++rank) {
        if ((choice >> rank & 1) == 0) {
          possible = possible && is_dead(rank);
          continue;
        }
        for (std::size_t i = 0; i < kElements; ++i)
          sum[i] = count == 0 ? value_of(rank, round, i) : sum[i] + value_of(rank, round, i);
        ++count;
      }
      if (possible && count == weight && equals(sum)) return true;
    }
    return false;
  }
  PushPull header_of(std::uint32_t rank, std::uint64_t round) const {
    PushPull header;
    header.round = Round{round};
    header.count = kMaxTensorElements;  // all
    header.call = call_of(round);
    if (is_failing(round) && rank % 2 == 1) header.weight = 9;
    return header;
  }

  // ---- what happens ----

  // All lanes to the old owner are closed for good; the new one knows nothing.
  void move() {
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      if (aggregator_ != nullptr) break_lane(i);
      workers_[i].resumes = true;
    }
    aggregator_.reset();
    if (!has_slots()) REQUIRE(pools_->slots.bytes_in_use() == 0);
    if (has_slots()) REQUIRE(pools_->calls->pool.waiting() == (other_->waits() ? 1 : 0));
    REQUIRE(pools_->budget.bytes_in_use() == 0);
    shape_.moved = moves_++ > 0;
    if (!shape_.moved) {
      for (Worker& worker : workers_)
        worker.resumes = false;
    }
    pools_->slots.set_limit(UINT64_MAX);
    aggregator_ = make_aggregator(shape_, contributors_, pools_->memory());
    // Often there is no memory for a second slot.
    if (!has_slots() && pick(2) == 0) pools_->slots.set_limit(pools_->slots.bytes_in_use());
    Actions actions;
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      if (is_dead(i)) aggregator_->died(i, actions);
      if (workers_[i].state != Worker::State::gone) continue;
      aggregator_->left(i, actions);
      aggregator_->gone(i, actions);
    }
    obey(actions);
  }

  void break_lane(std::uint32_t index) {
    Worker& worker = workers_[index];
    Actions actions;
    aggregator_->lost(index, actions);
    for (const Action& action : worker.inbox) {
      if (action.pin != Action::kNoPin) aggregator_->unpin(action.pin, actions);
    }
    worker.inbox.clear();
    worker.giving = false;
    worker.reports = worker.has_taken;
    if (worker.state < Worker::State::gone) worker.state = Worker::State::down;
    obey(actions);
  }

  // What it had seen is no matter any more.
  void die(std::uint32_t index) {
    ++deaths_;
    break_lane(index);
    workers_[index].state = Worker::State::dead;
    contributors_[index].loss = "it is gone";
    for (auto it = outcomes_.begin(); it != outcomes_.end();) {
      auto& ranks = it->second.ranks;
      std::erase(ranks, index);
      it = ranks.empty() ? outcomes_.erase(it) : std::next(it);
    }
    Actions actions;
    aggregator_->died(index, actions);
    obey(actions);
  }

  void step(std::uint32_t index) {
    Worker& worker = workers_[index];
    Actions actions;
    if (worker.state >= Worker::State::gone) {
      if (pick(3) == 0) break_lane(index);
      return;
    }
    if (dies_ && pick(100) == 0) {
      const auto live = std::count_if(workers_.begin(), workers_.end(),
                                      [](const Worker& w) { return w.state < Worker::State::gone; });
      if (live > 1) return die(index);
    }
    if (worker.dropped && pick(20) == 0) {
      aggregator_->dropped(index, actions);
      return obey(actions);
    }
    if (worker.state == Worker::State::down) return come_back(index);
    if (pick(40) == 0) return break_lane(index);
    if (worker.reports && !worker.resumes && pick(2) == 0) {
      worker.reports = false;
      aggregator_->stored(index, Round{worker.round - 1}, actions);
      return obey(actions);
    }
    if (worker.giving) {
      const Values& kept = worker.kept;
      if (worker.destination.memory != nullptr) std::memcpy(worker.destination.memory, kept.data(), kBytes);
      worker.giving = false;
      aggregator_->end_retained(index, actions);
      return obey(actions);
    }
    if (worker.state == Worker::State::pushing) return end_push(index);
    if (!worker.inbox.empty() && pick(3) != 0) return hear(index);
    if (worker.state == Worker::State::ready) begin_push(index);
    if (worker.state == Worker::State::finished && drops_ && pick(10) == 0) {
      worker.dropped = true;
      aggregator_->dropped(index, actions);
      return obey(actions);
    }
    if (worker.state == Worker::State::finished && leaves_ && pick(10) == 0) {
      worker.state = Worker::State::gone;
      any_left_ = true;
      aggregator_->left(index, actions);
      aggregator_->gone(index, actions);
      obey(actions);
    }
  }

  void come_back(std::uint32_t index) {
    Worker& worker = workers_[index];
    if (!worker.resumes) {
      worker.state = worker.round == kRounds ? Worker::State::finished : Worker::State::ready;
    } else if (worker.round < kRounds && worker.keeps && pick(4) == 0) {
      worker.state = Worker::State::ready;  // as one who has declared the tensor since
    } else {
      worker.state = Worker::State::waiting;
      Actions actions;
      aggregator_->resume(index, {{}, Round{worker.round}, 0, 0, worker.keeps}, actions);
      obey(actions);
    }
  }

  void begin_push(std::uint32_t index) {
    Worker& worker = workers_[index];
    Actions actions;
    const bool empty = is_empty(index, worker.round);
    worker.destination =
        aggregator_->begin(index, header_of(index, worker.round), empty ? 0 : kBytes, actions);
    worker.state = Worker::State::pushing;
    if (worker.destination.memory != nullptr) std::memset(worker.destination.memory, 0xEE, kBytes / 2);
    obey(actions);
  }

  void end_push(std::uint32_t index) {
    Worker& worker = workers_[index];
    Actions actions;
    const Values values = values_of(index, worker.round);
    const bool lane = worker.destination.kind == Destination::Kind::lane;
    if (lane) worker.lane_buffer = values;
    if (worker.destination.memory != nullptr) std::memcpy(worker.destination.memory, values.data(), kBytes);
    worker.state = Worker::State::pushed;
    aggregator_->end(index, lane ? reinterpret_cast<const std::byte*>(worker.lane_buffer.data()) : nullptr,
                     actions);
    obey(actions);
  }

  void obey(const Actions& actions) {
    for (const Action& action : actions) {
      Worker& worker = workers_[action.contributor];
      const bool up = worker.state != Worker::State::down && worker.state < Worker::State::gone;
      if (up) {
        worker.inbox.push_back(action);
      } else if (action.pin != Action::kNoPin) {
        Actions more;
        aggregator_->unpin(action.pin, more);
        obey(more);
      }
    }
  }

  // The worker reads one message.
  void hear(std::uint32_t index) {
    Worker& worker = workers_[index];
    const Action action = worker.inbox.front();
    worker.inbox.pop_front();
    CAPTURE(index, action.round.value, worker.round, action.error.message);
    switch (action.kind) {
      case Kind::resumed:
        REQUIRE(action.round.value >= worker.round);
        REQUIRE(action.round.value <= worker.round + (may_miss(worker.round) ? 2 : 1));
        worker.resumes = false;
        if (worker.state != Worker::State::waiting) return;
        worker.state = worker.round == kRounds              ? Worker::State::finished
                       : action.round.value == worker.round ? Worker::State::ready
                                                            : Worker::State::pushed;
        if (worker.state == Worker::State::pushed && call_of(worker.round).is_confirmed()) {
          worker.state = Worker::State::ready;
          repeated_ = true;
        }
        return;
      case Kind::fetch: {
        fetched_ = true;
        REQUIRE(action.round.value + 1 == worker.round);
        REQUIRE(worker.keeps);
        Retained header;
        header.round = action.round;
        header.weight = worker.weight;
        header.error = worker.error;
        worker.destination =
            aggregator_->begin_retained(index, header, worker.error.code == ErrorCode::ok ? kBytes : 0);
        worker.giving = true;
        if (worker.destination.memory != nullptr) std::memset(worker.destination.memory, 0xEE, kBytes / 2);
        return;
      }
      case Kind::not_ready:
        REQUIRE(action.round.value == worker.round);
        REQUIRE(worker.state == Worker::State::pushed);
        worker.state = Worker::State::refused;
        return;
      case Kind::clear_to_send:
        REQUIRE(action.round.value == worker.round);
        REQUIRE(worker.state == Worker::State::refused);
        worker.state = Worker::State::ready;
        return;
      case Kind::answer:
      case Kind::failed: return store(index, action);
    }
  }

  void store(std::uint32_t index, const Action& action) {
    Worker& worker = workers_[index];
    // One that was told of a failure when it resumed has perhaps sent its frame again, too.
    if (action.kind == Kind::failed && action.round.value < worker.round &&
        call_of(action.round.value).is_confirmed())
      return;
    REQUIRE(action.round.value == worker.round);
    const bool is_confirmed = call_of(worker.round).is_confirmed();
    // One that sends again may be told first.
    REQUIRE((worker.state == Worker::State::pushed || worker.state == Worker::State::refused ||
             (is_confirmed && worker.state == Worker::State::ready)));
    worker.error = action.error;
    worker.weight = action.weight;
    worker.keeps = !is_confirmed || action.kind == Kind::failed;
    const bool is_reported = has_slots() ? action.kind == Kind::answer : !worker.keeps;
    worker.has_taken = is_reported && takes(index, worker.round);
    worker.reports = worker.has_taken;
    if (action.kind == Kind::failed) {
      const bool last = any_left_ && worker.round + 1 == kRounds;
      const bool lost = is_confirmed && is_dead(root_of(worker.round, workers_.size()).value);
      REQUIRE((is_failing(worker.round) || may_miss(worker.round) || last || lost));
    } else {
      REQUIRE_FALSE(is_failing(worker.round));
      REQUIRE(action.payload.bytes.size() == (takes(index, worker.round) ? kBytes : 0));
      if (takes(index, worker.round)) {
        std::memcpy(worker.kept.data(), action.payload.bytes.data(), kBytes);
        note(index, worker.kept, action.weight);
      } else {
        check_takers(worker.round);
      }
    }
    ++worker.round;
    worker.state = worker.round == kRounds ? Worker::State::finished : Worker::State::ready;
    if (action.pin == Action::kNoPin) return;
    Actions actions;
    aggregator_->unpin(action.pin, actions);
    obey(actions);
  }

  // A giver's part is over: all takers that live have the answer.
  void check_takers(std::uint64_t round) const {
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      const bool has_it = workers_[i].round > round || is_dead(i) || !takes(i, round);
      REQUIRE((has_it || any_left_));
    }
  }

  // All who live see the same.
  void note(std::uint32_t index, const Values& values, std::uint32_t weight) {
    const std::uint64_t round = workers_[index].round;
    Outcome& outcome = outcomes_[round];
    if (outcome.ranks.empty()) {
      outcome = {values, weight, {}};
      if (weight > 0) REQUIRE(is_right(round, values, weight));
    }
    outcome.ranks.push_back(index);
    REQUIRE(outcome.weight == weight);
    REQUIRE(std::memcmp(&outcome.values, &values, kBytes) == 0);
  }

  struct Outcome {
    Values values{};
    std::uint32_t weight = 0;          // 0: it has failed
    std::vector<std::uint32_t> ranks;  // who live and have seen it
  };

  std::mt19937 random_;
  const bool fails_;
  const bool leaves_;
  const bool dies_;
  const bool drops_;
  std::size_t deaths_ = 0;
  std::map<std::uint64_t, Outcome> outcomes_;
  bool any_left_ = false;
  bool fetched_ = false;
  bool repeated_ = false;
  std::uint64_t moves_ = 0;
  PartitionShape shape_;
  std::unique_ptr<TestPools> pools_;
  std::optional<RoundPool::Claim> other_;
  std::vector<Contributor> contributors_;
  std::unique_ptr<Aggregator> aggregator_;
  std::vector<Worker> workers_;
};

TEST_CASE("random worlds in which the partition moves: exact results, once each, the same for all") {
  std::size_t fetched = 0, repeated = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    CAPTURE(seed);
    World world(seed, static_cast<std::uint32_t>(1 + seed % 5));
    world.run();
    fetched += world.has_fetched() ? 1 : 0;
    repeated += world.has_repeated() ? 1 : 0;
  }
  CHECK(fetched > 300);
  CHECK(repeated > 300);
}

TEST_CASE("random worlds in which the partition moves and workers die: the same for all who live") {
  std::size_t fetched = 0, repeated = 0;
  std::size_t deaths = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    World world(seed, static_cast<std::uint32_t>(2 + seed % 4), true);
    world.run();
    fetched += world.has_fetched() ? 1 : 0;
    repeated += world.has_repeated() ? 1 : 0;
    deaths += world.deaths();
  }
  CHECK(fetched > 600);
  CHECK(repeated > 500);
  CHECK(deaths > 1000);
}

}  // namespace
}  // namespace bps::aggregator_handoff_model_test
