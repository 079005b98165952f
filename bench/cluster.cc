#include "bench/cluster.h"

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
#include <functional>

#include "bench/cpu_time.h"
#include "deploy/bps_run/ports_file.h"
#include "deploy/bps_run/process.h"
#include "proto/base/env.h"

namespace bps::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStartTimeout = std::chrono::seconds(60);
constexpr auto kStopPatience = std::chrono::seconds(3);
constexpr std::size_t kLastWords = 4000;
constexpr const char* kScheduler = "scheduler";
constexpr const char* kWorker = "worker ";
// Plenty for two rounds of any type on a single server: memory limits are not what is measured.
constexpr std::uint64_t kMemoryBase = 1ull << 30;
// Of a step: a second, and a tenth of one per MB of all tensors, is far beyond any machine that is not stuck.
constexpr auto kStepTimeout = std::chrono::seconds(60);

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

Result<std::string> sibling_program(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return make_error(ErrorCode::os, "cannot find out where bps-bench is: " + error.message());
  const auto path = self.parent_path() / name;
  if (::access(path.c_str(), X_OK) != 0) {
    return make_error(ErrorCode::os, "there is no program " + path.string(),
                      "bps-bench starts what lies beside it: build or install " + name + " too");
  }
  return path.string();
}

Cluster::Cluster() = default;

Cluster::~Cluster() {
  stop();
  if (!folder_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

Status Cluster::make_folder() {
  const auto where = env("TMPDIR").value_or("/tmp");
  std::string name = where + "/bps-bench-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) return os_error("cannot make a folder in " + where, errno);
  folder_ = name;
  auto listener = listen_control(folder_ + "/control");
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  return {};
}

Status Cluster::start(const ClusterOptions& options) {
  options_ = options;
  const sigset_t set = watched_signals();
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return os_error("sigprocmask", errno);
  signals_ = Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return os_error("signalfd", errno);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return os_error("PR_SET_CHILD_SUBREAPER", errno);
  if (Status status = make_folder(); !status) return status;

  WorkerOptions worker = options.worker;
  worker.control = folder_ + "/control";
  if (Status status = start_raw_servers(worker); !status) return status;
  if (options.with_bps) {
    const auto scheduler = start_daemon(kScheduler, "bps-scheduler", {});
    if (!scheduler) return scheduler.error();
    worker.scheduler = to_string(*scheduler);
    for (std::uint32_t i = 0; i < worker.servers; ++i) {
      std::vector<std::string> arguments = {"--scheduler",  worker.scheduler,
                                            "--shards",     options.shards,
                                            "--memory-max", std::to_string(kMemoryBase + 10 * worker.bytes)};
      if (!worker.congestion_control.empty()) {
        arguments.insert(arguments.end(), {"--congestion-control", worker.congestion_control});
      }
      const auto server = start_daemon("server " + std::to_string(i), "bps-server", std::move(arguments));
      if (!server) return server.error();
    }
  }
  first_worker_ = children_.size();
  for (worker.index = 0; worker.index < worker.workers; ++worker.index) {
    if (Status status = start_self("worker", worker); !status) return status;
  }
  Status ready = wait_until(Clock::now() + kStartTimeout, "the workers to be ready", [&] {
    return std::all_of(children_.begin() + static_cast<std::ptrdiff_t>(first_worker_), children_.end(),
                       [](const Child& child) { return static_cast<bool>(child.control); });
  });
  orderly_ = ready.ok();
  return ready;
}

Status Cluster::start_raw_servers(WorkerOptions& worker) {
  if (worker.raw == RawKind::none) return {};
  const std::uint32_t servers = worker.raw == RawKind::echo ? 1 : worker.servers;
  for (worker.index = 0; worker.index < servers; ++worker.index) {
    if (Status status = start_self("raw-server", worker); !status) return status;
    Child* child = &children_.back();
    Status status = wait_until(Clock::now() + kStartTimeout, child->name + " to listen",
                               [child] { return child->reply.has_value(); });
    if (!status) return status;
    worker.raw_servers.push_back({"127.0.0.1", static_cast<std::uint16_t>(child->reply->port)});
    child->reply.reset();
  }
  return {};
}

Status Cluster::start_child(std::string name, const std::string& file, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), file);
  const auto process = start_process(Command{file, std::move(arguments), environment_now()});
  if (!process) return process.error();
  Child child;
  child.name = std::move(name);
  child.pid = process->pid;
  child.out = process->out;
  child.err = process->err;
  children_.push_back(std::move(child));
  return {};
}

Status Cluster::start_self(const std::string& role, const WorkerOptions& options) {
  const auto self = sibling_program("bps-bench");
  if (!self) return self.error();
  std::vector<std::string> arguments = to_arguments(options);
  arguments.insert(arguments.begin(), role);
  const std::string name = (role == "worker" ? kWorker : "raw server ") + std::to_string(options.index);
  return start_child(name, *self, std::move(arguments));
}

Result<Endpoint> Cluster::start_daemon(const std::string& name, const std::string& program,
                                       std::vector<std::string> arguments) {
  const auto file = sibling_program(program);
  if (!file) return file.error();
  std::string ports = folder_ + "/" + name + ".ports";
  std::replace(ports.begin() + static_cast<std::ptrdiff_t>(folder_.size()), ports.end(), ' ', '-');
  arguments.insert(arguments.end(), {"--listen", "127.0.0.1:0", "--ports-file", ports});
  if (Status status = start_child(name, *file, std::move(arguments)); !status)
    return std::move(status).error();
  std::optional<Endpoint> endpoint;
  Status wrong;
  const auto deadline = Clock::now() + kStartTimeout;
  // There is nothing to wait on but the file: look every few milliseconds, in between for signs of trouble.
  while (!endpoint && wrong.ok()) {
    auto read = read_port(ports, "listen");
    if (!read) {
      wrong = read.error();
    } else if (*read) {
      endpoint = **read;
    } else if (Clock::now() > deadline) {
      wrong = make_error(ErrorCode::os, name + " does not listen after 60 s");
    } else {
      wrong = poll_once(Clock::now() + std::chrono::milliseconds(5));
    }
  }
  if (!wrong) return std::move(wrong).error();
  return *endpoint;
}

template <class Done>
Status Cluster::wait_until(Deadline deadline, const std::string& what, Done done) {
  while (!done()) {
    if (Clock::now() >= deadline) {
      return make_error(ErrorCode::deadline, "gave up waiting for " + what, "run with --verbose to see why");
    }
    if (Status status = poll_once(deadline); !status) return status;
  }
  return {};
}

Status Cluster::poll_once(Deadline deadline) {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const Fd& stranger : strangers_)
    fds.push_back({stranger.get(), POLLIN, 0});
  const std::size_t first_child = fds.size();
  for (const Child& child : children_) {
    fds.push_back({child.out, POLLIN, 0});
    fds.push_back({child.err, POLLIN, 0});
    fds.push_back({child.reply ? -1 : child.control.get(), POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), milliseconds_until(deadline)) < 0 && errno != EINTR) {
    return os_error("poll", errno);
  }
  for (std::size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    if ((fds[first_child + 3 * i].revents | fds[first_child + 3 * i + 1].revents) != 0) read_output(child);
    if (fds[first_child + 3 * i + 2].revents == 0) continue;
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
    strangers_.push_back(std::move(*fd));
    return {};
  }
  for (std::size_t i = 0; i < strangers_.size(); ++i) {
    if (fds[2 + i].revents == 0) continue;
    std::swap(strangers_[i], strangers_.back());
    return read_hello();
  }
  return {};
}

Status Cluster::read_hello() {
  Fd fd = std::move(strangers_.back());
  strangers_.pop_back();
  auto hello = receive_reply(fd.get());
  // Gone before it said who it is: its end will be told by SIGCHLD.
  if (!hello) return {};
  Child* child = find(hello->text);
  if (child == nullptr)
    return make_error(ErrorCode::internal, "an unknown process says it is " + hello->text);
  child->control = std::move(fd);
  if (hello->port != 0) child->reply = std::move(*hello);
  return {};
}

Status Cluster::read_signals() {
  signalfd_siginfo info;
  bool interrupted = false;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    interrupted = interrupted || info.ssi_signo != SIGCHLD;
  }
  if (interrupted) {
    orderly_ = false;
    return make_error(ErrorCode::cancelled, "interrupted");
  }
  return reap();
}

Status Cluster::reap() {
  int wait_status = 0;
  Status result;
  for (pid_t pid; (pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0;) {
    for (Child& child : children_) {
      if (child.pid != pid) continue;
      child.end = describe_wait_status(wait_status);
      child.pid = 0;
      while (read_output(child)) {}
      if (result.ok()) result = failure_of(child);
    }
  }
  return result;
}

// False when there is nothing (more) to read now.
bool Cluster::read_output(Child& child) {
  bool any = false;
  char text[4096];
  for (int* fd : {&child.out, &child.err}) {
    if (*fd < 0) continue;
    const ssize_t got = ::read(*fd, text, sizeof text);
    if (got > 0) {
      any = true;
      child.last_words.append(text, static_cast<std::size_t>(got));
      if (options_.verbose) {
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

Error Cluster::failure_of(const Child& child) const {
  std::string words = child.last_words;
  while (!words.empty() && words.back() == '\n')
    words.pop_back();
  return make_error(ErrorCode::peer_lost, fmt::format("{} ended ({}){}{}", child.name,
                                                      child.end.value_or("its control connection broke"),
                                                      words.empty() ? "" : ": ", words));
}

Result<std::vector<Reply>> Cluster::step(const Request& request) {
  for (std::size_t i = first_worker_; i < children_.size(); ++i) {
    if (!send_request(children_[i].control.get(), request)) return failure_of(children_[i]);
  }
  const auto deadline = Clock::now() + kStepTimeout +
                        std::chrono::milliseconds(options_.worker.bytes * options_.worker.workers / 10'000);
  Status status = wait_until(deadline, fmt::format("round {}", request.round), [&] {
    return std::all_of(children_.begin() + static_cast<std::ptrdiff_t>(first_worker_), children_.end(),
                       [](const Child& child) { return child.reply.has_value(); });
  });
  if (!status) {
    orderly_ = false;
    return std::move(status).error();
  }
  std::vector<Reply> replies;
  for (std::size_t i = first_worker_; i < children_.size(); ++i) {
    replies.push_back(std::move(*children_[i].reply));
    children_[i].reply.reset();
  }
  return replies;
}

Result<double> Cluster::cpu_seconds() const {
  double sum = 0;
  for (const Child& child : children_) {
    const auto seconds = process_cpu_seconds(child.pid);
    if (!seconds) return seconds.error();
    sum += *seconds;
  }
  return sum;
}

Cluster::Child* Cluster::find(const std::string& name) {
  for (Child& child : children_) {
    if (child.name == name) return &child;
  }
  return nullptr;
}

void Cluster::stop() {
  // Workers end when their control connection does, and leave the job; then the servers are asked to end,
  // which tell the scheduler, then the scheduler. After an error nobody is waited for that may be stuck.
  for (Child& child : children_)
    child.control = Fd();
  const auto wait_for = [this](auto concerned) {
    const auto deadline = Clock::now() + kStopPatience;
    const auto alive = [&](const Child& child) { return child.pid != 0 && concerned(child); };
    while (std::any_of(children_.begin(), children_.end(), alive) && Clock::now() < deadline) {
      (void)poll_once(deadline).ok();
    }
  };
  const auto end = [&](auto concerned) {
    for (const Child& child : children_) {
      if (child.pid != 0 && concerned(child)) signal_group(child.pid, SIGTERM);
    }
    wait_for(concerned);
  };
  const auto is_scheduler = [](const Child& child) { return child.name == kScheduler; };
  if (orderly_) wait_for([](const Child& child) { return child.name.starts_with(kWorker); });
  end(std::not_fn(is_scheduler));
  end(is_scheduler);
  if (!children_.empty()) kill_descendants();
  for (const Child& child : children_) {
    for (const int fd : {child.out, child.err}) {
      if (fd >= 0) ::close(fd);
    }
  }
  children_.clear();
}

}  // namespace bps::bench
