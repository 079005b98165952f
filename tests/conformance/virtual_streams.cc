#include "tests/conformance/virtual_fabric.h"

namespace bps::conformance {

const std::uint64_t kLendingPercent = 0;

}  // namespace bps::conformance
