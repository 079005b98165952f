#include "deploy/bps_run/line_prefixer.h"

#include <algorithm>

namespace bps {

void LinePrefixer::feed(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const std::size_t room = kMaxLine - partial_.size();
    const std::size_t end = bytes.substr(0, room).find('\n');
    if (end != std::string_view::npos) {
      emit(bytes.substr(0, end), out);
      bytes.remove_prefix(end + 1);
    } else if (bytes.size() >= room) {
      emit(bytes.substr(0, room), out);
      bytes.remove_prefix(room);
    } else {
      partial_.append(bytes);
      return;
    }
  }
}

void LinePrefixer::finish(std::string& out) {
  if (!partial_.empty()) emit({}, out);
}

void LinePrefixer::emit(std::string_view tail, std::string& out) {
  out.append(prefix_).append(partial_).append(tail).push_back('\n');
  partial_.clear();
}

}  // namespace bps
