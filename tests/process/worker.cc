// A worker for the process tests: joins, declares, and push_pulls with every sum checked. Where it stands
// goes to stdout, one line each, so that a test can act at the right moment:
//
//   joined RANK SIZE | declared | reached N | done | closed
//
// An error goes to stderr as "CODE: message; advice", and the exit status is the one that it suggests.
// Scheduler, job, rank and the rest come from BPS_* variables.
#include <bps/client.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;

struct Flags {
  std::uint64_t elements = 100'000;
  std::uint64_t tensors = 1;
  std::uint64_t rounds = 5;
  std::uint64_t announce = 0;    // "reached N" when this many rounds are done
  std::uint64_t hold_after = 0;  // after this many rounds, wait for a line on stdin
  bool hold_first = false;       // before the first round, wait for a line on stdin
  bool barrier = false;
  std::string tensor = "weight";
  std::uint64_t join_ms = 20'000;
  std::uint64_t timeout_ms = 60'000;
};

int usage(const char* what) {
  std::fprintf(stderr, "worker: cannot use %s\n", what);
  return 64;
}

void say(const std::string& line) { std::cout << line << std::endl; }

void wait_for_a_line() {
  std::string line;
  if (!std::getline(std::cin, line)) std::exit(0);
}

// Whole numbers that a float holds exactly, different for every rank, round and element.
float value(std::uint64_t rank, std::uint64_t round, std::uint64_t element) {
  return static_cast<float>((rank + 1) * ((round + element) % 1000));
}

int run(const Flags& flags) {
  bps::Options options;
  options.join_timeout(std::chrono::milliseconds(flags.join_ms));
  options.operation_timeout(std::chrono::milliseconds(flags.timeout_ms));
  // Before the client, whose destructor ends the operations that read and write it.
  std::vector<std::vector<float>> data(flags.tensors, std::vector<float>(flags.elements));
  bps::Client client(options);
  const auto rank = static_cast<std::uint64_t>(client.rank());
  const auto size = static_cast<std::uint64_t>(client.world_size());
  say("joined " + std::to_string(rank) + " " + std::to_string(size));

  std::vector<bps::TensorSpec> specs;
  for (std::uint64_t t = 0; t < flags.tensors; ++t) {
    specs.push_back({flags.tensor + std::to_string(t), bps::DType::f32, flags.elements});
  }
  const std::vector<bps::Tensor> tensors = client.declare(specs);
  say("declared");
  if (flags.hold_first) wait_for_a_line();

  for (std::uint64_t round = 0; round < flags.rounds; ++round) {
    std::vector<bps::Handle> handles;
    for (std::uint64_t t = 0; t < flags.tensors; ++t) {
      for (std::uint64_t i = 0; i < flags.elements; ++i)
        data[t][i] = value(rank, round + t, i);
      handles.push_back(client.push_pull(tensors[t], data[t]));
    }
    for (std::uint64_t t = 0; t < flags.tensors; ++t) {
      handles[t].wait();
      for (std::uint64_t i = 0; i < flags.elements; ++i) {
        const auto expected = static_cast<float>(size * (size + 1) / 2 * ((round + t + i) % 1000));
        if (data[t][i] == expected) continue;
        std::fprintf(stderr, "wrong sum: round %llu, tensor %llu, element %llu: %g, not %g\n",
                     static_cast<unsigned long long>(round), static_cast<unsigned long long>(t),
                     static_cast<unsigned long long>(i), static_cast<double>(data[t][i]),
                     static_cast<double>(expected));
        return 1;
      }
    }
    if (flags.barrier) client.barrier();
    if (round + 1 == flags.announce) say("reached " + std::to_string(round + 1));
    if (round + 1 == flags.hold_after) wait_for_a_line();
  }
  say("done");
  client.close();
  say("closed");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--barrier") {
      flags.barrier = true;
    } else if (flag == "--hold-first") {
      flags.hold_first = true;
    } else if (i + 1 == argc) {
      return usage(argv[i]);
    } else if (flag == "--tensor") {
      flags.tensor = argv[++i];
    } else {
      std::uint64_t* const number = flag == "--elements"     ? &flags.elements
                                    : flag == "--tensors"    ? &flags.tensors
                                    : flag == "--rounds"     ? &flags.rounds
                                    : flag == "--announce"   ? &flags.announce
                                    : flag == "--hold-after" ? &flags.hold_after
                                    : flag == "--join-ms"    ? &flags.join_ms
                                    : flag == "--timeout-ms" ? &flags.timeout_ms
                                                             : nullptr;
      if (number == nullptr) return usage(argv[i]);
      *number = std::strtoull(argv[++i], nullptr, 10);
    }
  }
  try {
    return run(flags);
  } catch (const bps::Error& error) {
    std::fprintf(stderr, "%d: %s\n", static_cast<int>(error.code()), error.what());
    return error.exit_code();
  }
}
