// Many epolls that wait for one descriptor: each hears of it on a loop of its own. The kernel allows but a
// hundred ways from a descriptor through epolls in epolls, so only kMostWaiting wait for it at a time; when
// one of these leaves, one that has not waited takes its place.
//
// Any thread.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "proto/base/completion.h"

namespace bps {

class SharedWait {
 public:
  static constexpr std::size_t kMostWaiting = 16;

  // `descriptor` outlives it; `which`: what the epolls tell of it.
  SharedWait(int descriptor, std::uint32_t which) : descriptor_(descriptor), which_(which) {}

  // It leaves before it is closed.
  void join(int epoll) {
    members_.update([&](std::vector<Member>& members) {
      members.push_back({epoll, false});
      fill(members);
    });
  }
  void leave(int epoll) {
    members_.update([&](std::vector<Member>& members) {
      const auto found = std::find_if(members.begin(), members.end(),
                                      [epoll](const Member& member) { return member.epoll == epoll; });
      if (found == members.end()) return;
      if (found->waits) ::epoll_ctl(epoll, EPOLL_CTL_DEL, descriptor_, nullptr);
      *found = members.back();
      members.pop_back();
      fill(members);
    });
  }

 private:
  struct Member {
    int epoll;
    bool waits;
  };

  void fill(std::vector<Member>& members) const {
    auto waiting = static_cast<std::size_t>(
        std::count_if(members.begin(), members.end(), [](const Member& member) { return member.waits; }));
    for (auto member = members.begin(); member != members.end() && waiting < kMostWaiting; ++member) {
      if (member->waits) continue;
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u32 = which_;
      // One that has no room for it leaves the place to others.
      member->waits = ::epoll_ctl(member->epoll, EPOLL_CTL_ADD, descriptor_, &event) == 0;
      if (member->waits) ++waiting;
    }
  }

  const int descriptor_;
  const std::uint32_t which_;
  Monitor<std::vector<Member>> members_;
};

}  // namespace bps
