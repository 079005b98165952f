#include "deploy/bpsctl/process_settings.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

namespace bps::process_settings_test {
namespace {

// Processes as the kernel shows them.
class Proc {
 public:
  Proc() {
    std::string path = (std::filesystem::temp_directory_path() / "bps-proc.XXXXXX").string();
    REQUIRE(::mkdtemp(path.data()) != nullptr);
    root_ = path;
  }
  Proc(const Proc&) = delete;
  Proc& operator=(const Proc&) = delete;
  ~Proc() { std::filesystem::remove_all(root_); }

  void add(pid_t pid, const std::string& children, const std::vector<std::string>& environment) {
    const auto folder = root_ / std::to_string(pid);
    std::filesystem::create_directories(folder / "task" / std::to_string(pid));
    std::ofstream(folder / "task" / std::to_string(pid) / "children") << children;
    std::ofstream file(folder / "environ", std::ios::binary);
    for (const std::string& entry : environment)
      file << entry << '\0';
  }
  std::string root() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

}  // namespace

TEST_CASE("process settings: those of a worker, files from its folder") {
  Proc proc;
  proc.add(7, "", {"PATH=/bin", "BPS_RANK=0", "BPS_SCHEDULER=h:1", "BPS_KEY_FILE=/k", "BPS_TLS_CA=ca.pem"});
  const auto found = cluster_of_process(7, proc.root());
  REQUIRE(found);
  CHECK(*found == Environment{{"BPS_SCHEDULER", "h:1"},
                              {"BPS_KEY_FILE", "/k"},
                              {"BPS_TLS_CA", proc.root() + "/7/cwd/ca.pem"}});
}

TEST_CASE("process settings: of the first worker among those that a process has started") {
  Proc proc;
  proc.add(1, "2 3 ", {"BPS_SCHEDULER=elsewhere:1"});  // bps-run, where the variable means nothing
  proc.add(2, "", {"BPS_KEY_FILE=/k"});                // a daemon
  proc.add(3, "4 5 ", {});
  proc.add(4, "", {"BPS_SCHEDULER=h:4", "BPS_RANK=0"});
  proc.add(5, "", {"BPS_SCHEDULER=h:5", "BPS_RANK=1"});
  const auto found = cluster_of_process(1, proc.root());
  REQUIRE(found);
  CHECK(*found == Environment{{"BPS_SCHEDULER", "h:4"}});
}

TEST_CASE("process settings: a worker of another launcher has no BPS_RANK") {
  Proc proc;
  proc.add(7, "", {"RANK=0", "BPS_SCHEDULER=h:1"});
  const auto found = cluster_of_process(7, proc.root());
  REQUIRE(found);
  CHECK(*found == Environment{{"BPS_SCHEDULER", "h:1"}});
}

TEST_CASE("process settings: what is no worker's") {
  Proc proc;
  proc.add(1, "2 9 ", {});  // 9 has ended meanwhile
  proc.add(2, "", {});
  const auto nobody = cluster_of_process(1, proc.root());
  REQUIRE_FALSE(nobody);
  CHECK_THAT(nobody.error().message,
             Catch::Contains("--pid 1: neither it nor a process that it has started"));
  const auto missing = cluster_of_process(8, proc.root());
  REQUIRE_FALSE(missing);
  CHECK(missing.error().message == "--pid 8: there is no such process");
}

}  // namespace bps::process_settings_test
