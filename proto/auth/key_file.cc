#include "proto/auth/key_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <utility>

namespace bps {
namespace {

constexpr std::string_view kJobPrefix = "bps-job-key-1 ";
constexpr std::size_t kMaxFileBytes = 1024;  // the longest job name and digits fit
constexpr const char* kMakeOne = "make one: openssl rand -hex 32 > FILE; chmod 600 FILE";

Error bad_file(const std::string& path, std::string_view what, std::string advice = kMakeOne) {
  return make_error(ErrorCode::configuration, fmt::format("key file {} {}", path, what), std::move(advice));
}

// The content of a file, wiped when it goes.
struct Content {
  std::array<char, kMaxFileBytes + 1> bytes{};
  std::size_t size = 0;
  Content() = default;
  ~Content() { wipe(std::as_writable_bytes(std::span(bytes))); }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

Status check_owner(const std::string& path, int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return os_error("key file " + path, errno);
  if (!S_ISREG(info.st_mode)) {
    return bad_file(path, S_ISDIR(info.st_mode) ? "is a directory" : "is no regular file");
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return bad_file(path, fmt::format("belongs to user {}, who could change it", info.st_uid),
                    "it must belong to the user who runs this program, or to root");
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return bad_file(path, fmt::format("is open to others: its mode is {:04o}", info.st_mode & 07777),
                    "run: chmod 600 " + path + "; and make a new key if somebody may have read it");
  }
  return {};
}

// The first line. Not blocking: a pipe in the place of the file is refused, not waited for.
Status read_line(const std::string& path, Content& content) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return os_error("key file " + path, errno, kMakeOne);
  if (Status status = check_owner(path, file.get()); !status) return status;
  while (content.size < content.bytes.size()) {
    const ssize_t got =
        ::read(file.get(), content.bytes.data() + content.size, content.bytes.size() - content.size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("key file " + path, errno);
    if (got == 0) break;
    content.size += static_cast<std::size_t>(got);
  }
  if (content.size > kMaxFileBytes) return bad_file(path, "is no key file: it is too long");
  if (content.size > 0 && content.bytes[content.size - 1] == '\n') --content.size;
  if (content.size == 0) return bad_file(path, "is empty");
  return {};
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<SharedKey> parse_digits(const std::string& path, std::string_view digits) {
  constexpr std::size_t least = 2 * Key::kMinBytes;
  constexpr std::size_t most = 2 * Key::kMaxBytes;
  for (const char c : digits) {
    if (digit_of(c) < 0) return bad_file(path, "is damaged: it is not one line of hexadecimal digits");
  }
  if (digits.size() < least) {
    return bad_file(path,
                    fmt::format("is too short: {} digits, at least {} are needed", digits.size(), least));
  }
  if (digits.size() > most || digits.size() % 2 != 0) {
    return bad_file(
        path, fmt::format("is damaged: {} digits, not an even number of at most {}", digits.size(), most));
  }
  std::array<std::byte, Key::kMaxBytes> bytes{};
  const std::size_t size = digits.size() / 2;
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(digit_of(digits[2 * i]) << 4 | digit_of(digits[2 * i + 1]));
  auto key = std::make_shared<const Key>(std::span(bytes).first(size));
  wipe(bytes);
  return SharedKey(std::move(key));
}

std::string digits_of(const Key& key) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * Key::kMaxBytes);
  for (const std::byte byte : key.bytes()) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

}  // namespace

Result<SharedKey> read_cluster_key(const std::string& path) {
  Content content;
  if (Status status = read_line(path, content); !status) return status.error();
  const std::string_view line(content.bytes.data(), content.size);
  if (line.starts_with(kJobPrefix)) {
    return bad_file(path, "holds the key of a job, for its workers", "give the cluster's key file here");
  }
  return parse_digits(path, line);
}

Result<SharedKey> read_job_key(const std::string& path, std::string_view job) {
  Content content;
  if (Status status = read_line(path, content); !status) return status.error();
  std::string_view line(content.bytes.data(), content.size);
  if (!line.starts_with(kJobPrefix)) {
    const Result<SharedKey> cluster = parse_digits(path, line);
    if (!cluster) return cluster;
    return derive_job_key(**cluster, job);
  }
  line.remove_prefix(kJobPrefix.size());
  const std::size_t space = line.find(' ');
  if (space != 2 * sizeof(Mac))
    return bad_file(path, "is damaged", "make it again with bps-scheduler --print-job-key");
  if (line.substr(space + 1) != job) {
    return bad_file(path, fmt::format("holds the key of another job than '{}'", job),
                    "give this job's key file, or the cluster's");
  }
  return parse_digits(path, line.substr(0, space));
}

std::string job_key_line(const Key& job_key, std::string_view job) {
  std::string digits = digits_of(job_key);
  std::string line = fmt::format("{}{} {}\n", kJobPrefix, digits, job);
  wipe(std::as_writable_bytes(std::span(digits)));
  return line;
}

Status create_key_file(const std::string& path) {
  const Result<SharedKey> key = Key::fresh();
  if (!key) return key.error();
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) return os_error("key file " + path, errno);
  std::string line = digits_of(**key) + "\n";
  const ssize_t written = ::write(file.get(), line.data(), line.size());
  const bool whole = written == static_cast<ssize_t>(line.size());
  const int why = written < 0 ? errno : ENOSPC;
  wipe(std::as_writable_bytes(std::span(line)));
  if (!whole) return os_error("key file " + path, why);
  return {};
}

}  // namespace bps
