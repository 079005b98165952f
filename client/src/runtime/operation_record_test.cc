#include "client/src/runtime/operation_record.h"

#include <poll.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "client/src/runtime/inside_callback.h"
#include "client/src/runtime/reply.h"

namespace bps::operation_record_test {
namespace {

using namespace std::chrono_literals;

TimePoint soon() { return std::chrono::steady_clock::now() + 30s; }

std::shared_ptr<OperationRecord> record_of(
    std::shared_ptr<CallbackThread> callbacks = std::make_shared<CallbackThread>()) {
  return std::make_shared<OperationRecord>(std::move(callbacks));
}

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

TEST_CASE("record: finished once, the first result stays") {
  const auto record = record_of();
  CHECK_FALSE(record->done());
  CHECK_FALSE(record->wait_until(std::chrono::steady_clock::now()));
  CHECK(record->finish(7u).has_reader);
  CHECK_FALSE(record->finish(make_error(ErrorCode::closed, "too late")).has_reader);
  CHECK(record->wait_until(soon()));
  CHECK(record->result().ok());
  CHECK(record->weight() == 7);
}

TEST_CASE("record: another thread is woken, the descriptor becomes readable") {
  const auto record = record_of();
  const auto fd = record->fd();
  REQUIRE(fd.ok());
  CHECK_FALSE(readable(*fd));
  CHECK(*record->fd() == *fd);
  auto thread = LoopThread::start("test");
  REQUIRE(thread.ok());
  (*thread)->loop().post([&] {
    record->finish(make_error(ErrorCode::peer_lost, "gone"));
    record->wake();
  });
  CHECK(record->wait_until(soon()));
  CHECK(record->result().error().message == "gone");
  CHECK(record->weight() == 0);
  CHECK(readable(*fd));
  record->close_fd();
  const auto late = record->fd();
  REQUIRE(late.ok());
  CHECK(readable(*late));
}

TEST_CASE("record: a thread waits until the output is queued, or the end, which forgets the event") {
  const auto record = record_of();
  const auto now = std::chrono::steady_clock::now();
  const auto event = std::make_shared<int>(7);
  CHECK(record->wait_until_queued(0, now));
  CHECK_FALSE(record->wait_until_queued(10, now));
  CHECK(record->queued() == nullptr);
  auto thread = LoopThread::start("test");
  REQUIRE(thread.ok());
  (*thread)->loop().post([&] {
    record->on_queued(4, nullptr);
    record->on_queued(6, event);
  });
  CHECK(record->wait_until_queued(10, soon()));
  CHECK(record->queued() == event);
  CHECK_FALSE(record->done());
  record->finish(1u);
  CHECK(record->queued() == nullptr);
  record->on_queued(1, event);  // of a GPU that was left behind
  CHECK(record->queued() == nullptr);
  CHECK(event.use_count() == 1);
  CHECK(record->wait_until_queued(11, now));
}

TEST_CASE("record: it is to be woken only if a thread has waited") {
  const auto alone = record_of(), awaited = record_of();
  CHECK_FALSE(awaited->wait_until(std::chrono::steady_clock::now()));
  CHECK_FALSE(alone->finish(1u).is_awaited);
  CHECK(alone->wait_until(soon()));
  CHECK(awaited->finish(1u).is_awaited);
}

TEST_CASE("record: every callback once, on the callback thread, before and after the end") {
  const auto callbacks = std::make_shared<CallbackThread>();
  const auto record = record_of(callbacks);
  std::atomic<int> calls{0};
  std::atomic<int> inside{0};
  const auto callback = [&](const Error& error) {
    if (InsideCallback::here()) ++inside;
    if (error.code == ErrorCode::cancelled) ++calls;
  };
  for (int i = 0; i < 3; ++i)
    CHECK(record->then(callback).ok());
  CHECK(calls == 0);
  record->finish(make_error(ErrorCode::cancelled, "closed"));
  CHECK(record->then(callback).ok());
  callbacks->stop();  // drains
  CHECK(calls == 4);
  CHECK(inside == 4);
  CHECK_FALSE(InsideCallback::here());
  const Status late = record->then(callback);
  REQUIRE_FALSE(late.ok());
  CHECK(late.error().code == ErrorCode::closed);
  CHECK(calls == 4);
}

TEST_CASE("record: it is over when the callbacks that were given before have run") {
  const auto callbacks = std::make_shared<CallbackThread>();
  const auto record = record_of(callbacks);
  const auto fd = record->fd();
  REQUIRE(fd.ok());
  struct Gate {
    Completion<bool> entered, open;
    bool over_inside = false;
  } first, second;
  const auto wait_in = [record](Gate& gate) {
    return [record, &gate](const Error&) {
      gate.over_inside = record->over();
      gate.entered.set(true);
      gate.open.wait_until(soon());
    };
  };
  const TimePoint now = std::chrono::steady_clock::now();
  REQUIRE(record->then(wait_in(first)).ok());
  record->finish(1u);
  record->wake();
  REQUIRE(first.entered.wait_until(soon()));
  CHECK(first.over_inside);
  CHECK(record->done());
  CHECK_FALSE((record->over() || record->wait_until(now) || readable(*fd)));

  REQUIRE(record->then(wait_in(second)).ok());
  first.open.set(true);
  REQUIRE(second.entered.wait_until(soon()));
  CHECK_FALSE((record->over() || record->wait_until(now) || readable(*fd)));
  second.open.set(true);
  CHECK(record->wait_until(soon()));
  CHECK((record->over() && readable(*fd)));
  callbacks->stop();
}

TEST_CASE("record: nobody waits for a callback that a closed client does not run") {
  const auto callbacks = std::make_shared<CallbackThread>();
  const auto record = record_of(callbacks);
  REQUIRE(record->then([](const Error&) {}).ok());
  callbacks->stop();
  record->finish(1u);
  CHECK((record->over() && record->wait_until(soon())));
}

TEST_CASE("reply: one that is dropped answers `closed`") {
  auto reply = std::make_unique<Reply<int>>();
  const auto cell = reply->cell();
  CHECK_FALSE(cell->ready());
  reply.reset();
  REQUIRE(cell->ready());
  CHECK(cell->value().error().code == ErrorCode::closed);

  Reply<int> answered;
  answered.set(3);
  CHECK(*answered.cell()->value() == 3);
}

}  // namespace bps::operation_record_test
