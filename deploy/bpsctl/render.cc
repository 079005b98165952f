#include "deploy/bpsctl/render.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "proto/base/config/units.h"
#include "proto/wire/wait_text.h"

namespace bps {
namespace {

using Json = nlohmann::ordered_json;

const char* text_of(PartyState state) {
  switch (state) {
    case PartyState::alive: return "alive";
    case PartyState::suspected: return "suspected";
    case PartyState::gone: return "gone";
    case PartyState::left: return "left";
    case PartyState::absent: break;
  }
  return "never joined";
}

const char* text_of(WaitKind kind) {
  switch (kind) {
    case WaitKind::round: return "round";
    case WaitKind::resume: return "resume";
    case WaitKind::barrier: return "barrier";
    case WaitKind::join: return "join";
    case WaitKind::start: return "start";
    case WaitKind::declaration: return "declaration";
    case WaitKind::move: return "move";
    case WaitKind::server: return "server";
    case WaitKind::drop: return "drop";
    case WaitKind::store: return "store";
    case WaitKind::link: break;
  }
  return "link";
}

std::string bytes_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const ScaledBytes shown = scaled(ByteSize{bytes}, kUnits);
  return fmt::format("{:.1f} {}", shown.value, shown.unit);
}

std::string plural(std::uint64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

double seconds(std::uint64_t milliseconds) { return static_cast<double>(milliseconds) / 1000; }

Json json_of(const Party& party) {
  return {{party.server ? "server" : "rank", party.number},
          {"host", party.host},
          {"state", text_of(party.state)},
          {"silent_seconds", seconds(party.silent_ms)},
          {"undeclared", party.undeclared},
          {"waits_for", party.waits_for},
          {"waits_for_round", party.waits_for_round}};
}

Json json_of(const std::vector<Party>& parties) {
  Json out = Json::array();
  for (const Party& party : parties)
    out.push_back(json_of(party));
  return out;
}

Json json_of(const std::vector<CutLink>& links) {
  Json out = Json::array();
  for (const CutLink& link : links) {
    out.push_back(
        {{"rank", link.rank.value}, {"server", link.server.value}, {"age_seconds", seconds(link.age_ms)}});
  }
  return out;
}

// Names are bytes; what is no UTF-8 is replaced.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string line(const ServerState& server) {
  std::string text =
      fmt::format("  server {}  host {}  {}  {}  {} of {}  {}", server.server.value, server.host,
                  to_string(server.endpoint), plural(server.shards, "shard"), bytes_text(server.placed),
                  bytes_text(server.memory_max), plural(server.jobs, "job"));
  text += server.state == PartyState::alive
              ? fmt::format("  last seen {} ago", milliseconds_text(server.silent_ms))
              : fmt::format("  connection lost {} ago", milliseconds_text(server.silent_ms));
  return text + (server.draining ? "  drains\n" : "\n");
}

std::string line(const JobState& job) {
  std::string text =
      fmt::format("  {}  run {:016x}  {} for {}: {} of {} workers joined", job.job, job.job_run.value,
                  job.phase, milliseconds_text(job.age_ms), job.joined, job.world_size);
  if (job.suspected > 0) text += fmt::format(", {} suspected", job.suspected);
  if (job.left > 0) text += fmt::format(", {} left", job.left);
  text += fmt::format("; {}, {} on {}; epoch {}, generation {}\n", plural(job.tensors, "tensor"),
                      bytes_text(job.bytes), plural(job.servers, "server"), job.epoch.value,
                      job.generation.value);
  for (const Party& party : job.absentees)
    text += "    " + to_string(party) + "\n";
  for (const CutLink& link : job.cut_links) {
    text += fmt::format("    rank {}'s link to server {} is cut ({})\n", link.rank.value, link.server.value,
                        milliseconds_text(link.age_ms));
  }
  return text;
}

}  // namespace

std::string render(const ClusterState& state, const Endpoint& scheduler) {
  constexpr std::uint64_t kVisibleLagMs = 100;
  std::string text = fmt::format("scheduler {}  term {}  up {}\n", to_string(scheduler), state.term.number,
                                 milliseconds_text(state.uptime_ms));
  if (state.lag_ms >= kVisibleLagMs)
    text += fmt::format("the scheduler was late by {} in the last minute\n", milliseconds_text(state.lag_ms));
  text += state.servers.empty() ? "no server\n" : plural(state.servers.size(), "server") + "\n";
  for (const ServerState& server : state.servers)
    text += line(server);
  for (const GoneServer& server : state.gone_servers) {
    text += fmt::format("  server {}  host {}  {}  gone for {}: {}\n", server.server.value, server.host,
                        to_string(server.endpoint), milliseconds_text(server.gone_ms), server.how);
  }
  text += state.jobs.empty() ? "no job\n" : plural(state.jobs.size(), "job") + "\n";
  for (const JobState& job : state.jobs)
    text += line(job);
  return text;
}

std::string render(const Waits& waits, Duration older_than) {
  std::string text;
  for (const Wait& wait : waits.waits)
    text += fmt::format("{}: for {}: {}\n", wait.job, milliseconds_text(wait.age_ms), to_string(wait));
  if (waits.more > 0) text += fmt::format("and {} more\n", waits.more);
  if (!waits.silent.empty()) text += "did not answer: " + list_text(waits.silent) + "\n";
  if (!text.empty()) return text;
  if (older_than <= Duration::zero()) return "nothing waits\n";
  return fmt::format("nothing waits, or not for {} yet (--older-than)\n", to_string(older_than));
}

std::string render(const Drained& drained, ServerId server, bool begins) {
  if (drained.over) {
    return fmt::format("server {} has gone: {} moved to others, nothing failed\n", server.value,
                       plural(drained.partitions, "partition"));
  }
  std::string text;
  if (begins) {
    text =
        fmt::format("server {} drains: {} to move away from it\n", server.value, plural(drained.jobs, "job"));
  }
  for (std::size_t i = 0; i < drained.stays_for.size(); ++i)
    text += fmt::format("  {} keeps it for now: {}\n", drained.stays_for[i], drained.reasons[i]);
  return text;
}

std::string render(const ClusterEnded& ended) {
  return fmt::format("the cluster has ended: {}, {} and the scheduler\n", plural(ended.jobs, "job"),
                     plural(ended.servers, "server"));
}

std::string render_json(const ClusterState& state, const Endpoint& scheduler) {
  Json out = {{"scheduler", to_string(scheduler)},
              {"term", {{"number", state.term.number}, {"id", fmt::format("{:016x}", state.term.id)}}},
              {"uptime_seconds", seconds(state.uptime_ms)},
              {"lag_seconds", seconds(state.lag_ms)},
              {"servers", Json::array()},
              {"gone_servers", Json::array()},
              {"jobs", Json::array()}};
  for (const ServerState& server : state.servers) {
    out["servers"].push_back({{"server", server.server.value},
                              {"host", server.host},
                              {"endpoint", to_string(server.endpoint)},
                              {"shards", server.shards},
                              {"memory_max", server.memory_max},
                              {"placed", server.placed},
                              {"jobs", server.jobs},
                              {"draining", server.draining},
                              {"state", text_of(server.state)},
                              {"silent_seconds", seconds(server.silent_ms)}});
  }
  for (const GoneServer& server : state.gone_servers) {
    out["gone_servers"].push_back({{"server", server.server.value},
                                   {"host", server.host},
                                   {"endpoint", to_string(server.endpoint)},
                                   {"gone_seconds", seconds(server.gone_ms)},
                                   {"how", server.how}});
  }
  for (const JobState& job : state.jobs) {
    out["jobs"].push_back({{"job", job.job},
                           {"run", fmt::format("{:016x}", job.job_run.value)},
                           {"phase", job.phase},
                           {"epoch", job.epoch.value},
                           {"generation", job.generation.value},
                           {"age_seconds", seconds(job.age_ms)},
                           {"world_size", job.world_size},
                           {"joined", job.joined},
                           {"suspected", job.suspected},
                           {"left", job.left},
                           {"servers", job.servers},
                           {"tensors", job.tensors},
                           {"bytes", job.bytes},
                           {"absentees", json_of(job.absentees)},
                           {"cut_links", json_of(job.cut_links)}});
  }
  return dump(out);
}

std::string render_json(const Waits& waits) {
  Json out = {{"waits", Json::array()}, {"more", waits.more}, {"silent", json_of(waits.silent)}};
  for (const Wait& wait : waits.waits) {
    out["waits"].push_back({{"job", wait.job},
                            {"kind", text_of(wait.kind)},
                            {"tensor", wait.tensor},
                            {"number", wait.number},
                            {"age_seconds", seconds(wait.age_ms)},
                            {"partitions", wait.partitions},
                            {"expected", wait.expected},
                            {"absent", wait.absent},
                            {"missing", json_of(wait.missing)},
                            {"cycle_seconds", seconds(wait.cycle_ms)},
                            {"text", to_string(wait)}});
  }
  return dump(out);
}

std::string render_json(const Drained& drained, ServerId server) {
  return dump({{"server", server.value},
               {"over", drained.over},
               {"jobs", drained.jobs},
               {"partitions", drained.partitions},
               {"stays_for", drained.stays_for},
               {"reasons", drained.reasons},
               {"error", drained.error.message}});
}

std::string render_json(const ClusterEnded& ended) {
  return dump({{"jobs", ended.jobs}, {"servers", ended.servers}});
}

}  // namespace bps
