#include "proto/transport/rdma/rdma_counters.h"

namespace bps {

std::array<RdmaCount, kRdmaCounts> counts_of(const RdmaCounters& counters) {
  return {{
      {"registrations", "times that memory was registered with an RDMA device", counters.registrations},
      {"sends", "SENDs posted", counters.sends},
      {"signalled_sends", "SENDs whose completion the device was asked to tell", counters.signalled_sends},
      {"reads", "READs posted", counters.reads},
      {"read_bytes", "bytes asked for by READs", counters.read_bytes},
      {"failed_requests", "requests that failed and ended their connection", counters.failed_requests},
      {"unanswered_requests", "requests that failed because the peer did not answer",
       counters.unanswered_requests},
      {"unready_receivers", "requests that failed because the peer had no buffer",
       counters.unready_receivers},
  }};
}

std::string to_string(const RdmaCounters& counters) {
  std::string text;
  for (const RdmaCount& count : counts_of(counters)) {
    if (!text.empty()) text += ' ';
    text += count.name;
    text += ' ';
    text += std::to_string(count.value);
  }
  return text;
}

}  // namespace bps
