// A shard, with the ledger that guards it, among workers and a scheduler that say anything that decodes:
// contributions, requests to send, resumed rounds and retained aggregates with payloads that come whole,
// late, lent or never, on lanes that break, do not read, or are opened again.
#include <algorithm>
#include <optional>

#include "client/src/engine/testing/fake_loan.h"
#include "proto/base/assert.h"
#include "server/job_ledger.h"
#include "server/testing/shard_harness.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

using shard_test::Wire;

constexpr std::uint32_t kWorkers = 3;
constexpr std::size_t kElements = 256;  // of most partitions, f32

class Lanes {
 public:
  explicit Lanes(Input& input)
      : input_(input),
        has_group_(input.flag()),
        world_(job_of(has_group_), 64 * 1024),
        ledger_({16 << 20, 0, 1}) {
    BPS_ASSERT(ledger_.open(job_of(has_group_)).ok());
  }

  void run() {
    declare(slices(1, 2, false));
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
      open_lane(rank);
    for (int steps = 0; !input_.empty() && steps < 600; ++steps) {
      act();
      world_.loop.run_tasks();
    }
    for (const Lane& lane : lanes_)
      break_lane(*lane.wire);
    world_.loop.run_for(std::chrono::seconds(10));
    for (std::uint64_t run = 76; run < 80; ++run)
      world_.shard->end_job(JobRun{run}, {}, [] {});
    world_.loop.run_for(std::chrono::seconds(10));
    BPS_ASSERT(world_.shard->job_count() == 0);
    BPS_ASSERT(world_.shard->bytes_in_use() == 0);
    loans_.clear();
  }

 private:
  // Ranks 1 and 2 are one contributor, or two.
  static OpenJob job_of(bool has_group) {
    OpenJob job = testing::job_of(shard_test::kRun, kWorkers);
    if (has_group) testing::make_group(job, 1, 2);
    return job;
  }

  struct Lane {
    std::shared_ptr<Wire> wire;
    std::uint32_t rank = 0;
    // A header has come, and its payload has not.
    std::optional<Message> arriving;
    std::span<std::byte> destination;
  };

  void act() {
    const std::uint32_t what = input_.below(32);
    if (what < 2) return open_lane(input_.below(kWorkers + 1));
    if (what < 7) return scheduler_says(what);
    if (lanes_.empty()) return;
    // Of the newest, which are most likely open.
    Lane& lane = lanes_[lanes_.size() - 1 - input_.below(5) % lanes_.size()];
    if (lane.wire->handler == nullptr) return;
    switch (what) {
      case 7: return break_lane(*lane.wire);
      case 8: return void(lane.wire->hold = !lane.wire->hold);
      case 9: return void(lane.wire->stuck = !lane.wire->stuck);
      case 10: return release(*lane.wire);
      case 11: return lane.wire->handler->on_writable();
      case 12: return receive(lane, any_message(input_));
      case 13: return world_.loop.run_for(std::chrono::milliseconds(input_.below(256)));
      case 14: return finish(lane);
      case 15:
      case 16: return receive(lane, resume());
      case 17:
      case 18: return receive(lane, retained());
      case 19: return lend(lane);
      case 20: return receive(lane, Stored{shard_test::kRun, partition(), round(), epoch(), {}});
      default: return receive(lane, push_pull(lane.rank));
    }
  }

  // ---- the scheduler, whose words the ledger checks ----

  void scheduler_says(std::uint32_t what) {
    switch (what) {
      case 2:
      case 3: {
        const std::uint32_t tensor = input_.below(6);
        return declare(slices(tensor, 1 + input_.below(3), what == 3));
      }
      case 4: {
        const DropTensors dropped{0, job_run(), {TensorId{input_.below(6)}}};
        const std::uint64_t bytes = ledger_.drop(dropped);
        world_.shard->drop(dropped);
        return ledger_.freed(bytes);
      }
      case 5: {
        const bool lingers = input_.flag();
        if (input_.below(8) == 1) {
          world_.shard->shrink(
              Shrunk{1, job_run(), Generation{input_.below(4)}, {Rank{input_.below(kWorkers)}}, 0, "gone"});
          return;
        }
        WorkerLeft left{job_run(), Rank{input_.below(kWorkers + 1)}, lingers};
        if (input_.flag()) left.tensors = {TensorId{input_.below(6)}};
        return world_.shard->worker_left(left);
      }
      default: return jobs();
    }
  }

  void jobs() {
    const std::uint32_t choice = input_.below(16);
    if (choice == 0) {
      const JobRun ended = job_run();
      const std::uint64_t bytes = ledger_.end(ended);
      return world_.shard->end_job(
          ended, input_.flag() ? make_error(ErrorCode::peer_lost, "rank 1 is gone") : Error{},
          [this, bytes] { ledger_.freed(bytes); });
    }
    std::optional<Message> heard;
    if (choice == 1) heard = received(any_message(input_), kMaxControlHeaderBytes);
    OpenJob open;
    if (heard && std::holds_alternative<OpenJob>(*heard)) {
      open = std::get<OpenJob>(*heard);
    } else if (heard && std::holds_alternative<DeclareSlices>(*heard)) {
      return declare(std::get<DeclareSlices>(*heard));
    } else {
      for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
        open.members.push_back(
            {Rank{rank}, Incarnation{100 + rank}, "", 0, choice == rank + 2 ? 0 : 1u, Rank{rank}, 0});
    }
    open.job_run = job_run();
    open.generation = Generation{};
    if (ledger_.open(open)) world_.shard->open_job(open);
  }

  JobRun job_run() {
    const std::uint32_t choice = input_.below(16);
    return choice < 13 ? shard_test::kRun : JobRun{76 + choice % 4u};
  }

  DeclareSlices slices(std::uint32_t tensor, std::uint32_t partitions, bool moved) {
    DeclareSlices declare;
    declare.job_run = job_run();
    declare.moved = moved;
    declare.epoch = Epoch{epoch_ += moved || input_.below(4) == 0 ? 1 : 0};
    TensorSlices& slices = declare.tensors.emplace_back();
    slices.tensor = TensorId{tensor};
    slices.name = "t" + std::to_string(tensor);
    const std::uint32_t odd = input_.below(16);
    if (odd < 3) slices.mode = Mode::async;
    if (odd > 10) slices.mode = Mode::slot;
    if (odd == 1) slices.staleness = input_.below(3);
    if (odd == 4) slices.dtype = DType::f16;
    if (odd == 5) slices.dtype = static_cast<DType>(input_.below(kDTypeCount));
    // Of one owner each, of several, and odd ones.
    if (odd == 7) slices.parts = {256};
    if (odd == 8) slices.parts = {86};
    if (odd == 9) slices.parts = {100, 0, 700};
    if (odd == 10) slices.parts = {input_.number32(), input_.below(300), input_.number()};
    // Of some ranks, in any order, and of ranks that are none.
    const std::uint32_t sharing = input_.below(8);
    if (sharing == 1) slices.ranks = {Rank{1}, Rank{0}};
    if (sharing == 2) slices.ranks = {Rank{input_.below(5)}};
    if (sharing == 3) slices.ranks = {Rank{2}, Rank{input_.below(2)}, Rank{input_.number32()}};
    for (std::uint32_t i = 0; i < partitions; ++i) {
      slices.partitions.push_back(
          {PartitionId{(tensor * 3 + i) % 12}, 0, odd == 6 ? input_.number() : kElements});
      slices.partitions.back().begin = odd == 10 ? input_.number() : i * kElements;
    }
    return declare;
  }

  void declare(const DeclareSlices& declare) {
    const auto heard = received(declare, kMaxControlHeaderBytes);
    if (!heard) return;
    const auto& checked = std::get<DeclareSlices>(*heard);
    const JobLedger::Declaration decision = ledger_.declare(checked, MemoryRoom{});
    if (decision.verdict != JobLedger::Verdict::accepted) return;
    std::optional<std::uint64_t> replaced;
    world_.shard->declare(decision.added, [&](const Status&, std::uint64_t bytes) { replaced = bytes; });
    while (!replaced)
      world_.loop.step();
    ledger_.granted(decision.added.job_run, *replaced);
    world_.shard->when_replaced_are_gone(decision.added.job_run,
                                         [this, bytes = *replaced] { ledger_.replaced_gone(bytes); });
  }

  // ---- lanes ----

  void open_lane(std::uint32_t rank) {
    HelloLane hello;
    hello.job_run = job_run();
    hello.rank = Rank{rank};
    hello.incarnation = Incarnation{100 + rank};
    hello.session = Session{input_.below(16) == 1 ? input_.number() : ++session_};
    hello.epoch = Epoch{input_.below(16) == 1 ? input_.number32() : 0};
    hello.credit_report_bytes = input_.below(4) == 1 ? input_.number32() : 1 << 20;
    if (lanes_.size() >= 40) lanes_.erase(lanes_.begin());
    Lane& lane = lanes_.emplace_back();
    lane.rank = rank;
    lane.wire = std::make_shared<Wire>();
    world_.shard->admit(hello, Welcome{}, std::make_unique<shard_test::FakeConnection>(lane.wire));
  }

  static void break_lane(Wire& wire) {
    if (wire.handler != nullptr) {
      std::exchange(wire.handler, nullptr)->on_closed(make_error(ErrorCode::peer_lost, "connection reset"));
    }
  }

  // Everything that was sent has left.
  static void release(Wire& wire) {
    wire.queued = 0;
    for (std::size_t i = 0; i < wire.sent.size() && wire.handler != nullptr; ++i) {
      const std::uint64_t cookie = std::exchange(wire.sent[i].cookie, 0);
      if (cookie != 0) wire.handler->on_sent(cookie);
    }
    if (wire.handler != nullptr) wire.handler->on_writable();
  }

  void receive(Lane& lane, const Message& message) {
    finish(lane);
    Wire& wire = *lane.wire;
    auto heard = received(message, kMaxLaneHeaderBytes);
    if (wire.handler == nullptr || !heard) return;
    const std::uint32_t choice = input_.below(8);
    const bool late = input_.below(4) == 1;
    const std::size_t bytes = payload_bytes(choice, *heard);
    if (bytes == 0) return wire.handler->on_message(*heard, {});
    std::byte* const place = wire.handler->on_payload(*heard, bytes);
    lane.destination = {place, place == nullptr ? 0 : bytes};
    lane.arriving = std::move(heard);
    if (!late) finish(lane);
  }

  std::size_t payload_bytes(std::uint32_t choice, const Message& message) {
    const auto* push = std::get_if<PushPull>(&message);
    const bool is_bare = push != nullptr && (push->rendezvous || push->error.code != ErrorCode::ok);
    const bool payload = (push != nullptr && !is_bare) || std::holds_alternative<Retained>(message);
    if (choice == 1) return 0;
    if (choice == 2) return input_.below(2100);
    if (choice == 3) return 512;
    // Slices of an all_gather.
    if (choice == 4 && push != nullptr) return input_.below(2) == 1 ? 344 : 400;
    if (push != nullptr && payload) return bytes_of(*push);
    return payload ? kElements * sizeof(float) : 0;
  }

  // Of most tensors.
  static std::size_t bytes_of(const PushPull& push) {
    const std::uint64_t begin = push.partition.value % 3 * kElements;
    return (std::clamp<std::uint64_t>(push.count, begin, begin + kElements) - begin) * sizeof(float);
  }

  void finish(Lane& lane) {
    auto message = std::exchange(lane.arriving, std::nullopt);
    if (!message || lane.wire->handler == nullptr) return;
    std::fill(lane.destination.begin(), lane.destination.end(), std::byte{1});
    lane.wire->handler->on_message(*message, lane.destination);
  }

  void lend(Lane& lane) {
    finish(lane);
    Wire& wire = *lane.wire;
    auto message = received(push_pull(lane.rank), kMaxLaneHeaderBytes);
    if (!message || wire.handler == nullptr) return;
    const std::size_t whole = std::max<std::size_t>(bytes_of(*std::get_if<PushPull>(&*message)), 1);
    auto& loan = loans_.emplace_back(
        testing::FakeLoan::of(std::vector<std::byte>(input_.below(4) == 1 ? 100 : whole)));
    if (input_.below(4) == 1) loan->withdraw_after(static_cast<int>(input_.below(3)));
    LentPayload payload = testing::FakeLoan::payload(loan, input_.flag());
    if (wire.handler->on_lent(*message, payload) || wire.handler == nullptr) return;
    const std::size_t bytes = payload.bytes().size();
    std::byte* const place = wire.handler->on_payload(*message, bytes);
    lane.destination = {place, place == nullptr ? 0 : bytes};
    lane.arriving = std::move(message);
    finish(lane);
  }

  // ---- what workers say ----

  Epoch epoch() { return Epoch{input_.below(8) == 1 ? input_.number32() : epoch_}; }
  PartitionId partition() { return PartitionId{input_.below(8)}; }
  Round round() { return Round{input_.below(32) == 31 ? input_.number() : input_.below(4)}; }

  PushPull push_pull(std::uint32_t rank) {
    PushPull push;
    push.job_run = shard_test::kRun;
    push.partition = partition();
    push.epoch = epoch();
    const std::uint32_t odd = input_.below(32);
    if (has_group_ && rank > 0 && odd != 18) {
      push.partition.value = push.partition.value / 2 * 2 + (rank + 1) % 2;
      push.weight = 2;
    }
    if (odd == 19) push.error = make_error(ErrorCode::configuration, "ranks of a host differ");
    if (odd == 31) push.job_run = JobRun{78};
    if (odd == 30) push.generation = Generation{input_.number32()};
    if (odd == 29) push.weight = input_.number32();
    if (odd >= 24 && odd < 29) push.rendezvous = true;
    if (odd >= 20 && odd < 24) push.call = static_cast<Operation>(input_.below(kOperationCount));
    if (odd == 23) push.call = RoundCall::broadcast(Rank{input_.below(3)});
    if (odd == 22) push.call = RoundCall::reduce(Operation::sum, Rank{input_.below(3)});
    if (odd == 21) push.call = RoundCall::all_gather();
    if (odd == 20) push.call = RoundCall::reduce_scatter(Operation::sum, input_.flag());
    push.count = odd == 18 ? input_.below(4) : kMaxTensorElements;
    if (odd == 17) push.dtype = static_cast<DType>(input_.below(kDTypeCount));
    const std::uint32_t scaled = input_.below(16);
    if (scaled == 1) push.scale = {2, 0.5, 1};
    if (scaled == 2) push.scale = {input_.real(), input_.real(), input_.flag() ? 1 : input_.real()};
    // Mostly the next one of this worker, so that rounds complete.
    std::uint64_t& next = next_[rank % 4][push.partition.value];
    push.round = odd < 16 ? Round{next++} : round();
    if (push.round.value % 4 == 3) push.count = std::min<std::uint64_t>(push.count, kElements + 44);
    return push;
  }

  Resume resume() {
    Resume resume;
    resume.job_run = shard_test::kRun;
    resume.epoch = epoch();
    for (std::uint32_t left = input_.below(4); left > 0; --left)
      resume.partitions.push_back({partition(), round(), 0, 0, input_.below(4) != 1});
    return resume;
  }

  Retained retained() {
    Retained retained;
    retained.job_run = shard_test::kRun;
    retained.partition = partition();
    retained.round = round();
    retained.epoch = epoch();
    const std::uint32_t odd = input_.below(8);
    retained.weight = odd == 1 ? input_.number32() : kWorkers;
    if (odd == 2) retained.error = make_error(ErrorCode::configuration, "operations differ");
    return retained;
  }

  Input& input_;
  const bool has_group_;
  std::vector<std::shared_ptr<testing::FakeLoan>> loans_;
  shard_test::World world_;
  JobLedger ledger_;
  std::vector<Lane> lanes_;
  std::uint64_t session_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint64_t next_[4][8] = {};
};

}  // namespace

std::vector<Bytes> seeds() { return random_seeds(100, 1500); }

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  bps::fuzz::Lanes(input).run();
  return 0;
}
