// What bps-bench can do: one entry per subcommand, each in a file of its own (x_command.cc) with its flags.
#pragma once

#include <span>
#include <string>

#include "bench/commands/report.h"
#include "proto/base/result.h"

namespace bps::bench {

struct Subcommand {
  const char* name;
  const char* summary;  // one line of the usage
  // argv[0] is the subcommand. Returns the exit status.
  int (*run)(int argc, const char* const* argv);
};

std::span<const Subcommand> subcommands();

int pushpull_command(int argc, const char* const* argv);
int exchange_command(int argc, const char* const* argv);
int latency_command(int argc, const char* const* argv);
int priority_command(int argc, const char* const* argv);
int lanes_command(int argc, const char* const* argv);
int memory_command(int argc, const char* const* argv);
int local_command(int argc, const char* const* argv);
int floor_command(int argc, const char* const* argv);
int gpu_floor_command(int argc, const char* const* argv);
int reduce_command(int argc, const char* const* argv);
int distance_command(int argc, const char* const* argv);
int replay_command(int argc, const char* const* argv);

// The end of every subcommand: writes the report to `json` (see write_report) and says what went wrong.
int finish(const std::string& json, const Result<Outcome>& outcome);

// Prints the error; returns the exit status that it stands for.
int fail(const Error& error);

}  // namespace bps::bench
