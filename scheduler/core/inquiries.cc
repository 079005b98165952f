#include "scheduler/core/inquiries.h"

#include <algorithm>

#include "proto/wire/timing.h"

namespace bps {
namespace {

Duration patience_of(const AskWaits& question) {
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(kMaxQuestionPatience);
  const auto most_ms = static_cast<std::uint64_t>(most.count());
  if (question.patience_ms == 0) return most;
  return std::chrono::milliseconds(std::min(question.patience_ms, most_ms));
}

}  // namespace

bool Inquiries::may_ask(PeerId peer) const {
  const auto open = open_.find(peer);
  return questions_.size() < kMaxQuestions && (open == open_.end() || open->second < kMaxQuestionsOfPeer);
}

void Inquiries::ask(TimePoint now, PeerId peer, AskWaits question, const std::vector<Target>& targets) {
  const std::uint64_t number = ++last_question_;
  ++open_[peer];
  Question& entry = questions_[number];
  entry.peer = peer;
  entry.deadline = now + patience_of(question);
  entry.question = std::move(question);
  std::vector<Key> unasked;  // finish() may be the end of the question
  for (const Target& target : targets) {
    const Key key{target.run, target.tensor};
    const auto [place, is_new] = inquiries_.try_emplace(key);
    Inquiry& inquiry = place->second;
    entry.waiting.insert(key);
    inquiry.questions.insert(number);
    if (!is_new) continue;
    inquiry.deadline = now + kMaxQuestionPatience;
    for (const ServerId server : target.servers) {
      const std::uint64_t request = ++last_request_;
      inquiry.outstanding.emplace(request, server);
      of_request_.emplace(request, key);
      asks_.push_back({server, AskOpenRounds{request, target.run, target.tensor, 0}});
    }
    if (inquiry.outstanding.empty()) unasked.push_back(key);
  }
  for (const Key& key : unasked)
    finish(key);
  // Also where nobody has to be asked.
  if (const auto it = questions_.find(number); it != questions_.end() && it->second.waiting.empty())
    conclude(number);
}

void Inquiries::answered(ServerId server, const OpenRounds& open) {
  const auto found = of_request_.find(open.request);
  if (found == of_request_.end()) return;
  const Key key = found->second;
  Inquiry& inquiry = inquiries_.at(key);
  if (inquiry.outstanding.at(open.request) != server) return;
  inquiry.outstanding.erase(open.request);
  of_request_.erase(found);
  for (const OpenRound& round : open.rounds)
    inquiry.open.add(round);
  inquiry.open.add_more(open.more);
  if (inquiry.outstanding.empty()) finish(key);
}

void Inquiries::server_gone(ServerId server) {
  std::vector<Key> over;
  for (auto& [key, inquiry] : inquiries_) {
    const auto known = std::find_if(inquiry.outstanding.begin(), inquiry.outstanding.end(),
                                    [&](const auto& entry) { return entry.second == server; });
    if (known == inquiry.outstanding.end()) continue;
    of_request_.erase(known->first);
    inquiry.outstanding.erase(known);
    inquiry.lost.push_back(server);
    if (inquiry.outstanding.empty()) over.push_back(key);
  }
  for (const Key& key : over)
    finish(key);
}

void Inquiries::peer_gone(PeerId peer) {
  std::erase_if(answered_, [&](const Answered& answered) { return answered.peer == peer; });
  if (open_.erase(peer) == 0) return;
  for (auto& [key, inquiry] : inquiries_) {
    std::erase_if(inquiry.questions,
                  [&](std::uint64_t number) { return questions_.at(number).peer == peer; });
  }
  std::erase_if(questions_, [&](const auto& entry) { return entry.second.peer == peer; });
}

void Inquiries::tick(TimePoint now) {
  std::vector<Key> over;
  for (const auto& [key, inquiry] : inquiries_) {
    if (now >= inquiry.deadline) over.push_back(key);
  }
  for (const Key& key : over)
    finish(key);
  std::vector<std::uint64_t> impatient;
  for (const auto& [number, question] : questions_) {
    if (now >= question.deadline) impatient.push_back(number);
  }
  for (const std::uint64_t number : impatient)
    conclude(number);
}

Inquiries::Part Inquiries::part_of(const Key& key, const Question& question) const {
  const Inquiry& inquiry = inquiries_.at(key);
  Part part{key.first, {}, inquiry.lost};
  OpenRoundList open = inquiry.open;
  part.open = open.take(0, question.question.older_than_ms);
  for (const auto& [request, server] : inquiry.outstanding)
    part.silent.push_back(server);
  return part;
}

// All have answered, or have had their time.
void Inquiries::finish(const Key& key) {
  const auto it = inquiries_.find(key);
  std::vector<std::uint64_t> over;
  for (const std::uint64_t number : it->second.questions) {
    Question& question = questions_.at(number);
    question.parts.push_back(part_of(key, question));
    question.waiting.erase(key);
    if (question.waiting.empty()) over.push_back(number);
  }
  for (const auto& [request, server] : it->second.outstanding)
    of_request_.erase(request);
  inquiries_.erase(it);
  for (const std::uint64_t number : over)
    conclude(number);
}

// With what is known by now.
void Inquiries::conclude(std::uint64_t number) {
  const auto it = questions_.find(number);
  Question& question = it->second;
  for (const Key& key : question.waiting) {
    question.parts.push_back(part_of(key, question));
    inquiries_.at(key).questions.erase(number);
  }
  if (--open_.at(question.peer) == 0) open_.erase(question.peer);
  answered_.push_back({question.peer, std::move(question.question), std::move(question.parts)});
  questions_.erase(it);
}

}  // namespace bps
