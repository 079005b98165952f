// Many ranks of one job in one process, a client each, for tests of large jobs. What it has done goes to
// stdout:
//
//   joined S | pushed S | closed S        S: seconds that it took all of them
//
// After "pushed" it waits for a line on stdin: "at-once" closes all at the same time, "one-by-one" each when
// the one before has closed.
//
// With --pulse it is one rank of a small job beside it, which does a small round every few milliseconds until
// rank 0 has a line on stdin, and then says
//
//   pulse N p50 MS p99 MS max MS
//
// An error goes to stderr, and the exit status is the one that it suggests. The scheduler and the job come
// from BPS_*.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bps/client.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

struct Flags {
  std::uint32_t first = 0;    // rank
  std::uint32_t clients = 1;  // ranks from there on
  std::uint32_t size = 1;     // of the job
  std::uint32_t rounds = 3;
  std::uint32_t elements = 256;
  bool pulse = false;
};

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

void say(const std::string& line) { std::cout << line << std::endl; }

bps::Options options_of(const Flags& flags, std::uint32_t index) {
  bps::Options options;
  options.rank(static_cast<int>(flags.first + index)).world_size(static_cast<int>(flags.size));
  options.join_timeout(300s).operation_timeout(300s);
  return options;
}

class Crowd {
 public:
  explicit Crowd(const Flags& flags) : flags_(flags), clients_(flags.clients) {}

  void join() {
    for_all([this](std::uint32_t i) { clients_[i].emplace(options_of(flags_, i)); });
  }

  void push() {
    for_all([this](std::uint32_t i) {
      bps::Client& client = *clients_[i];
      const bps::Tensor tensor = client.declare("crowd", bps::DType::f32, flags_.elements);
      std::vector<float> data(flags_.elements);
      const auto ranks = static_cast<float>(flags_.size);
      for (std::uint32_t round = 0; round < flags_.rounds; ++round) {
        std::fill(data.begin(), data.end(), static_cast<float>(flags_.first + i + 1));
        client.push_pull(tensor, data).wait();
        // Whole numbers below 2^24: exact.
        if (data.front() != ranks * (ranks + 1) / 2) throw std::runtime_error("a wrong sum");
      }
    });
  }

  void close(bool at_once) {
    const auto close_one = [this](std::uint32_t i) { clients_[i]->close(60s); };
    if (at_once) return for_all(close_one);
    for (std::uint32_t i = 0; i < flags_.clients; ++i)
      close_one(i);
  }

 private:
  // Each on a thread of its own: all of these calls wait for other ranks.
  void for_all(const std::function<void(std::uint32_t)>& act) {
    std::vector<std::exception_ptr> failures(flags_.clients);
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < flags_.clients; ++i) {
      threads.emplace_back([&, i] {
        try {
          act(i);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }

  const Flags flags_;
  std::vector<std::optional<bps::Client>> clients_;
};

void run_crowd(const Flags& flags) {
  Crowd crowd(flags);
  auto begin = SteadyClock::now();
  const auto step = [&](const char* what) {
    say(std::string(what) + " " + std::to_string(seconds_since(begin)));
    begin = SteadyClock::now();
  };
  crowd.join();
  step("joined");
  crowd.push();
  step("pushed");
  std::string how;
  if (!std::getline(std::cin, how)) throw std::runtime_error("nobody says how to close");
  begin = SteadyClock::now();
  crowd.close(how == "at-once");
  step("closed");
}

void run_pulse(const Flags& flags) {
  bps::Client client(options_of(flags, 0));
  const bps::Tensor tensor = client.declare("pulse", bps::DType::f32, flags.elements);
  say("joined");
  std::vector<float> data(flags.elements);
  std::vector<double> took;
  do {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    // The wait is the pace: the small job is to notice, not to compete.
    const bool is_told = flags.first == 0 && poll(&input, 1, 2) > 0;
    std::fill(data.begin(), data.end(), is_told ? 1.0F : 0.0F);
    const auto begin = SteadyClock::now();
    client.push_pull(tensor, data).wait();
    took.push_back(1e3 * seconds_since(begin));
  } while (data.front() == 0);
  client.close();
  std::sort(took.begin(), took.end());
  const auto part = [&](double q) {
    return took[static_cast<std::size_t>(q * static_cast<double>(took.size() - 1))];
  };
  std::ostringstream line;
  line << "pulse " << took.size() << " p50 " << part(0.5) << " p99 " << part(0.99) << " max " << took.back();
  say(line.str());
}

std::uint32_t* number_of(Flags& flags, const std::string& flag) {
  return flag == "--first"      ? &flags.first
         : flag == "--clients"  ? &flags.clients
         : flag == "--size"     ? &flags.size
         : flag == "--rounds"   ? &flags.rounds
         : flag == "--elements" ? &flags.elements
                                : nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    std::uint32_t* const number = number_of(flags, flag);
    if (flag == "--pulse") {
      flags.pulse = true;
    } else if (number != nullptr && i + 1 < argc) {
      *number = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
    } else {
      std::fprintf(stderr, "crowd: cannot use %s\n", argv[i]);
      return 64;
    }
  }
  return bps::run_main(argv[0], [&flags] { flags.pulse ? run_pulse(flags) : run_crowd(flags); });
}
