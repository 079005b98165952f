// What every peer driver does alike: all-reduces or other exchanges of one f32 tensor, one after another,
// each timed and checked.
//
// A driver is one rank. It writes a line per round to stdout, "round RANK NUMBER BEGIN_NS END_NS WRONG":
// times of the machine's monotonic clock, which all ranks share, and how many elements of the sum were wrong.
// Who started the ranks takes a round to last from the first BEGIN to the last END. Warm-up rounds are run
// and checked like the others, with negative numbers. Failure: a line on stderr and exit status 1; a bad
// command line: 64.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace bps::peers {

struct Arguments {
  std::size_t elements = 0;
  std::int64_t iters = 0;
  std::int64_t warmup = 1;
  std::string algorithm;
  // Where nobody else tells.
  int rank = 0;
  int size = 1;
  std::string address;  // own
  std::string store;    // folder that all ranks share
};

inline Arguments parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--bytes") {
      arguments.elements = std::stoull(value) / sizeof(float);
    } else if (name == "--iters") {
      arguments.iters = std::stoll(value);
    } else if (name == "--warmup") {
      arguments.warmup = std::stoll(value);
    } else if (name == "--algorithm") {
      arguments.algorithm = value;
    } else if (name == "--rank") {
      arguments.rank = std::stoi(value);
    } else if (name == "--size") {
      arguments.size = std::stoi(value);
    } else if (name == "--address") {
      arguments.address = value;
    } else if (name == "--store") {
      arguments.store = value;
    } else {
      throw std::invalid_argument("unknown argument " + name);
    }
  }
  if (arguments.elements == 0 || arguments.iters <= 0 || arguments.warmup < 0) {
    throw std::invalid_argument("--bytes and --iters must be given and positive");
  }
  return arguments;
}

inline std::int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
}

// Below 8, and different for neighbours in element and round. A rank adds its number, so that one that is
// counted twice in place of another is seen: the sum over 1000 ranks is exact.
inline std::uint32_t base_value(std::size_t element, std::int64_t round) {
  return ((static_cast<std::uint32_t>(element) + static_cast<std::uint32_t>(round) * 7919u) * 2654435761u) >>
         29;
}

inline void fill(std::vector<float>& tensor, int rank, std::int64_t round) {
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    tensor[i] = static_cast<float>(base_value(i, round) + static_cast<std::uint32_t>(rank));
  }
}

// `count` elements of the sum, of which the first is element `first` of the tensor.
inline std::size_t count_wrong(const float* sum, std::size_t first, std::size_t count, int size,
                               std::int64_t round) {
  const auto ranks = static_cast<std::uint32_t>(size);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto expected = base_value(first + i, round) * ranks + ranks * (ranks - 1) / 2;
    if (sum[i] != static_cast<float>(expected)) ++wrong;
  }
  return wrong;
}

// Where each rank has given as many elements, one rank after the other.
inline std::size_t count_wrong_parts(const std::vector<float>& whole, int size, std::int64_t round) {
  const std::size_t part = whole.size() / static_cast<std::size_t>(size);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto expected = base_value(i % part, round) + static_cast<std::uint32_t>(i / part);
    if (whole[i] != static_cast<float>(expected)) ++wrong;
  }
  return wrong;
}

// `begin(round)` fills what the rank gives, and returns when all ranks are there. `exchange()` is what is
// timed, and `wrong(round)` the number of wrong elements of its result.
template <class Begin, class Exchange, class Wrong>
int run_exchanges(const Arguments& arguments, int rank, Begin begin_round, Exchange exchange,
                  Wrong wrong_in) {
  std::size_t all_wrong = 0;
  for (std::int64_t round = -arguments.warmup; round < arguments.iters; ++round) {
    begin_round(round);
    const std::int64_t begin = now_ns();
    exchange();
    const std::int64_t end = now_ns();
    const std::size_t wrong = wrong_in(round);
    all_wrong += wrong;
    std::printf("round %d %lld %lld %lld %zu\n", rank, static_cast<long long>(round),
                static_cast<long long>(begin), static_cast<long long>(end), wrong);
    std::fflush(stdout);
  }
  if (all_wrong != 0) throw std::runtime_error(std::to_string(all_wrong) + " elements were wrong");
  return 0;
}

// `barrier()` returns when all ranks are there; `reduce()` turns what `in` holds into the sum that `out`
// holds. They may be the same vector.
template <class Barrier, class Reduce>
int run_rounds(const Arguments& arguments, int rank, int size, std::vector<float>& in,
               const std::vector<float>& out, Barrier barrier, Reduce reduce) {
  return run_exchanges(
      arguments, rank,
      [&](std::int64_t round) {
        fill(in, rank, round);
        barrier();
      },
      reduce, [&](std::int64_t round) { return count_wrong(out.data(), 0, out.size(), size, round); });
}

// What main does with `run`, which may throw.
template <class Run>
int guarded(const char* program, Run run) {
  try {
    return run();
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 64;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}

}  // namespace bps::peers
