// Which cluster a process of this host belongs to, and how to enter it, by the environment that it was
// started with.
#pragma once

#include <sys/types.h>

#include "proto/base/config/env.h"
#include "proto/base/result.h"

namespace bps {

// BPS_SCHEDULER, and what there is of BPS_KEY_FILE and BPS_TLS_*: of the first process with BPS_RANK among
// the process itself and what it has started (bps-run, a shell); if none has it, of the process itself. Files
// are found from any folder. `proc`: "/proc", or a copy for tests.
Result<Environment> cluster_of_process(pid_t pid, const std::string& proc = "/proc");

}  // namespace bps
