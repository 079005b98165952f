#include "bench/worker.h"

#include <array>
#include <memory>

#include "bench/bps_engine.h"
#include "bench/buffer.h"
#include "bench/control.h"
#include "bench/raw_engine.h"

namespace bps::bench {
namespace {

class Worker {
 public:
  static Result<std::unique_ptr<Worker>> create(const WorkerOptions& options) {
    auto worker = std::make_unique<Worker>();
    auto in = Buffer::allocate(options.bytes);
    if (!in) return in.error();
    auto out = Buffer::allocate(options.bytes);
    if (!out) return out.error();
    worker->in_ = std::move(*in);
    worker->out_ = std::move(*out);
    if (!options.scheduler.empty()) {
      auto engine = open_bps_engine(options, worker->in_, worker->out_);
      if (!engine) return engine.error();
      worker->engines_[static_cast<std::size_t>(Target::bps)] = std::move(*engine);
    }
    if (options.raw != RawKind::none) {
      auto engine = options.raw == RawKind::floor ? FloorEngine::connect(options, worker->in_, worker->out_)
                                                  : EchoEngine::connect(options, worker->in_, worker->out_);
      if (!engine) return engine.error();
      worker->engines_[static_cast<std::size_t>(Target::raw)] = std::move(*engine);
    }
    return worker;
  }

  Reply answer(const Request& request) {
    Reply reply;
    const auto target = static_cast<std::size_t>(request.target);
    if (target >= engines_.size() || !engines_[target]) {
      reply.ok = false;
      reply.text = "this worker has nothing to run";
      return reply;
    }
    const Status status = perform(*engines_[target], request, reply);
    if (!status.ok()) {
      reply.ok = false;
      reply.text = to_string(status.error());
    }
    return reply;
  }

 private:
  Status perform(Engine& engine, const Request& request, Reply& reply) {
    const bool single = !request.back_to_back;
    switch (request.step) {
      case Step::prepare: return single ? engine.prepare(request.round) : Status{};
      case Step::run:
        return single ? run_once(engine, request.round, reply) : run_block(engine, request, reply);
      case Step::check:
        if (single) return engine.check(request.round);
        return std::exchange(block_check_, Status{});
    }
    return {};
  }

  static Status run_once(Engine& engine, std::uint64_t round, Reply& reply) {
    reply.begin_ns = now_ns();
    Status status = engine.run(round);
    reply.end_ns = now_ns();
    reply.durations_ns = {reply.end_ns - reply.begin_ns};
    return status;
  }

  Status run_block(Engine& engine, const Request& request, Reply& reply) {
    reply.begin_ns = now_ns();
    for (std::uint64_t round = request.round; round < request.round + request.count; ++round) {
      if (Status status = engine.prepare(round); !status) return status;
      const std::int64_t begin = now_ns();
      if (Status status = engine.run(round); !status) return status;
      reply.durations_ns.push_back(now_ns() - begin);
      Status checked = engine.check(round);
      if (!checked && block_check_) block_check_ = std::move(checked);
    }
    reply.end_ns = now_ns();
    return {};
  }

  Buffer in_, out_;
  std::array<std::unique_ptr<Engine>, 2> engines_;  // after the buffers: destroyed before them
  Status block_check_;                              // of the last block: its first wrong result
};

}  // namespace

Status run_worker(const WorkerOptions& options) {
  auto control = connect_control(options.control);
  if (!control) return control.error();
  Reply hello;
  hello.text = "worker " + std::to_string(options.index);
  auto worker = Worker::create(options);
  if (!worker) return worker.error();
  if (Status status = send_reply(control->get(), hello); !status) return status;
  while (true) {
    const auto request = receive_request(control->get());
    if (!request) return request.error().code == ErrorCode::closed ? Status{} : Status{request.error()};
    if (Status status = send_reply(control->get(), (*worker)->answer(*request)); !status) return status;
  }
}

}  // namespace bps::bench
