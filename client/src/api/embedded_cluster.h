// `embedded:` as scheduler: a scheduler and a server inside this process, on loops of their own, reached over
// the real TCP loopback path. So a program that is linked with the library runs with nothing else started.
// Its ports are open to every user of this machine, so it wants a key.
//
// The client layer knows only this interface; deploy/embedded/, which may see scheduler and server,
// implements it, and both are linked into libbpsclient.
#pragma once

#include <memory>

#include "proto/auth/key.h"
#include "proto/base/endpoint.h"
#include "proto/base/log/log.h"
#include "proto/base/result.h"

namespace bps {

// Owner: Client. Any thread; the destructor stops both and joins their threads, so it must not run on one of
// them.
class EmbeddedCluster {
 public:
  // Returns when the scheduler listens; the server registers on its own. Errors: `os`, when threads or
  // sockets are refused.
  // `key`: the cluster's; null: anybody on this machine may join.
  static Result<std::unique_ptr<EmbeddedCluster>> start(const Logger& log, SharedKey key);

  virtual ~EmbeddedCluster() = default;
  virtual Endpoint scheduler() const = 0;
};

}  // namespace bps
