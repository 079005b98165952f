// What a GPU does for its local group: sums among the host's GPUs, copies to the host and back, and hands
// answers on.
//
//   input --NCCL--> ring on the device --copy--> sum         answer --copy--> the owner's slice --NCCL--> all
//   slices
//         \________ alone on the host: copy _____/
//
// The problem: collectives of NCCL must begin in one order at all members and wait for each other on the
// device; copies must not wait for any of that but what they carry; memory is in use until the device says
// otherwise, also when something has gone wrong; and the driver tells nobody when something is done. So there
// are three streams: collectives, copies to the host, copies to the device. CudaBatches begins collectives
// and copies their sums out, CudaStaging copies answers in, NcclJoin makes the communicator; this one opens
// the streams, polls them, and ends it all. One poller asks for the first event of each stream every
// poll_interval while something is open, more seldom where that is not work of ours, and sleeps otherwise.
//
// Owner: CudaGroup, by shared_ptr, and its own timers until finish() is done. Lives on: the CUDA thread, with
// all its calls and reports. Limits: ring_bytes on the device, those of CudaCopier. Failure: is reported,
// once, not after abort(); what has not begun ends at once, the rest when the streams are idle or their
// context is lost. Calls that may not return are the last that a failure makes, and the lease says which it
// is in: of some their name, of all others of a turn that they are the driver's.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "client/src/gpu/cuda_batches.h"
#include "client/src/gpu/cuda_copier.h"
#include "client/src/gpu/cuda_orders.h"
#include "client/src/gpu/cuda_staging.h"
#include "client/src/gpu/driver/cuda_lease.h"
#include "client/src/gpu/driver/nvtx.h"
#include "client/src/gpu/driver/pinned_memory.h"
#include "client/src/gpu/nccl/nccl_join.h"
#include "client/src/gpu/nccl/nccl_link.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class CudaPipeline : public std::enable_shared_from_this<CudaPipeline> {
 public:
  struct Options {
    std::uint32_t size = 1;
    std::uint32_t self = 0;
    std::size_t ring_bytes = 32 << 20;
    Duration poll_interval{std::chrono::microseconds(20)};
    // While there is nothing but streams of the program to wait for, which compute for long; and before and
    // after the group's life.
    Duration caller_interval{std::chrono::microseconds(200)};
    Duration finish_timeout{std::chrono::seconds(2)};  // for the other members
    Nvtx nvtx = {};
    Logger log{"cuda"};
    std::shared_ptr<CudaLease> lease = std::make_shared<CudaLease>();
  };

  // `nccl`: null in a group of one.
  CudaPipeline(EventLoop& loop, std::shared_ptr<CudaDevice> device, std::shared_ptr<NcclApi> nccl,
               std::shared_ptr<PinnedMemory> memory, Options options, std::unique_ptr<CudaReports> reports);
  ~CudaPipeline();
  CudaPipeline(const CudaPipeline&) = delete;
  CudaPipeline& operator=(const CudaPipeline&) = delete;

  // `id`: in a group of more than one.
  void begin(const std::optional<NcclId>& id, CudaThen done);
  const std::shared_ptr<CudaLease>& lease() const { return options_.lease; }
  // Leaves them empty.
  void take(CudaOrders& orders);
  // Memory is to be registered, or given up. False: that is over here.
  bool look_at_memory();
  void abort(const Error& error);
  // No call follows, and nothing is reported any more.
  void finish();

 private:
  enum class Life : std::uint8_t { fresh, beginning, running, broken, drained, finalizing, finished };

  Status open();
  void add(CudaOrders::Caller caller);
  void turn();
  Status go_on();
  void show_nccl() const;
  Status poll_callers();
  Status work_on_memory();
  // How it ends.
  void fail(const Error& error, bool is_report = true);
  void abort_nccl();
  void drain();
  bool is_idle();
  void end_all();
  void go_on_finishing();
  void close();
  void arm();
  bool is_active() const;
  bool is_working() const;
  // Each task of the thread's that may call the driver has one.
  CudaLease::Within in_driver() const { return {*options_.lease, "a call of NVIDIA's driver"}; }

  EventLoop& loop_;
  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<PinnedMemory> memory_;
  const Options options_;
  const std::unique_ptr<CudaReports> reports_;
  const std::shared_ptr<CudaEventPool> events_;
  CudaQueue collectives_;
  CudaCopier to_host_;
  CudaCopier to_device_;
  std::optional<NcclLink> nccl_;
  std::optional<NcclJoin> join_;
  CudaBatches batches_;
  CudaStaging staging_;

  Life life_ = Life::fresh;
  CudaThen begun_;
  std::map<CallerEvent::Stream, std::deque<CudaOrders::Caller>> callers_;  // as they were recorded
  std::optional<Error> error_;
  bool is_finishing_ = false;
  TimePoint finish_by_;
  // In a row: once may be a mistake.
  static constexpr std::uint32_t kLostAfter = 3;
  std::uint32_t bad_queries_ = 0;
  std::uint32_t bad_contexts_ = 0;
  std::optional<TimePoint> armed_for_;
};

}  // namespace bps
