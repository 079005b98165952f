// One worker process of a simulated job: the real ClientEngine on a node's loop, and a training loop around
// it that follows the job's plan and checks everything it is given.
//
// It checks: every sum, bit for bit; the weight; that no callback comes twice, late, or inside the call that
// asked for it; that inputs are as they were; that after the first error everything else fails too, and soon.
// Buffers are exactly as large as the tensor and freed as soon as the operation is done, so that the address
// sanitizer sees whoever touches them late.
//
// Owner: SimJob. Lives on: the node's loop, except for the constructor, start(), kill() and the state for
// checkers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/src/engine/client_engine.h"
#include "client/src/group/testing/fake_group.h"
#include "proto/auth/key.h"
#include "tests/sim/local_transport.h"
#include "tests/sim/node.h"
#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "tests/sim/round_memory.h"
#include "tests/sim/shrunk_answers.h"
#include "tests/sim/sim_calls.h"
#include "tests/sim/workload.h"

namespace bps::sim {

// What the workers of a job share: the plan, the right answers, and how far each one is.
struct JobContext {
  JobContext(JobPlan job_plan, SharedKey job_key, Report& run_report)
      : plan(std::move(job_plan)),
        key(std::move(job_key)),
        expected(plan),
        report(run_report),
        begun(plan.tensors.size(), std::vector<std::uint64_t>(plan.world_size(), 0)),
        answered(begun),
        barriers(plan.world_size(), 0),
        drops(begun),
        has_closed(plan.world_size(), false),
        shrunk(plan) {}

  const JobPlan plan;
  const SharedKey key;
  Expected expected;
  Report& report;
  std::vector<std::vector<std::uint64_t>> begun;     // by tensor and rank: rounds begun
  std::vector<std::vector<std::uint64_t>> answered;  // async, likewise: deltas that have an answer
  std::vector<std::uint64_t> barriers;               // by rank: entered
  std::vector<std::vector<std::uint64_t>> drops;     // by tensor and rank: how often it was dropped
  std::vector<bool> has_closed;                      // by rank: or is about to
  // By tensor and how often it had been dropped before, with a rank that says so; the same on all ranks.
  std::map<std::pair<std::size_t, std::uint64_t>, std::pair<TensorId, Rank>> ids;
  ShrunkAnswers shrunk;  // of a job that shrinks, instead of `expected`
};

class SimWorker {
 public:
  enum class State { idle, joining, declaring, running, closing, finished, killed };

  SimWorker(SimNode& node, Transport& transport, JobContext& job, Rank rank, std::string machine,
            Endpoint scheduler, Logger log, std::uint64_t seed);
  ~SimWorker();

  void start();
  // After SimNode::kill.
  void kill();

  SimNode& node() { return node_; }
  Rank rank() const { return rank_; }
  State state() const { return state_; }
  bool over() const { return state_ == State::finished || state_ == State::killed; }
  // The first error it saw, and when (on the common clock).
  const std::optional<Error>& error() const { return error_; }
  TimePoint error_at() const { return error_at_; }
  std::string describe() const;

 private:
  struct UnderWay;
  struct TensorRun {
    TensorId id;
    std::uint64_t next_round = 0;
    bool is_renewed = false;  // for that one
    std::unique_ptr<UnderWay> under_way;
    std::vector<std::vector<std::uint64_t>> seen;  // async: per partition and rank, deltas seen
  };

  void run();
  std::unique_ptr<LocalGroup> make_group(const DataPlane::GroupContext& context, LocalGroup::Owner& owner);
  Status begin(TensorId tensor, UnderWay& operation, MemoryKind memory, Request::Done done);
  void on_joined(const Status& status);
  void declare();
  void declare(const std::vector<std::size_t>& which);
  bool declares_late() const;
  void on_declared(const std::vector<std::size_t>& which, Result<std::vector<TensorId>> ids);
  void declare_quarrel(bool again);
  void on_quarrel_declared(bool again, std::uint64_t elements, const Result<std::vector<TensorId>>& ids);
  void on_quarrel_done(bool again, TensorId tensor, const Result<std::uint32_t>& result);
  Status drop(TensorId tensor, std::function<void()> check_ended);
  void renew(std::size_t tensor);
  void note_id(std::size_t tensor);
  void check_quarrel(const Error& error);
  bool is_quarrel(std::size_t tensor, std::uint64_t round) const;
  void on_round_over(std::size_t tensor);
  void make_calls();
  void train();
  void begin_iteration();
  void begin_next();
  void begin_round(std::size_t tensor);
  void on_done(std::size_t tensor, std::uint64_t serial, const Result<std::uint32_t>& result);
  void check(std::size_t tensor, const UnderWay& operation, std::uint32_t weight);
  void check_async(std::size_t tensor, const UnderWay& operation);
  void on_iteration_done();
  void go_on(std::function<void()> next);
  void give_up(const Error& error);
  void close_later();
  void close();
  void on_closed(const Status& status);
  void fail(const std::string& what);
  // Wraps a callback: counts it, and finds those that come twice, too late or too early.
  template <class Result>
  std::function<void(Result)> once(std::type_identity_t<std::function<void(Result)>> callback);
  // No callback runs inside a call.
  struct Calling {
    explicit Calling(bool& flag) : is_on(flag) { is_on = true; }
    ~Calling() { is_on = false; }
    bool& is_on;
  };
  // Begins a call on a group, whose callback is wrapped so: after an error it does not come.
  template <class Call>
  Status started(Call call) {
    if (state_ != State::running) return make_error(ErrorCode::closed, "it closes");
    const Calling calling(calling_);
    const Status begun = call();
    if (!begun) --callbacks_due_;
    return begun;
  }

  SimNode& node_;
  Transport& transport_;
  LocalTransport local_transport_;
  JobContext& job_;
  const WorkerPlan& plan_;
  Rank rank_;
  std::string machine_;  // for placement
  Endpoint scheduler_;
  Logger log_;
  Random random_;
  State state_ = State::idle;
  std::unique_ptr<FakeHost> gpu_;
  std::unique_ptr<ClientEngine> engine_;
  std::unique_ptr<SimCalls> calls_;
  bool closes_after_calls_ = false;
  std::vector<TensorRun> tensors_;
  std::vector<std::size_t> shared_;  // of these, those that this rank shares
  std::vector<std::byte> quarrel_data_;
  std::size_t undeclared_ = 0;
  std::uint64_t iteration_ = 0;
  std::vector<std::size_t> unbegun_;  // tensors of this iteration, the next one last
  std::size_t unfinished_ = 0;        // tensors of this iteration, or tensors with rounds left
  std::uint64_t serial_ = 0;
  std::size_t callbacks_due_ = 0;
  bool calling_ = false;
  std::optional<Error> error_;
  TimePoint error_at_;
  TimePoint close_at_;
};

}  // namespace bps::sim
