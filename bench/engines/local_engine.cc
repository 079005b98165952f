#include "bench/engines/local_engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/engines/values.h"
#include "client/src/group/host_group.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/transport/shm/shm_transport.h"
#include "proto/wire/limits.h"

namespace bps::bench {
namespace {

using namespace std::chrono_literals;

constexpr JobRun kRun{1};
constexpr std::size_t kBatchBytes = 4 * 1024 * 1024;
constexpr std::size_t kOpenBatches = 2;
constexpr auto kPatience = 30s;

class LocalEngine final : public Engine, public LocalGroup::Owner {
 public:
  LocalEngine(const WorkerOptions& options, const EngineOptions& engine, const Buffer& in, const Buffer& out)
      : options_(options),
        engine_(engine),
        in_(in.span()),
        out_(out.span()),
        name_("bps-bench-" + std::filesystem::path(options.control).parent_path().filename().string() + "-" +
              std::to_string(static_cast<int>(engine.memory)) + "-"),
        links_(options.workers) {
    for (std::uint32_t i = 0; i < links_.size(); ++i) {
      links_[i].engine = this;
      links_[i].peer = i;
    }
  }
  ~LocalEngine() override {
    for (Link& link : links_)
      link.connection.reset();
  }

  Status join() override {
    auto listener = transport_.listen(
        loop_, {name_ + std::to_string(options_.index), 0}, [this](std::unique_ptr<Connection> connection) {
          pending_.push_back(std::make_unique<Pending>(*this, std::move(connection)));
        });
    if (!listener) return listener.error();
    listener_ = std::move(*listener);
    HostGroup::Options group;
    group.job_run = kRun;
    for (std::uint32_t i = 0; i < options_.workers; ++i)
      group.ranks.push_back(Rank{i});
    group.member = options_.index;
    group_ = std::make_unique<HostGroup>(loop_, transport_, group, *this);
    if (Status status = find_memory(); !status) return status;
    for (std::uint32_t i = 0; i < options_.index; ++i)
      connect(links_[i]);
    return run_until([this] { return connected_ + 1 == options_.workers; });
  }

  Status prepare(std::uint64_t round) override {
    fill_contribution(pattern(), options_.index, round, in_);
    return {};
  }

  Status run(std::uint64_t round) override {
    round_ = round;
    reduced_ = spread_ = ended_ = 0;
    std::fill(sums_left_.begin(), sums_left_.end(), 0);
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      sums_left_[i / batch_] += pieces_[i].owner == options_.index ? 1 : 0;
    begin_more();
    return run_until([this] { return ended_ == 2 * batches(); });
  }

  Status check(std::uint64_t round) override {
    const std::string wrong = check_sum(pattern(), round, out_);
    return wrong.empty() ? Status{} : Status{make_error(ErrorCode::internal, wrong)};
  }

 private:
  // A connection of a known member.
  struct Link final : ConnectionHandler {
    std::byte* on_payload(const Message& message, std::uint64_t bytes) override {
      return engine->group_->payload(peer, message, bytes);
    }
    void on_message(Message& message, std::span<std::byte> payload) override {
      engine->keep(engine->group_->message(peer, message, payload));
    }
    bool on_lent(Message& message, LentPayload& payload) override {
      const auto taken = engine->group_->lent(peer, message, payload);
      if (!taken) engine->keep(taken.error());
      return taken.ok();
    }
    void on_sent(std::uint64_t cookie) override { engine->group_->sent(peer, cookie); }
    void on_writable() override {
      if (std::exchange(is_up, true)) return;
      ++engine->connected_;
    }
    void on_closed(const Error& error) override {
      if (is_up) return engine->keep(error);
      // The other process is not there yet.
      engine->loop_.after(10ms, [this] { engine->connect(*this); });
    }

    LocalEngine* engine = nullptr;
    std::uint32_t peer = 0;
    std::unique_ptr<Connection> connection;
    bool is_up = false;
  };

  // One that has not said whose it is; its first message does, and others follow only on the new handler.
  struct Pending final : ConnectionHandler {
    Pending(LocalEngine& to, std::unique_ptr<Connection> from) : engine(to), connection(std::move(from)) {
      connection->start(*this);
    }
    std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }
    void on_message(Message& message, std::span<std::byte>) override {
      const auto* const hello = std::get_if<HelloLocal>(&message);
      if (hello == nullptr || hello->rank.value >= engine.links_.size()) return;
      Link& link = engine.links_[hello->rank.value];
      link.connection = connection->move_to(engine.loop_);
      link.is_up = true;
      ++engine.connected_;
      link.connection->start(link);
    }
    void on_closed(const Error& error) override { engine.keep(error); }

    LocalEngine& engine;
    std::unique_ptr<Connection> connection;
  };

  Pattern pattern() const { return {options_.dtype, options_.workers}; }
  std::size_t batches() const { return (pieces_.size() + batch_ - 1) / batch_; }
  Collective collective(std::uint64_t number) const {
    return {round_ * 2 * batches() + number,
            TensorId{0},
            Round{round_},
            RoundKind::push_pull,
            Operation::sum,
            {},
            MemoryKind::host};
  }
  std::span<const LocalPiece> pieces_of(std::size_t batch) const {
    return std::span(pieces_).subspan(batch * batch_, std::min(batch_, pieces_.size() - batch * batch_));
  }

  void connect(Link& link) {
    link.connection = transport_.connect(loop_, {name_ + std::to_string(link.peer), 0}, 5s);
    link.connection->start(link);
    HelloLocal hello;
    hello.job_run = kRun;
    hello.rank = Rank{options_.index};
    link.connection->send(hello);
  }

  Status find_memory() {
    const Region* home = nullptr;
    if (engine_.memory != MemoryUse::user) {
      auto region = transport_.allocate(2 * options_.bytes);
      if (!region) return region.error();
      region_ = std::move(*region);
      home = region_.get();
      in_ = region_->bytes().first(options_.bytes);
      out_ = region_->bytes().subspan(options_.bytes, options_.bytes);
    }
    const std::uint64_t partition = engine_.partition_bytes > 0
                                        ? static_cast<std::uint64_t>(engine_.partition_bytes)
                                        : kDefaultPartitionBytes;
    batch_ = std::max<std::size_t>(1, kBatchBytes / partition);
    auto sums = group_->allocate(options_.bytes);
    if (!sums) return sums.error();
    sums_ = std::move(*sums);
    for (std::uint64_t offset = 0; offset < options_.bytes; offset += partition) {
      LocalPiece piece;
      piece.partition = PartitionId{static_cast<std::uint32_t>(pieces_.size())};
      piece.owner = piece.partition.value % options_.workers;
      piece.dtype = options_.dtype;
      piece.elements =
          static_cast<std::uint32_t>(std::min(partition, options_.bytes - offset) / size_of(options_.dtype));
      piece.in = in_.data() + offset;
      piece.in_home = home;
      piece.out = out_.data() + offset;
      if (piece.owner == options_.index) {
        piece.sum = sums_->bytes().data() + offset;
        piece.answer = piece.sum;
        piece.home = sums_.get();
      }
      pieces_.push_back(piece);
    }
    sums_left_.resize(batches());
    batch_of_.resize(2 * batches());
    return {};
  }

  // In the same order everywhere: two batches ahead of the sums, then a spread for each further reduce.
  void begin_more() {
    for (;;) {
      if (reduced_ < batches() && reduced_ < spread_ + kOpenBatches) {
        batch_of_[reduced_ + spread_] = reduced_;
        group_->reduce(collective(reduced_ + spread_), pieces_of(reduced_));
        ++reduced_;
      } else if (spread_ < reduced_ && sums_left_[spread_] == 0) {
        group_->spread(collective(reduced_ + spread_), pieces_of(spread_));
        ++spread_;
      } else {
        return;
      }
    }
  }

  void on_summed(std::uint64_t number, std::size_t) override {
    --sums_left_[batch_of_[number % batch_of_.size()]];
  }
  void on_ended(std::uint64_t, const Status& status) override {
    keep(status);
    ++ended_;
  }
  void on_broken(const Error& error) override { keep(error); }
  void send(std::uint32_t member, const Message& message, Payload payload, std::uint64_t cookie) override {
    links_[member].connection->send(message, payload, cookie);
  }
  void keep(const Status& status) {
    if (!status && failed_.ok()) failed_ = status;
  }

  template <class Done>
  Status run_until(Done done) {
    const TimePoint deadline = loop_.now() + kPatience;
    while (failed_.ok() && !done()) {
      if (loop_.now() > deadline)
        return make_error(ErrorCode::deadline, "the workers of this host have stopped");
      loop_.run_once(deadline);
      if (!pieces_.empty() && reduced_ > 0) begin_more();
    }
    return failed_;
  }

  const WorkerOptions options_;
  const EngineOptions engine_;
  std::span<std::byte> in_, out_;
  const std::string name_;
  AsioLoop loop_;
  ShmTransport transport_;
  std::shared_ptr<Region> region_, sums_;
  std::vector<LocalPiece> pieces_;
  std::size_t batch_ = 1;               // pieces in one
  std::vector<std::size_t> sums_left_;  // of each batch, here
  std::vector<std::size_t> batch_of_;   // of a reduce, by its number in the round
  std::uint64_t round_ = 0;
  std::size_t reduced_ = 0, spread_ = 0;  // batches that have begun
  std::size_t ended_ = 0;                 // collectives
  Status failed_;
  std::unique_ptr<HostGroup> group_;
  std::vector<Link> links_;  // by member
  std::vector<std::unique_ptr<Pending>> pending_;
  std::size_t connected_ = 0;
  std::unique_ptr<Listener> listener_;
};

class CopyEngine final : public Engine {
 public:
  CopyEngine(const Buffer& in, const Buffer& out) : in_(in), out_(out) {}
  Status join() override { return {}; }
  Status prepare(std::uint64_t round) override {
    std::memset(in_.data(), static_cast<int>(round), in_.size());
    return {};
  }
  Status run(std::uint64_t) override {
    std::memcpy(out_.data(), in_.data(), in_.size());
    return {};
  }
  Status check(std::uint64_t) override {
    if (std::memcmp(out_.data(), in_.data(), in_.size()) == 0) return {};
    return make_error(ErrorCode::internal, "a copy differs");
  }

 private:
  const Buffer& in_;
  const Buffer& out_;
};

}  // namespace

std::unique_ptr<Engine> make_local_engine(const WorkerOptions& options, const EngineOptions& engine,
                                          const Buffer& in, const Buffer& out) {
  return std::make_unique<LocalEngine>(options, engine, in, out);
}

std::unique_ptr<Engine> make_copy_engine(const Buffer& in, const Buffer& out) {
  return std::make_unique<CopyEngine>(in, out);
}

}  // namespace bps::bench
