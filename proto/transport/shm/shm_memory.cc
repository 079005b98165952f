#include "proto/transport/shm/shm_memory.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "proto/base/config/units.h"
#include "proto/base/memory/address_space.h"
#include "proto/base/memory/memory_bounds.h"
#include "proto/base/memory/region.h"
#include "proto/wire/limits.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace bps {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr std::size_t kWorthALook = 1024 * 1024;
constexpr std::uint64_t kBlockBytes = 512;  // unit of st_blocks

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Error no_memory(std::size_t bytes, const std::string& why) {
  return make_error(ErrorCode::out_of_memory,
                    fmt::format("the system gives no {} of shared memory: {}", rounded(ByteSize{bytes}), why),
                    "use less, or raise the memory limit of this process, container or host");
}

Error refused(std::size_t bytes, int error) {
  if (error == ENOMEM || error == ENOSPC || error == EFBIG) return no_memory(bytes, std::strerror(error));
  return os_error("cannot make shared memory", error, "bps needs Linux 5.1 or newer for it");
}

// Beyond this limit the kernel does not only refuse, it sends a signal that ends the process.
Status check_file_limit(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  if (bytes <= limit.rlim_cur) return {};
  return no_memory(bytes, fmt::format("files may have {} (`ulimit -f`)", rounded(ByteSize{limit.rlim_cur})));
}

// All pages, now: later it would be a signal, not an error. The kernel would rather end processes than refuse
// pages of a file, hence the look at what there is.
Status fill_with_pages(int fd, const ShmMapping& mapping) {
  const std::size_t bytes = mapping.bytes().size();
  if (bytes >= kWorthALook) {
    const std::uint64_t headroom = page_headroom().bytes;
    if (bytes > headroom) return no_memory(bytes, fmt::format("{} are left", rounded(ByteSize{headroom})));
  }
  while (::madvise(mapping.bytes().data(), bytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR) continue;
    if (errno != EINVAL) return refused(bytes, errno == EFAULT ? ENOMEM : errno);
    // Before Linux 5.14.
    while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
      if (errno != EINTR) return refused(bytes, errno);
    }
    break;
  }
  return {};
}

Error not_acceptable(const std::string& why) {
  return make_error(ErrorCode::protocol, "a descriptor from the peer is no sealed shared memory: " + why);
}

}  // namespace

ShmMapping::~ShmMapping() {
  if (bytes_.data() != nullptr) ::munmap(bytes_.data(), bytes_.size());
}

// Aligned to a huge page if it is at least as large as one: the kernel does not do that by itself for files.
Result<ShmMapping> ShmMapping::map(int fd, std::size_t bytes, bool writable) {
  const std::size_t length = round_up(bytes, kPageBytes);
  const std::size_t alignment = length >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  const std::size_t reserved = alignment > kPageBytes ? length + alignment : length;
  void* const space =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return cannot_map("cannot map shared memory", reserved, errno);
  auto* const start = static_cast<std::byte*>(space);
  const auto address = reinterpret_cast<std::uintptr_t>(start);
  const std::size_t head = round_up(address, alignment) - address;
  if (head > 0) ::munmap(start, head);
  if (reserved > head + length) ::munmap(start + head + length, reserved - head - length);
  void* const mapped = ::mmap(start + head, length, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                              MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(start + head, length);
    return cannot_map("cannot map shared memory", length, error);
  }
  if (length >= kHugePageBytes) ::madvise(mapped, length, MADV_HUGEPAGE);  // a wish; refusal is fine
  return ShmMapping(std::span(static_cast<std::byte*>(mapped), length));
}

Result<ShmMemory> make_shm_memory(std::size_t bytes) {
  if (bytes == 0 || bytes > kMaxShmRegionBytes) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("shared memory of {} bytes: 1 to {} can be had", bytes, kMaxShmRegionBytes));
  }
  const std::size_t length = round_up(bytes, kPageBytes);
  if (Status status = check_file_limit(length); !status.ok()) return std::move(status).error();
  ShmMemory memory;
  memory.fd = UniqueFd(::memfd_create("bps", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (!memory.fd && errno == EINVAL) {  // before Linux 6.3
    memory.fd = UniqueFd(::memfd_create("bps", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  }
  if (!memory.fd) {
    const int error = errno;
    if (error == ENOMEM) return no_memory(bytes, std::strerror(error));
    return os_error("cannot make shared memory: memfd_create", error);
  }
  const int fd = memory.fd.get();
  while (::ftruncate(fd, static_cast<off_t>(length)) != 0) {
    if (errno != EINTR) return refused(bytes, errno);
  }
  auto mapping = ShmMapping::map(fd, length, /*writable=*/true);
  if (!mapping) return std::move(mapping).error();
  memory.mapping = std::move(mapping).value();
  if (Status status = fill_with_pages(fd, memory.mapping); !status.ok()) return std::move(status).error();
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return refused(bytes, errno);
  return memory;
}

Result<ShmMapping> map_peer_memory(int fd, std::uint64_t bytes) {
  if (bytes == 0 || bytes > kMaxShmRegionBytes || bytes % kPageBytes != 0) {
    return make_error(
        ErrorCode::protocol,
        fmt::format("a region of shared memory has {} bytes: whole pages, at most {}, are allowed", bytes,
                    kMaxShmRegionBytes));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return not_acceptable("it has no seals");
  if ((seals & kSeals) != kSeals) {
    return not_acceptable(fmt::format("its seals are {:#x}, {:#x} are needed", seals, kSeals));
  }
  struct stat status {};
  if (::fstat(fd, &status) != 0) return os_error("fstat of a peer's shared memory", errno);
  if (static_cast<std::uint64_t>(status.st_size) < bytes) {
    return not_acceptable(fmt::format("it has {} bytes, {} were announced", status.st_size, bytes));
  }
  if (static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes <
      static_cast<std::uint64_t>(status.st_size)) {
    return not_acceptable(fmt::format("of its {} bytes only {} are allocated", status.st_size,
                                      static_cast<std::uint64_t>(status.st_blocks) * kBlockBytes));
  }
  return ShmMapping::map(fd, static_cast<std::size_t>(bytes), /*writable=*/false);
}

}  // namespace bps
