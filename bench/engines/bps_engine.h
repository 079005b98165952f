// The ranks of one worker process: in a round each of them exchanges all its tensors.
#pragma once

#include <memory>
#include <string>

#include "bench/cluster/worker_options.h"
#include "bench/engines/buffer.h"
#include "bench/engines/engine.h"

namespace bps::bench {

// `job`: its name. With ordinary memory, `in` and `out` hold the tensors of all ranks of the process, rank by
// rank; they outlive the engine, which leaves the job when destroyed.
std::unique_ptr<Engine> make_bps_engine(const WorkerOptions& options, const EngineOptions& engine,
                                        std::string job, const Buffer& in, const Buffer& out);

}  // namespace bps::bench
