// A model of declare and drop (decision 0034): one name, members that declare it, use it and drop it several
// times, the scheduler that gives each instance an id, and two servers. No code of the product runs here.
//
// A world is drawn at random: which instances are used, the order of all events, a scheduler that starts
// again without state and asks for reports, and members that leave or are lost. Checked: the nth instance of
// a name is the same tensor on all members, every declaration and use ends, and nothing is left in the end.
#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/model_search.h"

namespace bps::drop_test {
namespace {

using Id = std::uint32_t;  // of a tensor; 0: none
using Set = std::set<std::size_t>;

// What members, scheduler and servers must do. The second test leaves out each rule in turn.
struct Rules {
  bool skips_dropped = true;    // a member is not given again what it has dropped
  bool servers_first = true;    // members forget an instance after all servers have
  bool reports_dropped = true;  // a member's report contains what it has dropped and keeps
};

struct Message {
  enum class Kind { declare, drop, report, slices, drop_slices, forget, declared, ask_report } kind;
  Id id = 0;
  Id newest = 0;                    // report of a member: that it has ever seen
  std::map<Id, bool> tensors = {};  // report of a member: true if dropped; of a server: all false
};
using Kind = Message::Kind;

constexpr std::size_t kInstances = 4;
constexpr std::size_t kServers = 2;

// Both directions of a connection to the scheduler.
struct Link {
  std::deque<Message> to;
  std::deque<Message> from;
};

struct Member {
  Link link;
  std::map<Id, bool> tensors;  // true: dropped
  std::vector<Id> instances;   // of the program
  Id newest = 0;
  enum class Phase { idle, declaring, declared, using_it, over } phase = Phase::idle;
  bool is_attached = true;  // has sent its report on this connection
  bool is_gone = false;
};

struct Server {
  Link link;
  std::set<Id> tensors;
};

struct Tensor {
  Set confirmed;  // servers
  Set asking;     // members that wait for Declared
  Set dropped;    // members
  bool is_ending = false;
  Set freed;  // servers
};

class World {
 public:
  World(unsigned seed, std::size_t members, const Rules& rules)
      : random_(seed), rules_(rules), members_(members) {
    for (std::size_t i = 0; i < kInstances; ++i)
      is_used_.push_back(pick(2) == 0);
    restarts_ = pick(3);
    losses_ = members > 1 ? pick(2) : 0;
  }

  // The first check that failed; empty if none did.
  std::string run() {
    while (failed_.empty() && step()) {}
    for (const Member& member : members_)
      require(member.is_gone || (member.phase == Member::Phase::over && member.tensors.empty()),
              "a member waits for ever, or keeps a tensor");
    for (const Server& server : servers_)
      require(server.tensors.empty(), "a server keeps a tensor");
    require(tensors_.empty(), "the scheduler keeps a tensor");
    return failed_;
  }

 private:
  std::size_t pick(std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_);
  }
  void require(bool is_so, const char* otherwise) {
    if (!is_so && failed_.empty()) failed_ = otherwise;
  }

  bool step() {
    if (restarts_ > 0 && pick(25) == 0) return restart();
    if (losses_ > 0 && pick(60) == 0) return lose(pick(members_.size()));
    struct Event {
      enum { program, to_scheduler, from_scheduler, server_to_scheduler, scheduler_to_server } what;
      std::size_t index;
    };
    std::vector<Event> events;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      if (members_[m].is_gone) continue;
      if (can_go_on(members_[m])) events.push_back({Event::program, m});
      if (!members_[m].link.to.empty()) events.push_back({Event::to_scheduler, m});
      if (!members_[m].link.from.empty()) events.push_back({Event::from_scheduler, m});
    }
    for (std::size_t s = 0; s < kServers; ++s) {
      if (!servers_[s].link.to.empty()) events.push_back({Event::server_to_scheduler, s});
      if (!servers_[s].link.from.empty()) events.push_back({Event::scheduler_to_server, s});
    }
    if (events.empty()) return false;
    const Event event = events[pick(events.size())];
    const auto taken = [](std::deque<Message>& queue) {
      Message message = std::move(queue.front());
      queue.pop_front();
      return message;
    };
    switch (event.what) {
      case Event::program: run_program(event.index); break;
      case Event::to_scheduler: from_member(event.index, taken(members_[event.index].link.to)); break;
      case Event::from_scheduler: at_member(event.index, taken(members_[event.index].link.from)); break;
      case Event::server_to_scheduler: from_server(event.index, taken(servers_[event.index].link.to)); break;
      case Event::scheduler_to_server: at_server(event.index, taken(servers_[event.index].link.from)); break;
    }
    return true;
  }

  // ---- faults ----

  bool restart() {
    --restarts_;
    tensors_.clear();
    newest_ = 0;
    is_open_ = false;
    member_reports_.clear();
    server_reports_.clear();
    waiting_.clear();
    dropping_.clear();
    for (Member& member : members_) {
      member.link = {{}, {Message{Kind::ask_report}}};
      member.is_attached = false;
    }
    for (Server& server : servers_)
      server.link = {{}, {Message{Kind::ask_report}}};
    return true;
  }

  bool lose(std::size_t m) {
    --losses_;
    members_[m].is_gone = true;
    members_[m].link = {};
    if (is_open_)
      end_what_is_dropped();
    else
      open_if_all_reported();
    return true;
  }

  // ---- a member ----

  Id current(const Member& member) const { return member.instances.back(); }
  static bool wants_more(const Member& member) { return member.instances.size() < kInstances; }

  bool can_go_on(const Member& member) const {
    switch (member.phase) {
      case Member::Phase::idle:
      case Member::Phase::declared: return true;
      case Member::Phase::using_it: {  // a round of all living members
        const std::size_t nth = member.instances.size();
        return std::all_of(members_.begin(), members_.end(), [&](const Member& other) {
          return other.is_gone || other.instances.size() > nth ||
                 (other.instances.size() == nth && current(other) == current(member) &&
                  other.phase != Member::Phase::declared && other.phase != Member::Phase::declaring);
        });
      }
      case Member::Phase::declaring:
      case Member::Phase::over: break;
    }
    return false;
  }

  void run_program(std::size_t m) {
    Member& member = members_[m];
    switch (member.phase) {
      case Member::Phase::idle:
        member.phase = Member::Phase::declaring;
        if (member.is_attached) declare(member);
        return;
      case Member::Phase::declared:
        if (is_used_[member.instances.size() - 1]) {
          member.phase = Member::Phase::using_it;
          return;
        }
        break;
      default: break;
    }
    const Id id = current(member);
    member.tensors[id] = true;
    if (member.is_attached) member.link.to.push_back({Kind::drop, id});
    member.phase = wants_more(member) ? Member::Phase::idle : Member::Phase::over;
  }

  static void declare(Member& member) { member.link.to.push_back({Kind::declare}); }

  void at_member(std::size_t m, const Message& message) {
    Member& member = members_[m];
    switch (message.kind) {
      case Kind::declared: {
        if (member.phase != Member::Phase::declaring) break;
        const std::size_t nth = member.instances.size();
        member.instances.push_back(message.id);
        member.newest = std::max(member.newest, message.id);
        member.tensors[message.id] = false;
        member.phase = Member::Phase::declared;
        for (const Member& other : members_)
          require(other.is_gone || other.instances.size() <= nth || other.instances[nth] == message.id,
                  "members have different tensors");
        break;
      }
      case Kind::forget: member.tensors.erase(message.id); break;
      case Kind::ask_report: {
        Message report{Kind::report, 0, member.newest};
        for (const auto& [id, is_dropped] : member.tensors)
          if (!is_dropped || rules_.reports_dropped) report.tensors.emplace(id, is_dropped);
        member.link.to.push_back(report);
        member.is_attached = true;
        if (member.phase == Member::Phase::declaring) declare(member);
        break;
      }
      default: break;
    }
  }

  // ---- a server ----

  void at_server(std::size_t s, const Message& message) {
    Server& server = servers_[s];
    switch (message.kind) {
      case Kind::slices:
        server.tensors.insert(message.id);
        server.link.to.push_back(message);
        break;
      case Kind::drop_slices:
        server.tensors.erase(message.id);
        server.link.to.push_back(message);
        break;
      case Kind::ask_report: {
        Message report{Kind::report};
        for (const Id id : server.tensors)
          report.tensors.emplace(id, false);
        server.link.to.push_back(report);
        break;
      }
      default: break;
    }
  }

  // ---- the scheduler ----

  void from_member(std::size_t m, const Message& message) {
    switch (message.kind) {
      case Kind::report:
        member_reports_[m] = message;
        open_if_all_reported();
        break;
      case Kind::declare: is_open_ ? declared(m) : waiting_.push_back(m); break;
      case Kind::drop: is_open_ ? dropped(m, message.id) : dropping_.push_back({m, message.id}); break;
      default: break;
    }
  }

  void declared(std::size_t m) {
    auto found = std::find_if(tensors_.begin(), tensors_.end(), [&](const auto& entry) {
      return !rules_.skips_dropped || !entry.second.dropped.contains(m);
    });
    if (found == tensors_.end()) {
      found = tensors_.emplace(++newest_, Tensor{}).first;
      to_servers({Kind::slices, found->first});
    }
    found->second.asking.insert(m);
    answer(found->first);
  }

  void answer(Id id) {
    Tensor& tensor = tensors_.at(id);
    if (tensor.confirmed.size() < kServers) return;
    for (const std::size_t m : std::exchange(tensor.asking, {}))
      members_[m].link.from.push_back({Kind::declared, id});
  }

  void dropped(std::size_t m, Id id) {
    if (!tensors_.contains(id)) return;
    tensors_.at(id).dropped.insert(m);
    end_what_is_dropped();
  }

  void end_what_is_dropped() {
    for (auto& [id, tensor] : tensors_) {
      bool all = true;
      for (std::size_t m = 0; m < members_.size(); ++m)
        all = all && (members_[m].is_gone || tensor.dropped.contains(m));
      if (!all || tensor.is_ending) continue;
      tensor.is_ending = true;
      to_servers({Kind::drop_slices, id});
      if (!rules_.servers_first) to_members({Kind::forget, id});
    }
  }

  void from_server(std::size_t s, const Message& message) {
    if (message.kind == Kind::report) {
      server_reports_[s] = message;
      return open_if_all_reported();
    }
    const auto found = tensors_.find(message.id);
    if (found == tensors_.end()) return;
    if (message.kind == Kind::slices) {
      found->second.confirmed.insert(s);
      return answer(message.id);
    }
    found->second.freed.insert(s);
    if (found->second.freed.size() < kServers) return;
    if (rules_.servers_first) to_members({Kind::forget, message.id});
    tensors_.erase(found);
  }

  // What the scheduler knows after its return.
  void open_if_all_reported() {
    if (is_open_ || server_reports_.size() < kServers) return;
    for (std::size_t m = 0; m < members_.size(); ++m)
      if (!members_[m].is_gone && !member_reports_.contains(m)) return;
    is_open_ = true;
    std::set<Id> held;
    for (const auto& [s, report] : server_reports_) {
      for (const auto& [id, _] : report.tensors)
        held.insert(id);
    }
    if (!held.empty()) newest_ = *held.rbegin();
    std::set<Id> known;
    for (const auto& [m, report] : member_reports_) {
      newest_ = std::max(newest_, report.newest);
      for (const auto& [id, is_dropped] : report.tensors) {
        known.insert(id);
        if (!held.contains(id)) {
          require(is_dropped, "servers have freed a tensor that a member uses");
          continue;
        }
        Tensor& tensor = tensors_[id];
        for (std::size_t s = 0; s < kServers; ++s)
          tensor.confirmed.insert(s);
        if (is_dropped) tensor.dropped.insert(m);
      }
    }
    // All members have dropped it: some have forgotten it already.
    for (const Id id : known)
      if (!held.contains(id)) to_members({Kind::forget, id});
    // No member has got it.
    for (const Id id : held)
      if (!known.contains(id)) to_servers({Kind::drop_slices, id});
    end_what_is_dropped();
    for (const auto& [m, id] : std::exchange(dropping_, {}))
      if (!members_[m].is_gone) dropped(m, id);
    for (const std::size_t m : std::exchange(waiting_, {}))
      if (!members_[m].is_gone) declared(m);
  }

  void to_servers(const Message& message) {
    for (Server& server : servers_)
      server.link.from.push_back(message);
  }
  void to_members(const Message& message) {
    for (Member& member : members_)
      if (!member.is_gone) member.link.from.push_back(message);
  }

  std::mt19937 random_;
  Rules rules_;
  std::string failed_;
  std::vector<bool> is_used_;
  std::vector<Member> members_;
  std::vector<Server> servers_ = std::vector<Server>(kServers);
  std::size_t restarts_ = 0;
  std::size_t losses_ = 0;

  // The scheduler.
  bool is_open_ = true;  // it has all reports, or is the first one
  std::map<Id, Tensor> tensors_;
  Id newest_ = 0;
  std::map<std::size_t, Message> member_reports_;
  std::map<std::size_t, Message> server_reports_;
  std::vector<std::size_t> waiting_;
  std::vector<std::pair<std::size_t, Id>> dropping_;
};

constexpr std::size_t kMostMembers = 3;

TEST_CASE("drop: the nth instance of a name is one tensor on all members, and nothing is left") {
  CHECK_THAT(testing::find_failure<World>(Rules{}, kMostMembers), Catch::Equals(""));
}

TEST_CASE("drop: each rule is needed") {
  const auto without = [](bool Rules::*rule) {
    return testing::find_failure_without<World>(rule, kMostMembers);
  };
  CHECK_THAT(without(&Rules::skips_dropped), Catch::StartsWith("a member waits for ever"));
  CHECK_THAT(without(&Rules::servers_first), Catch::StartsWith("members have different tensors"));
  CHECK_THAT(without(&Rules::reports_dropped), Catch::StartsWith("a member waits for ever"));
}

}  // namespace
}  // namespace bps::drop_test
