// A fuzz target without libFuzzer, so that any compiler builds it and every run does the same: its seeds,
// the files that are named, and mutations of all of these, each from a number of its own.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "tests/fuzz/target.h"

extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace bps::fuzz {
namespace {

constexpr std::size_t kMaxInputBytes = 8192;

const char* program = "";
Bytes current;  // what runs

// The process is lost, so what is not safe in a signal handler may be tried.
void keep_current() {
  const std::string path = std::string(program) + ".finding";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the input is in %s: run %s with it\n", path.c_str(), program);
}

void on_abort(int) {
  keep_current();
  std::signal(SIGABRT, SIG_DFL);
  std::abort();
}

void run(Bytes input) {
  current = std::move(input);
  (void)LLVMFuzzerTestOneInput(current.data(), current.size());
}

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(66);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void add(const std::filesystem::path& path, std::vector<Bytes>& inputs) {
  if (!std::filesystem::is_directory(path)) return inputs.push_back(read_file(path));
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files)
    inputs.push_back(read_file(file));
}

Bytes mutated(const std::vector<Bytes>& inputs, std::uint64_t number) {
  std::mt19937_64 random(number);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  Bytes out = inputs[below(inputs.size())];
  for (std::size_t left = 1 + below(8); left > 0; --left) {
    const std::size_t at = below(out.size() + 1);
    const auto place = out.begin() + static_cast<std::ptrdiff_t>(at);
    const bool inside = at < out.size();
    switch (below(6)) {
      case 0:
        if (inside) *place ^= static_cast<std::uint8_t>(1 << below(8));
        break;
      case 1:
        if (inside) *place = static_cast<std::uint8_t>(random());
        break;
      case 2: out.insert(place, 1 + below(16), static_cast<std::uint8_t>(random())); break;
      case 3: out.erase(place, place + static_cast<std::ptrdiff_t>(below(out.size() - at + 1))); break;
      case 4: {
        const Bytes& other = inputs[below(inputs.size())];
        const auto from = other.begin() + static_cast<std::ptrdiff_t>(below(other.size() + 1));
        out.erase(place, out.end());
        out.insert(out.end(), from, other.end());
        break;
      }
      default:
        for (std::size_t more = below(64); more > 0; --more)
          out.push_back(static_cast<std::uint8_t>(random()));
    }
  }
  out.resize(std::min(out.size(), kMaxInputBytes));
  return out;
}

int usage() {
  std::fprintf(stderr,
               "usage: %s [--mutations N] [PATH...]   runs the seeds, the files and N mutations of them\n"
               "       %s FILE                        runs this file alone\n"
               "       %s --write-seeds FOLDER        for libFuzzer\n",
               program, program, program);
  return 64;
}

int write_seeds(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  std::size_t number = 0;
  for (const Bytes& seed : seeds()) {
    std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary)
        .write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
  }
  return 0;
}

int main(int argc, char** argv) {
  program = argv[0];
  if (argc == 3 && std::strcmp(argv[1], "--write-seeds") == 0) return write_seeds(argv[2]);
  std::uint64_t mutations = 0;
  int next = 1;
  if (argc > 2 && std::strcmp(argv[1], "--mutations") == 0) {
    mutations = std::strtoull(argv[2], nullptr, 10);
    next = 3;
  }
  if (next < argc && argv[next][0] == '-') return usage();
  std::vector<Bytes> inputs;
  if (next == 3 || argc == 1) inputs = seeds();
  for (; next < argc; ++next)
    add(argv[next], inputs);
  std::signal(SIGABRT, on_abort);
  if (&__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_current);
  for (const Bytes& input : inputs)
    run(input);
  for (std::uint64_t number = 0; number < mutations; ++number)
    run(mutated(inputs, number));
  std::printf("%zu inputs and %llu mutations of them\n", inputs.size(),
              static_cast<unsigned long long>(mutations));
  return 0;
}

}  // namespace
}  // namespace bps::fuzz

int main(int argc, char** argv) { return bps::fuzz::main(argc, argv); }
