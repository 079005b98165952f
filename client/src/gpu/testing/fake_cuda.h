// A driver with virtual GPUs, for tests of everything that is written against CudaApi.
//
// The problem: what goes wrong with a GPU goes wrong late. A copy is done long after the call, so memory that
// is read or freed too early is only sometimes wrong; a device is lost, out of memory, or never answers, when
// nobody looks. Here every operation on a stream takes a time that a seed decides, and has its effect at its
// end: copies are really made, then, and kernels are played by functions of the test. Any call
// can be made to fail. Calls are counted, what is left over at the end is too, and what breaks a rule of the
// driver's, or one of ours, is written down in misuses():
//   a call without the context current that it belongs to; a stream or an event that is gone
//   memory freed or unregistered, or a stream destroyed, while operations on it are under way
//   a call that ends a capture of the program's, or becomes part of it
//   copies of host memory that is not registered, which would hold up the caller, or past the end of device
//   memory
//
// A stream's handle is used again after it, its id is not.
//
// Operations go on whenever a function is called, by `clock`. A device's memory is memory of this process.
// Owner: the test's; outlives all that works on it. Any thread. Limits: one context per device.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/gpu/driver/cuda_api.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class FakeCuda final : public CudaApi {
 public:
  struct Options {
    std::uint64_t seed = 1;
    int devices = 1;
    Duration longest{std::chrono::microseconds(50)};  // of one operation
    std::size_t memory = 1ull << 30;                  // of each device
    bool has_stream_ids = true;                       // of a driver that tells them
  };

  // What another library does on a stream. Called under this object's lock: neither calls back into it.
  struct Work {
    std::function<bool()> may_start;  // asked again and again when it is its turn
    std::function<void()> finish;
    std::vector<std::pair<const void*, std::size_t>> memory;  // that it uses
  };

  // What a kernel does. Reads the arguments at once; none: they are wrong. Called under the lock, too.
  using Play = std::function<std::optional<Work>(const CudaGrid& grid, void** arguments)>;

  struct Left {
    std::size_t contexts = 0, streams = 0, events = 0, allocations = 0, registrations = 0, modules = 0;
    std::size_t relaxed = 0;  // threads that were left so
    friend bool operator==(const Left&, const Left&) = default;
  };

  explicit FakeCuda(EventLoop& clock) : FakeCuda(clock, Options()) {}
  FakeCuda(EventLoop& clock, Options options);
  ~FakeCuda() override;

  // The call with this number, from 0 in the order of calls(), fails. `lost`: and with it the device.
  void fail_call(std::uint64_t number, CudaCode code, bool lost);
  // The n-th call of this function from now on, 0 is the next.
  void fail_next(CudaCall call, std::uint64_t nth, CudaCode code, bool lost = false);
  // All operations are dropped, and every call but those without a context fails with this.
  void lose_device(CudaCode code);
  // The program captures a stream into a graph, in the mode of all threads, until it ends that. False:
  // something has ended it before.
  void begin_capture(CudaStream stream);
  bool end_capture();
  // What describe_pointer() says of the size of this memory: it consists of pieces, of which each is told by
  // itself; or, if that is more than was allocated, so much is reserved from its start. The pieces are
  // mappings, or allocations that lie side by side.
  enum class Pieces : std::uint8_t { mappings, allocations };
  void tell_size(const void* memory, std::size_t bytes, Pieces pieces = Pieces::mappings);
  // The n-th operation on a stream from now on never ends.
  void hang_next(std::uint64_t nth);
  // Copies in this direction that are queued from now on do not begin until release_copies().
  void hold_copies(CudaCall direction);
  void release_copies();
  // Calls of this function do not return until unblock(), whatever thread makes them.
  void block(CudaCall call);
  void unblock();
  // Until a thread is in the call that is blocked.
  bool wait_for_blocked(TimePoint deadline) const;

  std::uint64_t calls() const;
  std::uint64_t count(CudaCall call) const;
  std::vector<CudaCall> order() const;  // of all calls
  Left left() const;
  bool is_idle() const;  // no operation is under way
  std::vector<std::string> misuses() const;

  void enqueue(CudaStream stream, Work work);
  // A kernel of this name, in texts that are loaded from now on.
  void play(const std::string& kernel, Play play);

  CudaCode init() override;
  CudaCode driver_version(int& version) override;
  CudaCode device_count(int& count) override;
  CudaCode device(int& device, int ordinal) override;
  CudaCode device_name(std::string& name, int device) override;
  // The same in all processes, as in life.
  CudaCode device_id(CudaDeviceId& id, int device) override;
  CudaCode retain_context(CudaContext& context, int device) override;
  CudaCode release_context(int device) override;
  CudaCode push_context(CudaContext context) override;
  CudaCode pop_context() override;
  CudaCode current_device(int& device) override;
  CudaCode priority_range(int& least, int& greatest) override;
  CudaCode describe_pointer(CudaPointer& pointer, const void* address) override;
  CudaCode create_stream(CudaStream& stream, int priority) override;
  CudaCode destroy_stream(CudaStream stream) override;
  CudaCode query_stream(CudaStream stream) override;
  CudaCode stream_id(std::uint64_t& id, CudaStream stream) override;
  CudaCode exchange_capture_mode(CudaCaptureMode& mode) override;
  CudaCode is_capturing(CudaStream stream, bool& captured) override;
  CudaCode wait_event(CudaStream stream, CudaEvent event) override;
  CudaCode create_event(CudaEvent& event) override;
  CudaCode record_event(CudaEvent event, CudaStream stream) override;
  CudaCode query_event(CudaEvent event) override;
  CudaCode destroy_event(CudaEvent event) override;
  CudaCode copy_to_host(void* to, const void* from, std::size_t bytes, CudaStream stream) override;
  CudaCode copy_to_device(void* to, const void* from, std::size_t bytes, CudaStream stream) override;
  CudaCode allocate(void*& memory, std::size_t bytes) override;
  CudaCode free(void* memory) override;
  CudaCode register_host(void* memory, std::size_t bytes) override;
  CudaCode unregister_host(void* memory) override;
  CudaCode load_module(CudaModule& module, const char* text) override;
  CudaCode unload_module(CudaModule module) override;
  CudaCode find_kernel(CudaKernel& kernel, CudaModule module, const char* name) override;
  CudaCode launch(CudaKernel kernel, const CudaGrid& grid, void** arguments, CudaStream stream) override;
  std::string describe(CudaCode code) override;

 private:
  class Machine;
  struct Shared;
  template <class Do>
  CudaCode call(CudaCall call, Do&& act, bool needs_context = true);
  CudaCode copy(CudaCall kind, void* to, const void* from, std::size_t bytes, CudaStream stream);
  void pass(CudaCall call);

  EventLoop& clock_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace bps
