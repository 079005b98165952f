#include "client/src/gpu/nccl/testing/fake_nccl.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>

#include "client/src/gpu/nccl/testing/fake_world.h"

namespace bps {
namespace {

constexpr std::size_t kMany = 256;  // elements, which another algorithm is for

}  // namespace

struct FakeNccl::Mine {
  struct Comm {
    NcclId id{};
    int rank = 0;
    std::uint32_t polls_left = 0;
    std::uint64_t groups = 0;  // with collectives
    bool is_finalizing = false;
    bool is_ready = false;                                // async_error() has said so since the last call
    std::set<std::tuple<NcclCall, int, bool>> connected;  // peer of messages; much or little
    std::optional<std::pair<CudaStream, FakeCuda::Work>> late;  // comes to the stream when the call has ended
  };
  struct Fault {
    std::optional<NcclCall> call;  // none: counts all calls
    std::uint64_t left = 0;
    NcclCode code = NcclCode::internal_error;
  };
  struct State {
    std::map<NcclComm, std::unique_ptr<Comm>> comms;
    std::vector<NcclCall> order;
    std::array<std::uint64_t, kNcclCallCount> counts{};
    std::vector<Fault> faults;
    std::optional<NcclCode> broken;
    std::optional<NcclCall> blocked;
    bool holds = false;  // a thread in that call
    bool stays = false;
    std::uint64_t first_uses = 0;
    std::vector<std::string> misuses;
    std::uint32_t depth = 0;  // of groups
    std::vector<Step> group;
  };

  static std::optional<NcclCode> enter(State& state, NcclCall call) {
    state.order.push_back(call);
    ++state.counts[static_cast<std::size_t>(call)];
    std::optional<NcclCode> decided;
    for (Fault& fault : state.faults) {
      if (fault.call && *fault.call != call) continue;
      if (fault.left-- == 0) decided = fault.code;
    }
    std::erase_if(state.faults, [](const Fault& fault) { return fault.left == UINT64_MAX; });
    return decided;
  }
  static Comm* find(State& state, NcclCall call, NcclComm comm, bool must_be_ready) {
    const auto found = state.comms.find(comm);
    if (found == state.comms.end()) {
      state.misuses.push_back(std::string(name_of(call)) + " of a communicator that is none");
      return nullptr;
    }
    if (must_be_ready && !found->second->is_ready)
      state.misuses.push_back(std::string(name_of(call)) + " while another call is in progress");
    return found->second.get();
  }

  Monitor<State> monitor;
};

using State = FakeNcclWorld::Shared::State;

FakeNccl::FakeNccl(FakeNcclWorld& world, FakeCuda& cuda, Options options)
    : world_(world), cuda_(cuda), options_(options), mine_(std::make_unique<Mine>()) {}
FakeNccl::~FakeNccl() = default;

void FakeNccl::fail_call(std::uint64_t number, NcclCode code) {
  mine_->monitor.update([&](Mine::State& s) {
    s.faults.push_back({std::nullopt, number - s.order.size(), code});
  });
}

void FakeNccl::fail_next(NcclCall call, std::uint64_t nth, NcclCode code) {
  mine_->monitor.update([&](Mine::State& s) { s.faults.push_back({call, nth, code}); });
}

void FakeNccl::break_async(NcclCode code) {
  mine_->monitor.update([&](Mine::State& s) { s.broken = code; });
}

void FakeNccl::stay_in_progress() {
  mine_->monitor.update([](Mine::State& s) { s.stays = true; });
}

void FakeNccl::block(NcclCall call) {
  mine_->monitor.update([&](Mine::State& s) {
    s.blocked = call;
    s.holds = false;
  });
}

void FakeNccl::unblock() {
  mine_->monitor.update([](Mine::State& s) { s.blocked.reset(); });
}

bool FakeNccl::wait_for_blocked(TimePoint deadline) const {
  return mine_->monitor.wait_until(deadline, [](const Mine::State& s) { return s.holds; });
}

void FakeNccl::pass(NcclCall call) {
  mine_->monitor.update([&](Mine::State& s) { s.holds = s.holds || s.blocked == call; });
  mine_->monitor.wait_until(TimePoint::max(), [&](const Mine::State& s) { return s.blocked != call; });
}

std::uint64_t FakeNccl::calls() const {
  return mine_->monitor.read([](const Mine::State& s) { return s.order.size(); });
}

std::uint64_t FakeNccl::count(NcclCall call) const {
  return mine_->monitor.read([&](const Mine::State& s) { return s.counts[static_cast<std::size_t>(call)]; });
}

std::vector<NcclCall> FakeNccl::order() const {
  return mine_->monitor.read([](const Mine::State& s) { return s.order; });
}

std::uint64_t FakeNccl::first_uses() const {
  return mine_->monitor.read([](const Mine::State& s) { return s.first_uses; });
}

std::size_t FakeNccl::left() const {
  return mine_->monitor.read([](const Mine::State& s) { return s.comms.size(); });
}

std::vector<std::string> FakeNccl::misuses() const {
  return mine_->monitor.read([](const Mine::State& s) { return s.misuses; });
}

NcclCode FakeNccl::version(int& version) {
  version = options_.version;
  return mine_->monitor.update(
      [](Mine::State& s) { return Mine::enter(s, NcclCall::version).value_or(NcclCode::success); });
}

NcclCode FakeNccl::unique_id(NcclId& id) {
  pass(NcclCall::unique_id);
  return mine_->monitor.update([&](Mine::State& s) {
    if (const auto decided = Mine::enter(s, NcclCall::unique_id)) return *decided;
    const std::uint32_t number = world_.shared_->monitor.update([](State& w) { return ++w.ids; });
    id = {};
    std::memcpy(id.data(), &number, sizeof(number));
    return NcclCode::success;
  });
}

NcclCode FakeNccl::init_rank(NcclComm& comm, int size, const NcclId& id, int rank) {
  return mine_->monitor.update([&](Mine::State& s) {
    if (const auto decided = Mine::enter(s, NcclCall::init_rank)) return *decided;
    auto made = std::make_unique<Mine::Comm>();
    made->id = id;
    made->rank = rank;
    comm = reinterpret_cast<NcclComm>(made.get());
    s.comms[comm] = std::move(made);
    world_.shared_->monitor.update([&](State& w) {
      auto& clique = w.cliques[id];
      if (clique.size != 0 && clique.size != size) w.differences.push_back("ranks say different sizes");
      clique.size = size;
      clique.next.resize(static_cast<std::size_t>(size));
      if (!clique.joined.insert(rank).second) w.differences.push_back("two ranks say the same number");
    });
    return NcclCode::in_progress;
  });
}

NcclCode FakeNccl::async_error(NcclComm comm, NcclCode& state) {
  std::optional<std::pair<CudaStream, FakeCuda::Work>> late;
  const NcclCode code = mine_->monitor.update([&](Mine::State& s) {
    state = NcclCode::success;
    if (const auto decided = Mine::enter(s, NcclCall::async_error)) return *decided;
    Mine::Comm* const mine = Mine::find(s, NcclCall::async_error, comm, false);
    if (mine == nullptr) return NcclCode::invalid_argument;
    const bool all_here = world_.shared_->monitor.read([&](const State& w) {
      const auto& clique = w.cliques.at(mine->id);
      const std::size_t size = static_cast<std::size_t>(clique.size);
      return clique.joined.size() == size && (!mine->is_finalizing || clique.finalized.size() == size);
    });
    if (s.broken) {
      state = *s.broken;
    } else if (!all_here) {
      state = NcclCode::in_progress;
    } else if (mine->polls_left > 0) {
      --mine->polls_left;
      state = NcclCode::in_progress;
    } else {
      mine->is_ready = true;
      late.swap(mine->late);
    }
    return NcclCode::success;
  });
  if (late) cuda_.enqueue(late->first, std::move(late->second));
  return code;
}

NcclCode FakeNccl::finalize(NcclComm comm) {
  return mine_->monitor.update([&](Mine::State& s) {
    if (const auto decided = Mine::enter(s, NcclCall::finalize)) return *decided;
    Mine::Comm* const mine = Mine::find(s, NcclCall::finalize, comm, true);
    if (mine == nullptr) return NcclCode::invalid_argument;
    mine->is_finalizing = true;
    mine->is_ready = false;
    world_.shared_->monitor.update([&](State& w) { w.cliques.at(mine->id).finalized.insert(mine->rank); });
    return NcclCode::in_progress;
  });
}

NcclCode FakeNccl::destroy(NcclComm comm) {
  return mine_->monitor.update([&](Mine::State& s) {
    const auto decided = Mine::enter(s, NcclCall::destroy);
    Mine::Comm* const mine = Mine::find(s, NcclCall::destroy, comm, true);
    if (mine == nullptr) return NcclCode::invalid_argument;
    if (!mine->is_finalizing) s.misuses.push_back("ncclCommDestroy before ncclCommFinalize");
    s.comms.erase(comm);
    return decided.value_or(NcclCode::success);
  });
}

NcclCode FakeNccl::abort(NcclComm comm) {
  pass(NcclCall::abort);
  return mine_->monitor.update([&](Mine::State& s) {
    const auto decided = Mine::enter(s, NcclCall::abort);
    Mine::Comm* const mine = Mine::find(s, NcclCall::abort, comm, false);
    if (mine == nullptr) return NcclCode::invalid_argument;
    world_.shared_->monitor.update([&](State& w) { w.cliques.at(mine->id).aborted.insert(mine->rank); });
    s.comms.erase(comm);
    return decided.value_or(NcclCode::success);
  });
}

NcclCode FakeNccl::reduce_scatter(const void* in, void* out, std::size_t count, NcclType type,
                                  NcclOperation operation, NcclComm comm, CudaStream stream) {
  return add(NcclCall::reduce_scatter, comm, stream,
             {.in = in, .out = out, .count = count, .type = type, .operation = operation});
}

NcclCode FakeNccl::reduce(const void* in, void* out, std::size_t count, NcclType type,
                          NcclOperation operation, int root, NcclComm comm, CudaStream stream) {
  return add(NcclCall::reduce, comm, stream,
             {.in = in, .out = out, .count = count, .type = type, .operation = operation, .root = root});
}

NcclCode FakeNccl::all_gather(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                              CudaStream stream) {
  return add(NcclCall::all_gather, comm, stream, {.in = in, .out = out, .count = count, .type = type});
}

NcclCode FakeNccl::broadcast(const void* in, void* out, std::size_t count, NcclType type, int root,
                             NcclComm comm, CudaStream stream) {
  return add(NcclCall::broadcast, comm, stream,
             {.in = in, .out = out, .count = count, .type = type, .root = root});
}

NcclCode FakeNccl::send(const void* in, std::size_t count, NcclType type, int peer, NcclComm comm,
                        CudaStream stream) {
  return add(NcclCall::send, comm, stream, {.in = in, .count = count, .type = type, .root = peer});
}

NcclCode FakeNccl::receive(void* out, std::size_t count, NcclType type, int peer, NcclComm comm,
                           CudaStream stream) {
  return add(NcclCall::receive, comm, stream, {.out = out, .count = count, .type = type, .root = peer});
}

NcclCode FakeNccl::add(NcclCall call, NcclComm comm, CudaStream stream, Step step) {
  step.call = call;
  step.comm = comm;
  step.stream = stream;
  std::vector<Step> alone;
  const NcclCode code = mine_->monitor.update([&](Mine::State& s) {
    if (const auto decided = Mine::enter(s, call)) return *decided;
    if (Mine::find(s, call, comm, true) == nullptr) return NcclCode::invalid_argument;
    (s.depth > 0 ? s.group : alone).push_back(step);
    return NcclCode::success;
  });
  return alone.empty() ? code : begin(std::move(alone));
}

NcclCode FakeNccl::group_start() {
  return mine_->monitor.update([](Mine::State& s) {
    if (const auto decided = Mine::enter(s, NcclCall::group_start)) return *decided;
    ++s.depth;
    return NcclCode::success;
  });
}

NcclCode FakeNccl::group_end() {
  std::vector<Step> steps;
  const NcclCode code = mine_->monitor.update([&](Mine::State& s) {
    const auto decided = Mine::enter(s, NcclCall::group_end);
    if (s.depth == 0) s.misuses.push_back("ncclGroupEnd without ncclGroupStart");
    if (s.depth == 0 || --s.depth > 0) return decided.value_or(NcclCode::success);
    steps.swap(s.group);
    if (decided) steps.clear();
    return decided.value_or(NcclCode::success);
  });
  return steps.empty() ? code : begin(std::move(steps));
}

// All that is begun together is one operation on the stream; it comes there when the call is in progress no
// more.
NcclCode FakeNccl::begin(std::vector<Step> steps) {
  const NcclComm comm = steps.front().comm;
  const CudaStream stream = steps.front().stream;
  NcclId id{};
  int rank = 0;
  const bool goes_on = mine_->monitor.update([&](Mine::State& s) {
    const auto found = s.comms.find(comm);
    if (found == s.comms.end()) return false;
    Mine::Comm& mine = *found->second;
    id = mine.id;
    rank = mine.rank;
    const bool has_collectives = std::any_of(steps.begin(), steps.end(), [](const Step& step) {
      return step.call != NcclCall::send && step.call != NcclCall::receive;
    });
    if (has_collectives) ++mine.groups;
    for (Step& step : steps) {
      step.group = mine.groups;
      const bool is_message = step.call == NcclCall::send || step.call == NcclCall::receive;
      const bool is_much = !is_message && step.count >= kMany;
      if (mine.connected.emplace(step.call, is_message ? step.root : -1, is_much).second) ++s.first_uses;
    }
    mine.polls_left = s.stays ? UINT32_MAX : options_.polls_in_progress;
    mine.is_ready = mine.polls_left == 0;
    return !mine.is_ready;
  });
  const int size = world_.shared_->monitor.read([&](const State& w) { return w.cliques.at(id).size; });
  FakeCuda::Work work;
  for (const Step& step : steps) {
    const std::size_t width = step.type == NcclType::i64 || step.type == NcclType::f64    ? 8
                              : step.type == NcclType::i32 || step.type == NcclType::f32  ? 4
                              : step.type == NcclType::f16 || step.type == NcclType::bf16 ? 2
                                                                                          : 1;
    const std::size_t bytes = step.count * width;
    const auto all = bytes * static_cast<std::size_t>(size);
    if (step.in != nullptr)
      work.memory.emplace_back(step.in, step.call == NcclCall::reduce_scatter ? all : bytes);
    if (step.out != nullptr)
      work.memory.emplace_back(step.out, step.call == NcclCall::all_gather ? all : bytes);
  }
  work.may_start = [shared = world_.shared_.get(), id, rank, steps = std::move(steps),
                    tickets = std::vector<FakeNcclWorld::Shared::Ticket>()]() mutable {
    return shared->monitor.update([&](State& w) {
      auto& clique = w.cliques.at(id);
      if (clique.aborted.contains(rank)) return true;
      for (; !steps.empty(); steps.erase(steps.begin()))
        tickets.push_back(FakeNcclWorld::Shared::arrive(w, clique, rank, steps.front()));
      return std::all_of(tickets.begin(), tickets.end(),
                         [&](const auto& ticket) { return FakeNcclWorld::Shared::is_done(clique, ticket); });
    });
  };
  if (goes_on) {
    mine_->monitor.update([&](Mine::State& s) { s.comms.at(comm)->late.emplace(stream, std::move(work)); });
    return NcclCode::in_progress;
  }
  cuda_.enqueue(stream, std::move(work));
  return NcclCode::success;
}

std::string FakeNccl::describe(NcclCode code, NcclComm) {
  return "fake NCCL error " + std::to_string(static_cast<int>(code));
}

}  // namespace bps
