#include "client/src/runtime/client_thread.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "client/src/runtime/fork_mark.h"
#include "client/src/runtime/reply.h"
#include "proto/base/loop/completion.h"
#include "proto/base/usable_cores.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

struct Shared {
  std::shared_ptr<LoopLock> lock;
  std::shared_ptr<LoopThread> thread;
  std::vector<std::shared_ptr<LoopThread>> more;  // that take turns with it
  std::vector<std::uint32_t> cpus;                // that they may use
  std::size_t clients = 0;
};

// Of a process. What a child of fork() inherits is of no use to it: the threads are not there, and the lock
// may be held.
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
      auto lock = std::make_shared<LoopLock>();
      auto started = LoopThread::start("bps-client", lock);
      if (!started) return std::move(started).error();
      all.push_back({std::move(lock), std::move(started).value(), {}, usable_cpus(), 0});
    }
    const auto fewest = std::min_element(
        all.begin(), all.end(), [](const Shared& a, const Shared& b) { return a.clients < b.clients; });
    fewest->thread->loop().lend(++fewest->clients == 1);
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

LaneLoops ClientThread::lane_loops(DataThreadsFacts facts) {
  const auto of_this = [this](std::vector<Shared>& all) -> Shared& {
    return *std::find_if(all.begin(), all.end(),
                         [&](const Shared& shared) { return shared.thread == thread_; });
  };
  const auto cpus = threads().shared.update([&](std::vector<Shared>& all) { return of_this(all).cpus; });
  facts.cpus = cpus.size();
  const DataThreads wanted = data_threads(facts);
  LaneLoops made{{{&loop()}}};
  std::vector<LaneLoop>& loops = made.loops;
  if (wanted.count == 1) return made;
  loop().lock()->share();
  threads().shared.update([&](std::vector<Shared>& all) {
    Shared& mine = of_this(all);
    while (mine.more.size() + 1 < wanted.count) {
      auto started = LoopThread::start("bps-client-" + std::to_string(mine.more.size() + 1), mine.lock);
      if (!started) {
        made.complete = std::move(started).error();
        break;
      }
      mine.more.push_back(std::move(started).value());
      // It has begun where this one may be bound.
      mine.more.back()->loop().post([cpus] { (void)run_on(cpus); });
    }
    for (std::size_t i = 0; i < std::min(wanted.count - 1, mine.more.size()); ++i)
      loops.push_back({&mine.more[i]->loop()});
  });
  // A hello can name no other CPUs.
  const bool have_numbers = std::ranges::all_of(cpus, [](std::uint32_t cpu) { return cpu < kMaxCpus; });
  if (!wanted.bound || loops.size() < wanted.count || !have_numbers) return made;
  for (std::size_t i = 0; i < loops.size(); ++i) {
    loops[i].cpu = cpus[i];
    loops[i].loop->post([cpu = cpus[i]] { (void)run_on({&cpu, 1}); });
  }
  return made;
}

void ClientThread::leave() {
  has_left_ = true;
  std::vector<std::shared_ptr<LoopThread>> more;
  const bool is_unused = threads().shared.update([&](std::vector<Shared>& all) {
    const auto mine =
        std::find_if(all.begin(), all.end(), [&](const Shared& shared) { return shared.thread == thread_; });
    thread_->loop().lend(--mine->clients == 1);
    if (mine->clients > 0) return false;
    more = std::move(mine->more);
    all.erase(mine);
    return true;
  });
  for (const auto& thread : more)
    thread->stop();
  if (is_unused) thread_->stop();
}

}  // namespace bps
