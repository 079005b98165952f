// A small urgent tensor and bulk beside it, in one job of bps or over two raw sockets.
#pragma once

#include <memory>

#include "bench/cluster/worker_options.h"
#include "bench/engines/buffer.h"
#include "bench/engines/engine.h"

namespace bps::bench {

// The modes of these engines: what a block has. Its rounds are those of the urgent tensor; a block without
// it takes as long.
enum class PriorityMode : std::uint8_t { urgent = 1, bulk = 2, both = 3 };

// The urgent tensor has WorkerOptions::echo_bytes, the bulk that of all tensors together, in `in` and `out`.
std::unique_ptr<Engine> make_priority_engine(const WorkerOptions& options, const EngineOptions& engine,
                                             std::string job, const Buffer& in, const Buffer& out);

// The bulk moves on a socket to each floor server; the urgent message on one more to the first, which answers
// when all workers have sent it.
std::unique_ptr<Engine> make_raw_priority_engine(const WorkerOptions& options, const Buffer& in,
                                                 const Buffer& out);

}  // namespace bps::bench
