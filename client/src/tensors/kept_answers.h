// What a tensor keeps of its last answers, with `retain`, for workers that may lack them when their server is
// lost.
//
// The last answer of each partition is kept until the next one is here, which proves that all have it: the
// loan itself if it was lent (copied into library memory when its lane goes), else library memory. Nothing is
// kept of a confirmed round (RoundCall): its givers are there while somebody lacks it. Of a round that has
// failed its error is kept, and no loan of the round before: its server needs that memory for the next one. A
// loan goes back when the round ends, with all others of the tensor.
//
// Of an async tensor no answer proves that anyone has the one before, so it is kept until the next one is
// here, whole, and with it what it holds, to be reported to the next owner (decision 0015).
//
// Pure. Owner: TensorState. Lives on: client loop. Limits: of async tensors 8 bytes for each partition and
// rank, twice; an error for each partition of the last round that failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "client/src/api/answer_view.h"
#include "client/src/tensors/answer_memory.h"
#include "client/src/tensors/partition.h"
#include "client/src/tensors/request.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class KeptAnswers {
 public:
  // All outlive it. `retain`: if not, nothing is kept.
  KeptAnswers(const TensorShape& shape, AnswerMemory& memory, bool retain)
      : shape_(shape), memory_(memory), retain_(retain) {}
  KeptAnswers(const KeptAnswers&) = delete;
  KeptAnswers& operator=(const KeptAnswers&) = delete;

  // Async: what an answer holds, which is coming.
  void on_version(Partition& partition, const Aggregate& answer);
  // The partition's answer is here, and with it the proof that all have the one before.
  void keep(Partition& partition, Round round, std::uint32_t weight);
  // The same, of a confirmed round.
  void keep_none(Partition& partition);
  // Its round has failed. `told`: by the server, of everybody's round.
  void fail(Partition& partition, Round round, const Error& error, bool told);
  // The answers of a round that has ended and is read in place.
  void keep_loans(std::shared_ptr<AnswerView> answers) {
    if (retain_) loans_ = std::move(answers);
  }
  // A later round has ended.
  void give_back_loans() { loans_.reset(); }
  // Before and after the lane is gone that a kept loan came over: copies that into library memory.
  void bring_home(Partition& partition);

  // Async: of the value that is kept; 0: none is.
  static std::uint64_t version(const Partition& partition);
  // What is kept of a round. `bytes` stay as they are while the partition is `lending`.
  struct Retention {
    std::span<const std::byte> bytes;  // with an error none
    std::uint32_t weight = 0;
    Error error;
    const ValueVersion* value = nullptr;  // async
  };
  Retention find(Partition& partition, const Fetch& fetch);

 private:
  Retention missing(const Partition& partition, const Fetch& fetch) const;

  const TensorShape& shape_;
  AnswerMemory& memory_;
  const bool retain_;
  std::shared_ptr<AnswerView> loans_;
  // By partition: of the last round, if it has failed.
  std::map<std::uint32_t, std::pair<Round, Error>> failures_;
};

}  // namespace bps
