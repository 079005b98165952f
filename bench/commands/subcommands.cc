#include "bench/commands/subcommands.h"

#include <fmt/core.h>

#include <csignal>
#include <cstdio>

namespace bps::bench {
namespace {

constexpr Subcommand kSubcommands[] = {
    {"pushpull", "push_pull of large tensors: GB/s, CPU seconds per GB; with --floor also raw TCP, in turns",
     pushpull_command},
    {"exchange", "broadcast, reduce or push_pull of large tensors, each beside push_pull, in turns",
     exchange_command},
    {"latency", "small push_pulls against a raw TCP echo, in turns", latency_command},
    {"priority", "a small urgent tensor beside bulk, against two raw sockets, in turns", priority_command},
    {"lanes", "many clients in a process against few lanes that carry as much; how long joining takes",
     lanes_command},
    {"memory", "what servers hold while rank 0 is late", memory_command},
    {"local",
     "the sum of the workers of one host in shared memory, without servers, against memcpy, in turns",
     local_command},
    {"floor", "raw TCP that moves the same bytes between as many processes", floor_command},
    {"gpu-floor", "copies between the host and its GPUs, and NCCL between them", gpu_floor_command},
    {"reduce", "the server's arithmetic against memcpy, in this process", reduce_command},
    {"distance", "how far apart the CPUs of this machine are just now", distance_command},
    {"replay", "training steps of known networks, compute played, against the fluid schedule",
     replay_command},
};

}  // namespace

std::span<const Subcommand> subcommands() { return kSubcommands; }

int fail(const Error& error) {
  fmt::print(stderr, "bps-bench: {}\n", to_string(error));
  if (error.code == ErrorCode::cancelled) return 128 + SIGINT;  // as a shell says it
  return exit_code_of(error.code);
}

int finish(const std::string& json, const Result<Outcome>& outcome) {
  if (!outcome) return fail(outcome.error());
  if (const Status status = write_report(json, *outcome); !status) return fail(status.error());
  if (!outcome->wrong.empty()) return fail(make_error(ErrorCode::internal, outcome->wrong));
  return 0;
}

}  // namespace bps::bench
