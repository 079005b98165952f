#include "bench/bps_engine.h"

#include <thread>
#include <vector>

#include "bench/bps_client.h"
#include "bench/values.h"

namespace bps::bench {
namespace {

class BpsEngine final : public Engine {
 public:
  BpsEngine(const WorkerOptions& options, const EngineOptions& engine, std::string job, const Buffer& in,
            const Buffer& out)
      : options_(options),
        engine_(engine),
        job_(std::move(job)),
        pattern_{options.dtype, options.workers},
        in_(in),
        out_(out),
        clients_(options.clients) {}

  // Joining waits for all ranks, those of this process too: all at once.
  Status join() override {
    std::vector<Status> results(clients_.size());
    std::vector<std::thread> threads;
    for (std::uint32_t i = 1; i < clients_.size(); ++i)
      threads.emplace_back([this, i, &results] { results[i] = open(i); });
    results[0] = open(0);
    for (std::thread& thread : threads)
      thread.join();
    for (Status& result : results) {
      if (!result) return std::move(result);
    }
    return {};
  }

  Status declare() override {
    std::vector<BpsClient::Tensor> tensors;
    for (std::uint32_t i = 0; i < options_.tensors; ++i)
      tensors.push_back({"tensor " + std::to_string(i), options_.bytes});
    for (BpsClient& client : clients_) {
      auto ids = client.declare(tensors, options_.dtype);
      if (!ids) return ids.error();
      tensors_.push_back(std::move(*ids));
    }
    operations_.resize(clients_.size() * options_.tensors);
    return {};
  }

  Status prepare(std::uint64_t round) override {
    for (std::uint32_t i = 0; i < clients_.size(); ++i)
      fill_contribution(pattern_, rank_of(i), round, part(in_, i));
    return {};
  }

  Status run(std::uint64_t) override {
    std::size_t next = 0;
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      for (std::uint32_t k = 0; k < options_.tensors; ++k) {
        auto operation = clients_[i].push_pull(tensors_[i][k], tensor(in_, i, k), tensor(out_, i, k));
        if (!operation) return operation.error();
        operations_[next++] = std::move(*operation);
      }
    }
    for (Operation& operation : operations_) {
      if (Status status = operation.wait(); !status) return status;
    }
    return {};
  }

  Status check(std::uint64_t round) override {
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      const std::string wrong = check_sum(pattern_, round, part(out_, i));
      if (!wrong.empty()) return make_error(ErrorCode::internal, wrong);
    }
    return {};
  }

 private:
  std::uint32_t rank_of(std::uint32_t client) const { return options_.index * options_.clients + client; }

  Status open(std::uint32_t client) {
    return clients_[client].open(options_, engine_, job_, rank_of(client));
  }

  std::span<std::byte> part(const Buffer& buffer, std::uint32_t client) const {
    return buffer.span().subspan(client * options_.bytes_per_round(), options_.bytes_per_round());
  }
  std::span<std::byte> tensor(const Buffer& buffer, std::uint32_t client, std::uint32_t index) const {
    return part(buffer, client).subspan(index * options_.bytes, options_.bytes);
  }

  const WorkerOptions options_;
  const EngineOptions engine_;
  const std::string job_;
  const Pattern pattern_;
  const Buffer& in_;
  const Buffer& out_;
  std::vector<BpsClient> clients_;
  std::vector<std::vector<bps_tensor>> tensors_;  // by client
  std::vector<Operation> operations_;             // of the last round; go before their clients
};

}  // namespace

std::unique_ptr<Engine> make_bps_engine(const WorkerOptions& options, const EngineOptions& engine,
                                        std::string job, const Buffer& in, const Buffer& out) {
  return std::make_unique<BpsEngine>(options, engine, std::move(job), in, out);
}

}  // namespace bps::bench
