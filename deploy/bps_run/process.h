// Starting and ending processes. Every child leads a process group of its own and dies with the thread that
// started it (PR_SET_PDEATHSIG).
//
// Call from one thread only, with the signals that matter blocked; a child starts with none blocked.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "proto/base/config/env.h"
#include "proto/base/result.h"

namespace bps {

struct Command {
  std::string file;                    // what is executed
  std::vector<std::string> arguments;  // argv, with argv[0]
  Environment environment;
};

struct Process {
  pid_t pid = 0;
  int out = -1;  // read ends of its stdout and stderr, non-blocking, owned by the caller
  int err = -1;
};

// Its stdin is /dev/null. Errors (code os) are those of execve() too.
Result<Process> start_process(const Command& command);

// Signals the child's whole group. Only for a child that has not been reaped.
void signal_group(pid_t leader, int signal);

// Kills every descendant of this process, also those that left their group or session; needs
// PR_SET_CHILD_SUBREAPER and SIGCHLD blocked. Returns when none is left, or after two seconds with those that
// the kernel cannot end.
void kill_descendants();

// "exit status 3", "signal 9 (Killed)"
std::string describe_wait_status(int wait_status);

// 0..255; 128 + n for a death by signal n.
int exit_status_of(int wait_status);

// As execvp() would find it. 126 = found but not executable, 127 = not found.
struct FoundProgram {
  std::string file;
  int exit_status = 0;
  std::string problem;  // empty: found
};
FoundProgram find_program(const std::string& name, const Environment& environment);

}  // namespace bps
