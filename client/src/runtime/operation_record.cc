#include "client/src/runtime/operation_record.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "client/src/runtime/inside_callback.h"

namespace bps {

namespace {

// An eventfd that counts less than its maximum takes a write without waiting.
void ring(int fd) {
  const std::uint64_t one = 1;
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

}  // namespace

OperationRecord::~OperationRecord() { close_fd(); }

OperationRecord::Finished OperationRecord::finish(const Result<std::uint32_t>& weight,
                                                  std::shared_ptr<const AnswerView> view) {
  const Error error = weight.ok() ? Error{} : weight.error();
  std::shared_ptr<void> queued;
  return state_.update_quietly([&](State& state) -> Finished {
    if (state.done) return {};
    state.done = true;
    done_.store(true, std::memory_order_release);
    if (!state.abandoned) state.view = std::move(view);
    state.error = error;
    state.weight = weight.ok() ? *weight : 0;
    queued = std::exchange(state.queued, nullptr);
    // Under the lock, so that callbacks run in the order in which they were given.
    for (Callback& callback : std::exchange(state.callbacks, {})) {
      if (!post(state, std::move(callback))) ++state.callbacks_run;
    }
    if (state.fd >= 0 && is_over(state)) ring(state.fd);
    return {.has_reader = !state.abandoned, .is_awaited = state.awaited};
  });
}

// False: the client is closed, and it does not run. What is posted keeps this alive.
bool OperationRecord::post(State& state, Callback callback) {
  return callbacks_->post([self = shared_from_this(), callback = std::move(callback), error = state.error] {
    callback(error);
    self->on_callback_run();
  });
}

void OperationRecord::on_callback_run() {
  const bool is_awaited = state_.update_quietly([](State& state) {
    ++state.callbacks_run;
    if (state.fd >= 0 && is_over(state)) ring(state.fd);
    return state.awaited;
  });
  if (is_awaited) wake();
}

bool OperationRecord::over() const {
  if (!done() || !has_callbacks_.load(std::memory_order_acquire) || InsideCallback::here()) return done();
  return state_.read(is_over);
}

bool OperationRecord::wait_until(TimePoint deadline) {
  return over() || state_.wait_until(deadline, [](State& state) {
    state.awaited = true;
    return is_over(state);
  });
}

bool OperationRecord::wait_until_queued(std::size_t bytes, TimePoint deadline) {
  return done() || state_.wait_until(deadline, [&](State& state) {
    state.awaited = true;
    return state.done || state.queued_bytes >= bytes;
  });
}

std::shared_ptr<void> OperationRecord::queued() const {
  return state_.read([](const State& state) { return state.queued; });
}

void OperationRecord::on_queued(std::size_t bytes, std::shared_ptr<void> event) {
  const bool is_awaited = state_.update_quietly([&](State& state) {
    if (state.done) return false;
    state.queued_bytes += bytes;
    std::swap(state.queued, event);
    return state.awaited;
  });
  if (is_awaited) wake();
}

Status OperationRecord::result() const {
  return state_.read(
      [](const State& state) { return state.error.code == ErrorCode::ok ? Status() : Status(state.error); });
}

std::uint32_t OperationRecord::weight() const {
  return state_.read([](const State& state) { return state.weight; });
}

std::shared_ptr<const AnswerView> OperationRecord::view() const {
  return state_.read([](const State& state) { return state.view; });
}

std::shared_ptr<const AnswerView> OperationRecord::take_view() {
  return state_.update([](State& state) { return std::exchange(state.view, nullptr); });
}

std::shared_ptr<const AnswerView> OperationRecord::abandon() {
  return state_.update([](State& state) {
    state.abandoned = true;
    return std::exchange(state.view, nullptr);
  });
}

Status OperationRecord::then(Callback callback) {
  if (Status status = callbacks_->start(); !status.ok()) return status;
  return state_.update([&](State& state) -> Status {
    if (!state.done) {
      state.callbacks.push_back(std::move(callback));
    } else if (!post(state, std::move(callback))) {
      return make_error(ErrorCode::closed, "the client is closed");
    }
    ++state.callbacks_given;
    has_callbacks_.store(true, std::memory_order_release);
    return {};
  });
}

Result<int> OperationRecord::fd() {
  return state_.update([](State& state) -> Result<int> {
    if (state.fd >= 0) return state.fd;
    state.fd = ::eventfd(is_over(state) ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (state.fd < 0) return os_error("eventfd", errno, "raise the limit of open files (ulimit -n)");
    return state.fd;
  });
}

void OperationRecord::close_fd() {
  state_.update([](State& state) {
    if (state.fd >= 0) ::close(state.fd);
    state.fd = -1;
  });
}

}  // namespace bps
