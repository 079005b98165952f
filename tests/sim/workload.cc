#include "tests/sim/workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "proto/base/assert.h"
#include "tests/sim/random.h"
#include "tests/sim/reference.h"

namespace bps::sim {
namespace {

std::uint64_t mix(std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  Random first(seed ^ (a * 0x9e3779b97f4a7c15u));
  Random second(first.next() ^ (b * 0xc2b2ae3d27d4eb4fu));
  Random third(second.next() ^ (c * 0x165667b19e3779f9u));
  return third.next();
}

template <class T>
void put(std::vector<std::byte>& raw, std::uint64_t index, T value) {
  std::memcpy(raw.data() + index * sizeof(T), &value, sizeof(T));
}

template <class T>
T get(std::span<const std::byte> raw, std::uint64_t index) {
  T value;
  std::memcpy(&value, raw.data() + index * sizeof(T), sizeof(T));
  return value;
}

void put_number(std::vector<std::byte>& raw, DType dtype, std::uint64_t index, double value) {
  switch (dtype) {
    case DType::f32: return put(raw, index, static_cast<float>(value));
    case DType::f64: return put(raw, index, value);
    case DType::f16: return put(raw, index, narrow_16(static_cast<float>(value), 10));
    case DType::bf16: return put(raw, index, narrow_16(static_cast<float>(value), 7));
    case DType::i8: return put(raw, index, static_cast<std::int8_t>(value));
    case DType::u8: return put(raw, index, static_cast<std::uint8_t>(value));
    case DType::i32: return put(raw, index, static_cast<std::int32_t>(value));
    case DType::i64: return put(raw, index, static_cast<std::int64_t>(value));
  }
}

std::optional<double> get_number(std::span<const std::byte> raw, DType dtype, std::uint64_t index) {
  switch (dtype) {
    case DType::f32: return get<float>(raw, index);
    case DType::f64: return get<double>(raw, index);
    case DType::i32: return get<std::int32_t>(raw, index);
    case DType::i64: return static_cast<double>(get<std::int64_t>(raw, index));
    default: return std::nullopt;  // too narrow to tell ranks apart
  }
}

// Gradients as they are: small numbers around zero. Integers and special values come as raw bits.
void fill(std::vector<std::byte>& raw, DType dtype, Random random) {
  const bool any_bits = random.one_in(6);
  const bool is_float =
      dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
  if (any_bits || !is_float) {
    for (std::size_t at = 0; at < raw.size(); at += 8) {
      const std::uint64_t bits = random.next();
      std::memcpy(raw.data() + at, &bits, std::min<std::size_t>(8, raw.size() - at));
    }
    return;
  }
  const int scale = random.between(-6, 3);
  for (std::uint64_t i = 0; i < raw.size() / size_of(dtype); ++i) {
    const auto bits = static_cast<std::int64_t>(random.next()) >> 24;
    put_number(raw, dtype, i, std::ldexp(static_cast<double>(bits), scale - 39));
  }
}

}  // namespace

std::uint64_t JobPlan::partitions() const {
  std::uint64_t count = 0;
  for (const TensorPlan& tensor : tensors)
    count += partitioner_of(tensor.declaration(), partition_bytes).count();
  return count;
}

std::uint64_t JobPlan::pushes() const {
  std::uint64_t count = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    count += partitioner_of(tensors[t].declaration(), partition_bytes).count() * sharing(t);
  return count * rounds;
}

std::vector<std::vector<std::uint32_t>> JobPlan::contributors(std::size_t tensor) const {
  if (tensors[tensor].ranks.empty()) return contributors();
  std::vector<std::vector<std::uint32_t>> all;
  for (const Rank rank : tensors[tensor].ranks)
    all.push_back({rank.value});
  return all;
}

std::vector<std::vector<std::uint32_t>> JobPlan::contributors() const {
  std::vector<std::vector<std::uint32_t>> all;
  std::map<std::uint32_t, std::size_t> places;  // by host
  for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
    const std::uint32_t host = sums_on_hosts ? workers[rank].host : rank;
    const auto [found, is_new] = places.try_emplace(host, all.size());
    if (is_new) all.emplace_back();
    all[found->second].push_back(rank);
  }
  return all;
}

bool renews(const JobPlan& job, std::size_t tensor, std::uint64_t round) {
  const bool is_sync = job.tensors[tensor].mode != Mode::async;
  if (is_sync && round > 0 && job.drop_every > 0 && round % job.drop_every == 0) return true;
  return job.quarrel.kind == QuarrelPlan::Kind::operation && tensor == 0 && round == job.quarrel.round + 1;
}

std::uint64_t said_round(const JobPlan& job, std::size_t tensor, std::uint64_t round) {
  std::uint64_t first = round;
  while (first > 0 && !renews(job, tensor, first))
    --first;
  return round - first;
}

RoundCall round_plan(const JobPlan& job, std::size_t tensor, std::uint64_t round) {
  Random random(mix(job.seed, 1, tensor, round));
  RoundCall plan;
  const std::vector<Rank>& ranks = job.tensors[tensor].ranks;
  const auto root = [&] {
    const std::uint64_t place = random.below(job.sharing(tensor));
    return ranks.empty() ? Rank{static_cast<std::uint32_t>(place)} : ranks[place];
  };
  if (job.tensors[tensor].mode == Mode::async) {
    // The value is set once, by rank 0; all that follows are deltas.
    if (round == 0) plan = RoundCall::broadcast(Rank{0});
    return plan;
  }
  const bool broadcast = (round == 0 && job.broadcast_first) || random.one_in(12);
  if (broadcast) return RoundCall::broadcast(root());
  if (job.reduces && !job.tensors[tensor].parts.empty() && random.one_in(2)) {
    if (random.one_in(2)) return RoundCall::all_gather();
    plan = RoundCall::reduce_scatter(Operation::sum, random.one_in(3));
  } else if (job.reduces && random.one_in(6)) {
    plan = RoundCall::reduce(Operation::sum, root());
  }
  plan.operation = kOperations[random.below(std::size(kOperations))];
  const DType dtype = job.tensors[tensor].dtype;
  if (!is_defined(plan.operation, dtype)) plan.operation = Operation::sum;
  if (job.sums_on_hosts && plan.operation == Operation::average && !is_float(dtype))
    plan.operation = Operation::sum;
  return plan;
}

std::uint64_t count_plan(const JobPlan& job, std::size_t tensor, std::uint64_t round) {
  const TensorPlan& plan = job.tensors[tensor];
  const bool may_be_short = job.reduces && !job.sums_on_hosts && plan.mode != Mode::async &&
                            !round_plan(job, tensor, round).is_of_parts();
  Random random(mix(job.seed, 0x5407, tensor, round));
  if (!may_be_short || !random.one_in(3)) return plan.elements;
  return random.one_in(4) ? 0 : random.below(plan.elements + 1);
}

Scale scale_plan(const JobPlan& job, std::size_t tensor, std::uint64_t round, Rank rank) {
  const RoundCall how = round_plan(job, tensor, round);
  const TensorPlan& plan = job.tensors[tensor];
  Random of_round(mix(job.seed, 0x5ca1e, tensor, round));
  const bool is_scaled = job.reduces && !job.sums_on_hosts && of_round.one_in(4);
  if (!is_scaled || plan.mode == Mode::async || !may_scale(how, plan.dtype)) return {};
  constexpr double kFactors[] = {1, 1, 0.5, -3, 0.1, 1e-3, 1024};
  Random random(mix(job.seed, 0x5ca1e + 1 + rank.value, tensor, round));
  const double share = how.operation == Operation::average ? 0.25 * random.between(1, 100) : 1;
  return {share * kFactors[random.below(std::size(kFactors))], share,
          kFactors[of_round.below(std::size(kFactors))]};
}

std::vector<std::byte> contribution(const JobPlan& job, std::size_t tensor, std::uint64_t round, Rank rank) {
  const TensorPlan& plan = job.tensors[tensor];
  std::vector<std::byte> raw(plan.bytes());
  if (plan.mode == Mode::async) {
    BPS_ASSERT(job.world_size() <= kMaxAsyncWorkers && job.rounds <= kMaxAsyncRounds);
    const double digit = std::ldexp(1.0, static_cast<int>(4 * rank.value));
    for (std::uint64_t i = 0; i < plan.elements; ++i) {
      put_number(raw, plan.dtype, i, round == 0 ? 0.0 : digit);
    }
    return raw;
  }
  fill(raw, plan.dtype, Random(mix(job.seed, 2 + rank.value, tensor, round)));
  // Sums of averages must fit.
  const bool is_average = round_plan(job, tensor, round).operation == Operation::average;
  for (std::uint64_t i = 0; plan.dtype == DType::i64 && is_average && i < plan.elements; ++i)
    put(raw, i, get<std::int64_t>(raw, i) >> 8);
  return raw;
}

std::vector<std::byte> expected_copy(const JobPlan& job, std::size_t tensor, std::uint64_t round) {
  const RoundCall how = round_plan(job, tensor, round);
  if (how.is_broadcast()) return contribution(job, tensor, round, how.root);
  const TensorPlan& plan = job.tensors[tensor];
  std::vector<std::byte> all;
  for (const auto& ranks : job.contributors(tensor)) {
    const Rank rank{ranks.front()};
    const std::vector<std::byte> given = contribution(job, tensor, round, rank);
    const auto begin = given.begin() + static_cast<std::ptrdiff_t>(plan.part_begin(rank));
    all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(plan.part_bytes(rank)));
  }
  return all;
}

namespace {

// Of a reduce_scatter: in each part its owner comes last.
std::vector<std::byte> expected_parts(const JobPlan& job, std::size_t tensor, std::uint64_t round,
                                      const std::vector<std::vector<std::uint32_t>>& contributors) {
  const TensorPlan& plan = job.tensors[tensor];
  std::vector<std::pair<Rank, std::vector<std::byte>>> given;
  for (const auto& ranks : contributors)
    for (const std::uint32_t rank : ranks)
      given.emplace_back(rank, contribution(job, tensor, round, Rank{rank}));
  std::vector<std::byte> all;
  for (const auto& owners : job.contributors(tensor)) {
    const Rank owner{owners.front()};
    std::vector<std::vector<std::byte>> in_order;
    const auto take = [&](const std::vector<std::byte>& whole) {
      const auto from = whole.begin() + static_cast<std::ptrdiff_t>(plan.part_begin(owner));
      in_order.emplace_back(from, from + static_cast<std::ptrdiff_t>(plan.part_bytes(owner)));
    };
    for (const auto& [rank, whole] : given)
      if (rank != owner) take(whole);
    for (const auto& [rank, whole] : given)
      if (rank == owner) take(whole);
    const std::vector<std::byte> sum =
        reference_reduce(plan.dtype, round_plan(job, tensor, round).operation, in_order);
    all.insert(all.end(), sum.begin(), sum.end());
  }
  return all;
}

}  // namespace

std::vector<std::byte> expected_sum(const JobPlan& job, std::size_t tensor, std::uint64_t round,
                                    const std::vector<std::vector<std::uint32_t>>& contributors) {
  const TensorPlan& plan = job.tensors[tensor];
  const RoundCall how = round_plan(job, tensor, round);
  const bool is_float = plan.dtype == DType::f32 || plan.dtype == DType::f64;
  if (how.kind == RoundKind::reduce_scatter && !how.exact_order && is_float)
    return expected_parts(job, tensor, round, contributors);
  std::vector<std::vector<std::vector<std::byte>>> parts;
  std::vector<std::vector<std::byte>> given;
  std::vector<Scale> scales;
  for (const auto& ranks : contributors) {
    parts.emplace_back();
    for (const std::uint32_t rank : ranks) {
      parts.back().push_back(contribution(job, tensor, round, Rank{rank}));
      given.push_back(parts.back().back());
      scales.push_back(scale_plan(job, tensor, round, Rank{rank}));
    }
  }
  const bool is_scaled =
      std::any_of(scales.begin(), scales.end(), [](const Scale& scale) { return !scale.is_none(); });
  if (is_scaled) return reference_reduce(plan.dtype, how.operation, given, {}, scales);
  return reference_reduce_by_host(plan.dtype, how.operation, parts);
}

std::uint64_t async_digit(std::uint64_t value, Rank rank) { return (value >> (4 * rank.value)) & 15; }

Result<std::uint64_t> async_value(const TensorPlan& tensor, std::span<const std::byte> raw,
                                  std::uint64_t index) {
  const std::optional<double> number = get_number(raw, tensor.dtype, index);
  BPS_ASSERT(number.has_value());
  if (!(*number >= 0 && *number < std::ldexp(1.0, 24)) || *number != std::floor(*number)) {
    return make_error(ErrorCode::internal, fmt::format("element {} of {} is {}, which no deltas add up to",
                                                       index, tensor.name, *number));
  }
  return static_cast<std::uint64_t>(*number);
}

std::string Expected::compare(std::size_t tensor, std::uint64_t round, std::size_t begin,
                              std::span<const std::byte> actual) {
  const TensorPlan& plan = job_.tensors[tensor];
  const RoundCall how = round_plan(job_, tensor, round);
  Answer& answer = answers_[{tensor, round}];
  if (answer.compared == 0) {
    answer.bytes = how.is_copy() ? expected_copy(job_, tensor, round)
                                 : expected_sum(job_, tensor, round, job_.contributors(tensor));
  }
  std::string wrong;
  const auto right = std::span(answer.bytes).subspan(begin, actual.size());
  if (!std::ranges::equal(right, actual)) {
    const auto first = std::mismatch(actual.begin(), actual.end(), right.begin()).first;
    wrong = fmt::format("{} of round {} of {} ({}, {} elements) is wrong from byte {} on", to_string(how),
                        round, plan.name, name_of(plan.dtype), plan.elements, first - actual.begin());
  }
  if (++answer.compared == job_.sharing(tensor)) answers_.erase({tensor, round});
  return wrong;
}

// ---- calls without names ----

namespace {

std::uint64_t message_seed(const JobPlan& job, std::size_t group, const MessageKey& key) {
  const std::uint64_t ends = std::uint64_t{key.from.value} << 20 | key.to.value;
  return job.seed ^ (group + 1) * 0x94d049bb133111ebu ^ ends * 0x9e3779b97f4a7c15u ^
         (key.tag * 64 + key.number + 1) * 0xbf58476d1ce4e5b9u;
}

CallPlan planned_exchange(Rank root, std::size_t ranks, Random& random) {
  CallPlan plan;
  plan.dtype = DType::u8;
  switch (random.below(5)) {
    case 0: plan.call = RoundCall::scatter(root); break;
    case 1: plan.call = RoundCall::gather(root); break;
    case 2: plan.call = RoundCall::all_gather(), plan.is_given = true; break;
    case 3: plan.is_given = true; [[fallthrough]];
    default: plan.call = RoundCall::all_to_all(); break;
  }
  const std::uint64_t most = random.one_in(3) ? 20'000 : 500;
  plan.lengths.assign(ranks, std::vector<std::uint64_t>(ranks));
  for (auto& row : plan.lengths) {
    for (std::uint64_t& length : row)
      length = random.one_in(4) ? 0 : random.between<std::uint64_t>(1, most);
    if (plan.call.kind == RoundKind::all_gather) row.assign(ranks, row.front());  // all take the same
  }
  return plan;
}

CallPlan planned(const JobPlan& job, std::size_t group, std::uint64_t number) {
  Random random(job.seed ^ (group + 1) * 0x9e3779b97f4a7c15u ^ number * 0xbf58476d1ce4e5b9u);
  constexpr DType kTypes[] = {DType::f32, DType::f64, DType::i32, DType::u8};
  constexpr Operation kOperations[] = {Operation::sum, Operation::max, Operation::min};
  const std::vector<Rank>& ranks = job.calls.groups[group];
  const Rank root = ranks.empty() ? Rank{random.between(0u, job.world_size() - 1)} : random.pick(ranks);
  CallPlan plan;
  plan.dtype = kTypes[random.below(std::size(kTypes))];
  const Operation operation = kOperations[random.below(std::size(kOperations))];
  if (job.calls.joins) {
    const Rank first = ranks.empty() ? Rank{0} : ranks.front();
    const RoundCall calls[] = {Operation::sum, Operation::sum, RoundCall::broadcast(first),
                               RoundCall::reduce(Operation::sum, first)};
    plan.call = calls[random.below(std::size(calls))];
    plan.count = random.one_in(4) ? 0 : random.between(1, random.one_in(4) ? 8000 : 300);
    return plan;
  }
  if (random.one_in(4))
    return planned_exchange(root, ranks.empty() ? job.world_size() : ranks.size(), random);
  switch (random.below(8)) {
    case 0: plan.call = RoundCall::broadcast(root); break;
    case 1: plan.call = RoundCall::reduce(operation, root); break;
    case 2: plan.call = RoundCall::all_gather(); break;
    case 3: plan.call = RoundCall::reduce_scatter(operation, random.one_in(2)); break;
    default: plan.call = operation; break;
  }
  switch (random.below(8)) {
    case 0: plan.count = 0; break;
    case 1: plan.count = random.between(1, 3); break;
    case 2: plan.count = random.between(1, 8000); break;
    default: plan.count = random.between(1, 600); break;
  }
  if (!plan.call.is_of_parts()) return plan;
  // Few tables, so that they are used again, and some that are not.
  const std::size_t sharing = ranks.empty() ? job.world_size() : ranks.size();
  plan.parts.assign(sharing, 1 + plan.count % 5);
  if (random.one_in(3)) plan.parts[random.below(sharing)] = random.one_in(2) ? 0 : plan.count;
  plan.count = std::accumulate(plan.parts.begin(), plan.parts.end(), std::uint64_t{0});
  return plan;
}

}  // namespace

namespace {

std::size_t place_of(const JobPlan& job, std::size_t group, Rank rank) {
  const std::vector<Rank>& ranks = job.calls.groups[group];
  if (ranks.empty()) return rank.value;
  return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

// This rank gives or takes one byte more than the other end expects, or makes another call.
CallPlan odd_exchange(const JobPlan& job, std::size_t group, Rank rank, CallPlan plan) {
  const std::size_t place = place_of(job, group, rank);
  const std::size_t other = (place + 1 + job.seed % (plan.lengths.size() - 1)) % plan.lengths.size();
  if (plan.is_given || job.seed % 2 == 0) {
    plan.call = Operation::max;
    plan.lengths.clear();
    plan.is_given = false;
    plan.count = 100;
    return plan;
  }
  const std::size_t root = plan.call.has_root() ? place_of(job, group, plan.call.root) : other;
  std::size_t giver = place, taker = other;
  if (plan.call.kind == RoundKind::scatter) giver = root, taker = root == place ? other : place;
  if (plan.call.kind == RoundKind::gather) taker = root, giver = root == place ? other : place;
  ++plan.lengths[giver][taker];
  return plan;
}

}  // namespace

CallPlan call_plan(const JobPlan& job, std::size_t group, std::uint64_t number, Rank rank) {
  const auto& odd = job.calls.odd;
  const bool is_odd = odd && odd->group == group && odd->rank == rank && number >= odd->number;
  if (!is_odd) return planned(job, group, number);
  if (odd->skips) return planned(job, group, number + 1);
  CallPlan plan = planned(job, group, number);
  if (number > odd->number) return plan;
  if (!plan.lengths.empty()) return odd_exchange(job, group, rank, std::move(plan));
  if (plan.call.is_of_parts()) {
    ++plan.count, ++plan.parts[job.seed % plan.parts.size()];
    return plan;
  }
  switch (job.seed % 3) {
    case 0: ++plan.count; break;
    case 1: plan.dtype = plan.dtype == DType::f32 ? DType::f64 : DType::f32; break;
    default: plan.call = plan.call == Operation::max ? Operation::min : Operation::max; break;
  }
  if (plan.call.is_copy()) ++plan.count;  // its type is of no interest
  return plan;
}

namespace {

// What the others can notice of an exchange that this rank plans: the lengths of its messages. Where only
// givers know lengths, none of these.
std::vector<std::uint64_t> noticed(const JobPlan& job, std::size_t group, Rank rank, const CallPlan& plan) {
  std::vector<std::uint64_t> lengths;
  const std::size_t place = place_of(job, group, rank);
  const std::size_t root = plan.call.has_root() ? place_of(job, group, plan.call.root) : place;
  for (std::size_t other = 0; other < plan.lengths.size() && !plan.is_given; ++other) {
    if (other == place || (root != place && other != root)) continue;
    const bool gives =
        plan.call.kind == RoundKind::all_to_all || (plan.call.kind == RoundKind::scatter) == (root == place);
    const bool takes = plan.call.kind == RoundKind::all_to_all || !gives;
    if (gives) lengths.push_back(plan.lengths[place][other]);
    if (takes) lengths.push_back(plan.lengths[other][place]);
  }
  return lengths;
}

// Of the odd rank and of another one, as far as they can be told apart.
std::pair<CallPlan, CallPlan> odd_and_other(const JobPlan& job, std::uint64_t number) {
  const CallsPlan::Odd& odd = *job.calls.odd;
  const std::vector<Rank>& ranks = job.calls.groups[odd.group];
  const auto is_other = [&](Rank rank) { return rank != odd.rank; };
  Rank other{odd.rank.value == 0 ? 1u : 0u};
  if (!ranks.empty()) other = *std::find_if(ranks.begin(), ranks.end(), is_other);
  CallPlan one = call_plan(job, odd.group, number, odd.rank);
  CallPlan two = call_plan(job, odd.group, number, other);
  // A copy is of bytes.
  for (CallPlan* const plan : {&one, &two}) {
    if (!plan->call.is_copy()) continue;
    plan->count *= size_of(plan->dtype);
    for (std::uint64_t& part : plan->parts)
      part *= size_of(plan->dtype);
    plan->dtype = DType::u8;
    if (plan->lengths.empty()) continue;
    plan->lengths = {noticed(job, odd.group, odd.rank, *plan)};
    plan->count = 0;
  }
  return {one, two};
}

}  // namespace

bool is_odd_call(const JobPlan& job, std::uint64_t number) {
  const auto [one, two] = odd_and_other(job, number);
  return one != two;
}

bool is_odd_in_lengths(const JobPlan& job, std::uint64_t number) {
  auto [one, two] = odd_and_other(job, number);
  if (one == two || one.lengths.empty() || two.lengths.empty()) return false;
  one.lengths = two.lengths;
  return one == two;
}

std::uint64_t own_calls(const JobPlan& job, std::size_t group, Rank rank) {
  const std::size_t place = place_of(job, group, rank);
  if (!job.calls.joins || place == 0) return job.calls.count;
  return Random(job.seed ^ (group + 1) * 0x9e3779b97f4a7c15u ^ place << 32).below(job.calls.count + 1);
}

std::uint64_t message_length(const JobPlan& job, std::size_t group, const MessageKey& key) {
  Random random(message_seed(job, group, key));
  if (random.one_in(5)) return 0;
  return random.between<std::uint64_t>(1, random.one_in(6) ? 80'000 : 300);
}

std::vector<std::byte> message_bytes(const JobPlan& job, std::size_t group, const MessageKey& key) {
  std::vector<std::byte> bytes(message_length(job, group, key));
  Random random(message_seed(job, group, key) + 1);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

std::uint64_t first_odd_call(const JobPlan& job) {
  std::uint64_t number = job.calls.odd->number;
  while (number <= job.calls.count && !is_odd_call(job, number))
    ++number;
  return number;
}

}  // namespace bps::sim
