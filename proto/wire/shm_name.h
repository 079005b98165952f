// Where a server takes lanes over shared memory: a name that a worker works out from what the scheduler said
// of the server. Another life of the server on the same port has another name. Pure.
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

}  // namespace bps
