// Tensors that only some ranks share (decision 0036): who may declare them, who is waited for, and names.
#include "proto/wire/wait_text.h"
#include "scheduler/testing/attach_harness.h"
#include "scheduler/testing/table_output.h"

namespace bps::tensor_ranks_test {

using namespace testing;

namespace {

using Ranks = std::vector<Rank>;

Ranks ranks(const std::vector<std::uint32_t>& numbers) {
  Ranks ranks;
  for (const std::uint32_t number : numbers)
    ranks.emplace_back(number);
  return ranks;
}

Declare declare_of(std::uint64_t request, const std::string& name, Ranks ranks,
                   std::uint64_t elements = kElements) {
  Declare declare = declare_one(request, name, elements);
  declare.tensors.at(0).ranks = std::move(ranks);
  return declare;
}

DeclaredTensor answer(CoreHarness& h, PeerId worker) { return h.last<Declared>(worker).tensors.at(0); }

DropTensors drop(CoreHarness& h, PeerId worker, TensorId tensor) {
  return {0, h.last<JobStart>(worker).job_run, {tensor}, {}};
}

}  // namespace

TEST_CASE("ranks of a tensor: servers are told them, and its ranks get it") {
  CoreHarness h;
  const PeerId server = h.server("a");
  const auto workers = h.running_job("j", 4);
  h.say(workers[3], declare_of(1, "w", ranks({3, 1})));
  REQUIRE(answer(h, workers[3]).error.code == ErrorCode::ok);
  CHECK(h.last<DeclareSlices>(server).tensors.at(0).ranks == ranks({3, 1}));
  h.say(workers[1], declare_of(1, "w", ranks({3, 1})));
  CHECK(answer(h, workers[1]).tensor == answer(h, workers[3]).tensor);
  CHECK(answer(h, workers[1]).error.code == ErrorCode::ok);
}

TEST_CASE("ranks of a tensor: a list that is none is refused, and nothing is declared") {
  CoreHarness h;
  const PeerId server = h.server("a");
  const auto workers = h.running_job("j", 3);
  const auto [numbers, why] = GENERATE(table<std::vector<std::uint32_t>, std::string>(
      {{{1, 2}, "tensor 'w' is declared by rank 0, which is not among its ranks: 1, 2"},
       {{0, 3}, "tensor 'w' is of rank 3, which is no rank of this job: they are 0 to 2"}}));
  h.say(workers[0], declare_of(1, "w", ranks(numbers)));
  CHECK(answer(h, workers[0]).error.code == ErrorCode::invalid_argument);
  CHECK(answer(h, workers[0]).error.message == why);
  CHECK(h.got<DeclareSlices>(server).empty());
}

TEST_CASE("ranks of a tensor: parts are one for each of them") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 3);
  Declare declare = declare_of(1, "w", ranks({2, 0}), 10);
  declare.tensors[0].parts = {3, 7};
  h.say(workers[0], declare);
  CHECK(answer(h, workers[0]).error.code == ErrorCode::ok);
  declare = declare_of(2, "v", ranks({2, 0}), 10);
  declare.tensors[0].parts = {3, 3, 4};
  h.say(workers[0], declare);
  CHECK_THAT(answer(h, workers[0]).error.message, Contains("10 elements and 3 parts"));
  CHECK_THAT(answer(h, workers[0]).error.advice, Contains("each of the 2 ranks"));
}

TEST_CASE("ranks of a tensor: two that declare other ranks, or another order, fail it and are named") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 3);
  h.say(workers[0], declare_of(1, "w", ranks({0, 1})));
  const auto other = GENERATE(std::vector<std::uint32_t>{1, 0}, std::vector<std::uint32_t>{0, 1, 2},
                              std::vector<std::uint32_t>{});
  h.say(workers[1], declare_of(1, "w", ranks(other)));
  const Error error = h.last<TensorFailed>(workers[0]).error;
  CHECK(error.code == ErrorCode::configuration);
  CHECK_THAT(error.message, Contains("of ranks 0 and 1,"));
  CHECK(answer(h, workers[1]).error == error);
}

TEST_CASE("ranks of a tensor: groups without a common rank have names of their own") {
  CoreHarness h;
  const PeerId server = h.server("a");
  const auto workers = h.running_job("j", 4);
  for (const std::uint32_t first : {0u, 2u}) {
    for (const std::uint32_t rank : {first, first + 1})
      h.say(workers[rank], declare_of(1, "w", ranks({first, first + 1}), 5 + first));
  }
  CHECK(answer(h, workers[0]).tensor == answer(h, workers[1]).tensor);
  CHECK(answer(h, workers[2]).tensor == answer(h, workers[3]).tensor);
  CHECK(answer(h, workers[0]).tensor != answer(h, workers[2]).tensor);
  CHECK(h.got<DeclareSlices>(server).size() == 2);
  // A question is about the tensor that the rank shares.
  h.say(workers[2], AskWaits{1, "", Subject::tensor, "w", 0, 0});
  h.run(milliseconds(50));
  std::vector<TensorId> asked;
  for (const AskOpenRounds& ask : h.got<AskOpenRounds>(server)) {
    if (ask.tensor) asked.push_back(*ask.tensor);
  }
  CHECK(asked == std::vector{answer(h, workers[2]).tensor});
}

TEST_CASE(
    "ranks of a tensor: who is ahead may use a name in the next group before others use it in this one") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 4);
  // Of rank 3 alone, then of 1, 2 and 3: only rank 3 has to drop the first one in between.
  h.say(workers[2], declare_of(1, "w", ranks({1, 2, 3})));
  const TensorId second = answer(h, workers[2]).tensor;
  h.say(workers[3], declare_of(1, "w", ranks({3})));
  CHECK(answer(h, workers[3]).error.code == ErrorCode::ok);
  const TensorId first = answer(h, workers[3]).tensor;
  CHECK(first != second);
  h.say(workers[1], declare_of(1, "w", ranks({1, 2, 3})));
  CHECK(answer(h, workers[1]).tensor == second);
  h.say(workers[3], drop(h, workers[3], first));
  h.say(workers[3], declare_of(2, "w", ranks({1, 2, 3})));
  CHECK(answer(h, workers[3]).tensor == second);
  CHECK(h.got<TensorFailed>(workers[2]).empty());
}

TEST_CASE("ranks of a tensor: who is late may still use the name as others did before they dropped it") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 3);
  const auto [before, after] = GENERATE(table<std::vector<std::uint32_t>, std::vector<std::uint32_t>>(
      {{{0, 1, 2}, {0, 1}}, {{0, 1}, {0, 1, 2}}, {{0, 1}, {1, 0}}}));
  for (const std::uint32_t rank : {0u, 1u}) {
    h.say(workers[rank], declare_of(1, "w", ranks(before)));
    const TensorId first = answer(h, workers[rank]).tensor;
    CHECK(answer(h, workers[rank]).error.code == ErrorCode::ok);
    h.say(workers[rank], drop(h, workers[rank], first));
    h.say(workers[rank], declare_of(2, "w", ranks(after)));
    CHECK(answer(h, workers[rank]).error.code == ErrorCode::ok);
    CHECK(answer(h, workers[rank]).tensor != first);
  }
  CHECK(answer(h, workers[0]).tensor == answer(h, workers[1]).tensor);
}

TEST_CASE("ranks of a tensor: a name that the rank has still in another group fails both") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 3);
  h.say(workers[2], declare_of(1, "w", ranks({1, 2})));
  h.say(workers[0], declare_of(1, "w", ranks({0, 1})));
  h.say(workers[1], declare_of(1, "w", ranks({0, 1})));
  CHECK(answer(h, workers[1]).error.code == ErrorCode::ok);
  h.say(workers[1], declare_of(2, "w", ranks({1, 2})));
  CHECK_THAT(answer(h, workers[1]).error.message,
             Contains("of ranks 0 and 1,") && Contains("of ranks 1 and 2"));
  CHECK(h.got<TensorFailed>(workers[0]).size() == 1);
  CHECK(h.got<TensorFailed>(workers[1]).size() == 2);
  CHECK(h.got<TensorFailed>(workers[2]).size() == 1);
}

TEST_CASE("ranks of a tensor: it ends when these have dropped it, and only they are waited for") {
  CoreHarness h;
  const PeerId server = h.server("a");
  const auto workers = h.running_job("j", 4);
  h.say(workers[1], declare_of(1, "w", ranks({1, 3})));
  h.say(workers[3], declare_of(1, "w", ranks({1, 3})));
  const TensorId tensor = answer(h, workers[1]).tensor;
  h.say(workers[1], drop(h, workers[1], tensor));
  h.say(workers[0], drop(h, workers[0], tensor));  // it is none of its: nothing happens
  CHECK(h.got<DropTensors>(server).empty());
  h.say(workers[1], AskWaits{1, "", Subject::drop, "w", 0, 0});
  h.run(milliseconds(50));
  const auto waits = h.last<Waits>(workers[1]).waits;
  REQUIRE(waits.size() == 1);
  CHECK_THAT(to_string(waits[0]), Contains("1 of 2 dropped it, missing rank 3 "));
  CHECK_THAT(to_string(waits[0]), !Contains("rank 0") && !Contains("rank 2"));
  // Declared again, it is another one, of other ranks.
  h.say(workers[1], declare_of(2, "w", ranks({0, 1}), 7));
  CHECK(answer(h, workers[1]).tensor != tensor);
  h.say(workers[0], declare_of(2, "w", ranks({0, 1}), 7));
  CHECK(answer(h, workers[0]).tensor == answer(h, workers[1]).tensor);
  h.say(workers[3], drop(h, workers[3], tensor));
  REQUIRE(h.got<DropTensors>(server).size() == 1);
  CHECK(h.last<DropTensors>(server).tensors == std::vector{tensor});
}

TEST_CASE("ranks of a tensor: it ends when its ranks have left or are lost, while the job goes on") {
  CoreHarness h;
  h.auto_settle = false;
  const PeerId server = h.server("a");
  std::vector<PeerId> workers;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    HelloWorker hello = CoreHarness::hello("j", rank, 4);
    hello.worker_loss = WorkerLoss::shrink;
    workers.push_back(h.say_hello(hello));
  }
  h.say(workers[1], declare_of(1, "w", ranks({3, 1})));
  h.say(workers[0], declare_of(1, "v", ranks({0, 1})));
  const TensorId tensor = answer(h, workers[1]).tensor;
  h.say(workers[3], Leave{});
  h.run(milliseconds(50));
  CHECK(h.got<DropTensors>(server).empty());
  if (GENERATE(false, true)) {
    h.kill(workers[1]);
    h.run(std::chrono::seconds(30));
  } else {
    h.say(workers[1], Leave{});
    h.run(milliseconds(50));
  }
  REQUIRE(h.got<DropTensors>(server).size() == 1);
  CHECK(h.last<DropTensors>(server).tensors == std::vector{tensor});
}

TEST_CASE("ranks of a tensor: a rank that asks about a drop hears of its own tensor only") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 4);
  for (const std::uint32_t first : {0u, 2u}) {
    for (const std::uint32_t rank : {first, first + 1})
      h.say(workers[rank], declare_of(1, "w", ranks({first, first + 1})));
    h.say(workers[first], drop(h, workers[first], answer(h, workers[first]).tensor));
  }
  h.say(workers[2], AskWaits{1, "", Subject::drop, "w", 0, 0});
  h.run(milliseconds(50));
  const auto waits = h.last<Waits>(workers[2]).waits;
  REQUIRE(waits.size() == 1);
  CHECK_THAT(to_string(waits[0]), Contains("missing rank 3 "));
  const PeerId admin = h.say_hello(HelloAdmin{});
  h.say(admin, AskWaits{1, "", Subject::drop, "w", 0, 0});
  h.run(milliseconds(50));
  CHECK(h.last<Waits>(admin).waits.size() == 2);
}

TEST_CASE("ranks of a tensor: not where the ranks of a host sum first") {
  TensorTable::Config config;
  config.run = JobRun{5};
  config.job = "j";
  config.partition_bytes = 4096;
  config.lanes.push_back({ServerId{1}, 0, 1.0});
  config.name_of_rank = [](Rank rank) { return "rank " + std::to_string(rank.value); };
  config.world_size = 4;
  config.sums_on_hosts = true;
  TensorTable table(std::move(config));
  REQUIRE(table.declare(Rank{0}, declare_of(1, "w", ranks({0, 1}))));
  const auto output = table.take_output();
  const auto answers = table_output::only<TensorTable::Answer>(output);
  CHECK_THAT(answers.at(0).message.tensors.at(0).error.message, Contains("the ranks of a host sum first"));
}

TEST_CASE("ranks of a tensor: after a restart they are what its ranks say") {
  TensorCatalog::Config config;
  config.run = JobRun{5};
  config.lanes.push_back({ServerId{1}, 0, 1.0});
  config.partition_bytes = 4096;
  config.world_size = 3;
  TensorCatalog catalog(std::move(config));
  KnownTensor known;
  known.declaration.name = "w";
  known.declaration.elements = 10;
  known.declaration.ranks = ranks({2, 0});
  known.placed.owners.resize(1);
  REQUIRE(catalog.restore(known, Rank{0}));
  CHECK(catalog.restore(known, Rank{2}));
  CHECK_FALSE(catalog.restore(known, Rank{1}));  // it cannot have it
  CHECK(catalog.has_declared(TensorId{0}, Rank{1}));
  CHECK(catalog.has_dropped(TensorId{0}, Rank{1}));
  CHECK_FALSE(catalog.has_declared(TensorId{0}, Rank{2}));
  catalog.note_declared(TensorId{0}, Rank{0});
  catalog.note_declared(TensorId{0}, Rank{2});
  CHECK(catalog[TensorId{0}].has_it.empty());
  catalog.take_back(TensorId{0}, Rank{1});
  CHECK(catalog.has_declared(TensorId{0}, Rank{1}));
  known.declaration.ranks = ranks({0, 2});
  CHECK_FALSE(catalog.restore(known, Rank{0}));
}

TEST_CASE("ranks of a tensor: only these report its failure, and learn of it") {
  CoreHarness h;
  h.server("a");
  const auto workers = h.running_job("j", 3);
  const std::string name = GENERATE(as<std::string>(), "w", "bps.group/bps.messages/world/0/1-2-5");
  for (const std::size_t rank : {1, 2})
    h.say(workers[rank], declare_of(1, name, ranks({1, 2}), 0));
  const JobRun run = h.last<JobStart>(workers[0]).job_run;
  const TensorFailed failed{run, TensorId{0}, make_error(ErrorCode::configuration, "they differ")};
  SECTION("one of them") {
    h.say(workers[2], failed);
    h.run(seconds(1));
    for (const std::size_t rank : {1, 2})
      CHECK(h.got<TensorFailed>(workers[rank]) == std::vector{failed});
    CHECK(h.got<TensorFailed>(workers[0]).empty());
  }
  SECTION("another one") {
    h.say(workers[0], failed);
    CHECK(h.refusal(workers[0]).message == "TensorFailed for a tensor that this rank has not declared");
    for (const std::size_t rank : {1, 2})
      CHECK(h.got<TensorFailed>(workers[rank]).empty());
  }
}

}  // namespace bps::tensor_ranks_test
