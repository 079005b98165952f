#include "proto/transport/rdma/device/verbs.h"

#include <fmt/core.h>

#include <array>

#include "proto/base/config/units.h"

namespace bps {
namespace {

constexpr std::array<std::string_view, kCompletionStatusCount> kStatusTexts = {
    "success",
    "a message is longer than the buffer that was posted for it (local length error)",
    "the queue pair does not allow this (local queue pair operation error)",
    "end-to-end context error",
    "local memory is not registered for this (local protection error)",
    "dropped, because the connection had failed before (flushed)",
    "memory window bind error",
    "the peer's answer makes no sense (bad response)",
    "local memory is not registered for this (local access error)",
    "the peer finds the request invalid (remote invalid request)",
    "the peer does not let its memory be read there (remote access error)",
    "the peer cannot do what it was asked (remote operation error)",
    "the peer does not answer (transport retries exceeded)",
    "the peer has no buffer for what is sent (receiver-not-ready retries exceeded)",
    "local reliable datagram violation",
    "remote invalid reliable datagram request",
    "aborted by the peer's device (remote aborted)",
    "invalid end-to-end context number",
    "invalid end-to-end context state",
    "the device has failed (fatal error)",
    "the device gives no answer in time (response timeout)",
    "general error of the device",
    "tag matching error",
};

}  // namespace

std::string describe_completion(std::uint32_t status) {
  if (status < kStatusTexts.size()) return std::string(kStatusTexts[status]);
  return "completion with status " + std::to_string(status);
}

Error cannot_pin_memory(std::string_view device, std::size_t bytes, std::string_view why,
                        std::optional<std::uint64_t> limit) {
  // Short: a peer is told it within a rejection.
  return make_error(
      ErrorCode::out_of_memory,
      fmt::format("cannot pin {} for RDMA device {} ({}), limit of locked memory: {}",
                  rounded(ByteSize{bytes}), device, why, limit ? rounded(ByteSize{*limit}) : "none"),
      limit ? "raise it: `ulimit -l unlimited`, which root allows by `* - memlock unlimited` in "
              "/etc/security/limits.conf; LimitMEMLOCK=infinity in a systemd unit; --ulimit memlock=-1 for a "
              "container"
            : "the host or its cgroup has no more (memory.max, rdma.max): raise that, or give a server a "
              "smaller "
              "--memory-max");
}

Status check_active(Verbs& verbs) {
  const auto devices = verbs.devices();
  if (!devices) return devices.error();
  std::string names;
  for (VerbsDevice* const device : *devices) {
    if (device->is_active()) return {};
    names += (names.empty() ? "" : ", ") + device->name();
  }
  if (names.empty()) return make_error(ErrorCode::unreachable, "there is no RDMA device any more");
  return make_error(ErrorCode::unreachable, "no port of RDMA device " + names + " has a link",
                    "`bpsctl doctor --rdma` shows their state");
}

}  // namespace bps
