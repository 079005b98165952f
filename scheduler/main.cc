// bps-scheduler: the settings of a Scheduler, and a Daemon around it.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <span>

#include "proto/auth/key_file.h"
#include "proto/base/config/config.h"
#include "proto/base/config/units.h"
#include "proto/daemon/daemon.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "proto/wire/names.h"
#include "scheduler/scheduler.h"
#include "scheduler/state_dir.h"

namespace bps {
namespace {

struct Settings {
  Endpoint listen{"127.0.0.1", 4710};
  DaemonSettings daemon;
  std::optional<std::string> print_job_key;
  Duration heartbeat_deadline = kHeartbeatTimeout;
  Duration reconnect_grace = FailureDetector::Options{}.reconnect_grace;
  Duration server_wait{};
  std::string state_dir;
};

void describe(Config& config, Settings& s) {
  config.add("listen", s.listen, "Where workers and servers connect; port 0: any free one");
  add_daemon_access(config, s.daemon, "The cluster's key, which everyone who connects must prove to have");
  config
      .add("print-job-key", s.print_job_key,
           "Print a key file for the workers of this job, made from --key-file, and end")
      .unit("JOB");
  config.add("heartbeat-deadline", s.heartbeat_deadline,
             "A worker or server that is silent this long is dead");
  config.add("reconnect-grace", s.reconnect_grace,
             "A worker or server whose connection is lost is dead after this");
  config.add(
      "server-wait", s.server_wait,
      "How long a job that has not started waits while no server is there; 0 = as long as its workers");
  config
      .add("state-dir", s.state_dir,
           "Remember here what a restarted scheduler should know: its term, and whose runs there are")
      .unit("FOLDER");
  add_daemon_output(config, s.daemon, "Write the listening address to this file");
}

Status check(const Settings& s) {
  if (s.heartbeat_deadline < 2 * kHeartbeatInterval) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("--heartbeat-deadline {} leaves no room for heartbeats, which come every {}",
                    to_string(s.heartbeat_deadline), to_string(kHeartbeatInterval)),
        fmt::format("give at least {}", to_string(2 * kHeartbeatInterval)));
  }
  if (s.reconnect_grace < Duration::zero()) {
    return make_error(ErrorCode::invalid_argument, "--reconnect-grace is negative");
  }
  if (s.server_wait < Duration::zero()) {
    return make_error(ErrorCode::invalid_argument, "--server-wait is negative");
  }
  return {};
}

// The key is the program's output here, and nowhere else.
Status print_job_key(const std::string& job, const SharedKey& cluster) {
  if (cluster == nullptr) {
    return make_error(ErrorCode::invalid_argument, "--print-job-key makes it from the cluster's key",
                      "give --key-file too");
  }
  if (Status status = check_name("job name", job, kMaxNameBytes); !status) return status;
  std::string line = job_key_line(*derive_job_key(*cluster, job), job);
  const bool whole = std::fputs(line.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  wipe(std::as_writable_bytes(std::span(line)));
  return whole ? Status{} : os_error("cannot print the key", errno);
}

class Program final : public Daemon {
 public:
  Program(const Settings& settings, const Logger& log) : Daemon(settings.daemon, log), settings_(settings) {}

 private:
  Status start() override {
    TcpOptions tcp;
    tcp.tls = access().tls;
    tcp.log = log();
    transport_ = std::make_unique<TcpTransport>(tcp);
    SchedulerOptions options;
    options.listen = settings_.listen;
    options.key = access().key;
    options.insecure = settings_.daemon.insecure;
    options.mutual_tls = access().tls != nullptr;
    // Every worker and server of every job is one descriptor.
    options.max_greeting = max_greeting();
    options.core.detector = {settings_.heartbeat_deadline, settings_.reconnect_grace};
    options.core.job.server_wait = settings_.server_wait;
    options.superseded = [this](const Error& error) { end(error); };
    options.ended = [this] { end(); };
    if (Status status = remember(options); !status) return status;
    scheduler_ = std::make_unique<Scheduler>(loop(), *transport_, std::move(options), log());
    if (Status status = scheduler_->start(); !status) return status;
    return write_ports(scheduler_->endpoint());
  }

  // A term that is higher than that of any scheduler before, as far as it can be known.
  Status remember(SchedulerOptions& options) {
    const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
    options.core.term = static_cast<std::uint64_t>(
        std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count()));
    if (settings_.state_dir.empty()) return {};
    auto dir = StateDir::open(settings_.state_dir, log());
    if (!dir) return dir.error();
    state_dir_ = std::move(dir).value();
    options.core.before = state_dir_->found();
    options.core.term = std::max(options.core.term, options.core.before.term + 1);
    options.save = [this](const SchedulerState& state) { state_dir_->save(state); };
    SchedulerState now = options.core.before;
    now.term = options.core.term;
    state_dir_->save_first(now);
    return {};
  }

  // As if it were killed, but for its last state: it comes back, or another one does. One that ends its
  // cluster is about to end by itself: those who wait for that get their answer first.
  void stop(int signal) override {
    const SchedulerCore& core = scheduler_->core();
    if (core.asked_to_end()) return;
    log().info("stops ({}): {} and {} go on for their --scheduler-grace; bpsctl shutdown would end them",
               signal == SIGTERM ? "SIGTERM" : "SIGINT", counted(core.job_count(), "job"),
               counted(core.server_count(), "server"));
    if (state_dir_ != nullptr) state_dir_->save(core.state());
    stop_now();
  }

  void stop_now() override {
    scheduler_->stop();
    end();
  }

  const Settings& settings_;
  std::unique_ptr<StateDir> state_dir_;
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<Scheduler> scheduler_;
};

int run(int argc, char** argv) {
  Settings settings;
  Config config("bps-scheduler", "Brings workers and servers of training jobs together.");
  describe(config, settings);
  const Logger log("scheduler");
  if (const auto exit_code = read_settings(config, settings.daemon, argc, argv, log)) return *exit_code;
  Status status = check(settings);
  if (status && settings.print_job_key) {
    const auto key = read_key(settings.daemon.access);
    status = key ? print_job_key(*settings.print_job_key, *key) : key.error();
    if (status) return 0;
  }
  if (status) return Program(settings, log).run();
  log.error("{}", to_string(status.error()));
  return exit_code_of(status.error().code);
}

}  // namespace
}  // namespace bps

int main(int argc, char** argv) { return bps::run(argc, argv); }
