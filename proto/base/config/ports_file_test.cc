#include "proto/base/config/ports_file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace bps {
namespace {

using Catch::Contains;
namespace fs = std::filesystem;

// A directory that lives as long as the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = (fs::temp_directory_path() / "bps-ports-test-XXXXXX").string();
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string operator/(const char* name) const { return (path_ / name).string(); }
  auto entries() const { return std::distance(fs::directory_iterator(path_), fs::directory_iterator()); }

 private:
  fs::path path_;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

const std::vector<std::pair<std::string, Endpoint>> kPorts = {{"listen", {"127.0.0.1", 4710}}};

TEST_CASE("a ports file is written, also over an older one") {
  const TemporaryDirectory directory;
  const std::string path = directory / "ports";
  REQUIRE(write_ports_file(path, kPorts).ok());
  CHECK(text_of(path) == "listen 127.0.0.1:4710\n");
  REQUIRE(write_ports_file(path, {{"listen", {"h", 1}}, {"http", {"h", 2}}}).ok());
  CHECK(text_of(path) == "listen h:1\nhttp h:2\n");
  CHECK(directory.entries() == 1);
}

TEST_CASE("a ports file replaces nothing but a regular file") {
  const TemporaryDirectory directory;
  const auto refusal = [&](const std::string& path) {
    const Status status = write_ports_file(path, kPorts);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::configuration);
    CHECK_THAT(status.error().advice, Contains("--ports-file"));
    return status.error().message;
  };
  const std::string folder = directory / "folder";
  fs::create_directory(folder);
  CHECK(refusal(folder) == "cannot write the ports file " + folder + ": it is a directory");
  const std::string fifo = directory / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(refusal(fifo) == "cannot write the ports file " + fifo + ": it is a FIFO");
  const std::string target = directory / "target";
  std::ofstream(target) << "kept";
  const std::string link = directory / "link";
  fs::create_symlink(target, link);
  CHECK(refusal(link) == "cannot write the ports file " + link + ": it is a symbolic link");

  CHECK(fs::is_directory(folder));
  CHECK(fs::is_fifo(fifo));
  CHECK(fs::is_symlink(link));
  CHECK(text_of(target) == "kept");
  CHECK(directory.entries() == 4);
}

TEST_CASE("a ports file in no directory is the operating system's error") {
  const TemporaryDirectory directory;
  const Status status = write_ports_file(directory / "none/ports", kPorts);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::os);
  CHECK_THAT(status.error().message, Contains("No such file or directory"));
}

}  // namespace
}  // namespace bps
