// A peer over RDMA, on a device inside the process, that says what it likes: in its hello, in the heads of
// its SENDs, in frames, references to memory that it shows or does not, tokens, and the end. The connection
// ends or goes on; nothing is left of it, and no SEND of ours finds the peer without a buffer while it counts
// right.
#include <array>
#include <deque>

#include "proto/base/assert.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/transport/lending/loan_records.h"
#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/rdma/rdma_records.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

constexpr std::size_t kBufferBytes = 512;
constexpr std::uint32_t kBuffers = 8;
constexpr std::size_t kShownBytes = 32 * 1024;
constexpr std::size_t kMostPayloadBytes = 64 * 1024;

RdmaOptions small_options() {
  RdmaOptions options;
  options.inline_bytes = 256;
  options.slab_bytes = 16 * 1024;
  options.buffers = kBuffers;
  options.buffer_bytes = kBufferBytes;
  options.read_bytes = 4096;
  options.reads = 4;
  options.log = Logger("rdma", LogTarget::to_callback([](auto&&...) {}, LogLevel::off));
  return options;
}

// What the peer talks to: keeps some of what it is lent, and sends payloads of its own.
class Victim final : public ConnectionHandler {
 public:
  explicit Victim(Transport& transport) {
    region_ = transport.allocate(kShownBytes).value();
    ordinary_.resize(kShownBytes);
  }

  void take(std::unique_ptr<Connection> connection) {
    connection_ = std::move(connection);
    connection_->start(*this);
  }
  void act(Input& input) {
    if (connection_ == nullptr) return;
    const std::uint32_t what = input.below(8);
    if (what == 0) {
      connection_.reset();
    } else if (what == 1) {
      connection_->close_after_flush(std::chrono::milliseconds(1));
    } else if (what == 2) {
      if (!lent_.empty()) lent_.pop_front();
    } else {
      const std::size_t bytes = std::min<std::size_t>(input.below(20'000), kShownBytes);
      const bool in_region = input.flag();
      const auto from = std::span<const std::byte>(in_region ? region_->bytes() : std::span(ordinary_));
      connection_->send(PushPull{}, {from.first(bytes), in_region ? region_.get() : nullptr}, ++sent_);
    }
  }
  void end() {
    connection_.reset();
    lent_.clear();
    region_.reset();
  }

 private:
  std::byte* on_payload(const Message&, std::uint64_t bytes) override {
    if (bytes > kMostPayloadBytes) return nullptr;
    destination_.resize(bytes);
    return destination_.data();
  }
  bool on_lent(Message&, LentPayload& payload) override {
    unsigned sum = 0;
    for (const std::byte byte : payload.bytes())
      sum += std::to_integer<unsigned>(byte);
    if (sum % 2 == 1) return false;
    lent_.push_back(std::move(payload));
    if (lent_.size() > 3) lent_.pop_front();
    return true;
  }
  void on_message(Message&, std::span<std::byte> payload) override {
    BPS_ASSERT(payload.empty() || payload.data() == destination_.data());
  }
  void on_sent(std::uint64_t cookie) override { BPS_ASSERT(cookie > 0 && cookie <= sent_); }
  void on_closed(const Error& error) override {
    BPS_ASSERT(!error.message.empty());
    connection_.reset();
  }

  std::unique_ptr<Connection> connection_;
  std::shared_ptr<Region> region_;
  std::vector<std::byte> ordinary_;
  std::vector<std::byte> destination_;
  std::deque<LentPayload> lent_;
  std::uint64_t sent_ = 0;
};

class Scene {
 public:
  explicit Scene(bool shuffle) : fabric_(std::make_shared<FakeFabric>(options(shuffle))) {
    own_.resize(std::size_t{2} * kBuffers * kBufferBytes);
    for (std::size_t i = 0; i < shown_.size(); ++i)
      shown_[i] = static_cast<std::byte>(i);
  }

  void run(Input& input) {
    {
      RdmaTransport transport(fabric_, small_options());
      Victim victim(transport);
      auto listener = transport.listen(loop_, {FakeFabric::kHost, 0}, [&](std::unique_ptr<Connection> made) {
        victim.take(std::move(made));
      });
      BPS_ASSERT(listener.ok());
      connect((*listener)->endpoint(), input);
      while (!input.empty())
        act(input, victim);
      turn(20);
      victim.end();
      link_.reset();
      turn(20);
    }
    own_key_.reset();
    shown_key_.reset();
    BPS_ASSERT(fabric_->links() == 0 && fabric_->queue_pairs() == 0 && fabric_->memories() == 0);
  }

 private:
  static FakeOptions options(bool shuffle) {
    FakeOptions made;
    made.shuffle = shuffle;
    return made;
  }

  void connect(const Endpoint& endpoint, Input& input) {
    link_ = fabric_->connect(numeric_address(endpoint).at(0), 1000).value();
    own_key_ = fabric_->device().register_memory(own_, false).value();
    shown_key_ = fabric_->device().register_memory(shown_, true).value();
    BPS_ASSERT(link_->make_queues({64, kBuffers}).ok());
    for (std::uint32_t i = 0; i < kBuffers; ++i)
      post_receive(i);
    const std::uint32_t how = input.below(8);
    RdmaHello hello{kBuffers, kBufferBytes, 4};
    if (how == 1) hello = {input.number32(), input.number32(), input.number32()};
    if (how == 2) hello.buffer_bytes = 256;
    const auto encoded = encode_rdma_hello(hello);
    std::vector<std::byte> bytes(encoded.begin(), encoded.end());
    if (how == 3) {
      const auto raw = input.take(input.below(56));
      bytes.assign(raw.begin(), raw.end());
    }
    BPS_ASSERT(link_->connect(bytes).ok());
    turn(4);
    while (const auto news = link_->next_news())
      (void)decode_rdma_hello(news->private_data).ok();
  }

  void act(Input& input, Victim& victim) {
    switch (input.below(12)) {
      case 0: append(input.take(input.below(300))); break;
      case 1: append_frame(any_message(input), input.below(600)); break;
      case 2: append_frame(PushPull{}, input.below(600)); break;
      case 3:
      case 4: append_lent_frame(input); break;
      case 5: append_tokens(input); break;
      case 6:
      case 7: send(input); break;
      case 8: poll(); break;
      case 9: turn(1 + input.below(3)); break;
      case 10: victim.act(input); break;
      default: rare(input);
    }
  }

  void rare(Input& input) {
    const std::uint32_t what = input.below(16);
    if (what == 0) link_.reset();
    if (what == 1) fabric_->remove_device();
    if (what == 2) fabric_->fail_next_request(1 + input.below(kCompletionStatusCount - 1));
    if (what == 3) fabric_->fail_registrations(input.below(3));
  }

  void append(std::span<const std::byte> bytes) { stream_.insert(stream_.end(), bytes.begin(), bytes.end()); }
  void append_frame(const Message& message, std::size_t payload_bytes) {
    append(encoder_.encode(message, payload_bytes));
    stream_.resize(stream_.size() + payload_bytes);
  }
  void append_lent_frame(Input& input) {
    const std::uint32_t how = input.below(16);
    std::uint64_t bytes = 1 + input.below(kShownBytes / 2);
    LoanReference reference;
    reference.token = input.number();
    reference.memory = shown_key_->remote_key + (how == 0 ? 1 : 0);
    reference.where = reinterpret_cast<std::uintptr_t>(shown_.data()) + input.below(kShownBytes / 2);
    if (how == 1) bytes = input.number();
    if (how == 2) reference.where = input.number();
    reference.scarce = input.flag();
    append_lent(stream_, encoder_.encode(PushPull{}, bytes), bytes, reference);
  }
  void append_tokens(Input& input) {
    std::array<std::uint64_t, 4> tokens{};
    const std::size_t count = 1 + input.below(4);
    for (std::size_t i = 0; i < count; ++i)
      tokens[i] = input.number();
    append_returned(stream_, std::span(tokens).first(count));
  }

  // Some of the stream, or all of it, or none.
  void send(Input& input) {
    if (link_ == nullptr) return;
    const std::uint32_t how = input.below(16);
    const std::size_t slot = kBuffers + sends_++ % kBuffers;
    const auto buffer = std::span(own_).subspan(slot * kBufferBytes, kBufferBytes);
    const auto head = encode_rdma_head({how == 0 ? input.number32() : freed_, how == 1});
    std::copy(head.begin(), head.end(), buffer.begin());
    if (how == 2) buffer[4] = static_cast<std::byte>(input.byte());
    std::size_t bytes = std::min(stream_.size(), kBufferBytes - head.size());
    if (how == 3) bytes = std::min<std::size_t>(bytes, input.byte());
    std::copy_n(stream_.begin(), bytes, buffer.begin() + head.size());
    stream_.erase(stream_.begin(), stream_.begin() + static_cast<std::ptrdiff_t>(bytes));
    WorkRequest request;
    request.signalled = true;
    request.id = sends_;
    request.local = buffer.data();
    request.bytes = static_cast<std::uint32_t>(how == 4 ? input.byte() % 8 : head.size() + bytes);
    request.local_key = own_key_->local_key;
    (void)link_->post(request).ok();
  }

  void poll() {
    if (link_ == nullptr) return;
    while (link_->next_news()) {}
    std::array<WorkCompletion, 8> completions;
    const std::size_t count = link_->poll(completions);
    for (std::size_t i = 0; i < count; ++i) {
      if (completions[i].status != 0 || completions[i].id < kReceiveId) continue;
      const auto index = static_cast<std::uint32_t>(completions[i].id - kReceiveId);
      const auto head = decode_rdma_head(receive_buffer(index).first(completions[i].bytes));
      BPS_ASSERT(head.ok());
      post_receive(index);
      ++freed_;
    }
  }

  std::span<std::byte> receive_buffer(std::uint32_t index) {
    return std::span(own_).subspan(std::size_t{index} * kBufferBytes, kBufferBytes);
  }
  void post_receive(std::uint32_t index) {
    (void)link_->post_receive(kReceiveId + index, receive_buffer(index), own_key_->local_key).ok();
  }

  void turn(std::uint32_t count) {
    for (; count > 0; --count)
      loop_.run_once(loop_.now());
  }

  static constexpr std::uint64_t kReceiveId = 1 << 20;

  AsioLoop loop_;
  const std::shared_ptr<FakeFabric> fabric_;
  Encoder encoder_;
  std::vector<std::byte> own_;
  std::array<std::byte, kShownBytes> shown_;
  std::unique_ptr<VerbsMemory> own_key_;
  std::unique_ptr<VerbsMemory> shown_key_;
  std::unique_ptr<VerbsLink> link_;
  std::vector<std::byte> stream_;
  std::uint64_t sends_ = 0;
  std::uint32_t freed_ = 0;
};

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all = random_seeds(150, 300);
  // Payloads that are shown, sent, read and given back; then what the victim sends.
  for (std::uint8_t shuffle = 0; shuffle < 2; ++shuffle) {
    Bytes usual = {shuffle, 0};
    for (std::uint8_t i = 0; i < 20; ++i) {
      for (const std::uint8_t byte :
           {3, 9, static_cast<int>(i), 16, 7, 0, 0, 0, 6, 9, 9, 2, 8, 10, 5, 0, 48, 1, 9, 1, 8, 5, 0, 1})
        usual.push_back(byte);
      usual.push_back(i);
    }
    all.push_back(usual);
  }
  return all;
}

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  const bool shuffle = input.flag();
  bps::fuzz::Scene scene(shuffle);
  scene.run(input);
  return 0;
}
