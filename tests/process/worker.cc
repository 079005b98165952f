// A worker for the process tests: joins, declares, and push_pulls with every sum checked. Where it stands
// goes to stdout, one line each, so that a test can act at the right moment:
//
//   joined RANK SIZE | declared | reached N | longest ROUND MS END | usual MS | lanes N shm N rdma N reads N
//   failed N | done | checksum ROUNDS SUM | closed
//
// With --until-told: `longest` is the round that took longest and when it was over, in seconds of the
// monotonic clock; `usual` is the median of all. `checksum` is made of every value that a round gave: two
// runs of as many rounds that print the same have the same sums.
//
// With --may-lose RANK: sums may lack what that rank adds, from some moment of some round on.
//
// With --groups 3,2: ranks 0 to 2 sum on their host before it meets that of ranks 3 and 4. Values have
// fractions then, so that sums in another order have other bits; and with a rank its host is lost.
//
// With --drop-every N: after every N rounds all tensors are dropped and declared again, but the one that says
// when to stop.
//
// With --device cuda: tensors are in the memory of a GPU, filled and read by copies, and a stream waits for
// the sums.
//
// With --allocated: tensors are in memory of bps_allocate, which a server on this host maps.
//
// An error goes to stderr as "CODE: message; advice", and the exit status is the one that it suggests.
// Scheduler, job, rank and the rest come from BPS_* variables.
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bps/client.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/process/worker_gpu.h"
#include "tests/process/worker_lines.h"
#include "tests/process/worker_messages.h"

namespace {

constexpr std::uint64_t kNobody = ~std::uint64_t{0};

struct Flags {
  std::uint64_t elements = 100'000;
  std::uint64_t tensors = 1;
  std::vector<std::uint64_t> groups;  // ranks of each host; empty: none
  std::vector<std::uint64_t> sizes;   // elements of each tensor; given, the two above do not count
  std::uint64_t rounds = 5;
  std::uint64_t announce = 0;     // "reached N" when this many rounds are done
  std::uint64_t hold_after = 0;   // after this many rounds, wait for a line on stdin
  std::uint64_t fork_after = 0;   // after this many rounds, fork a child that uses the client, and goes
  std::uint64_t throw_after = 0;  // after this many rounds, end by an exception of its own
  std::uint64_t reference =
      0;                    // of this world size: print the checksum of `rounds` rounds, without a cluster
  bool hold_first = false;  // before the first round, wait for a line on stdin
  bool until_told = false;  // rounds until rank 0 has a line on stdin; "reached N" every 50 ms
  bool priorities = false;  // a tensor's number is its priority
  bool broadcast = false;   // each tensor first, from rank (its number mod the world's size)
  // After each push_pull a reduce, then a broadcast, to and from a root that changes; then a reduce_scatter
  // and an all_gather, of parts of different lengths; then messages: see WorkerMessages.
  bool exchanges = false;
  bool barrier = false;
  bool allocated = false;
  std::uint64_t may_lose = kNobody;
  std::uint64_t drop_every = 0;
  std::string tensor = "weight";
  std::string device = "host";
  std::uint64_t join_ms = 20'000;
  std::uint64_t timeout_ms = 60'000;
};

int usage(const char* what) {
  std::fprintf(stderr, "worker: cannot use %s\n", what);
  return 64;
}

void wait_for_a_line() {
  std::string line;
  if (!std::getline(std::cin, line)) std::exit(0);
}

// Whether the child was told that its copy of the client is of no use.
bool fork_a_child(bps::Client& client) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      client.barrier();
    } catch (const bps::Error& error) {
      _exit(error.code() == bps::Code::closed ? 0 : 1);
    }
    _exit(1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool is_told() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return poll(&input, 1, 0) > 0;
}

// Whole numbers that a float holds exactly, different for every rank, round and element; with groups, tenths.
float value(const Flags& flags, std::uint64_t rank, std::uint64_t round, std::uint64_t element) {
  const auto whole = static_cast<float>((rank + 1) * ((round + element) % 1000));
  return flags.groups.empty() ? whole : whole * 0.1F;
}

// Without the host of rank `lost`, if there is one.
float sum_of_hosts(const Flags& flags, std::uint64_t round, std::uint64_t element, std::uint64_t lost) {
  std::optional<float> all;
  std::uint64_t first = 0;
  for (const std::uint64_t count : flags.groups) {
    float host = value(flags, first, round, element);
    for (std::uint64_t rank = first + 1; rank < first + count; ++rank)
      host += value(flags, rank, round, element);
    const bool is_lost = lost >= first && lost < first + count;
    if (!is_lost) all = all ? *all + host : host;
    first += count;
  }
  return all.value_or(0);
}

float sum(const Flags& flags, std::uint64_t size, std::uint64_t round, std::uint64_t element,
          std::uint64_t lost = kNobody) {
  if (!flags.groups.empty()) return sum_of_hosts(flags, round, element, lost);
  const auto all = static_cast<float>(size * (size + 1) / 2 * ((round + element) % 1000));
  return lost == kNobody ? all : all - value(flags, lost, round, element);
}

int print_reference(const Flags& flags) {
  Checksum checksum;
  for (std::uint64_t round = 0; round < flags.rounds; ++round) {
    for (std::uint64_t t = 0; t < flags.sizes.size(); ++t) {
      for (std::uint64_t i = 0; i < flags.sizes[t]; ++i)
        checksum.add(sum(flags, flags.reference, round + t, i));
    }
  }
  checksum.say_it(flags.rounds);
  return 0;
}

// Each second rank has nothing, but for the last one, which has the rest.
std::vector<std::uint64_t> cut(std::uint64_t count, std::uint64_t ranks) {
  std::vector<std::uint64_t> parts(ranks);
  for (std::uint64_t rank = 0; rank + 1 < ranks; rank += 2)
    parts[rank] = count / ranks;
  parts.back() += count - std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  return parts;
}

class Training {
 public:
  // `gpu`: null, or where the tensors are.
  // `pairs`: for what this rank shares with the one before, and with the one after.
  Training(const Flags& flags, std::vector<std::span<float>>& data, std::vector<float>& stop,
           std::vector<std::vector<float>>& pairs, WorkerMessages& messages, WorkerGpu* gpu,
           bps::Client& client)
      : flags_(flags),
        data_(data),
        stop_(stop),
        pairs_(pairs),
        messages_(messages),
        gpu_(gpu),
        client_(client),
        size_(static_cast<std::uint64_t>(client.world_size())) {
    for (std::uint64_t t = 0; t < data.size(); ++t) {
      const auto priority = flags.priorities ? static_cast<std::int32_t>(t) : BPS_PRIORITY_DEFAULT;
      specs_.push_back({flags.tensor + std::to_string(t), bps::DType::f32, data[t].size(), priority});
      if (flags.exchanges) specs_.back().parts = cut(data[t].size(), size_);
    }
    if (flags.until_told) specs_.push_back({flags.tensor + "-stop", bps::DType::f32, 1});
    tensors_ = client.declare(specs_);
    if (!flags.exchanges || size_ == 1) return;
    for (std::uint64_t k = 0; k < pairs.size(); ++k) {
      const std::uint64_t first = first_of(k);
      bps::TensorSpec spec{flags.tensor + "-pair" + std::to_string(first), bps::DType::f32, pairs[k].size()};
      spec.ranks = {static_cast<int>((first + 1) % size_), static_cast<int>(first)};
      shared_.push_back(client.declare(spec));
      pair_groups_.push_back(client.group(spec.name, spec.ranks));
    }
  }

  // Tensor t from rank (round + t) modulo the world's size.
  bool broadcast(std::uint64_t round) {
    std::vector<bps::Handle> handles;
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      const std::uint64_t root = (round + t) % size_;
      std::fill(data_[t].begin(), data_[t].end(), -1.0F);
      if (rank() == root) fill(t, round);
      if (gpu_ != nullptr) gpu_->write(t, data_[t]);
      handles.push_back(gpu_ != nullptr ? client_.broadcast(tensors_[t], on_gpu(t), static_cast<int>(root))
                                        : client_.broadcast(tensors_[t], data_[t], static_cast<int>(root)));
    }
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      finish(t, handles[t]);
      for (std::uint64_t i = 0; i < data_[t].size(); ++i) {
        if (!check("broadcast", round, t, i, value(flags_, (round + t) % size_, round + t, i))) return false;
      }
    }
    return true;
  }

  // The same roots; in place there. The others keep what they give.
  bool reduce(std::uint64_t round) {
    std::vector<bps::Handle> handles;
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      fill(t, round);
      const auto root = static_cast<int>((round + t) % size_);
      handles.push_back(client_.reduce(tensors_[t], data_[t], data_[t], root));
    }
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      handles[t].wait();
      const bool is_root = rank() == (round + t) % size_;
      for (std::uint64_t i = 0; i < data_[t].size(); ++i) {
        const float expected =
            is_root ? sum(flags_, size_, round + t, i) : value(flags_, rank(), round + t, i);
        if (!check("reduce", round, t, i, expected)) return false;
      }
    }
    return true;
  }

  // In place: the parts of the sum, and from them the whole. The others' elements are as they were meanwhile.
  bool scatter_and_gather(std::uint64_t round) {
    std::vector<bps::Handle> handles;
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      fill(t, round);
      handles.push_back(client_.reduce_scatter(tensors_[t], data_[t], own(t)));
    }
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      handles[t].wait();
      const std::span<float> mine = own(t);
      for (std::uint64_t i = 0; i < data_[t].size(); ++i) {
        const bool is_mine = &data_[t][i] >= mine.data() && &data_[t][i] < mine.data() + mine.size();
        const float expected =
            is_mine ? sum(flags_, size_, round + t, i) : value(flags_, rank(), round + t, i);
        if (!check("reduce_scatter", round, t, i, expected)) return false;
      }
      handles[t] = client_.all_gather(tensors_[t], own(t), data_[t]);
    }
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      handles[t].wait();
      for (std::uint64_t i = 0; i < data_[t].size(); ++i) {
        if (!check("all_gather", round, t, i, sum(flags_, size_, round + t, i))) return false;
      }
    }
    return true;
  }

  // Without names, of lengths that change.
  bool call_all(std::uint64_t round) {
    std::vector<bps::Handle> handles;
    std::vector<std::span<float>> called;
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      fill(t, round);
      called.push_back(data_[t].first((round * 7919 + t * 31) % (data_[t].size() + 1)));
      handles.push_back(client_.world().push_pull(bps::DType::f32, called[t], called[t], bps::Op::sum));
    }
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      handles[t].wait();
      for (std::uint64_t i = 0; i < data_[t].size(); ++i) {
        const float expected =
            i < called[t].size() ? sum(flags_, size_, round + t, i) : value(flags_, rank(), round + t, i);
        if (!check("call", round, t, i, expected)) return false;
      }
    }
    return true;
  }

  // With each of the neighbours alone, by name or on their group.
  bool sum_in_pairs(std::uint64_t round, bool by_name) {
    std::vector<bps::Handle> handles;
    for (std::uint64_t k = 0; k < shared_.size(); ++k) {
      for (std::uint64_t i = 0; i < pairs_[k].size(); ++i)
        pairs_[k][i] = value(flags_, rank(), round, i);
      handles.push_back(by_name ? client_.push_pull(shared_[k], pairs_[k], bps::Op::sum)
                                : pair_groups_[k].push_pull(bps::DType::f32, pairs_[k], pairs_[k]));
    }
    for (std::uint64_t k = 0; k < shared_.size(); ++k) {
      handles[k].wait();
      const std::uint64_t first = first_of(k);
      for (std::uint64_t i = 0; i < pairs_[k].size(); ++i) {
        const float expected = value(flags_, first, round, i) + value(flags_, (first + 1) % size_, round, i);
        if (pairs_[k][i] == expected) continue;
        std::cerr << "wrong sum of a pair: round " << round << ", ranks " << first
                  << " and the next, element " << i << ": " << pairs_[k][i] << ", not " << expected << "\n";
        return false;
      }
    }
    return true;
  }

  // Other tensors with the same names. Those before are gone then: servers need memory for two of each.
  void renew() {
    for (const bps::Handle& before : dropped_)
      before.wait();
    dropped_.clear();
    for (std::uint64_t t = 0; t < data_.size(); ++t)
      dropped_.push_back(client_.drop(tensors_[t]));
    tensors_ = client_.declare(specs_);
  }

  bool round(std::uint64_t round, bool last) {
    if (flags_.drop_every > 0 && round > 0 && round % flags_.drop_every == 0) renew();
    std::vector<bps::Handle> handles;
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      fill(t, round);
      if (gpu_ != nullptr) gpu_->write(t, data_[t]);
      handles.push_back(gpu_ != nullptr ? client_.push_pull(tensors_[t], on_gpu(t), on_gpu(t))
                                        : client_.push_pull(tensors_[t], data_[t]));
    }
    if (flags_.until_told) {
      stop_[0] = last ? 1 : 0;
      handles.push_back(client_.push_pull(tensors_.back(), stop_));
    }
    for (std::uint64_t t = 0; t < data_.size(); ++t) {
      finish(t, handles[t]);
      for (std::uint64_t i = 0; i < data_[t].size(); ++i) {
        if (!check_sum(round, t, i)) return false;
        checksum_.add(data_[t][i]);
      }
    }
    if (flags_.exchanges &&
        !(reduce(round) && broadcast(round) && scatter_and_gather(round) && call_all(round) &&
          sum_in_pairs(round, true) && sum_in_pairs(round, false) && messages_.round(client_, round))) {
      return false;
    }
    if (flags_.until_told) handles.back().wait();
    if (last && !stopped()) {
      std::cerr << "wrong sum: round " << round << ": " << stop_[0] << " of the ranks that stop, not 1\n";
      return false;
    }
    return true;
  }

  std::uint64_t rank() const { return static_cast<std::uint64_t>(client_.rank()); }
  bool stopped() const { return stop_[0] != 0; }
  const Checksum& checksum() const { return checksum_; }

 private:
  // Of the pair: this rank's predecessor, or itself.
  std::uint64_t first_of(std::uint64_t pair) const {
    return pair == 0 ? (rank() + size_ - 1) % size_ : rank();
  }

  // This rank's part.
  std::span<float> own(std::uint64_t t) {
    const auto& parts = specs_[t].parts;
    const auto mine = parts.begin() + static_cast<std::ptrdiff_t>(rank());
    return data_[t].subspan(std::accumulate(parts.begin(), mine, std::uint64_t{0}), *mine);
  }

  void fill(std::uint64_t t, std::uint64_t round) {
    for (std::uint64_t i = 0; i < data_[t].size(); ++i)
      data_[t][i] = value(flags_, rank(), round + t, i);
  }

  bps::CudaMemory on_gpu(std::uint64_t t) const {
    const WorkerGpu::Memory memory = gpu_->memory(t);
    return {memory.pointer, memory.bytes, memory.device, memory.stream};
  }

  // The result is in data_[t].
  void finish(std::uint64_t t, const bps::Handle& handle) {
    if (gpu_ != nullptr) {
      handle.wait_stream(gpu_->memory(t).stream);
      gpu_->read(t, data_[t]);
    }
    handle.wait();
  }

  // A rank that is lost may be missing in some elements of the first round that lacks it, and in all of
  // later ones.
  bool check_sum(std::uint64_t round, std::uint64_t t, std::uint64_t i) {
    const float all = sum(flags_, size_, round + t, i);
    if (flags_.may_lose == kNobody) return check("sum", round, t, i, all);
    const float others = sum(flags_, size_, round + t, i, flags_.may_lose);
    if (data_[t][i] != all) lacks_since_ = std::min(lacks_since_, round);
    if (round == lacks_since_ && data_[t][i] == all) return true;
    return check("sum", round, t, i, round < lacks_since_ ? all : others);
  }

  bool check(const char* what, std::uint64_t round, std::uint64_t t, std::uint64_t i, float expected) {
    if (data_[t][i] == expected) return true;
    std::ostringstream line;
    line << "wrong " << what << ": round " << round << ", tensor " << t << ", element " << i << ": "
         << data_[t][i] << ", not " << expected << "\n";
    std::cerr << line.str();
    return false;
  }

  const Flags& flags_;
  std::vector<std::span<float>>& data_;
  std::vector<float>& stop_;
  std::vector<std::vector<float>>& pairs_;
  WorkerMessages& messages_;
  WorkerGpu* const gpu_;
  bps::Client& client_;
  std::uint64_t size_;
  std::vector<bps::TensorSpec> specs_;
  std::vector<bps::Tensor> tensors_;
  std::vector<bps::Tensor> shared_;  // by pair
  std::vector<bps::Group> pair_groups_;
  std::vector<bps::Handle> dropped_;
  std::uint64_t lacks_since_ = kNobody;  // the first round that lacks what --may-lose adds
  Checksum checksum_;
};

int run(const Flags& flags) {
  bps::Options options;
  options.join_timeout(std::chrono::milliseconds(flags.join_ms));
  options.operation_timeout(std::chrono::milliseconds(flags.timeout_ms));
  // Before the client, whose destructor ends the operations that read and write it.
  std::vector<std::vector<float>> vectors;
  std::vector<bps::Memory> allocations;
  std::vector<std::span<float>> data;
  if (!flags.allocated) {
    for (const std::uint64_t size : flags.sizes)
      data.emplace_back(vectors.emplace_back(size));
  }
  std::vector<float> stop(1);
  std::vector<std::vector<float>> pairs(2, std::vector<float>(5000));
  // So many drops of groups as of tensors would be half of the job.
  WorkerMessages messages(flags.tensor + "-messages", 4 * flags.drop_every);
  std::optional<WorkerGpu> gpu;
  bps::Client client(options);
  say("joined " + std::to_string(client.rank()) + " " + std::to_string(client.world_size()));
  if (flags.allocated) {
    for (const std::uint64_t size : flags.sizes) {
      allocations.push_back(client.allocate(size * sizeof(float)));
      data.emplace_back(allocations.back().as<float>(), size);
    }
  }
  if (flags.device == "cuda") gpu.emplace(client.local_rank(), data);
  Training training(flags, data, stop, pairs, messages, gpu ? &*gpu : nullptr, client);
  say("declared");
  if (flags.hold_first) wait_for_a_line();
  if (flags.broadcast && !training.broadcast(0)) return 1;

  Progress progress;
  std::uint64_t rounds = 0;
  while (flags.until_told ? !training.stopped() : rounds < flags.rounds) {
    const bool last = flags.until_told && client.rank() == 0 && is_told();
    if (!training.round(rounds, last)) return 1;
    if (flags.until_told) progress.round_done(rounds);
    ++rounds;
    if (flags.barrier) client.barrier();
    if (rounds == flags.announce) say("reached " + std::to_string(rounds));
    if (rounds == flags.hold_after) wait_for_a_line();
    if (rounds == flags.fork_after) {
      if (!fork_a_child(client)) return 1;
      say("a child is told that its client is closed");
    }
    if (rounds == flags.throw_after) throw std::runtime_error("a bug of the program");
  }
  if (flags.until_told) progress.say_times();
  const auto stats = client.stats();
  say("lanes " + std::to_string(stats.lanes) + " shm " + std::to_string(stats.shm_lanes) + " rdma " +
      std::to_string(stats.rdma_lanes) + " reads " + std::to_string(stats.rdma_reads) + " failed " +
      std::to_string(stats.rdma_failed_requests));
  say("done");
  client.close();
  training.checksum().say_it(rounds);
  say("closed");
  return 0;
}

std::vector<std::uint64_t> numbers(const std::string& text) {
  std::vector<std::uint64_t> result;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');)
    result.push_back(std::strtoull(word.c_str(), nullptr, 10));
  return result;
}

bool* switch_of(Flags& flags, const std::string& flag) {
  return flag == "--barrier"      ? &flags.barrier
         : flag == "--hold-first" ? &flags.hold_first
         : flag == "--until-told" ? &flags.until_told
         : flag == "--priorities" ? &flags.priorities
         : flag == "--broadcast"  ? &flags.broadcast
         : flag == "--exchanges"  ? &flags.exchanges
         : flag == "--allocated"  ? &flags.allocated
                                  : nullptr;
}

std::uint64_t* number_of(Flags& flags, const std::string& flag) {
  return flag == "--elements"      ? &flags.elements
         : flag == "--tensors"     ? &flags.tensors
         : flag == "--rounds"      ? &flags.rounds
         : flag == "--announce"    ? &flags.announce
         : flag == "--hold-after"  ? &flags.hold_after
         : flag == "--fork-after"  ? &flags.fork_after
         : flag == "--throw-after" ? &flags.throw_after
         : flag == "--reference"   ? &flags.reference
         : flag == "--may-lose"    ? &flags.may_lose
         : flag == "--drop-every"  ? &flags.drop_every
         : flag == "--join-ms"     ? &flags.join_ms
         : flag == "--timeout-ms"  ? &flags.timeout_ms
                                   : nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (bool* const is_on = switch_of(flags, flag)) {
      *is_on = true;
    } else if (i + 1 == argc) {
      return usage(argv[i]);
    } else if (flag == "--tensor") {
      flags.tensor = argv[++i];
    } else if (flag == "--device") {
      flags.device = argv[++i];
      if (flags.device != "host" && flags.device != "cuda") return usage(argv[i]);
    } else if (flag == "--sizes") {
      flags.sizes = numbers(argv[++i]);
    } else if (flag == "--groups") {
      flags.groups = numbers(argv[++i]);
    } else {
      std::uint64_t* const number = number_of(flags, flag);
      if (number == nullptr) return usage(argv[i]);
      *number = std::strtoull(argv[++i], nullptr, 10);
    }
  }
  if (flags.sizes.empty()) flags.sizes.assign(flags.tensors, flags.elements);
  if (flags.reference > 0) return print_reference(flags);
  try {
    return run(flags);
  } catch (const bps::Error& error) {
    std::fprintf(stderr, "%d: %s\n", static_cast<int>(error.code()), error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
