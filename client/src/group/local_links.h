// The connections of this rank to the others of its host, one to each, over shared memory.
//
// Each member listens under a name that the others work out from the run, the leader and its place, and
// connects to all of lower rank; the others connect to it. A connection opens with HelloLocal, proven by the
// job's key where there is one, and Welcome. What cannot be reached is tried again until open()'s deadline:
// its process may not have heard yet that the job has begun. Once all are there, a link that is lost is lost
// for good.
//
// Owner: HostRanks. Lives on: client loop. Limits: kMaxGuests connections that have not said yet who they
// are, each for kHelloTimeout; the oldest goes when one more comes. Failure: on_links_failed, once, before
// all are there; later on_link_down, once for each link. A member that breaks a rule is told so and its link
// closed. No callback comes within a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/auth/handshake.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/transport.h"

namespace bps {

class LocalLinks {
 public:
  class Owner {
   public:
    virtual void on_links_up() = 0;
    virtual void on_links_failed(const Error& error) = 0;
    virtual void on_link_down(std::uint32_t member, const std::string& why) = 0;
    // As ConnectionHandler; an error is a rule that the member broke.
    virtual std::byte* on_link_payload(std::uint32_t member, const Message& message, std::uint64_t bytes) = 0;
    virtual Status on_link_message(std::uint32_t member, Message& message, std::span<std::byte> payload) = 0;
    virtual Result<bool> on_link_lent(std::uint32_t member, Message& message, LentPayload& payload) = 0;
    virtual void on_link_sent(std::uint32_t member, std::uint64_t cookie) = 0;

   protected:
    ~Owner() = default;
  };
  struct Member {
    Rank rank;
    Incarnation incarnation;
  };
  struct Group {
    JobRun run;
    std::vector<Member> members;  // by rank: 0 is the leader
    std::uint32_t self = 0;
    std::string host;  // for messages
    SharedKey key;     // the job's; null: none
  };

  LocalLinks(EventLoop& loop, Transport& transport, Owner& owner, Group group, Logger log);
  ~LocalLinks();
  LocalLinks(const LocalLinks&) = delete;
  LocalLinks& operator=(const LocalLinks&) = delete;

  // Once.
  void open(TimePoint deadline);
  // What is sent to a member whose link is down is dropped.
  void send(std::uint32_t member, const Message& message, const Payload& payload, std::uint64_t cookie);
  // At once, for good. No callback comes any more, nothing that was sent is touched.
  void close();
  // The same when no payload is on its way: what has been said still leaves.
  void close_gently();

  static constexpr Duration kHelloTimeout = std::chrono::seconds(5);
  static constexpr Duration kRetryPause = std::chrono::milliseconds(20);
  static constexpr Duration kFlushTime = std::chrono::seconds(2);
  static constexpr std::size_t kMaxGuests = 2 * kMaxLocalGroupSize;

 private:
  class Link;

  void listen();
  void accept(std::unique_ptr<Connection> connection);
  void connect(std::uint32_t member);
  Status admit(Link& guest, const Message& hello);
  void welcomed(Link& link);
  // One that is not there yet.
  void failed(Link& link, const Error& error);
  void lost(Link& link, const Error& error);
  void broke_rule(Link& link, const Error& error);
  void give_up();
  std::string name_of_member(std::uint32_t member) const;
  void drop_guest(Link& guest);

  EventLoop& loop_;
  Transport& transport_;
  Owner& owner_;
  const Group group_;
  Logger log_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<Link>> links_;  // by member; null: not there
  std::vector<std::unique_ptr<Link>> guests_;
  std::vector<std::string> troubles_;  // by member: why it is not there
  std::size_t up_ = 0;
  bool all_up_ = false;
  bool closed_ = false;
  bool has_refused_ = false;  // a guest
  TimerId deadline_timer_;
  std::vector<TimerId> retry_timers_;
};

}  // namespace bps
