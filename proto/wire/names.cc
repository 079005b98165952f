#include "proto/wire/names.h"

#include <fmt/core.h>

#include <algorithm>

namespace bps {

Status check_name(const char* what, std::string_view name, std::size_t most) {
  if (name.empty() || name.size() > most) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("a {} has 1 to {} bytes, this one has {}", what, most, name.size()));
  }
  const auto found = std::find_if(name.begin(), name.end(), is_control);
  if (found == name.end()) return {};
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("a {} has no control characters, this one has {:#04x} at byte {}", what,
                                static_cast<unsigned char>(*found), found - name.begin()));
}

}  // namespace bps
