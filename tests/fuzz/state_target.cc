// A scheduler's state file of any content: it is damaged, in words, or read, and then written so that it
// reads as the same again. Half of the inputs get the right checksum, so that something is behind it.
#include <string>

#include "proto/base/assert.h"
#include "scheduler/state.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

void check(const std::string& text) {
  const auto state = parse_state(text);
  if (!state) {
    BPS_ASSERT(state.error().code != ErrorCode::ok && !state.error().message.empty());
    return;
  }
  BPS_ASSERT(state->term != 0 && state->runs.size() <= kMaxStateRuns);
  const auto again = parse_state(to_text(*state));
  BPS_ASSERT(again.ok() && *again == *state);
}

// The last line is that of a text with this body.
std::string with_checksum(const std::string& body) {
  const std::uint32_t checksum = checksum_of_state(body);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string line = "checksum ";
  for (int shift = 28; shift >= 0; shift -= 4)
    line += kDigits[checksum >> shift & 15];
  return body + line + "\n";
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all = random_seeds(30, 200);
  const SchedulerState states[] = {
      {1, {}, {}},
      {1'763'771'234,
       ServerId{3},
       {{JobRun{0xb2}, {"resnet50", std::chrono::milliseconds(2500)}}, {JobRun{7}, {"a b"}}}}};
  for (const SchedulerState& state : states) {
    const std::string text = to_text(state);
    const std::string body = text.substr(0, text.rfind("checksum "));
    all.emplace_back(body.begin(), body.end());
    all.back().insert(all.back().begin(), '1');
    all.emplace_back(text.begin(), text.end());
    all.back().insert(all.back().begin(), '0');
  }
  return all;
}

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  const bool whole = input.below(2) == 1;
  const std::string text = input.text(size);
  bps::fuzz::check(whole ? bps::fuzz::with_checksum(text) : text);
  return 0;
}
