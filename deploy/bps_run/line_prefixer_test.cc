#include "deploy/bps_run/line_prefixer.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

std::string feed_all(LinePrefixer& prefixer, std::initializer_list<std::string_view> pieces) {
  std::string out;
  for (const std::string_view piece : pieces)
    prefixer.feed(piece, out);
  return out;
}

TEST_CASE("whole lines get the prefix, however they arrive") {
  LinePrefixer prefixer("[worker 2] ");
  CHECK(feed_all(prefixer, {"a\nb", "c", "\n\nd\n"}) ==
        "[worker 2] a\n[worker 2] bc\n[worker 2] \n[worker 2] d\n");
}

TEST_CASE("the last line needs no newline") {
  LinePrefixer prefixer("> ");
  std::string out = feed_all(prefixer, {"one\ntw", "o"});
  CHECK(out == "> one\n");
  prefixer.finish(out);
  prefixer.finish(out);
  CHECK(out == "> one\n> two\n");
}

TEST_CASE("an endless line is cut, and nothing of it is lost") {
  LinePrefixer prefixer("");
  const std::string endless(3 * LinePrefixer::kMaxLine + 5, 'x');
  std::string out =
      feed_all(prefixer, {std::string_view(endless).substr(0, 7), std::string_view(endless).substr(7)});
  CHECK(out.size() == 3 * (LinePrefixer::kMaxLine + 1));
  prefixer.finish(out);
  CHECK(std::count(out.begin(), out.end(), 'x') == static_cast<std::ptrdiff_t>(endless.size()));
}

TEST_CASE("a line of exactly the limit is one line and an empty rest") {
  LinePrefixer prefixer("");
  std::string out = feed_all(prefixer, {std::string(LinePrefixer::kMaxLine - 1, 'x') + "\nb\n"});
  CHECK(out.size() == LinePrefixer::kMaxLine + 2);
}

}  // namespace
}  // namespace bps
