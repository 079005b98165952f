#include "bench/bps_engine.h"

#include <bps/bps.h>

#include <cstring>

namespace bps::bench {
namespace {

constexpr std::int64_t kCloseTimeoutMs = 5000;

Error to_error(const bps_error& error) {
  return make_error(static_cast<ErrorCode>(error.status), error.message, error.advice);
}

bps_buffer describe(const Buffer& buffer) {
  bps_buffer out{};
  out.struct_size = sizeof out;
  out.pointer = buffer.data();
  out.bytes = buffer.size();
  out.kind = BPS_MEMORY_HOST;
  return out;
}

class BpsEngine final : public Engine {
 public:
  BpsEngine(const WorkerOptions& options, const Buffer& in, const Buffer& out)
      : pattern_{options.dtype, options.workers}, rank_(options.index), in_(in), out_(out) {}

  ~BpsEngine() override {
    if (client_ == nullptr) return;
    bps_close(client_, kCloseTimeoutMs, nullptr);
    bps_free(client_);
  }

  Status open(const WorkerOptions& options) {
    bps_error error = BPS_ERROR_INIT;
    bps_options settings;
    bps_options_init(&settings, sizeof settings);
    settings.scheduler = options.scheduler.c_str();
    settings.job = "bps-bench";
    settings.rank = static_cast<std::int32_t>(options.index);
    settings.world_size = static_cast<std::int32_t>(options.workers);
    settings.local_rank = settings.rank;
    settings.local_size = settings.world_size;
    settings.partition_bytes = options.partition_bytes;
    settings.credit_bytes = options.credit_bytes;
    settings.retain = options.retain ? 1 : 0;
    if (!options.congestion_control.empty()) settings.congestion_control = options.congestion_control.c_str();
    if (bps_open(&settings, &client_, &error) != BPS_OK) return to_error(error);
    bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
    spec.name = "bench";
    spec.dtype = static_cast<bps_dtype>(options.dtype);
    spec.count = options.bytes / size_of(options.dtype);
    if (bps_declare(client_, &spec, 1, &tensor_, -1, &error) != BPS_OK) return to_error(error);
    return {};
  }

  Status prepare(std::uint64_t round) override {
    fill_contribution(pattern_, rank_, round, in_.span());
    return {};
  }

  Status run(std::uint64_t) override {
    bps_error error = BPS_ERROR_INIT;
    const bps_buffer in = describe(in_);
    const bps_buffer out = describe(out_);
    bps_handle* handle = nullptr;
    if (bps_push_pull(client_, tensor_, &in, &out, BPS_SUM, &handle, &error) != BPS_OK)
      return to_error(error);
    const bps_status status = bps_wait(handle, -1, &error);
    bps_handle_free(handle);
    return status == BPS_OK ? Status{} : Status{to_error(error)};
  }

  Status check(std::uint64_t round) override {
    const std::string wrong = check_sum(pattern_, round, out_.span());
    return wrong.empty() ? Status{} : Status{make_error(ErrorCode::internal, wrong)};
  }

 private:
  const Pattern pattern_;
  const std::uint32_t rank_;
  const Buffer& in_;
  const Buffer& out_;
  bps_client* client_ = nullptr;
  bps_tensor tensor_ = 0;
};

}  // namespace

Result<std::unique_ptr<Engine>> open_bps_engine(const WorkerOptions& options, const Buffer& in,
                                                const Buffer& out) {
  auto engine = std::make_unique<BpsEngine>(options, in, out);
  if (Status status = engine->open(options); !status) return std::move(status).error();
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace bps::bench
