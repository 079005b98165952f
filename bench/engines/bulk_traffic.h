// Large tensors that are push_pulled again and again beside something else: each one, as soon as it is done,
// is compared, made anew and pushed again, so that there is always bulk under way.
//
// Workers stop at different moments, and a round that one has begun all must join: when told to stop they
// agree by a push_pull (the maximum) on how many rounds of each tensor there will have been.
//
// Owner: an engine, one thread; between start() and stop() a thread of its own runs. Callbacks of the library
// only leave a note; destroy it after stop() and after the client. Failure: the first wrong result or failed
// operation, told by stop(); after it no further round is begun, and the other workers' benchmark ends by its
// deadline.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "bench/engines/bps_client.h"
#include "bench/engines/values.h"
#include "proto/base/result.h"

namespace bps::bench {

class BulkTraffic {
 public:
  // `in` and `out` are cut into tensors. All outlive this object.
  BulkTraffic(BpsClient& client, const Pattern& pattern, std::uint32_t rank, std::span<std::byte> in,
              std::span<std::byte> out);
  BulkTraffic(const BulkTraffic&) = delete;
  BulkTraffic& operator=(const BulkTraffic&) = delete;

  Status declare();
  // All tensors are under way when it returns.
  Status start();
  // Nothing is under way when it returns. Not started: nothing happens.
  Status stop();

 private:
  struct Piece {
    BulkTraffic* owner = nullptr;
    std::size_t index = 0;
    std::span<std::byte> in, out;
    bps_tensor tensor = 0;
    std::uint64_t begun = 0;  // rounds
    bool under_way = false;
    BpsHandle operation;
  };

  static void on_done(const bps_error* error, void* user);
  static std::uint64_t values_of(const Piece& piece, std::uint64_t round);
  void fill(const Piece& piece);
  Status begin(Piece& piece);
  void run();
  Status agree();
  Piece* next_done();
  void settle(Piece& piece);
  bool may_begin(const Piece& piece) const;

  BpsClient& client_;
  const Pattern pattern_;
  const std::uint32_t rank_;
  std::vector<Piece> pieces_;
  bps_tensor agreement_ = 0;
  // Of the thread, while it runs.
  std::vector<std::int64_t> last_round_;  // by piece, once agreed
  bool stopping_ = false;
  Status result_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Piece*> done_;  // guarded by mutex_
  bool stop_ = false;        // guarded by mutex_
  std::thread thread_;
};

}  // namespace bps::bench
