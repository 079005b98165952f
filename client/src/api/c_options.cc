#include "client/src/api/c_options.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "client/src/runtime/inside_callback.h"

namespace bps {

namespace {

std::optional<std::string> text(const char* value) {
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::int64_t> number(std::int64_t value) {
  return value == -1 ? std::nullopt : std::optional<std::int64_t>(value);
}

bps_log_level c_level(LogLevel level) {
  switch (level) {
    case LogLevel::off:
    case LogLevel::error: return BPS_LOG_ERROR;
    case LogLevel::warn: return BPS_LOG_WARN;
    case LogLevel::info: return BPS_LOG_INFO;
    case LogLevel::debug:
    case LogLevel::trace: break;
  }
  return BPS_LOG_DEBUG;
}

}  // namespace

bps_options unset_options() {
  bps_options options;
  std::memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.rank = options.world_size = options.local_rank = options.local_size = -1;
  options.join_timeout_ms = options.operation_timeout_ms = -1;
  options.partition_bytes = options.credit_bytes = -1;
  options.retain = -1;
  options.checksum = -1;
  options.mode = BPS_MODE_DEFAULT;
  options.staleness = -1;
  options.bandwidth_bps = -1;
  options.scheduler_grace_ms = -1;
  options.worker_loss = BPS_WORKER_LOSS_DEFAULT;
  options.unequal_sums = -1;
  options.rdma_gid = options.rdma_tclass = -1;
  options.pinned_max_bytes = options.cuda_device = -1;
  return options;
}

Result<OpenOptions> read_options(const bps_options* options) {
  bps_options full = unset_options();
  if (options != nullptr) {
    if (options->struct_size < sizeof options->struct_size) {
      return make_error(ErrorCode::invalid_argument,
                        "bps_options.struct_size is " + std::to_string(options->struct_size),
                        "call bps_options_init(&options, sizeof options) first");
    }
    std::memcpy(&full, options, std::min(options->struct_size, sizeof full));
  }
  OpenOptions result;
  GivenOptions& given = result.given;
  given.scheduler = text(full.scheduler);
  given.job = text(full.job);
  given.config_file = text(full.config_file);
  given.key_file = text(full.key_file);
  given.tls_cert = text(full.tls_cert);
  given.tls_key = text(full.tls_key);
  given.tls_ca = text(full.tls_ca);
  given.congestion_control = text(full.congestion_control);
  given.transport = text(full.transport);
  given.rdma_device = text(full.rdma_device);
  given.local_group = text(full.local_group);
  given.pinned_max_bytes = number(full.pinned_max_bytes);
  given.cuda_device = number(full.cuda_device);
  given.rdma_gid = number(full.rdma_gid);
  given.rdma_tclass = number(full.rdma_tclass);
  given.rank = number(full.rank);
  given.world_size = number(full.world_size);
  given.local_rank = number(full.local_rank);
  given.local_size = number(full.local_size);
  given.join_timeout_ms = number(full.join_timeout_ms);
  given.operation_timeout_ms = number(full.operation_timeout_ms);
  given.scheduler_grace_ms = number(full.scheduler_grace_ms);
  given.partition_bytes = number(full.partition_bytes);
  given.credit_bytes = number(full.credit_bytes);
  if (full.retain != -1) given.retain = full.retain != 0;
  if (full.checksum != -1) given.checksum = full.checksum != 0;
  given.mode = number(full.mode);
  given.staleness = number(full.staleness);
  given.bandwidth_bps = number(full.bandwidth_bps);
  given.worker_loss = number(full.worker_loss);
  if (full.unequal_sums != -1) given.unequal_sums = full.unequal_sums != 0;
  result.log = full.log;
  result.log_user = full.log_user;
  return result;
}

Logger make_logger(const OpenOptions& options, std::optional<LogLevel> level) {
  if (options.log == nullptr) return Logger("bps", LogTarget::to_stderr(level.value_or(LogLevel::warn)));
  const auto write = [log = options.log, user = options.log_user](LogLevel at, std::string_view component,
                                                                  std::string_view line) {
    const InsideCallback inside;
    const std::string whole = std::string(component) + ": " + std::string(line);
    log(c_level(at), whole.c_str(), user);
  };
  return Logger("bps", LogTarget::to_callback(write, level.value_or(LogLevel::info)));
}

}  // namespace bps
