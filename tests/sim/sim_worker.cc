#include "tests/sim/sim_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/src/engine/testing/requests.h"
#include "client/src/group/host_group.h"
#include "proto/base/assert.h"

namespace bps::sim {
namespace {

using namespace std::chrono_literals;

constexpr Duration kCloseTimeout = 20s;

}  // namespace

struct SimWorker::UnderWay {
  std::uint64_t round = 0;
  std::uint64_t serial = 0;
  RoundCall how;
  std::uint64_t count = 0;
  Scale scale;
  RoundMemory memory;
  std::vector<std::uint64_t> least;  // async, by rank: deltas that had an answer before it began
};

SimWorker::SimWorker(SimNode& node, Transport& transport, JobContext& job, Rank rank, std::string machine,
                     Endpoint scheduler, Logger log, std::uint64_t seed)
    : node_(node),
      transport_(transport),
      local_transport_(transport),
      job_(job),
      plan_(job.plan.workers[rank.value]),
      rank_(rank),
      machine_(std::move(machine)),
      scheduler_(std::move(scheduler)),
      log_(std::move(log)),
      random_(seed),
      tensors_(job.plan.tensors.size()) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const std::uint64_t partitions =
        partitioner_of(job.plan.tensors[t].declaration(), job.plan.partition_bytes).count();
    tensors_[t].seen.assign(partitions, std::vector<std::uint64_t>(job.plan.world_size(), 0));
    if (job.plan.tensors[t].is_shared_by(rank)) shared_.push_back(t);
  }
}

SimWorker::~SimWorker() = default;

void SimWorker::start() {
  state_ = State::joining;
  node_.loop().post([this] { run(); });
}

void SimWorker::kill() {
  BPS_ASSERT(!node_.alive());
  state_ = State::killed;
  engine_.reset();
}

void SimWorker::fail(const std::string& what) {
  job_.report.fail(fmt::format("{} rank {}: {}", job_.plan.name, rank_.value, what));
}

std::string SimWorker::describe() const {
  constexpr const char* names[] = {"not started", "joining",  "declaring", "running",
                                   "closing",     "finished", "killed"};
  std::string text =
      fmt::format("{} rank {}: {}", job_.plan.name, rank_.value, names[static_cast<int>(state_)]);
  if (error_) text += ", error: " + to_string(*error_);
  if (state_ == State::joining && engine_) text += ", " + engine_->describe_join();
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    if (tensors_[t].under_way && engine_) text += "\n    " + engine_->describe(tensors_[t].id);
  }
  return text;
}

template <class Result>
std::function<void(Result)> SimWorker::once(std::type_identity_t<std::function<void(Result)>> callback) {
  ++callbacks_due_;
  return [this, callback = std::move(callback), done = std::make_shared<bool>(false)](Result result) {
    if (calling_) fail("a callback ran inside the call that asked for it");
    if (std::exchange(*done, true)) return fail("a callback came twice");
    if (NodeLoop::current() != &node_.loop()) fail("a callback came on another loop");
    if (state_ == State::finished) fail("a callback came after close was done");
    --callbacks_due_;
    callback(std::move(result));
  };
}

void SimWorker::run() {
  ClientConfig config;
  config.scheduler = scheduler_;
  config.job = job_.plan.name;
  config.key = job_.key;
  config.rank = rank_;
  config.world_size = job_.plan.world_size();
  config.host = machine_;
  config.partition_bytes = job_.plan.partition_bytes;
  config.credit_bytes = plan_.credit_bytes;
  config.retain = plan_.retain;
  config.worker_loss = job_.plan.shrinks ? WorkerLoss::shrink : WorkerLoss::fail;
  config.unequal_sums = job_.plan.unequal_sums;
  config.join_timeout = 30s;
  config.scheduler_grace = job_.plan.scheduler_grace;
  if (job_.plan.sums_on_hosts) {
    config.local_group = LocalGrouping::host;
    config.group_name = fmt::format("host{}", plan_.host);
  }
  engine_ = std::make_unique<ClientEngine>(
      node_.loop(), transport_, config, log_, nullptr, DataPlane::FindRdma{}, &local_transport_,
      [this](const auto& context, auto& owner) { return make_group(context, owner); });
  const Calling calling(calling_);
  engine_->join(once<Status>([this](const Status& status) { on_joined(status); }));
}

// Of the ranks of this host, or of this one's GPU.
std::unique_ptr<LocalGroup> SimWorker::make_group(const DataPlane::GroupContext& context,
                                                  LocalGroup::Owner& owner) {
  if (context.transport == nullptr) {
    FakeHost::Options options;
    options.seed = random_.next();
    options.max_delay = random_.between(Duration(0), Duration(3ms));
    options.on_violation = [this](const std::string& what) {
      if (node_.alive()) fail("its GPU: " + what);
    };
    gpu_ = std::make_unique<FakeHost>(context.loop, 1, std::move(options));
    return gpu_->join(0, owner);
  }
  HostGroup::Options options;
  options.job_run = context.run;
  options.ranks = context.ranks;
  options.member = context.self;
  return std::make_unique<HostGroup>(context.loop, *context.transport, std::move(options), owner);
}

void SimWorker::on_joined(const Status& status) {
  if (!status) return give_up(status.error());
  state_ = State::declaring;
  declare();
}

// In an order of its own, in one call or in several, all under way at once.
void SimWorker::declare() {
  std::vector<std::size_t> order(shared_.begin(), shared_.end() - (declares_late() ? 1 : 0));
  if (job_.plan.opposite_orders) random_.shuffle(order);
  undeclared_ = order.size();
  for (std::size_t from = 0; from < order.size();) {
    const std::size_t count = random_.between<std::size_t>(1, order.size() - from);
    const std::vector<std::size_t> which(order.begin() + static_cast<std::ptrdiff_t>(from),
                                         order.begin() + static_cast<std::ptrdiff_t>(from + count));
    from += count;
    declare(which);
  }
  if (order.empty()) close();
}

void SimWorker::declare(const std::vector<std::size_t>& which) {
  std::vector<TensorDeclaration> declarations;
  for (const std::size_t t : which) {
    declarations.push_back(job_.plan.tensors[t].declaration());
  }
  const Calling calling(calling_);
  engine_->declare(std::move(declarations),
                   once<Result<std::vector<TensorId>>>([this, which](Result<std::vector<TensorId>> ids) {
                     on_declared(which, std::move(ids));
                   }));
}

bool SimWorker::declares_late() const {
  return job_.plan.declares_late && job_.plan.free_running && shared_.size() > 1;
}

void SimWorker::on_declared(const std::vector<std::size_t>& which, Result<std::vector<TensorId>> ids) {
  const bool is_refused = !ids && ids.error().code == ErrorCode::out_of_memory;
  if (is_refused && state_ == State::running && job_.plan.may_be_refused) {
    if (--unfinished_ == 0) close_later();
    return;
  }
  if (!ids) return give_up(ids.error());
  if (ids->size() != which.size()) return fail("declare returned another number of tensors");
  if (state_ != State::declaring && state_ != State::running) return;
  for (std::size_t i = 0; i < which.size(); ++i) {
    tensors_[which[i]].id = (*ids)[i];
    note_id(which[i]);
  }
  if (state_ == State::running) return begin_round(which.front());  // a late one, or a new one
  undeclared_ -= which.size();
  if (undeclared_ > 0) return;
  const QuarrelPlan::Kind kind = job_.plan.quarrel.kind;
  if (kind == QuarrelPlan::Kind::tensor || kind == QuarrelPlan::Kind::too_large)
    return declare_quarrel(false);
  train();
}

// However often it is dropped, and whenever. Of a tensor without elements nobody knows after a restart of the
// scheduler who has had it (decision 0034); nor of one that only a lost rank had declared.
void SimWorker::note_id(std::size_t tensor) {
  if (job_.plan.tensors[tensor].elements == 0) return;
  const std::pair key{tensor, job_.drops[tensor][rank_.value]};
  const std::pair said{tensors_[tensor].id, rank_};
  auto& known = job_.ids.emplace(key, said).first->second;
  if (job_.shrunk.is_lost(known.second)) known = said;
  if (known.first == said.first) return;
  fail(fmt::format("declaration {} of {} is tensor {} here, and {} at rank {}", key.second,
                   job_.plan.tensors[tensor].name, said.first.value, known.first.value, known.second.value));
}

Status SimWorker::drop(TensorId tensor, std::function<void()> check_ended) {
  const Calling calling(calling_);
  auto done = once<Status>([check_ended = std::move(check_ended)](const Status& status) {
    if (status) check_ended();
  });
  const Status dropped = engine_->drop(tensor, std::move(done));
  if (!dropped) --callbacks_due_;
  return dropped;
}

void SimWorker::renew(std::size_t tensor) {
  TensorRun& run = tensors_[tensor];
  run.is_renewed = true;
  const std::uint64_t drops = ++job_.drops[tensor][rank_.value];
  const Status dropped = drop(run.id, [this, tensor, drops] {
    if (job_.plan.tensors[tensor].elements == 0) return;
    for (std::uint32_t r = 0; r < job_.plan.world_size(); ++r) {
      if (!job_.plan.tensors[tensor].is_shared_by(Rank{r})) continue;
      const bool needs_it = !job_.has_closed[r] && !job_.shrunk.is_lost(Rank{r});
      if (needs_it && job_.drops[tensor][r] < drops)
        fail(fmt::format("{} has ended before rank {} has dropped it", job_.plan.tensors[tensor].name, r));
    }
  });
  if (!dropped) return give_up(dropped.error());
  declare(std::vector<std::size_t>{tensor});
}

void SimWorker::make_calls() {
  if (job_.plan.calls.count == 0) return;
  const auto begin = [this](GroupRequest&& request, Request::Done done) {
    return started([&] {
      request.request.done = once<Result<std::uint32_t>>(std::move(done));
      return engine_->begin_call(std::move(request));
    });
  };
  const auto join = [this](GroupId group, GroupJoins::Done done) {
    return started(
        [&] { return engine_->join_group(group, 0, once<Result<std::uint32_t>>(std::move(done))); });
  };
  calls_ = std::make_unique<SimCalls>(
      SimCalls::Worker{node_.loop(), *engine_, job_.plan, job_.shrunk, rank_, plan_.in_place, plan_.think,
                       begin, join, [this](const Error& error) { give_up(error); },
                       [this](const std::string& what) { fail(what); },
                       [this] { closes_after_calls_ ? close_later() : void(); }},
      random_.next());
  calls_->start();
}

void SimWorker::train() {
  if (state_ != State::declaring) return;
  state_ = State::running;
  make_calls();
  if (!job_.plan.free_running) return begin_iteration();
  unfinished_ = shared_.size();
  for (const std::size_t t : shared_) {
    if (declares_late() && t == shared_.back()) {
      go_on([this, t] { declare(std::vector<std::size_t>{t}); });
    } else {
      go_on([this, t] { begin_round(t); });
    }
  }
}

// Whoever declares first learns of the quarrel only when it uses the tensor. Then all declare it `again`.
void SimWorker::declare_quarrel(bool again) {
  const QuarrelPlan& quarrel = job_.plan.quarrel;
  TensorDeclaration declaration;
  declaration.name = "quarrel";
  declaration.elements = quarrel.kind == QuarrelPlan::Kind::too_large ? kTooManyElements
                         : quarrel.rank == rank_ && !again            ? kQuarrelElements + 1
                                                                      : kQuarrelElements;
  const std::uint64_t elements = declaration.elements;
  const Calling calling(calling_);
  engine_->declare({declaration}, once<Result<std::vector<TensorId>>>(
                                      [this, again, elements](Result<std::vector<TensorId>> ids) {
                                        on_quarrel_declared(again, elements, ids);
                                      }));
}

void SimWorker::on_quarrel_declared(bool again, std::uint64_t elements,
                                    const Result<std::vector<TensorId>>& ids) {
  const bool is_too_large = job_.plan.quarrel.kind == QuarrelPlan::Kind::too_large;
  if (!ids && again) return give_up(ids.error());
  if (!ids) {
    check_quarrel(ids.error());
    return is_too_large ? train() : declare_quarrel(true);  // there is nothing to drop
  }
  if (is_too_large) return fail("a tensor was declared that fits nowhere");
  quarrel_data_.assign(elements * size_of(DType::f32), std::byte{});
  const TensorId tensor = ids->front();
  auto done = once<Result<std::uint32_t>>(
      [this, again, tensor](const Result<std::uint32_t>& result) { on_quarrel_done(again, tensor, result); });
  const Status begun = [&] {
    const Calling calling(calling_);
    return engine_->begin(testing::push_pull_of(tensor, quarrel_data_, quarrel_data_, Operation::sum, done));
  }();
  if (begun) return;
  --callbacks_due_;
  on_quarrel_done(again, tensor, begun.error());
}

void SimWorker::on_quarrel_done(bool again, TensorId tensor, const Result<std::uint32_t>& result) {
  if (again) {
    if (!result) return give_up(result.error());
    if (*result != job_.plan.world_size()) fail("a tensor that was declared again has another weight");
    return train();
  }
  if (result) return fail("a tensor was summed that is not declared alike");
  check_quarrel(result.error());
  const Status dropped = drop(tensor, [] {});
  if (!dropped) return give_up(dropped.error());
  declare_quarrel(true);
}

// The tensor fails in this round, for good.
bool SimWorker::is_quarrel(std::size_t tensor, std::uint64_t round) const {
  const QuarrelPlan& quarrel = job_.plan.quarrel;
  return quarrel.kind == QuarrelPlan::Kind::operation && tensor == 0 && round == quarrel.round;
}

void SimWorker::check_quarrel(const Error& error) {
  const QuarrelPlan& quarrel = job_.plan.quarrel;
  const bool too_large = quarrel.kind == QuarrelPlan::Kind::too_large;
  std::vector<std::string> said{"quarrel", std::to_string(kQuarrelElements),
                                std::to_string(kQuarrelElements + 1), "rank"};
  if (too_large) said = {"quarrel", "server", "MiB"};
  if (quarrel.kind == QuarrelPlan::Kind::operation) {
    said = {job_.plan.tensors[0].name, fmt::format("rank {} ", quarrel.rank.value), "calls"};
  }
  // Who hears of it first may be through with everything before the others of its host hear of it.
  const bool has_left =
      job_.plan.sums_on_hosts && error.message.find("has left the job") != std::string::npos;
  if (has_left && quarrel.kind == QuarrelPlan::Kind::operation) return;
  const bool all = std::all_of(said.begin(), said.end(), [&](const std::string& text) {
    return error.message.find(text) != std::string::npos;
  });
  if (all && error.code == (too_large ? ErrorCode::out_of_memory : ErrorCode::configuration)) return;
  fail(fmt::format("a quarrel is told badly: {} ({})", to_string(error), words_of(error.code)));
}

void SimWorker::go_on(std::function<void()> next) {
  const Duration think = plan_.think > Duration(0) ? random_.between(Duration(0), plan_.think) : Duration(0);
  node_.loop().after(think, [this, next = std::move(next)] {
    if (state_ == State::running) next();
  });
}

void SimWorker::begin_iteration() {
  std::vector<std::size_t> order(shared_.rbegin(), shared_.rend());  // backwards, as gradients become ready
  if (job_.plan.opposite_orders) random_.shuffle(order);
  unfinished_ = order.size();
  if (plan_.one_by_one) {
    unbegun_ = std::move(order);
    return begin_next();
  }
  for (const std::size_t t : order) {
    if (state_ != State::running) return;
    begin_round(t);
  }
}

void SimWorker::begin_next() {
  const std::size_t next = unbegun_.back();
  unbegun_.pop_back();
  begin_round(next);
}

void SimWorker::begin_round(std::size_t tensor) {
  TensorRun& run = tensors_[tensor];
  if (renews(job_.plan, tensor, run.next_round) && !run.is_renewed) return renew(tensor);
  run.is_renewed = false;
  auto operation = std::make_unique<UnderWay>();
  operation->round = run.next_round++;
  operation->serial = ++serial_;
  operation->how = round_plan(job_.plan, tensor, operation->round);
  const bool differs = job_.plan.quarrel.rank == rank_ && job_.plan.quarrel.round == operation->round;
  operation->count = count_plan(job_.plan, tensor, operation->round);
  if (is_quarrel(tensor, operation->round) && differs) {
    if (operation->count < job_.plan.tensors[tensor].elements) {
      ++operation->count;
    } else {
      operation->how = operation->how == Operation::max ? Operation::min : Operation::max;
    }
  }
  operation->scale = scale_plan(job_.plan, tensor, operation->round, rank_);
  operation->memory = {job_.plan,        tensor, operation->round, operation->how,
                       operation->count, rank_,  plan_.in_place};
  const std::uint64_t bytes = job_.plan.tensors[tensor].bytes();
  job_.begun[tensor][rank_.value] = run.next_round;
  operation->least = job_.answered[tensor];
  const std::span<std::byte> out = operation->memory.output();
  auto done =
      once<Result<std::uint32_t>>([this, tensor, serial = operation->serial](Result<std::uint32_t> result) {
        on_done(tensor, serial, result);
      });
  // In that of its GPU now and then, as it comes.
  const bool is_on_gpu = plan_.has_gpu && job_.plan.tensors[tensor].mode != Mode::async &&
                         job_.plan.tensors[tensor].ranks.empty() && operation->scale.is_none() &&
                         operation->count == job_.plan.tensors[tensor].elements && random_.one_in(2);
  run.under_way = std::move(operation);
  const Status begun = [&] {
    const Calling calling(calling_);
    return begin(run.id, *run.under_way, is_on_gpu ? MemoryKind::cuda : MemoryKind::host, done);
  }();
  if (begun && bytes > 0 && random_.one_in(16)) {
    const Status second = engine_->begin(testing::push_pull_of(
        run.id, out, out, Operation::sum,
        [this](const Result<std::uint32_t>&) { fail("the callback of a refused operation ran"); }));
    if (second) fail("a second operation on a tensor that is under way was accepted");
  }
  if (begun) return;
  --callbacks_due_;
  const std::uint64_t round = std::exchange(run.under_way, nullptr)->round;
  if (!is_quarrel(tensor, round)) return give_up(begun.error());
  check_quarrel(begun.error());  // others were in this round before
  on_round_over(tensor);
}

Status SimWorker::begin(TensorId tensor, UnderWay& operation, MemoryKind memory, Request::Done done) {
  const RoundCall& how = operation.how;
  Request request = how.is_broadcast()
                        ? testing::broadcast_of(tensor, operation.memory.output(), how.root, std::move(done))
                        : testing::push_pull_of(tensor, operation.memory.input(), operation.memory.output(),
                                                how.operation, std::move(done));
  request.call = how;
  request.scale = operation.scale;
  request.in.memory = request.out.memory = memory;
  return engine_->begin(std::move(request));
}

void SimWorker::on_done(std::size_t tensor, std::uint64_t serial, const Result<std::uint32_t>& result) {
  TensorRun& run = tensors_[tensor];
  if (!run.under_way || run.under_way->serial != serial)
    return fail("a callback of an operation that is not under way");
  const std::unique_ptr<UnderWay> operation = std::move(run.under_way);
  // Others may be a round ahead of this rank, and quarrel before it has its answer.
  const bool may_quarrel = is_quarrel(tensor, operation->round) || is_quarrel(tensor, operation->round + 1);
  if (is_quarrel(tensor, operation->round) && result) {
    fail("a round succeeded on which the ranks do not agree");
  } else if (may_quarrel && !result && result.error().code == ErrorCode::configuration) {
    check_quarrel(result.error());
  } else if (!result && job_.shrunk.may_fail(tensor, operation->round, result.error())) {
    job_.shrunk.note_failed(tensor, operation->round, rank_);
  } else if (!result) {
    return give_up(result.error());
  } else if (!error_) {
    check(tensor, *operation, *result);
  }
  on_round_over(tensor);
}

void SimWorker::on_round_over(std::size_t tensor) {
  const TensorRun& run = tensors_[tensor];
  if (state_ != State::running) return;
  if (!job_.plan.free_running) {
    if (--unfinished_ == 0) return on_iteration_done();
    if (!unbegun_.empty()) go_on([this] { begin_next(); });
  } else if (run.next_round < job_.plan.rounds) {
    go_on([this, tensor] { begin_round(tensor); });
  } else if (--unfinished_ == 0) {
    close_later();
  }
}

void SimWorker::check(std::size_t tensor, const UnderWay& operation, std::uint32_t weight) {
  const TensorPlan& plan = job_.plan.tensors[tensor];
  const RoundCall& how = operation.how;
  const bool in_intact =
      operation.memory.is_input_intact(job_.plan, tensor, operation.round, how, operation.count, rank_);
  if (!in_intact) fail(fmt::format("the input of round {} of {} was changed", operation.round, plan.name));
  if (plan.mode == Mode::async) return check_async(tensor, operation);
  const bool only_gives = (!how.is_broadcast() && !how.takes(how.root == rank_)) ||
                          (how.kind == RoundKind::reduce_scatter && operation.memory.output().empty());
  if (only_gives) {
    if (plan.elements > 0 && weight != 1)
      fail(fmt::format("round {} of {}, in which this rank only gives, has weight {}", operation.round,
                       plan.name, weight));
    return;
  }
  if (job_.plan.shrinks) {
    const std::string wrong =
        job_.shrunk.check(tensor, operation.round, rank_, operation.memory.output(), weight);
    return wrong.empty() ? void() : fail(wrong);
  }
  // A copy sums one rank; a tensor without elements needs no sum.
  const bool one = how.is_copy() && plan.elements > 0;
  if (weight != (one ? 1 : job_.plan.sharing(tensor))) {
    fail(fmt::format("round {} of {} has weight {}", operation.round, plan.name, weight));
  }
  const std::size_t begin = how.kind == RoundKind::reduce_scatter ? plan.part_begin(rank_) : 0;
  const std::string wrong = job_.expected.compare(tensor, operation.round, begin, operation.memory.output());
  if (!wrong.empty()) fail(wrong);
}

void SimWorker::check_async(std::size_t tensor, const UnderWay& operation) {
  const TensorPlan& plan = job_.plan.tensors[tensor];
  if (operation.round == 0 && operation.how.root == rank_) return;
  const std::uint64_t per_partition = job_.plan.partition_bytes / size_of(plan.dtype);
  for (std::uint64_t p = 0; p * per_partition < plan.elements; ++p) {
    const std::uint64_t first = p * per_partition;
    const auto value = async_value(plan, operation.memory.output(), first);
    if (!value) return fail(value.error().message);
    for (std::uint64_t i = first; i < std::min(plan.elements, first + per_partition); ++i) {
      const auto other = async_value(plan, operation.memory.output(), i);
      if (!other || *other != *value)
        return fail(fmt::format("partition {} of {} mixes snapshots", p, plan.name));
    }
    for (std::uint32_t r = 0; r < job_.plan.world_size(); ++r) {
      const std::uint64_t deltas = async_digit(*value, Rank{r});
      std::uint64_t& seen = tensors_[tensor].seen[p][r];
      const std::uint64_t begun = job_.begun[tensor][r] - std::min<std::uint64_t>(1, job_.begun[tensor][r]);
      const bool lost = job_.shrunk.is_lost(Rank{r});
      const bool waits = !lost && !job_.has_closed[r];  // for one that has left nobody does
      const bool bounded = waits && operation.round > plan.staleness;
      std::uint64_t least = std::max(seen, bounded ? operation.round - plan.staleness : 0);
      if (!lost) least = std::max(least, operation.least[r]);
      if (r == rank_.value ? deltas != operation.round : deltas < least || deltas > begun) {
        return fail(
            fmt::format("round {} of {} (staleness {}) holds {} deltas of rank {}; seen before {}, begun {}",
                        operation.round, plan.name, plan.staleness, deltas, r, seen, begun));
      }
      seen = deltas;
    }
  }
  job_.answered[tensor][rank_.value] = operation.round;
}

void SimWorker::on_iteration_done() {
  if (++iteration_ == job_.plan.rounds) return close_later();
  if (!job_.plan.barriers) return go_on([this] { begin_iteration(); });
  const std::uint64_t entered = ++job_.barriers[rank_.value];
  const Calling calling(calling_);
  engine_->barrier(once<Status>([this, entered](const Status& status) {
    if (!status) return give_up(status.error());
    for (std::uint32_t r = 0; r < job_.plan.world_size(); ++r) {
      if (job_.barriers[r] < entered && !job_.shrunk.is_lost(Rank{r}))
        fail(fmt::format("barrier {} was over before rank {} came", entered - 1, r));
    }
    go_on([this] { begin_iteration(); });
  }));
}

void SimWorker::give_up(const Error& error) {
  if (error_ || state_ == State::closing || state_ == State::finished) return;
  error_ = error;
  error_at_ = node_.base_of(node_.loop().now());
  if (state_ == State::joining) return close();
  // What comes after the job has failed fails too, and does not hang. A call that lacks a rank which has left
  // is no failure of the job.
  const bool goes_on = error.message.find("has left the job") != std::string::npos;
  {
    const Calling calling(calling_);
    engine_->barrier(once<Status>([this, goes_on](const Status& status) {
      if (status && !goes_on) fail("a barrier succeeded after the job had failed");
    }));
  }
  close();
}

void SimWorker::close_later() {
  closes_after_calls_ = true;
  if (calls_ != nullptr && !calls_->is_over()) return;
  if (plan_.close_after == Duration(0)) return close();
  node_.loop().after(plan_.close_after, [this] { close(); });
}

void SimWorker::close() {
  if (state_ == State::closing) return;
  state_ = State::closing;
  job_.has_closed[rank_.value] = true;
  close_at_ = node_.loop().now();
  const Calling calling(calling_);
  engine_->close(kCloseTimeout, once<Status>([this](const Status& status) { on_closed(status); }));
}

void SimWorker::on_closed(const Status& status) {
  if (callbacks_due_ != 0) fail(fmt::format("close is done but {} callbacks have not come", callbacks_due_));
  if (!status && !error_) error_ = status.error(), error_at_ = node_.base_of(node_.loop().now());
  if (node_.loop().now() > close_at_ + kCloseTimeout + ClientEngine::kLeaveGrace + 1s)
    fail("close took too long");
  state_ = State::finished;
  for (TensorRun& run : tensors_)
    run.under_way.reset();
  node_.loop().post([this] { engine_.reset(); });
}

}  // namespace bps::sim
