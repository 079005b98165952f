#include "bench/cluster/children.h"

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "proto/base/config/env.h"

namespace bps::bench {
namespace {

// What a program of ours says by its exit status; whatever else ends one, it is lost.
ErrorCode code_of_wait(int wait_status) {
  const int status = exit_status_of(wait_status);
  for (std::uint16_t i = 1; i < kErrorCodeCount; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    if (status == exit_code_of(code)) return code;
  }
  return ErrorCode::peer_lost;
}

using Clock = std::chrono::steady_clock;

constexpr auto kStopPatience = std::chrono::seconds(3);
constexpr std::size_t kLastWords = 4000;

sigset_t watched_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD})
    ::sigaddset(&set, signal);
  return set;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 1000));
}

}  // namespace

Children::~Children() {
  if (!children_.empty()) kill_descendants();
  for (const Child& child : children_) {
    for (const int fd : {child.out, child.err}) {
      if (fd >= 0) ::close(fd);
    }
  }
  if (!folder_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

Status Children::open() {
  const sigset_t set = watched_signals();
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return os_error("sigprocmask", errno);
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return os_error("signalfd", errno);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return os_error("PR_SET_CHILD_SUBREAPER", errno);
  return make_folder();
}

Status Children::make_folder() {
  const auto where = env("TMPDIR").value_or("/tmp");
  std::string name = where + "/bps-bench-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) return os_error("cannot make a folder in " + where, errno);
  folder_ = name;
  auto listener = listen_control(control_path());
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  return {};
}

Result<Child*> Children::start(std::string name, const Command& command) {
  const auto process = start_process(command);
  if (!process) return process.error();
  Child& child = children_.emplace_back();
  child.name = std::move(name);
  child.pid = process->pid;
  child.out = process->out;
  child.err = process->err;
  return &child;
}

Status Children::wait_until(Deadline deadline, const std::string& what, const std::function<bool()>& done) {
  while (!done()) {
    if (Clock::now() >= deadline) {
      return make_error(ErrorCode::deadline, "gave up waiting for " + what, "run with --verbose to see why");
    }
    if (Status status = poll_once(deadline); !status) return status;
  }
  return {};
}

Status Children::poll_once(Deadline deadline) {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const Fd& pending : pending_)
    fds.push_back({pending.get(), POLLIN, 0});
  std::size_t next = fds.size();
  for (const Child& child : children_) {
    fds.push_back({child.out, POLLIN, 0});
    fds.push_back({child.err, POLLIN, 0});
    fds.push_back({child.reply ? -1 : child.control.get(), POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), milliseconds_until(deadline)) < 0 && errno != EINTR) {
    return os_error("poll", errno);
  }
  for (Child& child : children_) {
    if ((fds[next].revents | fds[next + 1].revents) != 0) read_output(child);
    const bool answered = fds[next + 2].revents != 0;
    next += 3;
    if (!answered) continue;
    auto reply = receive_reply(child.control.get());
    if (reply) {
      child.reply = std::move(*reply);
    } else {
      child.control = Fd();  // SIGCHLD will tell more
    }
  }
  if (fds[0].revents != 0) {
    if (Status status = read_signals(); !status) return status;
  }
  if (fds[1].revents != 0) {
    auto fd = accept_control(listener_.get());
    if (!fd) return fd.error();
    pending_.push_back(std::move(*fd));
    return {};
  }
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    if (fds[2 + i].revents == 0) continue;
    std::swap(pending_[i], pending_.back());
    return read_hello();
  }
  return {};
}

Status Children::read_hello() {
  Fd fd = std::move(pending_.back());
  pending_.pop_back();
  auto hello = receive_reply(fd.get());
  // Gone before it said who it is: its end will be told by SIGCHLD.
  if (!hello) return {};
  for (Child& child : children_) {
    if (child.name != hello->text) continue;
    child.control = std::move(fd);
    child.reply = std::move(*hello);
    return {};
  }
  return make_error(ErrorCode::internal, "an unknown process says it is " + hello->text);
}

Status Children::read_signals() {
  signalfd_siginfo info;
  bool interrupted = false;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    interrupted = interrupted || info.ssi_signo != SIGCHLD;
  }
  if (interrupted) return make_error(ErrorCode::cancelled, "interrupted");
  return reap();
}

Status Children::reap() {
  int wait_status = 0;
  Status result;
  for (pid_t pid; (pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0;) {
    for (Child& child : children_) {
      if (child.pid != pid) continue;
      child.end = describe_wait_status(wait_status);
      child.why = code_of_wait(wait_status);
      child.pid = 0;
      while (read_output(child)) {}
      if (result.ok()) result = failure_of(child);
    }
  }
  return result;
}

// False when there is nothing (more) to read now.
bool Children::read_output(Child& child) {
  bool any = false;
  char text[4096];
  for (int* fd : {&child.out, &child.err}) {
    if (*fd < 0) continue;
    const ssize_t got = ::read(*fd, text, sizeof text);
    if (got > 0) {
      any = true;
      child.last_words.append(text, static_cast<std::size_t>(got));
      if (verbose_) {
        [[maybe_unused]] const ssize_t ignored = ::write(2, text, static_cast<std::size_t>(got));
      }
    } else if (got == 0) {
      ::close(*fd);
      *fd = -1;
    }
  }
  if (child.last_words.size() > kLastWords) child.last_words.erase(0, child.last_words.size() - kLastWords);
  return any;
}

Error Children::failure_of(const Child& child) const {
  std::string words = child.last_words;
  while (!words.empty() && words.back() == '\n')
    words.pop_back();
  return make_error(child.why, fmt::format("{} ended ({}){}{}", child.name,
                                           child.end.value_or("its control connection broke"),
                                           words.empty() ? "" : ": ", words));
}

void Children::end(const std::function<bool(const Child&)>& concerned) {
  for (const Child& child : children_) {
    if (child.pid != 0 && concerned(child)) signal_group(child.pid, SIGTERM);
  }
  await_end(concerned);
}

void Children::await_end(const std::function<bool(const Child&)>& concerned) {
  const auto deadline = Clock::now() + kStopPatience;
  const auto alive = [&](const Child& child) { return child.pid != 0 && concerned(child); };
  while (std::any_of(children_.begin(), children_.end(), alive) && Clock::now() < deadline) {
    (void)poll_once(deadline).ok();
  }
}

}  // namespace bps::bench
