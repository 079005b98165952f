// Clients' threads, as tests take them and tell them apart.
#pragma once

#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <utility>

#include "client/src/runtime/client_thread.h"
#include "proto/base/loop/completion.h"

namespace bps {

inline TimePoint soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(30); }

inline std::unique_ptr<ClientThread> take() {
  auto thread = ClientThread::take();
  REQUIRE(thread.ok());
  return std::move(thread).value();
}

// 0: it does nothing.
inline pid_t id_of(ClientThread& thread) {
  const auto id = std::make_shared<Completion<pid_t>>();
  thread.loop().post([id] { id->set(::gettid()); });
  return id->wait_until(soon()) ? id->value() : 0;
}

}  // namespace bps
