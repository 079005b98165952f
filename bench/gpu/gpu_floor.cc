#include "bench/gpu/gpu_floor.h"

#include <string>

#include "bench/gpu/copy_floor.h"
#include "bench/gpu/nccl_floor.h"
#include "bench/stats/stats.h"
#include "proto/base/config/units.h"

namespace bps::bench {
namespace {

constexpr double kGigabyte = 1e9;

// Up to the whole, from what a partition is to what a batch of a local group is, and more.
std::vector<std::uint64_t> sizes_up_to(std::uint64_t bytes) {
  std::vector<std::uint64_t> sizes;
  for (const std::uint64_t size : {std::uint64_t{256} << 10, std::uint64_t{4} << 20, std::uint64_t{64} << 20})
    if (size < bytes) sizes.push_back(size);
  sizes.push_back(bytes);
  return sizes;
}

// Of one row of the report.
struct Case {
  Line head;
  double bytes = 0;           // that a turn moves, one way
  std::vector<double> rates;  // bytes/s of each turn that counts
  std::string wrong;          // the first wrong result

  void add(double seconds) { rates.push_back(bytes / seconds); }
  void note(const std::string& what) {
    if (wrong.empty()) wrong = what;
  }
};

void add_line(Outcome& outcome, const Case& row) {
  const Median median = median_of(row.rates);
  Line line = row.head;
  line["GBps"] = rounded(median.value / kGigabyte);
  line["low"] = rounded(median.low / kGigabyte);
  line["high"] = rounded(median.high / kGigabyte);
  line["verified"] = row.wrong.empty();
  outcome.lines.push_back(std::move(line));
  note_wrong(outcome, row.head.at("bench").get<std::string>(), row.wrong);
}

// The copies of one GPU.
class CopyCases {
 public:
  static Result<CopyCases> make(const Gpu& gpu, std::uint64_t bytes, const Now& now) {
    auto floor = CopyFloor::make(gpu, bytes, now);
    if (!floor) return std::move(floor).error();
    CopyCases cases(std::move(*floor));
    for (const CopyWay way : {CopyWay::to_host, CopyWay::to_device, CopyWay::both}) {
      for (const std::uint64_t piece : sizes_up_to(bytes)) {
        Case row;
        row.head["bench"] = "gpu copy";
        row.head["gpu"] = gpu->ordinal();
        row.head["way"] = kCopyWays[static_cast<std::size_t>(way)];
        row.head["size"] = piece;
        row.bytes = static_cast<double>(bytes);
        cases.rows_.push_back({way, piece, std::move(row)});
      }
    }
    return cases;
  }

  std::size_t size() const { return rows_.size(); }
  Status turn(std::size_t index, bool counts) {
    Row& row = rows_[index];
    if (Status status = floor_.prepare(); !status) return status;
    const auto seconds = floor_.run(row.way, row.piece);
    if (!seconds) return seconds.error();
    const auto wrong = floor_.check(row.way);
    if (!wrong) return wrong.error();
    if (!wrong->empty()) row.result.note(*wrong);
    if (counts) row.result.add(*seconds);
    return {};
  }
  void report(Outcome& outcome) const {
    for (const Row& row : rows_)
      add_line(outcome, row.result);
  }

 private:
  explicit CopyCases(CopyFloor floor) : floor_(std::move(floor)) {}

  struct Row {
    CopyWay way;
    std::uint64_t piece;
    Case result;
  };
  CopyFloor floor_;
  std::vector<Row> rows_;
};

// NCCL's calls, by size.
class NcclCases {
 public:
  NcclCases(std::unique_ptr<NcclFloor> floor, std::size_t gpus, std::uint64_t bytes)
      : floor_(std::move(floor)) {
    for (const std::uint64_t size : sizes_up_to(bytes)) {
      Row& row = rows_.emplace_back();
      row.bytes = size;
      for (const auto& [result, name] :
           {std::pair{&row.reduce_scatter, "reduce-scatter"}, std::pair{&row.all_gather, "all-gather"},
            std::pair{&row.both, "both"}}) {
        result->head["bench"] = "nccl";
        result->head["gpus"] = gpus;
        result->head["call"] = name;
        result->head["size"] = size;
        result->bytes = static_cast<double>(floor_->whole(size));
      }
    }
  }

  std::size_t size() const { return rows_.size(); }
  Status turn(std::size_t index, std::uint64_t round, bool counts) {
    Row& row = rows_[index];
    if (Status status = floor_->prepare(round); !status) return status;
    const auto times = floor_->run(row.bytes);
    if (!times) return times.error();
    const auto wrong = floor_->check(round);
    if (!wrong) return wrong.error();
    if (!wrong->empty()) row.both.note(*wrong);
    if (!counts) return {};
    row.reduce_scatter.add(times->reduce_scatter);
    row.all_gather.add(times->all_gather);
    row.both.add(times->both);
    return {};
  }
  void report(Outcome& outcome) const {
    for (const Row& row : rows_) {
      for (const Case* result : {&row.reduce_scatter, &row.all_gather, &row.both})
        add_line(outcome, *result);
    }
  }

 private:
  struct Row {
    std::uint64_t bytes = 0;
    Case reduce_scatter, all_gather, both;
  };
  std::unique_ptr<NcclFloor> floor_;
  std::vector<Row> rows_;
};

}  // namespace

Result<Outcome> measure_gpu_floor(const GpuFloorOptions& options, std::shared_ptr<CudaApi> cuda,
                                  std::shared_ptr<NcclApi> nccl, const Now& now) {
  const auto count = count_gpus(*cuda);
  if (!count) return count.error();
  std::vector<Gpu> gpus;
  std::vector<CopyCases> copies;
  Outcome outcome;
  for (int ordinal = 0; ordinal < *count; ++ordinal) {
    auto gpu = CudaDevice::open(cuda, ordinal);
    if (!gpu) return std::move(gpu).error();
    auto cases = CopyCases::make(*gpu, options.bytes, now);
    if (!cases) return std::move(cases).error();
    outcome.lines.push_back({{"bench", "gpu"},
                             {"gpu", ordinal},
                             {"name", (*gpu)->name()},
                             {"bytes", options.bytes},
                             {"iters", options.iters}});
    gpus.push_back(std::move(*gpu));
    copies.push_back(std::move(*cases));
  }
  std::unique_ptr<NcclCases> collectives;
  if (nccl != nullptr && gpus.size() > 1) {
    auto floor = NcclFloor::make(std::move(nccl), gpus, options.bytes, now);
    if (!floor) return std::move(floor).error();
    collectives = std::make_unique<NcclCases>(std::move(*floor), gpus.size(), options.bytes);
  }

  // Forwards and backwards, so that nobody is always first.
  std::vector<std::function<Status(std::uint64_t round, bool counts)>> turns;
  for (CopyCases& cases : copies) {
    for (std::size_t i = 0; i < cases.size(); ++i)
      turns.push_back([&cases, i](std::uint64_t, bool counts) { return cases.turn(i, counts); });
  }
  for (std::size_t i = 0; collectives != nullptr && i < collectives->size(); ++i)
    turns.push_back(
        [&collectives, i](std::uint64_t round, bool counts) { return collectives->turn(i, round, counts); });
  const std::uint64_t rounds = std::uint64_t{options.warmup} + options.iters;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const auto& turn = turns[round % 2 == 0 ? i : turns.size() - 1 - i];
      if (Status status = turn(round, round >= options.warmup); !status) return std::move(status).error();
    }
  }
  for (const CopyCases& cases : copies)
    cases.report(outcome);
  if (collectives != nullptr) collectives->report(outcome);
  return outcome;
}

}  // namespace bps::bench
