#include "bench/cluster/worker_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <sstream>

namespace bps::bench {
namespace {

template <class T>
bool read_number(const std::string& text, T& out) {
  const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), out);
  return errc == std::errc{} && end == text.data() + text.size();
}

bool read_flag(const std::string& text, bool& out) {
  unsigned number = 0;
  if (!read_number(text, number) || number > 1) return false;
  out = number == 1;
  return true;
}

template <class Enum>
bool read_enum(const std::string& text, unsigned count, Enum& out) {
  unsigned number = 0;
  if (!read_number(text, number) || number >= count) return false;
  out = static_cast<Enum>(number);
  return true;
}

bool read_endpoint(const std::string& text, Endpoint& out) {
  const auto endpoint = parse_endpoint(text);
  if (endpoint) out = *endpoint;
  return endpoint.ok();
}

// "a,b,c": each item by `read`.
template <class T, class Read>
bool read_list(const std::string& text, std::vector<T>& out, Read read) {
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    if (!read(item, out.emplace_back())) return false;
  }
  return true;
}

bool read_replay(const std::string& text, ReplayOptions& out) {
  auto replay = parse_replay_options(text);
  if (replay) out = std::move(*replay);
  return replay.has_value();
}

// "key:value;key:value"
bool read_engine(const std::string& text, EngineOptions& out) {
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ';');) {
    const auto colon = item.find(':');
    if (colon == std::string::npos) return false;
    const std::string key = item.substr(0, colon);
    const std::string value = item.substr(colon + 1);
    const bool known = key == "kind"              ? read_enum(value, kEngineKinds, out.kind)
                       : key == "partition-bytes" ? read_number(value, out.partition_bytes)
                       : key == "credit-bytes"    ? read_number(value, out.credit_bytes)
                       : key == "retain"          ? read_flag(value, out.retain)
                       : key == "memory"          ? read_enum(value, std::size(kMemoryUses), out.memory)
                       : key == "transport"       ? read_enum(value, std::size(kTransportUses), out.transport)
                       : key == "checksum"        ? read_flag(value, out.checksum)
                       : key == "tls"             ? read_flag(value, out.tls)
                       : key == "by-priority"     ? read_flag(value, out.by_priority)
                       : key == "local-group"     ? read_enum(value, std::size(kGroupUses), out.local_group)
                       : key == "exchange"        ? read_enum(value, std::size(kExchangeUses), out.exchange)
                       : key == "groups"          ? read_number(value, out.groups) && out.groups > 0
                       : key == "unnamed"         ? read_flag(value, out.unnamed)
                       : key == "is-part"         ? read_flag(value, out.is_part)
                       : key == "product"         ? read_number(value, out.product)
                                                  : false;
    if (!known) return false;
  }
  return true;
}

std::string show_engine(const EngineOptions& engine) {
  return fmt::format(
      "kind:{};partition-bytes:{};credit-bytes:{};retain:{};memory:{};transport:{};checksum:{};tls:{};by-"
      "priority:{};local-group:{};exchange:{};groups:{};unnamed:{};is-part:{};product:{}",
      static_cast<unsigned>(engine.kind), engine.partition_bytes, engine.credit_bytes, engine.retain ? 1 : 0,
      static_cast<unsigned>(engine.memory), static_cast<unsigned>(engine.transport), engine.checksum ? 1 : 0,
      engine.tls ? 1 : 0, engine.by_priority ? 1 : 0, static_cast<unsigned>(engine.local_group),
      static_cast<unsigned>(engine.exchange), engine.groups, engine.unnamed ? 1 : 0, engine.is_part ? 1 : 0,
      engine.product);
}

bool assign(WorkerOptions& options, const std::string& key, const std::string& value) {
  if (key == "control") return options.control = value, true;
  if (key == "index") return read_number(value, options.index);
  if (key == "workers") return read_number(value, options.workers);
  if (key == "clients") return read_number(value, options.clients) && options.clients > 0;
  if (key == "bytes") return read_number(value, options.bytes);
  if (key == "tensors") return read_number(value, options.tensors);
  if (key == "in-place") return read_flag(value, options.in_place);
  if (key == "dtype") return read_enum(value, kDTypeCount, options.dtype);
  if (key == "replay") return read_replay(value, options.replay);
  if (key == "congestion-control") return options.congestion_control = value, true;
  if (key == "listen") return options.listen = value, true;
  if (key == "raw-slices") return read_list(value, options.raw_slices, read_number<std::uint64_t>);
  if (key == "echo-bytes") return read_number(value, options.echo_bytes);
  if (key == "engine") return read_engine(value, options.engines.emplace_back());
  if (key == "scheduler") return options.scheduler = value, true;
  if (key == "tls-scheduler") return options.tls_scheduler = value, true;
  if (key == "tls-cert") return options.tls_files.certificate = value, true;
  if (key == "tls-key") return options.tls_files.key = value, true;
  if (key == "tls-ca") return options.tls_files.authority = value, true;
  if (key == "bandwidth") return read_number(value, options.bandwidth_bps);
  if (key == "same-host") return read_flag(value, options.same_host);
  if (key == "raw-servers") return read_list(value, options.raw_servers, read_endpoint);
  if (key == "echo-server") return read_endpoint(value, options.echo_server);
  return false;
}

}  // namespace

std::vector<std::string> to_arguments(const WorkerOptions& options) {
  std::vector<std::string> servers;
  for (const Endpoint& endpoint : options.raw_servers)
    servers.push_back(to_string(endpoint));
  std::vector<std::string> arguments = {
      "control=" + options.control,
      fmt::format("index={}", options.index),
      fmt::format("workers={}", options.workers),
      fmt::format("clients={}", options.clients),
      fmt::format("bytes={}", options.bytes),
      fmt::format("tensors={}", options.tensors),
      fmt::format("in-place={}", options.in_place ? 1 : 0),
      fmt::format("dtype={}", static_cast<unsigned>(options.dtype)),
      "replay=" + to_argument(options.replay),
      "congestion-control=" + options.congestion_control,
      "listen=" + options.listen,
      fmt::format("raw-slices={}", fmt::join(options.raw_slices, ",")),
      fmt::format("echo-bytes={}", options.echo_bytes),
      "scheduler=" + options.scheduler,
      "tls-scheduler=" + options.tls_scheduler,
      "tls-cert=" + options.tls_files.certificate,
      "tls-key=" + options.tls_files.key,
      "tls-ca=" + options.tls_files.authority,
      fmt::format("bandwidth={}", options.bandwidth_bps),
      fmt::format("same-host={}", options.same_host ? 1 : 0),
      fmt::format("raw-servers={}", fmt::join(servers, ",")),
      "echo-server=" + to_string(options.echo_server),
  };
  for (const EngineOptions& engine : options.engines)
    arguments.push_back("engine=" + show_engine(engine));
  return arguments;
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

std::vector<std::uint64_t> cut(std::uint64_t bytes, const std::vector<double>& shares) {
  std::vector<std::uint64_t> slices;
  std::uint64_t done = 0;
  double sum = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    sum += shares[i];
    const auto end = static_cast<std::uint64_t>(std::llround(sum * static_cast<double>(bytes)));
    const std::uint64_t next = i + 1 == shares.size() ? bytes : std::clamp(end, done, bytes);
    slices.push_back(next - done);
    done = next;
  }
  return slices;
}

}  // namespace bps::bench
