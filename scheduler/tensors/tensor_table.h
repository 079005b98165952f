// Declares of many ranks made one. The first Declare of a name fixes the tensor and places its partitions;
// the servers that own some confirm it, and then every rank that declared the name gets the answer. Later
// declares of the name must be equal.
//
// A difference fails the tensor for good: this and the first declare of every other rank gets an error that
// names both, all workers are told and the servers drop it. So does a tensor on which ranks call different
// things, which a worker hears from a server, and says. Who gets the error instead of the tensor has dropped
// it with that (TensorDrops). A refusal of a server (memory) fails the declares that wait for it, and the
// slices elsewhere are dropped; the tensor keeps its numbers and its placement, and the next declare tries
// again. Tensors that one Declare brings are confirmed or refused together: a batch.
//
// Owner: TensorRelay, of a job that has opened. Pure: what is to be sent is taken with take_output. Limits:
// those of the catalog, kMaxPartitionsPerDeclare, and kMaxPendingDeclares that one worker may have under way.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "proto/base/result.h"
#include "proto/wire/messages.h"
#include "scheduler/tensors/tensor_catalog.h"

namespace bps {

class TensorTable {
 public:
  using Lane = TensorCatalog::Lane;
  using Config = TensorCatalog::Config;
  using Slices = TensorCatalog::Slices;
  using Relocation = TensorCatalog::Relocation;
  struct Drop {
    ServerId server;
    DropTensors message;
  };
  struct Answer {
    Rank rank;
    Declared message;
    std::set<TensorId> first = {};  // of these, those that the rank did not have before
  };
  struct Failure {  // for every worker
    TensorFailed message;
  };
  struct GivenUp {  // it has got an error, and nothing to drop
    Rank rank;
    TensorId tensor;
  };
  using Output = std::variant<Slices, Drop, Answer, Failure, GivenUp>;

  static constexpr std::size_t kMaxPendingDeclares = 4096;

  explicit TensorTable(Config config) : catalog_(std::move(config)) {}

  // What there is of tensors. A run that is restored, or whose lanes change, changes it here.
  TensorCatalog& catalog() { return catalog_; }
  const TensorCatalog& catalog() const { return catalog_; }

  // Names a tensor that is not here yet.
  bool has_new(Rank rank, const Declare& declare) const;
  // Fails only if the worker has too many declares under way.
  Status declare(Rank rank, const Declare& declare);
  // A worker that had the answer cannot hold the tensor, or knows that the ranks do not call the same on it:
  // it fails for all. Said again: nothing.
  Status failed_at(Rank rank, TensorId id, const Error& error);
  void acked(std::uint64_t batch, ServerId server, const Error& error);
  // The rank wants no answers any more, or asks again.
  void leave(Rank rank);
  // It says what it has been given: no more than that.
  void note_given(Rank rank, const std::map<TensorId, KnownTensor>& tensors);
  // An answer that was kept back: what it says is brought up to date.
  void refresh(Answer& answer);

  // As of the catalog; what is just being declared is declared at the new owners, too. Acks of a server that
  // is gone do not come: `gone`. The slices that are left to the caller are of no batch.
  Relocation relocate(std::vector<Lane> lanes, std::optional<ServerId> gone,
                      const std::set<PartitionId>& refused = {});
  // Nothing is asked of the server any more: what it has not acknowledged will not be.
  void release(ServerId server);

  std::vector<Output> take_output() { return std::exchange(output_, {}); }

  // ---- for queries ----
  // What servers have not confirmed yet, the oldest first.
  struct Unconfirmed {
    std::uint64_t number = 0;
    std::vector<TensorId> tensors;
    std::vector<ServerId> waiting;
    std::size_t servers = 0;  // asked
  };
  std::vector<Unconfirmed> unconfirmed() const;
  std::uint64_t first_unconfirmed() const { return batches_.empty() ? 0 : batches_.begin()->first; }
  std::size_t pending() const { return requests_.size() + batches_.size(); }

 private:
  using State = TensorCatalog::State;
  using Tensor = TensorCatalog::Tensor;
  struct Batch {
    std::vector<TensorId> tensors;
    std::map<ServerId, std::size_t> waiting;  // Acks
    std::set<ServerId> accepted;
    Error error;
    std::vector<std::uint64_t> requests;
  };
  struct Item {
    std::optional<TensorId> tensor;
    Error error;          // if none
    bool had_it = false;  // the rank, before
  };
  struct Request {
    Rank rank;
    std::uint64_t number = 0;
    std::vector<Item> items;
  };

  Item resolve(Rank rank, const TensorDeclaration& declaration, std::uint64_t& partitions, Batch& batch);
  void start(std::uint64_t number, Batch batch);
  void finish(std::uint64_t number);
  void answer_or_wait(std::uint64_t key);
  void give_up_what_failed(const Answer& answer);
  void fail(TensorId id, Rank rank, const TensorDeclaration& other);
  void fail(TensorId id, const Error& error);
  void drop(const std::map<ServerId, std::vector<TensorId>>& tensors);

  TensorCatalog catalog_;
  std::uint64_t last_number_ = 0;  // of requests and batches
  std::map<std::uint64_t, Batch> batches_;
  std::map<std::uint64_t, Request> requests_;
  std::map<Rank, std::size_t> pending_by_rank_;
  std::vector<Output> output_;
};

}  // namespace bps
