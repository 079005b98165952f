#include "deploy/bps_run/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "deploy/bps_run/ports_file.h"
#include "proto/auth/key_file.h"
#include "proto/base/config/units.h"

namespace bps {
namespace {

constexpr Duration kTermPatience = std::chrono::seconds(5);  // between SIGTERM and SIGKILL
// A scheduler that was told to end its cluster answers when nobody can come back any more.
constexpr Duration kSchedulerPatience = std::chrono::seconds(15);
constexpr std::size_t kMostUnseen = 64 << 10;                  // of a child's output that is not shown
constexpr Duration kReaderPatience = std::chrono::seconds(2);  // with who takes none of our output

TimePoint now() { return std::chrono::steady_clock::now(); }

int milliseconds_until(std::optional<TimePoint> when) {
  if (!when) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*when - now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
}

void close_if_open(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

}  // namespace

sigset_t run_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD})
    ::sigaddset(&set, signal);
  struct sigaction hang_up {};
  if (::sigaction(SIGHUP, nullptr, &hang_up) == 0 && hang_up.sa_handler == SIG_IGN) ::sigdelset(&set, SIGHUP);
  return set;
}

Supervisor::Supervisor(const RunOptions& options, std::string folder, int launcher)
    : options_(options),
      folder_(std::move(folder)),
      key_file_(folder_ + "/key"),
      launcher_(launcher),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO) {}

Supervisor::~Supervisor() {
  for (Child& child : children_) {
    close_if_open(child.process.out);
    close_if_open(child.process.err);
  }
  close_if_open(signals_);
  close_if_open(watch_);
}

int Supervisor::run() {
  Status started = open_descriptors();
  if (started.ok()) started = create_key_file(key_file_);
  if (started.ok()) started = start_daemons();
  if (started.ok()) started = start_workers();
  if (!started.ok()) {
    if (interrupted()) start_failure_ = 128 + first_signal_;
    if (start_failure_ == 0) start_failure_ = exit_code_of(started.error().code);
    say(to_string(started.error()));
    signal_all(Role::worker, SIGKILL);
  }
  watch_workers();
  stop_daemons(Role::server);
  stop_daemons(Role::scheduler);
  kill_descendants();
  drain();
  name_culprit();
  return exit_status();
}

Status Supervisor::open_descriptors() {
  const sigset_t set = run_signals();
  signals_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signals_ < 0) return os_error("signalfd", errno);
  watch_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (watch_ < 0) return os_error("inotify", errno, "raise fs.inotify.max_user_instances");
  if (::inotify_add_watch(watch_, folder_.c_str(), IN_MOVED_TO) < 0)
    return os_error("inotify " + folder_, errno);
  return {};
}

// ---- start ----

Status Supervisor::start(Role role, std::uint32_t index, Command command) {
  std::string name = "scheduler";
  if (role == Role::server) name = "server " + std::to_string(index);
  if (role == Role::worker) name = "worker " + std::to_string(index);
  Result<Process> process = start_process(command);
  if (!process.ok()) return std::move(process).error();
  const std::string prefix = "[" + name + "] ";
  children_.push_back(Child{role, name, {}, {}, process.value(), LinePrefixer(prefix), LinePrefixer(prefix)});
  return {};
}

Status Supervisor::start_daemon(Role role, std::uint32_t index, const std::string& file) {
  const bool is_server = role == Role::server;
  const std::string ports =
      folder_ + (is_server ? "/server-" + std::to_string(index) : "/scheduler") + ".ports";
  Command command{file, {file, "--listen", "127.0.0.1:0", "--ports-file", ports}, options_.environment};
  command.environment["BPS_KEY_FILE"] = key_file_;
  if (is_server) {
    command.arguments.insert(command.arguments.end(),
                             {"--scheduler", to_string(*children_.front().endpoint)});
    if (!options_.shards.empty())
      command.arguments.insert(command.arguments.end(), {"--shards", options_.shards});
  }
  // Nobody starts a server of a run again.
  if (!is_server) command.environment.emplace("BPS_SERVER_WAIT", "2s");
  command.arguments.insert(command.arguments.end(), {"--log-level", options_.verbose ? "info" : "warn"});
  Status started = start(role, index, std::move(command));
  if (started.ok()) children_.back().ports_file = ports;
  return started;
}

// One server after another: a server writes its ports file when it has its number, so the scheduler numbers
// them as they are named here.
Status Supervisor::start_daemons() {
  Status status = start_daemon(Role::scheduler, 0, options_.scheduler_file);
  if (status.ok()) status = wait_for_ports(now() + options_.start_timeout);
  const TimePoint deadline = now() + options_.start_timeout;
  for (std::uint32_t number = 1; status.ok() && number <= options_.servers; ++number) {
    status = start_daemon(Role::server, number, options_.server_file);
    if (status.ok()) status = wait_for_ports(deadline);
  }
  return status;
}

Status Supervisor::wait_for_ports(TimePoint deadline) {
  while (true) {
    bool all = true;
    for (Child& child : children_) {
      if (!child.running) {
        // Its own words are in the output already; its status is ours if it says what kind of problem it was.
        const int status = exit_status_of(child.wait_status);
        if (status >= 64 && status <= 78) start_failure_ = status;
        return make_error(ErrorCode::os, child.name + " ended before it listened: " +
                                             describe_wait_status(child.wait_status));
      }
      if (child.endpoint) continue;
      Result<std::optional<Endpoint>> endpoint = read_port(child.ports_file, "listen");
      if (!endpoint.ok()) return std::move(endpoint).error();
      child.endpoint = endpoint.value();
      if (!child.endpoint) {
        all = false;
      } else if (options_.verbose) {
        say(child.name + " listens on " + to_string(*child.endpoint));
      }
    }
    if (interrupted()) return make_error(ErrorCode::cancelled, "interrupted while the daemons were starting");
    if (all) return {};
    if (now() >= deadline) {
      return make_error(ErrorCode::os, "the daemons do not listen after " + to_string(options_.start_timeout),
                        "run again with --verbose, or give them a longer --start-timeout");
    }
    pump(deadline);
  }
}

Status Supervisor::start_workers() {
  Command command{options_.program_file, options_.program, options_.environment};
  command.environment["BPS_SCHEDULER"] = to_string(*children_.front().endpoint);
  command.environment["BPS_JOB"] = options_.job;
  command.environment["BPS_KEY_FILE"] = key_file_;
  for (const char* name : {"BPS_WORLD_SIZE", "BPS_LOCAL_SIZE"}) {
    command.environment[name] = std::to_string(options_.workers);
  }
  for (std::uint32_t rank = 0; rank < options_.workers; ++rank) {
    for (const char* name : {"BPS_RANK", "BPS_LOCAL_RANK"})
      command.environment[name] = std::to_string(rank);
    if (Status started = start(Role::worker, rank, command); !started.ok()) return started;
  }
  workers_started_ = true;
  if (options_.verbose) say("from another terminal: bpsctl status --pid " + std::to_string(::getppid()));
  if (first_signal_ != 0) signal_all(Role::worker, first_signal_);
  return {};
}

// ---- the run, and its end ----

void Supervisor::watch_workers() {
  std::optional<TimePoint> deadline;
  if (options_.timeout > Duration::zero()) deadline = now() + options_.timeout;
  while (any_running(Role::worker)) {
    if (kill_now_) kill_workers();
    if (deadline && now() >= *deadline) {
      deadline.reset();
      timed_out_ = true;
      say("--timeout " + to_string(options_.timeout) + " is over; stopping the workers");
      give_up_at_ = now();
    }
    if (give_up_at_ && now() >= *give_up_at_) stop_workers(now());
    std::optional<TimePoint> next = deadline;
    if (give_up_at_ && (!next || *give_up_at_ < *next)) next = give_up_at_;
    pump(next);
  }
}

// The first call asks, the next one does not.
void Supervisor::stop_workers(TimePoint at) {
  bool asked = false;
  for (Child& child : children_) {
    if (child.role != Role::worker || !child.running) continue;
    if (!child.stopping) say(child.name + " is still running; sending SIGTERM");
    signal_group(child.process.pid, child.stopping ? SIGKILL : SIGTERM);
    asked = asked || !child.stopping;
    child.killed = child.stopping;
    child.stopping = true;
  }
  give_up_at_ = at + kTermPatience;
  if (!asked) say("killed the workers that did not end by SIGTERM");
}

void Supervisor::kill_workers() {
  for (Child& child : children_) {
    if (child.role == Role::worker) child.killed = child.killed || child.running;
  }
  signal_all(Role::worker, SIGKILL);
}

void Supervisor::stop_daemons(Role role) {
  for (Child& child : children_) {
    if (child.role == role) child.stopping = true;
  }
  signal_all(role, SIGTERM);
  const TimePoint deadline = now() + (role == Role::scheduler ? kSchedulerPatience : kTermPatience);
  while (any_running(role)) {
    if (kill_now_ || now() >= deadline) {
      signal_all(role, SIGKILL);
      pump(std::nullopt);
    } else {
      pump(deadline);
    }
  }
}

// Everything has ended: what is left in the pipes and queues is the last thing to show. A reader of ours that
// is slow (a pager) is waited for. If the run was ended from outside, one that takes nothing is not, and a
// further signal ends the waiting.
void Supervisor::drain() {
  const int signal = first_signal_;
  const bool ended_from_outside = timed_out_ || interrupted();
  const auto open = [](const Child& child) { return child.process.out >= 0 || child.process.err >= 0; };
  const auto gone = [this] { return out_.gone_bytes() + err_.gone_bytes(); };
  std::optional<TimePoint> deadline, until_taken;
  std::uint64_t taken = gone();
  while (std::any_of(children_.begin(), children_.end(), open) || !out_.empty() || !err_.empty()) {
    if (!deadline && (kill_now_ || first_signal_ != signal))
      deadline = now() + std::chrono::milliseconds(500);
    if (ended_from_outside && (!until_taken || gone() != taken)) until_taken = now() + kReaderPatience;
    taken = gone();
    if ((deadline && now() >= *deadline) || (until_taken && now() >= *until_taken)) return;
    const bool idle = out_.empty() && err_.empty();
    const TimePoint patience = now() + std::chrono::milliseconds(200);
    pump(idle ? std::optional(patience) : deadline ? deadline : until_taken);
    // A pipe that is still open is held by a process that escaped us: nothing more of ours comes through it.
    if (idle && now() >= patience) return;
  }
}

// The last line, so that nothing that follows from the failure hides it. A world of one has said it already.
void Supervisor::name_culprit() {
  if (!culprit_ || interrupted() || timed_out_ || options_.workers == 1) return;
  const std::string how = options_.shrinks ? " ended last: " : " failed first: ";
  say(culprit_->name + how + describe_wait_status(culprit_->wait_status) + ended_before());
  drain();
}

// A worker that leaves in mid-job is what the others have lost, also if it leaves with 0.
std::string Supervisor::ended_before() const {
  const bool lost_peer = exit_status_of(culprit_->wait_status) == exit_code_of(ErrorCode::peer_lost);
  if (options_.shrinks || !lost_peer || culprit_->ended_before.empty()) return {};
  const std::size_t others = culprit_->ended_before.size() - 1;
  return "; " + culprit_->ended_before.front() +
         (others != 0 ? " and " + std::to_string(others) + " more" : "") + " had ended before, with status 0";
}

// Once a signal has come: a worker that died of one that we sent, or reports that a child of its own did.
bool Supervisor::ended_by_signal(const Child& child) const {
  if (child.role != Role::worker) return false;
  const int status = exit_status_of(child.wait_status);
  const bool by_sigterm = child.stopping && (status == 128 + SIGTERM || status == 128 + SIGKILL);
  return status == 128 + first_signal_ || by_sigterm || (child.killed && status != 0);
}

int Supervisor::exit_status() const {
  if (start_failure_ != 0) return start_failure_;
  const int failed = culprit_ ? exit_status_of(culprit_->wait_status) : 0;
  // A script starts again after 75, 137 and 143, but not a run that was ended by Ctrl-C.
  const auto by_signal = [this](const Child& child) { return ended_by_signal(child); };
  if (first_signal_ != 0 && (failed == exit_code_of(ErrorCode::peer_lost) ||
                             std::any_of(children_.begin(), children_.end(), by_signal)))
    return 128 + first_signal_;
  // What we did to a worker says nothing that the failure before it has not said.
  if (culprit_) return failed;
  if (timed_out_) return exit_code_of(ErrorCode::deadline);
  int stopped = 0, daemons = 0;
  for (const Child& child : children_) {
    const int status = exit_status_of(child.wait_status);
    if (child.role != Role::worker) daemons = std::max(daemons, status);
    if (child.stopping && child.role == Role::worker) stopped = std::max(stopped, status);
  }
  if (stopped != 0) return stopped;
  if (out_.failure() != 0 || err_.failure() != 0) return exit_code_of(ErrorCode::os);
  return options_.strict && daemons != 0 ? exit_code_of(ErrorCode::internal) : 0;
}

// ---- events ----

void Supervisor::pump(std::optional<TimePoint> until) {
  std::vector<pollfd> polled{
      {signals_, POLLIN, 0}, {launcher_gone_ ? -1 : launcher_, POLLIN, 0}, {watch_, POLLIN, 0}};
  for (OutputQueue* queue : {&out_, &err_})
    polled.push_back({queue->empty() ? -1 : queue->fd(), POLLOUT, 0});
  const std::size_t first_child = polled.size();
  for (const Child& child : children_) {
    polled.push_back({out_.full() ? -1 : child.process.out, POLLIN, 0});
    polled.push_back({err_.full() ? -1 : child.process.err, POLLIN, 0});
  }
  if (::poll(polled.data(), polled.size(), milliseconds_until(until)) <= 0) return;

  if (polled[2].revents != 0) {
    alignas(inotify_event) char events[4096];
    while (::read(watch_, events, sizeof events) > 0) {}
  }
  const bool was_whole = !out_.broken();
  if (polled[3].revents != 0) out_.write_piece();
  if (was_whole && out_.broken()) {
    say(out_.failure() != 0 ? std::string("what goes to stdout is lost: ") + std::strerror(out_.failure())
                            : "nobody reads stdout any more; the run goes on without it");
  }
  if (polled[4].revents != 0) err_.write_piece();
  for (std::size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    if (polled[first_child + 2 * i].revents != 0) read_output(child, child.process.out, child.out, out_);
    if (polled[first_child + 2 * i + 1].revents != 0) read_output(child, child.process.err, child.err, err_);
  }
  if (polled[1].revents != 0) launcher_gone_ = kill_now_ = true;
  if (polled[0].revents != 0) read_signals();
}

void Supervisor::read_signals() {
  signalfd_siginfo info;
  while (::read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      reap();
    } else if (first_signal_ == 0) {
      first_signal_ = signal;
      if (!workers_started_ || !any_running(Role::worker)) continue;
      if (!give_up_at_) give_up_after_grace();
      say(std::string("SIG") + ::sigabbrev_np(signal) + " goes to the workers, who have " +
          to_string(options_.grace) + " to end; once more kills them");
      signal_all(Role::worker, signal);
    } else {
      kill_now_ = true;
    }
  }
}

std::string Supervisor::end_of(const Child& child) {
  return child.name + " ended: " + describe_wait_status(child.wait_status);
}

void Supervisor::reap() {
  int wait_status = 0;
  for (pid_t pid; (pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0;) {
    // Others are orphans of our children that came to us.
    const auto child = std::find_if(children_.begin(), children_.end(),
                                    [pid](const Child& c) { return c.running && c.process.pid == pid; });
    if (child == children_.end()) continue;
    child->running = false;
    child->wait_status = wait_status;
    note_end(*child);
  }
}

void Supervisor::note_end(Child& child) {
  // Its last words come before ours about it.
  read_output(child, child.process.out, child.out, out_);
  read_output(child, child.process.err, child.err, err_);
  if (child.role == Role::worker) return note_worker_end(child);
  if (child.stopping && child.wait_status == 0) return;
  err_.lines().append(child.unseen);
  say(end_of(child));
}

void Supervisor::note_worker_end(Child& child) {
  const bool others_run = any_running(Role::worker);
  const bool goes_on = options_.shrinks && others_run && !give_up_at_ && !interrupted();
  if (!goes_on) blame(child);
  if (child.wait_status == 0 || child.stopping) {
    if (options_.verbose) say(end_of(child));
  } else if (give_up_at_ || interrupted() || !others_run) {
    say(end_of(child));
  } else if (goes_on) {
    say(end_of(child) + "; the others go on, if the job has started (BPS_WORKER_LOSS=shrink)");
  } else {
    say(end_of(child) + "; the others have " + to_string(options_.grace) + " to end");
    give_up_after_grace();
  }
}

// One that has lost a peer may be reported before that peer.
void Supervisor::blame(const Child& child) {
  const int status = exit_status_of(child.wait_status);
  if (status == 0 || child.stopping || child.killed) return;
  const int lost_peer = exit_code_of(ErrorCode::peer_lost);
  const bool is_replaced =
      culprit_ && exit_status_of(culprit_->wait_status) == lost_peer && status != lost_peer;
  if (culprit_ && !is_replaced) return;
  culprit_ = Culprit{child.name, child.wait_status, {}};
  for (const Child& other : children_) {
    if (other.role == Role::worker && !other.running && other.wait_status == 0)
      culprit_->ended_before.push_back(other.name);
  }
}

void Supervisor::give_up_after_grace() {
  const TimePoint at = now() + options_.grace;
  if (!give_up_at_ || at < *give_up_at_) give_up_at_ = at;
}

void Supervisor::read_output(Child& child, int& fd, LinePrefixer& prefixer, OutputQueue& queue) {
  // A daemon warns of workers that go away, which is news to nobody once the run is ending.
  const bool shown = child.role == Role::worker || options_.verbose || !is_ending();
  std::string& lines = shown ? queue.lines() : child.unseen;
  char bytes[16 * 1024];
  while (fd >= 0 && !queue.full()) {
    const ssize_t count = ::read(fd, bytes, sizeof bytes);
    if (count > 0) {
      prefixer.feed({bytes, static_cast<std::size_t>(count)}, lines);
      if (child.unseen.size() > kMostUnseen) child.unseen.erase(0, child.unseen.size() - kMostUnseen);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && errno == EAGAIN) {
      return;
    } else {
      prefixer.finish(lines);
      close_if_open(fd);
    }
  }
}

void Supervisor::signal_all(Role role, int signal) {
  for (const Child& child : children_) {
    if (child.role == role && child.running) signal_group(child.process.pid, signal);
  }
}

void Supervisor::say(const std::string& text) {
  err_.lines().append("bps-run: ").append(text).push_back('\n');
}

bool Supervisor::any_running(Role role) const {
  return std::any_of(children_.begin(), children_.end(),
                     [role](const Child& child) { return child.role == role && child.running; });
}

}  // namespace bps
