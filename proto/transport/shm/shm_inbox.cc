#include "proto/transport/shm/shm_inbox.h"

#include <fmt/core.h>

#include <string>
#include <utility>

#include "proto/base/config/units.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

Error wrong(std::string what) { return make_error(ErrorCode::protocol, std::move(what)); }

}  // namespace

Status ShmMappingBudget::take(std::uint64_t bytes) {
  const bool has_region = regions_left_.fetch_sub(1, std::memory_order_relaxed) > 0;
  const std::uint64_t before = bytes_.fetch_add(bytes, std::memory_order_relaxed);
  const std::uint64_t most = max_bytes_.load(std::memory_order_relaxed);
  if (has_region && before + bytes <= most) return {};
  give_back(bytes);
  if (!has_region) {
    return make_error(ErrorCode::out_of_memory, "this process maps no more regions of its peers",
                      "let peers use fewer and larger regions");
  }
  return make_error(ErrorCode::out_of_memory,
                    fmt::format("cannot map {} of shared memory: {} are mapped already, and the receiver has "
                                "address space for {}",
                                rounded(ByteSize{bytes}), rounded(ByteSize{before}), rounded(ByteSize{most})),
                    "raise `ulimit -v` of the receiver");
}

void ShmMappingBudget::give_back(std::uint64_t bytes) {
  regions_left_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

// What lent payloads and their connection share: the connection may be gone, or be another one after a move.
struct ShmInbox::Link {
  ShmPeerControl control;
  Owner* owner = nullptr;  // null when the connection is gone; loop only
  std::vector<std::uint64_t> returned;
};

class ShmInbox::MappedRegion final : public LentPayload::Lender {
 public:
  MappedRegion(ShmMapping memory, std::shared_ptr<Link> link, std::shared_ptr<ShmMappingBudget> budget)
      : memory_(std::move(memory)), link_(std::move(link)), budget_(std::move(budget)) {}
  ~MappedRegion() override { budget_->give_back(memory_.bytes().size()); }

  void give_back(std::uint64_t token) override {
    if (link_->owner == nullptr) return;
    link_->returned.push_back(token);
    if (link_->returned.size() == 1) link_->owner->on_given_back();
  }
  bool intact() const override { return link_->control.intact(); }
  std::span<const std::byte> bytes() const { return memory_.bytes(); }

 private:
  const ShmMapping memory_;
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<ShmMappingBudget> budget_;
};

ShmInbox::ShmInbox(std::shared_ptr<ShmMappingBudget> budget, Owner& owner)
    : budget_(std::move(budget)), owner_(owner) {}

void ShmInbox::move_to(ShmInbox& other) {
  other.descriptors_ = std::exchange(descriptors_, {});
  other.link_ = std::exchange(link_, nullptr);
  if (other.link_) other.link_->owner = &other.owner_;
  other.regions_ = std::exchange(regions_, {});
  other.mapped_regions_ = std::exchange(mapped_regions_, 0);
  other.mapped_bytes_ = std::exchange(mapped_bytes_, 0);
}

void ShmInbox::close() {
  if (link_) link_->owner = nullptr;
  link_.reset();
  regions_.clear();
  descriptors_.clear();
}

Status ShmInbox::add_descriptor(UniqueFd fd) {
  if (descriptors_.size() >= kMaxShmPendingDescriptors) {
    return wrong(fmt::format("more than {} descriptors came before the records that need them",
                             kMaxShmPendingDescriptors));
  }
  descriptors_.push_back(std::move(fd));
  return {};
}

Result<UniqueFd> ShmInbox::take_descriptor() {
  if (descriptors_.empty()) return wrong("a record of shared memory came without its descriptor");
  UniqueFd fd = std::move(descriptors_.front());
  descriptors_.erase(descriptors_.begin());
  return fd;
}

Status ShmInbox::on_hello() {
  if (link_) return wrong("a second hello of shared memory");
  auto fd = take_descriptor();
  if (!fd) return std::move(fd).error();
  auto mapping = map_peer_memory(fd->get(), kShmControlBytes);
  if (!mapping) return std::move(mapping).error();
  link_ = std::make_shared<Link>();
  link_->control = ShmPeerControl(std::move(mapping).value());
  link_->owner = &owner_;
  return {};
}

Status ShmInbox::on_region(const ShmRegionRecord& record) {
  auto fd = take_descriptor();
  if (!fd) return std::move(fd).error();
  if (record.region >= kMaxShmRegions) {
    return wrong(fmt::format("a region of shared memory has the number {}, at most {} are allowed",
                             record.region, kMaxShmRegions));
  }
  if (record.region < regions_.size() && regions_[record.region]) {
    return wrong(fmt::format("there are two regions of shared memory with the number {}", record.region));
  }
  if (record.bytes > kMaxShmRegionBytes - mapped_bytes_) {
    return wrong(
        fmt::format("regions of shared memory have more than {} bytes together", kMaxShmRegionBytes));
  }
  if (Status status = budget_->take(record.bytes); !status.ok()) return status;
  auto mapping = map_peer_memory(fd->get(), record.bytes);
  if (!mapping) {
    budget_->give_back(record.bytes);
    return std::move(mapping).error();
  }
  if (record.region >= regions_.size()) regions_.resize(record.region + 1);
  regions_[record.region] = std::make_shared<MappedRegion>(std::move(mapping).value(), link_, budget_);
  ++mapped_regions_;
  mapped_bytes_ += record.bytes;
  return {};
}

Status ShmInbox::on_drop(const ShmDrop& record) {
  if (record.region >= regions_.size() || !regions_[record.region])
    return wrong(fmt::format("region {} of shared memory is dropped, but is none", record.region));
  mapped_bytes_ -= regions_[record.region]->bytes().size();
  --mapped_regions_;
  regions_[record.region].reset();
  return {};
}

Result<LentPayload> ShmInbox::borrow(const LoanReference& reference, std::uint64_t bytes) {
  if (reference.memory >= regions_.size() || !regions_[reference.memory])
    return wrong(
        fmt::format("a payload lies in region {} of shared memory, which is none", reference.memory));
  const auto& region = regions_[reference.memory];
  const std::uint64_t size = region->bytes().size();
  if (bytes > size || reference.where > size - bytes) {
    return wrong(fmt::format("a payload of {} bytes at {} ends outside of region {}, which has {}", bytes,
                             reference.where, reference.memory, size));
  }
  return LentPayload(region, reference.token, region->bytes().subspan(reference.where, bytes),
                     reference.scarce);
}

bool ShmInbox::intact() const { return link_->control.intact(); }

std::span<const std::uint64_t> ShmInbox::returned() const {
  if (!link_) return {};
  return link_->returned;
}

void ShmInbox::clear_returned() {
  if (link_) link_->returned.clear();
}

}  // namespace bps
