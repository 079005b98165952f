#include "bench/worker_options.h"

#include <charconv>
#include <sstream>

namespace bps::bench {
namespace {

template <class T>
bool read_number(const std::string& text, T& out) {
  const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), out);
  return errc == std::errc{} && end == text.data() + text.size();
}

bool assign(WorkerOptions& options, const std::string& key, const std::string& value) {
  unsigned number = 0;
  if (key == "control") return options.control = value, true;
  if (key == "index") return read_number(value, options.index);
  if (key == "workers") return read_number(value, options.workers);
  if (key == "servers") return read_number(value, options.servers);
  if (key == "bytes") return read_number(value, options.bytes);
  if (key == "congestion-control") return options.congestion_control = value, true;
  if (key == "scheduler") return options.scheduler = value, true;
  if (key == "partition-bytes") return read_number(value, options.partition_bytes);
  if (key == "credit-bytes") return read_number(value, options.credit_bytes);
  if (key == "dtype" && read_number(value, number) && number < kDTypeCount) {
    return options.dtype = static_cast<DType>(number), true;
  }
  if (key == "retain" && read_number(value, number)) return options.retain = number != 0, true;
  if (key == "raw" && read_number(value, number) && number <= 2) {
    return options.raw = static_cast<RawKind>(number), true;
  }
  if (key == "raw-servers") {
    std::istringstream list(value);
    for (std::string item; std::getline(list, item, ',');) {
      const auto endpoint = parse_endpoint(item);
      if (!endpoint) return false;
      options.raw_servers.push_back(*endpoint);
    }
    return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> to_arguments(const WorkerOptions& options) {
  std::string servers;
  for (const Endpoint& endpoint : options.raw_servers)
    servers += (servers.empty() ? "" : ",") + to_string(endpoint);
  return {"control=" + options.control,
          "index=" + std::to_string(options.index),
          "workers=" + std::to_string(options.workers),
          "servers=" + std::to_string(options.servers),
          "bytes=" + std::to_string(options.bytes),
          "dtype=" + std::to_string(static_cast<unsigned>(options.dtype)),
          "congestion-control=" + options.congestion_control,
          "scheduler=" + options.scheduler,
          "partition-bytes=" + std::to_string(options.partition_bytes),
          "credit-bytes=" + std::to_string(options.credit_bytes),
          "retain=" + std::to_string(options.retain ? 1 : 0),
          "raw=" + std::to_string(static_cast<unsigned>(options.raw)),
          "raw-servers=" + servers};
}

Result<WorkerOptions> parse_worker_options(const std::vector<std::string>& arguments) {
  WorkerOptions options;
  for (const std::string& argument : arguments) {
    const auto equals = argument.find('=');
    if (equals == std::string::npos ||
        !assign(options, argument.substr(0, equals), argument.substr(equals + 1))) {
      return make_error(ErrorCode::invalid_argument,
                        "'" + argument + "' means nothing to a process of the benchmark",
                        "it is started by bps-bench, not by hand");
    }
  }
  return options;
}

Slice slice_of(std::uint64_t bytes, std::uint32_t index, std::uint32_t servers) {
  const std::uint64_t begin = bytes / servers * index + std::min<std::uint64_t>(index, bytes % servers);
  const std::uint64_t length = bytes / servers + (index < bytes % servers ? 1 : 0);
  return {begin, length};
}

}  // namespace bps::bench
