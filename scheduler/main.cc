// bps-scheduler: settings, signals and a loop around a Scheduler.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <span>

#include "proto/auth/key_file.h"
#include "proto/base/config/config.h"
#include "proto/base/config/ports_file.h"
#include "proto/base/descriptor_limit.h"
#include "proto/base/log/log_timer.h"
#include "proto/base/log/output_signals.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "proto/wire/names.h"
#include "scheduler/scheduler.h"
#include "scheduler/state_dir.h"

namespace bps {
namespace {

struct Settings {
  Endpoint listen{"127.0.0.1", 4710};
  std::string key_file;
  TlsFiles tls;
  std::optional<std::string> print_job_key;
  bool insecure = false;
  Duration heartbeat_deadline = kHeartbeatTimeout;
  Duration reconnect_grace = FailureDetector::Options{}.reconnect_grace;
  std::string state_dir;
  std::string ports_file;
  LogLevel log_level = LogLevel::info;
};

void describe(Config& config, Settings& s) {
  config.add("listen", s.listen, "Where workers and servers connect; port 0: any free one");
  config.add("key-file", s.key_file, "The cluster's key, which everyone who connects must prove to have")
      .unit("FILE");
  config.add("tls-cert", s.tls.certificate, "TLS 1.3 for every connection: this program's certificate")
      .unit("FILE");
  config.add("tls-key", s.tls.key, "The key of --tls-cert").unit("FILE");
  config.add("tls-ca", s.tls.authority, "Who must have signed the certificates of the others").unit("FILE");
  config.add("insecure", s.insecure,
             "Allow --listen on another address than loopback, without any key or TLS");
  config
      .add("print-job-key", s.print_job_key,
           "Print a key file for the workers of this job, made from --key-file, and end")
      .unit("JOB");
  config.add("heartbeat-deadline", s.heartbeat_deadline,
             "A worker or server that is silent this long is dead");
  config.add("reconnect-grace", s.reconnect_grace,
             "A worker or server whose connection is lost is dead after this");
  config
      .add("state-dir", s.state_dir,
           "Remember here what a restarted scheduler should know: its term, and whose runs there are")
      .unit("FOLDER");
  config.add("ports-file", s.ports_file, "Write the listening address to this file").unit("FILE");
  config.add("log-level", s.log_level, "error, warn, info, debug, trace or off");
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

class Program {
 public:
  Program(const Settings& settings, SharedKey key, SharedTls tls, const Logger& log)
      : settings_(settings), key_(std::move(key)), tls_(std::move(tls)), log_(log) {}

  int run() {
    if (Status status = start(); !status) return fail(status.error());
    loop_->run();
    return exit_code_;
  }

 private:
  int fail(const Error& error) {
    log_.error("{}", to_string(error));
    return exit_code_of(error.code);
  }

  Status start() {
    auto loop = AsioLoop::create();
    if (!loop) return loop.error();
    loop_ = std::move(loop).value();
    auto signals = SignalWatcher::watch(*loop_, {SIGTERM, SIGINT}, [this](int signal) { on_signal(signal); });
    if (!signals) return signals.error();
    signals_ = std::move(signals).value();
    log_timer_ = std::make_unique<LogTimer>(*loop_);
    TcpOptions tcp;
    tcp.tls = tls_;
    tcp.log = log_;
    transport_ = std::make_unique<TcpTransport>(tcp);
    SchedulerOptions options;
    options.listen = settings_.listen;
    options.key = key_;
    options.insecure = settings_.insecure;
    options.mutual_tls = tls_ != nullptr;
    // Every worker and server of every job is one descriptor.
    options.max_greeting = max_unknown_connections(raise_descriptor_limit());
    options.core.detector = {settings_.heartbeat_deadline, settings_.reconnect_grace};
    options.superseded = [this](const Error& error) {
      exit_code_ = fail(error);
      loop_->stop();
    };
    if (Status status = remember(options); !status) return status;
    scheduler_ = std::make_unique<Scheduler>(*loop_, *transport_, std::move(options), log_);
    if (Status status = scheduler_->start(); !status) return status;
    if (settings_.ports_file.empty()) return {};
    return write_ports_file(settings_.ports_file, {{"listen", scheduler_->endpoint()}});
  }

  // A term that is higher than that of any scheduler before, as far as it can be known.
  Status remember(SchedulerOptions& options) {
    const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
    options.core.term = static_cast<std::uint64_t>(
        std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::seconds>(since_epoch).count()));
    if (settings_.state_dir.empty()) return {};
    auto dir = StateDir::open(settings_.state_dir, log_);
    if (!dir) return dir.error();
    state_dir_ = std::move(dir).value();
    options.core.before = state_dir_->found();
    options.core.term = std::max(options.core.term, options.core.before.term + 1);
    options.save = [this](const SchedulerState& state) { state_dir_->save(state); };
    SchedulerState now = options.core.before;
    now.term = options.core.term;
    return state_dir_->save_now(now);
  }

  // The first one tells everyone, a second one does not wait for them.
  void on_signal(int signal) {
    if (std::exchange(signalled_, true)) {
      log_.info("stops now");
      scheduler_->stop();
      return loop_->stop();
    }
    const char* const name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
    scheduler_->shut_down(make_error(ErrorCode::peer_lost,
                                     fmt::format("the scheduler at {} is stopping ({})",
                                                 to_string(scheduler_->endpoint()), name),
                                     "start the job again when a scheduler is there"),
                          [this] { loop_->stop(); });
  }

  const Settings& settings_;
  const SharedKey key_;
  const SharedTls tls_;
  const Logger log_;
  bool signalled_ = false;
  int exit_code_ = 0;
  std::unique_ptr<StateDir> state_dir_;
  std::unique_ptr<AsioLoop> loop_;
  std::unique_ptr<SignalWatcher> signals_;
  std::unique_ptr<LogTimer> log_timer_;
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<Scheduler> scheduler_;
};

int run(int argc, char** argv) {
  outlive_lost_outputs();
  Settings settings;
  Config config("bps-scheduler", "Brings workers and servers of training jobs together.");
  describe(config, settings);
  const Logger log("scheduler");
  if (const auto exit_code = config.parse_or_exit(argc, argv, log)) return *exit_code;
  log.target()->set_level(settings.log_level);
  const auto fail = [&log](const Error& error) {
    log.error("{}", to_string(error));
    return exit_code_of(error.code);
  };
  if (const Status status = check(settings); !status) return fail(status.error());
  SharedKey key;
  if (!settings.key_file.empty()) {
    auto read = read_cluster_key(settings.key_file);
    if (!read) return fail(read.error());
    key = std::move(read).value();
  }
  if (settings.print_job_key) {
    const Status status = print_job_key(*settings.print_job_key, key);
    return status ? 0 : fail(status.error());
  }
  auto tls = load_tls(settings.tls);
  if (!tls) return fail(tls.error());
  return Program(settings, std::move(key), std::move(tls).value(), log).run();
}

}  // namespace
}  // namespace bps

int main(int argc, char** argv) { return bps::run(argc, argv); }
