#include "client/src/group/local_links.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "proto/wire/shm_name.h"

namespace bps {

// A connection to another member: one that this rank opens, or a guest until it has said who it is.
class LocalLinks::Link final : private ConnectionHandler {
 public:
  Link(LocalLinks& links, std::unique_ptr<Connection> connection, std::optional<std::uint32_t> member)
      : links_(links),
        connection_(std::move(connection)),
        member_(member),
        accepting_(AcceptingHandshake::of_job(links.group_.key, "worker")) {
    timer_ = links_.loop_.after(kHelloTimeout, [this] {
      timer_ = {};
      links_.failed(*this, make_error(ErrorCode::unreachable, "it does not answer the hello"));
    });
  }
  ~Link() override { stop_timer(); }

  void start() { connection_->start(*this); }
  void say_hello() {
    const Group& group = links_.group_;
    const Member& self = group.members[group.self];
    Message hello =
        HelloLocal{group.run, self.rank, self.incarnation, group.members[*member_].incarnation, {}};
    if (Status status = connecting_.begin(group.key, hello); !status.ok()) return fail_later(status.error());
    connection_->send(hello);
  }
  void welcome(std::uint32_t member) {
    member_ = member;
    Welcome welcome;
    welcome.incarnation = links_.group_.members[member].incarnation;
    welcome.job_run = links_.group_.run;
    accepting_.seal(welcome);
    connection_->send(welcome);
    set_up();
  }
  std::uint32_t member() const { return *member_; }
  bool is_guest() const { return !member_; }
  bool up() const { return up_; }
  std::string claim() const { return accepting_.claim(); }
  Connection& connection() { return *connection_; }

 private:
  void stop_timer() {
    links_.loop_.cancel(timer_);
    timer_ = {};
  }
  void set_up() {
    stop_timer();
    up_ = true;
    connection_->end_handshake(kMaxControlHeaderBytes);
  }
  void fail_later(const Error& error) {
    stop_timer();
    timer_ = links_.loop_.after(Duration{}, [this, error] {
      timer_ = {};
      links_.failed(*this, error);
    });
  }

  std::byte* on_payload(const Message& message, std::uint64_t bytes) override {
    return up_ ? links_.owner_.on_link_payload(*member_, message, bytes) : nullptr;
  }
  bool on_lent(Message& message, LentPayload& payload) override {
    if (!up_) return false;
    const Result<bool> taken = links_.owner_.on_link_lent(*member_, message, payload);
    if (taken) return *taken;
    links_.broke_rule(*this, taken.error());
    return true;
  }
  void on_message(Message& message, std::span<std::byte> payload) override {
    if (const auto* refused = std::get_if<Refused>(&message)) {
      const Error error{refused->code, refused->message, refused->advice};
      return up_ ? links_.lost(*this, error) : links_.failed(*this, error);
    }
    if (!up_) return is_guest() ? greet(std::move(message)) : on_answer(message);
    if (Status status = links_.owner_.on_link_message(*member_, message, payload); !status.ok())
      links_.broke_rule(*this, status.error());
  }
  void on_sent(std::uint64_t cookie) override {
    if (up_) links_.owner_.on_link_sent(*member_, cookie);
  }
  void on_closed(const Error& error) override {
    up_ ? links_.lost(*this, error) : links_.failed(*this, error);
  }

  // The other end of a connection that this rank opened.
  void on_answer(const Message& message) {
    if (const auto* challenge = std::get_if<Challenge>(&message)) {
      const Result<Proof> proof = connecting_.answer(*challenge);
      if (proof.ok()) return connection_->send(*proof);
      return links_.failed(*this, proof.error());
    }
    const auto* welcome = std::get_if<Welcome>(&message);
    if (welcome == nullptr || welcome->job_run != links_.group_.run)
      return links_.failed(*this, make_error(ErrorCode::protocol, "it does not welcome this worker"));
    if (Status status = connecting_.check(*welcome, "it"); !status.ok())
      return links_.failed(*this, status.error());
    set_up();
    links_.welcomed(*this);
  }
  void greet(Message&& message) {
    auto step = accepting_.take(std::move(message));
    if (step && !step->admitted) return connection_->send(step->message);
    const Status status = step ? links_.admit(*this, step->message) : Status(step.error());
    if (!status.ok()) links_.broke_rule(*this, status.error());
  }

  LocalLinks& links_;
  std::unique_ptr<Connection> connection_;
  std::optional<std::uint32_t> member_;
  AcceptingHandshake accepting_;
  ConnectingHandshake connecting_;
  bool up_ = false;
  TimerId timer_;
};

LocalLinks::LocalLinks(EventLoop& loop, Transport& transport, Owner& owner, Group group, Logger log)
    : loop_(loop),
      transport_(transport),
      owner_(owner),
      group_(std::move(group)),
      log_(std::move(log)),
      links_(group_.members.size()),
      troubles_(group_.members.size()),
      retry_timers_(group_.members.size()) {
  BPS_ASSERT(group_.self < group_.members.size());
}

LocalLinks::~LocalLinks() { close(); }

std::string LocalLinks::name_of_member(std::uint32_t member) const {
  return fmt::format("rank {} of this host ({})", group_.members[member].rank.value, group_.host);
}

void LocalLinks::open(TimePoint deadline) {
  deadline_timer_ = loop_.at(deadline, [this] {
    deadline_timer_ = {};
    give_up();
  });
  listen();
  for (std::uint32_t member = 0; member < group_.self; ++member)
    connect(member);
}

void LocalLinks::listen() {
  const Endpoint endpoint = local_endpoint(group_.run, group_.members.front().rank, group_.self);
  auto listener =
      transport_.listen(loop_, endpoint, [this](auto connection) { accept(std::move(connection)); });
  if (listener) {
    listener_ = std::move(listener).value();
    return;
  }
  loop_.cancel(deadline_timer_);
  deadline_timer_ = loop_.after(Duration{}, [this, error = listener.error()] {
    deadline_timer_ = {};
    owner_.on_links_failed(
        make_error(error.code, "this worker cannot be reached by the others of its host: " + error.message,
                   error.advice));
  });
}

void LocalLinks::accept(std::unique_ptr<Connection> connection) {
  if (guests_.size() >= kMaxGuests) guests_.erase(guests_.begin());  // the oldest: it has had its time
  guests_.push_back(std::make_unique<Link>(*this, std::move(connection), std::nullopt));
  guests_.back()->start();
}

void LocalLinks::connect(std::uint32_t member) {
  const Endpoint endpoint = local_endpoint(group_.run, group_.members.front().rank, member);
  links_[member] = std::make_unique<Link>(*this, transport_.connect(loop_, endpoint, kHelloTimeout), member);
  links_[member]->start();
  links_[member]->say_hello();
}

// A guest has proven that it belongs to the job.
Status LocalLinks::admit(Link& guest, const Message& message) {
  const auto wrong = [&](const char* what) {
    return make_error(ErrorCode::protocol, fmt::format("this is no place for {}", what),
                      "use the same bps version on all ranks");
  };
  const auto* hello = std::get_if<HelloLocal>(&message);
  if (hello == nullptr) return wrong(name_of(message));
  if (hello->job_run != group_.run || hello->to_incarnation != group_.members[group_.self].incarnation)
    return wrong("a rank of another run");
  const auto found = std::find_if(group_.members.begin() + group_.self + 1, group_.members.end(),
                                  [&](const Member& member) { return member.rank == hello->rank; });
  if (found == group_.members.end() || found->incarnation != hello->incarnation)
    return wrong("a rank that is not a higher one of this host");
  const auto member = static_cast<std::uint32_t>(found - group_.members.begin());
  if (all_up_ || (links_[member] != nullptr && links_[member]->up()))
    return wrong("a rank that is here already");
  const auto own =
      std::find_if(guests_.begin(), guests_.end(), [&](const auto& link) { return link.get() == &guest; });
  BPS_ASSERT(own != guests_.end());
  links_[member] = std::move(*own);
  guests_.erase(own);
  guest.welcome(member);
  welcomed(guest);
  return {};
}

void LocalLinks::welcomed(Link& link) {
  troubles_[link.member()].clear();
  if (++up_ + 1 < group_.members.size()) return;
  all_up_ = true;
  loop_.cancel(deadline_timer_);
  deadline_timer_ = {};
  listener_.reset();
  guests_.clear();
  owner_.on_links_up();
}

void LocalLinks::drop_guest(Link& guest) {
  std::erase_if(guests_, [&](const auto& link) { return link.get() == &guest; });
}

void LocalLinks::failed(Link& link, const Error& error) {
  if (link.is_guest()) {
    log_.debug("a connection that was to be another rank's of this host ends: {} {}", link.claim(),
               error.message);
    return drop_guest(link);
  }
  const std::uint32_t member = link.member();
  troubles_[member] = error.message;
  links_[member].reset();
  retry_timers_[member] = loop_.after(kRetryPause, [this, member] {
    retry_timers_[member] = {};
    connect(member);
  });
}

void LocalLinks::lost(Link& link, const Error& error) {
  const std::uint32_t member = link.member();
  links_[member].reset();
  if (!all_up_) {  // it connects again, if it lives
    --up_;
    troubles_[member] = error.message;
    if (member < group_.self) connect(member);
    return;
  }
  owner_.on_link_down(member, error.message);
}

void LocalLinks::broke_rule(Link& link, const Error& error) {
  if (!link.is_guest()) {
    log_.warn("{} is refused: {}", name_of_member(link.member()), error.message);
  } else if (!std::exchange(has_refused_, true)) {  // it tries again and again
    log_.warn("a connection from this host is refused: {}", error.message);
  }
  link.connection().send(Refused{error.code, error.message, error.advice});
  link.connection().close_after_flush(kFlushTime);
  if (link.is_guest()) return drop_guest(link);
  lost(link, error);
}

void LocalLinks::give_up() {
  std::string text;
  for (std::uint32_t member = 0; member < group_.members.size(); ++member) {
    if (member == group_.self || (links_[member] != nullptr && links_[member]->up())) continue;
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name_of_member(member),
                        !troubles_[member].empty() ? troubles_[member]
                        : member < group_.self     ? "it does not answer"
                                                   : "it has not connected to this worker");
  }
  owner_.on_links_failed(make_error(ErrorCode::unreachable, "there is no link to " + text,
                                    "run the ranks of a host as one user in one network namespace, or say "
                                    "which ranks belong together (BPS_LOCAL_GROUP_ID)"));
}

void LocalLinks::send(std::uint32_t member, const Message& message, const Payload& payload,
                      std::uint64_t cookie) {
  if (closed_ || links_[member] == nullptr || !links_[member]->up()) return;
  links_[member]->connection().send(message, payload, cookie);
}

void LocalLinks::close() {
  closed_ = true;
  loop_.cancel(deadline_timer_);
  deadline_timer_ = {};
  for (TimerId& timer : retry_timers_) {
    loop_.cancel(timer);
    timer = {};
  }
  listener_.reset();
  guests_.clear();
  for (auto& link : links_)
    link.reset();
}

void LocalLinks::close_gently() {
  for (const auto& link : links_) {
    if (link != nullptr && link->up()) link->connection().close_after_flush(kFlushTime);
  }
  close();
}

}  // namespace bps
