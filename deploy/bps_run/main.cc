// bps-run: a whole cluster on this host, for demos, tests and single machines.
//
// Two processes, so that nothing outlives a run even if one of them is killed with SIGKILL: the launcher,
// which the user started and signals, and the supervisor, which owns the children. If the launcher dies, the
// supervisor notices and ends everything; if the supervisor dies, its children die with it and what they had
// started comes to the launcher.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>

extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 declares it for C only
}

#include "deploy/bps_run/options.h"
#include "deploy/bps_run/process.h"
#include "deploy/bps_run/supervisor.h"
#include "proto/base/error.h"
#include "proto/base/log/output_signals.h"

namespace bps {
namespace {

int fail(const char* what) {
  std::fprintf(stderr, "bps-run: %s: %s\n", what, std::strerror(errno));
  return exit_code_of(ErrorCode::os);
}

// Private (0700) and removed by whichever of the two processes ends last.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    const std::filesystem::path base = std::filesystem::temp_directory_path(error);
    path_ = (error ? std::filesystem::path("/tmp") : base) / "bps-run.XXXXXX";
    made_ = ::mkdtemp(path_.data()) != nullptr;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (made_) std::filesystem::remove_all(path_, ignored);
  }
  bool made() const { return made_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool made_ = false;
};

// In a group of its own: a Ctrl-C reaches the launcher only, and the supervisor once, through it. Under
// another name, so that `killall -9 bps-run` leaves it to clean up.
int supervise(const RunOptions& options, const std::string& folder, int launcher) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "bps-run-super");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGTTOU, SIG_IGN);  // `stty tostop` must not stop us
  return Supervisor(options, folder, launcher).run();
}

int launch(const RunOptions& options) {
  outlive_lost_outputs();
  const sigset_t signals = run_signals();
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);

  const TemporaryFolder folder;
  if (!folder.made()) return fail(folder.path().c_str());
  const int self = ::pidfd_open(::getpid(), 0);
  if (self < 0) return fail("pidfd_open");
  const pid_t supervisor = ::fork();
  if (supervisor < 0) return fail("fork");
  if (supervisor == 0) return supervise(options, folder.path(), self);
  ::close(self);

  while (true) {
    const int signal = ::sigwaitinfo(&signals, nullptr);
    if (signal == SIGCHLD) {
      int wait_status = 0;
      if (::waitpid(supervisor, &wait_status, WNOHANG) != supervisor) continue;
      kill_descendants();
      if (WIFEXITED(wait_status)) return WEXITSTATUS(wait_status);
      std::fprintf(stderr, "bps-run: the supervisor ended: %s\n", describe_wait_status(wait_status).c_str());
      return exit_status_of(wait_status);
    }
    if (signal > 0) ::kill(supervisor, signal);
  }
}

}  // namespace
}  // namespace bps

int main(int argc, char** argv) {
  const auto options = bps::read_options(argc, argv);
  if (const int* exit_status = std::get_if<int>(&options)) return *exit_status;
  return bps::launch(std::get<bps::RunOptions>(options));
}
