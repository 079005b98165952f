// A model of rounds with givers and takers (decision 0033): one partition of a declared tensor, its members,
// and the servers that hold it one after another. No code of the product runs here: the model fixes the rules
// that servers and clients must follow, and shows for each rule what goes wrong without it.
//
// A world is drawn at random: the row of each round, the order of all events, broken lanes, servers that die,
// also during a handoff, and a member that is lost. Checked: each taker stores the bytes of exactly the
// givers of its round, a giver's round ends only when all takers have stored it, and every call ends.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tests/sim/model_search.h"

namespace bps::round_rows_test {
namespace {

using Set = std::uint32_t;  // of members
constexpr Set only(std::size_t member) { return Set{1} << member; }
constexpr bool has(Set set, std::size_t member) { return (set & only(member)) != 0; }
constexpr bool includes(Set set, Set part) { return (set & part) == part; }

struct Row {
  enum class Kind { push_pull, reduce, reduce_scatter, broadcast, all_gather } kind = Kind::push_pull;
  Set givers = 0;
  Set takers = 0;

  bool copies() const { return kind == Kind::broadcast || kind == Kind::all_gather; }
  // Takers send Stored.
  bool confirms() const { return kind != Kind::push_pull; }
  // Without a member that is lost, under the policy `shrink`.
  bool survives(Set lost) const {
    if (kind == Kind::reduce) return (takers & lost) == 0;
    if (kind == Kind::broadcast) return (givers & lost) == 0;
    return kind == Kind::push_pull || lost == 0;
  }
};

// Of a partition with a part of one owner, and of one in which the parts of several are packed.
std::vector<Row> all_rows(std::size_t members) {
  using Kind = Row::Kind;
  const Set all = only(members) - 1;
  const Set some = all & ~only(0);
  std::vector<Row> rows{{Kind::push_pull, all, all},
                        {Kind::reduce_scatter, all, all},
                        {Kind::reduce_scatter, all, some},
                        {Kind::all_gather, all, all},
                        {Kind::all_gather, some, all}};
  for (std::size_t m = 0; m < members; ++m) {
    const Set others = all & ~only(m);
    rows.push_back({Kind::reduce, all, only(m)});
    rows.push_back({Kind::reduce_scatter, others, only(m)});  // the owner adds its own part
    rows.push_back({Kind::broadcast, only(m), others});
    rows.push_back({Kind::all_gather, only(m), others});
  }
  return rows;
}

// What members and servers must do. The second test leaves out each rule in turn.
struct Rules {
  bool answers_wait = true;        // until all members have sent a frame of the round
  bool givers_wait = true;         // with their next frame, until all takers have stored
  bool stored_is_repeated = true;  // on a new lane
  bool end_is_repeated = true;     // to a giver that sends its frame again
  bool givers_push_again = true;   // after the partition has moved
  bool failures_wait = true;       // until all members have sent a frame of the round
};

struct Message {
  // The first four go to the server, the others come from it. `end`: all takers have stored the round.
  enum class Kind { frame, stored, resume, retained, answer, failed, end, fetch, resumed };
  Kind kind;
  std::size_t round = 0;
  Set from = 0;  // whose bytes of this round it carries
  bool stored = false;
};
using Kind = Message::Kind;

constexpr std::size_t kRounds = 5;

struct Member {
  std::size_t round = 0;  // the first one that is not over here
  bool called = false;
  bool stored = false;
  bool ended = false;
  bool resuming = false;
  std::size_t epoch = 0;
  std::vector<Set> results = std::vector<Set>(kRounds);
  std::deque<Message> sent;
  std::deque<Message> received;
};

struct Round {
  Set here = 0;     // members whose frames have arrived
  Set given = 0;    // givers whose bytes have arrived
  Set fetched = 0;  // contributors of the sum that another taker has kept; only after a handoff
  Set stored = 0;
  bool has_moved = false;  // by a handoff while a taker lacked it
  bool has_failed = false;
  // Of members, on their present lanes:
  Set asking = 0;
  Set sent = 0;   // the answer
  Set ended = 0;  // by `end` or `failed`
  Set fetching = 0;
};

struct Resumed {
  std::size_t next = 0;
  bool stored = false;
};

class World {
 public:
  World(unsigned seed, std::size_t members, const Rules& rules)
      : random_(seed), rules_(rules), members_(members), resumed_(members) {
    const std::vector<Row> rows = all_rows(members);
    for (std::size_t i = 0; i < kRounds; ++i)
      rows_.push_back(rows[pick(rows.size())]);
    rounds_.resize(kRounds + 1);
    deaths_ = pick(3);
    breaks_ = pick(4);
    losses_ = members > 1 ? pick(2) : 0;
  }

  // The first check that failed; empty if none did.
  std::string run() {
    while (failed_.empty() && step()) {}
    for (std::size_t m = 0; m < members_.size(); ++m)
      require(members_[m].round == kRounds || has(lost_, m), "a call never ends");
    return failed_;
  }

 private:
  void require(bool is_so, const char* otherwise) {
    if (!is_so && failed_.empty()) failed_ = otherwise;
  }
  std::size_t pick(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_);
  }
  Set all() const { return only(members_.size()) - 1; }
  // As far as the server knows of losses.
  Set living() const { return all() & ~known_lost_; }

  bool step() {
    if (deaths_ > 0 && pick(30) == 0) return die();
    if (breaks_ > 0 && pick(20) == 0) return break_lane(pick(members_.size()));
    if (losses_ > 0 && pick(40) == 0) return lose(pick(members_.size()));
    struct Event {
      enum { call, to_server, to_member, resume, loss } what;
      std::size_t member;
    };
    std::vector<Event> events;
    if (known_lost_ != lost_) events.push_back({Event::loss, 0});
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const Member& member = members_[m];
      if (has(lost_, m)) continue;
      if (!member.called && member.round < kRounds) events.push_back({Event::call, m});
      if (member.epoch < epoch_) {
        events.push_back({Event::resume, m});
      } else if (!member.sent.empty()) {
        events.push_back({Event::to_server, m});
      }
      if (!member.received.empty()) events.push_back({Event::to_member, m});
    }
    if (events.empty()) return false;
    const Event event = events[pick(events.size())];
    Member& member = members_[event.member];
    switch (event.what) {
      case Event::call:
        member.called = true;
        if (!member.resuming && member.epoch == epoch_) send_frame(event.member);
        break;
      case Event::resume: resume_lane(event.member); break;
      case Event::loss:
        known_lost_ = lost_;
        if (!is_open_) open_if_all_came();
        if (is_open_) progress();
        break;
      case Event::to_server: {
        const Message message = member.sent.front();
        member.sent.pop_front();
        at_server(event.member, message);
        break;
      }
      case Event::to_member: {
        const Message message = member.received.front();
        member.received.pop_front();
        at_member(event.member, message);
        break;
      }
    }
    return true;
  }

  // ---- faults ----

  bool die() {
    --deaths_;
    ++epoch_;
    is_open_ = false;
    came_ = 0;
    rounds_.assign(kRounds + 1, {});
    for (Member& member : members_)
      member.sent.clear();
    return true;
  }

  bool lose(std::size_t m) {
    --losses_;
    lost_ |= only(m);
    members_[m].sent.clear();
    members_[m].received.clear();
    return true;
  }

  bool break_lane(std::size_t m) {
    --breaks_;
    Member& member = members_[m];
    if (member.epoch < epoch_ || has(lost_, m)) return true;
    member.sent.clear();
    member.received.clear();
    for (Round& round : rounds_) {
      for (Set* const on_lane : {&round.asking, &round.sent, &round.fetching})
        *on_lane &= ~only(m);
      if (rules_.end_is_repeated) round.ended &= ~only(m);
    }
    if (member.resuming) {
      if (is_open_)
        member.received.push_back({Kind::resumed});
      else
        send_resume(m);
    } else {
      send_again(m);
    }
    if (is_open_) progress();
    return true;
  }

  // ---- a member ----

  void send_frame(std::size_t m) {
    Member& member = members_[m];
    const bool gives = has(rows_[member.round].givers, m);
    member.sent.push_back({Kind::frame, member.round, gives ? only(m) : 0});
    if (!rules_.givers_wait && !has(rows_[member.round].takers, m)) {
      member.ended = true;
      go_on(m);
    }
  }

  // On a new lane.
  void send_again(std::size_t m) {
    Member& member = members_[m];
    if (member.called) send_frame(m);
    if (!rules_.stored_is_repeated) return;
    const std::size_t newest = member.stored ? member.round : member.round - 1;  // before round 0: none
    if (newest < kRounds && rows_[newest].confirms() && has(rows_[newest].takers, m))
      member.sent.push_back({Kind::stored, newest});
  }

  void resume_lane(std::size_t m) {
    Member& member = members_[m];
    member.epoch = epoch_;
    member.sent.clear();
    member.received.clear();
    member.resuming = true;
    send_resume(m);
  }
  void send_resume(std::size_t m) {
    members_[m].sent.push_back({Kind::resume, members_[m].round, 0, members_[m].stored});
  }

  void at_member(std::size_t m, const Message& message) {
    Member& member = members_[m];
    const bool is_present = message.round == member.round && member.called;
    switch (message.kind) {
      case Kind::resumed:
        member.resuming = false;
        send_again(m);
        if (!rules_.givers_push_again && member.called && !member.sent.empty()) member.sent.front().from = 0;
        break;
      case Kind::answer:
        if (!is_present || member.stored) break;
        check_bytes(message.round, message.from);
        member.results[message.round] = message.from;
        member.stored = true;
        if (rows_[member.round].confirms()) member.sent.push_back({Kind::stored, member.round});
        break;
      case Kind::failed:
        if (!is_present) break;
        require(!rows_[message.round].survives(lost_), "a call fails for nothing");
        member.stored = member.ended = true;
        break;
      case Kind::end:
        if (!is_present) break;
        for (std::size_t taker = 0; taker < members_.size(); ++taker) {
          if (has(rows_[message.round].takers & ~lost_, taker))
            require(has_stored(taker, message.round), "a giver ends before a taker has stored");
        }
        member.ended = true;
        break;
      case Kind::fetch:  // members keep the result of the round before
        require(has_stored(m, message.round) && member.round <= message.round + 1, "nobody has kept the sum");
        member.sent.push_back({Kind::retained, message.round, member.results[message.round]});
        break;
      default: break;
    }
    go_on(m);
  }

  bool has_stored(std::size_t m, std::size_t round) const {
    return members_[m].round > round || (members_[m].round == round && members_[m].stored);
  }

  // A sum may lack the lost member, for all living takers or for none.
  void check_bytes(std::size_t round, Set from) {
    const Row& row = rows_[round];
    require(from == row.givers || (!row.copies() && from == (row.givers & ~lost_)),
            "a taker stores wrong bytes");
    if (row.kind != Row::Kind::push_pull) return;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const Set other = members_[m].results[round];
      require(has(lost_, m) || other == 0 || other == from, "takers store different sums");
    }
  }

  void go_on(std::size_t m) {
    Member& member = members_[m];
    if (!member.called) return;
    const Row& row = rows_[member.round];
    if (has(row.takers, m) && !member.stored) return;
    if (row.confirms() && has(row.givers, m) && !member.ended) return;
    ++member.round;
    member.called = member.stored = member.ended = false;
  }

  // ---- the server ----

  void at_server(std::size_t m, const Message& message) {
    switch (message.kind) {
      case Kind::resume:
        if (is_open_) break;
        resumed_[m] = {message.round, message.stored};
        came_ |= only(m);
        open_if_all_came();
        break;
      case Kind::frame: take_frame(m, message); break;
      case Kind::stored: rounds_[message.round].stored |= only(m); break;
      case Kind::retained: rounds_[message.round].fetched = message.from; break;
      default: break;
    }
    if (is_open_) progress();
  }

  // There are two slots: one for the open round, and one for the round before it.
  void take_frame(std::size_t m, const Message& message) {
    for (std::size_t before = 0; before < message.round; ++before)
      rounds_[before].stored |= only(m);
    open_ = std::max(open_, message.round);
    require(message.round + 1 >= open_, "a member is two rounds behind");
    Round& round = rounds_[message.round];
    round.here |= only(m);
    round.asking |= only(m);
    round.given |= message.from;
  }

  // By all takers, or by the living ones if the row survives the loss.
  bool is_stored(std::size_t r) const {
    const Row& row = rows_[r];
    return includes(rounds_[r].stored, row.survives(known_lost_) ? row.takers & living() : row.takers);
  }

  // A taker that has kept the sum which others lack after a handoff.
  Set source(std::size_t r) const {
    const Set kept = rounds_[r].stored & rows_[r].takers & living();
    return rounds_[r].has_moved && rows_[r].kind == Row::Kind::push_pull ? kept & ~(kept - 1) : 0;
  }

  void progress() {
    for (std::size_t r = 0; r <= std::min(open_, kRounds - 1); ++r) {
      Round& round = rounds_[r];
      const Row& row = rows_[r];
      // A member at the next round has sent its frame of this one.
      const bool all_here = includes(round.here, living()) || r < open_;
      const Set sum = round.fetched != 0 ? round.fetched : round.given;
      const bool is_whole = includes(sum, row.copies() ? row.givers : row.givers & living()) &&
                            (round.fetched != 0 || source(r) == 0);
      if (!row.survives(known_lost_) && (all_here || !rules_.failures_wait)) round.has_failed = true;
      for (std::size_t m = 0; m < members_.size(); ++m) {
        if (round.fetched == 0 && has(source(r) & ~round.fetching, m))
          send(m, round.fetching, {Kind::fetch, r});
        if (!has(round.asking & ~round.ended, m)) continue;
        const bool lacks = has(row.takers & ~round.stored, m);
        if (row.confirms() && !lacks && is_stored(r) && has(row.givers, m)) {
          send(m, round.ended, {Kind::end, r});
        } else if (round.has_failed) {
          send(m, round.ended, {Kind::failed, r});
        } else if (lacks && is_whole && (all_here || !rules_.answers_wait) && !has(round.sent, m)) {
          send(m, round.sent, {Kind::answer, r, sum});
        }
      }
    }
  }

  void send(std::size_t m, Set& once, const Message& message) {
    once |= only(m);
    members_[m].received.push_back(message);
  }

  void open_if_all_came() {
    if (includes(came_, living())) open_moved();
  }

  // All members have resumed. The highest round that one of them names is the open one.
  void open_moved() {
    is_open_ = true;
    open_ = 0;
    for (std::size_t m = 0; m < members_.size(); ++m)
      if (has(came_ & living(), m)) open_ = std::max(open_, resumed_[m].next);
    for (std::size_t r = 0; r < rounds_.size(); ++r) {
      Round& round = rounds_[r];
      for (std::size_t m = 0; m < members_.size(); ++m) {
        const bool is_over = resumed_[m].next > r || (resumed_[m].next == r && resumed_[m].stored);
        if (has(came_, m) && is_over) round.stored |= only(m);
      }
      if (r >= open_ || includes(round.stored, rows_[r].takers & living())) continue;
      round.has_moved = true;
      require(r + 1 == open_, "a taker lacks a round that nobody has kept");
      // The givers of a copy are still in its round, and push again.
      if (!rows_[r].copies() && rows_[r].confirms())
        require(!rows_[r].survives(known_lost_), "a sum of which each taker has a part is lost");
    }
    for (Member& member : members_)
      member.received.push_back({Kind::resumed});
  }

  std::mt19937 random_;
  Rules rules_;
  std::string failed_;
  std::vector<Row> rows_;
  std::vector<Member> members_;
  Set lost_ = 0;
  std::size_t deaths_ = 0;
  std::size_t breaks_ = 0;
  std::size_t losses_ = 0;

  // The server of this epoch. The first one starts without Resume.
  std::size_t epoch_ = 0;
  bool is_open_ = true;
  Set came_ = 0;
  Set known_lost_ = 0;
  std::vector<Resumed> resumed_;
  std::size_t open_ = 0;
  std::vector<Round> rounds_;
};

constexpr std::size_t kMostMembers = 4;

TEST_CASE("round rows: every row after every row, with broken lanes, dead servers and a lost member") {
  CHECK_THAT(testing::find_failure<World>(Rules{}, kMostMembers), Catch::Equals(""));
}

TEST_CASE("round rows: each rule is needed") {
  const auto without = [](bool Rules::*rule) {
    return testing::find_failure_without<World>(rule, kMostMembers);
  };
  using Catch::StartsWith;
  CHECK_THAT(without(&Rules::answers_wait), StartsWith("a member is two rounds behind"));
  CHECK_THAT(without(&Rules::givers_wait), StartsWith("a member is two rounds behind"));
  CHECK_THAT(without(&Rules::stored_is_repeated), StartsWith("a call never ends"));
  CHECK_THAT(without(&Rules::end_is_repeated), StartsWith("a call never ends"));
  CHECK_THAT(without(&Rules::givers_push_again), StartsWith("a call never ends"));
  CHECK_THAT(without(&Rules::failures_wait), StartsWith("a member is two rounds behind"));
}

}  // namespace
}  // namespace bps::round_rows_test
