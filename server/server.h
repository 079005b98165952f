// The server: registers with the scheduler, does what it says, and hands lanes to the shards.
//
// Owner: main(), the simulator, or a client with an embedded cluster. Lives on: main loop; callbacks are
// posted to it. One control connection to the scheduler carries everything that changes what exists (jobs,
// tensors, members that left); lanes carry data and are moved to their shard's loop as soon as their hello is
// checked. Acknowledges to the scheduler only what all shards have done, so that no lane can be ahead of it.
// While the scheduler is away lanes go on; when it is back, or another one is, it hears what is here and asks
// again what it has no answer to; what is done already is acknowledged and not done again (decision 0013).
//
// Failure: a port that is taken or an address that is not allowed is an error of start(); a scheduler that
// cannot be reached within start_timeout, refuses, or is away for longer than scheduler_grace ends the server
// with an error, by `stopped`; the ordered end of the cluster is no error. A shard has no errors: what does
// not fit is refused before it gets there.
//
// Destroy it after `stopped`, or when the shard loops have stopped or cannot run; its loops must outlive it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/memory/memory_bounds.h"
#include "proto/session/control_session.h"
#include "proto/transport/transport.h"
#include "proto/wire/timing.h"
#include "server/lane_admission.h"
#include "server/shard/lane_door.h"
#include "server/shard_set.h"
#include "server/tensor_admission.h"

namespace bps {

struct ServerOptions {
  Endpoint scheduler{"127.0.0.1", 4710};
  Endpoint listen;                        // port 0: any
  std::string advertise;                  // host that workers reach; empty: that of `listen`
  SharedKey key;                          // the cluster's; null: none
  bool insecure = false;                  // allow another address than loopback without a key or TLS
  bool mutual_tls = false;                // the transport lets in nobody without a certificate
  std::string host;                       // identity of the machine
  std::uint64_t bandwidth_bps = 0;        // 0 = unknown
  std::uint64_t memory_max = 4ull << 30;  // partitions, lanes, reorder budgets and accumulators together
  MemoryBound memory_limit = {};          // of this process. For what a refusal advises
  bool embedded = false;                  // in the process of a worker
  // What the system has left for this process. Empty: enough.
  std::function<MemoryBound()> headroom = {};
  // Called on the main loop when it changes: the address space that this server may need for what it has
  // promised. Empty: nobody needs to know. Outlives the server.
  std::function<void(std::uint64_t bytes)> promised = {};
  // Per shard. Half as much again is for accumulators; both together are at most a quarter of memory_max for
  // all shards.
  std::uint64_t reorder_budget = 64ull << 20;
  // Of memory_max, what each job may use for rounds of tensors in mode slot, on all shards together. Beside
  // it there is a buffer on each shard, as large as the largest partition of such a tensor. Empty: 256 MiB,
  // at most an eighth of memory_max.
  std::optional<std::uint64_t> call_memory = {};
  // Also takes lanes of workers on this host through it, and sends them aggregates from its memory. Null:
  // over the network only. Outlives the server.
  Transport* shared_memory = nullptr;
  // Also takes lanes over RDMA, on the address and port of those over the network. Null: none. Outlives the
  // server. Where both are given, aggregates are in this one's memory, which should be the other's, too.
  Transport* rdma = nullptr;
  bool rdma_if_possible = false;                      // go on without it where nobody can listen for it
  std::optional<Entrance> only;                       // refuse lanes that come otherwise
  std::size_t max_greeting = 1024;                    // connections before their handshake is done
  Duration start_timeout = std::chrono::seconds(30);  // for reaching the scheduler
  // For reaching it again when it is lost; 0: not tried.
  Duration scheduler_grace = std::chrono::seconds(60);
  // How long drain() waits for a scheduler that is away, while jobs use this server.
  Duration drain_timeout = std::chrono::seconds(25);
  Duration heartbeat_interval = kHeartbeatInterval;
  Duration heartbeat_timeout = kHeartbeatTimeout;
  Duration stall_warn = std::chrono::seconds(10);  // rounds that are open longer are logged; 0: none
  LaneCpus::Bind bind_shard = {};                  // of the thread of a shard
};

class Server final : private ControlSession::Owner, private TensorAdmission::Owner {
 public:
  struct Callbacks {
    std::function<void()> registered;           // the scheduler knows this server
    std::function<void(const Error&)> stopped;  // once; code ok after drain() or stop()
  };

  // `shard_loops`: one per shard, 1 to kMaxShardsPerServer; may all be `loop`.
  Server(EventLoop& loop, const std::vector<EventLoop*>& shard_loops, Transport& transport,
         ServerOptions options, Callbacks callbacks, Logger log);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Listens, then looks for the scheduler.
  Status start();

  // No new jobs; stops when those that use this server are over. Only a scheduler moves them to other
  // servers: while it is away this stops at once if no job uses this server, else after drain_timeout or the
  // end of the session, with an error.
  void drain();

  // Ends everything now; workers have ServerLane::kFarewell to close their lanes.
  void stop() { finish(Error{}); }

  // Where workers reach it. After start().
  const Endpoint& endpoint() const { return data_; }
  const JobLedger& ledger() const { return admission_.ledger(); }
  // Each lives on its own loop: look only where that cannot run, as in the simulator.
  const std::vector<std::shared_ptr<Shard>>& shards() const { return shards_.all(); }
  std::uint64_t rejected_connections() const { return door_.rejected(); }

 private:
  enum class State : std::uint8_t { idle, registering, serving, draining, stopping, stopped };

  Message make_hello(const SessionCore::Known& known) override;
  void on_welcomed(const Welcome& welcome) override;
  void on_taken_up() override;
  void on_control_message(Message& message) override;
  void on_control_failed(const Error& error) override;

  void notice_after(Duration delay);
  Status check_options() const;
  Status open_rdma();
  void make_shards();
  Status open_shared_memory();
  Result<EventLoop*> check_lane(const HelloLane& hello, Entrance entrance) const;
  void enter(const HelloLane& hello, const AcceptingHandshake& handshake,
             std::unique_ptr<Connection> connection);

  using Request = TensorAdmission::Request;
  std::uint64_t connection_number() const override { return link_.connection_number(); }
  void acknowledge(Request request, const Error& error) override;
  void on_reserved() override;

  void open_job(const OpenJob& job);
  void worker_left(const WorkerLeft& left);
  void shrink(const Shrunk& shrunk);
  std::string describe(const JobEnded& ended) const;
  void end_job(const JobEnded& ended);

  // What the job waits for at all shards. server_stall.cc
  using Surveyed = std::function<void(OpenRoundList, const TensorNames&)>;
  void survey(JobRun job, std::optional<TensorId> tensor, bool with_names, Surveyed done);
  void answer(const AskOpenRounds& query);
  void watch_later();
  void watch();

  void leave();
  void watch_drain();

  void finish(const Error& error);

  EventLoop& loop_;
  Transport& transport_;
  const ServerOptions options_;
  const Callbacks callbacks_;
  const Logger log_;
  const MemoryPlan memory_;
  State state_ = State::idle;
  const std::vector<EventLoop*> shard_loops_;
  ShardSet shards_;  // filled by start()
  TensorAdmission admission_;
  LaneDoor door_;
  Endpoint data_;
  ServerIdentity identity_;
  bool offers_rdma_ = false;
  HelloServer hello_;  // without what the scheduler issues
  ControlSession link_;
  TimerId notice_timer_;  // until the scheduler is found
  TimerId watch_timer_;
  TimerId drain_timer_;
  std::optional<TimePoint> drains_alone_since_;  // without a scheduler
  bool ends_with_cluster_ = false;               // the scheduler waits until this connection closes
  StallWatch stalls_;
};

}  // namespace bps
