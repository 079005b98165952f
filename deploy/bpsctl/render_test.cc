#include "deploy/bpsctl/render.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "proto/wire/testing/sample_messages.h"

namespace bps {
namespace {

template <class T>
T sample() {
  for (const Message& message : testing::sample_messages()) {
    if (const T* found = std::get_if<T>(&message)) return *found;
  }
  return {};
}

TEST_CASE("bpsctl: waits, for people and as JSON") {
  CHECK(render(sample<Waits>()) ==
        "resnet50: for 10.4 s: round 812 of layer1.weight: 6 of 8 pushed, missing rank 3 (host gpu-03, last "
        "seen 0.4 s ago; it has not declared it, and waits for round 811 of layer2.weight itself) and rank 5 "
        "(host gpu-05, gone for 9.8 s); ranks have waited for each other for 10.3 s\nand 7 more\n"
        "did not answer: server 2 (host cpu-02, connection lost 0.2 s ago)\n");
  CHECK(render(Waits{}) == "nothing waits\n");
  CHECK(render(Waits{}, std::chrono::seconds(1)) == "nothing waits, or not for 1s yet (--older-than)\n");
  const auto json = nlohmann::json::parse(render_json(sample<Waits>()));
  const auto& wait = json["waits"][0];
  CHECK(wait["tensor"] == "layer1.weight");
  CHECK(wait["number"] == 812);
  CHECK(wait["age_seconds"] == 10.4);
  CHECK(wait["missing"][1]["rank"] == 5);
  CHECK(wait["missing"][1]["state"] == "gone");
  CHECK(wait["missing"][0]["undeclared"] == true);
  CHECK(wait["missing"][0]["waits_for"] == "layer2.weight");
  CHECK(wait["missing"][0]["waits_for_round"] == 811);
  CHECK(wait["cycle_seconds"] == 10.3);
  CHECK(json["silent"][0]["server"] == 2);
}

TEST_CASE("bpsctl: the cluster, for people and as JSON") {
  const Endpoint scheduler{"127.0.0.1", 4710};
  CHECK(render(sample<ClusterState>(), scheduler) ==
        "scheduler 127.0.0.1:4710  term 1  up 86400.0 s\n"
        "the scheduler was late by 0.7 s in the last minute\n1 server\n"
        "  server 2  host cpu-02  10.0.0.9:4714  2 shards  1.0 MiB of 1.0 GiB  1 job  last seen 0.1 s ago  "
        "drains\n"
        "  server 1  host cpu-01  10.0.0.8:4714  gone for 3.0 s: connection lost\n"
        "1 job\n"
        "  resnet50  run 00000000000000b2  running for 3600.0 s: 8 of 8 workers joined, 1 suspected, 1 left; "
        "161 "
        "tensors, 97.5 MiB on 2 servers; epoch 7, generation 8\n"
        "    rank 5 (host gpu-05, has left)\n"
        "    rank 3's link to server 2 is cut (2.1 s)\n");
  CHECK(render(ClusterState{}, scheduler) ==
        "scheduler 127.0.0.1:4710  term 0  up 0.0 s\nno server\nno job\n");
  const auto json = nlohmann::json::parse(render_json(sample<ClusterState>(), scheduler));
  CHECK(json["lag_seconds"] == 0.7);
  CHECK(json["servers"][0]["draining"] == true);
  CHECK(json["gone_servers"][0]["server"] == 1);
  CHECK(json["gone_servers"][0]["gone_seconds"] == 3.0);
  CHECK(json["gone_servers"][0]["how"] == "connection lost");
  CHECK(json["jobs"][0]["absentees"][0]["rank"] == 5);
}

TEST_CASE("bpsctl: the end of the cluster, for people and as JSON") {
  CHECK(render(ClusterEnded{1, 2, 1}) == "the cluster has ended: 2 jobs, 1 server and the scheduler\n");
  const auto json = nlohmann::json::parse(render_json(ClusterEnded{1, 2, 1}));
  CHECK(json["jobs"] == 2);
  CHECK(json["servers"] == 1);
}

TEST_CASE("bpsctl: names that are no UTF-8 do not break JSON") {
  Waits waits = sample<Waits>();
  waits.waits[0].tensor = "\xff";
  CHECK(nlohmann::json::parse(render_json(waits))["waits"].size() == 1);
}

}  // namespace
}  // namespace bps
