// bpsctl: asks the scheduler how the cluster stands and who waits for whom, sends servers away, and ends the
// cluster; and looks at what this machine has for RDMA.
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "deploy/bpsctl/doctor.h"
#include "deploy/bpsctl/process_settings.h"
#include "deploy/bpsctl/render.h"
#include "proto/base/config/config.h"
#include "proto/base/loop/asio_loop.h"
#include "proto/daemon/access.h"
#include "proto/session/control_session.h"
#include "proto/transport/rdma/device/rdma_settings.h"
#include "proto/transport/rdma/real/open_verbs.h"
#include "proto/transport/tcp/tcp_transport.h"

namespace bps {
namespace {

constexpr std::array<std::string_view, 5> kCommands = {"status", "why", "drain", "shutdown", "doctor"};
constexpr Duration kAnswerTimeout = std::chrono::seconds(5);

struct Settings {
  std::vector<std::string> arguments;
  Endpoint scheduler{"127.0.0.1", 4710};
  AccessSettings access;
  std::optional<std::uint32_t> pid;
  std::string job;
  Duration older_than = std::chrono::seconds(1);
  bool json = false;
  bool rdma = false;
  RdmaSettings rdma_choice;
};

void describe(Config& config, Settings& s) {
  config.add_arguments(
      s.arguments, "status | why [TENSOR] | drain SERVER | shutdown | doctor --rdma",
      "How the cluster stands; who waits for whom; send a server away without harm; end all jobs, "
      "servers and the scheduler; what this machine has for RDMA, and what is wrong with it");
  config.add("scheduler", s.scheduler, "Where bps-scheduler listens");
  add_access(config, s.access, "The cluster's key", "TLS 1.3: this program's certificate");
  config
      .add("pid", s.pid,
           "A process of bps-run or a worker on this host: take scheduler, key and TLS from its environment")
      .range(1, std::numeric_limits<pid_t>::max());
  config.add("job", s.job, "why: of this job only").unit("NAME");
  config.add("older-than", s.older_than, "why: only what has waited this long");
  config.add("rdma", s.rdma,
             "doctor: look at RDMA devices, libraries and limits; exit status 78 if something is wrong");
  add_rdma_settings(config, s.rdma_choice, /*connects=*/false);
  config.add("json", s.json, "Print JSON");
}

// The first message, or what is wrong with the command line.
Result<Message> query_of(const Settings& s) {
  const auto usage = [](std::string what, std::string advice = "see bpsctl --help") {
    return make_error(ErrorCode::invalid_argument, std::move(what), std::move(advice));
  };
  if (s.arguments.empty()) return usage("which command? status, why, drain, shutdown or doctor");
  const std::string& command = s.arguments[0];
  const std::size_t most = command == "why" || command == "drain" ? 2 : 1;
  if (std::find(kCommands.begin(), kCommands.end(), command) != kCommands.end()) {
    if (s.arguments.size() > most)
      return usage(fmt::format("{} takes no argument '{}'", command, s.arguments[most]));
  }
  if (command == "status") return Message(AskCluster{1});
  if (command == "shutdown") return Message(EndCluster{1});
  if (command == "why") {
    AskWaits query{1, s.job, Subject::everything, {}, 0, 0};
    query.older_than_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(s.older_than).count(), 0));
    if (s.arguments.size() == 2) {
      query.subject = Subject::tensor;
      query.tensor = s.arguments[1];
    }
    return Message(query);
  }
  if (command == "drain") {
    if (s.arguments.size() < 2) return usage("drain which server?", "bpsctl status shows their numbers");
    const std::string& text = s.arguments[1];
    std::uint32_t number = 0;
    const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (errc != std::errc{} || end != text.data() + text.size())
      return usage("'" + text + "' is no number of a server", "bpsctl status shows their numbers");
    return Message(Drain{1, ServerId{number}});
  }
  const auto nearest = nearest_name(command, kCommands);
  return usage(fmt::format("there is no command '{}'", command),
               nearest ? fmt::format("did you mean {}?", *nearest)
                       : "there are status, why, drain, shutdown and doctor");
}

constexpr const char* kWhere = "start bps-scheduler, or say where it is with --scheduler HOST:PORT";

// One attempt, in which the scheduler may be silent for no longer than in a session.
SessionOptions session_options() { return {.attempt = kHeartbeatTimeout + kHeartbeatInterval, .once = true}; }

SessionWords session_words(const Endpoint& scheduler) {
  return {.scheduler = "the scheduler at " + to_string(scheduler),
          .address = to_string(scheduler),
          .self = "bpsctl",
          .refuses = "refuses",
          .ends = "refuses",
          .advice_unreachable = kWhere,
          .advice_lost = kWhere};
}

// They open devices as servers and workers would have them opened.
RdmaLibraries ask_libraries(bool has_devices) {
  RdmaLibraries libraries;
  if (Status status = check_libraries(); !status.ok()) {
    libraries.error = status.error();
  } else if (has_devices) {
    const auto verbs = open_verbs();
    const auto devices = verbs ? (*verbs)->devices() : verbs.error();
    if (!devices) {
      libraries.not_opened = devices.error();
      return libraries;
    }
    for (VerbsDevice* const device : *devices)
      libraries.opened.push_back(device->name());
  }
  return libraries;
}

// Of this machine: no scheduler is asked.
int run_doctor(const Settings& s) {
  const auto refuse = [](std::string_view what) {
    fmt::print(stderr, "bpsctl: {}\n", what);
    return exit_code_of(ErrorCode::invalid_argument);
  };
  if (s.arguments.size() > 1) return refuse(fmt::format("doctor takes no argument '{}'", s.arguments[1]));
  if (!s.rdma) return refuse("what is doctor to look at? --rdma");
  const auto choice = verbs_options(s.rdma_choice);
  if (!choice) return refuse(to_string(choice.error()));
  RdmaInventory inventory = take_rdma_inventory("/");
  inventory.libraries = ask_libraries(!inventory.devices.empty());
  const RdmaDiagnosis diagnosis = diagnose(inventory, *choice);
  std::fputs((s.json ? render_json(inventory, diagnosis) : render(inventory, diagnosis)).c_str(), stdout);
  if (std::fflush(stdout) != 0) return exit_code_of(ErrorCode::os);
  return diagnosis.healthy() ? 0 : exit_code_of(ErrorCode::configuration);
}

class Program final : private ControlSession::Owner {
 public:
  Program(const Settings& settings, Message query, Access access)
      : settings_(settings), query_(std::move(query)), access_(std::move(access)) {}

  int run() {
    if (Status status = start(); !status) return fail(status.error());
    loop_->run();
    return exit_code_;
  }

 private:
  int fail(const Error& error) {
    fmt::print(stderr, "bpsctl: {}\n", to_string(error));
    exit_code_ = exit_code_of(error.code);
    return exit_code_;
  }

  Status start() {
    auto loop = AsioLoop::create();
    if (!loop) return loop.error();
    loop_ = std::move(loop).value();
    auto signals = SignalWatcher::watch(*loop_, {SIGTERM, SIGINT}, [this](int) { on_signal(); });
    if (!signals) return signals.error();
    signals_ = std::move(signals).value();
    TcpOptions tcp;
    tcp.tls = access_.tls;
    transport_ = std::make_unique<TcpTransport>(tcp);
    const SharedKey key = access_.key == nullptr ? nullptr : derive_admin_key(*access_.key);
    ControlSession::Owner& owner = *this;
    link_ = std::make_unique<ControlSession>(*loop_, *transport_, owner, settings_.scheduler, key,
                                             session_options(), session_words(settings_.scheduler),
                                             Logger("bpsctl"));
    link_->start();
    return {};
  }

  Message make_hello(const SessionCore::Known&) override { return HelloAdmin{}; }

  void on_welcomed(const Welcome&) override {
    link_->send(query_);
    // Until nothing of the cluster is left; a scheduler that hangs is silent.
    if (ends_cluster()) return notice_end();
    timer_ = loop_->after(kAnswerTimeout, [this] {
      end(make_error(ErrorCode::unreachable,
                     fmt::format("the scheduler at {} has not answered", to_string(settings_.scheduler))));
    });
  }

  void on_control_failed(const Error& error) override { end(error); }

  void end(const Error& error) {
    if (error.code != ErrorCode::ok) fail(error);
    loop_->stop();
  }

  void print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    if (std::fflush(stdout) != 0) exit_code_ = exit_code_of(ErrorCode::os);
  }

  void on_control_message(Message& message) override {
    loop_->cancel(timer_);
    if (const auto* state = std::get_if<ClusterState>(&message)) {
      print(settings_.json ? render_json(*state, settings_.scheduler) : render(*state, settings_.scheduler));
      return end({});
    }
    if (const auto* waits = std::get_if<Waits>(&message)) {
      if (waits->error.code == ErrorCode::ok)
        print(settings_.json ? render_json(*waits) : render(*waits, settings_.older_than));
      return end(waits->error);
    }
    if (const auto* ended = std::get_if<ClusterEnded>(&message)) {
      print(settings_.json ? render_json(*ended) : render(*ended));
      return end({});
    }
    const auto* drained = std::get_if<Drained>(&message);
    const auto* drain = std::get_if<Drain>(&query_);
    if (drained == nullptr || drain == nullptr) {
      return end(make_error(ErrorCode::protocol,
                            fmt::format("the scheduler answers with {}", name_of(message)),
                            "use the same bps version everywhere"));
    }
    const bool failed = drained->error.code != ErrorCode::ok;
    if (failed && !(drained->over && settings_.json)) return end(drained->error);
    if (drained->over || !settings_.json)
      print(settings_.json ? render_json(*drained, drain->server)
                           : render(*drained, drain->server, !drains_));
    drains_ = true;
    if (drained->over) end(drained->error);
  }

  // A program that waits without a word looks as if it hung.
  void notice_end() {
    timer_ = loop_->after(std::chrono::seconds(1), [] {
      fmt::print(stderr,
                 "bpsctl: waits until all servers have ended; in the first seconds of a scheduler also for "
                 "workers and servers that may come back to it\n");
    });
  }

  bool ends_cluster() const { return std::holds_alternative<EndCluster>(query_); }

  // A drain is the scheduler's and the server's business from its beginning on; so is the end.
  void on_signal() {
    if (ends_cluster() && link_->core().state() == SessionCore::State::welcomed)
      return end(make_error(ErrorCode::deadline, "interrupted; the cluster ends all the same"));
    if (!drains_) return end(make_error(ErrorCode::cancelled, "interrupted"));
    end(make_error(ErrorCode::deadline, "interrupted; the drain goes on",
                   "bpsctl status shows the server until it has gone"));
  }

  const Settings& settings_;
  const Message query_;
  const Access access_;
  int exit_code_ = 0;
  bool drains_ = false;
  std::unique_ptr<AsioLoop> loop_;
  std::unique_ptr<SignalWatcher> signals_;
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<ControlSession> link_;
  TimerId timer_;
};

int run(int argc, char** argv) {
  Settings settings;
  Config config("bpsctl", "Asks a bps cluster how it stands, sends servers away, and ends it.");
  describe(config, settings);
  if (const auto exit_code = config.parse_or_exit(argc, argv, Logger("bpsctl"))) return *exit_code;
  const auto fail = [](const Error& error) {
    fmt::print(stderr, "bpsctl: {}\n", to_string(error));
    return exit_code_of(error.code);
  };
  if (!settings.arguments.empty() && settings.arguments[0] == "doctor") return run_doctor(settings);
  auto query = query_of(settings);
  if (!query) return fail(query.error());
  if (settings.pid) {
    const auto cluster = cluster_of_process(static_cast<pid_t>(*settings.pid));
    if (!cluster) return fail(cluster.error());
    if (const Status status = config.load(*cluster); !status) return fail(status.error());
  }
  auto access = read_access(settings.access);
  if (!access) return fail(access.error());
  return Program(settings, std::move(query).value(), std::move(access).value()).run();
}

}  // namespace
}  // namespace bps

int main(int argc, char** argv) { return bps::run(argc, argv); }
