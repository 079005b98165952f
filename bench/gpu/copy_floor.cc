#include "bench/gpu/copy_floor.h"

#include <algorithm>
#include <cstring>

#include "bench/engines/values.h"

namespace bps::bench {

Result<CopyFloor> CopyFloor::make(const Gpu& gpu, std::size_t bytes, Now now) {
  CopyFloor floor;
  floor.now_ = std::move(now);
  for (Direction* direction : {&floor.down_, &floor.up_}) {
    auto device = GpuMemory::allocate(gpu, bytes);
    if (!device) return std::move(device).error();
    auto host = PinnedBuffer::allocate(gpu, bytes);
    if (!host) return std::move(host).error();
    auto stream = GpuStream::make(gpu, floor.now_);
    if (!stream) return std::move(stream).error();
    *direction = {std::move(*device), std::move(*host), std::move(*stream)};
  }
  // What goes down is there once for all; what goes up lies in the host's memory.
  fill_raw(floor.up_.host.span());
  Status status = floor.up_.stream.copy_to_device(floor.down_.device.span(), floor.up_.host.span());
  if (status.ok()) status = floor.up_.stream.wait();
  if (!status) return std::move(status).error();
  return floor;
}

Status CopyFloor::prepare() {
  std::memset(down_.host.data(), 0, down_.host.span().size());
  if (Status status = up_.stream.copy_to_device(up_.device.span(), down_.host.span()); !status) return status;
  return up_.stream.wait();
}

Status CopyFloor::copy_down(std::size_t offset, std::size_t bytes) {
  return down_.stream.copy_to_host(down_.host.span().subspan(offset, bytes),
                                   down_.device.span().subspan(offset, bytes));
}

Status CopyFloor::copy_up(std::size_t offset, std::size_t bytes) {
  return up_.stream.copy_to_device(up_.device.span().subspan(offset, bytes),
                                   up_.host.span().subspan(offset, bytes));
}

Result<double> CopyFloor::run(CopyWay way, std::size_t piece_bytes) {
  const std::size_t all = down_.device.size();
  const TimePoint begin = now_();
  Status status;
  for (std::size_t offset = 0; offset < all && status.ok(); offset += piece_bytes) {
    const std::size_t bytes = std::min(piece_bytes, all - offset);
    if (way != CopyWay::to_device) status = copy_down(offset, bytes);
    if (way != CopyWay::to_host && status.ok()) status = copy_up(offset, bytes);
  }
  if (status.ok()) status = down_.stream.wait();
  if (status.ok()) status = up_.stream.wait();
  if (!status) return std::move(status).error();
  return std::chrono::duration<double>(now_() - begin).count();
}

Result<std::string> CopyFloor::check(CopyWay way) {
  std::string wrong;
  if (way != CopyWay::to_device) wrong = check_raw(down_.host.span());
  if (!wrong.empty() || way == CopyWay::to_host) return wrong;
  Status status = up_.stream.copy_to_host(down_.host.span(), up_.device.span());
  if (status.ok()) status = up_.stream.wait();
  if (!status) return std::move(status).error();
  return check_raw(down_.host.span());
}

}  // namespace bps::bench
