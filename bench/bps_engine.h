// A worker of a bps job: one tensor, one push_pull per round, through the C API.
#pragma once

#include <memory>

#include "bench/buffer.h"
#include "bench/engine.h"
#include "bench/values.h"
#include "bench/worker_options.h"

namespace bps::bench {

// Joins the job and declares the tensor; `in` and `out` outlive the engine, which leaves the job when
// destroyed.
Result<std::unique_ptr<Engine>> open_bps_engine(const WorkerOptions& options, const Buffer& in,
                                                const Buffer& out);

}  // namespace bps::bench
