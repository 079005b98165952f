#include "client/src/runtime/callback_thread.h"

#include <utility>

#include "client/src/runtime/inside_callback.h"

namespace bps {

Status CallbackThread::start() {
  return state_.update([](State& state) -> Status {
    if (state.stopped) return make_error(ErrorCode::closed, "the client is closed");
    if (state.thread != nullptr) return {};
    auto thread = LoopThread::start("bps-callbacks");
    if (!thread) return std::move(thread).error();
    state.thread = std::move(thread).value();
    return {};
  });
}

bool CallbackThread::post(Task task) {
  return state_.update([&task](State& state) {
    if (state.stopped || state.thread == nullptr) return false;
    state.thread->loop().post([task = std::move(task)] {
      const InsideCallback inside;
      task();
    });
    return true;
  });
}

void CallbackThread::stop() {
  LoopThread* thread = state_.update([](State& state) {
    state.stopped = true;
    return state.thread.get();
  });
  if (thread != nullptr) thread->stop();
}

}  // namespace bps
