// One operation as the program sees it: done or not, its result, who waits for it.
//
// Owner: shared by the program's handle and the operation on the loop, so either may end first. Any thread.
// finish() happens exactly once; then every callback runs exactly once on the callback thread. wake() for
// waiting threads is apart, because each of them costs a system call and a processor. An answer that is read
// in place is held here until somebody takes it to give it back. Of an output on a GPU it is known here how
// much of it has been queued there.
//
// A callback may use what belongs to the thread that waits, for example its locals. So the operation is over
// for the program only when it is done and the callbacks that it was given have run: then a wait returns, a
// poll is true, and the file descriptor is readable. A callback itself need not wait for the callbacks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/src/api/answer_view.h"
#include "client/src/group/local_group.h"
#include "client/src/runtime/callback_thread.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"

namespace bps {

class OperationRecord final : public OutputWatch, public std::enable_shared_from_this<OperationRecord> {
 public:
  // Gets the error, or ok.
  using Callback = std::function<void(const Error&)>;

  explicit OperationRecord(std::shared_ptr<CallbackThread> callbacks) : callbacks_(std::move(callbacks)) {}
  ~OperationRecord() override;
  OperationRecord(const OperationRecord&) = delete;
  OperationRecord& operator=(const OperationRecord&) = delete;

  struct Finished {
    bool has_reader = false;  // false: `view` was not taken, because nobody is there to read it
    bool is_awaited = false;  // a thread sleeps until wake()
  };
  // The caller keeps the record alive until it returns, and until wake() where that is needed.
  Finished finish(const Result<std::uint32_t>& weight, std::shared_ptr<const AnswerView> view = nullptr);
  void wake() { state_.wake_all(); }

  // It has a result.
  bool done() const { return done_.load(std::memory_order_acquire); }
  // It is done, and the callbacks that it has been given have run. Inside a callback: it is done.
  bool over() const;
  // True: over.
  bool wait_until(TimePoint deadline);
  // True: done, or so many bytes of its output have been queued.
  bool wait_until_queued(std::size_t bytes, TimePoint deadline);
  // The last of what has been queued. Null: nothing has been, or it is done.
  std::shared_ptr<void> queued() const;
  void on_queued(std::size_t bytes, std::shared_ptr<void> event) override;
  // When done.
  Status result() const;
  std::uint32_t weight() const;

  // Null before the end, after an error, and when it has been taken.
  std::shared_ptr<const AnswerView> view() const;
  std::shared_ptr<const AnswerView> take_view();
  // The program's handle is gone: as take_view(), and no view comes any more.
  std::shared_ptr<const AnswerView> abandon();

  // `closed` when the client is: the callback will not run.
  Status then(Callback callback);
  // An eventfd, readable once the operation has been over. The same each time.
  Result<int> fd();
  void close_fd();

 private:
  struct State {
    bool done = false;
    bool awaited = false;
    Error error;
    std::uint32_t weight = 0;
    std::vector<Callback> callbacks;
    // They run in the order in which they were given. A closed client runs none.
    std::uint64_t callbacks_given = 0;
    std::uint64_t callbacks_run = 0;
    std::size_t queued_bytes = 0;
    std::shared_ptr<void> queued;
    std::shared_ptr<const AnswerView> view;
    bool abandoned = false;
    int fd = -1;
  };

  static bool is_over(const State& state) {
    return state.done && state.callbacks_run == state.callbacks_given;
  }
  bool post(State& state, Callback callback);
  void on_callback_run();

  const std::shared_ptr<CallbackThread> callbacks_;
  // As in the state, for who need not wait.
  std::atomic<bool> done_{false};
  std::atomic<bool> has_callbacks_{false};
  Monitor<State> state_;
};

}  // namespace bps
