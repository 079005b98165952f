#include "proto/base/loop/asio_loop.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_handover.h"
#include "proto/base/loop/timer_queue.h"

namespace bps {
namespace {

namespace asio = boost::asio;

// A turn's bound on hooks: while hundreds of connections have something to send, others must still be read,
// and what comes of that for the same connections leaves with the rest.
constexpr std::size_t kMaxHooksPerTurn = 32;

class LoopMailbox final : public Mailbox {
 public:
  explicit LoopMailbox(int wake_fd) : wake_fd_(wake_fd) {}
  ~LoopMailbox() override { ::close(wake_fd_); }

  void post(Task task) override {
    if (queue_.push(std::move(task)) == MpscQueue<Task>::Pushed::wake) call();
  }

  void close() {
    if (queue_.close()) call();
  }

  // Who sleeps in the loop.
  void wake() {
    const std::uint64_t one = 1;
    while (::write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {}
  }

  void drain_wakes() {
    std::uint64_t count = 0;
    while (::read(wake_fd_, &count, sizeof count) < 0 && errno == EINTR) {}
  }

  MpscQueue<Task>& queue() { return queue_; }
  LoopHandover& handover() { return handover_; }

 private:
  void call() {
    wake();
    handover_.recall();
  }

  const int wake_fd_;
  LoopHandover handover_;
  MpscQueue<Task> queue_;
};

}  // namespace

struct AsioLoop::Impl {
  // Takes `wake_fd` over; `watched_fd` is its duplicate for Asio, which closes it.
  Impl(int wake_fd, int watched_fd, std::shared_ptr<LoopLock> shared_lock)
      : lock(std::move(shared_lock)),
        io(lock != nullptr ? BOOST_ASIO_CONCURRENCY_HINT_SAFE : BOOST_ASIO_CONCURRENCY_HINT_UNSAFE),
        work(asio::make_work_guard(io)),
        mailbox(std::make_shared<LoopMailbox>(wake_fd)),
        wake(io, watched_fd),
        deadline_timer(io) {
    hooks.next_ = hooks.previous_ = &hooks;
    watch_wake();
  }

  void drop_everything() {
    mailbox->close();
    // Tasks may own connections, whose destructors post: destroy until nothing is left.
    std::vector<Task> doomed;
    do {
      doomed.clear();
      mailbox->queue().take(doomed);
      doomed.insert(doomed.end(), std::make_move_iterator(tasks.begin()),
                    std::make_move_iterator(tasks.end()));
      tasks.clear();
    } while (!doomed.empty());
    const TimerId newest = timers.last_id();
    while (timers.take_due(TimePoint::max(), newest)) {}
  }

  void watch_wake() {
    wake.async_wait(asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
      if (error) return;
      mailbox->drain_wakes();
      watch_wake();
    });
  }

  bool has_work() const { return !tasks.empty() || hooks.next_ != &hooks; }

  void run_tasks() {
    remote.clear();
    mailbox->queue().take(remote);
    running.swap(tasks);
    for (Task& task : running)
      std::exchange(task, {})();
    running.clear();
    for (Task& task : remote)
      std::exchange(task, {})();
    remote.clear();
  }

  void run_timers() {
    if (timers.empty()) return;
    const TimePoint now = std::chrono::steady_clock::now();
    const TimerId newest = timers.last_id();
    while (Task task = timers.take_due(now, newest))
      task();
  }

  void add_hook(TurnHook& hook) {
    hook.previous_ = hooks.previous_;
    hook.next_ = &hooks;
    hooks.previous_->next_ = &hook;
    hooks.previous_ = &hook;
  }

  void run_hooks(std::size_t most);

  // Of another thread, which has taken the loop.
  template <class Turns, class IsIdle>
  void run_as_guest(Turns&& turns, IsIdle&& is_idle) {
    const std::thread::id own = thread.exchange(std::this_thread::get_id(), std::memory_order_relaxed);
    mailbox->queue().awake();
    turns();
    const LoopLockScope scope(lock.get());
    thread.store(own, std::memory_order_relaxed);
    mailbox->handover().give_back(
        [&] { return may_lend() && !has_work() && is_idle() && mailbox->queue().prepare_sleep(); });
  }

  bool may_lend() const {
    return is_lent.load(std::memory_order_relaxed) && !(lock != nullptr && lock->is_shared()) &&
           !stopping.load(std::memory_order_acquire);
  }

  // Waits for a socket, a task or a timer, at most until `deadline`, then runs one handler of what is ready
  // of the sockets. If more are, the next turn finds them without asking the kernel. What one read has
  // brought about so leaves before the next, while it is in cache and before its receiver has nothing left to
  // do; and it comes to an end, for without reads nothing new is sent beyond the credit.
  void run_io(TimePoint deadline) {
    const bool sleeps = [&] {
      const LoopLockScope scope(lock.get());
      return !has_work() && may_sleep(deadline) && mailbox->queue().prepare_sleep();
    }();
    // The timer that was armed anew leaves a handler that is none: where deadlines move in every turn they
    // would pile up before what has happened.
    do {
      was_cancelled = false;
      sleeps ? io.run_one() : io.poll_one();
    } while (was_cancelled);
    if (sleeps) mailbox->queue().awake();
  }

  // Arms the timer that ends the sleep. Lazily: most timers are cancelled or moved before they matter.
  bool may_sleep(TimePoint deadline) {
    if (const auto next = timers.next(); next && *next < deadline) deadline = *next;
    if (deadline == TimePoint::max()) return true;
    if (deadline <= std::chrono::steady_clock::now()) return false;
    if (armed_for != deadline) {
      armed_for = deadline;
      deadline_timer.expires_at(deadline);
      deadline_timer.async_wait([this](const boost::system::error_code& error) {
        was_cancelled = static_cast<bool>(error);
        if (!error) armed_for = TimePoint::max();
      });
    }
    return true;
  }

  const std::shared_ptr<LoopLock> lock;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::shared_ptr<LoopMailbox> mailbox;
  asio::posix::stream_descriptor wake;
  asio::steady_timer deadline_timer;
  TimePoint armed_for = TimePoint::max();
  bool was_cancelled = false;  // the handler that has just run, of the timer as it was armed before
  TimerQueue timers;
  std::vector<Task> tasks;  // posted on the loop itself
  std::vector<Task> running;
  std::vector<Task> remote;
  struct HookList final : TurnHook {
    void on_turn_end() override {}
  } hooks, last;  // the list, and in it while hooks run: the end of those that may run
  std::atomic<std::thread::id> thread{};
  std::atomic<bool> is_lent{false};
  std::atomic<bool> stopping{false};
  bool stopped = false;
};

void TurnHook::unlink() {
  if (previous_ == nullptr) return;
  previous_->next_ = next_;
  next_->previous_ = previous_;
  next_ = previous_ = nullptr;
}

void AsioLoop::Impl::run_hooks(std::size_t most) {
  // Of those that are there now: a hook that asks again waits for the next turn.
  add_hook(last);
  for (; most > 0 && hooks.next_ != &last; --most) {
    TurnHook& hook = *hooks.next_;
    hook.unlink();
    hook.on_turn_end();
  }
  last.unlink();
}

Result<std::unique_ptr<AsioLoop>> AsioLoop::create() { return create(nullptr); }

Result<std::unique_ptr<AsioLoop>> AsioLoop::create(std::shared_ptr<LoopLock> lock) {
  const int wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd < 0) return os_error("cannot make an event loop: eventfd", errno, "raise `ulimit -n`");
  const int watched_fd = ::dup(wake_fd);
  if (watched_fd < 0) {
    const int error = errno;
    ::close(wake_fd);
    return os_error("cannot make an event loop: dup", error, "raise `ulimit -n`");
  }
  try {
    return std::unique_ptr<AsioLoop>(
        new AsioLoop(std::make_unique<Impl>(wake_fd, watched_fd, std::move(lock))));
  } catch (const boost::system::system_error& error) {
    return make_error(ErrorCode::os, std::string("cannot make an event loop: ") + error.what(),
                      "raise `ulimit -n`");
  }
}

AsioLoop::AsioLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AsioLoop::AsioLoop() {
  auto made = create();
  BPS_ASSERT(made.ok());
  impl_ = std::move(made.value()->impl_);
}

AsioLoop::~AsioLoop() {
  if (impl_) impl_->drop_everything();
}

void AsioLoop::post(Task task) {
  if (impl_->thread.load(std::memory_order_relaxed) == std::this_thread::get_id() && !impl_->stopped) {
    impl_->tasks.push_back(std::move(task));
  } else {
    impl_->mailbox->post(std::move(task));
  }
}

TimerId AsioLoop::at(TimePoint when, Task task) {
  BPS_ASSERT(in_loop());
  const auto next = impl_->timers.next();
  if (!next || when < *next) wake_if_elsewhere();
  return impl_->timers.add(when, std::move(task));
}

void AsioLoop::cancel(TimerId timer) {
  BPS_ASSERT(in_loop());
  impl_->timers.cancel(timer);
}

bool AsioLoop::in_loop() const {
  const std::thread::id thread = impl_->thread.load(std::memory_order_relaxed);
  if (impl_->lock != nullptr && impl_->lock->is_shared() && thread != std::thread::id{})
    return impl_->lock->is_mine();
  return thread == std::thread::id{} || thread == std::this_thread::get_id();
}

void AsioLoop::run() {
  impl_->thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
  LoopHandover& handover = impl_->mailbox->handover();
  while (!impl_->stopping.load(std::memory_order_acquire)) {
    if (handover.is_wanted()) {
      handover.stand_aside();
    } else {
      run_once(TimePoint::max());
    }
  }
  handover.end();
  // What was posted before stop() runs; what those tasks post does not. stop() may not have come to this yet,
  // and a task that slipped in behind the last look would be neither run nor destroyed.
  impl_->mailbox->close();
  const LoopLockScope lock(impl_->lock.get());
  impl_->run_tasks();
  impl_->run_hooks(SIZE_MAX);
  impl_->stopped = true;
  impl_->thread.store(std::thread::id{}, std::memory_order_relaxed);
}

void AsioLoop::run_once(TimePoint deadline) {
  impl_->run_io(deadline);
  const LoopLockScope lock(impl_->lock.get());
  impl_->run_tasks();
  impl_->run_timers();
  impl_->run_hooks(kMaxHooksPerTurn);
}

void AsioLoop::run_until(TimePoint deadline, const std::function<bool()>& done,
                         const std::function<bool()>& is_idle) noexcept {
  if (!impl_->may_lend()) return;
  const auto mailbox = impl_->mailbox;
  if (!mailbox->handover().take(deadline, [&] { mailbox->wake(); })) return;
  impl_->run_as_guest(
      [&] {
        while (!done() && impl_->may_lend() && now() < deadline)
          run_once(deadline);
      },
      is_idle);
}

bool AsioLoop::run_here(const Task& task) noexcept {
  if (!impl_->may_lend() || !impl_->mailbox->handover().take_vacant()) return false;
  impl_->run_as_guest(
      [&] {
        {
          const LoopLockScope scope(impl_->lock.get());  // the task may begin to share it
          task();
        }
        run_once(TimePoint::min());
      },
      [] { return true; });
  return true;
}

void AsioLoop::lend(bool may) {
  if (impl_->is_lent.exchange(may, std::memory_order_relaxed) && !may) impl_->mailbox->post([] {});
}

void AsioLoop::stop() {
  // A turn that already runs may still see the mailbox open: the flag is set first.
  const auto mailbox = impl_->mailbox;
  impl_->stopping.store(true, std::memory_order_release);
  mailbox->close();
}

void AsioLoop::at_turn_end(TurnHook& hook) {
  if (hook.previous_ != nullptr) return;
  impl_->add_hook(hook);
  wake_if_elsewhere();
}

// A loop that shares its lock may be asleep while another one gives it something to do.
void AsioLoop::wake_if_elsewhere() {
  if (impl_->lock == nullptr || !impl_->lock->is_shared()) return;
  if (impl_->thread.load(std::memory_order_relaxed) != std::this_thread::get_id())
    impl_->mailbox->post([] {});
}

LoopLock* AsioLoop::lock() const { return impl_->lock.get(); }

AsioLoop& AsioLoop::of(EventLoop& loop) {
  auto* const result = dynamic_cast<AsioLoop*>(&loop);
  BPS_ASSERT(result != nullptr);
  return *result;
}

std::shared_ptr<Mailbox> AsioLoop::mailbox() const { return impl_->mailbox; }

boost::asio::io_context& AsioLoop::io() { return impl_->io; }

}  // namespace bps
