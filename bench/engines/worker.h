// A worker process of the benchmark: does the steps that bps-bench asks for, until the control connection
// ends.
#pragma once

#include "bench/cluster/worker_options.h"
#include "proto/base/result.h"

namespace bps::bench {

Status run_worker(const WorkerOptions& options);

}  // namespace bps::bench
