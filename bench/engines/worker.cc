#include "bench/engines/worker.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "bench/cluster/control.h"
#include "bench/engines/bps_engine.h"
#include "bench/engines/buffer.h"
#include "bench/engines/local_engine.h"
#include "bench/engines/pace.h"
#include "bench/engines/priority_engine.h"
#include "bench/engines/raw_engine.h"
#include "bench/gpu/gpu_engine.h"
#include "bench/replay/replay_engine.h"
#include "proto/base/descriptor_limit.h"

namespace bps::bench {
namespace {

bool has_own_memory(const EngineOptions& engine) {
  return is_gpu(engine.kind) || (engine.kind == EngineKind::pushpull && engine.memory != MemoryUse::user);
}

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> create(const WorkerOptions& options) {
    auto worker = std::make_unique<Worker>();
    worker->options_ = options;
    const bool own_memory = std::all_of(options.engines.begin(), options.engines.end(), has_own_memory);
    const std::uint64_t bytes = own_memory ? 0 : options.bytes_per_round() * options.clients;
    for (Buffer* buffer : {&worker->in_, options.in_place ? nullptr : &worker->out_}) {
      if (buffer == nullptr) continue;
      auto memory = Buffer::allocate(bytes);
      if (!memory) return memory.error();
      *buffer = std::move(*memory);
    }
    for (const EngineOptions& engine : options.engines) {
      auto made = worker->make_engine(engine);
      if (!made) return std::move(made).error();
      worker->engines_.push_back(std::move(*made));
    }
    return worker;
  }

  Reply answer(const Request& request) {
    Reply reply;
    const Status status = request.engine < engines_.size()
                              ? perform(*engines_[request.engine], request, reply)
                              : Status{make_error(ErrorCode::internal, "no such engine")};
    if (!status.ok()) {
      reply.ok = false;
      reply.code = status.error().code;
      reply.text = to_string(status.error());
    }
    return reply;
  }

 private:
  // See EngineOptions::is_part.
  WorkerOptions part_of_worker() const {
    WorkerOptions part = options_;
    const std::size_t element = size_of(options_.dtype);
    part.bytes = options_.bytes / element / options_.workers * element;
    part.workers = 1;
    part.index = 0;
    return part;
  }

  Result<std::unique_ptr<Engine>> make_engine(const EngineOptions& engine) {
    std::string job = "bps-bench " + std::to_string(engines_.size());
    if (engine.is_part) job += " of worker " + std::to_string(options_.index);
    const WorkerOptions options = engine.is_part ? part_of_worker() : options_;
    return make_engine(options, engine, job);
  }

  Result<std::unique_ptr<Engine>> make_replay(const WorkerOptions& options, const EngineOptions& engine,
                                              const std::string& job, ReplayMemory memory) {
    const auto plan = replay_plan_of(options.replay, size_of(options.dtype));
    if (!plan) return plan.error();
    return make_replay_engine(options, engine, job, *plan, std::move(memory));
  }

  // The GPU is that of this worker, whatever `options` say.
  Result<std::unique_ptr<Engine>> make_gpu_engine(const WorkerOptions& options, const EngineOptions& engine,
                                                  const std::string& job) {
    auto machine = open_gpu_machine();
    if (!machine) return std::move(machine).error();
    auto gpu = gpu_of_worker(*machine, options_.index);
    if (!gpu) return std::move(gpu).error();
    let_ranks_share_gpus(options, engine, *machine->cuda);
    switch (engine.kind) {
      case EngineKind::gpu_copies: return make_gpu_copies_engine(options, *gpu, *machine);
      case EngineKind::gpu_product: return make_gpu_product_engine(engine, *gpu, *machine);
      case EngineKind::gpu_replay: return make_replay(options, engine, job, ReplayGpu{*gpu, machine->now});
      default: return make_gpu_pushpull_engine(options, engine, job, *gpu, *machine);
    }
  }

  Result<std::unique_ptr<Engine>> make_engine(const WorkerOptions& options, const EngineOptions& engine,
                                              const std::string& job) {
    const Buffer& out = options.in_place ? in_ : out_;
    switch (engine.kind) {
      case EngineKind::floor: return {std::make_unique<FloorEngine>(options, in_, out)};
      case EngineKind::echo: return {std::make_unique<EchoEngine>(options, in_, out)};
      case EngineKind::raw_priority: return make_raw_priority_engine(options, in_, out);
      case EngineKind::priority: return make_priority_engine(options, engine, job, in_, out);
      case EngineKind::pushpull: return make_bps_engine(options, engine, job, in_, out);
      case EngineKind::local: return make_local_engine(options, engine, in_, out);
      case EngineKind::copy: return make_copy_engine(in_, out);
      case EngineKind::gpu_pushpull:
      case EngineKind::gpu_copies:
      case EngineKind::gpu_product:
      case EngineKind::gpu_replay: return make_gpu_engine(options, engine, job);
      case EngineKind::replay: break;
    }
    return make_replay(options, engine, job, ReplayBuffers{&in_, &out});
  }

  Status perform(Engine& engine, const Request& request, Reply& reply) {
    switch (request.step) {
      case Step::join: return timed(reply, [&] { return engine.join(); });
      case Step::declare: return timed(reply, [&] { return engine.declare(); });
      case Step::prepare: return request.back_to_back ? Status{} : engine.prepare(request.round);
      case Step::run:
        return request.back_to_back ? run_block(engine, request, reply) : run_once(engine, request, reply);
      case Step::check:
        return request.back_to_back ? std::exchange(block_check_, Status{}) : engine.check(request.round);
    }
    return {};
  }

  template <class Function>
  static Status timed(Reply& reply, Function function) {
    reply.begin_ns = now_ns();
    Status status = function();
    reply.end_ns = now_ns();
    return status;
  }

  std::int64_t start_of(const Request& request) const {
    return request.start_ns + (options_.index == 0 ? request.late_ns : 0);
  }

  Status run_once(Engine& engine, const Request& request, Reply& reply) {
    if (Status status = pace_.wait_until(start_of(request)); !status) return status;
    const std::uint64_t background = engine.background_bytes();
    Status status = timed(reply, [&] { return engine.run(request.round); });
    reply.background_bytes = engine.background_bytes() - background;
    reply.numbers = {reply.end_ns - reply.begin_ns};
    return status;
  }

  Status run_block(Engine& engine, const Request& request, Reply& reply) {
    if (Status status = engine.begin_block(request.mode); !status) return status;
    const std::int64_t start = start_of(request);
    if (Status status = pace_.wait_until(start); !status) return status;
    const std::uint64_t background = engine.background_bytes();
    reply.begin_ns = now_ns();
    for (std::uint32_t i = 0; i < request.count; ++i) {
      if (Status status = engine.prepare(request.round + i); !status) return status;
      if (Status status = pace_.wait_until(start + i * request.period_ns); !status) return status;
      const std::int64_t begin = now_ns();
      if (Status status = engine.run(request.round + i); !status) return status;
      reply.numbers.push_back(now_ns() - begin);
      keep_first(engine.check(request.round + i));
    }
    if (Status status = pace_.wait_until(start + request.count * request.period_ns); !status) return status;
    reply.end_ns = now_ns();
    reply.background_bytes = engine.background_bytes() - background;
    keep_first(engine.end_block());
    return {};
  }

  void keep_first(Status check) {
    if (!check && block_check_) block_check_ = std::move(check);
  }

  WorkerOptions options_;
  Pace pace_;
  Buffer in_, out_;
  std::vector<std::unique_ptr<Engine>> engines_;  // after the buffers: destroyed before them
  Status block_check_;                            // of the last block: its first wrong result
};

}  // namespace

Status run_worker(const WorkerOptions& options) {
  raise_descriptor_limit();
  auto control = connect_control(options.control);
  if (!control) return control.error();
  auto worker = Worker::create(options);
  if (!worker) return worker.error();
  Reply hello;
  hello.text = "worker " + std::to_string(options.index);
  if (Status status = send_reply(control->get(), hello); !status) return status;
  while (true) {
    const auto request = receive_request(control->get());
    if (!request) return request.error().code == ErrorCode::closed ? Status{} : Status{request.error()};
    if (Status status = send_reply(control->get(), (*worker)->answer(*request)); !status) return status;
  }
}

}  // namespace bps::bench
