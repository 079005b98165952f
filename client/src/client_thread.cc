#include "client/src/client_thread.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "client/src/fork_mark.h"
#include "client/src/reply.h"
#include "proto/base/completion.h"
#include "proto/base/usable_cores.h"

namespace bps {
namespace {

struct Shared {
  std::shared_ptr<LoopThread> thread;
  std::size_t clients = 0;
};

// Of a process. What a child of fork() inherits is of no use to it: the threads are not there, and the lock may be held.
struct Threads {
  const ForkMark home;
  Monitor<std::vector<Shared>> shared;
};

Threads& threads() {
  static std::atomic<Threads*> current{nullptr};
  Threads* now = current.load(std::memory_order_acquire);
  while (now == nullptr || now->home.in_child()) {
    auto fresh = std::make_unique<Threads>();
    if (current.compare_exchange_strong(now, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  }
  return *now;
}

}  // namespace

Result<std::unique_ptr<ClientThread>> ClientThread::take() {
  const std::size_t most = usable_cores();
  auto thread = threads().shared.update([&](std::vector<Shared>& all) -> Result<std::shared_ptr<LoopThread>> {
    if (all.size() < most) {
      auto started = LoopThread::start("bps-client");
      if (!started) return std::move(started).error();
      all.push_back({std::move(started).value(), 0});
    }
    const auto fewest = std::min_element(all.begin(), all.end(),
                                         [](const Shared& a, const Shared& b) { return a.clients < b.clients; });
    ++fewest->clients;
    return fewest->thread;
  });
  if (!thread) return std::move(thread).error();
  return std::unique_ptr<ClientThread>(new ClientThread(std::move(thread).value()));
}

ClientThread::~ClientThread() {
  run([] {});
  if (!has_left_) leave();
}

void ClientThread::run(Task task) {
  auto reply = std::make_shared<Reply<void>>();
  const auto cell = reply->cell();
  loop().post([reply = std::move(reply), task = std::move(task)] {
    task();
    reply->set({});
  });
  cell->wait_until(TimePoint::max());
}

void ClientThread::leave() {
  has_left_ = true;
  const bool is_unused = threads().shared.update([&](std::vector<Shared>& all) {
    const auto mine =
        std::find_if(all.begin(), all.end(), [&](const Shared& shared) { return shared.thread == thread_; });
    if (--mine->clients > 0) return false;
    all.erase(mine);
    return true;
  });
  if (is_unused) thread_->stop();
}

}  // namespace bps
