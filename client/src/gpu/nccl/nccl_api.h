// What a group of GPUs on one host needs of NCCL. There are two implementations: libnccl.so.2, opened when
// the program runs (real_nccl.h), and one that sums in memory and fails on demand (testing/fake_nccl.h).
//
// Communicators do not block: a call that says in_progress goes on in the background, and until async_error()
// says success the communicator takes no other call than that and abort().
//
// One thread at a time for a communicator, with the context of its device current; the rest: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "client/src/gpu/driver/cuda_api.h"

namespace bps {

using NcclComm = struct NcclCommObject*;

enum class NcclCode : std::int32_t {
  success = 0,
  cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum class NcclType : std::int32_t { i8 = 0, u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class NcclOperation : std::int32_t { sum = 0, product = 1, max = 2, min = 3 };

// Every function that is called, for errors and for counts.
enum class NcclCall : std::uint8_t {
  version,
  unique_id,
  init_rank,
  async_error,
  finalize,
  destroy,
  abort,
  reduce_scatter,
  reduce,
  all_gather,
  broadcast,
  send,
  receive,
  group_start,
  group_end,
};
inline constexpr std::uint8_t kNcclCallCount = 15;
std::string_view name_of(NcclCall call);

using NcclId = std::array<std::byte, 128>;

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  virtual NcclCode version(int& version) = 0;  // 22003 is 2.20.3
  virtual NcclCode unique_id(NcclId& id) = 0;
  // `comm` stays where it is until the call is no longer in progress.
  virtual NcclCode init_rank(NcclComm& comm, int size, const NcclId& id, int rank) = 0;
  // What has become of the call in progress, or what has gone wrong since.
  virtual NcclCode async_error(NcclComm comm, NcclCode& state) = 0;
  // Of a communicator whose operations have ended: finalize(), until it is no longer in progress, then
  // destroy().
  virtual NcclCode finalize(NcclComm comm) = 0;
  virtual NcclCode destroy(NcclComm comm) = 0;
  // At any time: frees it, and what it does on the device ends.
  virtual NcclCode abort(NcclComm comm) = 0;

  // `count` elements per member.
  virtual NcclCode reduce_scatter(const void* in, void* out, std::size_t count, NcclType type,
                                  NcclOperation operation, NcclComm comm, CudaStream stream) = 0;
  virtual NcclCode reduce(const void* in, void* out, std::size_t count, NcclType type,
                          NcclOperation operation, int root, NcclComm comm, CudaStream stream) = 0;
  virtual NcclCode all_gather(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                              CudaStream stream) = 0;
  virtual NcclCode broadcast(const void* in, void* out, std::size_t count, NcclType type, int root,
                             NcclComm comm, CudaStream stream) = 0;
  virtual NcclCode send(const void* in, std::size_t count, NcclType type, int peer, NcclComm comm,
                        CudaStream stream) = 0;
  virtual NcclCode receive(void* out, std::size_t count, NcclType type, int peer, NcclComm comm,
                           CudaStream stream) = 0;
  // What lies between them, in this thread, is begun at the end, together.
  virtual NcclCode group_start() = 0;
  virtual NcclCode group_end() = 0;

  // "unhandled cuda error"; with what the library last said of this communicator, if it said anything.
  virtual std::string describe(NcclCode code, NcclComm comm) = 0;
};

}  // namespace bps
