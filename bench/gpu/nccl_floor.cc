#include "bench/gpu/nccl_floor.h"

#include <fmt/format.h>

#include "bench/engines/values.h"

namespace bps::bench {
namespace {

constexpr Duration kNcclPatience = std::chrono::seconds(30);

}  // namespace

Result<std::unique_ptr<NcclFloor>> NcclFloor::make(std::shared_ptr<NcclApi> nccl,
                                                   const std::vector<Gpu>& gpus, std::size_t bytes, Now now) {
  auto floor = std::make_unique<NcclFloor>(std::move(nccl), std::move(now));
  if (Status status = floor->join(gpus, bytes); !status) {
    floor->is_broken_ = true;
    return std::move(status).error();
  }
  return floor;
}

Status NcclFloor::join(const std::vector<Gpu>& gpus, std::size_t bytes) {
  NcclId id;
  if (const NcclCode code = nccl_->unique_id(id); code != NcclCode::success)
    return make_error(ErrorCode::os,
                      fmt::format("{}: {}", name_of(NcclCall::unique_id), nccl_->describe(code, nullptr)));
  auto host = PinnedBuffer::allocate(gpus.front(), bytes);
  if (!host) return std::move(host).error();
  host_ = std::move(*host);
  for (const Gpu& gpu : gpus) {
    auto stream = GpuStream::make(gpu, now_);
    if (!stream) return std::move(stream).error();
    auto in = GpuMemory::allocate(gpu, bytes);
    if (!in) return std::move(in).error();
    auto out = GpuMemory::allocate(gpu, bytes);
    if (!out) return std::move(out).error();
    members_.push_back(
        {gpu, std::make_unique<NcclLink>(nccl_, *gpu), std::move(*in), std::move(*out), std::move(*stream)});
  }
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const CudaDevice::Current current(*members_[rank].gpu);
    if (!current.status().ok()) return current.status();
    Status status = members_[rank].link->init(static_cast<std::uint32_t>(members_.size()), id,
                                              static_cast<std::uint32_t>(rank));
    if (!status) return status;
  }
  return settle();
}

Status NcclFloor::settle() {
  const TimePoint deadline = now_() + kNcclPatience;
  for (Member& member : members_) {
    const CudaDevice::Current current(*member.gpu);
    if (!current.status().ok()) return current.status();
    while (true) {
      const auto ready = member.link->poll();
      if (!ready) return ready.error();
      if (*ready) break;
      if (now_() > deadline)
        return make_error(
            ErrorCode::deadline,
            fmt::format("NCCL on {} has not answered after {} s", member.gpu->name(),
                        std::chrono::duration_cast<std::chrono::seconds>(kNcclPatience).count()),
            "NCCL_DEBUG=INFO says what it waits for");
    }
  }
  return {};
}

Status NcclFloor::begin(NcclCall call, std::size_t bytes) {
  const std::size_t slice = bytes / members_.size();
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = members_[rank];
    const CudaDevice::Current current(*member.gpu);
    if (!current.status().ok()) return current.status();
    std::byte* const own = member.out.data() + rank * slice;
    NcclStep step;
    step.call = call;
    step.in = call == NcclCall::reduce_scatter ? member.in.data() : own;
    step.out = call == NcclCall::reduce_scatter ? own : member.out.data();
    step.count = slice / sizeof(float);
    if (Status status = member.link->begin({&step, 1}, member.stream.get()); !status) return status;
  }
  return settle();
}

Status NcclFloor::wait() {
  for (Member& member : members_) {
    if (Status status = member.stream.wait(); !status) return status;
  }
  return {};
}

Result<double> NcclFloor::timed(NcclCall call, std::size_t bytes) {
  const TimePoint start = now_();
  Status status = begin(call, bytes);
  if (status.ok()) status = wait();
  if (!status) return std::move(status).error();
  return std::chrono::duration<double>(now_() - start).count();
}

Result<NcclFloor::Times> NcclFloor::run(std::size_t bytes) {
  summed_bytes_ = whole(bytes);
  Times times;
  is_broken_ = true;  // until it has ended well
  for (const auto& [call, seconds] : {std::pair{NcclCall::reduce_scatter, &times.reduce_scatter},
                                      std::pair{NcclCall::all_gather, &times.all_gather}}) {
    const auto took = timed(call, summed_bytes_);
    if (!took) return took.error();
    *seconds = *took;
  }
  // Once more, one behind the other.
  const TimePoint start = now_();
  for (const NcclCall call : {NcclCall::reduce_scatter, NcclCall::all_gather}) {
    if (Status status = begin(call, summed_bytes_); !status) return std::move(status).error();
  }
  if (Status status = wait(); !status) return std::move(status).error();
  times.both = std::chrono::duration<double>(now_() - start).count();
  is_broken_ = false;
  return times;
}

Status NcclFloor::prepare(std::uint64_t round) {
  const Pattern pattern{DType::f32, static_cast<std::uint32_t>(members_.size())};
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = members_[rank];
    // Another round's, so that a result that nobody has written is seen.
    fill_contribution(pattern, rank, round + 1, host_.span());
    Status status = member.stream.copy_to_device(member.out.span(), host_.span());
    if (status.ok()) status = member.stream.wait();
    if (!status) return status;
    fill_contribution(pattern, rank, round, host_.span());
    status = member.stream.copy_to_device(member.in.span(), host_.span());
    if (status.ok()) status = member.stream.wait();
    if (!status) return status;
  }
  return {};
}

Result<std::string> NcclFloor::check(std::uint64_t round) {
  const Pattern pattern{DType::f32, static_cast<std::uint32_t>(members_.size())};
  for (Member& member : members_) {
    const auto here = host_.span().first(summed_bytes_);
    Status status = member.stream.copy_to_host(here, member.out.span().first(summed_bytes_));
    if (status.ok()) status = member.stream.wait();
    if (!status) return std::move(status).error();
    if (std::string wrong = check_sum(pattern, round, here); !wrong.empty())
      return fmt::format("{}: {}", member.gpu->name(), wrong);
  }
  return std::string();
}

// A communicator ends in order when all members say so, and else at once.
void NcclFloor::leave() {
  bool all_end = !is_broken_;
  for (Member& member : members_) {
    const CudaDevice::Current current(*member.gpu);
    all_end = all_end && current.status().ok() && member.link->finalize().ok();
  }
  all_end = all_end && settle().ok();
  for (Member& member : members_) {
    const CudaDevice::Current current(*member.gpu);
    if (all_end) {
      member.link->destroy();
    } else {
      member.link->abort();
    }
  }
}

NcclFloor::~NcclFloor() { leave(); }

}  // namespace bps::bench
