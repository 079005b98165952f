// Times pieces of arithmetic in turns, each as often as the others, so that all see the same machine.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace bps::bench {

struct Contender {
  std::function<void()> prepare;       // not timed, before every run
  std::function<void()> run;           // timed
  std::function<std::string()> check;  // not timed, after the last run of a turn: empty, or what is wrong
  std::vector<double> seconds = {};    // of each turn
  std::string wrong = {};              // the first that was
};

// `turns` turns of `runs` runs each; who is first changes with every turn. The first turn is not counted.
void take_turns(std::span<Contender> contenders, unsigned turns, unsigned runs);

}  // namespace bps::bench
