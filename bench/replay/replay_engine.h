// One worker's part of a replayed training step: push_pulls in backward order while a timer plays the
// compute, waits in forward order as the next step would. A round is one step, from the begin of backward to
// the end of forward (see fluid_schedule.h for why that is the steady state).
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "bench/cluster/worker_options.h"
#include "bench/engines/buffer.h"
#include "bench/engines/engine.h"
#include "bench/gpu/gpu.h"
#include "bench/replay/replay_plan.h"

namespace bps::bench {

// Where the tensors are. Both as large as the plan's buffer, and outlive the engine.
struct ReplayBuffers {
  const Buffer* in = nullptr;
  const Buffer* out = nullptr;
};
struct ReplayGpu {
  Gpu gpu;
  Now now;
};
using ReplayMemory = std::variant<ReplayBuffers, ReplayGpu>;

// `job`: its name. The engine leaves it when destroyed. With `engine.by_priority` what forward needs first
// goes first; without, no tensor has a priority and they are declared in backward order, so that first come
// is first served.
std::unique_ptr<Engine> make_replay_engine(const WorkerOptions& options, const EngineOptions& engine,
                                           std::string job, ReplayPlan plan, ReplayMemory memory);

}  // namespace bps::bench
