// Of process_worker --exchanges: messages with tags, and exchanges of many lengths, on a group of its own,
// with every byte checked.
#pragma once

#include <bps/client.hpp>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

class WorkerMessages {
 public:
  // `drop_every`: after so many rounds the group is dropped and declared again; 0: never. To be made before
  // the client, whose destructor ends the operations that read and write its memory.
  WorkerMessages(std::string name, std::uint64_t drop_every)
      : name_(std::move(name)), drop_every_(drop_every) {}

  // False: some byte is wrong, and stderr has which.
  bool round(bps::Client& client, std::uint64_t round);

 private:
  using Bytes = std::vector<std::uint8_t>;
  struct Expected {
    std::string what;
    const Bytes* memory = nullptr;  // where it comes
    Bytes bytes;
  };

  void renew(bps::Client& client);
  void send_all(std::uint64_t first_tag);
  void receive_all(std::uint64_t first_tag);
  void scatter(int root);
  void gather(int root);
  void all_to_all();
  bool check_parts(const bps::Handle& handle, const std::string& what, const std::vector<Bytes>& parts) const;
  Bytes part(std::uint64_t kind, int from, int to) const;
  std::vector<std::uint64_t> lengths(std::uint64_t kind, int from, int to) const;
  Bytes& keep(Bytes bytes) { return memory_.emplace_back(std::move(bytes)); }
  void expect(const std::string& what, const Bytes& memory, Bytes bytes);

  const std::string name_;
  const std::uint64_t drop_every_;
  bps::Group group_;
  bps::Handle dropped_;
  int rank_ = 0;
  int size_ = 0;
  std::uint64_t round_ = 0;
  std::deque<Bytes> memory_;  // of the round
  std::vector<bps::Handle> handles_;
  std::vector<Expected> expected_;
};
