// For tests of the library through its C API: clients with a cluster inside the process.
#pragma once

#include <bps/bps.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/src/api/embedded_cluster.h"
#include "client/src/api/testing/c_api_refusal.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"

namespace bps::testing {

inline constexpr std::int64_t kSoon = 30'000;

inline bps_options embedded_options() {
  bps_options options;
  bps_options_init(&options, sizeof options);
  options.scheduler = "embedded:";
  options.job = "c-api-test";
  options.rank = 0;
  options.world_size = 1;
  return options;
}

inline void set(bps_options& options, const char* name, const char* value) {
  Refusal why;
  const bps_status status = bps_options_set(&options, name, value, why);
  INFO(why.message());
  REQUIRE(status == BPS_OK);
}

// How the operation ended. Its handle is gone then.
inline bps_status wait_and_free(bps_handle* handle, Refusal& why) {
  const bps_status status = bps_wait(handle, kSoon, why);
  bps_handle_free(handle);
  return status;
}

inline void check_ok(bps_handle* handle) {
  Refusal why;
  const bps_status status = wait_and_free(handle, why);
  INFO(why.message());
  CHECK(status == BPS_OK);
}

class OpenClient {
 public:
  explicit OpenClient(bps_client* client) : client_(client) {}
  explicit OpenClient(bps_options options = embedded_options()) {
    Refusal why;
    const bps_status status = bps_open(&options, &client_, why);
    INFO(why.message());
    REQUIRE(status == BPS_OK);
  }
  ~OpenClient() { bps_free(client_); }
  OpenClient(const OpenClient&) = delete;
  OpenClient& operator=(const OpenClient&) = delete;
  operator bps_client*() const { return client_; }

  bps_tensor declare(const char* name, std::uint64_t count, bps_dtype dtype = BPS_F32,
                     bps_mode mode = BPS_MODE_SYNC, const std::vector<std::uint64_t>& parts = {}) const {
    bps_tensor_spec spec = BPS_TENSOR_SPEC_INIT;
    spec.name = name;
    spec.dtype = dtype;
    spec.count = count;
    spec.mode = mode;
    spec.parts = parts.empty() ? nullptr : parts.data();
    spec.part_count = parts.size();
    bps_tensor tensor = 0;
    Refusal why;
    const bps_status status = bps_declare(client_, &spec, 1, &tensor, kSoon, why);
    INFO(why.message());
    REQUIRE(status == BPS_OK);
    return tensor;
  }
  bps_handle* push_pull(bps_tensor tensor, std::vector<float>& in, std::vector<float>& out) const {
    const bps_buffer from = buffer(in), to = buffer(out);
    bps_handle* handle = nullptr;
    Refusal why;
    const bps_status status = bps_push_pull(client_, tensor, &from, &to, BPS_SUM, &handle, why);
    INFO(why.message());
    REQUIRE(status == BPS_OK);
    REQUIRE(handle != nullptr);
    return handle;
  }
  static bps_buffer buffer(std::vector<float>& memory) {
    return {sizeof(bps_buffer), memory.data(), memory.size() * sizeof(float), BPS_MEMORY_HOST, 0, nullptr};
  }

 private:
  bps_client* client_ = nullptr;
};

// A cluster outside the library, and a job of so many in this process.
class Workers {
 public:
  explicit Workers(std::size_t size, const char* stall_warn = "10s") {
    const auto quiet = LogTarget::to_callback([](auto...) {}, LogLevel::off);
    auto cluster = EmbeddedCluster::start(Logger("test", quiet), nullptr);
    REQUIRE(cluster.ok());
    cluster_ = std::move(cluster).value();
    const std::string scheduler = to_string(cluster_->scheduler());
    // Each waits for the others.
    std::vector<std::unique_ptr<LoopThread>> threads;
    std::vector<Completion<bps_client*>> opened(size);
    for (std::size_t rank = 0; rank < size; ++rank) {
      auto thread = LoopThread::start("open");
      REQUIRE(thread.ok());
      threads.push_back(std::move(thread).value());
      threads.back()->loop().post([&, rank] {
        opened[rank].set(open(scheduler, static_cast<std::int32_t>(rank), size, stall_warn));
      });
    }
    for (Completion<bps_client*>& client : opened) {
      REQUIRE(client.wait_until(TimePoint::max()));
      REQUIRE(client.value() != nullptr);
      clients_.push_back(std::make_unique<OpenClient>(client.value()));
    }
  }

  std::size_t size() const { return clients_.size(); }
  const OpenClient& operator[](std::size_t rank) const { return *clients_[rank]; }

 private:
  static bps_client* open(const std::string& scheduler, std::int32_t rank, std::size_t size,
                          const char* stall_warn) {
    bps_options options = embedded_options();
    options.scheduler = scheduler.c_str();
    options.rank = rank;
    options.world_size = static_cast<std::int32_t>(size);
    if (bps_options_set(&options, "stall-warn", stall_warn, nullptr) != BPS_OK) return nullptr;
    bps_client* client = nullptr;
    return bps_open(&options, &client, nullptr) == BPS_OK ? client : nullptr;
  }

  std::unique_ptr<EmbeddedCluster> cluster_;
  std::vector<std::unique_ptr<OpenClient>> clients_;
};

// What only one of them pushes stays under way.
class TwoWorkers {
 public:
  explicit TwoWorkers(const char* stall_warn = "10s") : workers_(2, stall_warn) {}

  bps_handle* pending(const char* name, std::vector<float>& memory) const {
    b.declare(name, memory.size());
    return a.push_pull(a.declare(name, memory.size()), memory, memory);
  }

 private:
  const Workers workers_;

 public:
  const OpenClient& a = workers_[0];
  const OpenClient& b = workers_[1];
};

}  // namespace bps::testing
