// One run of a cluster on this host: scheduler, then servers, then workers; their output; their end.
//
// Lives on: the one thread of its process, in poll(): signals come through a signalfd, the launcher's death
// through a pidfd, new ports files through inotify. Owns the children, and through PR_SET_CHILD_SUBREAPER
// whatever they leave behind: when run() returns no descendant is alive, however the run ended.
//
// On failure: when a worker fails the others have `grace` to end with their own error, then SIGTERM comes,
// then SIGKILL; in a job that shrinks they go on. A signal from outside gives all workers `grace`. A daemon
// that dies is reported; what that means is for the workers to say. The run ends with the status of the
// worker that failed first: of those that fail within the grace, one that has lost a peer (75) did not, if
// another has a status of its own. Those that the kernel reports together may have ended in any order. After
// a signal from outside it ends with that signal, if a worker died of what we sent, or lost a peer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deploy/bps_run/line_prefixer.h"
#include "deploy/bps_run/options.h"
#include "deploy/bps_run/output_queue.h"
#include "deploy/bps_run/process.h"
#include "proto/base/endpoint.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"

namespace bps {

class Supervisor {
 public:
  // `folder`: private, exists, for ports files and the run's key; the caller removes it. `launcher`: pidfd of
  // the process that waits for us.
  Supervisor(const RunOptions& options, std::string folder, int launcher);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // The exit status of the whole run. Call once, with run_signals() blocked.
  int run();

 private:
  enum class Role : std::uint8_t { scheduler, server, worker };

  struct Child {
    Role role;
    std::string name;        // "worker 2"
    std::string ports_file;  // of a daemon
    std::optional<Endpoint> endpoint;
    Process process;
    LinePrefixer out;
    LinePrefixer err;
    std::string unseen;  // output that is shown only if it ends badly
    bool running = true;
    bool stopping = false;  // we asked it to end
    bool killed = false;    // by us
    int wait_status = 0;    // once it has ended
  };

  Status open_descriptors();
  Status start(Role role, std::uint32_t index, Command command);
  Status start_daemons();
  Status start_daemon(Role role, std::uint32_t index, const std::string& file);
  Status wait_for_ports(TimePoint deadline);
  Status start_workers();
  void watch_workers();
  void stop_workers(TimePoint now);
  void kill_workers();
  void stop_daemons(Role role);
  void drain();
  void name_culprit();
  std::string ended_before() const;
  bool ended_by_signal(const Child& child) const;
  int exit_status() const;

  void pump(std::optional<TimePoint> until);
  void read_signals();
  void reap();
  static std::string end_of(const Child& child);
  void note_end(Child& child);
  void note_worker_end(Child& child);
  void blame(const Child& child);
  void give_up_after_grace();
  void read_output(Child& child, int& fd, LinePrefixer& prefixer, OutputQueue& queue);
  void signal_all(Role role, int signal);
  void say(const std::string& text);

  bool any_running(Role role) const;
  // What daemons warn of from now on follows from that.
  bool is_ending() const { return interrupted() || culprit_.has_value(); }
  bool interrupted() const { return launcher_gone_ || first_signal_ != 0; }

  const RunOptions& options_;
  const std::string folder_;
  const std::string key_file_;
  const int launcher_;
  int signals_ = -1;
  int watch_ = -1;
  OutputQueue out_;
  OutputQueue err_;
  std::vector<Child> children_;
  bool workers_started_ = false;
  struct Culprit {
    std::string name;
    int wait_status;
    std::vector<std::string> ended_before;  // with 0
  };
  std::optional<Culprit> culprit_;  // the worker that failed first, or ended last in a job that shrinks

  bool launcher_gone_ = false;
  int first_signal_ = 0;
  bool kill_now_ = false;  // a second signal, or nobody waits for us any more
  bool timed_out_ = false;
  std::optional<TimePoint> give_up_at_;  // the next step against workers that do not end
  int start_failure_ = 0;                // exit status of a run that never came to its workers
};

// What a run handles itself: SIGINT, SIGTERM, SIGQUIT, SIGCHLD, and SIGHUP unless it is ignored (nohup).
// Block them before the first child.
sigset_t run_signals();

}  // namespace bps
