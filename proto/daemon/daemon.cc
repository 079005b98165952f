#include "proto/daemon/daemon.h"

#include <signal.h>

#include <utility>

#include "proto/base/config/ports_file.h"
#include "proto/base/descriptor_limit.h"
#include "proto/base/log/log_timer.h"
#include "proto/base/log/output_signals.h"

namespace bps {

void add_daemon_access(Config& config, DaemonSettings& settings, const char* key_help) {
  add_access(config, settings.access, key_help, "TLS 1.3 for every connection: this program's certificate");
  config.add("insecure", settings.insecure,
             "Allow --listen on another address than loopback, without any key or TLS");
}

void add_daemon_output(Config& config, DaemonSettings& settings, const char* ports_help) {
  config.add("ports-file", settings.ports_file, ports_help).unit("FILE");
  config.add("log-level", settings.log_level, "error, warn, info, debug, trace or off");
}

std::optional<int> read_settings(Config& config, const DaemonSettings& settings, int argc,
                                 const char* const* argv, const Logger& log) {
  outlive_lost_outputs();
  if (const auto exit_code = config.parse_or_exit(argc, argv, log)) return exit_code;
  log.target()->set_level(settings.log_level);
  return std::nullopt;
}

Daemon::Daemon(const DaemonSettings& settings, Logger log) : settings_(settings), log_(std::move(log)) {}

Daemon::~Daemon() = default;

int Daemon::run() {
  Status status = begin();
  if (status) status = start();
  if (!status) return fail(status.error());
  loop_->run();
  return exit_code_;
}

Status Daemon::begin() {
  auto access = read_access(settings_.access);
  if (!access) return access.error();
  access_ = std::move(access).value();
  auto loop = AsioLoop::create();
  if (!loop) return loop.error();
  loop_ = std::move(loop).value();
  auto signals = SignalWatcher::watch(*loop_, {SIGTERM, SIGINT}, [this](int signal) { on_signal(signal); });
  if (!signals) return signals.error();
  signals_ = std::move(signals).value();
  log_timer_ = std::make_unique<LogTimer>(*loop_);
  return {};
}

void Daemon::on_signal(int signal) {
  if (!std::exchange(signalled_, true)) return stop(signal);
  log_.info("stops now");
  stop_now();
}

int Daemon::fail(const Error& error) const {
  log_.error("{}", to_string(error));
  return exit_code_of(error.code);
}

void Daemon::end(const Error& why) {
  if (why.code != ErrorCode::ok) exit_code_ = fail(why);
  loop_->stop();
}

Status Daemon::write_ports(const Endpoint& listen) const {
  return settings_.ports_file.empty() ? Status()
                                      : write_ports_file(settings_.ports_file, {{"listen", listen}});
}

std::size_t Daemon::max_greeting() { return max_unknown_connections(raise_descriptor_limit()); }

}  // namespace bps
