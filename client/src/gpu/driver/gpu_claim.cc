#include "client/src/gpu/driver/gpu_claim.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "proto/transport/shm/shm_socket.h"

namespace bps {
namespace {

// FNV-1a: a job's name may be longer than that of a socket.
std::uint64_t fingerprint(std::string_view text) {
  std::uint64_t sum = 0xcbf29ce484222325u;
  for (const char byte : text)
    sum = (sum ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return sum;
}

// Of all claims that are listed; the kernel writes @ for what says that there is no file.
std::vector<std::uint32_t> ranks_behind(const std::string& prefix) {
  std::vector<std::uint32_t> ranks;
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    const std::size_t at = line.find("@" + prefix);
    if (at == std::string::npos) continue;
    std::uint32_t rank = 0;
    const char* const end = line.data() + line.size();
    const auto parsed = std::from_chars(line.data() + at + 1 + prefix.size(), end, rank);
    if (parsed.ec == std::errc{} && parsed.ptr == end) ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

GpuClaim::GpuClaim(const CudaDeviceId& gpu, std::string_view job, std::uint32_t rank) {
  std::string prefix = "bps-gpu-";
  for (const std::uint8_t byte : gpu)
    prefix += fmt::format("{:02x}", byte);
  prefix += fmt::format("-{:016x}-", fingerprint(job));
  const auto address = abstract_address(prefix + std::to_string(rank));
  auto made = make_unix_socket();
  if (!address || !made) return;
  // Before others are looked for: of two that begin at once, the later one sees the other.
  if (::bind(made->get(), address->get(), address->length) == 0) socket_ = std::move(*made);
  others_ = ranks_behind(prefix);
  others_.erase(std::remove(others_.begin(), others_.end(), rank), others_.end());
}

}  // namespace bps
