#include "client/src/lanes/lane.h"

#include <algorithm>
#include <utility>

#include "proto/wire/shm_name.h"
#include "proto/wire/timing.h"

namespace bps {

namespace {

// What the same hello will meet again, and what is sent after it.
bool is_lasting(ErrorCode code) {
  return code == ErrorCode::protocol || code == ErrorCode::unauthorised || code == ErrorCode::configuration ||
         code == ErrorCode::invalid_argument || code == ErrorCode::os || code == ErrorCode::out_of_memory;
}

// Of a better way: this process or the server has no descriptors or memory for it.
bool is_shortage(ErrorCode code) { return code == ErrorCode::os || code == ErrorCode::out_of_memory; }

const char* text_of(Lane::Way way) { return way == Lane::Way::rdma ? "RDMA" : "shared memory"; }

}  // namespace

Lane::Lane(EventLoop& loop, const Ways& ways, Owner& owner, LaneIndex index, const LaneTarget& target,
           const HelloLane& hello, Logger log)
    : loop_(loop),
      ways_(ways),
      owner_(owner),
      index_(index),
      target_(target),
      hello_(hello),
      log_(std::move(log)) {
  hello_.server = target.server;
  hello_.server_incarnation = target.incarnation;
  hello_.shard = target.shard;
}

Lane::~Lane() { close(); }

void Lane::open() { connect(); }

void Lane::close() {
  closed_ = true;
  welcomed_ = false;
  stop_timer();
  connection_.reset();
}

std::string Lane::name() const {
  return "server " + std::to_string(target_.server.value) + " (" + to_string(target_.endpoint) + ")";
}

std::string Lane::describe() const {
  if (closed_) return name() + ", which is gone";
  if (welcomed_) return name();
  if (trouble_) return name() + ", which is not connected: " + trouble_->message;
  return name() + ", which has not welcomed this worker yet";
}

void Lane::stop_timer() {
  loop_.cancel(timer_);
  timer_ = {};
}

std::unique_ptr<Connection> Lane::connection_to_server() {
  if (way() == Way::network) return ways_.network.connect(loop_, target_.endpoint, kHelloTimeout);
  const Endpoint endpoint = way() == Way::shared_memory
                                ? shm_endpoint(target_.endpoint.port, target_.incarnation)
                                : target_.endpoint;
  return ways_.transport->connect(loop_, endpoint, kHelloTimeout);
}

void Lane::connect() {
  hello_.session = hello_.session.next();
  connection_ = connection_to_server();
  connection_->start(*this);
  Message message = hello_;
  if (Status status = handshake_.begin(ways_.ticket, message); !status.ok()) return break_off(status.error());
  connection_->send(message);
  timer_ = loop_.after(kHelloTimeout, [this] {
    timer_ = {};
    break_off(make_error(ErrorCode::unreachable, "it does not answer the hello"));
  });
}

void Lane::on_challenge(const Challenge& challenge) {
  const Result<Proof> proof = handshake_.answer(challenge);
  if (proof.ok()) return connection_->send(*proof);
  break_off(proof.error());
}

void Lane::on_welcome(const Welcome& welcome) {
  if (welcomed_ || welcome.job_run != hello_.job_run || welcome.server != hello_.server) {
    break_off(make_error(ErrorCode::protocol, "it sent a welcome that does not fit the hello"));
    return;
  }
  if (Status status = handshake_.check(welcome, "it"); !status.ok()) return break_off(status.error());
  stop_timer();
  welcomed_ = true;
  connection_->end_handshake(kMaxLaneHeaderBytes);
  if (warned_) log_.warn("{} is connected again", name());
  trouble_.reset();
  welcomed_at_ = loop_.now();
  broken_since_.reset();
  warned_ = false;
  answered_ = false;
  better_works_ = way() != Way::network;
  owner_.on_lane_welcomed(*this);
}

std::byte* Lane::on_payload(const Message& message, std::uint64_t bytes) {
  return welcomed_ ? owner_.on_lane_payload(*this, message, bytes) : nullptr;
}

void Lane::on_message(Message& message, std::span<std::byte> payload) {
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    on_welcome(*welcome);
  } else if (const auto* challenge = std::get_if<Challenge>(&message); challenge != nullptr && !welcomed_) {
    on_challenge(*challenge);
  } else if (const auto* refused = std::get_if<Refused>(&message)) {
    break_off(Error{refused->code, refused->message, refused->advice});
  } else if (welcomed_) {
    answered_ = answered_ || !std::holds_alternative<Credit>(message);
    owner_.on_lane_message(*this, message, payload);
  } else {
    break_off(
        make_error(ErrorCode::protocol, std::string("it sent ") + name_of(message) + " before a welcome"));
  }
}

bool Lane::on_lent(Message& message, LentPayload& payload) {
  if (!welcomed_ || !owner_.on_lane_lent(*this, message, payload)) return false;
  answered_ = true;
  return true;
}

void Lane::on_sent(std::uint64_t cookie) { owner_.on_lane_sent(*this, cookie); }

void Lane::on_writable() {
  if (welcomed_) owner_.on_lane_writable(*this);
}

void Lane::on_closed(const Error& error) { retry(error); }

void Lane::break_off(const Error& error) {
  if (closed_ || connection_ == nullptr) return;
  retry(error);
}

// True: another way is to be tried at once.
bool Lane::fall_back(const Error& error, bool was_healthy) {
  if (way() == Way::network) return false;
  // Where nobody listens, the server is gone rather than its shared memory.
  const bool is_short = !was_healthy && error.code != ErrorCode::unreachable;
  short_sessions_ = is_short ? short_sessions_ + 1 : 0;
  if (ways_.only_better) return false;
  const bool has_worked = better_works_;
  const bool is_away =
      way() == Way::rdma && broken_since_ && loop_.now() - *broken_since_ >= kRefusalPatience;
  if (has_worked && !is_away && !is_shortage(error.code) && short_sessions_ < kShortSessions) return false;
  const auto others = ways_.fallbacks != nullptr ? ways_.fallbacks->admit(loop_.now()) : std::string();
  const std::string text = name() + " is not reached over " + text_of(way()) +
                           ", over TCP instead: " + to_string(error) + others.value_or("");
  const bool is_notable = way() == Way::rdma || has_worked || is_shortage(error.code);
  if (others) is_notable ? log_.warn("{}", text) : log_.info("{}", text);
  ways_.transport = nullptr;
  return true;
}

// Why it must be this way, and what to do.
Error Lane::only_better(const Error& error) const {
  if (way() == Way::rdma) {
    const ErrorCode code = is_shortage(error.code) ? error.code : ErrorCode::configuration;
    return make_error(code, "transport rdma is set, and " + error.message,
                      !error.advice.empty()
                          ? error.advice
                          : "start the server with --transport rdma on an address of its RDMA device, or set "
                            "transport auto (BPS_TRANSPORT) here");
  }
  const std::string text = "transport shm is set, and " + error.message;
  if (is_shortage(error.code)) {
    return make_error(error.code, text,
                      "allow this process and the server more memory and descriptors (`ulimit -v`, `ulimit "
                      "-n`), or set transport auto (BPS_TRANSPORT)");
  }
  return make_error(ErrorCode::configuration, text,
                    "start the server as the same user and with transport auto or shm, or set transport auto "
                    "(BPS_TRANSPORT)");
}

void Lane::connect_after(Duration pause) {
  timer_ = loop_.after(pause, [this] {
    timer_ = {};
    connect();
  });
}

void Lane::retry(const Error& cause) {
  stop_timer();
  if (welcomed_) owner_.on_lane_breaking(*this);
  connection_.reset();
  const TimePoint now = loop_.now();
  const bool was_welcomed = std::exchange(welcomed_, false);
  const bool lived = was_welcomed && now - welcomed_at_ >= kRefusalPatience;
  if (lived || (was_welcomed && answered_)) pause_ = kFirstPause;
  const bool falls_back = fall_back(cause, lived || (was_welcomed && answered_));
  if (falls_back && !was_welcomed) return connect_after(Duration{});
  const bool no_other = ways_.only_better && (!better_works_ || is_shortage(cause.code));
  const Error error = no_other ? only_better(cause) : cause;
  trouble_ = error;
  if (!broken_since_) {
    broken_since_ = now;
    const bool was_silent = was_welcomed && error.code == ErrorCode::deadline;
    away_since_ = was_silent ? std::max(welcomed_at_, now - kHeartbeatTimeout) : now;
    if (!falls_back) log_.info("{} is lost: {}; connecting again", name(), error.message);
  } else if (!warned_ && now - *broken_since_ >= kQuietReconnect) {
    warned_ = true;
    log_.warn("{} cannot be reached for {} s: {}; trying on", name(),
              std::chrono::duration_cast<std::chrono::seconds>(now - *broken_since_).count(), error.message);
  }
  // A welcome alone ends no row of refusals: what is sent after it may be what is refused.
  if (falls_back || !is_lasting(error.code)) {
    refused_since_.reset();
  } else if (!refused_since_ || lived) {
    refused_since_ = now;
  }
  connect_after(falls_back ? Duration{} : pause_);
  if (!falls_back) pause_ = std::min(pause_ * 2, kLongestPause);
  const bool give_up = refused_since_ && now - *refused_since_ >= kRefusalPatience;
  owner_.on_lane_broken(*this);
  if (give_up && !closed_) owner_.on_lane_refused(*this, *trouble_);
}

}  // namespace bps
