// The processes that a benchmark starts, and how it speaks to them: their control connections, what they
// write, how they end.
//
// Owner: Cluster. One thread; SIGINT, SIGTERM and SIGCHLD are blocked from open() on. A child that ends
// before it was told to, and a signal to this process, are errors of whatever is being waited for: one that
// names the process and shows the last lines it wrote. The destructor ends what is left and removes the
// folder of temporary files.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "bench/cluster/control.h"
#include "deploy/bps_run/process.h"
#include "proto/base/result.h"

namespace bps::bench {

struct Child {
  std::string name;  // what it says in its hello
  pid_t pid = 0;     // 0: it has ended
  int out = -1;
  int err = -1;
  std::string last_words;
  std::optional<std::string> end;  // how it ended
  ErrorCode why = ErrorCode::peer_lost;
  Fd control;
  std::optional<Reply> reply;  // not yet taken
};

class Children {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // `verbose`: what children write goes to stderr as it comes.
  explicit Children(bool verbose) : verbose_(verbose) {}
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  Status open();
  // A new folder, and in it the socket where children say hello. After open().
  const std::string& folder() const { return folder_; }
  std::string control_path() const { return folder_ + "/control"; }

  Result<Child*> start(std::string name, const Command& command);

  // Handles what children say, send and do until `done`; fails when one of them does, on a signal, and at the
  // deadline: "gave up waiting for `what`".
  Status wait_until(Deadline deadline, const std::string& what, const std::function<bool()>& done);
  // Once, at most until the deadline or for a second.
  Status poll_once(Deadline deadline);

  // Asks those that `concerned` means to end, and gives them a few seconds.
  void end(const std::function<bool(const Child&)>& concerned);
  // The same without asking.
  void await_end(const std::function<bool(const Child&)>& concerned);

  // They stay where they are.
  std::list<Child>& all() { return children_; }
  const std::list<Child>& all() const { return children_; }
  Error failure_of(const Child& child) const;

 private:
  Status make_folder();
  Status read_hello();
  Status read_signals();
  bool read_output(Child& child);
  Status reap();

  const bool verbose_;
  std::string folder_;
  Fd listener_;
  std::vector<Fd> pending_;  // connected, hello not yet read
  Fd signals_;
  std::list<Child> children_;
};

}  // namespace bps::bench
