#include "tests/process/worker_messages.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <utility>

namespace {

// What a length and the bytes depend on, besides the round and the two ranks. Tags come behind.
enum Kind : std::uint64_t { kScatter, kGather, kAllToAll, kAnyGather, kAnyAllToAll, kTags };
constexpr std::uint64_t kTagsOfRound = 3;
constexpr int kAll = -1;  // of an all_gather: the same for all takers

std::uint64_t mix(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

void append(std::vector<std::uint8_t>& whole, const std::vector<std::uint8_t>& part) {
  whole.insert(whole.end(), part.begin(), part.end());
}

}  // namespace

bool WorkerMessages::round(bps::Client& client, std::uint64_t round) {
  round_ = round;
  rank_ = client.rank();
  size_ = client.world_size();
  memory_.clear();
  handles_.clear();
  expected_.clear();
  if (round == 0 || (drop_every_ > 0 && round % drop_every_ == 0)) renew(client);
  const auto root = static_cast<int>(round % static_cast<std::uint64_t>(size_));

  send_all(kTags);
  const Bytes& own = keep(part(kAnyGather, rank_, kAll));
  const bps::Handle gathered = group_.all_gather(own);
  all_to_all();
  scatter(root);
  Bytes& given = keep({});
  for (int to = 0; to < size_; ++to)
    append(given, part(kAnyAllToAll, rank_, to));
  const bps::Handle exchanged = group_.all_to_all(given, lengths(kAnyAllToAll, rank_, kAll));
  gather(root);
  receive_all(kTags);

  gathered.wait();
  exchanged.wait();
  for (const bps::Handle& handle : handles_)
    handle.wait();
  std::vector<Bytes> all, mine;
  for (int from = 0; from < size_; ++from) {
    all.push_back(part(kAnyGather, from, kAll));
    mine.push_back(part(kAnyAllToAll, from, rank_));
  }
  for (const Expected& one : expected_) {
    if (*one.memory == one.bytes) continue;
    std::cerr << "wrong bytes: round " << round_ << ": " << one.what << "\n";
    return false;
  }
  return check_parts(gathered, "all_gather of any lengths", all) &&
         check_parts(exchanged, "all_to_all of any lengths", mine);
}

// Sends of the round before may still be under way.
void WorkerMessages::renew(bps::Client& client) {
  if (round_ > drop_every_) dropped_.wait();
  if (round_ > 0) dropped_ = group_.drop();
  group_ = client.group(name_);
}

void WorkerMessages::send_all(std::uint64_t first_tag) {
  for (std::uint64_t tag = first_tag; tag < first_tag + kTagsOfRound; ++tag) {
    for (int to = 0; to < size_; ++to) {
      if (to == rank_) continue;
      Bytes& sent = keep(part(tag, rank_, to));
      bps::Handle handle = group_.send(sent, to, tag);
      if (sent.size() > 64 * 1024) {
        handles_.push_back(std::move(handle));
        continue;
      }
      handle.wait();  // it has been copied
      std::fill(sent.begin(), sent.end(), std::uint8_t{0xbd});
    }
  }
}

// In another order than they were sent.
void WorkerMessages::receive_all(std::uint64_t first_tag) {
  for (std::uint64_t tag = first_tag + kTagsOfRound; tag-- > first_tag;) {
    for (int from = size_; from-- > 0;) {
      if (from == rank_) continue;
      Bytes bytes = part(tag, from, rank_);
      Bytes& received = keep(Bytes(bytes.size()));
      handles_.push_back(group_.receive(received, from, tag));
      expect("message from rank " + std::to_string(from) + " with tag " + std::to_string(tag), received,
             std::move(bytes));
    }
  }
}

void WorkerMessages::scatter(int root) {
  Bytes& whole = keep({});
  for (int to = 0; to < size_ && rank_ == root; ++to)
    append(whole, part(kScatter, root, to));
  Bytes bytes = part(kScatter, root, rank_);
  Bytes& out = keep(Bytes(bytes.size()));
  handles_.push_back(group_.scatter(whole, out, root, lengths(kScatter, root, kAll)));
  expect("scatter from rank " + std::to_string(root), out, std::move(bytes));
}

void WorkerMessages::gather(int root) {
  Bytes whole;
  for (int from = 0; from < size_ && rank_ == root; ++from)
    append(whole, part(kGather, from, root));
  Bytes& out = keep(Bytes(whole.size()));
  const Bytes& own = keep(part(kGather, rank_, root));
  handles_.push_back(group_.gather(own, out, root, lengths(kGather, kAll, root)));
  expect("gather to rank " + std::to_string(root), out, std::move(whole));
}

void WorkerMessages::all_to_all() {
  Bytes& given = keep({});
  Bytes taken;
  for (int other = 0; other < size_; ++other) {
    append(given, part(kAllToAll, rank_, other));
    append(taken, part(kAllToAll, other, rank_));
  }
  Bytes& out = keep(Bytes(taken.size()));
  handles_.push_back(
      group_.all_to_all(given, out, lengths(kAllToAll, rank_, kAll), lengths(kAllToAll, kAll, rank_)));
  expect("all_to_all", out, std::move(taken));
}

bool WorkerMessages::check_parts(const bps::Handle& handle, const std::string& what,
                                 const std::vector<Bytes>& parts) const {
  const std::vector<bps::Piece> pieces = handle.view();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i < pieces.size() && pieces[i].bytes == parts[i].size() &&
        std::memcmp(pieces[i].pointer, parts[i].data(), parts[i].size()) == 0) {
      continue;
    }
    std::cerr << "wrong bytes: round " << round_ << ": " << what << ": part " << i << " of " << pieces.size()
              << "\n";
    return false;
  }
  return true;
}

// Of any length, also 0; one in eight is longer than what is copied.
WorkerMessages::Bytes WorkerMessages::part(std::uint64_t kind, int from, int to) const {
  constexpr std::uint64_t kLongest[] = {1, 20, 300, 5000, 5000, 20'000, 60'000, 300'000};
  const std::uint64_t seed =
      mix(round_ * 1'000'003 + kind * 10'007 + static_cast<std::uint64_t>(from + 1) * 101 +
          static_cast<std::uint64_t>(to + 1));
  Bytes bytes(seed / 8 % kLongest[seed % 8]);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(seed >> 24 ^ i * 31 ^ i >> 8);
  return bytes;
}

// Of the rank that is kAll: each of them.
std::vector<std::uint64_t> WorkerMessages::lengths(std::uint64_t kind, int from, int to) const {
  std::vector<std::uint64_t> out;
  for (int other = 0; other < size_; ++other)
    out.push_back(part(kind, from == kAll ? other : from, to == kAll ? other : to).size());
  return out;
}

void WorkerMessages::expect(const std::string& what, const Bytes& memory, Bytes bytes) {
  expected_.push_back({what, &memory, std::move(bytes)});
}
