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
// their numbers; what they bring lands in a ring, for whose room they wait here (copies out of it wait for
// nobody, so it comes). One poller asks for the first event of each stream every poll_interval while
// something is open, and sleeps otherwise.
//
// Owner: CudaGroup, by shared_ptr, and its own timers until finish() is done. Lives on: the CUDA thread, with
// all its calls and reports. Limits: ring_bytes on the device, those of CudaCopier. Failure: on_broken, once,
// not after abort(); what has not begun ends at once, the rest when the streams are idle or their context is
// lost.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "client/local/cuda/caller_event.h"
#include "client/local/cuda/collective_plan.h"
#include "client/local/cuda/cuda_copier.h"
#include "client/local/cuda/nvtx.h"
#include "client/local/cuda/pinned_memory.h"
#include "client/local/cuda/stream_trial.h"
#include "client/local/nccl/nccl_link.h"
#include "proto/base/event_loop.h"

namespace bps {

class CudaPipeline : public std::enable_shared_from_this<CudaPipeline> {
 public:
  class Reports {
   public:
    virtual ~Reports() = default;
    virtual void on_summed(std::uint64_t number, std::size_t index) = 0;
    virtual void on_ended(std::uint64_t number, const Status& status) = 0;
    virtual void on_broken(const Error& error, std::optional<TensorId> tensor) = 0;
  };
  struct Options {
    std::uint32_t size = 1;
    std::uint32_t self = 0;
    std::size_t ring_bytes = 32 << 20;
    Duration poll_interval{std::chrono::microseconds(20)};
    // While there is nothing but streams of the program to wait for, which compute for long.
    Duration caller_interval{std::chrono::microseconds(200)};
    // A stream that waits holds up ours if they have not gone on by then.
    Duration trial_timeout{std::chrono::milliseconds(100)};
    // Copies that have not moved for so long while streams wait never will.
    Duration stall_timeout{std::chrono::seconds(10)};
    Duration finish_timeout{std::chrono::seconds(2)};  // for the other members
    Nvtx nvtx = {};
    std::shared_ptr<void> held = {};  // goes with this
  };
  using Then = std::function<void(Status)>;
  struct Staged {
    LocalPiece piece;
    Then then;
  };

  // `nccl`: null in a group of one.
  CudaPipeline(EventLoop& loop, std::shared_ptr<CudaDevice> device, std::shared_ptr<NcclApi> nccl,
               std::shared_ptr<PinnedMemory> memory, Options options, std::unique_ptr<Reports> reports);
  ~CudaPipeline();
  CudaPipeline(const CudaPipeline&) = delete;
  CudaPipeline& operator=(const CudaPipeline&) = delete;

  // `id`: in a group of more than one.
  void begin(const std::optional<NcclId>& id, Then done);
  // When begin() has ended well. Any thread.
  std::shared_ptr<StreamWords> words() const { return words_; }
  // `label`: of the tensor and its partitions, if somebody reads it.
  void run(bool is_spread, const Collective& collective, std::vector<LocalPiece> pieces,
           std::string label = {});
  // What is adjacent becomes one copy.
  void stage(std::vector<Staged> answers);
  void when_fired(std::shared_ptr<CallerEvent> event, Then then);
  void abort(const Error& error);
  // No call follows, and nothing is reported any more.
  void finish();

 private:
  enum class Life : std::uint8_t { fresh, beginning, running, broken, drained, finalizing, finished };
  struct Work {
    bool is_spread = false;
    Collective collective;
    std::vector<LocalPiece> pieces;
    std::vector<CollectivePortion> portions;
    std::size_t next = 0;  // portion
    enum class Step : std::uint8_t { wait, load, launch } step = Step::wait;
    std::optional<std::size_t> ring;  // of the next portion
    std::vector<std::size_t> parts;   // reduce: outputs that each piece waits for
    std::size_t pending = 0;          // marks and jobs
    bool is_begun = false;            // all of it
    std::string label;
    Nvtx::Range range;
  };
  using WorkPtr = std::shared_ptr<Work>;
  struct Caller {
    std::shared_ptr<CallerEvent> event;
    Then then;
  };

  Status open();
  Result<bool> is_joined();
  Nvtx::Range range(const char* stage, const std::string& label) const;
  void turn();
  Status go_on();
  Status poll_callers();
  // cuda_pipeline_words.cc
  Status make_words();
  Status poll_trial();
  Status check_stall();
  Status begin_works();
  // cuda_pipeline_works.cc. False: it has to wait.
  Result<bool> begin_portion(const WorkPtr& work);
  Result<bool> load(const WorkPtr& work, const CollectivePortion& portion);
  std::vector<NcclStep> steps_of(const Work& work, const CollectivePortion& portion) const;
  Status launched(const WorkPtr& work, const CollectivePortion& portion);
  void copy_out(const WorkPtr& work, const CollectivePortion& portion, std::optional<std::size_t> ring,
                const CudaEventPool::Event& after);
  void bring(Work& work, const CollectiveOutput& output);
  void settle(const WorkPtr& work);
  // cuda_pipeline_end.cc
  void fail(const Error& error, bool is_report = true);
  void drain();
  bool is_idle();
  void end_all();
  void go_on_finishing();
  void close();
  void arm();
  bool is_active() const;
  bool is_working() const;

  EventLoop& loop_;
  const std::shared_ptr<CudaDevice> device_;
  const std::shared_ptr<PinnedMemory> memory_;
  const Options options_;
  const CollectivePlace place_;
  const std::unique_ptr<Reports> reports_;
  CudaEventPool events_;
  CudaQueue collectives_;
  CudaCopier to_host_;
  CudaCopier to_device_;
  std::optional<NcclLink> nccl_;
  ByteRing ring_;
  std::byte* ring_memory_ = nullptr;

  std::shared_ptr<StreamWords> words_;
  std::optional<StreamTrial> trial_;
  struct Stall {
    bool was_waiting = false;  // the queue, when it was looked at
    std::uint64_t reached = 0;
    TimePoint since;
  };
  Stall to_host_stall_, to_device_stall_;

  Life life_ = Life::fresh;
  Then begun_;
  std::optional<NcclId> id_;
  std::map<std::uint64_t, WorkPtr> open_;
  std::deque<WorkPtr> works_;  // of which something has not begun
  std::map<std::uint64_t, std::vector<Then>> staged_;
  std::uint64_t next_staged_ = 0;
  std::map<CudaStream, std::deque<Caller>> callers_;
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
