// The ranks of one worker process: in a round each of them push_pulls all its tensors.
#pragma once

#include <memory>
#include <string>

#include "bench/buffer.h"
#include "bench/engine.h"
#include "bench/worker_options.h"

namespace bps::bench {

// `job`: its name. With ordinary memory, `in` and `out` hold the tensors of all ranks of the process, rank by
// rank; they outlive the engine, which leaves the job when destroyed.
std::unique_ptr<Engine> make_bps_engine(const WorkerOptions& options, const EngineOptions& engine,
                                        std::string job, const Buffer& in, const Buffer& out);

}  // namespace bps::bench
