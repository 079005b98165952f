// A client's engine among the ranks of its host, of whom the others say anything that decodes, at any time:
// as members to the leader, and as leader. Every operation ends exactly once, no memory is touched that is
// not the engine's to touch, and no bytes end the process.
#include <deque>

#include "client/src/engine/testing/fake_loan.h"
#include "client/src/engine/testing/requests.h"
#include "client/src/engine/testing/scripted_cluster.h"
#include "client/src/group/host_group.h"
#include "proto/base/assert.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

using testing::FakeLoan;
using testing::kSlice;
using testing::Outcome;
using testing::ScriptedCluster;
using testing::ScriptedConnection;
using testing::Wire;

constexpr std::uint32_t kRanks = 3;
constexpr std::uint32_t kPartitions = 4;
constexpr std::uint64_t kLastBytes = 100;
constexpr std::uint64_t kTensorBytes = (kPartitions - 1) * kSlice + kLastBytes;

// The others' ends of the links.
class LinkTransport final : public Transport {
 public:
  Result<std::unique_ptr<Listener>> listen(EventLoop&, const Endpoint& endpoint, Accepted accepted) override {
    struct Ear final : Listener {
      explicit Ear(LinkTransport& to) : transport(to) {}
      ~Ear() override { transport.accepted_ = nullptr; }
      Endpoint endpoint() const override { return transport.endpoint_; }
      LinkTransport& transport;
    };
    endpoint_ = endpoint;
    accepted_ = std::move(accepted);
    return std::unique_ptr<Listener>(std::make_unique<Ear>(*this));
  }
  std::unique_ptr<Connection> connect(EventLoop&, const Endpoint&, Duration) override { return open(); }
  void come() {
    if (accepted_ != nullptr) accepted_(open());
  }
  std::vector<std::shared_ptr<Wire>> wires;

 private:
  std::unique_ptr<Connection> open() {
    wires.push_back(std::make_shared<Wire>());
    return std::make_unique<ScriptedConnection>(wires.back());
  }
  Endpoint endpoint_;
  Accepted accepted_;
};

class Host {
 public:
  explicit Host(Input& input)
      : input_(input),
        self_(input.below(kRanks)),
        cluster_(config(input, self_),
                 {&loop_, &links_, [](const DataPlane::GroupContext& context, LocalGroup::Owner& owner) {
                    HostGroup::Options options;
                    options.job_run = context.run;
                    options.ranks = context.ranks;
                    options.member = context.self;
                    options.max_early_frames = 64;
                    options.max_early_bytes = 16 * kSlice;
                    return std::make_unique<HostGroup>(context.loop, *context.transport, std::move(options),
                                                       owner);
                  }}) {
    for (std::uint32_t r = 0; r < kRanks; ++r)
      cluster_.members.push_back({Rank{r}, Incarnation{r + 10}, "host", r, kRanks, Rank{0}, r});
  }

  void run() {
    bool joined = false;
    cluster_.engine.join([&](const Status& status) { joined = status.ok(); });
    cluster_.welcome_worker();
    cluster_.scheduler().deliver(cluster_.job_start(2));
    cluster_.welcome_lane(0);
    cluster_.welcome_lane(1);
    if (input_.below(16) != 1) greet();
    loop_.run_tasks();
    for (std::uint32_t t = 0; joined && t < 2; ++t)
      declare();
    for (int steps = 0; !input_.empty() && steps < 600; ++steps) {
      act(joined);
      loop_.run_tasks();
    }
    bool closed = false;
    cluster_.engine.close(std::chrono::seconds(1), [&](const Status&) { closed = true; });
    loop_.run_for(std::chrono::seconds(12));
    BPS_ASSERT(closed && drops_ended_ == drops_);
    for (const Call& operation : calls_)
      BPS_ASSERT(operation.outcome.ended == 1);
  }

 private:
  struct Call {
    std::vector<std::byte> in, out;
    Outcome outcome;
  };

  static ClientConfig config(Input& input, std::uint32_t self) {
    ClientConfig config = ScriptedCluster::default_config();
    config.rank = Rank{self};
    config.world_size = kRanks;
    config.retain = input.below(4) != 1;
    config.local_group = LocalGrouping::host;
    return config;
  }

  // All links come up, and the order begins.
  void greet() {
    for (std::uint32_t member = 0; member < self_; ++member) {
      Welcome welcome;
      welcome.incarnation = Incarnation{self_ + 10};
      welcome.job_run = JobRun{ScriptedCluster::kRun};
      say(*links_.wires[member], welcome);
    }
    for (std::uint32_t member = self_ + 1; member < kRanks; ++member) {
      links_.come();
      say(*links_.wires.back(), HelloLocal{JobRun{ScriptedCluster::kRun},
                                           Rank{member},
                                           Incarnation{member + 10},
                                           Incarnation{self_ + 10},
                                           {}});
    }
    if (self_ != 0) say(*links_.wires.front(), LocalBatch{});
  }

  void act(bool joined) {
    const std::uint32_t what = input_.below(32);
    if (what < 4) return joined ? operate(what == 0) : void();
    if (what == 4) return loop_.run_for(std::chrono::milliseconds(input_.below(256)));
    if (what == 5) return input_.flag() ? drop() : void(cluster_.engine.describe(TensorId{input_.below(3)}));
    if (what < 10) return serve(input_.below(2));
    if (what == 10) return of_scheduler(joined);
    if (links_.wires.size() != kRanks - 1) return;
    const std::uint32_t other = input_.below(kRanks - 1);
    Wire& wire = *links_.wires[other];
    if (what < 14) return listen(other);
    if (!wire.open()) return;
    if (what < 29 || input_.below(4) != 1) return say_due(other);
    switch (input_.below(16)) {
      case 0:
        return std::exchange(wire.handler, nullptr)->on_closed(make_error(ErrorCode::peer_lost, "gone"));
      case 1: return say(wire, any_message(input_));
      case 2:
      case 3:
      case 4: return say(wire, news());
      case 5:
      case 6:
      case 7:
      case 8:
      case 9: return say(wire, batch());
      default: return say(wire, data());
    }
  }

  // ---- the program ----

  void declare() {
    if (!cluster_.scheduler().open() || cluster_.engine.failure() || declared_.size() > 8) return;
    if (!cluster_.engine.describe_scheduler().empty())
      return;  // it has been silent for too long, and is asked later
    cluster_.scheduler().frames.clear();
    declared_.push_back(cluster_.declare("t" + std::to_string(declared_.size()), kTensorBytes, {0, 1, 0, 1}));
  }

  void drop() {
    if (declared_.empty()) return;
    const TensorId tensor = declared_[input_.below(static_cast<std::uint32_t>(declared_.size()))];
    if (!cluster_.engine.drop(tensor, [this](const Status&) { ++drops_ended_; })) return;
    ++drops_;
    dropped_.push_back(tensor);
  }

  void operate(bool is_broadcast) {
    if (declared_.empty() || calls_.size() > 60) return;
    const TensorId tensor = declared_[input_.below(static_cast<std::uint32_t>(declared_.size()))];
    Call& operation = calls_.emplace_back();
    operation.in = testing::bytes_of(kTensorBytes, 1);
    operation.out = testing::bytes_of(kTensorBytes, 0);
    const bool in_place = input_.flag();
    const bool is_max = input_.below(8) == 1;
    const Rank root{input_.below(kRanks)};
    const auto done = cluster_.into(operation.outcome);
    const Status status =
        is_broadcast ? cluster_.engine.begin(testing::broadcast_of(tensor, operation.out, root, done))
                     : cluster_.engine.begin(testing::push_pull_of(
                           tensor, in_place ? operation.out : operation.in, operation.out,
                           is_max ? Operation::max : Operation::sum, done));
    if (!status) return calls_.pop_back();
    if (tensor.value >= begun_.size())
      begun_.resize(tensor.value + 1, LocalReady{TensorId{}, Round{~0ull}, {}, {}});
    LocalReady& ready = begun_[tensor.value];
    RoundCall call = is_max ? Operation::max : Operation::sum;
    if (is_broadcast) call = RoundCall::broadcast(root);
    ready = {tensor, ready.round.next(), call, MemoryKind::host};
    if (self_ != 0) return;
    LocalNews news;
    news.ready.push_back(ready);
    for (auto& due : due_)
      due.push_back(news);
  }

  // ---- scheduler and servers, who keep the rules ----

  void of_scheduler(bool joined) {
    if (!cluster_.scheduler().open()) return;
    switch (input_.below(16)) {
      case 0:
        return cluster_.scheduler().deliver(
            JobFailed{JobRun{ScriptedCluster::kRun}, make_error(ErrorCode::peer_lost, "rank 2 is gone")});
      case 1:
      case 2:
        return cluster_.scheduler().deliver(TensorFailed{JobRun{ScriptedCluster::kRun},
                                                         TensorId{input_.below(4)},
                                                         make_error(ErrorCode::configuration, "otherwise")});
      case 3: return joined ? declare() : void();
      case 4:
      case 5:
        if (dropped_.empty()) return;
        return cluster_.scheduler().deliver(
            DropTensors{0,
                        JobRun{ScriptedCluster::kRun},
                        {dropped_[input_.below(static_cast<std::uint32_t>(dropped_.size()))],
                         TensorId{input_.number32()}},
                        {}});
      default: return cluster_.scheduler().deliver(Heartbeat{1});
    }
  }

  void serve(std::uint32_t lane) {
    Wire& wire = cluster_.lane(lane);
    if (!wire.open() || wire.frames.empty()) return;
    const testing::SentFrame frame = std::move(wire.frames.front());
    wire.frames.pop_front();
    const auto* push = std::get_if<PushPull>(&frame.message);
    if (push == nullptr) return;
    // What is pushed is what this rank owns, and of its host.
    BPS_ASSERT(push->partition.value % kRanks == self_ && push->weight == kRanks);
    if (frame.cookie != 0) wire.sent(frame.cookie);
    taken_[lane] += frame.payload.size();
    if (push->error.code != ErrorCode::ok || input_.below(16) == 1) {
      const Error error =
          push->error.code != ErrorCode::ok ? push->error : make_error(ErrorCode::peer_lost, "gone");
      return wire.deliver(RoundFailed{push->partition, push->round, error, taken_[lane]});
    }
    const Aggregate answer =
        cluster_.answer(push->partition.value, push->round.value, taken_[lane], push->weight);
    if (push->call.is_broadcast() && !frame.payload.empty()) return wire.deliver(answer);
    (void)wire.deliver(answer, testing::bytes_of(bytes_of(push->partition), 7));
  }

  // ---- the other ranks ----

  // What is due of them if they keep the rules, which is said most of the time: else nobody would listen for
  // long.
  std::uint32_t member_of(std::uint32_t other) const { return other < self_ ? other : other + 1; }
  static std::uint32_t owner_of(TensorId tensor, std::uint32_t index) {
    return (kPartitions * tensor.value + index) % kRanks;
  }
  void say_due(std::uint32_t other) {
    listen(other);
    std::deque<Message>& due = due_[other];
    if (due.empty()) return;
    Message next = std::move(due.front());
    due.pop_front();
    if (auto* batch = std::get_if<LocalBatch>(&next)) {
      batch->number = number_++;
      if (input_.below(32) == 1) batch->items.front().count = input_.below(kPartitions + 1);
    }
    say(*links_.wires[other], next);
  }

  // Reads one frame of the engine's, and works out what follows from it.
  void listen(std::uint32_t other) {
    Wire& wire = *links_.wires[other];
    if (wire.frames.empty()) return;
    const testing::SentFrame frame = std::move(wire.frames.front());
    wire.frames.pop_front();
    if (frame.cookie != 0) wire.sent(frame.cookie);
    if (const auto* news = std::get_if<LocalNews>(&frame.message)) {
      for (const LocalReady& ready : news->ready) {
        due_[0].push_back(LocalBatch{0, {}, {item(LocalItem::Kind::reduce, ready, 0, kPartitions)}, {}});
        for (std::uint32_t each = 0; each < kRanks - 1; ++each)
          parts_from(each, ready, 0, kPartitions);
        for (std::uint32_t i = 0; i < kPartitions; ++i) {
          if (owner_of(ready.tensor, i) == self_) continue;
          due_[0].push_back(LocalBatch{0, {}, {item(LocalItem::Kind::spread, ready, i, 1)}, {}});
          answer_from(owner_of(ready.tensor, i), ready, i);
        }
      }
      for (const LocalAnswer& answer : news->answered) {
        LocalItem spread =
            item(LocalItem::Kind::spread, {answer.tensor, answer.round, {}, {}}, answer.index, 1);
        spread.error = answer.error;
        due_[0].push_back(LocalBatch{0, {}, {spread}, {}});
      }
    } else if (const auto* batch = std::get_if<LocalBatch>(&frame.message)) {
      for (const LocalItem& said : batch->items)
        follow(other, said);
    }
  }
  void follow(std::uint32_t other, const LocalItem& said) {
    if (said.tensor.value >= begun_.size() || said.count > kPartitions) return;
    const LocalReady& ready = begun_[said.tensor.value];
    if (said.kind == LocalItem::Kind::reduce) parts_from(other, ready, said.first, said.count);
    for (std::uint32_t i = said.first; i < said.first + said.count; ++i) {
      if (owner_of(said.tensor, i) != member_of(other)) continue;
      if (said.kind == LocalItem::Kind::spread) {
        if (said.error.code == ErrorCode::ok) answer_from(member_of(other), ready, i);
      } else {
        LocalNews news;
        news.answered.push_back({said.tensor, said.round, i, kRanks, said.error});
        due_[other].push_back(news);
      }
    }
  }
  static LocalItem item(LocalItem::Kind kind, const LocalReady& ready, std::uint32_t first,
                        std::uint32_t count) {
    return {kind, ready.tensor, ready.round, first, count, kRanks, 0, {}};
  }
  void parts_from(std::uint32_t other, const LocalReady& ready, std::uint32_t first, std::uint32_t count) {
    if (ready.call.is_broadcast() && ready.call.root.value != member_of(other)) return;
    for (std::uint32_t i = first; i < first + count; ++i) {
      if (owner_of(ready.tensor, i) != self_) continue;
      PushPull part;
      part.job_run = JobRun{ScriptedCluster::kRun};
      part.partition = PartitionId{kPartitions * ready.tensor.value + i};
      part.round = ready.round;
      part.call = ready.call;
      due_[other].push_back(part);
    }
  }
  void answer_from(std::uint32_t member, const LocalReady& ready, std::uint32_t index) {
    if (ready.call.is_broadcast() && ready.call.root.value == self_) return;
    Aggregate answer;
    answer.partition = PartitionId{kPartitions * ready.tensor.value + index};
    answer.round = ready.round;
    due_[member < self_ ? member : member - 1].push_back(answer);
  }

  void say(Wire& wire, const Message& message) {
    auto heard = received(message, kMaxControlHeaderBytes);
    if (!heard || !wire.open()) return;
    const std::size_t bytes = payload_bytes(*heard);
    if (bytes == 0) return wire.handler->on_message(*heard, {});
    if (input_.flag()) {
      const auto loan = FakeLoan::of(testing::bytes_of(bytes, 3));
      if (input_.below(8) == 1) loan->withdraw_after(static_cast<int>(input_.below(3)));
      LentPayload payload = FakeLoan::payload(loan, input_.flag());
      if (wire.handler->on_lent(*heard, payload) || !wire.open()) return;
    }
    std::byte* const place = wire.handler->on_payload(*heard, bytes);
    if (!wire.open()) return;
    std::fill_n(place, place == nullptr ? 0 : bytes, std::byte{9});
    wire.handler->on_message(*heard, {place, place == nullptr ? 0 : bytes});
  }

  static std::size_t bytes_of(PartitionId partition) {
    return partition.value % kPartitions == kPartitions - 1 ? kLastBytes : kSlice;
  }
  std::size_t payload_bytes(const Message& message) {
    const auto* push = std::get_if<PushPull>(&message);
    const auto* answer = std::get_if<Aggregate>(&message);
    if (push == nullptr && answer == nullptr) return input_.below(16) == 1 ? input_.below(5000) : 0;
    const std::uint32_t odd = input_.below(16);
    if (odd < 2) return odd * input_.below(5000);
    return bytes_of(push != nullptr ? push->partition : answer->partition);
  }

  TensorId tensor() { return TensorId{input_.below(32) == 1 ? input_.number32() : input_.below(3)}; }
  Round round() { return Round{input_.below(16) == 1 ? input_.number() : input_.below(3)}; }
  RoundCall call() {
    const std::uint32_t odd = input_.below(8);
    if (odd == 2) return RoundCall::broadcast(Rank{input_.below(kRanks)});
    return odd == 1 ? Operation::max : Operation::sum;
  }
  // Those that agree with this rank's, mostly.
  MemoryKind memory() { return input_.below(16) == 1 ? MemoryKind::cuda : MemoryKind::host; }
  Error error() { return input_.below(8) == 1 ? make_error(ErrorCode::out_of_memory, "none") : Error{}; }

  LocalNews news() {
    LocalNews news;
    for (std::uint32_t left = input_.below(3); left > 0; --left)
      news.ready.push_back({tensor(), round(), call(), memory()});
    for (std::uint32_t left = input_.below(3); left > 0; --left)
      news.answered.push_back({tensor(), round(), input_.below(kPartitions + 1), kRanks, error()});
    if (input_.below(8) == 1) news.dropped.push_back(tensor());
    news.leaving = input_.below(32) == 1;
    return news;
  }

  LocalBatch batch() {
    LocalBatch batch;
    for (std::uint32_t left = input_.below(4); left > 0; --left) {
      LocalItem item;
      const std::uint32_t kind = input_.below(16);
      item.kind = kind < 8    ? LocalItem::Kind::reduce
                  : kind < 12 ? LocalItem::Kind::spread
                              : static_cast<LocalItem::Kind>(1 + kind % 4);
      item.tensor = tensor();
      item.round = round();
      item.first = input_.below(kPartitions);
      item.count = input_.below(16) == 1 ? input_.number32() : 1 + input_.below(kPartitions - item.first);
      if (item.kind == LocalItem::Kind::refuse) item.first = 0, item.count = kPartitions;
      item.weight = kRanks;
      item.member = input_.below(kRanks + 1);
      item.error = error();
      batch.items.push_back(std::move(item));
    }
    batch.number = input_.below(16) == 1 ? input_.number() : number_;
    number_ += batch.number == number_ && !batch.items.empty() ? 1 : 0;
    if (input_.below(8) == 1) batch.waiting.push_back({tensor(), round(), 1000, {Rank{1}}});
    return batch;
  }

  Message data() {
    const PartitionId partition{input_.below(32) == 1 ? input_.number32() : input_.below(2 * kPartitions)};
    if (input_.flag()) {
      Aggregate answer;
      answer.partition = partition;
      answer.round = round();
      return answer;
    }
    PushPull part;
    part.job_run = JobRun{ScriptedCluster::kRun};
    part.partition = partition;
    part.round = round();
    part.call = call();
    return part;
  }

  Input& input_;
  std::deque<Call> calls_;  // their memory outlives the engine
  std::vector<TensorId> declared_, dropped_;
  int drops_ = 0, drops_ended_ = 0;
  std::uint32_t self_;
  std::vector<LocalReady> begun_;  // by tensor: the last round
  std::deque<Message> due_[kRanks - 1];
  std::uint64_t number_ = 0;
  std::uint64_t taken_[2] = {0, 0};
  VirtualLoop loop_;
  LinkTransport links_;
  ScriptedCluster cluster_;
};

}  // namespace

std::vector<Bytes> seeds() { return random_seeds(100, 1000); }

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  bps::fuzz::Host(input).run();
  return 0;
}
