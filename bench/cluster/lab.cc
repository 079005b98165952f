#include "bench/cluster/lab.h"

#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>

namespace bps::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A host takes some milliseconds.
constexpr auto kLabPatience = std::chrono::seconds(60);

Result<std::string> find_netlab() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return make_error(ErrorCode::os, "cannot find out where bps-bench is: " + error.message());
  const auto folder = self.parent_path();
  for (const auto& path : {folder / "netlab", folder / "../libexec/bps/netlab"}) {
    if (::access(path.c_str(), X_OK) == 0) return path.lexically_normal().string();
  }
  return make_error(ErrorCode::os, "there is no netlab beside " + self.string(), "say where it is: --netlab");
}

struct Ended {
  int exit_status = 0;
  std::string words;  // what it wrote
};

// Runs a program to its end.
Result<Ended> run_to_end(const Command& command) {
  const auto process = start_process(command);
  if (!process) return process.error();
  Ended ended;
  std::array<pollfd, 2> fds = {{{process->out, POLLIN, 0}, {process->err, POLLIN, 0}}};
  const auto deadline = Clock::now() + kLabPatience;
  const auto open = [](const pollfd& fd) { return fd.fd >= 0; };
  while (std::any_of(fds.begin(), fds.end(), open) && Clock::now() < deadline) {
    ::poll(fds.data(), fds.size(), 100);
    for (pollfd& fd : fds) {
      if (fd.revents == 0) continue;
      char text[4096];
      const ssize_t got = ::read(fd.fd, text, sizeof text);
      if (got > 0) ended.words.append(text, static_cast<std::size_t>(got));
      if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) continue;
      ::close(fd.fd);
      fd.fd = -1;
    }
  }
  const bool late = std::any_of(fds.begin(), fds.end(), open);
  for (const pollfd& fd : fds) {
    if (open(fd)) ::close(fd.fd);
  }
  if (late) signal_group(process->pid, SIGKILL);
  int wait_status = 0;
  ::waitpid(process->pid, &wait_status, 0);
  if (late) return make_error(ErrorCode::deadline, command.file + " does not end: " + ended.words);
  ended.exit_status = exit_status_of(wait_status);
  return ended;
}

ErrorCode code_of_exit(int exit_status) {
  switch (exit_status) {
    case 64: return ErrorCode::invalid_argument;
    case 77: return ErrorCode::unauthorised;
    case 78: return ErrorCode::configuration;
    default: return ErrorCode::os;
  }
}

}  // namespace

Lab::Lab(std::string program)
    : program_(std::move(program)), name_("bps-bench-" + std::to_string(::getpid())) {}

Lab::~Lab() {
  if (up_) (void)run({"down"}).ok();
}

Result<std::unique_ptr<Lab>> Lab::up(const std::string& program, std::uint32_t hosts, const LabLink& link) {
  const auto found = program.empty() ? find_netlab() : Result<std::string>(program);
  if (!found) return found.error();
  std::unique_ptr<Lab> lab(new Lab(*found));
  std::vector<std::string> up = {"up", std::to_string(hosts), to_string(link.rate)};
  if (link.delay > Duration::zero()) {
    const auto us = std::chrono::duration<double, std::micro>(link.delay).count();
    up.insert(up.end(), {"--delay", fmt::format("{}us", us)});
  }
  if (!link.loss.empty()) up.insert(up.end(), {"--loss", link.loss});
  // What netlab has not finished it removes itself.
  if (Status status = lab->run(std::move(up)); !status) return std::move(status).error();
  lab->up_ = true;
  return lab;
}

Status Lab::set_rate(std::uint32_t host, BitRate rate) {
  return run({"rate", name_of(host), to_string(rate)});
}

Status Lab::run(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), program_);
  arguments.insert(arguments.end(), {"--name", name_});
  const auto ended = run_to_end({program_, std::move(arguments), environment_now()});
  if (!ended) return ended.error();
  if (ended->exit_status == 0) return {};
  std::string words = ended->words;
  std::replace(words.begin(), words.end(), '\n', ' ');
  while (!words.empty() && words.back() == ' ')
    words.pop_back();
  return make_error(code_of_exit(ended->exit_status), words.empty() ? program_ + " failed" : words,
                    ended->exit_status == 77 ? "without --link no root is needed" : "");
}

Command Lab::on_host(std::uint32_t host, Command command) const {
  std::vector<std::string> arguments = {program_, "exec", "--name", name_, name_of(host), command.file};
  arguments.insert(arguments.end(), command.arguments.begin() + 1, command.arguments.end());
  command.file = program_;
  command.arguments = std::move(arguments);
  return command;
}

std::string Lab::name_of(std::uint32_t host) { return fmt::format("h{}", host); }

std::string Lab::address_of(std::uint32_t host) { return fmt::format("10.88.0.{}", host + 1); }

}  // namespace bps::bench
