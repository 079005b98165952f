// What the TOML parser of settings files may be given.
//
// toml++ 3.3 has undefined behaviour for 3019 characters (U+00A1 to U+0499, U+2C5E to U+3057 without U+3000,
// U+FB26 to U+FEFE) where it looks for a blank or for the end of a value, and asserts on a list that ends as
// a table does. In comments and between quotes it looks for no blanks, except behind a backslash in a text of
// many lines.
#pragma once

#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace bps {

// Refuses (`configuration`) what is not UTF-8; tables and lists; characters beyond ASCII outside of comments
// and quotes, where TOML has none but a byte order mark, which is taken; and, in a text of many lines, those
// that stand behind a backslash or behind the blanks that it skips, where TOML would have them. The error
// names path, line, column (in characters, from 1) and character.
Status check_characters(std::string_view content, const std::string& path);

}  // namespace bps
