#include "deploy/bps_run/process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <fstream>

namespace bps {
namespace {

struct Pipe {
  int read = -1;
  int write = -1;

  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    if (read >= 0) ::close(read);
    if (write >= 0) ::close(write);
  }
  bool open() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) return false;
    read = fds[0];
    write = fds[1];
    return true;
  }
  int take_read() {
    const int fd = read;
    read = -1;
    return fd;
  }
};

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings)
    pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(const char* file, char* const* arguments, char* const* environment, pid_t parent,
                         int out, int err, int report) {
  const auto give_up = [report] {
    const int cause = errno;
    [[maybe_unused]] const ssize_t ignored = ::write(report, &cause, sizeof cause);
    ::_exit(127);
  };
  ::setpgid(0, 0);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up();
  if (::getppid() != parent) ::_exit(127);  // it died before the line above
  const int null = ::open("/dev/null", O_RDONLY);
  if (null < 0 || ::dup2(null, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) give_up();
  if (null > 2) ::close(null);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  ::signal(SIGTTOU, SIG_DFL);
  // A shell without job control starts `bps-run &` with these ignored.
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGQUIT, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(file, arguments, environment);
  give_up();
  ::_exit(127);
}

std::vector<pid_t> children_of_self() {
  const std::string self = std::to_string(::getpid());
  std::ifstream in("/proc/" + self + "/task/" + self + "/children");
  std::vector<pid_t> children;
  for (pid_t pid = 0; in >> pid;)
    children.push_back(pid);
  return children;
}

}  // namespace

Result<Process> start_process(const Command& command) {
  Pipe out, err, report;
  if (!out.open() || !err.open() || !report.open()) return os_error("pipe", errno, "raise `ulimit -n`");
  for (const int fd : {out.read, err.read})
    ::fcntl(fd, F_SETFL, O_NONBLOCK);

  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> variables;
  for (const auto& [name, value] : command.environment)
    variables.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> envp = pointers_to(variables);

  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return os_error("fork", errno, "raise `ulimit -u`, or start fewer workers");
  if (pid == 0)
    become(command.file.c_str(), argv.data(), envp.data(), parent, out.write, err.write, report.write);
  ::setpgid(pid, pid);  // whoever comes first, child or we: the group exists when this returns

  ::close(report.write);
  report.write = -1;
  int cause = 0;
  ssize_t count;
  do {
    count = ::read(report.read, &cause, sizeof cause);
  } while (count < 0 && errno == EINTR);
  if (count == sizeof cause) {
    ::waitpid(pid, nullptr, 0);
    return os_error("cannot run " + command.file, cause);
  }
  return Process{pid, out.take_read(), err.take_read()};
}

void signal_group(pid_t leader, int signal) { ::kill(-leader, signal); }

void kill_descendants() {
  sigset_t child_ended;
  ::sigemptyset(&child_ended);
  ::sigaddset(&child_ended, SIGCHLD);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (std::chrono::steady_clock::now() < deadline) {
    // Children of what dies here become ours, and are next.
    for (const pid_t pid : children_of_self())
      ::kill(pid, SIGKILL);
    pid_t reaped;
    while ((reaped = ::waitpid(-1, nullptr, WNOHANG)) > 0) {}
    if (reaped < 0 && errno == ECHILD) return;
    const timespec patience{0, 50'000'000};
    ::sigtimedwait(&child_ended, nullptr, &patience);
  }
}

std::string describe_wait_status(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return "exit status " + std::to_string(WEXITSTATUS(wait_status));
  const int signal = WTERMSIG(wait_status);
  return "signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

int exit_status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

FoundProgram find_program(const std::string& name, const Environment& environment) {
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else if (!name.empty()) {
    const std::string path = find(environment, "PATH").value_or("/usr/local/bin:/usr/bin:/bin");
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t end = std::min(path.find(':', begin), path.size());
      const std::string folder = path.substr(begin, end - begin);
      candidates.push_back((folder.empty() ? "." : folder) + "/" + name);
      begin = end + 1;
    }
  }
  FoundProgram result{name, 127, "program '" + name + "' not found"};
  for (const std::string& candidate : candidates) {
    struct stat info {};
    if (::stat(candidate.c_str(), &info) != 0) continue;
    if (S_ISREG(info.st_mode) && ::access(candidate.c_str(), X_OK) == 0) return {candidate, 0, ""};
    if (result.exit_status == 127) {
      result = {candidate, 126, "program '" + candidate + "' is not an executable file"};
    }
  }
  struct stat here {};
  const bool is_bare = !name.empty() && name.find('/') == std::string::npos;
  if (result.exit_status == 127 && is_bare && ::stat(name.c_str(), &here) == 0 && S_ISREG(here.st_mode)) {
    result = {name, 127,
              "program '" + name + "' not found in PATH; if you mean the file here, write ./" + name};
  }
  return result;
}

}  // namespace bps
