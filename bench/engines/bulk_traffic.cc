#include "bench/engines/bulk_traffic.h"

#include <algorithm>
#include <string>
#include <utility>

namespace bps::bench {
namespace {

// What a model's large layers are like, and small enough that making and comparing one leaves most of the
// others under way.
constexpr std::size_t kPieces = 16;

}  // namespace

BulkTraffic::BulkTraffic(BpsClient& client, const Pattern& pattern, std::uint32_t rank,
                         std::span<std::byte> in, std::span<std::byte> out)
    : client_(client), pattern_(pattern), rank_(rank), pieces_(kPieces) {
  const std::size_t element = size_of(pattern.dtype);
  const std::size_t each = in.size() / element / kPieces * element;
  for (std::size_t i = 0; i < kPieces; ++i) {
    const std::size_t bytes = i + 1 == kPieces ? in.size() - each * i : each;
    pieces_[i].owner = this;
    pieces_[i].index = i;
    pieces_[i].in = in.subspan(each * i, bytes);
    pieces_[i].out = out.subspan(each * i, bytes);
  }
}

Status BulkTraffic::declare() {
  std::vector<BpsClient::Tensor> tensors;
  for (const Piece& piece : pieces_)
    tensors.push_back({"bulk " + std::to_string(piece.index), piece.in.size()});
  const auto ids = client_.declare(tensors, pattern_.dtype);
  if (!ids) return ids.error();
  for (Piece& piece : pieces_)
    piece.tensor = (*ids)[piece.index];
  const auto agreement = client_.declare({{"rounds of bulk", kPieces * sizeof(std::int64_t)}}, DType::i64);
  if (!agreement) return agreement.error();
  agreement_ = agreement->front();
  return {};
}

// No two pieces have the same values at a time.
std::uint64_t BulkTraffic::values_of(const Piece& piece, std::uint64_t round) {
  return round * kPieces + piece.index;
}

// For the next round.
void BulkTraffic::fill(const Piece& piece) {
  fill_contribution(pattern_, rank_, values_of(piece, piece.begun), piece.in);
}

void BulkTraffic::on_done(const bps_error*, void* user) {
  Piece& piece = *static_cast<Piece*>(user);
  BulkTraffic& self = *piece.owner;
  const std::lock_guard hold(self.mutex_);
  self.done_.push_back(&piece);
  self.wake_.notify_one();
}

// Its input has been made.
Status BulkTraffic::begin(Piece& piece) {
  auto operation = client_.push_pull(piece.tensor, piece.in, piece.out);
  if (!operation) return operation.error();
  piece.operation = std::move(*operation);
  piece.under_way = true;
  ++piece.begun;
  return piece.operation.then(on_done, &piece);
}

Status BulkTraffic::start() {
  stop_ = stopping_ = false;
  result_ = {};
  last_round_.clear();
  for (const Piece& piece : pieces_)
    fill(piece);
  for (Piece& piece : pieces_) {
    if (Status status = begin(piece); !status) return status;
  }
  thread_ = std::thread([this] { run(); });
  return {};
}

Status BulkTraffic::stop() {
  if (!thread_.joinable()) return {};
  {
    const std::lock_guard hold(mutex_);
    stop_ = true;
    wake_.notify_one();
  }
  thread_.join();
  return result_;
}

// Null: told to stop.
BulkTraffic::Piece* BulkTraffic::next_done() {
  std::unique_lock hold(mutex_);
  wake_.wait(hold, [&] { return !done_.empty() || (stop_ && !stopping_); });
  if (stop_ && !stopping_) return nullptr;
  Piece* const piece = done_.front();
  done_.pop_front();
  return piece;
}

Status BulkTraffic::agree() {
  std::vector<std::int64_t> begun;
  for (const Piece& piece : pieces_)
    begun.push_back(static_cast<std::int64_t>(piece.begun));
  last_round_ = begun;
  auto operation = client_.push_pull(agreement_, std::as_writable_bytes(std::span(begun)),
                                     std::as_writable_bytes(std::span(last_round_)), BPS_MAX);
  return operation ? operation->wait() : Status{operation.error()};
}

bool BulkTraffic::may_begin(const Piece& piece) const {
  return result_.ok() && (!stopping_ || static_cast<std::int64_t>(piece.begun) < last_round_[piece.index]);
}

// Compares what has arrived, and goes on with it.
void BulkTraffic::settle(Piece& piece) {
  Status status = piece.operation.wait();
  piece.under_way = false;
  if (status.ok()) {
    const std::string wrong = check_sum(pattern_, values_of(piece, piece.begun - 1), piece.out);
    if (!wrong.empty())
      status = make_error(ErrorCode::internal, "bulk tensor " + std::to_string(piece.index) + ": " + wrong);
  }
  if (status.ok() && may_begin(piece)) {
    fill(piece);
    status = begin(piece);
  }
  if (!status && result_) result_ = std::move(status);
}

void BulkTraffic::run() {
  const auto any_under_way = [&] {
    return std::any_of(pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.under_way; });
  };
  while (!stopping_ || any_under_way()) {
    if (Piece* const piece = next_done(); piece != nullptr) {
      settle(*piece);
      continue;
    }
    stopping_ = true;
    if (Status status = agree(); !status && result_) result_ = std::move(status);
    for (Piece& piece : pieces_) {
      if (piece.under_way || !may_begin(piece)) continue;
      fill(piece);
      if (Status status = begin(piece); !status) result_ = std::move(status);
    }
  }
}

}  // namespace bps::bench
