#include "client/src/runtime/settings.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "proto/auth/auth_harness.h"
#include "proto/base/host_identity.h"

namespace bps {
namespace {

using Catch::Contains;

ClientSettings read(const GivenSettings& given, const Environment& environment = {}) {
  auto settings = read_settings(given, environment);
  if (!settings.ok()) FAIL(to_string(settings.error()));
  return *settings;
}

Error refusal(const GivenSettings& given, const Environment& environment = {}) {
  auto settings = read_settings(given, environment);
  REQUIRE_FALSE(settings.ok());
  CHECK(settings.error().code == ErrorCode::configuration);
  return settings.error();
}

}  // namespace

TEST_CASE("settings: defaults") {
  const ClientSettings settings = read({});
  CHECK(settings.config.job == "default");
  CHECK(settings.config.rank == Rank{0});
  CHECK(settings.config.world_size == 1);
  CHECK(settings.config.local_size == 1);
  CHECK(settings.config.partition_bytes == 0);
  CHECK_FALSE(settings.config.credit_bytes);
  CHECK(settings.config.retain);
  CHECK(settings.config.mode == Mode::sync);
  CHECK(settings.config.staleness == kUnboundedStaleness);
  CHECK(settings.config.join_timeout == std::chrono::seconds(60));
  CHECK(settings.operation_timeout == std::chrono::seconds(300));
  CHECK(settings.config.scheduler_grace == std::chrono::seconds(60));
  CHECK(settings.config.transport == TransportChoice::automatic);
  CHECK_FALSE(settings.config.host.empty());
  CHECK(settings.warnings.empty());
}

TEST_CASE("settings: where nothing speaks of a cluster, the worker has one of its own") {
  for (const Environment& nothing :
       {Environment{}, Environment{{"BPS_LOG_LEVEL", "info"}, {"BPS_LIBRARY", "x"}},
        Environment{{"BPS_TRANSPORT", "tcp"}, {"BPS_OPERATION_TIMEOUT", "1s"}}}) {
    const ClientSettings settings = read({}, nothing);
    CHECK(settings.embedded);
    CHECK(settings.alone);
    CHECK(settings.config.world_size == 1);
    CHECK(settings.warnings.empty());
  }
  GivenSettings program;
  program["job"] = "resnet50";
  program["local-group"] = "host";
  CHECK(read(program).alone);
  program["scheduler"] = "embedded:";
  CHECK(read(program).embedded);
  CHECK_FALSE(read(program).alone);
}

TEST_CASE("settings: half a cluster is none of its own, and its worker hears what is set and what is not") {
  const auto company = [](const GivenSettings& given, const Environment& environment) {
    const ClientSettings settings = read(given, environment);
    CHECK_FALSE(settings.embedded);
    CHECK_FALSE(settings.alone);
    CHECK(to_string(settings.config.scheduler) == "127.0.0.1:4710");
    CHECK(settings.config.scheduler_is_default);
    REQUIRE_FALSE(settings.warnings.empty());
    CHECK_THAT(settings.warnings.back(), Contains("BPS_SCHEDULER=embedded:"));
    return settings.warnings.back();
  };
  const auto is_set = [](const std::string& name) { return Contains("not set, but " + name + " is:"); };
  for (const std::string name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS",
                                 "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    CHECK_THAT(company({}, {{name, "0"}}), is_set(name));
  CHECK_THAT(company({}, {{"BPS_JOB", "resnet50"}}), is_set("BPS_JOB"));
  CHECK_THAT(company({}, {{"BPS_LOCAL_RANK", "0"}}), is_set("BPS_LOCAL_RANK"));
  CHECK_THAT(company({}, {{"BPS_LOCAL_GROUP", "host"}}), is_set("BPS_LOCAL_GROUP"));
  CHECK_THAT(company({}, {{"BPS_TRANSPORT", "shm"}}), is_set("BPS_TRANSPORT"));
  CHECK_THAT(company({}, {{"BPS_SCEDULER", "gpu-01:4710"}}), is_set("BPS_SCEDULER"));
  CHECK_THAT(company({{"local-size", "1"}}, {}), is_set("local-size"));
  CHECK_THAT(company({{"transport", "rdma"}}, {}), is_set("transport"));
  // Who knows the place knows the cluster.
  for (const Environment& placed :
       {Environment{{"BPS_WORLD_SIZE", "1"}}, Environment{{"BPS_RANK", "0"}, {"BPS_WORLD_SIZE", "2"}},
        Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}}}) {
    const ClientSettings settings = read({}, placed);
    CHECK_FALSE((settings.embedded || settings.alone));
    CHECK(settings.config.scheduler_is_default);
    CHECK(settings.warnings.empty());
  }
  CHECK_FALSE(read({}, {{"BPS_SCHEDULER", "gpu-01:4710"}}).config.scheduler_is_default);
}

TEST_CASE("settings: options beat environment beats launcher") {
  const Environment environment{{"BPS_RANK", "2"},
                                {"BPS_JOB", "from-environment"},
                                {"BPS_PARTITION_BYTES", "64KiB"},
                                {"RANK", "1"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_RANK", "1"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"BPS_RETAIN", "false"},
                                {"BPS_STALENESS", "3"},
                                {"BPS_MODE", "async"},
                                {"BPS_TRANSPORT", "tcp"}};
  GivenSettings given;
  given["job"] = "from-program";
  given["staleness"] = "unbounded";
  const ClientSettings settings = read(given, environment);
  CHECK(settings.config.job == "from-program");
  CHECK(settings.config.rank == Rank{2});
  CHECK(settings.config.world_size == 4);
  CHECK(settings.config.local_rank == 0);  // torchrun's is that of its own rank 1
  CHECK(settings.config.partition_bytes == 64 * 1024);
  CHECK_FALSE(settings.config.retain);
  CHECK(settings.config.transport == TransportChoice::tcp);
  CHECK(settings.config.mode == Mode::async);
  CHECK(settings.config.staleness == kUnboundedStaleness);
  given["rank"] = "1";
  CHECK(read(given, environment).config.local_rank == 1);
  CHECK(read(given, environment).config.local_size == 2);
}

TEST_CASE("settings: a key file gives the job's key, and a cluster of its own needs none") {
  std::string path = (std::filesystem::temp_directory_path() / "bps-settings-XXXXXX").string();
  const int fd = ::mkstemp(path.data());  // 0600
  REQUIRE(fd >= 0);
  const std::string line = std::string(64, '1') + "\n";
  REQUIRE(::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  ::close(fd);
  const SharedKey key = derive_job_key(*testing::key_of(32, 0x11), "j");
  CHECK(testing::hex(read({}, {{"BPS_KEY_FILE", path}, {"BPS_JOB", "j"}}).config.key->bytes()) ==
        testing::hex(key->bytes()));
  GivenSettings given;
  given["key-file"] = path;
  given["job"] = "j";
  CHECK(testing::hex(read(given, {{"BPS_KEY_FILE", "/none"}}).config.key->bytes()) ==
        testing::hex(key->bytes()));
  given["scheduler"] = "embedded:";
  CHECK(read(given).config.key == nullptr);
  std::filesystem::permissions(path, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  given.erase("scheduler");
  CHECK_THAT(refusal(given).message, Contains(path) && Contains("open to others"));
  std::filesystem::remove(path);
  CHECK(read({}).config.key == nullptr);
}

TEST_CASE("settings: TLS is asked for with three files, and a cluster of its own needs none") {
  GivenSettings given;
  given["tls-cert"] = "/none/cert.pem";
  CHECK_THAT(refusal(given).message, Contains("without BPS_TLS_KEY"));
  given["tls-key"] = "/none/key.pem";
  const Environment environment = {{"BPS_TLS_CA", "/none/ca.pem"}};
  CHECK_THAT(refusal(given, environment).message, Contains("/none/cert.pem"));
  given["scheduler"] = "embedded:";
  CHECK(read(given, environment).tls == nullptr);
}

TEST_CASE("settings: RDMA, its device and what does not go with it") {
  GivenSettings given;
  given["transport"] = "rdma";
  given["rdma-device"] = "mlx5_0:2";
  given["rdma-gid"] = "3";
  const ClientSettings settings = read(given, {{"BPS_RDMA_TCLASS", "106"}, {"BPS_RDMA_DEVICE", "other"}});
  CHECK(settings.config.transport == TransportChoice::rdma);
  CHECK(settings.rdma.device == "mlx5_0");
  CHECK(settings.rdma.port == 2);
  CHECK(settings.rdma.gid_index == 3);
  CHECK(settings.rdma.traffic_class == 106);
  given["rdma-device"] = "mlx5_0:x";
  CHECK_THAT(refusal(given).message, Contains("'mlx5_0:x' is no RDMA device"));
  given.erase("rdma-device");
  given["rdma-gid"] = "256";
  CHECK_THAT(refusal(given).message, Contains("rdma-gid"));
  given.erase("rdma-gid");
  given["scheduler"] = "embedded:";
  CHECK_THAT(refusal(given).message, Contains("which has no RDMA"));
  given.erase("scheduler");
  given["checksum"] = "true";
  CHECK_THAT(refusal(given).message, Contains("checksums (BPS_CHECKSUM) do not cover"));
  given["transport"] = "auto";
  CHECK(read(given).config.transport == TransportChoice::automatic);
  given.erase("checksum");
  CHECK(read(given, {{"BPS_RDMA_TCLASS", "104"}}).warnings.empty());
  given["transport"] = "tcp";
  CHECK(read(given).warnings.empty());
  const std::vector<std::string> warnings = read(given, {{"BPS_RDMA_TCLASS", "104"}}).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Contains("BPS_RDMA_DEVICE") && Contains("change nothing: transport is tcp"));
  given["transport"] = "rmda";
  CHECK(refusal(given).advice == "did you mean rdma?");
}

TEST_CASE("settings: numbers of the program") {
  GivenSettings given;
  given["rank"] = "3";
  given["world-size"] = "4";
  given["join-timeout"] = "1500ms";
  given["scheduler-grace"] = "0ms";
  given["credit-bytes"] = "0";
  given["bandwidth"] = "25000000000";
  given["staleness"] = "0";
  given["mode"] = "async";
  given["transport"] = "shm";
  const ClientSettings settings = read(given);
  CHECK(settings.config.join_timeout == std::chrono::milliseconds(1500));
  CHECK(settings.config.scheduler_grace == std::chrono::seconds(0));
  CHECK(settings.config.credit_bytes == 0);
  CHECK(settings.config.bandwidth_bps == 25'000'000'000u);
  CHECK(settings.config.staleness == 0);
  CHECK(settings.config.transport == TransportChoice::shm);
  CHECK(settings.config.mode == Mode::async);
  CHECK(settings.config.worker_loss == WorkerLoss::fail);
  given["worker-loss"] = "shrink";
  CHECK(read(given, {{"BPS_UNEQUAL_SUMS", "1"}}).config.unequal_sums);
  CHECK(read(given).config.worker_loss == WorkerLoss::shrink);
  given["worker-loss"] = "?";
  CHECK_THAT(refusal(given).message, Contains("worker-loss"));
}

TEST_CASE("settings: what cannot be is refused with the numbers") {
  GivenSettings given;
  given["rank"] = "4";
  given["world-size"] = "4";
  CHECK_THAT(refusal(given).message, Contains("rank 4 does not exist in a world of 4"));
  given["rank"] = "-7";
  CHECK_THAT(refusal(given).message, Contains("rank"));
  given = {};
  given["world-size"] = "2";
  CHECK_THAT(refusal(given).message, Contains("world size is 2 but the rank is not known"));
  CHECK_THAT(refusal({}, {{"JOB_COMPLETION_INDEX", "1"}}).message, Contains("Kubernetes does not say it"));
  given["rank"] = "0";
  given["scheduler"] = "embedded:";
  CHECK_THAT(refusal(given).message, Contains("world size 1, not 2"));
  given = {};
  given["partition-bytes"] = "4097";
  CHECK_THAT(refusal(given).message, Contains("partition-bytes 4097"));
  given["partition-bytes"] = "0";
  CHECK_THAT(refusal(given).message, Contains("partition-bytes 0"));
  given = {};
  given["scheduler"] = "nowhere";
  CHECK_THAT(refusal(given).message, Contains("'nowhere' is not HOST:PORT"));
  given = {};
  given["staleness"] = "-3";
  CHECK_THAT(refusal(given).message, Contains("staleness '-3'"));
  given = {};
  given["mode"] = "?";
  CHECK_THAT(refusal(given).message, Contains("mode"));
  given = {};
  given["transport"] = "pigeon";
  CHECK_THAT(refusal(given).message, Contains("transport") && Contains("pigeon"));
  given = {};
  given["join-timeout"] = "0ms";
  CHECK_THAT(refusal(given).message, Contains("join-timeout (BPS_JOIN_TIMEOUT) is 0"));
  CHECK_THAT(refusal({}, {{"BPS_OPERATION_TIMEOUT", "0s"}}).message,
             Contains("operation-timeout (BPS_OPERATION_TIMEOUT) is 0"));
  given = {};
  given["job"] = "";
  CHECK_THAT(refusal(given).message, Contains("job name"));
  given["job"] = "a\tb";
  CHECK_THAT(refusal(given).message, Contains("job name") && Contains("0x09 at byte 1"));
  CHECK_THAT(refusal({}, {{"BPS_HOST", "gpu\n1"}}).message, Contains("host name"));
  CHECK_THAT(refusal({}, {{"BPS_WORLD_SIZE", "many"}}).message, Contains("BPS_WORLD_SIZE"));
}

TEST_CASE("settings: data threads are counted, or left to the library") {
  CHECK_FALSE(read({}).config.data_threads);
  CHECK(read({}, {{"BPS_DATA_THREADS", "3"}}).config.data_threads == 3u);
  CHECK(read({}, {{"BPS_DATA_THREADS", "64"}}).config.data_threads == 64u);
  for (const char* const wrong : {"0", "65"})
    CHECK_THAT(refusal({}, {{"BPS_DATA_THREADS", wrong}}).message, Contains("data-threads"));
}

TEST_CASE("settings: a misspelt variable is a warning, embedded is recognised") {
  GivenSettings given;
  given["scheduler"] = "embedded:";
  const ClientSettings settings = read(given, {{"BPS_WORLDSIZE", "4"}});
  CHECK(settings.embedded);
  REQUIRE(settings.warnings.size() == 1);
  CHECK_THAT(settings.warnings[0], Contains("BPS_WORLD_SIZE"));
  for (const char* misspelt : {"embedded", "embeded:"}) {
    given["scheduler"] = misspelt;
    CHECK(refusal(given).advice == "did you mean embedded:?");
  }
}

TEST_CASE("settings: an error that a misspelt variable has led to names it") {
  CHECK_THAT(
      refusal({}, {{"BPS_RANK", "1"}, {"BPS_WORLDSIZE", "4"}}).advice,
      Contains("set BPS_WORLD_SIZE; BPS_WORLDSIZE is not a setting of bps; did you mean BPS_WORLD_SIZE?"));
  CHECK_THAT(refusal({}, {{"BPS_MODE", "fast"}, {"BPS_STALENES", "4"}}).advice, Contains("BPS_STALENESS?"));
}

TEST_CASE("settings: ranks that sum on their host are known by host, user and name") {
  CHECK(read({}, {}).config.local_group == LocalGrouping::off);
  CHECK(read({}, {{"BPS_LOCAL_SIZE", "1"}}).config.group_size == 0);
  Environment environment{{"BPS_LOCAL_GROUP", "host"}, {"BPS_HOST", "gpu-03"}};
  const ClientConfig plain = read({}, environment).config;
  CHECK(plain.local_group == LocalGrouping::host);
  CHECK(plain.group_name == "gpu-03/" + shared_memory_identity());
  CHECK(plain.group_size == 0);  // nobody said
  environment["BPS_LOCAL_GROUP_ID"] = "left half";
  environment["BPS_RANK"] = "1";
  environment["BPS_WORLD_SIZE"] = "4";
  environment["BPS_LOCAL_RANK"] = "1";
  CHECK(read({}, environment).config.group_size == 0);  // a guess is not said
  environment["BPS_LOCAL_SIZE"] = "3";
  GivenSettings given;
  given["local-group"] = "host";
  const ClientConfig named = read(given, environment).config;
  CHECK(named.group_name == plain.group_name + "/left half");
  CHECK(named.group_size == 3);
  // A launcher counts the whole machine.
  const Environment launched{{"OMPI_COMM_WORLD_RANK", "5"},
                             {"OMPI_COMM_WORLD_SIZE", "8"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "5"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"},
                             {"BPS_LOCAL_GROUP", "host"}};
  CHECK(read({}, launched).config.group_size == 8);
  Environment halved = launched;
  halved["BPS_LOCAL_GROUP_ID"] = "left half";
  CHECK(read({}, halved).config.group_size == 0);
  CHECK_THAT(refusal({}, {{"BPS_RANK", "1"},
                          {"BPS_WORLD_SIZE", "128"},
                          {"BPS_LOCAL_RANK", "1"},
                          {"BPS_LOCAL_SIZE", "128"},
                          {"BPS_LOCAL_GROUP", "host"}})
                 .message,
             Contains("128 ranks of one host are too many"));
  given["local-group"] = "nccl";
  CHECK(read(given, {}).config.local_group == LocalGrouping::nccl);
  given["local-group"] = "gpus";
  CHECK_THAT(refusal(given).message, Contains("local-group") && Contains("off"));
}

TEST_CASE("settings: a GPU, and how much memory is registered with it") {
  const ClientSettings plain = read({}, {});
  CHECK_FALSE(plain.cuda_device.has_value());
  CHECK(plain.pinned_max == std::size_t{1} << 30);
  const ClientSettings set = read({}, {{"BPS_CUDA_DEVICE", "3"}, {"BPS_PINNED_MAX_BYTES", "64MiB"}});
  CHECK(set.cuda_device == 3u);
  CHECK(set.pinned_max == std::size_t{64} << 20);
  GivenSettings given;
  given["cuda-device"] = "0";
  given["pinned-max-bytes"] = "0";
  CHECK(read(given, {{"BPS_CUDA_DEVICE", "3"}}).cuda_device == 0u);
  CHECK(read(given, {{"BPS_PINNED_MAX_BYTES", "1GiB"}}).pinned_max == 0);
  given["cuda-device"] = "-2";
  CHECK(refusal(given).message == "cuda-device: '-2' is not a whole number from 0 to 1023");
  for (const std::string text : {"-1", "x", "", "1024"})
    CHECK(refusal({}, {{"BPS_CUDA_DEVICE", text}}).message ==
          "BPS_CUDA_DEVICE: '" + text + "' is not a whole number from 0 to 1023");
}

TEST_CASE("settings: a world of one has one rank") {
  const ClientSettings settings = read({}, {{"BPS_WORLD_SIZE", "1"}});
  CHECK(settings.config.rank == Rank{0});
  CHECK(settings.config.world_size == 1);
  CHECK_THAT(refusal({}, {{"BPS_WORLD_SIZE", "2"}}).advice, Contains("BPS_RANK"));
}

}  // namespace bps
