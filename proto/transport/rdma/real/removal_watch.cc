#include "proto/transport/rdma/real/removal_watch.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "proto/transport/stream/readiness.h"

namespace bps {

Status watch_descriptor(int epoll, int descriptor, std::uint32_t which) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = which;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0)
    return os_error("cannot watch a connection over RDMA", errno);
  return {};
}

// Lives on: the watch's thread; closed by its owner when that has ended.
class RemovalWatch::Waiter final : public std::enable_shared_from_this<Waiter> {
 public:
  explicit Waiter(RemovalWatch& watch) : watch_(watch) {}

  Status open(AsioLoop& loop) {
    UniqueFd fd(::fcntl(watch_.wait_.get(), F_DUPFD_CLOEXEC, 0));
    if (!fd) return os_error("cannot watch RDMA devices", errno, "raise `ulimit -n`");
    if (Status status = readiness_.open(loop, fd.get()); !status.ok()) return status;
    fd.release();
    readiness_.wait_read(shared_from_this());
    return {};
  }
  void close() { readiness_.close(); }

  void readable() {
    watch_.take();
    readiness_.wait_read(shared_from_this());
  }
  void writable() {}

 private:
  RemovalWatch& watch_;
  Readiness<Waiter> readiness_;
};

Status RemovalWatch::start() {
  wait_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!wait_) return os_error("cannot watch RDMA devices", errno, "raise `ulimit -n`");
  auto thread = LoopThread::start("bps-rdma-watch");
  if (!thread) return std::move(thread).error();
  thread_ = std::move(thread).value();
  auto waiter = std::make_shared<Waiter>(*this);
  const auto opened = std::make_shared<Completion<Status>>();
  thread_->loop().post([&loop = thread_->loop(), waiter, opened] { opened->set(waiter->open(loop)); });
  opened->wait_until(TimePoint::max());
  if (!opened->value().ok()) return opened->value();
  waiter_ = std::move(waiter);
  return {};
}

void RemovalWatch::stop() {
  if (thread_ == nullptr) return;
  thread_->stop();
  if (waiter_ != nullptr) waiter_->close();
  waiter_.reset();
  thread_.reset();
}

void RemovalWatch::look_later() {
  thread_->loop().post([this] { thread_->loop().after(kLookAgain, look_); });
}

bool RemovalWatch::add(RealDevice& device) {
  const auto gids = device.gids();
  if (!gids) return false;
  bool is_roce = true;
  for (const RdmaGid& gid : *gids) {
    if (is_usable(gid) && bind(device, gid)) return true;
    is_roce &= gid.kind != RdmaGid::Kind::other;
  }
  const bool has_address = std::any_of(gids->begin(), gids->end(), is_usable);
  return !has_address && !is_roce;
}

// Not every address that a device lists is one of this process: it may be in another network namespace, or
// another device's, too.
bool RemovalWatch::bind(RealDevice& device, const RdmaGid& gid) {
  auto use = device.use();
  auto id = CmId::create(library_);
  if (!use || !id) return false;
  SocketAddress address = address_of(gid);
  if (library_.bind_addr(id->get(), address.get()) != 0) return false;
  if (id->get()->verbs != device.context()) return false;
  const int channel = id->descriptor();
  // Under the lock: take() must find what it is told of.
  return watched_.update([&](std::vector<Watched>& watched) {
    if (!watch_descriptor(wait_.get(), channel, 0).ok()) return false;
    watched.push_back({std::move(id).value(), std::move(use).value()});
    return true;
  });
}

void RemovalWatch::take() {
  std::vector<Watched> removed;
  watched_.update([&](std::vector<Watched>& watched) {
    const auto is_removed = [](Watched& one) {
      while (const auto event = one.id.next()) {
        if (event->kind == RDMA_CM_EVENT_DEVICE_REMOVAL) return true;
      }
      return false;
    };
    for (auto next = watched.begin(); next != watched.end();) {
      if (!is_removed(*next)) {
        ++next;
        continue;
      }
      // Nobody reads what else it is told; it would wake this thread for ever.
      ::epoll_ctl(wait_.get(), EPOLL_CTL_DEL, next->id.descriptor(), nullptr);
      removed.push_back(std::move(*next));
      next = watched.erase(next);
    }
  });
  for (Watched& one : removed)
    one.use.device().lose(std::make_shared<CmId>(std::move(one.id)));
}

}  // namespace bps
