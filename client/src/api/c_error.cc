#include "client/src/api/c_error.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace bps {

namespace {

template <std::size_t N>
void copy_text(char (&to)[N], std::string_view from) {
  std::size_t length = from.size();
  const bool cut = length > N - 1;
  if (cut) {
    length = N - 4;
    // Not in the middle of a UTF-8 character.
    while (length > 0 && (static_cast<unsigned char>(from[length]) & 0xC0) == 0x80)
      --length;
  }
  std::memcpy(to, from.data(), length);
  if (cut) {
    std::memcpy(to + length, "...", 3);
    length += 3;
  }
  to[length] = 0;
}

}  // namespace

bps_status report(const Error& failure, bps_error* error) {
  const auto status = static_cast<bps_status>(failure.code);
  if (error == nullptr) return status;
  bps_error full = BPS_ERROR_INIT;
  full.struct_size = error->struct_size;
  full.status = status;
  full.exit_code = exit_code_of(failure.code);
  copy_text(full.message, failure.message);
  copy_text(full.advice, failure.advice);
  std::memcpy(error, &full, std::min(error->struct_size, sizeof full));
  return status;
}

bps_status report(const Status& status, bps_error* error) {
  return report(status.ok() ? Error{} : status.error(), error);
}

void forbid_restart(bps_error* error) {
  const bool has_room =
      error != nullptr && error->struct_size >= offsetof(bps_error, exit_code) + sizeof(error->exit_code);
  if (has_room) error->exit_code = exit_code_of(ErrorCode::configuration);
}

Error out_of_memory_error() { return {ErrorCode::out_of_memory, "no memory left in this process", {}}; }

Error internal_error(const char* what) {
  return {ErrorCode::internal, std::string("unexpected failure: ") + what, "please report this"};
}

}  // namespace bps
