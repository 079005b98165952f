// Turns a byte stream of one child into whole lines, each with the child's name before it, so that the
// lines of many children can be mixed without tearing any.
//
// A line longer than kMaxLine is cut there: a child that never ends its line must not fill our memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace bps {

class LinePrefixer {
 public:
  static constexpr std::size_t kMaxLine = 16 * 1024;

  explicit LinePrefixer(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends the lines that `bytes` completes to `out`; keeps the rest.
  void feed(std::string_view bytes, std::string& out);

  // Appends what is left, as a line.
  void finish(std::string& out);

 private:
  void emit(std::string_view tail, std::string& out);

  std::string prefix_;
  std::string partial_;
};

}  // namespace bps
