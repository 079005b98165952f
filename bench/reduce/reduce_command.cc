// reduce: the server's arithmetic against memcpy, in this process.
#include <algorithm>
#include <cstring>

#include "bench/commands/report.h"
#include "bench/commands/subcommands.h"
#include "bench/reduce/reduce_case.h"
#include "bench/reduce/turns.h"
#include "proto/base/config/config.h"

namespace bps::bench {
namespace {

// What takes microseconds is run often enough that a turn lasts a millisecond.
constexpr std::size_t kTurnBytes = 16 * 1024 * 1024;

struct ReduceOptions {
  std::string dtype = "all";
  std::string operation = "sum";
  std::uint32_t inputs = 8;
  ByteSize bytes{64 * 1024 * 1024};
  ByteSize partition_bytes{256 * 1024};
  std::uint32_t iters = 41;
  std::string json;
};

std::vector<DType> dtypes_of(const std::string& name) {
  std::vector<DType> out;
  for (std::uint8_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (name == "all" || name == name_of(dtype)) out.push_back(dtype);
  }
  return out;
}

std::vector<Operation> operations_of(const std::string& name) {
  std::vector<Operation> out;
  for (std::uint8_t i = 0; i < kOperationCount; ++i) {
    const auto operation = static_cast<Operation>(i);
    if (name == "all" || name == name_of(operation)) out.push_back(operation);
  }
  return out;
}

// Input bytes per second against those of another; > 1 is faster.
Median speed_up(const Contender& us, double our_bytes, const Contender& other, double other_bytes) {
  std::vector<double> pairs = ratios(other.seconds, us.seconds);
  for (double& pair : pairs)
    pair *= our_bytes / other_bytes;
  return median_of(std::move(pairs));
}

double speed(const Contender& contender, double bytes) {
  return bytes / median_of(contender.seconds).value / 1e9;
}

Contender contender_of(ReduceRun& run) {
  return {[&run] { run.prepare(); }, [&run] { run.run(); }, [&run] { return run.check(); }};
}

// Times the case, a round of f32 of the same size, and memcpy of one input, in turns.
Status measure(const ReduceCase& what, unsigned turns, Outcome& outcome) {
  auto run = ReduceRun::create(what);
  if (!run) return std::move(run).error();
  ReduceCase f32_case = what;
  f32_case.dtype = DType::f32;
  f32_case.bytes -= what.bytes % sizeof(float);
  auto f32 = ReduceRun::create(f32_case);
  if (!f32) return std::move(f32).error();
  BufferPool pool;
  BufferPool::Buffer copy = pool.allocate(what.bytes);
  if (!copy)
    return make_error(ErrorCode::out_of_memory, "there is no memory for a copy", "use smaller --bytes");

  std::vector<Contender> contenders = {
      {[] {}, [&] { std::memcpy(copy.data(), run->input(), what.bytes); },
       [&] {
         return std::string(std::memcmp(copy.data(), run->input(), what.bytes) == 0 ? "" : "a copy differs");
       }},
      contender_of(*run)};
  const bool against_f32 = what.dtype != DType::f32 && does_anything(f32_case);
  if (against_f32) contenders.push_back(contender_of(*f32));
  const auto runs = static_cast<unsigned>(std::max<std::size_t>(1, kTurnBytes / (what.bytes * what.inputs)));
  take_turns(contenders, turns, runs);

  const auto bytes = static_cast<double>(run->input_bytes());
  const auto copied = static_cast<double>(what.bytes);
  const std::string name = fmt::format("{} {}", name_of(what.dtype), name_of(what.operation));
  const std::string size = to_string(ByteSize{what.bytes});
  const std::string of = what.step == ReduceStep::round ? fmt::format("round of {} x {}", what.inputs, size)
                                                        : fmt::format("{} {}", name_of(what.step), size);
  Line line;
  line["bench"] = "reduce";
  line["dtype"] = name_of(what.dtype);
  line["operation"] = name_of(what.operation);
  line["of"] = of;
  line["iters"] = turns;
  line["GBps"] = rounded(speed(contenders[1], bytes * runs));
  line["memcpy_GBps"] = rounded(speed(contenders[0], copied * runs));
  line["verified"] = contenders[1].wrong.empty();
  outcome.lines.push_back(std::move(line));
  add_ratio(outcome, name + "/memcpy", of, speed_up(contenders[1], bytes, contenders[0], copied));
  if (against_f32) {
    add_ratio(outcome, fmt::format("{}/f32 {}", name, name_of(what.operation)), of,
              speed_up(contenders[1], bytes, contenders[2], static_cast<double>(f32->input_bytes())));
  }
  for (const Contender& contender : contenders)
    note_wrong(outcome, name + ", " + of, contender.wrong);
  return {};
}

Result<Outcome> run(const ReduceOptions& options) {
  Outcome outcome;
  for (const Operation operation : operations_of(options.operation)) {
    for (const DType dtype : dtypes_of(options.dtype)) {
      for (const ByteSize size : {options.bytes, options.partition_bytes}) {
        const bool in_cache = size == options.partition_bytes;
        for (const ReduceStep step :
             {ReduceStep::round, ReduceStep::add, ReduceStep::widen, ReduceStep::finish}) {
          if (step != ReduceStep::round && !in_cache) continue;
          const ReduceCase what{dtype, operation, step, options.inputs,
                                size.bytes - size.bytes % size_of(dtype)};
          if (!does_anything(what)) continue;
          if (Status status = measure(what, options.iters, outcome); !status)
            return std::move(status).error();
        }
      }
    }
  }
  return outcome;
}

template <class Name>
std::vector<std::string> names(std::uint8_t count, Name name) {
  std::vector<std::string> out = {"all"};
  for (std::uint8_t i = 0; i < count; ++i)
    out.emplace_back(name(i));
  return out;
}

}  // namespace

int reduce_command(int argc, const char* const* argv) {
  ReduceOptions options;
  Config config(
      "bps-bench reduce",
      "Times the server's arithmetic in this process, against memcpy and f32, in turns: whole rounds of "
      "large inputs (out of cache), and of partitions (in cache), with the steps they consist of.");
  config.add("dtype", options.dtype, "Type of the elements").choices(names(kDTypeCount, [](std::uint8_t i) {
    return name_of(static_cast<DType>(i));
  }));
  config.add("operation", options.operation, "What is done with them")
      .choices(names(kOperationCount, [](std::uint8_t i) { return name_of(static_cast<Operation>(i)); }));
  config.add("inputs", options.inputs, "Contributions of a round").range(2, kMaxReduceInputs);
  config.add("bytes", options.bytes, "Size of one contribution, far larger than the caches");
  config.add("partition-bytes", options.partition_bytes, "Size of one contribution that fits them");
  config.add("iters", options.iters, "Turns that are timed").range(1, 1'000'000);
  add_json_flag(config, options.json);
  if (const auto status = config.parse_or_exit(argc, argv, Logger("bps-bench"))) return *status;
  if (std::min(options.bytes.bytes, options.partition_bytes.bytes) < sizeof(double)) {
    return fail(
        make_error(ErrorCode::invalid_argument, "a contribution has no whole element", "use larger --bytes"));
  }
  return finish(options.json, run(options));
}

}  // namespace bps::bench
