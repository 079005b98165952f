#include "bench/reduce/turns.h"

#include <chrono>

namespace bps::bench {
namespace {

using Clock = std::chrono::steady_clock;

double turn_of(Contender& contender, unsigned runs) {
  Clock::duration total{};
  for (unsigned i = 0; i < runs; ++i) {
    contender.prepare();
    const auto begin = Clock::now();
    contender.run();
    total += Clock::now() - begin;
  }
  if (std::string wrong = contender.check(); contender.wrong.empty()) contender.wrong = std::move(wrong);
  return std::chrono::duration<double>(total).count();
}

}  // namespace

void take_turns(std::span<Contender> contenders, unsigned turns, unsigned runs) {
  for (unsigned turn = 0; turn <= turns; ++turn) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      Contender& contender = contenders[turn % 2 == 0 ? i : contenders.size() - 1 - i];
      const double seconds = turn_of(contender, runs);
      if (turn > 0) contender.seconds.push_back(seconds);
    }
  }
}

}  // namespace bps::bench
