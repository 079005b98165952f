// The workers of one host that sum among themselves: HostGroup alone, without scheduler and servers; and what
// it cannot beat, a copy.
#pragma once

#include <memory>

#include "bench/cluster/worker_options.h"
#include "bench/engines/buffer.h"
#include "bench/engines/engine.h"

namespace bps::bench {

// A round is a reduce of the tensor to its partitions' owners and a spread of the sums, in batches of 4 MiB
// of which two are under way, as the leader of a group would cut them. Links are shared memory. The buffers
// outlive the engine; it has memory of its own instead where `engine` says so.
std::unique_ptr<Engine> make_local_engine(const WorkerOptions& options, const EngineOptions& engine,
                                          const Buffer& in, const Buffer& out);

// A round is one memcpy of the tensor in each worker.
std::unique_ptr<Engine> make_copy_engine(const Buffer& in, const Buffer& out);

}  // namespace bps::bench
