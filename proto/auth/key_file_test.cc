#include "proto/auth/key_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "proto/auth/auth_harness.h"

namespace bps {
namespace {

using Catch::Contains;
using testing::hex;
using testing::key_of;

const std::string kDigits = "00112233445566778899aabbccddeeff";

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bps-key-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& content, mode_t mode = 0600) const {
    const std::string path = path_ / "key";
    ::unlink(path.c_str());
    std::ofstream(path, std::ios::binary) << content;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    return path;
  }
  std::string path() const { return path_; }
  std::string missing() const { return path_ / "missing"; }

 private:
  std::filesystem::path path_;
};

std::string refusal(const std::string& path) {
  const auto key = read_cluster_key(path);
  REQUIRE_FALSE(key.ok());
  const auto job_key = read_job_key(path, "job");
  REQUIRE_FALSE(job_key.ok());
  CHECK(key.error().message == job_key.error().message);
  CHECK_THAT(key.error().message, Contains(path));
  return key.error().message;
}

}  // namespace

TEST_CASE("key file: one line of hexadecimal digits") {
  const Folder folder;
  for (const std::string& content :
       {kDigits, kDigits + "\n", std::string("00112233445566778899AABBCCDDEEFF\n")}) {
    const auto key = read_cluster_key(folder.file(content));
    REQUIRE(key.ok());
    CHECK(hex((*key)->bytes()) == kDigits);
  }
  CHECK(read_cluster_key(folder.file(kDigits + kDigits + kDigits + kDigits, 0400)).ok());
}

TEST_CASE("key file: what others could read or change is refused") {
  const Folder folder;
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0601, 0666}) {
    INFO(mode);
    CHECK_THAT(refusal(folder.file(kDigits, mode)), Contains("open to others"));
  }
  if (::geteuid() == 0) {
    const std::string path = folder.file(kDigits);
    REQUIRE(::chown(path.c_str(), 4711, 0) == 0);
    CHECK_THAT(refusal(path), Contains("belongs to user 4711"));
  }
}

TEST_CASE("key file: what is no key is refused, and not shown") {
  const Folder folder;
  CHECK_THAT(refusal(folder.missing()), Contains("No such file"));
  CHECK_THAT(refusal(folder.path()), Contains("is a directory"));
  CHECK_THAT(refusal(folder.file("")), Contains("is empty"));
  CHECK_THAT(refusal(folder.file("\n")), Contains("is empty"));
  CHECK_THAT(refusal(folder.file(kDigits.substr(2))), Contains("too short"));
  CHECK_THAT(refusal(folder.file(kDigits + "0")), Contains("damaged"));
  CHECK_THAT(refusal(folder.file(std::string(130, 'a'))), Contains("damaged"));
  CHECK_THAT(refusal(folder.file(std::string(5000, 'a'))), Contains("too long"));
  for (const std::string& content :
       {kDigits + "\n\n", kDigits + "\n" + kDigits, kDigits + "xx", " " + kDigits, std::string(64, '\0'),
        std::string("-----BEGIN PRIVATE KEY-----")}) {
    const std::string message = refusal(folder.file(content));
    CHECK_THAT(message, Contains("damaged"));
    CHECK_THAT(message, !Contains("0011") && !Contains("PRIVATE"));
  }
  const std::string pipe = folder.path() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(refusal(pipe), Contains("no regular file"));
}

TEST_CASE("key file: a worker takes the cluster's or its job's") {
  const Folder folder;
  const SharedKey cluster = key_of(32, 0x11);
  const std::string name = "vgg 16 \xc3\xbc";
  const SharedKey job = derive_job_key(*cluster, name);
  const auto from_cluster = read_job_key(folder.file(std::string(64, '1')), name);
  REQUIRE(from_cluster.ok());
  CHECK(hex((*from_cluster)->bytes()) == hex(job->bytes()));
  const std::string line = job_key_line(*job, name);
  CHECK(line == "bps-job-key-1 " + hex(job->bytes()) + " " + name + "\n");
  const auto from_job = read_job_key(folder.file(line), name);
  REQUIRE(from_job.ok());
  CHECK(hex((*from_job)->bytes()) == hex(job->bytes()));
  const auto other = read_job_key(folder.file(line), "resnet50");
  REQUIRE_FALSE(other.ok());
  CHECK_THAT(other.error().message, Contains("another job than 'resnet50'"));
  const auto daemon = read_cluster_key(folder.file(line));
  REQUIRE_FALSE(daemon.ok());
  CHECK_THAT(daemon.error().message, Contains("key of a job"));
  for (const std::string& content :
       {std::string("bps-job-key-1 \n"), line.substr(0, 60), "bps-job-key-1 " + kDigits + " a"}) {
    CHECK_THAT(read_job_key(folder.file(content), name).error().message, Contains("damaged"));
  }
}

TEST_CASE("key file: a new one is private, fresh and never written over another") {
  const Folder folder;
  REQUIRE(create_key_file(folder.missing()).ok());
  struct stat info {};
  REQUIRE(::stat(folder.missing().c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0600);
  const auto key = read_cluster_key(folder.missing());
  REQUIRE(key.ok());
  CHECK((*key)->bytes().size() == 32);
  CHECK_FALSE(create_key_file(folder.missing()).ok());
}

}  // namespace bps
