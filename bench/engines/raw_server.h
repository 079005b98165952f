// A server of the floors, a process of its own. It is up to two things, each on a thread:
//
// floor: moves the bytes that a bps server would move, and does nothing with them. Of each worker process it
// receives its slice of the tensors into one buffer and sends as many bytes back out of another, both as
// large as the slice; it sends no more than it has received of this round, like a server that cannot answer
// before it was asked.
//
// echo: answers all workers when all have sent.
//
// Ends when the control connection and the workers' do. Failure: an error, and the process ends.
#pragma once

#include "bench/cluster/worker_options.h"
#include "proto/base/result.h"

namespace bps::bench {

Status run_raw_server(const WorkerOptions& options);

}  // namespace bps::bench
