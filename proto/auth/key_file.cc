#include "proto/auth/key_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "proto/base/config/secret_file.h"
#include "proto/base/unique_fd.h"

namespace bps {
namespace {

constexpr std::string_view kJobPrefix = "bps-job-key-1 ";
constexpr std::size_t kMaxFileBytes = 1024;  // the longest job name and digits fit
constexpr const char* kMakeOne = "make one: openssl rand -hex 32 > FILE; chmod 600 FILE";

Error bad_file(const std::string& path, std::string_view what, std::string advice = kMakeOne) {
  return make_error(ErrorCode::configuration, fmt::format("key file {} {}", path, what), std::move(advice));
}

// Its line, without the end.
Result<std::string_view> line_of(const std::string& path, const SecretText& content) {
  std::string_view line = content.text();
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.empty()) return bad_file(path, "is empty");
  return line;
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
  const auto content = read_secret_file(path, "key file", kMaxFileBytes, kMakeOne);
  if (!content) return content.error();
  const auto line = line_of(path, *content);
  if (!line) return line.error();
  if (line->starts_with(kJobPrefix)) {
    return bad_file(path, "holds the key of a job, for its workers", "give the cluster's key file here");
  }
  return parse_digits(path, *line);
}

Result<SharedKey> read_job_key(const std::string& path, std::string_view job) {
  const auto content = read_secret_file(path, "key file", kMaxFileBytes, kMakeOne);
  if (!content) return content.error();
  const auto whole = line_of(path, *content);
  if (!whole) return whole.error();
  std::string_view line = *whole;
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
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
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
