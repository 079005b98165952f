// Frames that have come and cannot be delivered yet, because payloads before them, or their own, are still
// being read from the peer. Payloads are read ahead, several at a time, into a slab, so that the link does
// not idle for a round trip between two of them; they are delivered one after another, in the order of the
// frames.
//
//   add...() -> next_read() -> on_reads_done() -> front().is_whole -> pop()
//
// A payload for which the slab has no piece, because it is too large or the handler holds much of the slab,
// comes to the front and is read there piece by piece: begin_copy() says where it goes.
//
// Also the lender of payloads that the handler reads in the slab; those may outlive everything else. Pure.
// Bounds: kMaxFrames frames; handlers are lent at most half of the slab, so that reading always goes on.
//
// Owner: a stream, on its loop. Steady state allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "proto/transport/lending/loan_records.h"
#include "proto/transport/rdma/rdma_memory.h"
#include "proto/transport/rdma/rdma_slab.h"
#include "proto/transport/stream/ring_queue.h"
#include "proto/transport/transport.h"

namespace bps {

class RdmaInbox final : public LentPayload::Lender, public std::enable_shared_from_this<RdmaInbox> {
 public:
  static constexpr std::size_t kMaxFrames = 64;

  struct Read {
    std::byte* to = nullptr;
    std::uint32_t bytes = 0;
    std::uint64_t remote = 0;
    std::uint32_t remote_key = 0;
  };
  struct Frame {
    Message message;
    std::uint64_t bytes = 0;    // of the payload
    LoanReference reference;    // of one that is read
    RdmaSlab::Piece piece;      // where it is, or will be
    std::uint64_t asked = 0;    // of it
    std::uint64_t arrived = 0;  // of it
    bool is_read = false;       // by READ; else it came with its header
    bool copying = false;       // piece by piece, to...
    std::byte* destination = nullptr;
    bool is_whole() const { return arrived == bytes; }
  };

  // `block` is the memory that is read into. Told when a lent payload has been given back.
  RdmaInbox(std::shared_ptr<const RdmaBlock> block, std::span<std::byte> slab, std::size_t read_bytes);

  void set_owner(std::function<void()> on_given_back) { on_given_back_ = std::move(on_given_back); }
  void set_max_reads(std::uint32_t reads) { max_reads_ = reads; }
  // Forgets everything but what is lent. Nobody may read into the slab any more.
  void close();

  bool empty() const { return frames_.empty(); }
  bool full() const { return frames_.size() >= kMaxFrames; }
  Frame& front() { return frames_.front(); }
  bool is_reading() const { return !reads_.empty(); }

  // Each takes the message.
  void add(Message& message);
  void add_read(Message& message, std::uint64_t bytes, const LoanReference& reference);
  // A payload that comes with its header behind others: first where it goes (null: no room), then the frame.
  std::byte* reserve(std::size_t bytes);
  void add_reserved(Message& message);

  // The next READ to post, if one may be: room and order permitting.
  std::optional<Read> next_read();
  void on_reads_done(std::uint32_t count);

  // The front is too large for the slab, or finds no room.
  bool front_needs_copy() const;
  // Null: nobody wants it, and it is whole.
  void begin_copy(std::byte* destination);

  // Of the front, which is whole and in the slab: nothing if the handler holds too much already.
  std::optional<LentPayload> lend_front();
  // The front is delivered, or lent.
  void pop();

  // What the peer need not keep any more. Then clear.
  std::span<const std::uint64_t> returned() const { return returned_; }
  void clear_returned() { returned_.clear(); }

  void give_back(std::uint64_t token) override;
  bool intact() const override { return true; }  // it lies here

 private:
  struct Pending {
    std::uint64_t frame = 0;  // its number
    RdmaSlab::Piece piece;    // of a copying one
    std::uint32_t bytes = 0;
  };

  Frame& push(Message& message);
  std::optional<Read> next_read(Frame& frame, std::uint64_t number);
  void finish(Frame& frame);

  const std::shared_ptr<const RdmaBlock> block_;
  const std::size_t slab_bytes_;
  const std::size_t read_bytes_;
  std::uint32_t max_reads_ = 0;
  std::function<void()> on_given_back_;
  RdmaSlab slab_;
  RingQueue<Frame> frames_;
  std::uint64_t popped_ = 0;  // the number of the front
  RingQueue<Pending> reads_;  // under way
  RdmaSlab::Piece reserved_;
  std::vector<std::uint64_t> returned_;

  std::vector<RdmaSlab::Piece> lent_;  // by token
  std::vector<std::uint32_t> free_tokens_;
  std::size_t lent_bytes_ = 0;
};

}  // namespace bps
