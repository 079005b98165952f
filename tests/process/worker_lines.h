// Of process_worker: what it prints of its rounds. worker.cc has the list of lines.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

inline void say(const std::string& line) { std::cout << line << std::endl; }

class Checksum {
 public:
  void add(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    sum_ = (sum_ ^ bits) * 0x100000001b3;
  }
  void say_it(std::uint64_t rounds) const {
    std::ostringstream line;
    line << "checksum " << rounds << " " << std::hex << sum_;
    say(line.str());
  }

 private:
  std::uint64_t sum_ = 0xcbf29ce484222325;
};

// Lines about rounds: where it is, and which took longest.
class Progress {
 public:
  void round_done(std::uint64_t round) {
    const auto now = std::chrono::steady_clock::now();
    if (round > 0) took_.push_back(std::chrono::duration<double, std::milli>(now - round_began_).count());
    if (round > 0 && took_.back() > longest_ms_) {
      longest_ms_ = took_.back();
      longest_round_ = round;
      longest_end_ = now;
    }
    round_began_ = now;
    if (round > 0 && now - said_ < std::chrono::milliseconds(50)) return;
    said_ = now;
    say("reached " + std::to_string(round + 1));
  }
  void say_times() {
    std::ostringstream line;
    line << "longest " << longest_round_ << " " << longest_ms_ << " " << std::fixed
         << std::chrono::duration<double>(longest_end_.time_since_epoch()).count();
    say(line.str());
    const auto middle = took_.begin() + static_cast<std::ptrdiff_t>(took_.size() / 2);
    std::nth_element(took_.begin(), middle, took_.end());
    say("usual " + std::to_string(took_.empty() ? 0.0 : *middle));
  }

 private:
  std::chrono::steady_clock::time_point round_began_{}, said_{}, longest_end_{};
  std::vector<double> took_;  // milliseconds
  double longest_ms_ = 0;
  std::uint64_t longest_round_ = 0;
};
