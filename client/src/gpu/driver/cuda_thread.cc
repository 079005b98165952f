#include "client/src/gpu/driver/cuda_thread.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

namespace bps {

Result<std::unique_ptr<CudaThread>> CudaThread::start() {
  auto thread = LoopThread::start("bps-cuda");
  if (!thread) return thread.error();
  return std::make_unique<CudaThread>(std::move(thread).value());
}

std::shared_ptr<CudaLease> CudaThread::lease() {
  held_->update([](std::size_t& count) { ++count; });
  const std::shared_ptr<void> held(
      nullptr, [monitor = held_](void*) { monitor->update([](std::size_t& count) { --count; }); });
  auto lease = std::make_shared<CudaLease>(held);
  leases_.push_back(lease);
  return lease;
}

bool CudaThread::is_over(TimePoint deadline) {
  if (!held_->wait_until(deadline, [](std::size_t count) { return count == 0; })) return false;
  // What has been posted, too, or joining it would be to wait for that.
  const auto reached = std::make_shared<Completion<bool>>();
  loop_->post([reached] { reached->set(true); });
  return reached->wait_until(deadline);
}

Status CudaThread::stop(Duration patience) {
  if (std::exchange(is_stopped_, true)) return {};
  if (!is_over(loop_->now() + patience)) return leave_behind(patience);
  thread_->stop();
  return {};
}

// Who answers is in no call that does not return, whatever it is in just now.
std::string CudaThread::what_remains() {
  const auto reached = std::make_shared<Completion<bool>>();
  loop_->post([reached] { reached->set(true); });
  if (reached->wait_until(loop_->now() + kAnswer)) return "its work does not end";
  for (const auto& weak : leases_) {
    const auto lease = weak.lock();
    const char* const call = lease != nullptr ? lease->call().name : nullptr;
    if (call != nullptr) return fmt::format("{} does not return", call);
  }
  return "its thread does not answer";
}

Error CudaThread::leave_behind(Duration patience) {
  const std::string what = what_remains();
  // It knows of itself now.
  LoopThread* const itself = thread_.release();
  loop_->post([itself] { (void)itself; });
  return make_error(
      ErrorCode::deadline,
      fmt::format(
          "{} within {:.3g} s, and the thread bps-cuda stays with what it holds until the process ends", what,
          std::chrono::duration<double>(patience).count()));
}

}  // namespace bps
