// What a peer says about shared memory: records, references, and an inbox that gets them in any order, with
// descriptors that are what they should be, or are not.
#include <fcntl.h>

#include <deque>

#include "proto/base/assert.h"
#include "proto/transport/shm/shm_inbox.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

constexpr std::size_t kRegionBytes = 8192;

void check_records(std::span<const std::byte> bytes) {
  if (const auto record = decode_record(bytes)) {
    std::vector<std::byte> frame;
    if (std::holds_alternative<ShmHello>(*record)) append_hello(frame);
    if (const auto* region = std::get_if<ShmRegionRecord>(&*record)) append_region(frame, *region);
    if (const auto* drop = std::get_if<ShmDrop>(&*record)) append_drop(frame, *drop);
    if (const auto* returned = std::get_if<ReturnedLoans>(&*record)) {
      std::vector<std::uint64_t> tokens;
      for (std::size_t i = 0; i < returned->size(); ++i)
        tokens.push_back((*returned)[i]);
      append_returned(frame, tokens);
    }
    const auto again = std::span<const std::byte>(frame).subspan(kFramePrefixBytes);
    BPS_ASSERT(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
  if (bytes.size() < kFrameReferenceBytes) return;
  const auto reference = decode_reference(bytes.first<kFrameReferenceBytes>());
  if (!reference) return;
  const auto again = encode_reference(*reference);
  BPS_ASSERT(std::equal(again.begin(), again.end(), bytes.begin()));
}

class Peer final : public ShmInbox::Owner {
 public:
  void act(Input& input) {
    switch (input.below(8)) {
      case 0: broken(inbox_->add_descriptor(descriptor(input.below(4)))); break;
      case 1: broken(inbox_->on_hello()); break;
      case 2:
        if (inbox_->has_hello()) broken(inbox_->on_region({id(input), size(input)}));
        break;
      case 3:
        if (inbox_->has_hello()) broken(inbox_->on_drop({id(input)}));
        break;
      case 4:
      case 5: borrow(input); break;
      case 6:
        if (!lent_.empty())
          lent_.erase(lent_.begin() + input.below(static_cast<std::uint32_t>(lent_.size())));
        break;
      default: rest(input.below(3));
    }
    BPS_ASSERT(inbox_->mapped_regions() <= kMaxShmRegions);
    BPS_ASSERT(budget_->regions_left() >= 0);
  }

  void end() {
    inbox_ = nullptr;
    for (const LentPayload& payload : lent_)  // outlives its connection
      (void)payload.intact(), sum(payload);
    lent_.clear();
    BPS_ASSERT(budget_->regions_left() == kBudget && budget_->bytes() == 0);
  }

 private:
  static constexpr std::int64_t kBudget = 3;

  void on_given_back() override {}

  // A stream closes with its first error, and what was lent may still be held then.
  void broken(const Status& status) {
    if (status.ok()) return;
    BPS_ASSERT(!status.error().message.empty());
    inbox_ = std::make_unique<ShmInbox>(budget_, *this);
  }

  void rest(std::uint32_t what) {
    if (what == 0) {
      BPS_ASSERT(inbox_->returned().size() <= borrowed_);
      inbox_->clear_returned();
    } else if (what == 1) {
      auto other = std::make_unique<ShmInbox>(budget_, *this);
      inbox_->move_to(*other);
      inbox_ = std::move(other);
    } else if (inbox_->has_hello()) {
      BPS_ASSERT(inbox_->intact());
    }
  }

  void borrow(Input& input) {
    if (!inbox_->has_hello()) return;
    LoanReference reference;
    reference.token = input.number();
    reference.where = input.number() * (input.flag() ? 1 : 1024);
    reference.memory = id(input);
    auto lent = inbox_->borrow(reference, std::max<std::uint64_t>(1, size(input)));
    if (!lent) return broken(std::move(lent).error());
    sum(*lent);
    ++borrowed_;
    lent_.push_back(std::move(lent).value());
    if (lent_.size() > 16) lent_.pop_front();
  }

  static void sum(const LentPayload& payload) {
    unsigned sum = 0;
    for (const std::byte byte : payload.bytes())
      sum += std::to_integer<unsigned>(byte);
    BPS_ASSERT(sum == 0);
  }
  static std::uint32_t id(Input& input) {
    const std::uint32_t value = input.below(16);
    return value < 12 ? value % 3 : value < 14 ? kMaxShmRegions - 1 : input.number32();
  }
  static std::uint64_t size(Input& input) {
    const std::uint32_t value = input.below(8);
    return value < 5 ? std::uint64_t{value + 1} * 2048 : value == 5 ? 1 : input.number();
  }
  static UniqueFd descriptor(std::uint32_t what) {
    static const auto right = make_shm_memory(kRegionBytes);
    BPS_ASSERT(right.ok());
    const int fd =
        what == 0 ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : ::fcntl(right->fd.get(), F_DUPFD_CLOEXEC, 0);
    return UniqueFd(fd);
  }

  const std::shared_ptr<ShmMappingBudget> budget_ = std::make_shared<ShmMappingBudget>(kBudget);
  std::unique_ptr<ShmInbox> inbox_ = std::make_unique<ShmInbox>(budget_, *this);
  std::deque<LentPayload> lent_;
  std::size_t borrowed_ = 0;
};

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all = random_seeds(100, 200);
  std::vector<std::vector<std::byte>> frames(4);
  const std::uint64_t tokens[] = {1, 2};
  append_hello(frames[0]);
  append_region(frames[1], {2, kRegionBytes});
  append_drop(frames[2], {2});
  append_returned(frames[3], tokens);
  for (const auto& frame : frames) {
    all.push_back(to_bytes(std::span<const std::byte>(frame).subspan(kFramePrefixBytes)));
    all.back().insert(all.back().begin(), 1);
  }
  all.push_back(to_bytes(encode_reference({7, 100, 2, true})));
  all.back().insert(all.back().begin(), 1);
  return all;
}

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  if (input.flag()) {
    bps::fuzz::check_records(input.rest());
    return 0;
  }
  bps::fuzz::Peer peer;
  // A usual beginning, so that most inputs come past it.
  for (const std::uint8_t choices : {std::uint8_t{0}, std::uint8_t{1}, std::uint8_t{0}, std::uint8_t{2}}) {
    const std::uint8_t bytes[] = {choices, static_cast<std::uint8_t>(choices == 0 ? 1 : 0), 3};
    bps::fuzz::Input usual(bytes, sizeof bytes);
    peer.act(usual);
  }
  while (!input.empty())
    peer.act(input);
  peer.end();
  return 0;
}
