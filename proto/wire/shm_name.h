// Where a server takes lanes over shared memory, and a worker the others of its host: names that a worker
// works out from what the scheduler said of them. Another life of a server on the same port has another name.
// Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proto/base/endpoint.h"
#include "proto/base/ids.h"

namespace bps {

// For ShmTransport: "bps-40123-17".
inline Endpoint shm_endpoint(std::uint16_t data_port, Incarnation server) {
  return {"bps-" + std::to_string(data_port) + "-" + std::to_string(server.value), 0};
}

// Where a worker takes the others of its host: "bps-local-00000000000000fe-3-1", of member 1 of the group
// that rank 3 leads.
inline Endpoint local_endpoint(JobRun run, Rank leader, std::uint32_t member) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (int shift = 60; shift >= 0; shift -= 4)
    hex += kDigits[run.value >> shift & 15];
  return {"bps-local-" + hex + "-" + std::to_string(leader.value) + "-" + std::to_string(member), 0};
}

}  // namespace bps
