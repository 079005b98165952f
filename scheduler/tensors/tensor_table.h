// The tensors of a running job. The first Declare of a name fixes the tensor and places its partitions; the
// servers that own some confirm, and then everyone who asked is told. Later declares of the name must be
// equal.
//
// A difference fails the tensor for good: this and every later declare of the name gets an error that names
// both, all workers are told and the servers drop it. A refusal of a server (memory) fails the declares that
// wait for it, and the slices elsewhere are dropped; the tensor keeps its numbers and its placement, and the
// next declare tries again. Tensors that one Declare brings are confirmed or refused together.
//
// Owner: Job. Pure: what is to be sent is taken with take_output. Limits: those of Config,
// kMaxPartitionsPerDeclare, and kMaxPendingDeclares that one worker may have under way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/limits.h"
#include "proto/wire/messages.h"
#include "scheduler/placement/partition_assigner.h"
#include "scheduler/report.h"

namespace bps {

class TensorTable {
 public:
  struct Lane {
    ServerId server;
    std::uint32_t shard = 0;
    double share = 0;      // of the job's bytes
    bool retired = false;  // owns nothing any more
  };
  struct Config {
    JobRun run;
    std::string job;
    std::uint64_t partition_bytes = 0;
    std::vector<Lane> lanes;
    std::function<std::string(Rank)> name_of_rank;
    std::uint32_t max_tensors = kMaxTensorsPerJob;
    std::uint32_t max_partitions = kMaxPartitionsPerJob;
  };

  struct Slices {
    ServerId server;
    std::uint64_t batch = 0;  // for acked()
    DeclareSlices message;    // its request number and epoch are the caller's
  };
  struct Drop {
    ServerId server;
    DropTensors message;
  };
  struct Answer {
    Rank rank;
    Declared message;
  };
  struct Failure {  // for every worker
    TensorFailed message;
  };
  using Output = std::variant<Slices, Drop, Answer, Failure>;

  static constexpr std::size_t kMaxPendingDeclares = 4096;

  explicit TensorTable(Config config);

  // Partitions that workers know of and that have another owner now.
  struct Relocation {
    std::vector<PartitionMove> moves;
    std::map<PartitionId, LaneIndex> before;  // of these, the owners so far
    std::map<PartitionId, TensorId> touched;  // these, and those that are just being declared
    std::vector<Slices> slices;               // for their new owners, `moved`; not of a batch
  };
  // Lanes come and go: `lanes` are those known so far, with new shares, and perhaps more. What retired ones
  // own goes to others, and what is `refused`, whose lanes have no share; what is just being declared is
  // declared there, too. Acks of a server that is gone do not come: `gone`.
  Relocation relocate(std::vector<Lane> lanes, std::optional<ServerId> gone,
                      const std::set<PartitionId>& refused = {});

  // What was relocated goes back to the owners it had `before`, which are not retired any more. Gives those
  // of its tensors that have failed since.
  std::vector<TensorId> call_off(const std::map<PartitionId, LaneIndex>& before, std::vector<Lane> lanes);

  // New shares for lanes that are known; none of them is retired by this.
  void set_lanes(std::vector<Lane> lanes);

  // Of the tensors that workers know of, the first one that the server has a part of; of those tensors, the
  // first asynchronous one if there is one.
  const TensorDeclaration* held_by(ServerId server) const;

  // Nothing is asked of the server any more: what it has not acknowledged will not be.
  void release(ServerId server);

  // ---- after a restart, before anything else ----
  // A tensor that workers know, with its owners; `error`: it has failed.
  Status restore(const KnownTensor& known, Rank reporter);
  // Numbers up to these are not to be used for new ones.
  void skip(TensorId tensor, PartitionId partition);
  void restored();
  // A server holds this part of a tensor that workers know. False: they do not.
  bool is_known(const TensorSlices& held) const;
  // Another lane has it; relocate() follows.
  void give(TensorId tensor, PartitionId partition, LaneIndex lane);
  LaneIndex owner_of(TensorId tensor, PartitionId partition) const {
    return tensors_[tensor.value].owners[partition.value - tensors_[tensor.value].first.value];
  }

  // ---- for a worker that was away ----
  // A worker's numbers of a tensor are those that it has here.
  bool matches(const KnownTensor& known) const;
  // Where it is to go that knows only what it reports; of tensors that it does not know, too, or not.
  std::vector<PartitionMove> news_for(const WorkerReport& report, bool only_known) const;
  // What has failed, and it does not say so; declared by it or not.
  std::vector<TensorFailed> failures_for(const WorkerReport& report) const;

  // The server has partitions that workers know of, besides those that are `known` to be somewhere else.
  bool has_ready_beside(ServerId server, const std::map<PartitionId, LaneIndex>& known) const;
  // An asynchronous tensor that workers know of, if one is among these.
  const TensorDeclaration* async_among(const std::map<PartitionId, TensorId>& partitions) const;

  // Of what a server says that it holds, what it is not to have.
  DropTensors unwanted(ServerId server, const RunReport& report) const;

  // An answer that was kept back: what it says is brought up to date.
  void refresh(Declared& declared) const;

  // Names a tensor that is not here yet.
  bool has_new(const Declare& declare) const;
  // Fails only if the worker has too many declares under way.
  Status declare(Rank rank, const Declare& declare);
  // A worker that had the answer cannot hold the tensor: it fails for all. Said again: nothing.
  Status failed_at(Rank rank, TensorId id, const Error& error);
  void acked(std::uint64_t batch, ServerId server, const Error& error);
  // The rank wants no answers any more, or asks again.
  void leave(Rank rank);

  std::vector<Output> take_output() { return std::exchange(output_, {}); }

  // ---- for queries: tensor_table_waits.cc ----
  std::optional<TensorId> find(const std::string& name) const;
  // Of one that find() or a server names; nullptr: there is none.
  const TensorDeclaration* declaration_of(TensorId id) const;
  // What servers have not confirmed yet, the oldest first.
  struct Unconfirmed {
    std::uint64_t number = 0;
    std::vector<TensorId> tensors;
    std::vector<ServerId> waiting;
    std::size_t servers = 0;  // asked
  };
  std::vector<Unconfirmed> unconfirmed() const;
  std::uint64_t first_unconfirmed() const { return batches_.empty() ? 0 : batches_.begin()->first; }
  std::uint64_t bytes() const;  // of all tensors
  // Partitions that workers know of, and bytes that are placed.
  std::uint32_t partitions_at(ServerId server) const;
  std::uint64_t bytes_at(ServerId server) const;

  std::uint64_t partition_bytes() const { return config_.partition_bytes; }
  std::size_t size() const { return tensors_.size(); }
  std::size_t pending() const { return requests_.size() + batches_.size(); }
  const PartitionAssigner& assigner() const { return assigner_; }

 private:
  enum class State : std::uint8_t { declaring, ready, refused, failed };
  struct Tensor {
    TensorDeclaration declaration;
    Rank declared_by;
    State state = State::declaring;
    Error error;  // refused, failed
    PartitionId first;
    std::vector<LaneIndex> owners;
    std::uint64_t batch = 0;  // declaring
  };
  struct Batch {
    std::vector<TensorId> tensors;
    std::map<ServerId, std::size_t> waiting;  // Acks
    std::set<ServerId> accepted;
    Error error;
    std::vector<std::uint64_t> requests;
  };
  struct Item {
    std::optional<TensorId> tensor;
    Error error;  // if none
  };
  struct Request {
    Rank rank;
    std::uint64_t number = 0;
    std::vector<Item> items;
  };

  static std::vector<double> shares_of(const std::vector<Lane>& lanes);
  static bool alike(const TensorDeclaration& a, const TensorDeclaration& b);
  Item resolve(Rank rank, const TensorDeclaration& declaration, std::uint64_t& partitions, Batch& batch);
  TensorId create(Rank rank, const TensorDeclaration& declaration, std::uint64_t partitions);
  void fail(TensorId id, Rank rank, const TensorDeclaration& other);
  void fail(TensorId id, const Error& error);
  void start(std::uint64_t number, Batch batch);
  PartitionSlice slice_of(const Tensor& tensor, std::uint32_t index) const;
  TensorSlices slices_of(TensorId id) const;  // without partitions
  void finish(std::uint64_t number);
  void answer_or_wait(std::uint64_t key);
  std::set<ServerId> servers_of(const Tensor& tensor) const;
  void drop(const std::map<ServerId, std::vector<TensorId>>& tensors);
  std::uint64_t bytes_of(const TensorDeclaration& declaration) const {
    return declaration.elements * size_of(declaration.dtype);
  }
  std::uint64_t partitions_of(const TensorDeclaration& declaration) const;

  Config config_;
  PartitionAssigner assigner_;
  std::vector<Tensor> tensors_;  // by TensorId
  std::unordered_map<std::string, TensorId> by_name_;
  std::uint64_t next_partition_ = 0;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Batch> batches_;
  std::map<std::uint64_t, Request> requests_;
  std::map<Rank, std::size_t> pending_by_rank_;
  std::vector<Output> output_;
};

}  // namespace bps
