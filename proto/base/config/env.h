// The process environment. The only place that reads it, so that what influences a program can be found.
// A snapshot is plain data: tests hand their own to Config and to the rank discovery instead.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace bps {

using Environment = std::map<std::string, std::string, std::less<>>;

// Any thread, as long as nobody calls setenv at the same time. An empty variable is a set one.
std::optional<std::string> env(std::string_view name);

// All variables, as they are now.
Environment environment_now();

// The value in a snapshot.
std::optional<std::string> find(const Environment& environment, std::string_view name);

}  // namespace bps
