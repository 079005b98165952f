#include "deploy/bpsctl/doctor.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

namespace bps {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// A root with the files of a machine.
class Machine {
 public:
  Machine() {
    std::string pattern = (fs::temp_directory_path() / "bpsctl-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    root_ = pattern;
    process("self", "unlimited", "unlimited");
    write("dev/infiniband/rdma_cm", "");
  }
  ~Machine() { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void remove(const std::string& path) const { fs::remove_all(root_ / path); }
  // One that may pin so many bytes, as it is and if it asks for more.
  void process(const std::string& number, const std::string& soft, const std::string& hard,
               const std::string& capabilities = "0000000000000000") const {
    const std::string folder = "proc/" + number + "/";
    write(folder + "limits",
          "Limit                     Soft Limit           Hard Limit           Units     \n"
          "Max processes             95815                95815                processes \n"
          "Max locked memory         " +
              soft + "              " + hard + "              bytes     ");
    write(folder + "status", "Name:\tx\nVmPin:\t    2560 kB\nCapEff:\t" + capabilities);
    write(folder + "uid_map", "         0          0 4294967295");
  }

  // A device with one port, which has the addresses of rxe.
  void add_device(unsigned number, const std::string& state = "4: ACTIVE") const {
    const std::string device = "rxe" + std::to_string(number);
    const std::string node = "uverbs" + std::to_string(number);
    write("sys/class/infiniband_verbs/" + node + "/ibdev", device);
    write("dev/infiniband/" + node, "");
    const std::string port = "sys/class/infiniband/" + device + "/ports/1/";
    write(port + "state", state);
    write(port + "phys_state", "5: LinkUp");
    write(port + "link_layer", "Ethernet");
    write(port + "rate", "2.5 Gb/sec (1X SDR)");
    write(port + "gids/0", "fe80:0000:0000:0000:801b:2cff:fe08:0547");
    write(port + "gids/1", "0000:0000:0000:0000:0000:ffff:0a4e:000" + std::to_string(number));
    write(port + "gids/2", "0000:0000:0000:0000:0000:0000:0000:0000");
    for (const std::string index : {"0", "1"}) {
      write(port + "gid_attrs/types/" + index, "RoCE v2");
      write(port + "gid_attrs/ndevs/" + index, "h" + std::to_string(number));
    }
  }

  RdmaInventory inventory() const { return take_rdma_inventory(root_); }
  RdmaDiagnosis diagnosis() const { return diagnose(inventory()); }
  std::string told() const {
    const RdmaInventory there = inventory();
    return render(there, diagnose(there));
  }

 private:
  fs::path root_;
};

TEST_CASE("doctor: devices, ports and addresses, and what would be used") {
  const Machine machine;
  machine.add_device(1);
  CHECK(machine.diagnosis().healthy());
  CHECK(machine.told() ==
        "rxe1 port 1: ACTIVE, LinkUp, Ethernet, 2.5 Gb/sec (1X SDR)\n"
        "  gid 0  fe80::801b:2cff:fe08:547  RoCE v2  h1\n"
        "  gid 1  10.78.0.1  RoCE v2  h1\n"
        "memory that may be pinned: no limit\n"
        "needed by a server: --memory-max for each device that it may use, 2.5 MiB for each worker and "
        "shard, and "
        "160 MiB\n"
        "needed by a worker: what bps_allocate gives it, for each device; 2.5 MiB for each shard of each "
        "server\n"
        "usable: 10.78.0.1 (rxe1 port 1, gid 1)\n");
  const RdmaInventory there = machine.inventory();
  const auto json = nlohmann::json::parse(render_json(there, diagnose(there)));
  CHECK(json["devices"][0]["device"] == "rxe1");
  CHECK(json["devices"][0]["node"] == "/dev/infiniband/uverbs1");
  CHECK(json["devices"][0]["ports"][0]["gids"][1]["address"] == "10.78.0.1");
  CHECK(json["pinned_bytes_max"].is_null());
  CHECK(json["lane_bytes"] == 2621440);
  CHECK(json["usable"].size() == 1);
  CHECK(json["wrong"].empty());
}

TEST_CASE("doctor: what a device has repeated, and found nobody ready for") {
  const Machine machine;
  machine.add_device(1);
  const std::string counters = "sys/class/infiniband/rxe1/ports/1/hw_counters/";
  for (const auto& [name, value] :
       {std::pair("rdma_sends", "500"), std::pair("retry_exceeded_err", "3"), std::pair("rcvd_rnr_err", "2"),
        std::pair("out_of_seq_request", "0"), std::pair("lifespan", "10"), std::pair("odd", "not a number")})
    machine.write(counters + name, value);
  CHECK_THAT(machine.told(), Contains("  counted since it is there: rcvd_rnr_err 2\n"
                                      "  counted since it is there: retry_exceeded_err 3\n") &&
                                 !Contains("rdma_sends") && !Contains("out_of_seq") && !Contains("lifespan"));
  const RdmaInventory there = machine.inventory();
  const auto json = nlohmann::json::parse(render_json(there, diagnose(there)));
  const auto counts = json["devices"][0]["ports"][0]["counters"];
  CHECK(counts.size() == 4);
  CHECK(counts["rdma_sends"] == 500);
  CHECK(counts["out_of_seq_request"] == 0);
}

TEST_CASE("doctor: a machine without RDMA") {
  const Machine machine;
  const RdmaDiagnosis diagnosis = machine.diagnosis();
  CHECK_FALSE(diagnosis.healthy());
  REQUIRE(diagnosis.wrong.size() == 1);
  CHECK_THAT(diagnosis.wrong[0].what, Contains("no RDMA device"));
  CHECK_THAT(diagnosis.wrong[0].mend, Contains("rdma link add"));
}

TEST_CASE("doctor: what was asked for, and is not there") {
  const Machine machine;
  const auto diagnosis = [&machine](const char* device, std::optional<std::uint8_t> gid = {}) {
    VerbsOptions choice;
    if (*device != '\0') REQUIRE(parse_rdma_device(device, choice).ok());
    choice.gid_index = gid;
    return diagnose(machine.inventory(), choice);
  };
  const auto wrong = [](const RdmaDiagnosis& found) {
    CHECK_FALSE(found.healthy());
    CHECK(found.usable.empty());
    REQUIRE_FALSE(found.wrong.empty());
    return found.wrong[0].what + "; " + found.wrong[0].mend;
  };
  CHECK_THAT(wrong(diagnosis("mlx5_0")), Contains("no RDMA device mlx5_0, nor any other"));
  machine.add_device(1);
  machine.add_device(2);
  CHECK(wrong(diagnosis("mlx5_0")) == "this host has no RDMA device mlx5_0; it has rxe1, rxe2");
  CHECK(wrong(diagnosis("rxe1:2")) == "RDMA device rxe1 has no port 2; it has port 1");
  CHECK(wrong(diagnosis("rxe1", 7)) == "RDMA device rxe1 has no GID 7; it has 10.78.0.1 (GID 1)");
  CHECK_THAT(wrong(diagnosis("rxe1", 0)), Contains("no address of this host at GID 0"));
  CHECK_THAT(wrong(diagnosis("", 1)), Contains("which RDMA device") && Contains("rxe1, rxe2"));
  CHECK(diagnosis("rxe2:1", 1).healthy());
  CHECK(diagnosis("rxe2").usable == std::vector<std::string>{"10.78.0.2 (rxe2 port 1, gid 1)"});
  machine.write("sys/class/infiniband/rxe1/ports/1/state", "1: DOWN");
  CHECK_THAT(wrong(diagnosis("rxe1")), Contains("rxe1 port 1 is DOWN"));
  CHECK(diagnosis("rxe2").healthy());
}

TEST_CASE("doctor: the only device cannot be used, and why") {
  const Machine machine;
  machine.add_device(1);
  const std::string port = "sys/class/infiniband/rxe1/ports/1/";
  std::string what, mend;
  SECTION("its port is down") {
    machine.write(port + "state", "1: DOWN");
    machine.write(port + "phys_state", "3: Disabled");
    what = "rxe1 port 1 is DOWN (link: Disabled)", mend = "ip link set";
  }
  SECTION("it has only a link-local address") {
    machine.remove(port + "gids/1");
    what = "rxe1 port 1 has no address but link-local ones", mend = "ip addr add";
  }
  SECTION("its node is not here, as in a container") {
    machine.remove("dev/infiniband/uverbs1");
    what = "rxe1 cannot be used: /dev/infiniband/uverbs1: No such file or directory", mend = "--device";
  }
  SECTION("the kernel has no nodes") {
    machine.remove("sys/class/infiniband_verbs");
    what = "the kernel offers rxe1 to no program", mend = "modprobe ib_uverbs";
  }
  const RdmaDiagnosis diagnosis = machine.diagnosis();
  CHECK(diagnosis.usable.empty());
  CHECK(diagnosis.notes.empty());
  REQUIRE(diagnosis.wrong.size() == 1);
  CHECK(diagnosis.wrong[0].what == what);
  CHECK_THAT(diagnosis.wrong[0].mend, Contains(mend));
}

TEST_CASE("doctor: a port that is down beside one that works is no illness") {
  const Machine machine;
  machine.add_device(1);
  machine.add_device(2, "1: DOWN");
  const RdmaDiagnosis diagnosis = machine.diagnosis();
  CHECK(diagnosis.healthy());
  CHECK(diagnosis.notes.size() == 1);
  CHECK_THAT(machine.told(), Contains("not used: rxe2 port 1 is DOWN"));
}

TEST_CASE("doctor: what every device needs") {
  const Machine machine;
  machine.add_device(1);
  std::string what, mend;
  SECTION("the connection manager") {
    machine.remove("dev/infiniband/rdma_cm");
    what = "/dev/infiniband/rdma_cm: No such file", mend = "rdma_ucm";
  }
  SECTION("memory that may be pinned") {
    machine.process("self", "8388608", "8388608");
    what = "this process may pin 8 MiB of memory", mend = "/etc/security/limits.conf";
  }
  SECTION("memory that may be pinned, which the user can mend") {
    machine.process("self", "8388608", "unlimited");
    what = "this process may pin 8 MiB of memory", mend = "`ulimit -l unlimited` in the shell";
  }
  const RdmaDiagnosis diagnosis = machine.diagnosis();
  CHECK_FALSE(diagnosis.healthy());
  REQUIRE(diagnosis.wrong.size() == 1);
  CHECK_THAT(diagnosis.wrong[0].what, Contains(what));
  CHECK_THAT(diagnosis.wrong[0].mend, Contains(mend));
}

TEST_CASE("doctor: who may pin how much") {
  const Machine machine;
  machine.add_device(1);
  constexpr const char* kIpcLock = "0000000000004000";
  machine.process("self", "8388608", "67108864", kIpcLock);
  CHECK(machine.diagnosis().healthy());
  CHECK_THAT(machine.told(), Contains("memory that may be pinned: no limit (CAP_IPC_LOCK)\n"));
  // Of another user namespace it is worth nothing to the kernel.
  machine.write("proc/self/uid_map", "         0       1000          1");
  CHECK_FALSE(machine.diagnosis().healthy());
  CHECK_THAT(machine.told(), Contains("memory that may be pinned: 8 MiB (hard limit: 64 MiB)\n"));
  // Enough for some: what is needed is said.
  machine.process("self", "67108864", "67108864");
  CHECK(machine.diagnosis().healthy());
  CHECK_THAT(machine.told(), Contains("memory that may be pinned: 64 MiB\n"));
  machine.process("self", "67108863", "67108864");
  CHECK_FALSE(machine.diagnosis().healthy());
}

TEST_CASE("doctor: servers that run have limits of their own") {
  const Machine machine;
  machine.add_device(1);
  machine.process("self", "unlimited", "unlimited");
  machine.process("1000", "8388608", "8388608");
  machine.write("proc/1000/comm", "bps-server");
  machine.process("97", "unlimited", "unlimited");
  machine.write("proc/97/comm", "bps-server");
  machine.process("98", "65536", "65536");
  machine.write("proc/98/comm", "another");
  machine.write("proc/99/comm", "bps-server");  // has just ended
  CHECK(machine.diagnosis().healthy());         // the server may be one without RDMA
  CHECK_THAT(machine.told(), Contains("bps-server, process 97: pinned 2.5 MiB; may be pinned: no limit\n"
                                      "bps-server, process 1000: pinned 2.5 MiB; may be pinned: 8 MiB\n") &&
                                 Contains("not used: RDMA by the bps-server that runs as process 1000, which "
                                          "may pin 8 MiB of memory; ") &&
                                 Contains("LimitMEMLOCK=infinity") && !Contains("process 98") &&
                                 !Contains("process 99"));
  const RdmaInventory there = machine.inventory();
  const auto json = nlohmann::json::parse(render_json(there, diagnose(there)));
  CHECK(json["servers"][0]["pinned_bytes_max"].is_null());
  CHECK(json["servers"][1]["pinned_bytes_max"] == 8388608);
  CHECK(json["memlock_soft"].is_null());
}

TEST_CASE("doctor: the libraries, and whether they open what the kernel has") {
  const Machine machine;
  machine.add_device(1);
  machine.add_device(2);
  RdmaInventory there = machine.inventory();
  there.libraries.emplace().opened = {"rxe1", "rxe2"};
  CHECK(diagnose(there).healthy());
  CHECK(diagnose(there).usable.size() == 2);
  SECTION("they are not here") {
    there.libraries->opened.clear();
    there.libraries->error = make_error(ErrorCode::os, "no librdmacm.so.1", "install librdmacm1");
    const RdmaDiagnosis diagnosis = diagnose(there);
    CHECK(diagnosis.usable.empty());
    REQUIRE(diagnosis.wrong.size() == 1);
    CHECK(diagnosis.wrong[0].what == "no librdmacm.so.1");
    CHECK(diagnosis.wrong[0].mend == "install librdmacm1");
    RdmaInventory bare = Machine().inventory();
    bare.libraries = there.libraries;
    CHECK(diagnose(bare).wrong.size() == 2);  // nor is there a device
  }
  SECTION("a device has no provider") {
    there.libraries->opened = {"rxe2"};
    const RdmaDiagnosis diagnosis = diagnose(there);
    CHECK_FALSE(diagnosis.healthy());
    CHECK(diagnosis.usable == std::vector<std::string>{"10.78.0.2 (rxe2 port 1, gid 1)"});
    REQUIRE(diagnosis.wrong.size() == 1);
    CHECK_THAT(diagnosis.wrong[0].what, Contains("libibverbs does not open rxe1"));
    CHECK_THAT(diagnosis.wrong[0].mend, Contains("ibverbs-providers"));
    VerbsOptions other;
    other.device = "rxe2";
    CHECK(diagnose(there, other).healthy());
  }
  SECTION("they open none, and say why") {
    there.libraries->opened.clear();
    there.libraries->not_opened = make_error(ErrorCode::os, "no protection domain");
    const RdmaDiagnosis diagnosis = diagnose(there);
    CHECK(diagnosis.usable.empty());
    REQUIRE(diagnosis.wrong.size() == 2);
    CHECK(diagnosis.wrong[0].what == "libibverbs does not open rxe1: no protection domain");
    CHECK_THAT(diagnosis.wrong[0].mend, Contains("ibverbs-providers"));
  }
  SECTION("a device that this process cannot open anyway is told of once") {
    machine.remove("dev/infiniband/uverbs1");
    RdmaInventory closed = machine.inventory();
    closed.libraries.emplace().opened = {"rxe2"};
    const RdmaDiagnosis diagnosis = diagnose(closed);
    CHECK(diagnosis.healthy());
    CHECK(diagnosis.notes.size() == 1);
  }
}

TEST_CASE("doctor: an InfiniBand port is reached by its IP-over-InfiniBand device") {
  const Machine machine;
  machine.add_device(1);
  machine.write("sys/class/infiniband/rxe1/ports/1/link_layer", "InfiniBand");
  CHECK_THAT(machine.told(), Contains("usable: the address of its IP-over-InfiniBand device (rxe1 port 1)"));
}

}  // namespace
}  // namespace bps
