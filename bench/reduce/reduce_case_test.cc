#include "bench/reduce/reduce_case.h"

#include <catch2/catch.hpp>

#include "bench/reduce/turns.h"

namespace bps::bench {
namespace {

constexpr ReduceStep kSteps[] = {ReduceStep::round, ReduceStep::add, ReduceStep::widen, ReduceStep::finish};

TEST_CASE("every step of every type gives what the oracle says, and a step too many does not") {
  for (std::uint8_t d = 0; d < kDTypeCount; ++d) {
    for (std::uint8_t o = 0; o < kOperationCount; ++o) {
      for (const ReduceStep step : kSteps) {
        const ReduceCase what{static_cast<DType>(d), static_cast<Operation>(o), step, 3, 40'000};
        if (!does_anything(what)) continue;
        INFO(name_of(what.dtype) << " " << name_of(what.operation) << " " << name_of(step));
        auto run = ReduceRun::create(what);
        REQUIRE(run.ok());
        for (int i = 0; i < 2; ++i) {
          run->prepare();
          run->run();
          CHECK(run->check() == "");
        }
        run->prepare();
        CHECK(run->check() != "");  // nothing was done
      }
    }
  }
}

TEST_CASE("turns are as many for all, the first is not counted, and what is wrong is kept") {
  unsigned prepared = 0;
  unsigned ran = 0;
  std::vector<Contender> contenders = {
      {[&] { ++prepared; }, [&] { ++ran; }, [] { return std::string(); }},
      {[] {}, [] {},
       [&] { return ran == 4   ? "the second turn"
                    : ran == 6 ? "the third turn"
                               : std::string(); }},
  };
  take_turns(contenders, 3, 2);
  CHECK(prepared == 8);
  CHECK(ran == 8);
  CHECK(contenders[0].seconds.size() == 3);
  CHECK(contenders[1].seconds.size() == 3);
  CHECK(contenders[0].wrong.empty());
  CHECK_FALSE(contenders[1].wrong.empty());
}

}  // namespace
}  // namespace bps::bench
