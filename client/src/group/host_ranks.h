// The ranks of this host that sum among themselves first (decision 0019): who they are, the links between
// them, and the group they make.
//
// A rank that is alone on its host makes a group of one when it is first given the memory of a GPU: what lies
// there is moved by a group only.
//
// Owner: DataPlane. Lives on: client loop. Failure: on_group, once, until the group has begun; then
// on_group_failed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/group/group_plane.h"
#include "client/src/group/local_links.h"
#include "client/src/runtime/client_config.h"
#include "proto/base/log/log.h"

namespace bps {

class HostRanks final : private GroupPlane::Owner, private LocalLinks::Owner {
 public:
  class Owner {
   public:
    // If there are several: they have found each other, or do not.
    virtual void on_group(const Status& status) = 0;
    virtual void on_group_failed(const Error& error) = 0;

   protected:
    ~Owner() = default;
  };
  // Makes what a group of ranks sums with; of one, which is for the memory of a GPU, when that is first
  // given.
  struct GroupContext {
    EventLoop& loop;
    Transport* transport = nullptr;  // between them; null: there are no others
    JobRun run;
    std::vector<Rank> ranks;
    std::uint32_t self = 0;  // among them
  };
  using MakeGroup = std::function<std::unique_ptr<LocalGroup>(const GroupContext&, LocalGroup::Owner&)>;

  // `transport`: between the ranks of this host; null: there is none. `config` outlives it.
  HostRanks(EventLoop& loop, Transport* transport, MakeGroup make_group, Owner& owner,
            GroupPlane::Rounds& rounds, const ClientConfig& config, Logger log);
  ~HostRanks();
  HostRanks(const HostRanks&) = delete;
  HostRanks& operator=(const HostRanks&) = delete;

  // Checks what the scheduler said of them, and opens the links if there are several. Once. `patience`: until
  // when the others may take to be there.
  Status form(const JobStart& start, const Member& self, TimePoint patience);

  std::uint32_t size() const { return size_; }
  std::uint32_t rank() const { return rank_; }  // among them
  // On any host of the job, from its beginning.
  bool sum_first() const { return sum_first_; }
  // The one of them that sends it is this one.
  bool owns(PartitionId partition) const { return partition.value % size_ == rank_; }
  // Where ranks sum first, asynchronous tensors are refused.
  Status check_declaration(const TensorDeclaration& declaration) const;

  // Null: this rank is alone, and nothing has been given in the memory of a GPU.
  GroupPlane* group() const { return group_.get(); }
  // An operation in the memory of a GPU: the tensor's first one joins it to the group.
  Status enter(TensorState& tensor);
  // No operation comes any more; `done`, when none of the others waits for this one: perhaps here.
  void leave(std::function<void()> done);
  // Closes the links at once.
  void close();
  // If there is a group: ends all its work with `error`, then `over`: perhaps here.
  void end(const Error& error, std::function<void()> over);
  // After that: the error of memory that may be touched all the same, by a GPU that does not come to rest.
  Status at_rest() const;
  // With what an operation of the tensor ends when all end with `error`.
  Error ending_of(const TensorState& tensor, Error error) const;

 private:
  Status make_group(GroupPlane::Place place, Transport* transport);
  // GroupPlane::Owner
  void on_group_begun(const Status& status) override;
  void on_group_failed(const Error& error) override;
  void send_to_member(std::uint32_t member, const Message& message, const Payload& payload,
                      std::uint64_t cookie) override {
    links_->send(member, message, payload, cookie);
  }
  // LocalLinks::Owner
  void on_links_up() override { group_->start(); }
  void on_links_failed(const Error& error) override { owner_.on_group(error); }
  void on_link_down(std::uint32_t member, const std::string& why) override {
    group_->on_link_down(member, why);
  }
  std::byte* on_link_payload(std::uint32_t member, const Message& message, std::uint64_t bytes) override {
    return group_->payload(member, message, bytes);
  }
  Status on_link_message(std::uint32_t member, Message& message, std::span<std::byte> payload) override {
    return group_->message(member, message, payload);
  }
  Result<bool> on_link_lent(std::uint32_t member, Message& message, LentPayload& payload) override {
    return group_->lent(member, message, payload);
  }
  void on_link_sent(std::uint32_t member, std::uint64_t cookie) override { group_->sent(member, cookie); }

  EventLoop& loop_;
  Transport* const transport_;
  const MakeGroup make_group_;
  Owner& owner_;
  GroupPlane::Rounds& rounds_;
  const ClientConfig& config_;
  Logger log_;
  JobRun run_;
  bool sum_first_ = false;
  std::uint32_t size_ = 1, rank_ = 0;
  std::unique_ptr<LocalLinks> links_;  // null: no other rank of this host
  std::unique_ptr<GroupPlane> group_;
  bool is_broken_ = false;
};

}  // namespace bps
