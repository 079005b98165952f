// What bps-scheduler and bps-server have in common around what they do: settings, key and certificates, the
// control loop, signals, the ports file, the exit status.
//
//   main: Config -> add_daemon_access, add_daemon_output -> read_settings -> Daemon::run
//
// The first SIGTERM or SIGINT ends the program in good order, a second one without waiting. An error that
// ends it is one line in the log, and its code is the exit status.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "proto/base/endpoint.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/daemon/access.h"

namespace bps {

class LogTimer;

struct DaemonSettings {
  AccessSettings access;
  bool insecure = false;
  std::string ports_file;
  LogLevel log_level = LogLevel::info;
};

// In --help these come near the beginning and at the end.
void add_daemon_access(Config& config, DaemonSettings& settings, const char* key_help);
void add_daemon_output(Config& config, DaemonSettings& settings, const char* ports_help);

// Parses, and sets up the log; from then on a lost output does not end the program. Returns the exit status
// if the program should end now.
std::optional<int> read_settings(Config& config, const DaemonSettings& settings, int argc,
                                 const char* const* argv, const Logger& log);

// Lives on: its loop, which run() runs on the calling thread. What derives from it is destroyed before that
// loop.
class Daemon {
 public:
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  virtual ~Daemon();

  // Returns the exit status once end() was called, or start() has failed. Call once.
  int run();

 protected:
  Daemon(const DaemonSettings& settings, Logger log);

  // Before the loop runs; access() is there.
  virtual Status start() = 0;
  // The first signal.
  virtual void stop(int signal) = 0;
  // A second one.
  virtual void stop_now() = 0;

  // The loop stops; an error other than `ok` is logged and becomes the exit status.
  void end(const Error& why = {});
  // Nothing without --ports-file.
  Status write_ports(const Endpoint& listen) const;
  // How many connections that have not said who they are may be open; raises the limit of descriptors.
  static std::size_t max_greeting();

  AsioLoop& loop() { return *loop_; }
  const Access& access() const { return access_; }
  const Logger& log() const { return log_; }

 private:
  Status begin();
  int fail(const Error& error) const;
  void on_signal(int signal);

  const DaemonSettings& settings_;
  const Logger log_;
  Access access_;
  int exit_code_ = 0;
  bool signalled_ = false;
  std::unique_ptr<AsioLoop> loop_;
  std::unique_ptr<SignalWatcher> signals_;
  std::unique_ptr<LogTimer> log_timer_;
};

}  // namespace bps
