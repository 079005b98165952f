#include "scheduler/tables/succession.h"

#include <fmt/format.h>

namespace bps {

bool Succession::is_superseded_by(const Term& seen, TimePoint now) {
  if (is_own(seen) || seen.number < term_.number) return false;
  if (!welcomed_at_ || now < *welcomed_at_ + collect_time_) {
    term_.number = seen.number + 1;
    ++changes_;
    return false;
  }
  superseded_ = make_error(ErrorCode::peer_lost,
                           fmt::format("a node has met a later scheduler, of term {}; this one is of term {}",
                                       seen.number, term_.number),
                           "run one scheduler, with --state-dir");
  return true;
}

ServerId Succession::number_server() {
  last_server_ = last_server_.next();
  ++changes_;
  return last_server_;
}

void Succession::skip_to(ServerId server) {
  if (server <= last_server_) return;
  last_server_ = server;
  ++changes_;
}

}  // namespace bps
