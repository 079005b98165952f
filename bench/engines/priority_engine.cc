#include "bench/engines/priority_engine.h"

#include <atomic>
#include <thread>

#include "bench/engines/bps_client.h"
#include "bench/engines/bulk_traffic.h"
#include "bench/engines/raw_engine.h"
#include "bench/engines/values.h"

namespace bps::bench {
namespace {

constexpr std::int32_t kUrgent = 1;

bool has(std::uint8_t mode, PriorityMode part) { return (mode & static_cast<std::uint8_t>(part)) != 0; }

class PriorityEngine final : public Engine {
 public:
  PriorityEngine(const WorkerOptions& options, const EngineOptions& engine, std::string job, const Buffer& in,
                 const Buffer& out)
      : options_(options),
        engine_(engine),
        job_(std::move(job)),
        pattern_{options.dtype, options.workers},
        in_(options.echo_bytes),
        out_(options.echo_bytes),
        bulk_(client_, pattern_, options.index, in.span(), out.span()) {}
  ~PriorityEngine() override { (void)bulk_.stop().ok(); }

  Status join() override { return client_.open(options_, engine_, job_, options_.index); }

  Status declare() override {
    const auto urgent = client_.declare({{"urgent", options_.echo_bytes, kUrgent}}, options_.dtype);
    if (!urgent) return urgent.error();
    urgent_ = urgent->front();
    return bulk_.declare();
  }

  Status begin_block(std::uint8_t mode) override {
    mode_ = mode;
    return has(mode_, PriorityMode::bulk) ? bulk_.start() : Status{};
  }

  Status end_block() override { return has(mode_, PriorityMode::bulk) ? bulk_.stop() : Status{}; }

  std::uint64_t background_bytes() const override {
    return client_.stats().pulled_bytes - urgent_rounds_ * options_.echo_bytes;
  }

  Status prepare(std::uint64_t round) override {
    if (has(mode_, PriorityMode::urgent)) fill_contribution(pattern_, options_.index, round, in_);
    return {};
  }

  Status run(std::uint64_t) override {
    if (!has(mode_, PriorityMode::urgent)) return {};
    auto operation = client_.push_pull(urgent_, in_, out_);
    if (!operation) return operation.error();
    ++urgent_rounds_;
    return operation->wait();
  }

  Status check(std::uint64_t round) override {
    if (!has(mode_, PriorityMode::urgent)) return {};
    const std::string wrong = check_sum(pattern_, round, out_);
    return wrong.empty() ? Status{} : Status{make_error(ErrorCode::internal, "urgent tensor: " + wrong)};
  }

 private:
  const WorkerOptions options_;
  const EngineOptions engine_;
  const std::string job_;
  const Pattern pattern_;
  std::vector<std::byte> in_, out_;  // of the urgent tensor
  std::uint8_t mode_ = 0;
  std::uint64_t urgent_rounds_ = 0;
  bps_tensor urgent_ = 0;
  BulkTraffic bulk_;
  BpsClient client_;  // goes first: then no callback comes any more
};

class RawPriorityEngine final : public Engine {
 public:
  RawPriorityEngine(const WorkerOptions& options, const Buffer& in, const Buffer& out)
      : options_(options), bulk_(options, in, out) {}
  ~RawPriorityEngine() override { (void)end_block().ok(); }

  Status join() override {
    for (Buffer* buffer : {&in_, &out_}) {
      auto memory = Buffer::allocate(options_.echo_bytes);
      if (!memory) return memory.error();
      *buffer = std::move(*memory);
    }
    if (Status status = bulk_.join(); !status) return status;
    return urgent_.join();
  }

  Status begin_block(std::uint8_t mode) override {
    mode_ = mode;
    if (!has(mode_, PriorityMode::bulk)) return {};
    stop_ = false;
    thread_ = std::thread([this] { move_bulk(); });
    return {};
  }

  // When the bulk's round is over.
  Status end_block() override {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return std::exchange(bulk_result_, Status{});
  }

  std::uint64_t background_bytes() const override { return bulk_.received_bytes(); }

  Status prepare(std::uint64_t round) override {
    return has(mode_, PriorityMode::urgent) ? urgent_.prepare(round) : Status{};
  }
  Status run(std::uint64_t round) override {
    return has(mode_, PriorityMode::urgent) ? urgent_.run(round) : Status{};
  }
  Status check(std::uint64_t round) override {
    return has(mode_, PriorityMode::urgent) ? urgent_.check(round) : Status{};
  }

 private:
  void move_bulk() {
    while (!stop_ && bulk_result_) {
      bulk_result_ = bulk_.prepare(0);
      if (bulk_result_) bulk_result_ = bulk_.run(0);
      if (bulk_result_) bulk_result_ = bulk_.check(0);
    }
  }

  const WorkerOptions options_;
  Buffer in_, out_;  // of the urgent message
  std::uint8_t mode_ = 0;
  FloorEngine bulk_;
  EchoEngine urgent_{options_, in_, out_};
  std::atomic<bool> stop_{false};
  Status bulk_result_;  // of the thread, while it runs
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> make_priority_engine(const WorkerOptions& options, const EngineOptions& engine,
                                             std::string job, const Buffer& in, const Buffer& out) {
  return std::make_unique<PriorityEngine>(options, engine, std::move(job), in, out);
}

std::unique_ptr<Engine> make_raw_priority_engine(const WorkerOptions& options, const Buffer& in,
                                                 const Buffer& out) {
  return std::make_unique<RawPriorityEngine>(options, in, out);
}

}  // namespace bps::bench
