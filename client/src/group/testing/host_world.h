// For tests of HostGroup: all members of a host in one process, with a connection between each two of them
// over any transport that works on one loop.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/group/host_group.h"
#include "client/src/group/testing/group_exercise.h"

namespace bps::testing {

class HostWorld {
 public:
  // `unused`: an endpoint that nobody has had before.
  HostWorld(EventLoop& loop, Transport& transport, std::uint32_t size, std::uint64_t seed,
            const std::function<Endpoint()>& unused)
      : exercise(loop, size, seed) {
    HostGroup::Options options;
    options.job_run = JobRun{4711};
    for (std::uint32_t i = 0; i < size; ++i)
      options.ranks.push_back(Rank{10 + 2 * i});
    for (std::uint32_t i = 0; i < size; ++i) {
      options.member = i;
      auto& owner = exercise.member(i);
      groups.push_back(std::make_unique<HostGroup>(loop, transport, options, owner));
      owner.group = groups.back().get();
      ends_.emplace_back(size);
      owner.sender = [this, i](std::uint32_t to, const Message& message, Payload payload,
                               std::uint64_t cookie) {
        REQUIRE(to != i);
        REQUIRE(ends_[i][to]->connection);
        if (ends_[i][to]->closed) return;
        ends_[i][to]->connection->send(message, payload, cookie);
      };
    }
    for (std::uint32_t i = 0; i < size; ++i) {
      for (std::uint32_t j = 0; j < size; ++j) {
        if (i != j) ends_[i][j] = std::make_unique<End>(*groups[i], j);
      }
    }
    for (std::uint32_t i = 0; i < size; ++i) {
      for (std::uint32_t j = i + 1; j < size; ++j)
        connect(loop, transport, i, j, unused());
    }
    exercise.begin();
  }

  bool is_connected() const { return exercise.is_begun() && connected_ == 2 * listeners_.size(); }

  // As its owner does it: nothing that it has lent can be read any more when its collectives end.
  void abort(std::uint32_t member, const Error& error) {
    close(member);
    exercise.stop(member);
    groups[member]->abort(error);
  }
  void close(std::uint32_t member) {
    for (const auto& end : ends_[member]) {
      if (end && end->connection) end->connection->close();
      if (end && !end->closed) end->closed = make_error(ErrorCode::cancelled, "by this end");
    }
  }
  // Connections that are closed, and why, for messages.
  std::string closed() const {
    std::string text;
    for (const auto& member : ends_) {
      for (const auto& end : member) {
        if (end && end->closed)
          text += "; to member " + std::to_string(end->peer) + ": " + end->closed->message;
      }
    }
    return text;
  }

 private:
  struct End final : ConnectionHandler {
    End(HostGroup& to, std::uint32_t from) : group(to), peer(from) {}
    std::byte* on_payload(const Message& message, std::uint64_t bytes) override {
      return group.payload(peer, message, bytes);
    }
    void on_message(Message& message, std::span<std::byte> payload) override {
      judge(group.message(peer, message, payload));
    }
    bool on_lent(Message& message, LentPayload& payload) override {
      const auto taken = group.lent(peer, message, payload);
      judge(taken.ok() ? Status() : Status(taken.error()));
      return !taken.ok() || *taken;
    }
    void on_sent(std::uint64_t cookie) override { group.sent(peer, cookie); }
    void on_closed(const Error& error) override { closed = error; }
    void judge(const Status& status) {
      if (status.ok()) return;
      closed = status.error();
      connection->close();
    }

    HostGroup& group;
    const std::uint32_t peer;
    std::unique_ptr<Connection> connection;
    std::optional<Error> closed;
  };

  void connect(EventLoop& loop, Transport& transport, std::uint32_t i, std::uint32_t j,
               const Endpoint& endpoint) {
    auto listener = transport.listen(loop, endpoint, [this, i, j](std::unique_ptr<Connection> accepted) {
      start(*ends_[i][j], std::move(accepted));
    });
    REQUIRE(listener.ok());
    listeners_.push_back(std::move(*listener));
    start(*ends_[j][i], transport.connect(loop, listeners_.back()->endpoint(), std::chrono::seconds(10)));
  }
  void start(End& end, std::unique_ptr<Connection> connection) {
    end.connection = std::move(connection);
    end.connection->start(end);
    ++connected_;
  }

 public:
  GroupExercise exercise;
  std::vector<std::unique_ptr<HostGroup>> groups;

 private:
  std::vector<std::vector<std::unique_ptr<End>>>
      ends_;  // by member and peer; after the groups: closed before
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::size_t connected_ = 0;
};

}  // namespace bps::testing
