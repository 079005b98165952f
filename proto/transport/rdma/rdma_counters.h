// What a transport has asked of its devices, and what went wrong on them: for metrics, and for tests that
// show that a payload costs no registration and few signals.
//
// What devices repeat by themselves, with success, they count themselves, for all who use them:
// /sys/class/infiniband/*/ports/*/hw_counters.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bps {

// Any thread. They only grow.
struct RdmaCounters {
  std::atomic<std::uint64_t> registrations{0};
  std::atomic<std::uint64_t> sends{0};
  std::atomic<std::uint64_t> signalled_sends{0};
  std::atomic<std::uint64_t> reads{0};  // all of them are signalled
  std::atomic<std::uint64_t> read_bytes{0};
  std::atomic<std::uint64_t> failed_requests{
      0};  // each ends its connection; those flushed after it are not here
  std::atomic<std::uint64_t> unanswered_requests{
      0};  // of these: the device has tried again for as often as it may
  std::atomic<std::uint64_t> unready_receivers{0};  // of these: the peer had no buffer
};

struct RdmaCount {
  std::string_view name;  // "reads"
  std::string_view help;
  std::uint64_t value = 0;
};

inline constexpr std::size_t kRdmaCounts = 8;
std::array<RdmaCount, kRdmaCounts> counts_of(const RdmaCounters& counters);

// "registrations 4 sends 40 ...", in that order.
std::string to_string(const RdmaCounters& counters);

}  // namespace bps
