#include "options.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "model.h"
#include "text.h"

namespace lm {
namespace {

[[noreturn]] void usage(const std::string& program, int exit_status, const std::string& problem = {}) {
  std::FILE* const out = exit_status == 0 ? stdout : stderr;
  const bool gpu = program == "train_gpu";
  if (!problem.empty()) std::fprintf(out, "%s: %s\n", program.c_str(), problem.c_str());
  std::fprintf(
      out,
      "usage: %s [--steps N] [--batch N] [--rate X] [--save FILE] [--reference N]%s [FILE or FOLDER ...]\n"
      "  --steps N      training steps (200)\n"
      "  --batch N      samples per worker and step, a multiple of 4 (32)\n"
      "  --rate X       learning rate (0.1)\n"
      "  --save FILE    write the final parameters (rank 0), f32 in layer order\n"
      "  --reference N  train in this process alone, with N shards, adding gradients in rank order\n"
      "%s"
      "  FILE ...       the text; default /usr/share/common-licenses\n"
      "As a worker it takes rank, world size and scheduler from BPS_* (see bps-run).\n",
      program.c_str(), gpu ? " [--check]" : "",
      gpu ? "  --check        compare the first gradients with the CPU's, and the last parameters of all "
            "ranks\n"
          : "");
  std::exit(exit_status);
}

unsigned whole_number(const std::string& program, const std::string& flag, const std::string& text) {
  char* end = nullptr;
  const unsigned long value = std::strtoul(text.c_str(), &end, 10);
  if (text.empty() || text[0] == '-' || *end != '\0' || value == 0 || value > 1'000'000) {
    usage(program, 64, flag + " " + text + ": not a whole number from 1 to 1000000");
  }
  return static_cast<unsigned>(value);
}

}  // namespace

Options parse_options(int argc, char** argv, const std::string& program) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) usage(program, 64, flag + " needs a value");
      return argv[++i];
    };
    if (flag == "--help" || flag == "-h") usage(program, 0);
    if (flag == "--steps") {
      options.steps = whole_number(program, flag, value());
    } else if (flag == "--batch") {
      options.batch = whole_number(program, flag, value());
    } else if (flag == "--reference") {
      options.reference = whole_number(program, flag, value());
    } else if (flag == "--rate") {
      options.rate = std::strtof(value().c_str(), nullptr);
    } else if (flag == "--save") {
      options.save = value();
    } else if (flag == "--check" && program == "train_gpu") {
      options.check = true;
    } else if (flag.size() > 1 && flag[0] == '-') {
      usage(program, 64, "unknown flag " + flag);
    } else {
      options.files.push_back(flag);
    }
  }
  if (options.batch % 4 != 0) usage(program, 64, "--batch must be a multiple of 4");
  if (!(options.rate > 0.0f)) usage(program, 64, "--rate must be above 0");
  if (options.files.empty()) options.files.push_back("/usr/share/common-licenses");
  return options;
}

std::string read_shardable_text(const Options& options, unsigned world_size) {
  std::string text = read_text(options.files);
  if (text.size() / world_size <= kContext) {
    throw std::runtime_error("the text has only " + std::to_string(text.size()) + " bytes for " +
                             std::to_string(world_size) + " workers");
  }
  return text;
}

}  // namespace lm
