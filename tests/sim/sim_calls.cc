#include "tests/sim/sim_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/sim/sim_exchange.h"

namespace bps::sim {
namespace {

// Small numbers: whatever is summed, and in whatever order, is exact in every type.
double value_of(const JobPlan& job, std::size_t group, std::uint64_t number, Rank rank, std::uint64_t i) {
  return static_cast<double>((job.seed % 97 + group * 13 + number * 7 + rank.value * 3 + i) % 5);
}

template <class T>
void put(std::byte* to, std::uint64_t i, double value) {
  const T element = static_cast<T>(value);
  std::memcpy(to + i * sizeof element, &element, sizeof element);
}

std::vector<std::byte> bytes_of(DType dtype, std::uint64_t count,
                                const std::function<double(std::uint64_t)>& value) {
  std::vector<std::byte> out(count * size_of(dtype));
  for (std::uint64_t i = 0; i < count; ++i) {
    switch (dtype) {
      case DType::f32: put<float>(out.data(), i, value(i)); break;
      case DType::f64: put<double>(out.data(), i, value(i)); break;
      case DType::i32: put<std::int32_t>(out.data(), i, value(i)); break;
      default: put<std::uint8_t>(out.data(), i, value(i)); break;
    }
  }
  return out;
}

}  // namespace

SimCalls::SimCalls(Worker worker, std::uint64_t seed) : worker_(std::move(worker)), random_(seed) {
  const CallsPlan& plan = worker_.job.calls;
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const std::vector<Rank>& ranks = plan.groups[g];
    if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), worker_.rank) == ranks.end()) continue;
    Group& group = groups_.emplace_back();
    group.index = g;
    group.most = random_.between<std::size_t>(1, 12);
    if (g > 0) group.id = worker_.engine.declare_group({fmt::format("group{}", g), ranks, 0});
  }
  unfinished_ = groups_.size();
  messages_ = std::make_unique<SimMessages>(
      SimMessages::Worker{worker_.loop, worker_.job, worker_.rank, worker_.think,
                          [this](std::size_t group) { return id_of(group); }, worker_.begin, worker_.give_up,
                          worker_.fail, worker_.over},
      random_.next());
}

void SimCalls::start() {
  for (Group& group : groups_) {
    for (std::size_t i = 0; i < group.most; ++i)
      go_on(group);
  }
  messages_->start();
}

GroupId SimCalls::id_of(std::size_t group) const {
  for (const Group& one : groups_)
    if (one.index == group) return one.id;
  return {};
}

void SimCalls::go_on(Group& group) {
  const Duration think =
      worker_.think > Duration(0) ? random_.between(Duration(0), worker_.think) : Duration(0);
  worker_.loop.after(think, [this, &group] { begin(group); });
}

void SimCalls::begin(Group& group) {
  // After the join one more.
  const std::uint64_t own =
      group.is_joined ? worker_.job.calls.count + 1 : own_calls(worker_.job, group.index, worker_.rank);
  if (group.next > own) return group.under_way.empty() ? end(group) : void();
  const std::uint64_t number = group.next++;
  Call& call = group.under_way[number];
  call.number = number;
  call.plan = call_plan(worker_.job, group.index, number, worker_.rank);
  GroupRequest request;
  request.group = group.id;
  if (call.plan.lengths.empty()) {
    prepare(group, call, request);
  } else {
    Exchange{worker_.job, group.index, number, call.plan, worker_.rank}.begin(request, call.in, call.out);
    call.given = request.given;
  }
  const Status begun = worker_.begin(
      std::move(request),
      [this, &group, number](const Result<std::uint32_t>& result) { on_done(group, number, result); });
  if (!begun) on_done(group, number, begun.error());
}

// All have joined when the first rank has made all calls.
void SimCalls::end(Group& group) {
  if (group.is_ending) return;
  group.is_ending = true;
  if (!worker_.job.calls.joins || group.is_joined) {
    if (--unfinished_ == 0) worker_.over();
    return;
  }
  const auto go_on = [this, &group](const Result<std::uint32_t>& last) {
    if (!last && last.error().code == ErrorCode::closed) return;
    if (!last && !may_fail(group, last.error())) return worker_.give_up(last.error());
    group.is_joined = true;
    group.is_ending = false;
    group.next = worker_.job.calls.count + 1;
    begin(group);
  };
  const Status begun = worker_.join(group.id, go_on);
  if (!begun) go_on(begun.error());
}

void SimCalls::prepare(const Group& group, Call& call, GroupRequest& request) {
  const CallPlan& made = call.plan;
  const auto mine = [&](std::uint64_t i) {
    return value_of(worker_.job, group.index, call.number, worker_.rank, i);
  };
  call.in = bytes_of(made.dtype, made.count, mine);
  const bool is_root = made.call.has_root() && made.call.root == worker_.rank;
  request.dtype = made.call.is_copy() ? DType::u8 : made.dtype;
  request.request.call = made.call;
  if (made.call.is_of_parts()) {
    const bool gathers = made.call.kind == RoundKind::all_gather;
    const std::size_t width = size_of(made.dtype);
    const auto [begin, count] = part_of(group, made);
    for (const std::uint64_t part : made.parts)
      request.parts.push_back(made.call.is_copy() ? part * width : part);
    request.parts = Parts::shortest(std::move(request.parts));
    call.out.assign((gathers ? made.count : count) * width, std::byte{0xee});
    const std::span<std::byte> whole(gathers ? call.out : call.in);
    const std::span<std::byte> mine_in_it = whole.subspan(begin * width, count * width);
    if (gathers) {
      // Only the own part is there.
      call.in.erase(call.in.begin(), call.in.begin() + static_cast<std::ptrdiff_t>(begin * width));
      call.in.resize(count * width);
      if (worker_.in_place) std::copy(call.in.begin(), call.in.end(), mine_in_it.begin());
      request.request.in.bytes = worker_.in_place ? mine_in_it : std::span<std::byte>(call.in);
      request.request.out.bytes = call.out;
    } else {
      request.request.in.bytes = call.in;
      request.request.out.bytes = worker_.in_place ? mine_in_it : std::span<std::byte>(call.out);
    }
  } else if (made.call.is_broadcast()) {
    call.out = is_root ? call.in : std::vector<std::byte>(call.in.size(), std::byte{0xee});
    request.request.out.bytes = call.out;
  } else if (worker_.in_place) {
    call.out = call.in;
    request.request.in.bytes = call.out;
    if (!made.call.has_root() || is_root) request.request.out.bytes = call.out;
  } else {
    call.out.assign(call.in.size(), std::byte{0xee});
    request.request.in.bytes = call.in;
    if (!made.call.has_root() || is_root) request.request.out.bytes = call.out;
  }
}

// Of this rank, in elements: where it begins, and how many.
std::pair<std::uint64_t, std::uint64_t> SimCalls::part_of(const Group& group, const CallPlan& plan) const {
  const std::vector<Rank>& ranks = worker_.job.calls.groups[group.index];
  const std::size_t place =
      ranks.empty()
          ? worker_.rank.value
          : static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), worker_.rank) - ranks.begin());
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < place; ++i)
    begin += plan.parts[i];
  return {begin, plan.parts[place]};
}

void SimCalls::on_done(Group& group, std::uint64_t number, const Result<std::uint32_t>& result) {
  const auto found = group.under_way.find(number);
  if (found == group.under_way.end()) return worker_.fail("a call ended that is not under way");
  const Call call = std::move(found->second);
  group.under_way.erase(found);
  if (!result && result.error().code == ErrorCode::closed) return;
  if (!result && may_part(group)) {
    check_parted(group, result.error());
  } else if (!result && may_fail(group, result.error())) {
    // And all after it do, if it is the group that has failed.
  } else if (!result) {
    return worker_.give_up(result.error());
  } else {
    check(group, call, *result);
  }
  go_on(group);
}

std::vector<Rank> SimCalls::ranks_of(const Group& group) const {
  std::vector<Rank> ranks = worker_.job.calls.groups[group.index];
  for (std::uint32_t r = 0;
       ranks.size() < worker_.job.world_size() && worker_.job.calls.groups[group.index].empty(); ++r)
    ranks.emplace_back(r);
  return ranks;
}

bool SimCalls::may_fail(const Group& group, const Error& error) const {
  const auto says = [&](std::string_view text) { return error.message.find(text) != std::string::npos; };
  const std::string name = group.index == 0 ? "world" : fmt::format("group{}", group.index);
  if (worker_.job.calls.may_lose_joins && error.code == ErrorCode::configuration)
    return says(fmt::format("group '{}': the scheduler was lost while a rank had joined", name));
  const std::vector<Rank> ranks = ranks_of(group);
  const auto is_lost = [this](Rank rank) { return worker_.shrunk.is_lost(rank); };
  if (!worker_.job.shrinks || std::none_of(ranks.begin(), ranks.end(), is_lost) || !says(name)) return false;
  // After the join calls may meet those that a lost rank had made before.
  const bool names_lost = std::any_of(ranks.begin(), ranks.end(), [&](Rank rank) {
    return is_lost(rank) && says(fmt::format("rank {} ", rank.value));
  });
  if (error.code == ErrorCode::configuration)
    return says("a rank was lost before it had told its calls to all") ||
           (names_lost && says(" calls number "));
  if (error.code != ErrorCode::peer_lost) return false;
  if (says("the root of the ")) return worker_.shrunk.is_lost(ranks.front());
  return !worker_.job.unequal_sums && says("ranks, others");
}

// All fail that are under way when its ranks hear of it, and that come later.
bool SimCalls::may_part(const Group& group) const {
  const auto& odd = worker_.job.calls.odd;
  return odd && odd->group == group.index;
}

void SimCalls::check_parted(const Group& group, const Error& error) {
  if (error.code == ErrorCode::peer_lost) return worker_.give_up(error);
  const std::uint64_t first = first_odd_call(worker_.job);
  const bool is_named = worker_.job.calls.odd->is_named && !is_odd_in_lengths(worker_.job, first);
  const std::string names = is_named ? fmt::format("number {}: ", first) : "number ";
  const bool is_right =
      error.code == ErrorCode::configuration &&
      error.message.find(
          fmt::format("group '{}'", group.index == 0 ? "world" : fmt::format("group{}", group.index))) !=
          std::string::npos &&
      error.message.find(names) != std::string::npos;
  // Who has closed makes no more calls, which others may hear of first.
  const bool has_left = error.message.find("has left the job") != std::string::npos;
  if (!is_right && !has_left)
    worker_.fail(fmt::format("call {} of group {} differs, and the error is: {} ({})", first, group.index,
                             to_string(error), words_of(error.code)));
}

void SimCalls::check(const Group& group, const Call& call, std::uint32_t weight) {
  const JobPlan& job = worker_.job;
  // From the odd rank's first other call on, copies may hold what that one has given instead: another type of
  // as many bytes. An exchange may be over for those who have nothing to do with that rank.
  const bool may_be_odd = may_part(group) && call.number >= job.calls.odd->number;
  if (may_be_odd &&
      (!call.plan.lengths.empty() || (call.plan.call.is_copy() && !is_odd_call(job, call.number))))
    return;
  if (!call.plan.lengths.empty()) {
    const Exchange exchange{job, group.index, call.number, call.plan, worker_.rank};
    const std::string wrong = exchange.check(call.out, call.given.get());
    if (!wrong.empty())
      worker_.fail(fmt::format("call {} of group {} ({}): {}", call.number, group.index,
                               to_string(call.plan.call), wrong));
    return;
  }
  // Later ones may be over before the ranks hear of it, if they are the same.
  if (may_part(group) && is_odd_call(job, call.number))
    return worker_.fail(
        fmt::format("call {} of group {} succeeded, and ranks differ", call.number, group.index));
  const CallPlan& plan = call.plan;
  const std::vector<Rank> ranks = ranks_of(group);
  const bool takes = !plan.call.has_root() || plan.call.is_broadcast() || plan.call.root == worker_.rank;
  const bool scatters = plan.call.kind == RoundKind::reduce_scatter;
  std::pair<std::uint64_t, std::uint64_t> range{0, plan.count};
  if (scatters) range = part_of(group, plan);
  const bool is_one = plan.call.is_copy() || !takes || range.second == 0;
  const auto lost = is_one ? 0 : std::count_if(ranks.begin(), ranks.end(), [this](Rank rank) {
    return worker_.shrunk.is_lost(rank);
  });
  const std::uint32_t most = is_one ? 1 : static_cast<std::uint32_t>(ranks.size());
  if (plan.count > 0 && (weight > most || weight + lost < most))
    worker_.fail(fmt::format("call {} of group {} ({}) has weight {}, not {} less at most {}", call.number,
                             group.index, to_string(plan.call), weight, most, lost));
  const auto mine = [&](std::uint64_t i) { return value_of(job, group.index, call.number, worker_.rank, i); };
  const bool is_input_intact =
      worker_.in_place || plan.call.is_copy() || call.in == bytes_of(plan.dtype, plan.count, mine);
  if (!is_input_intact)
    worker_.fail(fmt::format("the input of call {} of group {} was changed", call.number, group.index));
  if (!takes) return;
  const std::size_t begin = scatters && worker_.in_place ? range.first * size_of(plan.dtype) : 0;
  const std::vector<std::byte>& memory = scatters && worker_.in_place ? call.in : call.out;
  if (!is_right(group, call, range, std::span(memory).subspan(begin)))
    worker_.fail(fmt::format("call {} of group {} is wrong: {} of {}", call.number, group.index,
                             to_string(plan.call), plan.count));
}

// Each element may be without any of the ranks that are lost.
bool SimCalls::is_right(const Group& group, const Call& call, std::pair<std::uint64_t, std::uint64_t> range,
                        std::span<const std::byte> actual) const {
  std::vector<Rank> lost = ranks_of(group);
  std::erase_if(lost, [this](Rank rank) { return !worker_.shrunk.is_lost(rank); });
  std::vector<std::vector<std::byte>> choices;
  for (std::size_t choice = 0; choice < std::size_t{1} << lost.size(); ++choice) {
    std::vector<Rank> missing;
    for (std::size_t i = 0; i < lost.size(); ++i)
      if ((choice >> i & 1) != 0) missing.push_back(lost[i]);
    choices.push_back(expected(group, call, range, missing));
  }
  const std::size_t width = size_of(call.plan.dtype);
  for (std::size_t at = 0; at < range.second * width; at += width) {
    const bool is_one = std::any_of(choices.begin(), choices.end(), [&](const std::vector<std::byte>& bytes) {
      return std::memcmp(bytes.data() + at, actual.data() + at, width) == 0;
    });
    if (!is_one) return false;
  }
  return true;
}

std::vector<std::byte> SimCalls::expected(const Group& group, const Call& call,
                                          std::pair<std::uint64_t, std::uint64_t> range,
                                          const std::vector<Rank>& missing) const {
  const JobPlan& job = worker_.job;
  const CallPlan& plan = call.plan;
  const std::vector<Rank> ranks = ranks_of(group);
  const auto value = [&](Rank rank, std::uint64_t i) {
    return value_of(job, group.index, call.number, rank, i);
  };
  const auto adds_nothing = [&](Rank rank) {
    const bool has_joined = call.number > own_calls(job, group.index, rank) && call.number <= job.calls.count;
    return has_joined || std::find(missing.begin(), missing.end(), rank) != missing.end();
  };
  return bytes_of(plan.dtype, range.second, [&](std::uint64_t at) {
    const std::uint64_t i = range.first + at;
    if (plan.call.is_broadcast()) return value(plan.call.root, i);
    if (plan.call.is_copy()) {
      std::size_t place = 0;
      for (std::uint64_t end = plan.parts[0]; i >= end; end += plan.parts[place])
        ++place;
      return value(ranks[place], i);
    }
    std::optional<double> result;
    for (const Rank rank : ranks) {
      const double next = value(rank, i);
      if (adds_nothing(rank)) continue;
      if (!result) {
        result = next;
      } else if (plan.call.operation == Operation::sum) {
        *result += next;
      } else {
        result = plan.call.operation == Operation::max ? std::max(*result, next) : std::min(*result, next);
      }
    }
    return result.value_or(0);
  });
}

}  // namespace bps::sim
