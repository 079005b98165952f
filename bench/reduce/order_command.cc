// order: what it costs to add contributions in rank order and not as they arrive. In this process: the
// server's aggregators, fed through sockets.
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "bench/reduce/order_model.h"
#include "bench/reduce/order_sums.h"
#include "bench/report.h"
#include "bench/subcommands.h"
#include "proto/base/config/config.h"

namespace bps::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPieceBytes = 64 * 1024;
// Partitions of a turn: so few that both sides see the same machine, so many that the late one's start and
// end weigh little.
constexpr std::uint32_t kTurnPartitions = 16;

struct OrderOptions {
  std::uint32_t workers = 4;
  ByteSize bytes{32 * 1024 * 1024};
  ByteSize partition_bytes{256 * 1024};
  std::uint32_t iters = 11;
  std::string json;
};

// A worker's end of a connection and the server's.
class Wire {
 public:
  Wire() = default;
  Wire(Wire&& other) noexcept { std::swap(ends_, other.ends_); }
  Wire& operator=(Wire&&) = delete;
  ~Wire() {
    for (const int end : ends_)
      if (end >= 0) ::close(end);
  }

  static Result<Wire> open() {
    Wire wire;
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, wire.ends_) != 0)
      return os_error("cannot open a pair of sockets", errno);
    const int room = 4 * kPieceBytes;
    ::setsockopt(wire.ends_[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    return wire;
  }

  // A piece fits into the socket: nobody waits for anybody.
  bool send(std::span<const std::byte> piece) const {
    return ::send(ends_[0], piece.data(), piece.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
           static_cast<ssize_t>(piece.size());
  }
  bool receive(std::span<std::byte> piece) const {
    return ::recv(ends_[1], piece.data(), piece.size(), MSG_WAITALL) == static_cast<ssize_t>(piece.size());
  }

 private:
  int ends_[2] = {-1, -1};
};

// One of the two ways to sum, and what its rounds took.
struct Side {
  const char* name;
  std::unique_ptr<OrderSum> sum;
  std::vector<double> seconds = {};  // of a round: receiving and adding
  std::vector<double> after_last_us =
      {};  // from the last byte of a partition to its aggregate; median of a round
};

class OrderBench {
 public:
  static Result<OrderBench> create(const OrderOptions& options) {
    OrderBench bench(options);
    for (std::uint32_t lane = 0; lane < options.workers; ++lane) {
      auto wire = Wire::open();
      if (!wire) return std::move(wire).error();
      bench.wires_.push_back(std::move(*wire));
    }
    return bench;
  }

  // The partitions from `first` on of a round. Only what a server does is timed, not what the workers do.
  Status turn(Side& side, const Traffic& traffic, std::uint32_t number, std::uint32_t first,
              std::uint64_t seed) {
    std::vector<std::byte*> to(traffic.lanes);
    std::vector<double> after_last;
    Clock::duration total{};
    for (const Piece& piece : arrivals(traffic, seed)) {
      const std::uint32_t partition = first + piece.partition;
      const std::size_t offset = piece.piece * kPieceBytes;
      const std::size_t bytes = std::min(kPieceBytes, shape_.partition_bytes - offset);
      const Wire& wire = wires_[piece.lane];
      const std::size_t shift = shift_of(number, partition, piece.piece);
      if (!wire.send(bytes_of(payloads_[piece.lane], shift, bytes)))
        return os_error("cannot send to a socket", errno);
      const auto begin = Clock::now();
      if (piece.piece == 0) to[piece.lane] = side.sum->begin(piece.lane, partition);
      if (to[piece.lane] == nullptr)
        return make_error(ErrorCode::internal, "the server has no room for a contribution");
      if (!wire.receive({to[piece.lane] + offset, bytes}))
        return os_error("cannot receive from a socket", errno);
      const auto received = Clock::now();
      const bool complete = piece.piece + 1 == traffic.pieces && side.sum->end(piece.lane, partition);
      const auto end = Clock::now();
      total += end - begin;
      if (complete) after_last.push_back(std::chrono::duration<double, std::micro>(end - received).count());
    }
    if (after_last.size() != traffic.partitions)
      return make_error(ErrorCode::internal, "not every partition was completed");
    side.seconds.push_back(std::chrono::duration<double>(total).count() / traffic.partitions);
    side.after_last_us.push_back(median_of(std::move(after_last)).value);
    return {};
  }

  // Empty if every element of every aggregate is right, which is that of round `number`.
  std::string check(const OrderSum& sum, std::uint32_t number) const {
    for (std::uint32_t partition = 0; partition < shape_.partitions; ++partition) {
      const std::byte* const aggregate = sum.aggregate(partition);
      for (std::uint32_t piece = 0; piece * kPieceBytes < shape_.partition_bytes; ++piece) {
        const std::size_t done = piece * kPieceBytes;
        const auto expected = bytes_of(expected_, shift_of(number, partition, piece),
                                       std::min(kPieceBytes, shape_.partition_bytes - done));
        if (std::memcmp(aggregate + done, expected.data(), expected.size()) != 0)
          return fmt::format("the sum of partition {} is wrong", partition);
      }
    }
    return {};
  }

  const OrderShape& shape() const { return shape_; }

 private:
  static constexpr std::size_t kShifts = 1021;  // a prime, and the period of what a lane pushes
  static constexpr std::size_t kFloats = kPieceBytes / sizeof(float) + kShifts;

  explicit OrderBench(const OrderOptions& options)
      : shape_{options.workers,
               static_cast<std::uint32_t>(options.bytes.bytes / options.partition_bytes.bytes),
               static_cast<std::size_t>(options.partition_bytes.bytes)},
        payloads_(options.workers, std::vector<float>(kFloats)),
        expected_(kFloats) {
    for (std::uint32_t lane = 0; lane < options.workers; ++lane) {
      for (std::size_t i = 0; i < kFloats; ++i) {
        payloads_[lane][i] = static_cast<float>((i + lane) % kShifts);  // sums are exact in any order
        expected_[i] += payloads_[lane][i];
      }
    }
  }

  // Where in `payloads_` a piece begins: not where its neighbours in the tensor and in time do.
  std::size_t shift_of(std::uint32_t number, std::uint32_t partition, std::uint32_t piece) const {
    const std::size_t pieces = (shape_.partition_bytes + kPieceBytes - 1) / kPieceBytes;
    return (std::size_t{number} * 331 + partition * pieces + piece) % kShifts;
  }

  static std::span<const std::byte> bytes_of(const std::vector<float>& values, std::size_t shift,
                                             std::size_t bytes) {
    return std::as_bytes(std::span(values).subspan(shift)).first(bytes);
  }

  OrderShape shape_;
  std::vector<Wire> wires_;
  std::vector<std::vector<float>> payloads_;  // by lane; its pieces are parts of it
  std::vector<float> expected_;
};

void add_lines(Outcome& outcome, const OrderShape& shape, Skew skew, std::uint32_t iters,
               const std::vector<Side>& sides, const std::string& wrong) {
  const double bytes = static_cast<double>(shape.partition_bytes) * shape.lanes;
  for (const Side& side : sides) {
    Line line;
    line["bench"] = "order";
    line["order"] = side.name;
    line["workers"] = shape.lanes;
    line["skew"] = name_of(skew);
    line["iters"] = iters;
    line["GBps"] = rounded(bytes / median_of(side.seconds).value / 1e9);
    line["after_last_us"] = rounded(median_of(side.after_last_us).value);
    line["verified"] = wrong.empty();
    outcome.lines.push_back(std::move(line));
  }
  const std::string between = fmt::format("rank/arrival order, {} workers", shape.lanes);
  add_ratio(outcome, between, fmt::format("seconds, {}", name_of(skew)),
            median_of(ratios(sides[0].seconds, sides[1].seconds)));
  // A partition's time is that in which one more partition of every worker is received and added: no
  // faster can they arrive.
  std::vector<double> added;
  for (std::size_t i = 0; i < sides[0].after_last_us.size(); ++i) {
    added.push_back((sides[0].after_last_us[i] - sides[1].after_last_us[i]) / (sides[1].seconds[i] * 1e6));
  }
  add_comparison(outcome, "difference", between, fmt::format("partitions until complete, {}", name_of(skew)),
                 median_of(std::move(added)));
}

// All partitions once, turn by turn; who is first changes with every turn.
Status round(OrderBench& bench, std::vector<Side>& sides, Skew skew, std::uint32_t number) {
  const OrderShape& shape = bench.shape();
  Traffic traffic{
      .lanes = shape.lanes,
      .pieces = static_cast<std::uint32_t>((shape.partition_bytes + kPieceBytes - 1) / kPieceBytes),
      .skew = skew};
  for (std::uint32_t first = 0; first < shape.partitions; first += kTurnPartitions) {
    traffic.partitions = std::min(kTurnPartitions, shape.partitions - first);
    const std::uint32_t turn = number + first / kTurnPartitions;
    for (std::size_t i = 0; i < sides.size(); ++i) {
      Status status = bench.turn(sides[(i + turn) % sides.size()], traffic, number, first, turn);
      if (!status) return status;
    }
  }
  return {};
}

Result<Outcome> run(const OrderOptions& options) {
  auto bench = OrderBench::create(options);
  if (!bench) return std::move(bench).error();
  Outcome outcome;
  for (const Skew skew : kSkews) {
    std::vector<Side> sides;
    sides.push_back({"rank", sum_in_rank_order(bench->shape())});
    sides.push_back({"arrival", sum_in_arrival_order(bench->shape())});
    std::string wrong;
    for (std::uint32_t number = 0; number < options.iters + 2; ++number) {
      if (Status status = round(*bench, sides, skew, number); !status) return std::move(status).error();
      for (Side& side : sides) {
        if (wrong.empty()) wrong = bench->check(*side.sum, number);
        if (number >= 2) continue;  // the first rounds allocate the slots
        side.seconds.clear();
        side.after_last_us.clear();
      }
    }
    add_lines(outcome, bench->shape(), skew, options.iters, sides, wrong);
    note_wrong(outcome, fmt::format("order, {}", name_of(skew)), wrong);
  }
  return outcome;
}

}  // namespace

int order_command(int argc, const char* const* argv) {
  OrderOptions options;
  Config config(
      "bps-bench order",
      "Times the server's aggregators, which add in rank order, against adding in the order of arrival, "
      "in this process: f32 partitions that come through sockets, in turns.");
  config.add("workers", options.workers, "Contributions of a round").range(2, 64);
  config.add("bytes", options.bytes, "Size of the tensor, cut down to whole partitions");
  config.add("partition-bytes", options.partition_bytes, "Size of a partition, whole elements");
  config.add("iters", options.iters, "Rounds that are timed").range(1, 1'000'000);
  add_json_flag(config, options.json);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  if (options.partition_bytes.bytes == 0 || options.partition_bytes.bytes % sizeof(float) != 0 ||
      options.bytes.bytes < options.partition_bytes.bytes) {
    return fail(
        make_error(ErrorCode::invalid_argument, "there is no whole partition",
                   "use --partition-bytes that are a multiple of 4, and --bytes of at least one partition"));
  }
  return finish(options.json, run(options));
}

}  // namespace bps::bench
