#include "tests/conformance/virtual_fabric.h"

namespace bps::conformance {

const std::uint64_t kLendingPercent = 100;

}  // namespace bps::conformance
