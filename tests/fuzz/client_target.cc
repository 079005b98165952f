// A client's engine whose scheduler and servers say anything that decodes, at any time: every operation ends
// at most once, and no memory is touched that is not the engine's to touch.
#include <deque>

#include "client/src/engine/testing/fake_loan.h"
#include "client/src/engine/testing/requests.h"
#include "client/src/engine/testing/scripted_cluster.h"
#include "proto/base/assert.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

using testing::FakeLoan;
using testing::kSlice;
using testing::Outcome;
using testing::ScriptedCluster;
using testing::Wire;

constexpr std::uint64_t kTensorBytes = 2 * kSlice + 100;
constexpr std::uint64_t kShortBytes = kSlice + 7;  // of a shorter call

class Liars {
 public:
  explicit Liars(Input& input) : input_(input), cluster_(config(input)) {}

  void run() {
    cluster_.engine.join([](Status) {});
    if (input_.below(8) != 1) begin();
    for (int steps = 0; !input_.empty() && steps < 600; ++steps) {
      act();
      cluster_.loop.run_tasks();
    }
    cluster_.engine.close(std::chrono::seconds(1), [](Status) {});
    cluster_.loop.run_for(std::chrono::seconds(4));
    for (const Call& operation : calls_)
      BPS_ASSERT(operation.outcome.ended == 1);
  }

 private:
  struct Call {
    std::vector<std::byte> in, out;
    Outcome outcome;
  };
  struct Arriving {
    std::shared_ptr<Wire> wire;
    Message message;
    std::span<std::byte> destination;
  };

  static ClientConfig config(Input& input) {
    ClientConfig config = ScriptedCluster::default_config();
    const std::uint32_t choice = input.below(16);
    config.retain = choice != 1;
    if (choice == 2) config.credit_bytes = 1;
    if (choice == 3) config.mode = Mode::async;
    config.partition_bytes = kSlice;
    return config;
  }

  // What usually happens first.
  void begin() {
    const auto scheduler = wire(0);
    scheduler->handler->on_writable();
    say(scheduler, Welcome{Term{1, 2}, Incarnation{10}, ServerId{}, JobRun{ScriptedCluster::kRun}});
    say(scheduler, cluster_.job_start(2));
    for (std::uint32_t lane = 1; lane < cluster_.transport.wires.size(); ++lane)
      say(wire(lane), welcome(lane));
    declare();
    say(wire(0), declared());
  }

  void act() {
    const std::uint32_t what = input_.below(32);
    if (what < 5) return use_engine(what);
    if (what == 5) return cluster_.loop.run_for(std::chrono::milliseconds(input_.below(256)));
    if (what == 6 && !arriving_.empty())
      return finish(input_.below(static_cast<std::uint32_t>(arriving_.size())));
    const auto to = wire(what < 14 ? 0 : input_.below(16));
    if (to == nullptr || !to->open()) return;
    if (what == 7) return break_wire(*to);
    if (what == 8) return sent(*to);
    if (what == 9) return say(to, any_message(input_));
    if (what == 10) return to->handler->on_writable();
    if (what < 14) return say(to, of_scheduler());
    if (what == 14) return lend(to);
    if (what == 15) return break_wire(*to);
    if (what < 18) return sent(*to);
    if (what == 18) return say(to, welcome(input_.below(4)));
    if (what == 19) return say(to, any_message(input_));
    say(to, of_server());
  }

  // ---- the program that uses the client ----

  void use_engine(std::uint32_t what) {
    switch (what) {
      case 0: return declare();
      case 1: return input_.flag() ? drop() : cluster_.engine.barrier([](Status) {});
      case 2: return void(cluster_.engine.describe(TensorId{input_.below(4)}));
      default: return operate(what == 4);
    }
  }

  void declare() {
    TensorDeclaration tensor;
    tensor.name = "t" + std::to_string(input_.below(3));
    tensor.dtype = DType::u8;
    tensor.elements = kTensorBytes;
    cluster_.engine.declare({tensor}, [this](Result<std::vector<TensorId>> ids) {
      if (ids.ok()) declared_.insert(declared_.end(), ids->begin(), ids->end());
    });
  }

  void drop() {
    if (declared_.empty()) return;
    const TensorId tensor = declared_[input_.below(static_cast<std::uint32_t>(declared_.size()))];
    (void)cluster_.engine.drop(tensor, [](const Status&) {});  // it may be under way
  }

  void operate(bool broadcast) {
    if (declared_.empty() || calls_.size() > 60) return;
    const TensorId tensor = declared_[input_.below(static_cast<std::uint32_t>(declared_.size()))];
    Call& operation = calls_.emplace_back();
    const std::uint32_t length = input_.below(8);
    const std::size_t bytes = length == 1 ? 0 : length == 2 ? kShortBytes : kTensorBytes;
    operation.in = testing::bytes_of(bytes, 1);
    operation.out = testing::bytes_of(bytes, 0);
    const bool in_place = input_.flag();
    const std::uint32_t root = input_.below(4);  // not of this job: a push_pull
    Request request =
        broadcast
            ? testing::broadcast_of(tensor, operation.out, Rank{root % 2}, cluster_.into(operation.outcome))
            : testing::push_pull_of(tensor, in_place ? operation.out : operation.in, operation.out,
                                    Operation::sum, cluster_.into(operation.outcome));
    if (!broadcast && root < 2) request.call = RoundCall::reduce(Operation::sum, Rank{root});
    if (!cluster_.engine.begin(std::move(request))) calls_.pop_back();
  }

  // ---- connections ----

  // 0: the newest to the scheduler.
  std::shared_ptr<Wire> wire(std::uint32_t index) {
    const auto& wires = cluster_.transport.wires;
    std::vector<std::shared_ptr<Wire>> found;
    for (auto i = wires.rbegin(); i != wires.rend() && found.size() < 8; ++i) {
      if (((*i)->endpoint.port == 4710) == (index == 0)) found.push_back(*i);
    }
    if (found.empty()) return nullptr;
    return found[index == 0 ? 0 : (index - 1) % found.size()];
  }

  void break_wire(Wire& wire) {
    if (wire.open()) {
      const ErrorCode code = input_.below(8) == 1 ? ErrorCode::protocol : ErrorCode::peer_lost;
      std::exchange(wire.handler, nullptr)->on_closed(make_error(code, "connection reset"));
    }
  }

  void sent(Wire& wire) {
    while (!wire.frames.empty()) {
      const std::uint64_t cookie = wire.frames.front().cookie;
      const auto* declare = std::get_if<Declare>(&wire.frames.front().message);
      if (declare != nullptr) request_ = declare->request;
      wire.frames.pop_front();
      if (cookie == 0) continue;
      wire.sent(cookie);
      return;
    }
  }

  void say(const std::shared_ptr<Wire>& wire, const Message& message) {
    for (std::uint32_t i = 0; i < arriving_.size(); ++i) {
      if (arriving_[i].wire == wire) {
        finish(i);
        break;
      }
    }
    auto heard = received(message, wire == nullptr ? 0 : kMaxControlHeaderBytes);
    if (!heard || !wire->open()) return;
    const std::size_t bytes = payload_bytes(*heard);
    if (bytes == 0) return wire->handler->on_message(*heard, {});
    const bool late = input_.below(4) == 1;
    std::byte* const place = wire->handler->on_payload(*heard, bytes);
    arriving_.push_back({wire, std::move(*heard), {place, place == nullptr ? 0 : bytes}});
    if (!late) finish(static_cast<std::uint32_t>(arriving_.size() - 1));
  }

  void finish(std::uint32_t index) {
    Arriving arriving = std::move(arriving_[index]);
    arriving_.erase(arriving_.begin() + index);
    if (!arriving.wire->open()) return;
    std::fill(arriving.destination.begin(), arriving.destination.end(), std::byte{9});
    arriving.wire->handler->on_message(arriving.message, arriving.destination);
  }

  std::size_t payload_bytes(const Message& message) {
    const auto* aggregate = std::get_if<Aggregate>(&message);
    const std::uint32_t choice = input_.below(16);
    if (choice == 1) return 0;
    if (choice == 2) return input_.below(5000);
    if (choice == 3) return kShortBytes - kSlice;
    if (aggregate == nullptr) return 0;
    return aggregate->partition.value % 3 == 2 ? 100 : kSlice;
  }

  void lend(const std::shared_ptr<Wire>& wire) {
    for (const Arriving& arriving : arriving_) {
      if (arriving.wire == wire) return;
    }
    auto message = received(of_server(), kMaxLaneHeaderBytes);
    if (!message) return;
    const auto loan = FakeLoan::of(std::vector<std::byte>(std::max<std::size_t>(1, payload_bytes(*message))));
    if (input_.below(4) == 1) loan->withdraw_after(static_cast<int>(input_.below(3)));
    LentPayload payload = FakeLoan::payload(loan, input_.flag());
    const std::size_t bytes = payload.bytes().size();
    if (wire->handler->on_lent(*message, payload) || !wire->open()) return;
    std::byte* const place = wire->handler->on_payload(*message, bytes);
    arriving_.push_back({wire, std::move(*message), {place, place == nullptr ? 0 : bytes}});
    finish(static_cast<std::uint32_t>(arriving_.size() - 1));
  }

  // ---- what they say ----

  static Welcome welcome(std::uint32_t lane) {
    return {Term{1, 2}, Incarnation{10}, ServerId{lane}, JobRun{ScriptedCluster::kRun}};
  }
  JobRun job_run() { return JobRun{input_.below(16) == 1 ? input_.number() : ScriptedCluster::kRun}; }
  LaneIndex lane() { return LaneIndex{input_.below(32) == 1 ? input_.number32() : input_.below(3)}; }
  PartitionId partition() { return PartitionId{input_.below(32) == 1 ? input_.number32() : input_.below(6)}; }
  Round round() { return Round{input_.below(16) == 1 ? input_.number() : input_.below(3)}; }
  Error error() {
    return input_.below(4) == 1
               ? make_error(static_cast<ErrorCode>(1 + input_.below(kErrorCodeCount - 1)), "no")
               : Error{};
  }

  Declared declared() {
    Declared declared;
    for (const auto& wire : cluster_.transport.wires) {
      for (const auto& frame : wire->frames) {
        if (const auto* declare = std::get_if<Declare>(&frame.message)) request_ = declare->request;
      }
    }
    declared.request = input_.below(8) == 1 ? input_.number() : request_;
    const std::uint32_t count = input_.below(8) == 1 ? input_.below(3) : 1;
    for (std::uint32_t i = 0; i < count; ++i) {
      DeclaredTensor& tensor = declared.tensors.emplace_back();
      tensor.error = input_.below(8) == 1 ? error() : Error{};
      tensor.tensor = TensorId{input_.below(4) == 1 ? input_.below(4) : tensors_};
      tensor.first_partition = PartitionId{input_.below(8) == 1 ? input_.number32() : 3 * tensors_};
      for (std::uint32_t left = input_.below(8) == 1 ? input_.below(5) : 3; left > 0; --left)
        tensor.owners.push_back(lane());
      ++tensors_;
    }
    return declared;
  }

  Moved moved() {
    Moved moved;
    moved.job_run = job_run();
    moved.epoch = Epoch{input_.below(4) == 1 ? input_.number32() : ++epoch_};
    moved.reason = "server 1 is gone";
    for (std::uint32_t left = input_.below(3); left > 0; --left)
      moved.lanes.push_back(cluster_.job_start(3 + input_.below(3)).lanes.back());
    for (std::uint32_t left = input_.below(3); left > 0; --left)
      moved.closed.push_back(lane());
    for (std::uint32_t left = input_.below(6); left > 0; --left)
      moved.moves.push_back({partition(), lane()});
    return moved;
  }

  JobStart job_start() {
    JobStart start = cluster_.job_start(input_.below(4));
    const std::uint32_t odd = input_.below(8);
    if (odd == 1) start.partition_bytes = input_.number() * 8;
    if (odd == 2) start.members.pop_back();
    if (odd == 3) start.job_run = job_run();
    if (odd == 4) start.members.push_back({Rank{2}, Incarnation{12}, "host", 2, input_.number32()});
    return start;
  }

  Message of_scheduler() {
    switch (input_.below(16)) {
      case 0: return welcome(0);
      case 1: return job_start();
      case 2: return JobFailed{job_run(), make_error(ErrorCode::peer_lost, "gone")};
      case 3: return BarrierDone{input_.number(), error()};
      case 4:
        return TensorFailed{job_run(), TensorId{input_.below(4)}, make_error(ErrorCode::configuration, "no")};
      case 5: return Settle{input_.number()};
      case 6: return Left{};
      case 7: return JoinProgress{1, {Rank{1}}, 1};
      case 8: return Refused{ErrorCode::configuration, "no", ""};
      case 9:
      case 10: return Heartbeat{1};
      case 11:
      case 12: return declared();
      case 13: return DropTensors{0, job_run(), {TensorId{input_.below(4)}}, {}};
      default: return moved();
    }
  }

  Message of_server() {
    const std::uint64_t taken = input_.below(8) == 1 ? input_.number() : input_.below(4) * kSlice;
    switch (input_.below(12)) {
      case 0: return NotReady{partition(), round(), taken};
      case 1: return ClearToSend{partition(), round(), taken};
      case 2: return RoundFailed{partition(), round(), make_error(ErrorCode::configuration, "no"), taken};
      case 3: return Credit{taken, input_.number()};
      case 4: return Refused{input_.flag() ? ErrorCode::peer_lost : ErrorCode::protocol, "no", ""};
      case 5:
      case 6: return Resumed{partition(), round(), taken};
      case 7: return Fetch{partition(), round(), taken};
      default: {
        Aggregate answer = cluster_.answer(partition().value, round().value, taken);
        const std::uint32_t odd = input_.below(16);
        if (odd == 1) answer.weight = input_.number32();
        if (odd == 2) answer.epoch = Epoch{input_.number32()};
        if (odd == 3) answer.generation = Generation{input_.number32()};
        if (odd > 8) answer.epoch = Epoch{epoch_};
        return answer;
      }
    }
  }

  Input& input_;
  std::deque<Call> calls_;  // their memory outlives the engine
  std::vector<TensorId> declared_;
  std::vector<Arriving> arriving_;
  std::uint64_t request_ = 0;
  std::uint32_t tensors_ = 0;
  std::uint32_t epoch_ = 3;
  ScriptedCluster cluster_;
};

}  // namespace

std::vector<Bytes> seeds() { return random_seeds(100, 1000); }

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  bps::fuzz::Liars(input).run();
  return 0;
}
