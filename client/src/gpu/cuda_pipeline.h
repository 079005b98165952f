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
// are three streams: collectives, copies to the host, copies to the device. Collectives begin in the order of
// their numbers, those of a batch together; what they bring lands in a ring, for whose room they wait here
// (copies out of it wait for nobody, so it comes). One poller asks for the first event of each stream every
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
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/src/gpu/collective_plan.h"
#include "client/src/gpu/cuda_copier.h"
#include "client/src/gpu/cuda_orders.h"
#include "client/src/gpu/driver/cuda_lease.h"
#include "client/src/gpu/driver/nvtx.h"
#include "client/src/gpu/driver/pinned_memory.h"
#include "client/src/gpu/nccl/nccl_link.h"
#include "client/src/gpu/nccl/nccl_warm_up.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class CudaPipeline : public std::enable_shared_from_this<CudaPipeline> {
 public:
  class Reports {
   public:
    virtual ~Reports() = default;
    virtual void add(CudaNews::Item item) = 0;
    virtual void flush() = 0;  // at the end of each turn, and before what may take long
  };
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
               std::shared_ptr<PinnedMemory> memory, Options options, std::unique_ptr<Reports> reports);
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
  struct Item {  // a collective
    bool is_spread = false;
    Collective collective;
    std::size_t first = 0;  // piece
    std::size_t count = 0;
    std::uint32_t left = 0;     // of its portions: calls of NCCL, and copies, that are not done
    std::uint32_t unbegun = 0;  // of its portions with calls
    bool is_over = false;
    std::string label;
    Nvtx::Range range;
  };
  struct Batch {
    std::vector<Item> items;
    std::vector<LocalPiece> pieces;
    std::vector<CollectivePortion> portions;
    std::vector<std::size_t> parts;  // outputs that the sum of each piece waits for
    bool is_begun = false;
    std::size_t next = 0;  // portion
    enum class Step : std::uint8_t { wait, load, launch } step = Step::wait;
    std::optional<std::size_t> ring;  // of the next portion
    bool is_loading = false;
    std::size_t open = 0;  // items
  };
  using BatchPtr = std::shared_ptr<Batch>;
  // A portion that has begun.
  struct Flight {
    BatchPtr batch;
    const CollectivePortion& portion;
    std::optional<std::size_t> ring;
    std::uint32_t left = 0;  // of its calls and its copies
  };
  using FlightPtr = std::shared_ptr<Flight>;

  Status open();
  Result<bool> is_joined();
  Result<bool> is_warm();
  Nvtx::Range range(const char* stage, const std::string& label) const;
  void stage(std::vector<CudaOrders::Staged>& answers);
  void stage(std::span<CudaOrders::Staged> answers);
  void add_batches(CudaOrders& orders);
  void add(CudaOrders::Caller caller);
  void add(BatchPtr batch);
  void turn();
  Status go_on();
  void show_nccl() const;
  Status poll_callers();
  Status work_on_memory();
  // cuda_pipeline_works.cc. False: it has to wait.
  Status begin_batches();
  void begin(const BatchPtr& batch);
  Result<bool> begin_portion(const BatchPtr& batch);
  Status load(const BatchPtr& batch, const CollectivePortion& portion);
  std::vector<NcclStep> steps_of(const Batch& batch, const CollectivePortion& portion) const;
  void say_queued(const Batch& batch, Item& item, const CudaEventPool::Event& event) const;
  Status launched(const BatchPtr& batch, const CollectivePortion& portion);
  void copy_out(const FlightPtr& flight, const CudaEventPool::Event& after);
  void landed(Flight& flight);
  void bring(Batch& batch, const CollectiveOutput& output);
  // Steps or outputs of a portion, which are in the order of items: once for each that waits for them.
  template <class Part, class Each>
  static void for_items(Batch& batch, const std::vector<Part>& parts, Each&& each) {
    const Item* last = nullptr;
    for (const Part& part : parts) {
      Item& item = batch.items[part.item];
      // What the root of a broadcast brings into the ring is waited for before the portion begins.
      const bool is_load = std::is_same_v<Part, CollectiveOutput> && item.is_spread;
      if (&item == last || is_load) continue;
      last = &item;
      each(item);
    }
  }
  template <class Part>
  void done(Batch& batch, const std::vector<Part>& parts) {
    for_items(batch, parts, [&](Item& item) {
      if (--item.left == 0) settle(batch, item);
    });
  }
  void settle(Batch& batch, Item& item, const std::optional<Error>& error = {});
  // cuda_pipeline_end.cc
  void fail(const Error& error, bool is_report = true);
  void end_what_has_not_begun();
  void abort_nccl();
  void drain();
  bool is_idle();
  void end_all();
  void go_on_finishing();
  void close();
  void arm();
  bool is_active() const;
  bool is_working() const;
  void tell(CudaThen then, const std::optional<Error>& error = {});
  // Each task of the thread's that may call the driver has one.
  CudaLease::Within in_driver() const { return {*options_.lease, "a call of NVIDIA's driver"}; }

  EventLoop& loop_;
  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<PinnedMemory> memory_;
  const Options options_;
  const CollectivePlace place_;
  const std::unique_ptr<Reports> reports_;
  const std::shared_ptr<CudaEventPool> events_;
  CudaQueue collectives_;
  CudaCopier to_host_;
  CudaCopier to_device_;
  std::optional<NcclLink> nccl_;
  std::optional<NcclWarmUp> warm_up_;
  enum class Warm : std::uint8_t { no, marked, yes } warm_ = Warm::no;
  ByteRing ring_;
  std::byte* ring_memory_ = nullptr;

  Life life_ = Life::fresh;
  CudaThen begun_;
  std::optional<NcclId> id_;
  std::vector<BatchPtr> open_;
  std::deque<BatchPtr> batches_;  // of which something has not begun
  std::map<std::uint64_t, std::vector<CudaThen>> staged_;
  std::uint64_t next_staged_ = 0;
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
