// For tests: calls on groups, in virtual time, whose owner is the test. It says when a declaration is
// answered, and how a round ends.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/src/calls/group_calls.h"
#include "proto/base/loop/virtual_loop.h"

namespace bps::testing {

class CallWorld : public GroupCalls::Owner {
 public:
  CallWorld() : calls(loop, *this) {}
  virtual ~CallWorld() = default;

  void declare_slots(std::vector<TensorDeclaration> tensors, GroupCalls::Declared done) override {
    asked.push_back({std::move(tensors), std::move(done)});
  }
  Status begin_round(Request&& request) override {
    if (refuses) return make_error(ErrorCode::out_of_memory, "no memory");
    rounds.push_back(std::move(request));
    return {};
  }
  void fail_slot(TensorId tensor, const Error& error) override {
    failed.push_back(tensor);
    end_rounds(tensor, error);
  }
  bool has_failed(TensorId tensor) const override {
    return std::find(failed.begin(), failed.end(), tensor) != failed.end();
  }
  Status drop_slot(TensorId tensor, std::function<void(Status)> done) override {
    drops.emplace_back(tensor, std::move(done));
    return {};
  }
  void say(OpenCalls open) override { said.push_back(std::move(open)); }
  void post_call(std::function<void()> task) override { loop.post(std::move(task)); }
  void on_calls_idle() override { ++idle; }

  // Answers all that is asked, and what is asked because of that.
  void declare_all() {
    while (!asked.empty()) {
      const auto [tensors, done] = std::move(asked.front());
      asked.erase(asked.begin());
      std::vector<TensorId> ids;
      for (const TensorDeclaration& tensor : tensors) {
        ids.emplace_back(static_cast<std::uint32_t>(names.size()));
        names.push_back(tensor.name);
        declared.push_back(tensor);
      }
      done(ids);
    }
  }
  void end_rounds(TensorId tensor, const Result<std::uint32_t>& weight) {
    std::vector<Request> ended;
    for (Request& round : rounds)
      if (round.tensor == tensor) ended.push_back(std::move(round));
    std::erase_if(rounds, [&](const Request& round) { return round.tensor == tensor; });
    for (Request& round : ended)
      round.done(weight);
  }
  // The first of those under way.
  void end_round(std::uint32_t weight = 2) {
    REQUIRE_FALSE(rounds.empty());
    const Request::Done done = std::move(rounds.front().done);
    rounds.erase(rounds.begin());
    done(weight);
  }

  // For the next call: its result, which may come once, and not while it begins.
  Request::Done next_result() {
    results.emplace_back();
    return [this, at = results.size() - 1](const Result<std::uint32_t>& weight) {
      CHECK_FALSE(is_beginning);
      CHECK_FALSE(results[at].has_value());
      results[at] = weight;
    };
  }
  Status call(std::size_t elements, GroupId group = {}, RoundCall what = Operation::sum) {
    GroupRequest request;
    request.group = group;
    request.request.call = what;
    request.ticket = results.size();
    memory.resize(std::max(memory.size(), elements * sizeof(float)));
    const std::span<std::byte> bytes(memory.data(), elements * sizeof(float));
    if (!what.is_broadcast()) request.request.in.bytes = bytes;
    request.request.out.bytes = bytes;
    if (what.is_broadcast()) request.dtype = DType::u8;
    request.request.done = next_result();
    is_beginning = true;
    Status begun = calls.begin(std::move(request));
    is_beginning = false;
    return begun;
  }
  bool is_done(std::size_t call) const { return results[call].has_value() && results[call]->ok(); }
  std::string error(std::size_t call) const {
    return results[call].has_value() && !results[call]->ok() ? results[call]->error().message : "";
  }

  struct Asked {
    std::vector<TensorDeclaration> tensors;
    GroupCalls::Declared done;
  };
  VirtualLoop loop;
  std::vector<Asked> asked;
  std::vector<std::string> names;           // by id
  std::vector<TensorDeclaration> declared;  // by id
  std::vector<Request> rounds;              // under way
  std::vector<TensorId> failed;
  std::vector<std::pair<TensorId, std::function<void(Status)>>> drops;
  std::vector<OpenCalls> said;
  std::vector<std::optional<Result<std::uint32_t>>> results;  // by call, in their order
  std::vector<std::byte> memory;                              // of all calls
  bool refuses = false;
  bool is_beginning = false;
  int idle = 0;
  GroupCalls calls;
};

}  // namespace bps::testing
