#include "proto/base/log/log_output.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "proto/base/unique_fd.h"

namespace bps {
namespace {

// A pipe takes so much at once or nothing.
constexpr std::size_t kPiece = PIPE_BUF;

// A pipe that nobody reads is an error here, and no signal to the caller's thread.
ssize_t write_to_reader(int fd, std::span<const char> bytes) {
  pollfd end{fd, POLLOUT, 0};
  if (::poll(&end, 1, 0) > 0 && (end.revents & POLLERR) == 0) return ::write(fd, bytes.data(), bytes.size());
  errno = (end.revents & POLLERR) != 0 ? EPIPE : EAGAIN;
  return -1;
}

// -1: as write(2) has it.
ssize_t write_without_waiting(int fd, std::span<const char> bytes) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return -1;
  if (S_ISSOCK(file.st_mode)) return ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (!S_ISFIFO(file.st_mode) && !S_ISCHR(file.st_mode)) return ::write(fd, bytes.data(), bytes.size());
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0 && (flags & O_NONBLOCK) != 0) return write_to_reader(fd, bytes);
  // O_NONBLOCK belongs to everyone who has the same open file: hence one of our own, for this write.
  const std::string name = fmt::format("/proc/self/fd/{}", fd);
  const UniqueFd own(::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (own) return write_to_reader(own.get(), bytes);
  if (errno == ENXIO) {  // a named pipe that nobody reads
    errno = EPIPE;
    return -1;
  }
  // Not ours to open. Poll says whether there is room for a piece; somebody else may still be faster.
  return write_to_reader(fd, bytes);
}

}  // namespace

LogOutput::Outcome LogOutput::write_now(std::span<const char> bytes, std::size_t& written) const {
  while (written < bytes.size()) {
    const auto rest = bytes.subspan(written);
    const ssize_t count = write_without_waiting(fd_, rest.first(std::min(rest.size(), kPiece)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Outcome::no_room : Outcome::refused;
    written += static_cast<std::size_t>(count);
  }
  return Outcome::written;
}

LogOutput::Outcome LogOutput::write_gap() {
  const std::string line = gap_(dropped_);
  std::size_t written = 0;
  const Outcome outcome = write_now(line, written);
  if (outcome != Outcome::no_room) dropped_ = 0;
  if (outcome != Outcome::no_room || written == 0) return outcome;
  // Of what is no pipe, a piece may have been taken.
  dropped_ = 0;
  kept_.push_front(line);
  kept_bytes_ += line.size();
  begun_ = written;
  return outcome;
}

LogOutput::Outcome LogOutput::write_front() {
  if (dropped_ > 0 && begun_ == 0) {
    if (const Outcome outcome = write_gap(); outcome != Outcome::written) return outcome;
  }
  if (kept_.empty()) return Outcome::written;
  const Outcome outcome = write_now(kept_.front(), begun_);
  if (outcome != Outcome::no_room) drop_front();
  return outcome;
}

void LogOutput::drop_front() {
  kept_bytes_ -= kept_.front().size();
  kept_.pop_front();
  begun_ = 0;
}

void LogOutput::write(std::string line) {
  kept_bytes_ += line.size();
  kept_.push_back(std::move(line));
  write_kept();
  while (kept_bytes_ > kMaxKeptBytes && kept_.size() > 1) {
    const auto oldest = kept_.begin() + (begun_ > 0 ? 1 : 0);
    kept_bytes_ -= oldest->size();
    kept_.erase(oldest);
    ++dropped_;
  }
}

bool LogOutput::write_kept() {
  while (has_kept()) {
    if (write_front() == Outcome::no_room) return false;
  }
  return true;
}

bool LogOutput::write_kept(Duration patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!write_kept()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd room{fd_, POLLOUT, 0};
    ::poll(&room, 1, static_cast<int>(left.count()));
  }
  return true;
}

}  // namespace bps
