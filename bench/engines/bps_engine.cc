#include "bench/engines/bps_engine.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "bench/engines/bps_client.h"
#include "bench/engines/messages.h"
#include "bench/engines/values.h"

namespace bps::bench {
namespace {

class BpsEngine final : public Engine {
 public:
  BpsEngine(const WorkerOptions& options, const EngineOptions& engine, std::string job, const Buffer& in,
            const Buffer& out)
      : options_(options),
        engine_(engine),
        job_(std::move(job)),
        sharing_(options.workers / engine.groups),
        pattern_{options.dtype, sharing_},
        in_(in),
        out_(out),
        clients_(options.clients) {}

  // Joining waits for all ranks, those of this process too: all at once.
  Status join() override {
    std::vector<Status> results(clients_.size());
    std::vector<std::thread> threads;
    for (std::uint32_t i = 1; i < clients_.size(); ++i)
      threads.emplace_back([this, i, &results] { results[i] = open(i); });
    results[0] = open(0);
    for (std::thread& thread : threads)
      thread.join();
    for (Status& result : results) {
      if (!result) return std::move(result);
    }
    return find_memory();
  }

  Status declare() override {
    if (engine_.unnamed) return declare_groups();
    const std::vector<std::uint64_t> parts =
        has_parts(engine_.exchange) ? cut() : std::vector<std::uint64_t>();
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      std::vector<BpsClient::Tensor> tensors;
      const auto add = [&](const std::string& name) {
        tensors.push_back({.name = name, .bytes = options_.bytes, .parts = parts, .ranks = group_of(i)});
      };
      for (std::uint32_t k = 0; k < options_.tensors; ++k)
        add("tensor " + std::to_string(k));
      for (std::uint32_t k = 0; engine_.exchange == ExchangeUse::fsdp && k < options_.tensors; ++k)
        add("gradient " + std::to_string(k));
      auto ids = clients_[i].declare(tensors, options_.dtype);
      if (!ids) return ids.error();
      tensors_.push_back(std::move(*ids));
    }
    return {};
  }

  Status declare_groups() {
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      const auto group = clients_[i].declare_group(group_of(i));
      if (!group) return group.error();
      groups_.push_back(*group);
    }
    return {};
  }

  Status prepare(std::uint64_t round) override {
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      if (is_message(engine_.exchange)) {
        prepare_messages(i, round);
        continue;
      }
      const bool is_copied = engine_.exchange == ExchangeUse::broadcast;
      const std::span<std::byte> memory = is_copied ? memory_[i].out : memory_[i].in;
      // What comes from elsewhere is not there before.
      if (is_copied && place_of(i) != root_of(round)) {
        std::fill(memory.begin(), memory.end(), std::byte{0xff});
      } else {
        fill_contribution(pattern_, place_of(i), seen_in(i, round), memory);
      }
      if (gathers()) forget_others(i);
    }
    return {};
  }

  Status run(std::uint64_t round) override {
    if (engine_.exchange == ExchangeUse::fsdp) return run_step();
    if (Status status = start_all(engine_.exchange, root_of(round)); !status) return status;
    return wait_for_all();
  }

  Status check(std::uint64_t round) override {
    if (engine_.memory == MemoryUse::view) return check_views(round);
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      std::string wrong;
      if (has_parts(engine_.exchange)) {
        wrong = check_parts(i, round);
      } else if (is_message(engine_.exchange)) {
        wrong = check_messages(i, round);
      } else if (engine_.exchange == ExchangeUse::broadcast) {
        wrong = check_contribution(pattern_, root_of(round), seen_in(i, round), memory_[i].out);
      } else if (engine_.exchange == ExchangeUse::push_pull || place_of(i) == root_of(round)) {
        wrong = check_sum(pattern_, seen_in(i, round), memory_[i].out);
      }
      if (!wrong.empty()) return make_error(ErrorCode::internal, wrong);
    }
    return {};
  }

 private:
  // The tensors of a rank, one after another.
  struct Memory {
    std::span<std::byte> in, out;
    std::span<std::byte> sums;  // of fsdp
  };

  // ---- groups: consecutive ranks, each known by its place ----

  std::uint32_t place_of(std::uint32_t client) const { return rank_of(client) % sharing_; }
  std::uint32_t first_of(std::uint32_t client) const { return rank_of(client) - place_of(client); }
  std::vector<std::int32_t> group_of(std::uint32_t client) const {
    std::vector<std::int32_t> ranks(engine_.groups > 1 ? sharing_ : 0);
    std::iota(ranks.begin(), ranks.end(), static_cast<std::int32_t>(first_of(client)));
    return ranks;
  }
  // What groups push in the same round differs.
  std::uint64_t seen_in(std::uint32_t client, std::uint64_t round) const {
    return round + first_of(client) * std::uint64_t{1'000'003};
  }

  // ---- parts ----

  bool gathers() const {
    return engine_.exchange == ExchangeUse::all_gather || engine_.exchange == ExchangeUse::fsdp;
  }
  // As equal as can be.
  std::vector<std::uint64_t> cut() const {
    std::vector<std::uint64_t> parts;
    for (std::uint32_t place = 0; place < sharing_; ++place)
      parts.push_back((part_begin(place + 1) - part_begin(place)) / size_of(options_.dtype));
    return parts;
  }
  std::size_t part_begin(std::uint32_t place) const {
    const std::uint64_t elements = options_.bytes / size_of(options_.dtype);
    return elements * place / sharing_ * size_of(options_.dtype);
  }
  std::span<std::byte> part(std::span<std::byte> tensor, std::uint32_t place) const {
    return tensor.subspan(part_begin(place), part_begin(place + 1) - part_begin(place));
  }
  // In the output, or all of it if it is not where the input is.
  void forget_others(std::uint32_t client) {
    const bool is_one = memory_[client].in.data() == memory_[client].out.data();
    for (std::uint32_t k = 0; k < options_.tensors; ++k) {
      const std::span<std::byte> out = tensor(memory_[client].out, k);
      for (std::uint32_t place = 0; place < sharing_; ++place) {
        const std::span<std::byte> theirs = part(out, place);
        if (!is_one || place != place_of(client)) std::fill(theirs.begin(), theirs.end(), std::byte{0xff});
      }
    }
  }
  // What FSDP does in a step: the parameters before the forward pass, and before the backward pass again,
  // while gradients are on their way.
  Status run_step() {
    if (Status status = start_all(ExchangeUse::all_gather, 0); !status) return status;
    if (Status status = wait_for_all(); !status) return status;
    if (Status status = start_all(ExchangeUse::all_gather, 0); !status) return status;
    if (Status status = start_all(ExchangeUse::reduce_scatter, 0); !status) return status;
    return wait_for_all();
  }
  std::string check_parts(std::uint32_t client, std::uint64_t round) {
    std::string wrong;
    for (std::uint32_t k = 0; k < options_.tensors && wrong.empty(); ++k) {
      const std::uint64_t begin = k * options_.bytes;
      const auto first = [&](std::uint32_t place) {
        return (begin + part_begin(place)) / size_of(options_.dtype);
      };
      const std::uint64_t seen = seen_in(client, round);
      if (engine_.exchange != ExchangeUse::all_gather)
        wrong = check_sum(pattern_, seen, scattered(client, k), first(place_of(client)));
      for (std::uint32_t place = 0; gathers() && place < sharing_ && wrong.empty(); ++place) {
        const std::span<std::byte> theirs = part(tensor(memory_[client].out, k), place);
        wrong = check_contribution(pattern_, place, seen, theirs, first(place));
      }
    }
    return wrong;
  }
  // Where a sum comes: what is gathered has the output.
  std::span<std::byte> scattered(std::uint32_t client, std::uint32_t index) {
    if (engine_.exchange != ExchangeUse::fsdp)
      return part(tensor(memory_[client].out, index), place_of(client));
    return part(tensor(memory_[client].sums, index), place_of(client));
  }

  // ---- messages ----

  MessageRound messages() const {
    MessageRound round{engine_.exchange, cut()};
    for (std::uint64_t& part : round.parts)
      part *= size_of(options_.dtype);
    return round;
  }
  // Only the root has to know them.
  std::vector<std::uint64_t> lengths_of(std::uint32_t client, std::uint32_t root) const {
    return place_of(client) == root ? messages().parts : std::vector<std::uint64_t>();
  }
  // What comes from elsewhere is not there before.
  void prepare_messages(std::uint32_t client, std::uint64_t round) {
    const Memory& memory = memory_[client];
    const bool is_one = memory.in.data() == memory.out.data();
    const bool gives = engine_.exchange != ExchangeUse::scatter || place_of(client) == root_of(round);
    if (!is_one || !gives) std::fill(memory.out.begin(), memory.out.end(), std::byte{0xff});
    if (gives) fill_contribution(pattern_, place_of(client), seen_in(client, round), memory.in);
    if (is_one && engine_.exchange == ExchangeUse::gather) forget_others(client);
  }
  std::string check_messages(std::uint32_t client, std::uint64_t round) {
    std::string wrong;
    for (std::uint32_t k = 0; k < options_.tensors; ++k) {
      const std::span<std::byte> out = tensor(memory_[client].out, k);
      for (const Arrival& arrival : arrivals(messages(), place_of(client), root_of(round))) {
        const std::uint64_t first = (k * options_.bytes + arrival.at_giver) / size_of(options_.dtype);
        if (wrong.empty())
          wrong = check_contribution(pattern_, arrival.giver, seen_in(client, round),
                                     out.subspan(arrival.at_taker, arrival.bytes), first);
      }
    }
    return wrong;
  }
  // The other half is a receive.
  Result<BpsHandle> send(std::uint32_t client, std::uint32_t index) {
    const std::uint32_t next = first_of(client) + (place_of(client) + 1) % sharing_;
    return clients_[client].send(groups_[client], tensor(memory_[client].in, index), next);
  }

  Status start_all(ExchangeUse what, std::uint32_t root) {
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      for (std::uint32_t k = 0; k < options_.tensors; ++k) {
        if (what == ExchangeUse::send) {
          if (Status status = keep(send(i, k)); !status) return status;
        }
        if (Status status = keep(start(what, i, k, root)); !status) return status;
      }
    }
    return {};
  }

  Status keep(Result<BpsHandle> operation) {
    if (!operation) return operation.error();
    if (begun_ == operations_.size()) operations_.emplace_back();
    operations_[begun_++] = std::move(*operation);
    return {};
  }

  Status wait_for_all() {
    for (std::size_t i = 0; i < begun_; ++i) {
      if (Status status = operations_[i].wait(); !status) return status;
    }
    begun_ = 0;
    return {};
  }

  Status find_memory() {
    const std::uint64_t bytes = options_.bytes_per_round();
    for (std::uint32_t i = 0; i < clients_.size(); ++i) {
      Memory& memory = memory_.emplace_back();
      if (engine_.memory == MemoryUse::user) {
        memory = {in_.span().subspan(i * bytes, bytes), out_.span().subspan(i * bytes, bytes), {}};
      }
      if (engine_.memory != MemoryUse::user) {
        const auto in = clients_[i].allocate(bytes);
        if (!in) return in.error();
        memory = {*in, *in, {}};
        if (!options_.in_place && engine_.memory != MemoryUse::view) {
          const auto out = clients_[i].allocate(bytes);
          if (!out) return out.error();
          memory.out = *out;
        }
      }
      if (engine_.exchange != ExchangeUse::fsdp) continue;
      auto sums = Buffer::allocate(bytes);
      if (!sums) return sums.error();
      memory.sums = sums->span();
      sums_.push_back(std::move(*sums));
    }
    return {};
  }

  Result<BpsHandle> start(ExchangeUse what, std::uint32_t client, std::uint32_t index, std::uint32_t root) {
    const std::span<std::byte> in = tensor(memory_[client].in, index);
    const std::span<std::byte> out = tensor(memory_[client].out, index);
    if (engine_.unnamed) return call(what, client, index, root);
    const bps_tensor id = tensors_[client][index];
    if (what == ExchangeUse::broadcast) return clients_[client].broadcast(id, out, first_of(client) + root);
    if (what == ExchangeUse::reduce) return clients_[client].reduce(id, in, out, first_of(client) + root);
    if (what == ExchangeUse::all_gather)
      return clients_[client].all_gather(id, part(in, place_of(client)), out);
    if (what == ExchangeUse::reduce_scatter) {
      const bool is_beside = engine_.exchange == ExchangeUse::fsdp;
      const bps_tensor gradient = is_beside ? tensors_[client][options_.tensors + index] : id;
      return clients_[client].reduce_scatter(gradient, in, scattered(client, index));
    }
    if (engine_.memory == MemoryUse::view) return clients_[client].push_pull_view(id, in);
    return clients_[client].push_pull(id, in, out);
  }

  Result<BpsHandle> call(ExchangeUse what, std::uint32_t client, std::uint32_t index, std::uint32_t root) {
    const std::span<std::byte> in = tensor(memory_[client].in, index);
    const std::span<std::byte> out = tensor(memory_[client].out, index);
    BpsClient& on = clients_[client];
    const bps_group group = groups_[client];
    const DType dtype = options_.dtype;
    switch (what) {
      case ExchangeUse::broadcast: return on.call_broadcast(group, out, first_of(client) + root);
      case ExchangeUse::reduce: return on.call_reduce(group, dtype, in, out, first_of(client) + root);
      case ExchangeUse::all_gather:
        return on.call_all_gather(group, dtype, part(in, place_of(client)), out, cut());
      case ExchangeUse::reduce_scatter:
        return on.call_reduce_scatter(group, dtype, in, scattered(client, index), cut());
      case ExchangeUse::send:
        return on.receive(group, out, first_of(client) + (place_of(client) + sharing_ - 1) % sharing_);
      case ExchangeUse::scatter:
        return on.scatter(group, in, part(out, place_of(client)), lengths_of(client, root),
                          first_of(client) + root);
      case ExchangeUse::gather:
        return on.gather(group, part(in, place_of(client)), out, lengths_of(client, root),
                         first_of(client) + root);
      case ExchangeUse::all_to_all:
        return on.all_to_all(group, in, out, lengths_at(messages(), place_of(client)));
      default: return on.call_push_pull(group, dtype, in, out);
    }
  }

  // All of an answer, then it is given back.
  Status check_view(BpsHandle& operation, std::uint64_t seen, std::uint64_t first_byte) {
    std::uint64_t next = 0;
    std::string wrong;
    for (std::size_t index = 0; next < options_.bytes; ++index) {
      const auto piece = operation.view(index);
      if (!piece) return piece.error();
      if (piece->bytes.empty() || piece->offset != next) {
        return make_error(ErrorCode::internal,
                          "piece " + std::to_string(index) + " of the answer begins at byte " +
                              std::to_string(piece->offset) + ", not " + std::to_string(next));
      }
      if (wrong.empty())
        wrong = check_sum(pattern_, seen, piece->bytes, (first_byte + next) / size_of(pattern_.dtype));
      next += piece->bytes.size();
    }
    if (Status status = operation.release(); !status) return status;
    return wrong.empty() ? Status{} : Status{make_error(ErrorCode::internal, wrong)};
  }

  Status check_views(std::uint64_t round) {
    Status result;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const auto client = static_cast<std::uint32_t>(i / options_.tensors);
      Status status =
          check_view(operations_[i], seen_in(client, round), i % options_.tensors * options_.bytes);
      if (!status && result) result = std::move(status);
    }
    return result;
  }

  // Its place.
  std::uint32_t root_of(std::uint64_t round) const { return static_cast<std::uint32_t>(round % sharing_); }

  std::uint32_t rank_of(std::uint32_t client) const { return options_.index * options_.clients + client; }

  Status open(std::uint32_t client) {
    return clients_[client].open(options_, engine_, job_, rank_of(client));
  }

  std::span<std::byte> tensor(std::span<std::byte> memory, std::uint32_t index) const {
    return memory.subspan(index * options_.bytes, options_.bytes);
  }

  const WorkerOptions options_;
  const EngineOptions engine_;
  const std::string job_;
  const std::uint32_t sharing_;  // ranks of a group
  const Pattern pattern_;
  const Buffer& in_;
  const Buffer& out_;
  std::vector<BpsClient> clients_;
  std::vector<Memory> memory_;                    // by client
  std::vector<Buffer> sums_;                      // likewise
  std::vector<std::vector<bps_tensor>> tensors_;  // by client
  std::vector<bps_group> groups_;                 // likewise, of unnamed calls
  // Of the last round; go before their clients, and when others take their place. So many are under way.
  std::vector<BpsHandle> operations_;
  std::size_t begun_ = 0;
};

}  // namespace

std::unique_ptr<Engine> make_bps_engine(const WorkerOptions& options, const EngineOptions& engine,
                                        std::string job, const Buffer& in, const Buffer& out) {
  return std::make_unique<BpsEngine>(options, engine, std::move(job), in, out);
}

}  // namespace bps::bench
