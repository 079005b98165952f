#include "proto/transport/rdma/fake/fake_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "proto/base/assert.h"

namespace bps {
namespace {

constexpr std::uint32_t kLocalLength = 1;
constexpr std::uint32_t kLocalProtection = 4;
constexpr std::uint32_t kRemoteInvalid = 9;
constexpr std::uint32_t kRemoteAccess = 10;

Status refuse(const char* why) { return make_error(ErrorCode::internal, why); }

}  // namespace

FakeSignal::FakeSignal() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { BPS_ASSERT(fd_); }

void FakeSignal::raise() {
  const std::uint64_t one = 1;
  BPS_ASSERT(::write(fd_.get(), &one, sizeof one) == sizeof one);
}

void FakeSignal::quiet() {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t ignored = ::read(fd_.get(), &count, sizeof count);
}

// ---- life ----

FakeLink::FakeLink(std::shared_ptr<FakeFabric> fabric)
    : fabric_(std::move(fabric)), device_(fabric_->device()) {
  fabric_->links_.push_back(this);
}

FakeLink::~FakeLink() {
  std::erase(fabric_->links_, this);
  if (has_queues_) --fabric_->queue_pairs_;
  if (peer_ != nullptr) {
    FakeLink* const peer = std::exchange(peer_, nullptr);
    peer->peer_ = nullptr;
    if (!fabric_->silent_) {
      if (peer->connected_ || connected_) {
        peer->break_off(VerbsNews::Kind::disconnected);
      } else {
        peer->tell(VerbsNews::Kind::refused);
      }
    }
  } else if (const auto listener = fabric_->listeners_.find(port_); listener != fabric_->listeners_.end()) {
    listener->second->forget(*this);
  }
  fabric_->close_if_unused(device_);
}

void FakeLink::tell(VerbsNews::Kind kind, std::string why, std::span<const std::byte> private_data) {
  news_.push_back({kind, std::move(why), {private_data.begin(), private_data.end()}});
  signal_.raise();
}

std::optional<VerbsNews> FakeLink::next_news() {
  signal_.quiet();
  if (news_.empty()) return std::nullopt;
  VerbsNews news = std::move(news_.front());
  news_.pop_front();
  return news;
}

Status FakeLink::make_queues(const QueueDepths& depths) {
  if (device_.is_lost()) return make_error(ErrorCode::unreachable, "the device is gone");
  BPS_ASSERT(!has_queues_);
  const VerbsLimits& limits = device_.limits();
  if (std::max(depths.requests, depths.receives) > limits.work_requests ||
      depths.requests + depths.receives > limits.completions)
    return refuse("the device has no queues of that length");
  has_queues_ = true;
  depths_ = depths;
  ++fabric_->queue_pairs_;
  return {};
}

Status FakeLink::connect(std::span<const std::byte> private_data) {
  const auto listener = fabric_->listeners_.find(port_);
  if (fabric_->silent_) return {};
  if (listener == fabric_->listeners_.end()) {
    tell(VerbsNews::Kind::refused);
  } else {
    listener->second->request(*this, private_data);
  }
  return {};
}

Status FakeLink::accept(std::span<const std::byte> private_data) {
  if (peer_ == nullptr) return make_error(ErrorCode::peer_lost, "the peer has gone");
  connected_ = peer_->connected_ = true;
  peer_->tell(VerbsNews::Kind::established, {}, private_data);
  tell(VerbsNews::Kind::established);
  return {};
}

void FakeLink::reject(std::span<const std::byte> private_data) {
  if (peer_ == nullptr) return;
  peer_->tell(VerbsNews::Kind::refused, {}, private_data);
  std::exchange(peer_, nullptr)->peer_ = nullptr;
}

Status FakeLink::allow_reads() {
  if (!connected_ || device_.is_lost()) return refuse("there is no connection");
  may_be_read_ = true;
  return {};
}

void FakeLink::break_off(VerbsNews::Kind kind) {
  flush();
  tell(kind, kind == VerbsNews::Kind::removed ? "the RDMA device was removed" : "");
}

void FakeLink::flush() {
  if (std::exchange(broken_, true)) return;
  for (; !pending_.empty(); pending_.pop())
    complete({pending_.front().request.id, 0, kCompletionFlushed}, pending_.front().number);
  for (; !receives_.empty(); receives_.pop())
    complete({receives_.front().id, 0, kCompletionFlushed}, 0);
}

// ---- requests ----

Status FakeLink::post(const WorkRequest& request) {
  if (!has_queues_ || device_.is_lost()) return refuse("there is no queue pair");
  if (posted_ - freed_ >= depths_.requests) return refuse("the queue of requests is full");
  if (request.in_line && request.bytes > inline_bytes()) return refuse("too many bytes in line");
  ++fabric_->requests_;
  Request queued{request, ++posted_, std::exchange(fabric_->next_status_, 0), {}};
  if (request.kind == WorkRequest::Kind::read) {
    std::uint32_t reads = 1;
    for (std::size_t i = 0; i < pending_.size(); ++i)
      reads += pending_[i].request.kind == WorkRequest::Kind::read;
    if (reads > device_.limits().reads_out) return refuse("more READs than the device may have under way");
    if (peer_ != nullptr && reads > peer_->device_.limits().reads_in) queued.status = kRemoteInvalid;
    fabric_->most_reads_ = std::max(fabric_->most_reads_, reads);
  }
  if (request.in_line) std::copy_n(request.local, request.bytes, queued.in_line.begin());
  if (broken_) {
    complete({request.id, 0, kCompletionFlushed}, queued.number);
    return {};
  }
  pending_.push(queued);
  if (fabric_->silent_) return {};
  if (fabric_->options_.shuffle) {
    wake();
  } else {
    execute_what_may();
  }
  return {};
}

void FakeLink::execute_what_may() {
  const auto is_held = [this] {
    return fabric_->held_polls_ > 0 && pending_.front().request.kind == WorkRequest::Kind::read;
  };
  while (has_pending() && !is_held())
    execute_next();
  // SENDs do not wait for a READ before them; their completions do.
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Request& request = pending_[i];
    if (request.request.kind != WorkRequest::Kind::send || request.is_done) continue;
    request.is_done = true;
    if (request.status == 0) request.status = carry_out(request);
  }
}

void FakeLink::execute_next() {
  const Request request = pending_.front();
  pending_.pop();
  const std::uint32_t status = request.status != 0 || request.is_done ? request.status : carry_out(request);
  if (status != 0) return fail(request, status);
  if (request.request.signalled) complete({request.request.id, 0, 0}, request.number);
}

void FakeLink::fail(const Request& request, std::uint32_t status) {
  complete({request.request.id, 0, status}, request.number);
  flush();
}

std::uint32_t FakeLink::carry_out(const Request& request) {
  const WorkRequest& work = request.request;
  if (peer_ == nullptr || !connected_) return kCompletionFlushed;
  const std::byte* from = request.in_line.data();
  if (!work.in_line) {
    from = fabric_->find(work.local_key, reinterpret_cast<std::uintptr_t>(work.local), work.bytes, false);
    if (from == nullptr) return kLocalProtection;
  }
  if (work.kind == WorkRequest::Kind::read) {
    if (!peer_->may_be_read_) return kRemoteInvalid;
    const std::byte* const remote = fabric_->find(work.remote_key, work.remote, work.bytes, true);
    if (remote == nullptr) return kRemoteAccess;
    std::memcpy(work.local, remote, work.bytes);
    return 0;
  }
  if (peer_->receives_.empty()) {
    ++fabric_->receivers_not_ready_;
    return kCompletionReceiverNotReady;
  }
  const Receive receive = peer_->receives_.front();
  peer_->receives_.pop();
  if (receive.memory.size() < work.bytes) {
    peer_->complete({receive.id, 0, kLocalLength}, 0);
    peer_->flush();
    return kRemoteInvalid;
  }
  std::memcpy(receive.memory.data(), from, work.bytes);
  peer_->complete({receive.id, work.bytes, 0}, 0);
  return 0;
}

Status FakeLink::post_receive(std::uint64_t id, std::span<std::byte> memory, std::uint32_t local_key) {
  if (!has_queues_ || device_.is_lost()) return refuse("there is no queue pair");
  if (receives_.size() >= depths_.receives) return refuse("the queue of receives is full");
  if (fabric_->find(local_key, reinterpret_cast<std::uintptr_t>(memory.data()), memory.size(), false) ==
      nullptr)
    return refuse("a receive buffer is not registered");
  if (broken_) {
    complete({id, 0, kCompletionFlushed}, 0);
  } else {
    receives_.push({id, memory});
  }
  return {};
}

void FakeLink::complete(const WorkCompletion& completion, std::uint64_t number) {
  completions_.push({completion, number});
  if (std::exchange(armed_, false)) signal_.raise();
}

std::size_t FakeLink::poll(std::span<WorkCompletion> completions) {
  fabric_->step();
  if (fabric_->held_polls_ > 0 && has_pending() && --fabric_->held_polls_ == 0) execute_what_may();
  std::size_t count = 0;
  for (; count < completions.size() && !completions_.empty(); ++count) {
    completions[count] = completions_.front().completion;
    freed_ = std::max(freed_, completions_.front().number);
    completions_.pop();
  }
  return count;
}

Status FakeLink::arm() {
  armed_ = true;
  return {};
}

// ---- the listener ----

FakeListener::FakeListener(std::shared_ptr<FakeFabric> fabric, SocketAddress address, std::uint16_t port)
    : fabric_(std::move(fabric)), address_(address), port_(port) {
  fabric_->listeners_[port_] = this;
}

FakeListener::~FakeListener() {
  if (!removed_) fabric_->listeners_.erase(port_);
  for (const Waiting& waiting : waiting_)
    waiting.from->tell(VerbsNews::Kind::refused);
}

void FakeListener::remove() {
  removed_ = true;
  waiting_.clear();
  signal_.raise();
}

void FakeListener::request(FakeLink& from, std::span<const std::byte> private_data) {
  waiting_.push_back({&from, {private_data.begin(), private_data.end()}});
  signal_.raise();
}

void FakeListener::forget(const FakeLink& from) {
  std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.from == &from; });
}

Result<std::optional<VerbsRequest>> FakeListener::next_request() {
  signal_.quiet();
  if (waiting_.empty()) return std::optional<VerbsRequest>();
  Waiting waiting = std::move(waiting_.front());
  waiting_.pop_front();
  if (!waiting_.empty()) signal_.raise();
  auto link = std::make_unique<FakeLink>(fabric_);
  link->peer_ = waiting.from;
  waiting.from->peer_ = link.get();
  return std::optional(VerbsRequest{std::move(link), std::move(waiting.private_data), address_});
}

}  // namespace bps
