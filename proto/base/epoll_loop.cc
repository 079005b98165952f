#include "proto/base/epoll_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

#include "proto/base/completion.h"
#include "proto/base/timer_queue.h"

namespace bps {
namespace {

// Events that one system call brings.
constexpr std::size_t kEvents = 64;
// A turn's bounds on descriptors: a busy loop must still come to its tasks, timers and hooks. What is left
// waits for the next turn.
constexpr int kMaxCallsPerTurn = 32;
constexpr Duration kMaxCallTime = std::chrono::microseconds(100);

// Tokens of the loop's own descriptors; all others have a generation in their upper half.
constexpr std::uint64_t kWakeToken = 0;
constexpr std::uint64_t kTimerToken = 1;

class OwnFd {
 public:
  explicit OwnFd(int fd) : fd_(fd) {}
  ~OwnFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnFd(OwnFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnFd& operator=(OwnFd&&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

class LoopMailbox final : public Mailbox {
 public:
  explicit LoopMailbox(OwnFd wake_fd) : wake_fd_(std::move(wake_fd)) {}

  void post(Task task) override {
    if (queue_.push(std::move(task)) == MpscQueue<Task>::Pushed::wake) wake();
  }

  void close() {
    if (queue_.close()) wake();
  }

  MpscQueue<Task>& queue() { return queue_; }

 private:
  // Nobody reads it: each write is an edge of its own.
  void wake() {
    const std::uint64_t one = 1;
    while (::write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {}
  }

  const OwnFd wake_fd_;
  MpscQueue<Task> queue_;
};

// Which watch an event is for. An event that was told before its watch ended finds another generation.
class WatchTable {
 public:
  std::uint64_t add(FdWatch& watch) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.watch = &watch;
    return (static_cast<std::uint64_t>(slot.generation) << 32) | index;
  }

  void remove(std::uint64_t token) {
    const auto index = static_cast<std::uint32_t>(token);
    slots_[index].watch = nullptr;
    if (++slots_[index].generation == 0) slots_[index].generation = 1;
    free_.push_back(index);
  }

  FdWatch* find(std::uint64_t token) const {
    const Slot& slot = slots_[static_cast<std::uint32_t>(token)];
    return slot.generation == token >> 32 ? slot.watch : nullptr;
  }

  FdWatch* any() const {
    for (const Slot& slot : slots_) {
      if (slot.watch != nullptr) return slot.watch;
    }
    return nullptr;
  }

 private:
  struct Slot {
    FdWatch* watch = nullptr;
    std::uint32_t generation = 1;
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace

struct EpollLoop::Impl {
  Impl(OwnFd epoll, OwnFd timer, OwnFd wake)
      : epoll_fd(std::move(epoll)),
        timer_fd(std::move(timer)),
        mailbox(std::make_shared<LoopMailbox>(std::move(wake))) {
    hooks.next_ = hooks.previous_ = &hooks;
  }

  static Result<std::unique_ptr<Impl>> create() {
    const auto failed = [](const char* what) {
      return os_error(std::string("cannot make an event loop: ") + what, errno, "raise `ulimit -n`");
    };
    OwnFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (epoll.get() < 0) return failed("epoll_create1");
    OwnFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (timer.get() < 0) return failed("timerfd_create");
    OwnFd wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (wake.get() < 0) return failed("eventfd");
    for (const auto& [fd, token] : {std::pair(wake.get(), kWakeToken), std::pair(timer.get(), kTimerToken)}) {
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      event.data.u64 = token;
      if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) return failed("epoll_ctl");
    }
    return std::make_unique<Impl>(std::move(epoll), std::move(timer), std::move(wake));
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
    while (FdWatch* const watch = watches.any()) {
      watches.remove(std::exchange(watch->token_, 0));
      watch->on_loop_gone();
    }
    release_all();
  }

  void release_all() {
    while (!released.empty()) {
      const auto doomed = std::exchange(released, {});
    }
  }

  bool has_work() const { return !tasks.empty() || !again.empty() || hooks.next_ != &hooks; }

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

  void run_hooks();

  // Waits for a descriptor, a task or a timer, at most until `deadline`, then tells what is ready.
  void run_io(TimePoint deadline) {
    if (next_event == event_count) {
      if (!has_work() && may_sleep(deadline) && mailbox->queue().prepare_sleep()) {
        ask_kernel(-1);
        mailbox->queue().awake();
      } else {
        ask_kernel(0);
      }
    }
    if (!again.empty()) call_those_again();
    if (next_event == event_count) return;
    call(events[next_event++]);
    if (next_event == event_count) return;
    const TimePoint until = std::chrono::steady_clock::now() + kMaxCallTime;
    for (int calls = 1; calls < kMaxCallsPerTurn && next_event < event_count; ++calls) {
      call(events[next_event++]);
      if (std::chrono::steady_clock::now() >= until) break;
    }
  }

  void ask_kernel(int timeout_ms) {
    const int got = ::epoll_wait(epoll_fd.get(), events.data(), static_cast<int>(kEvents), timeout_ms);
    next_event = 0;
    event_count = got > 0 ? static_cast<std::size_t>(got) : 0;  // else EINTR: as if nothing had come
  }

  void call(const epoll_event& event) {
    if (event.data.u64 == kWakeToken) return;
    if (event.data.u64 == kTimerToken) {
      armed_for = TimePoint::max();
      return;
    }
    if (FdWatch* const watch = watches.find(event.data.u64)) watch->on_ready(event.events);
  }

  void call_those_again() {
    calling.swap(again);
    for (const std::uint64_t token : calling) {
      if (FdWatch* const watch = watches.find(token)) watch->on_ready(0);
    }
    calling.clear();
  }

  // Arms the timer that ends the sleep. Lazily: most timers are cancelled or moved before they matter, and an
  // earlier wake-up than needed does no harm.
  bool may_sleep(TimePoint deadline) {
    if (const auto next = timers.next(); next && *next < deadline) deadline = *next;
    if (deadline == TimePoint::max() || deadline >= armed_for) return true;
    if (deadline <= std::chrono::steady_clock::now()) return false;
    armed_for = deadline;
    const auto since = deadline.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    itimerspec when{};
    when.it_value.tv_sec = seconds.count();
    when.it_value.tv_nsec = (since - seconds).count();
    BPS_ASSERT(::timerfd_settime(timer_fd.get(), TFD_TIMER_ABSTIME, &when, nullptr) == 0);
    return true;
  }

  const OwnFd epoll_fd;
  const OwnFd timer_fd;
  std::shared_ptr<LoopMailbox> mailbox;
  std::array<epoll_event, kEvents> events;
  std::size_t next_event = 0;  // of those the kernel has told
  std::size_t event_count = 0;
  WatchTable watches;
  std::vector<std::uint64_t> again;
  std::vector<std::uint64_t> calling;
  std::vector<std::shared_ptr<void>> released;
  TimePoint armed_for = TimePoint::max();
  TimerQueue timers;
  std::vector<Task> tasks;  // posted on the loop itself
  std::vector<Task> running;
  std::vector<Task> remote;
  struct HookList final : TurnHook {
    void on_turn_end() override {}
  } hooks;
  std::atomic<std::thread::id> thread{};
  std::atomic<bool> stopping{false};
  bool stopped = false;
};

void TurnHook::unlink() {
  if (previous_ == nullptr) return;
  previous_->next_ = next_;
  next_->previous_ = previous_;
  next_ = previous_ = nullptr;
}

void EpollLoop::Impl::run_hooks() {
  // Those that are there now: a hook that asks again waits for the next turn.
  HookList batch;
  if (hooks.next_ == &hooks) return;
  batch.next_ = hooks.next_;
  batch.previous_ = hooks.previous_;
  batch.next_->previous_ = batch.previous_->next_ = &batch;
  hooks.next_ = hooks.previous_ = &hooks;
  while (batch.next_ != &batch) {
    TurnHook& hook = *batch.next_;
    hook.unlink();
    hook.on_turn_end();
  }
  batch.next_ = batch.previous_ = nullptr;
}

Result<std::unique_ptr<EpollLoop>> EpollLoop::create() {
  auto impl = Impl::create();
  if (!impl) return std::move(impl).error();
  return std::unique_ptr<EpollLoop>(new EpollLoop(std::move(impl).value()));
}

EpollLoop::EpollLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EpollLoop::EpollLoop() {
  auto made = create();
  BPS_ASSERT(made.ok());
  impl_ = std::move(made.value()->impl_);
}

EpollLoop::~EpollLoop() {
  if (impl_) impl_->drop_everything();
}

void EpollLoop::post(Task task) {
  if (impl_->thread.load(std::memory_order_relaxed) == std::this_thread::get_id() && !impl_->stopped) {
    impl_->tasks.push_back(std::move(task));
  } else {
    impl_->mailbox->post(std::move(task));
  }
}

TimerId EpollLoop::at(TimePoint when, Task task) {
  BPS_ASSERT(in_loop());
  return impl_->timers.add(when, std::move(task));
}

void EpollLoop::cancel(TimerId timer) {
  BPS_ASSERT(in_loop());
  impl_->timers.cancel(timer);
}

bool EpollLoop::in_loop() const {
  const std::thread::id thread = impl_->thread.load(std::memory_order_relaxed);
  return thread == std::thread::id{} || thread == std::this_thread::get_id();
}

void EpollLoop::run() {
  impl_->thread.store(std::this_thread::get_id(), std::memory_order_relaxed);
  while (!impl_->stopping.load(std::memory_order_acquire))
    run_once(TimePoint::max());
  // What was posted before stop() runs; what those tasks post does not. stop() may not have come to this yet,
  // and a task that slipped in behind the last look would be neither run nor destroyed.
  impl_->mailbox->close();
  impl_->run_tasks();
  impl_->run_hooks();
  impl_->release_all();
  impl_->stopped = true;
  impl_->thread.store(std::thread::id{}, std::memory_order_relaxed);
}

void EpollLoop::run_once(TimePoint deadline) {
  impl_->run_io(deadline);
  impl_->run_tasks();
  impl_->run_timers();
  impl_->run_hooks();
  impl_->release_all();
}

void EpollLoop::stop() {
  // A turn that already runs may still see the mailbox open: the flag is set first.
  const auto mailbox = impl_->mailbox;
  impl_->stopping.store(true, std::memory_order_release);
  mailbox->close();
}

void EpollLoop::at_turn_end(TurnHook& hook) {
  if (hook.previous_ != nullptr) return;
  TurnHook& list = impl_->hooks;
  hook.previous_ = list.previous_;
  hook.next_ = &list;
  list.previous_->next_ = &hook;
  list.previous_ = &hook;
}

std::shared_ptr<Mailbox> EpollLoop::mailbox() const { return impl_->mailbox; }

Status EpollLoop::watch(int fd, FdWatch& watch, std::uint32_t events) {
  BPS_ASSERT(in_loop() && watch.token_ == 0);
  watch.token_ = impl_->watches.add(watch);
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = watch.token_;
  if (::epoll_ctl(impl_->epoll_fd.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
  const int error = errno;
  impl_->watches.remove(std::exchange(watch.token_, 0));
  return os_error("cannot watch a descriptor: epoll_ctl", error);
}

void EpollLoop::rewatch(int fd, FdWatch& watch, std::uint32_t events) {
  BPS_ASSERT(in_loop() && watch.token_ != 0);
  epoll_event event{};
  event.events = events | EPOLLET;
  event.data.u64 = watch.token_;
  BPS_ASSERT(::epoll_ctl(impl_->epoll_fd.get(), EPOLL_CTL_MOD, fd, &event) == 0);
}

void EpollLoop::unwatch(int fd, FdWatch& watch) {
  BPS_ASSERT(in_loop() && watch.token_ != 0);
  epoll_event unused{};
  ::epoll_ctl(impl_->epoll_fd.get(), EPOLL_CTL_DEL, fd, &unused);
  impl_->watches.remove(std::exchange(watch.token_, 0));
}

void EpollLoop::call_again(FdWatch& watch) { impl_->again.push_back(watch.token_); }

void EpollLoop::release_later(std::shared_ptr<void> object) {
  if (object) impl_->released.push_back(std::move(object));
}

}  // namespace bps
