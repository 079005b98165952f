#include "proto/base/config/secret_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "proto/base/unique_fd.h"

namespace bps {
namespace {

Status check_owner(int fd, const std::string& name, const std::string& path, const std::string& advice) {
  const auto bad = [&](std::string_view what, std::string todo) {
    return make_error(ErrorCode::configuration, fmt::format("{} {}", name, what), std::move(todo));
  };
  struct stat info {};
  if (::fstat(fd, &info) != 0) return os_error(name, errno);
  if (!S_ISREG(info.st_mode)) {
    return bad(S_ISDIR(info.st_mode) ? "is a directory" : "is no regular file", advice);
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return bad(fmt::format("belongs to user {}, who could change it", info.st_uid),
               "it must belong to the user who runs this program, or to root");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return bad(fmt::format("is open to others: its mode is {:04o}", info.st_mode & 07777),
               "run: chmod 600 " + path + "; and make a new key if somebody may have read it");
  }
  return {};
}

}  // namespace

SecretText::SecretText(std::size_t max_bytes)
    : bytes_(std::make_unique<char[]>(max_bytes)), capacity_(max_bytes) {}

SecretText::SecretText(SecretText&& other) noexcept
    : bytes_(std::move(other.bytes_)),
      capacity_(std::exchange(other.capacity_, 0)),
      size_(std::exchange(other.size_, 0)) {}

SecretText::~SecretText() {
  if (bytes_ != nullptr) ::explicit_bzero(bytes_.get(), capacity_);
}

// Not blocking: a pipe in the place of the file is refused, not waited for.
Result<SecretText> read_secret_file(const std::string& path, std::string_view what, std::size_t max_bytes,
                                    std::string advice) {
  const std::string name = fmt::format("{} {}", what, path);
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) {
    const int cause = errno;
    const Error error = os_error(name, cause, std::move(advice));
    if (cause == ENOENT) return make_error(ErrorCode::configuration, error.message, error.advice);
    if (cause != EACCES) return error;
    return make_error(ErrorCode::configuration, error.message,
                      "run this as the user to whom it belongs, or let it belong to who runs this");
  }
  if (Status status = check_owner(file.get(), name, path, advice); !status) return status.error();
  SecretText content(max_bytes + 1);
  while (content.size_ < content.capacity_) {
    const ssize_t got =
        ::read(file.get(), content.bytes_.get() + content.size_, content.capacity_ - content.size_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(name, errno);
    if (got == 0) break;
    content.size_ += static_cast<std::size_t>(got);
  }
  const char* const wrong = content.size_ > max_bytes ? "is no key file: it is too long"
                            : content.size_ == 0      ? "is empty"
                                                      : nullptr;
  if (wrong != nullptr)
    return make_error(ErrorCode::configuration, fmt::format("{} {}", name, wrong), std::move(advice));
  return content;
}

}  // namespace bps
