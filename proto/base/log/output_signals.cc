#include "proto/base/log/output_signals.h"

#include <signal.h>

namespace bps {

void outlive_lost_outputs() {
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace bps
