#include "proto/transport/rdma/real/open_verbs.h"

namespace bps {

Result<std::shared_ptr<Verbs>> open_verbs(VerbsOptions) {
  return make_error(ErrorCode::os, "this bps was built without RDMA",
                    "build it where libibverbs-dev and librdmacm-dev are installed");
}

}  // namespace bps
