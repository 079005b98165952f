// The command line of the training programs.
#pragma once

#include <string>
#include <vector>

namespace lm {

struct Options {
  unsigned steps = 200;
  unsigned batch = 32;  // samples per worker and step
  unsigned reference = 0;
  bool check = false;  // of train_gpu
  float rate = 0.1f;
  std::string save;
  std::vector<std::string> files;
};

// Prints --help, or what is wrong with a flag, and ends the program. `program`: train_lm or train_gpu.
Options parse_options(int argc, char** argv, const std::string& program);

// The text, long enough for so many workers. Throws std::runtime_error otherwise.
std::string read_shardable_text(const Options& options, unsigned world_size);

}  // namespace lm
