// One queue pair as a byte stream: SENDs out of a ring of buffers into buffers that the peer has posted,
// never more than it has; and READs of the peer's memory beside it.
//
// SENDs are signalled one in kSignalEvery: a completion says that all before it are done, too. READs are all
// signalled, because each is waited for. The first bad completion, and the end that the peer or the device
// makes, is the end of the channel: what has come can still be read, then read() says so.
//
// Owner: a stream, on its loop; destroyed before the block that it uses. Steady state allocates nothing.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "proto/transport/rdma/credit_window.h"
#include "proto/transport/rdma/device/verbs.h"
#include "proto/transport/rdma/rdma_memory.h"
#include "proto/transport/rdma/rdma_options.h"
#include "proto/transport/rdma/rdma_records.h"
#include "proto/transport/stream/ring_queue.h"

namespace bps {

class RdmaChannel {
 public:
  static constexpr std::uint32_t kSignalEvery = 16;

  // Bytes of rings that it needs in a block.
  static std::size_t ring_bytes(const RdmaOptions& options) {
    return std::size_t{2} * options.buffers * options.buffer_bytes;
  }

  RdmaChannel(std::unique_ptr<VerbsLink> link, const RdmaOptions& options, RdmaCounters& counters)
      : link_(std::move(link)), options_(&options), counters_(&counters) {}

  VerbsLink& link() { return *link_; }

  // Makes the queues and posts the receive buffers.
  Status prepare(std::shared_ptr<RdmaBlock> block);
  RdmaHello hello() const;
  // The peer's. From here on the peer can be sent to and read from, on the accepting end only once
  // established() has been called.
  void on_hello(const RdmaHello& peer);
  void established() { established_ = true; }
  bool is_established() const { return established_; }

  // News of the link, after it is made: the end, or established.
  void take_news();

  // As the system calls: bytes, 0 at the end, or -1 with EAGAIN; after that the descriptor tells of more.
  // When the channel has failed, -1 with ECONNRESET, and failure() says why.
  ssize_t read(std::span<const iovec> pieces);
  // Bytes taken, or -1 with EAGAIN: may_write() will be true again when something has come.
  ssize_t write(std::span<const iovec> pieces);
  bool may_write() const;
  // No bytes after this; may_write() must be true.
  void write_end() { send({}, /*end=*/true); }

  // Something has been taken off the queue that read() has not given yet.
  bool has_received() const { return !received_.empty(); }

  // Of what has been lent to the peer. It may not READ anything before.
  void allow_reads();

  // READs, of which `max_reads()` may be under way.
  std::uint32_t max_reads() const { return max_reads_; }
  void post_read(std::byte* to, std::uint32_t bytes, std::uint64_t remote, std::uint32_t remote_key);
  // READs that are done since the last call; they are in the order in which they were posted.
  std::uint32_t reads_done() const { return reads_done_; }
  std::uint32_t take_reads_done() { return std::exchange(reads_done_, 0); }

  // Takes completions. True if there were any.
  bool poll();
  // The descriptor tells of what comes from now on. False if something has come meanwhile: look again.
  bool rest();
  // Tells the peer of free buffers if it may wait for that.
  void tell_credit();
  // Once a probe_interval. Sends something if nothing was sent since the last call: whether the peer still
  // answers nobody else asks. Who waits for the device, or for the peer's buffers, does not do so for ever:
  // silent_probes.
  void probe();

  bool has_failed() const { return failed_; }
  // The peer, the device or a bad completion has ended it.
  bool is_over() const { return failed_ || ended_; }
  // Empty: the peer has closed.
  const std::string& failure() const { return failure_; }
  // That is why.
  bool peer_broke_a_rule() const { return peer_broke_a_rule_; }

 private:
  struct Received {
    std::uint32_t buffer = 0;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };

  std::span<std::byte> receive_buffer(std::uint32_t index) const;
  std::span<std::byte> send_buffer(std::uint64_t sequence) const;
  void send(std::span<const iovec> pieces, bool end);
  std::uint32_t post(WorkRequest request);
  void on_completion(const WorkCompletion& completion);
  void count_failure(std::uint32_t status);
  void watch_silence();
  void on_received(std::uint32_t buffer, std::uint32_t bytes);
  void free_buffer(std::uint32_t buffer);
  std::string removed() const;
  void fail(std::string why);
  void refuse(std::string rule);

  std::unique_ptr<VerbsLink> link_;
  const RdmaOptions* options_;
  RdmaCounters* counters_;
  std::shared_ptr<RdmaBlock> block_;
  bool established_ = false;
  bool armed_ = false;
  bool may_be_read_ = false;
  std::uint32_t buffers_ = 0;  // posted, and as many for SENDs; as many as options and device allow
  CreditWindow window_;
  std::uint32_t peer_buffer_bytes_ = 0;
  std::uint32_t max_reads_ = 0;

  RingQueue<Received> received_;
  // SENDs by number; a READ carries the number of SENDs before it.
  std::uint64_t sends_ = 0;
  std::uint64_t sends_done_ = 0;
  std::uint32_t reads_done_ = 0;

  // Which nobody but probe() misses when they do not come.
  std::uint32_t unanswered_ = 0;  // signalled requests under way
  std::uint64_t sends_at_probe_ = 0;
  bool answered_ = false;  // one of them since the last probe
  bool heard_ = false;     // anything of the peer since then
  // In a row, in which it was waited for:
  std::uint32_t without_device_ = 0;
  std::uint32_t without_peer_ = 0;

  bool ended_ = false;   // no more bytes come
  bool failed_ = false;  // nothing works any more
  std::string failure_;
  bool peer_broke_a_rule_ = false;
};

}  // namespace bps
