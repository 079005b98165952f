#include "proto/wire/wait_text.h"

#include <fmt/core.h>

namespace bps {
namespace {

std::string list_missing(const Wait& wait) {
  const auto named = static_cast<std::uint32_t>(wait.missing.size());
  return list_text(wait.missing, wait.absent > named ? wait.absent - named : 0);
}

std::string counted(const Wait& wait, const char* whom, const char* have_done) {
  std::string text = wait.absent == 0 ? fmt::format("all {}{} {}", wait.expected, whom, have_done)
                                      : fmt::format("{} of {}{} {}", wait.expected - wait.absent,
                                                    wait.expected, whom, have_done);
  if (wait.missing.empty()) return text;
  return text + ", missing " + list_missing(wait);
}

std::string circle(const Wait& wait) {
  if (wait.cycle_ms == 0) return "";
  return fmt::format("; ranks have waited for each other for {}", milliseconds_text(wait.cycle_ms));
}

// Why it does not come, as far as that is known.
std::string cause(const Party& party) {
  std::string text = party.undeclared ? "; it has not declared it" : "";
  if (party.waits_for.empty()) return text;
  text += fmt::format("{} waits for round {} of {} itself", party.undeclared ? ", and" : "; it",
                      party.waits_for_round, party.waits_for);
  return text;
}

}  // namespace

std::string milliseconds_text(std::uint64_t milliseconds) {
  return fmt::format("{:.1f} s", static_cast<double>(milliseconds) / 1000);
}

std::string to_string(const Party& party) {
  const std::string who = fmt::format("{} {}", party.server ? "server" : "rank", party.number);
  const std::string host = party.host.empty() ? "" : "host " + party.host + ", ";
  const std::string ago = milliseconds_text(party.silent_ms);
  switch (party.state) {
    case PartyState::alive: return fmt::format("{} ({}last seen {} ago{})", who, host, ago, cause(party));
    case PartyState::suspected: return fmt::format("{} ({}connection lost {} ago)", who, host, ago);
    case PartyState::gone: return fmt::format("{} ({}gone for {})", who, host, ago);
    case PartyState::left: return fmt::format("{} ({}has left)", who, host);
    case PartyState::absent: break;
  }
  return fmt::format("{} (never joined)", who);
}

std::string list_text(const std::vector<Party>& parties, std::uint32_t more) {
  std::string text;
  for (std::size_t i = 0; i < parties.size(); ++i) {
    if (i > 0) text += i + 1 == parties.size() && more == 0 ? " and " : ", ";
    text += to_string(parties[i]);
  }
  if (more > 0) text += fmt::format(" and {} more", more);
  return text;
}

std::string to_string(const Wait& wait) {
  switch (wait.kind) {
    case WaitKind::round:
      return fmt::format("round {} of {}: {}", wait.number, wait.tensor, counted(wait, "", "pushed")) +
             circle(wait);
    case WaitKind::resume:
      return fmt::format("{}, which moves to another server: {}", wait.tensor, counted(wait, "", "resumed"));
    case WaitKind::barrier:
      return fmt::format("barrier {}: {}{}", wait.number, counted(wait, "", "arrived"), circle(wait));
    case WaitKind::join:
      return fmt::format("the workers of the job: {}{}", counted(wait, "", "joined"),
                         wait.absent == 0 ? ", and no server is there" : "");
    case WaitKind::start:
      return fmt::format("the start of the job: {}", counted(wait, " servers", "confirmed it"));
    case WaitKind::declaration:
      return fmt::format("the declaration of {}: {}", wait.tensor, counted(wait, " servers", "confirmed it"));
    case WaitKind::move:
      return fmt::format("partitions that move: {}", counted(wait, " servers", "confirmed them"));
    case WaitKind::server:
      return fmt::format("{} partition{} at {}, which does not answer", wait.partitions,
                         wait.partitions == 1 ? "" : "s", list_text(wait.missing));
    case WaitKind::drop:
      return fmt::format("the drop of {}: {}", wait.tensor, counted(wait, "", "dropped it"));
    case WaitKind::store:
      return fmt::format("round {} of {}, which is complete and not over at {}", wait.number, wait.tensor,
                         list_missing(wait));
    case WaitKind::link: break;
  }
  return fmt::format("a link that is cut, between {}", list_text(wait.missing));
}

}  // namespace bps
