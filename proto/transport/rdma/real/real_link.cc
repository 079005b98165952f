#include "proto/transport/rdma/real/real_link.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace bps {
namespace {

// How often a device repeats what the peer does not acknowledge. Few: owners notice silence sooner.
constexpr std::uint8_t kRetries = 2;
// Of a SEND that finds no buffer. That cannot happen; if it does, the peer counts wrong, and the connection
// is to end (7 would repeat it for ever).
constexpr std::uint8_t kNotReadyRetries = 6;
// Why a connection was rejected, as InfiniBand numbers it.
constexpr int kNobodyListens = 8;
constexpr int kByTheProgram = 28;
constexpr std::uint32_t kWantedInlineBytes = 220;
// How long the kernel may look for the peer's address at first, then twice as long each time. While it waits
// for the answer to its ARP it may miss it, and then looks again when its time is up, not before.
constexpr int kFirstResolveMs = 100;

// -1 is not EPERM: librdmacm has failed to carry on, and does not say why.
std::string text_of(int status) {
  return status == -1 ? "the queue pair could not be connected"
                      : std::strerror(status < 0 ? -status : status);
}

rdma_conn_param parameters(std::span<const std::byte> private_data) {
  rdma_conn_param param{};
  param.private_data = private_data.data();
  param.private_data_len = static_cast<std::uint8_t>(private_data.size());
  // As many READs as both devices can; each end says in its hello how many it serves.
  param.responder_resources = RDMA_MAX_RESP_RES;
  param.initiator_depth = RDMA_MAX_INIT_DEPTH;
  param.flow_control = 1;
  param.retry_count = kRetries;
  param.rnr_retry_count = kNotReadyRetries;
  return param;
}

constexpr std::uint32_t kEvents = 1;
constexpr std::uint32_t kCompletions = 2;

}  // namespace

// ---- life ----

RealLink::RealLink(std::shared_ptr<RealVerbs> verbs, CmId id, UniqueFd wait)
    : verbs_(std::move(verbs)), library_(verbs_->library()), id_(std::move(id)), wait_(std::move(wait)) {}

Result<std::unique_ptr<RealLink>> RealLink::adopt(std::shared_ptr<RealVerbs> verbs, CmId id) {
  UniqueFd wait(::epoll_create1(EPOLL_CLOEXEC));
  if (!wait) return os_error("cannot watch a connection over RDMA", errno, "raise `ulimit -n`");
  if (Status status = watch_descriptor(wait.get(), id.descriptor(), kEvents); !status.ok())
    return std::move(status).error();
  return std::make_unique<RealLink>(std::move(verbs), std::move(id), std::move(wait));
}

Result<std::unique_ptr<RealLink>> RealLink::connect(std::shared_ptr<RealVerbs> verbs,
                                                    const SocketAddress& address, int timeout_ms) {
  auto source = verbs->source(address);
  if (!source) return std::move(source).error();
  auto id = CmId::create(verbs->library());
  if (!id) return std::move(id).error();
  if (Status status = verbs->apply_options(id->get()); !status.ok()) return std::move(status).error();
  auto link = adopt(std::move(verbs), std::move(id).value());
  if (!link) return link;
  RealLink& made = **link;
  made.timeout_ms_ = timeout_ms;
  made.from_ = std::move(source).value();
  made.to_ = address;
  if (Status status = made.resolve(); !status.ok()) return std::move(status).error();
  return link;
}

Status RealLink::resolve() {
  const int attempt = std::min(timeout_ms_ - waited_ms_, std::max(kFirstResolveMs, waited_ms_));
  waited_ms_ += attempt;
  if (library_.resolve_addr(id_.get(), from_ ? from_->get() : nullptr, to_.get(), attempt) == 0) return {};
  return os_error(from_ ? "it cannot be reached from " + endpoint_of(*from_).host
                        : "no RDMA device of this host leads to that address",
                  errno);
}

// Destroying a queue pair waits until the device is done with it, and with its memory.
RealLink::~RealLink() {
  if (was_connected_) library_.disconnect(id_.get());
  if (id_.get()->qp != nullptr) library_.destroy_qp(id_.get());
  if (completions_ != nullptr) {
    take_completion_events();
    if (unacknowledged_ > 0) library_.ack_cq_events(completions_, unacknowledged_);
    library_.destroy_cq(completions_);
  }
  if (channel_ != nullptr) library_.destroy_comp_channel(channel_);
}

// ---- news ----

void RealLink::take_completion_events() {
  ibv_cq* from = nullptr;
  void* context = nullptr;
  while (library_.get_cq_event(channel_, &from, &context) == 0)
    ++unacknowledged_;
}

std::optional<VerbsNews> RealLink::next_news() {
  std::array<epoll_event, 2> ready{};
  const int count = ::epoll_wait(wait_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  bool any = false;
  for (int i = 0; i < count; ++i) {
    if (ready[static_cast<std::size_t>(i)].data.u32 == kCompletions) {
      take_completion_events();
    } else {
      any = true;
    }
  }
  while (any) {
    const auto event = id_.next();
    if (!event) break;
    if (auto news = news_of(*event)) return news;
  }
  return std::nullopt;
}

std::optional<VerbsNews> RealLink::news_of(const CmId::Event& event) {
  using Kind = VerbsNews::Kind;
  const auto failed = [&](const std::string& what) { return VerbsNews{Kind::failed, what, {}}; };
  switch (event.kind) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (Status status = find_device(); !status.ok())
        return failed("what leads to that address is " + status.error().message);
      if (library_.resolve_route(id_.get(), timeout_ms_) != 0)
        return failed("no route over RDMA device " + device_->name() + ": " + std::strerror(errno));
      return std::nullopt;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: return VerbsNews{Kind::resolved, {}, {}};
    case RDMA_CM_EVENT_ESTABLISHED:
      if (std::exchange(has_asked_, false)) {
        if (Status status = set_access(0); !status.ok()) return failed(status.error().message);
      }
      return VerbsNews{Kind::established, {}, event.private_data};
    case RDMA_CM_EVENT_ADDR_ERROR:
      if (event.status == -ETIMEDOUT && waited_ms_ < timeout_ms_) {
        Status status = resolve();
        return status.ok() ? std::nullopt : std::optional(failed(status.error().message));
      }
      return failed("no RDMA device of this host leads to that address: " + text_of(event.status));
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return failed("no route over RDMA to that address: " + text_of(event.status));
    case RDMA_CM_EVENT_CONNECT_ERROR: return failed("rdma_cm failed: " + text_of(event.status));
    case RDMA_CM_EVENT_UNREACHABLE: return failed("no answer to rdma_cm: " + text_of(event.status));
    case RDMA_CM_EVENT_REJECTED:
      if (event.status == kNobodyListens) return VerbsNews{Kind::refused, {}, {}};
      // iWARP tells the two apart by what the program said.
      if (event.status == kByTheProgram || event.status == -ECONNREFUSED)
        return VerbsNews{Kind::refused, {}, event.private_data};
      return failed(fmt::format("rejected by the peer's rdma_cm, with reason {}", event.status));
    case RDMA_CM_EVENT_DISCONNECTED: return VerbsNews{Kind::disconnected, {}, {}};
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      verbs_->lose_device_of(id_.get());
      return VerbsNews{Kind::removed, "the RDMA device was removed", {}};
    default: return std::nullopt;
  }
}

// ---- opening ----

Status RealLink::find_device() {
  auto device = verbs_->device_of(id_.get());
  if (!device) return device.error();
  use_.emplace(std::move(device).value());
  device_ = &use_->device();
  return {};
}

Status RealLink::make_queues(const QueueDepths& depths) {
  BPS_ASSERT(device_ != nullptr && channel_ == nullptr);
  channel_ = library_.create_comp_channel(device_->context());
  if (channel_ == nullptr) return os_error("cannot make a completion channel", errno, "raise `ulimit -n`");
  const int flags = ::fcntl(channel_->fd, F_GETFL);
  ::fcntl(channel_->fd, F_SETFL, flags | O_NONBLOCK);
  ::fcntl(channel_->fd, F_SETFD, FD_CLOEXEC);
  completions_ = library_.create_cq(device_->context(), static_cast<int>(depths.requests + depths.receives),
                                    nullptr, channel_, 0);
  if (completions_ == nullptr) return os_error("cannot make a completion queue", errno);
  if (Status status = watch_descriptor(wait_.get(), channel_->fd, kCompletions); !status.ok()) return status;
  return make_queue_pair(depths);
}

Status RealLink::make_queue_pair(const QueueDepths& depths) {
  int error = 0;
  // Some devices cannot carry as much in line as is wished, and say so only by refusing.
  for (const std::uint32_t wanted : {kWantedInlineBytes, 64u, 0u}) {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = completions_;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = depths.requests;
    attributes.cap.max_recv_wr = depths.receives;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.cap.max_inline_data = wanted;
    if (library_.create_qp(id_.get(), device_->domain(), &attributes) == 0) {
      inline_bytes_ = std::min(attributes.cap.max_inline_data, wanted);
      return {};
    }
    error = errno;
  }
  Error failed = os_error("cannot make a queue pair on RDMA device " + device_->name(), error);
  if (error == ENOMEM) {
    failed.code = ErrorCode::out_of_memory;
    failed.advice = "raise the limit of locked memory (`ulimit -l`), or rdma.max of the cgroup";
  }
  return failed;
}

Status RealLink::connect(std::span<const std::byte> private_data) {
  rdma_conn_param param = parameters(private_data);
  if (library_.connect(id_.get(), &param) != 0)
    return make_error(ErrorCode::unreachable, std::string("rdma_connect: ") + std::strerror(errno));
  was_connected_ = has_asked_ = true;
  return {};
}

Status RealLink::accept(std::span<const std::byte> private_data) {
  rdma_conn_param param = parameters(private_data);
  if (library_.accept(id_.get(), &param) != 0) return os_error("rdma_accept", errno);
  was_connected_ = true;
  return set_access(0);
}

// librdmacm lets the peer READ, and more, when it makes the queue pair ready. That can be taken back only
// afterwards: until then, some microseconds, a peer that has the answer may READ.
Status RealLink::set_access(int flags) {
  ibv_qp_attr attributes{};
  attributes.qp_access_flags = static_cast<unsigned>(flags);
  if (const int error = library_.modify_qp(id_.get()->qp, &attributes, IBV_QP_ACCESS_FLAGS); error != 0)
    return os_error(
        "a queue pair on RDMA device " + device_->name() + " does not change what its peer may do", error);
  return {};
}

void RealLink::reject(std::span<const std::byte> private_data) {
  library_.reject(id_.get(), private_data.data(), static_cast<std::uint8_t>(private_data.size()));
}

// ---- requests ----

Status RealLink::post(const WorkRequest& request) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(request.local), request.bytes, request.local_key};
  ibv_send_wr work{};
  work.wr_id = request.id;
  work.sg_list = &piece;
  work.num_sge = 1;
  if (request.signalled) work.send_flags |= IBV_SEND_SIGNALED;
  if (request.in_line) work.send_flags |= IBV_SEND_INLINE;
  if (request.kind == WorkRequest::Kind::read) {
    work.opcode = IBV_WR_RDMA_READ;
    work.wr.rdma.remote_addr = request.remote;
    work.wr.rdma.rkey = request.remote_key;
  } else {
    work.opcode = IBV_WR_SEND;
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(id_.get()->qp, &work, &bad); error != 0)
    return os_error("a request to RDMA device " + device_->name() + " failed", error);
  return {};
}

Status RealLink::post_receive(std::uint64_t id, std::span<std::byte> memory, std::uint32_t local_key) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(memory.data()), static_cast<std::uint32_t>(memory.size()),
                local_key};
  ibv_recv_wr work{};
  work.wr_id = id;
  work.sg_list = &piece;
  work.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  if (const int error = ibv_post_recv(id_.get()->qp, &work, &bad); error != 0)
    return os_error("a receive buffer for RDMA device " + device_->name() + " failed", error);
  return {};
}

std::size_t RealLink::poll(std::span<WorkCompletion> completions) {
  std::array<ibv_wc, 32> found;
  const std::size_t room = std::min(found.size(), completions.size());
  const int count = ibv_poll_cq(completions_, static_cast<int>(room), found.data());
  for (int i = 0; i < count; ++i) {
    const ibv_wc& completion = found[static_cast<std::size_t>(i)];
    completions[static_cast<std::size_t>(i)] = {completion.wr_id, completion.byte_len,
                                                static_cast<std::uint32_t>(completion.status)};
  }
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

Status RealLink::arm() {
  if (const int error = ibv_req_notify_cq(completions_, 0); error != 0)
    return os_error("RDMA device " + device_->name() + " does not tell of completions", error);
  return {};
}

}  // namespace bps
