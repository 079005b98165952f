#include "scheduler/state.h"

#include <fmt/format.h>

#include <charconv>

#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/names.h"

namespace bps {
namespace {

constexpr std::string_view kFirstLine = "bps-scheduler-state 1";

// The whole text is one number.
template <class T>
bool read_number(std::string_view text, T& out, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

bool read_line(std::string_view key, std::string_view value, SchedulerState& state) {
  if (key == "term") return state.term == 0 && read_number(value, state.term) && state.term != 0;
  if (key == "last-server") return read_number(value, state.last_server.value);
  if (key != "run" && key != "waited") return false;
  const auto space = value.find(' ');
  JobRun run;
  if (space != 16 || !read_number(value.substr(0, space), run.value, 16) || run.value == 0) return false;
  const std::string_view rest = value.substr(space + 1);
  if (key == "waited") {
    const auto known = state.runs.find(run);
    std::uint32_t milliseconds = 0;
    if (known == state.runs.end() || !read_number(rest, milliseconds)) return false;
    known->second.waited = std::chrono::milliseconds(milliseconds);
    return true;
  }
  std::string name(rest);
  if (!check_name("job name", name, kMaxNameBytes) || name.empty()) return false;
  return state.runs.size() < kMaxStateRuns &&
         state.runs.emplace(run, SchedulerState::Run{std::move(name)}).second;
}

}  // namespace

std::uint32_t checksum_of_state(std::string_view body) {
  return crc32c(0, std::as_bytes(std::span(body.data(), body.size())));
}

std::string to_text(const SchedulerState& state) {
  std::string text =
      fmt::format("{}\nterm {}\nlast-server {}\n", kFirstLine, state.term, state.last_server.value);
  for (const auto& [run, known] : state.runs) {
    text += fmt::format("run {:016x} {}\n", run.value, known.job);
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(known.waited).count();
    if (waited > 0) text += fmt::format("waited {:016x} {}\n", run.value, waited);
  }
  return text + fmt::format("checksum {:08x}\n", checksum_of_state(text));
}

Result<SchedulerState> parse_state(std::string_view text) {
  const auto damaged = [](std::string what) {
    return make_error(ErrorCode::configuration, "it is damaged: " + std::move(what));
  };
  const auto last = text.rfind("\nchecksum ");
  std::uint32_t checksum = 0;
  if (last == text.npos || !text.ends_with('\n')) return damaged("its end is missing");
  const std::string_view body = text.substr(0, last + 1);
  std::string_view digits = text.substr(body.size() + std::string_view("checksum ").size());
  digits.remove_suffix(1);
  if (digits.size() != 8 || !read_number(digits, checksum, 16) || checksum != checksum_of_state(body))
    return damaged("the checksum is wrong");
  SchedulerState state;
  std::size_t number = 0;
  for (std::string_view rest = body; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(line.size() + 1);
    if (++number == 1) {
      if (line != kFirstLine) return damaged("it is not of this version");
      continue;
    }
    const auto space = line.find(' ');
    if (space == line.npos || !read_line(line.substr(0, space), line.substr(space + 1), state))
      return damaged(fmt::format("line {}", number));
  }
  if (state.term == 0) return damaged("no term");
  return state;
}

}  // namespace bps
