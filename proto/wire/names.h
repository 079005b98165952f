// What may stand in the names that the protocol carries: jobs, tensors, hosts. One rule for those who send
// and those who check what was sent.
#pragma once

#include <cstddef>
#include <string_view>

#include "proto/base/result.h"

namespace bps {

// Names stand in log lines and error messages: no control characters.
constexpr bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// `what` it names: "tensor name". The protocol carries 1 to `most` bytes without control characters; a peer
// that sends others is dropped, and the job with it.
Status check_name(const char* what, std::string_view name, std::size_t most);

}  // namespace bps
