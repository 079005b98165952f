// Answers that are lent: when they are copied, when they count, and how long they are kept.
#include "client/src/tensors/tensor_state.h"

#include <catch2/catch.hpp>

#include "client/src/engine/testing/fake_loan.h"

namespace bps {
namespace {

using testing::FakeLoan;
using State = Partition::State;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kSliceBytes = 4096;

Bytes bytes_of(std::size_t count, int value) { return Bytes(count, static_cast<std::byte>(value)); }

// Two partitions, the second of 100 bytes, and one round after another.
struct Tensor {
  explicit Tensor(bool retain_answers, bool in_place_rounds = false, Mode tensor_mode = Mode::sync)
      : retain(retain_answers), in_place(in_place_rounds), mode(tensor_mode) {}

  Status begin(bool view = false) {
    Request request;
    request.in.bytes = std::span(in).first(length);
    if (!view) request.out.bytes = std::span(in_place ? in : out).first(length);
    request.call = Operation::average;  // partitions may differ in weight
    request.view = view;
    request.done = [this](Result<std::uint32_t> w) { result = std::move(w); };
    return state.begin(std::move(request));
  }
  void send(std::size_t index) { state.on_handed_over(at(index), true); }
  void begin_and_send(bool view = false) {
    REQUIRE(begin(view).ok());
    send(0), send(1);
    state.on_released(at(0)), state.on_released(at(1));
  }
  Partition& at(std::size_t index) { return state.partitions()[index]; }
  // True: fetched, or to be fetched later.
  bool lend(std::size_t index, const std::shared_ptr<FakeLoan>& loan, std::uint32_t weight = 2) {
    REQUIRE(state.judge(at(index), state.round(), at(index).bytes) == TensorState::Verdict::wanted);
    state.on_lent(at(index), FakeLoan::payload(loan), weight);
    return fetch(index);
  }
  bool fetch(std::size_t index) {
    CHECK((state.needs_spare(at(index)) == (retain && in_place) || at(index).state != State::lent));
    return state.fetch(at(index), retain && in_place ? spare.data() : nullptr);
  }
  // As it comes through a socket.
  void receive(std::size_t index, int value) {
    std::byte* destination = state.receive(at(index));
    REQUIRE(destination != nullptr);
    std::fill_n(destination, at(index).bytes, static_cast<std::byte>(value));
    state.on_answer(at(index), 2);
  }
  // True: that was the last, and the round has ended.
  bool settle(std::size_t index) {
    if (!state.settle(at(index))) return false;
    TensorState::Ended ended = state.end();
    ended.done(std::move(ended.result));
    return true;
  }
  Bytes answer(int first, int second) const {
    Bytes all = bytes_of(kSliceBytes, first);
    all.resize(kSliceBytes + 100, static_cast<std::byte>(second));
    return all;
  }

  const bool retain, in_place;
  const Mode mode;
  TensorState state{{"t", DType::u8, kSliceBytes + 100, 0, mode},
                    {{}, TensorId{0}, 0, PartitionId{0}, {LaneIndex{0}, LaneIndex{0}}},
                    kSliceBytes,
                    {Rank{0}, retain}};
  std::size_t length = kSliceBytes + 100;  // of the call
  Bytes in = bytes_of(kSliceBytes + 100, 1), out = bytes_of(kSliceBytes + 100, 0),
        spare = bytes_of(kSliceBytes, 0);
  std::optional<Result<std::uint32_t>> result;
};

}  // namespace

TEST_CASE("tensor: a lent answer is copied once, and retained as a loan until the next round has ended") {
  for (const bool in_place : {false, true}) {
    Tensor t(true, in_place);
    t.begin_and_send();
    const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9)), second = FakeLoan::of(bytes_of(100, 8));
    CHECK(t.lend(0, first, 3));
    CHECK_FALSE(t.settle(0));
    CHECK(t.lend(1, second, 2));
    CHECK(t.settle(1));
    CHECK(**t.result == 2);
    CHECK((in_place ? t.in : t.out) == t.answer(9, 8));
    CHECK(first->is_out());
    CHECK(second->is_out());

    t.begin_and_send();
    CHECK(first->is_out());
    CHECK(second->is_out());
    const auto next = FakeLoan::of(bytes_of(kSliceBytes, 7));
    CHECK(t.lend(0, next));
    CHECK(next->is_out());
    CHECK_FALSE(t.settle(0));
    t.receive(1, 6);         // not lent
    CHECK(first->is_out());  // goes with all others
    CHECK(second->is_out());
    CHECK(t.settle(1));
    CHECK(next->is_out());
    CHECK(first->given_back() == 1);
    CHECK(second->given_back() == 1);

    // A round that fails needs its memory at the server all the more.
    t.begin_and_send();
    CHECK(t.state.on_failed(t.at(0), t.state.round(), make_error(ErrorCode::configuration, "no")));
    CHECK_FALSE(next->is_out());
  }
}

// Whatever the round under way has.
TEST_CASE("tensor: what is kept of a shorter call has its length") {
  for (const bool lends : {false, true}) {
    Tensor t(true);
    const auto run = [&](std::size_t length, int value) {
      t.length = length;
      t.begin_and_send();
      for (const std::size_t i : {0, 1}) {
        const std::size_t bytes = t.at(i).bytes;
        CHECK(bytes == (i == 0 ? std::min(length, kSliceBytes) : length - std::min(length, kSliceBytes)));
        if (bytes == 0) {
          CHECK(t.state.judge(t.at(i), t.state.round(), 0) == TensorState::Verdict::wanted);
          CHECK(t.state.judge(t.at(i), t.state.round(), 1) == TensorState::Verdict::violation);
          t.state.on_answer(t.at(i), 2);
        } else if (lends) {
          CHECK(t.lend(i, FakeLoan::of(bytes_of(bytes, value))));
        } else {
          t.receive(i, value);
        }
        t.settle(i);
      }
      CHECK(**t.result == 2);
      CHECK((Bytes(t.out.begin(), t.out.begin() + static_cast<std::ptrdiff_t>(length)) ==
             bytes_of(length, value)));
    };
    std::vector<std::size_t> lengths{
        kSliceBytes + 100, 5, kSliceBytes + 1, 0, kSliceBytes, kSliceBytes + 100, 0, 7};
    for (std::size_t round = 0; round < lengths.size(); ++round) {
      run(lengths[round], static_cast<int>(round) + 1);
      t.length = lengths[(round + 3) % lengths.size()];
      REQUIRE(t.begin().ok());
      for (const std::size_t i : {0, 1}) {
        const TensorState::Retention kept = t.state.retained(t.at(i), {{}, Round{2 * round}});
        CHECK(kept.error.code == ErrorCode::ok);
        CHECK(kept.weight == 2);
        const std::size_t in_first = std::min(lengths[round], kSliceBytes);
        const std::size_t bytes = i == 0 ? in_first : lengths[round] - in_first;
        CHECK((Bytes(kept.bytes.begin(), kept.bytes.end()) == bytes_of(bytes, static_cast<int>(round) + 1)));
      }
      t.state.abort(make_error(ErrorCode::cancelled, "enough"));
    }
  }
}

TEST_CASE("tensor: only what a server has said of a round is handed on as its result") {
  for (const bool told : {false, true}) {
    Tensor t(true);
    t.begin_and_send();
    const Round round = t.state.round();
    const Error error = make_error(ErrorCode::out_of_memory, "no memory here");
    REQUIRE(t.state.on_failed(t.at(0), round, error, told));
    const TensorState::Retention kept = t.state.retained(t.at(0), {{}, round});
    CHECK(kept.bytes.empty());
    // Else another one is asked, who may have it.
    CHECK(kept.error.code == (told ? ErrorCode::out_of_memory : ErrorCode::internal));
  }
  Tensor t(true);
  t.begin_and_send();
  REQUIRE(
      t.state.on_failed(t.at(0), t.state.round(), make_error(ErrorCode::out_of_memory, "no memory here")));
  CHECK(t.state.retained(t.at(0), {{}, t.state.round()}).error.code == ErrorCode::internal);
}

TEST_CASE("tensor: without retain a lent answer is given back as soon as it is copied") {
  for (const bool in_place : {false, true}) {
    Tensor t(false, in_place);
    t.begin_and_send();
    const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9)), second = FakeLoan::of(bytes_of(100, 8));
    CHECK(t.lend(0, first));
    CHECK_FALSE(first->is_out());
    t.settle(0);
    CHECK(t.lend(1, second));
    CHECK(t.settle(1));
    CHECK_FALSE(second->is_out());
    CHECK((in_place ? t.in : t.out) == t.answer(9, 8));
  }
}

TEST_CASE("tensor: of an async tensor no loan is kept") {
  for (const bool in_place : {false, true}) {
    Tensor t(true, in_place, Mode::async);
    t.begin_and_send();
    const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9));
    CHECK(t.lend(0, first));
    CHECK_FALSE(first->is_out());
    t.settle(0);
    t.receive(1, 8);
    CHECK(t.settle(1));
    CHECK((in_place ? t.in : t.out) == t.answer(9, 8));
  }
  // Nor of one that is read in place: it is copied.
  Tensor t(true, false, Mode::async);
  t.begin_and_send(true);
  const auto gone = FakeLoan::of(bytes_of(kSliceBytes, 66)), first = FakeLoan::of(bytes_of(kSliceBytes, 9));
  gone->withdraw_after(1);
  CHECK_FALSE(t.lend(0, gone));
  CHECK(t.state.on_lane_broken(t.at(0), "lane"));
  t.send(0);
  t.state.on_released(t.at(0));
  CHECK(t.lend(0, first));
  CHECK_FALSE(first->is_out());
  t.settle(0);
  t.receive(1, 8);
  CHECK(t.settle(1));
  first->withdraw();
  REQUIRE(t.state.view() != nullptr);
  CHECK(t.state.view()->intact());
  CHECK(t.state.view()->pieces()[0].bytes[kSliceBytes - 1] == std::byte{9});
}

TEST_CASE("tensor: in place, a lent answer waits until nobody reads the contribution") {
  for (const bool retain : {true, false}) {
    Tensor t(retain, true);
    REQUIRE(t.begin().ok());
    t.send(0), t.send(1);
    const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9));
    CHECK(t.lend(0, first));
    CHECK(t.at(0).state == State::lent);
    CHECK_FALSE(t.settle(0));
    CHECK(t.in == bytes_of(kSliceBytes + 100, 1));
    CHECK(t.state.judge(t.at(0), t.state.round(), kSliceBytes) == TensorState::Verdict::duplicate);
    t.state.on_released(t.at(0));
    CHECK(t.fetch(0));
    CHECK_FALSE(t.settle(0));
    CHECK(t.at(0).state == State::answered);
    CHECK(std::equal(t.in.begin(), t.in.begin() + kSliceBytes, bytes_of(kSliceBytes, 9).begin()));
  }
}

TEST_CASE("tensor: an answer that is withdrawn is asked for again") {
  for (const bool in_place : {false, true}) {
    for (const int looks : {0, 1}) {  // before and while it is copied
      Tensor t(true, in_place);
      t.begin_and_send();
      const auto gone = FakeLoan::of(bytes_of(kSliceBytes, 66));
      gone->withdraw_after(looks);
      CHECK_FALSE(t.lend(0, gone));
      CHECK(t.state.answered() == 0);
      CHECK_FALSE(t.settle(0));
      CHECK(t.in == bytes_of(kSliceBytes + 100, 1));  // what is sent again
      CHECK(t.state.on_lane_broken(t.at(0), "lane"));
      CHECK(t.at(0).state == State::waiting);
      CHECK_FALSE(gone->is_out());
      CHECK(t.state.on_lane_broken(t.at(1), "lane"));
      t.send(0), t.send(1);
      t.state.on_released(t.at(0)), t.state.on_released(t.at(1));
      CHECK(t.lend(0, FakeLoan::of(bytes_of(kSliceBytes, 9))));
      t.settle(0);
      t.receive(1, 8);  // another connection may not lend
      CHECK(t.settle(1));
      CHECK(t.result->ok());
      CHECK((in_place ? t.in : t.out) == t.answer(9, 8));
    }
  }
}

TEST_CASE(
    "tensor: withdrawn while it is copied in place without retain, the contribution is gone, which is said") {
  Tensor t(false, true);
  t.begin_and_send();
  const auto gone = FakeLoan::of(bytes_of(kSliceBytes, 66));
  gone->withdraw_after(1);
  CHECK_FALSE(t.lend(0, gone));
  CHECK(t.at(0).state == State::failed);
  CHECK_FALSE(gone->is_out());
  CHECK_FALSE(t.state.on_lane_broken(t.at(0), "lane"));
  CHECK_FALSE(t.settle(0));
  CHECK(t.state.on_lane_broken(t.at(1), "lane"));
  t.send(1);
  t.state.on_released(t.at(1));
  t.receive(1, 8);
  CHECK(t.settle(1));
  CHECK(t.result->error().code == ErrorCode::peer_lost);
  CHECK_THAT(t.result->error().message, Catch::Contains("cannot be sent again"));

  // Not so if it is found out before anything is overwritten.
  Tensor early(false, true);
  early.begin_and_send();
  const auto withdrawn = FakeLoan::of(bytes_of(kSliceBytes, 66));
  withdrawn->withdraw();
  CHECK_FALSE(early.lend(0, withdrawn));
  CHECK(early.state.on_lane_broken(early.at(0), "lane"));
  CHECK(early.in == bytes_of(kSliceBytes + 100, 1));
}

TEST_CASE("tensor: a lent answer that waits goes with its lane") {
  Tensor t(true, true);
  REQUIRE(t.begin().ok());
  t.send(0), t.send(1);
  const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9));
  CHECK(t.lend(0, first));
  CHECK(t.state.on_lane_broken(t.at(0), "lane"));
  CHECK_FALSE(first->is_out());
  CHECK(t.at(0).state == State::waiting);
  CHECK(t.fetch(0));
  CHECK(t.in == bytes_of(kSliceBytes + 100, 1));
}

TEST_CASE("tensor: a view of lent and received pieces") {
  for (const bool retain : {true, false}) {
    Tensor t(retain);
    t.begin_and_send(true);
    const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9));
    CHECK(t.lend(0, first));
    t.settle(0);
    t.receive(1, 8);
    CHECK(t.settle(1));
    auto view = t.state.view();
    REQUIRE(view != nullptr);
    REQUIRE(view->pieces().size() == 2);
    CHECK(std::equal(view->pieces()[0].bytes.begin(), view->pieces()[0].bytes.end(),
                     bytes_of(kSliceBytes, 9).begin()));
    CHECK(view->pieces()[1].bytes[99] == std::byte{8});
    CHECK(view->pieces()[1].offset == kSliceBytes);
    CHECK(view->intact());
    CHECK(first->lent() == 1);
    CHECK(t.begin(true).error().code == ErrorCode::invalid_argument);
    first->withdraw();
    CHECK_FALSE(view->intact());
    t.state.release();
    view.reset();
    CHECK(first->is_out() == retain);
    t.begin_and_send();
    CHECK(first->is_out() == retain);
    t.receive(0, 7);
    t.settle(0);
    t.receive(1, 7);
    t.settle(1);
    CHECK_FALSE(first->is_out());
  }
}

TEST_CASE("tensor: the lane breaks while a view gathers: what was lent on it is asked for again") {
  Tensor t(true);
  t.begin_and_send(true);
  const auto first = FakeLoan::of(bytes_of(kSliceBytes, 66));
  CHECK(t.lend(0, first));
  CHECK_FALSE(t.settle(0));
  CHECK(t.state.answered() == 1);
  CHECK(t.state.on_lane_broken(t.at(0), "lane"));
  CHECK(t.state.answered() == 0);
  CHECK_FALSE(first->is_out());
  CHECK(t.state.on_lane_broken(t.at(1), "lane"));
  t.send(0), t.send(1);
  t.state.on_released(t.at(0)), t.state.on_released(t.at(1));
  CHECK(t.lend(0, FakeLoan::of(bytes_of(kSliceBytes, 9))));
  CHECK_FALSE(t.settle(0));
  CHECK(t.lend(1, FakeLoan::of(bytes_of(100, 8))));
  CHECK(t.settle(1));
  CHECK(t.state.view()->pieces()[0].bytes[0] == std::byte{9});
  CHECK(t.state.view()->intact());
}

TEST_CASE("tensor: loans end with the job, a view with its reader") {
  Tensor t(true);
  t.begin_and_send(true);
  const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9)), second = FakeLoan::of(bytes_of(100, 8));
  CHECK(t.lend(0, first));
  t.settle(0);
  CHECK(t.lend(1, second));
  CHECK(t.settle(1));
  std::shared_ptr<const AnswerView> reader = t.state.view();
  t.state.release();
  t.begin_and_send();
  CHECK(first->is_out());
  const auto third = FakeLoan::of(bytes_of(kSliceBytes, 7));
  CHECK(t.lend(0, third));
  CHECK(third->is_out());
  reader.reset();
  (void)t.state.abort(make_error(ErrorCode::peer_lost, "gone"));
  CHECK_FALSE(first->is_out());
  CHECK_FALSE(third->is_out());
}

TEST_CASE("tensor: a broadcast's root needs no answer, the others copy it") {
  for (const bool root : {true, false}) {
    Tensor t(false);
    Request request;
    request.call = RoundCall::broadcast(Rank{root ? 0u : 1u});
    request.out.bytes = t.in;
    request.done = [](Result<std::uint32_t>) {};
    REQUIRE(t.state.begin(std::move(request)).ok());
    t.send(0);
    if (root) t.state.on_released(t.at(0));
    t.at(0).holds = 0;
    if (root) {
      CHECK(t.state.judge(t.at(0), Round{0}, kSliceBytes) == TensorState::Verdict::violation);
      CHECK(t.state.judge(t.at(0), Round{0}, 0) == TensorState::Verdict::wanted);
      continue;
    }
    const auto first = FakeLoan::of(bytes_of(kSliceBytes, 9));
    CHECK(t.lend(0, first));
    CHECK_FALSE(first->is_out());
    CHECK(t.in[0] == std::byte{9});
  }
}

TEST_CASE("tensor: in a group the owner of a partition reports what is stored, nobody else") {
  Tensor t(true);
  const std::vector<Rank> ranks{Rank{0}, Rank{1}};
  std::vector<std::byte> sums(2 * kSliceBytes), answers(2 * kSliceBytes);
  t.state.join_group({.size = 2, .rank = 0, .ranks = ranks, .sums = sums.data(), .answers = answers.data()});
  Request request;
  request.call = RoundCall::broadcast(Rank{2});
  request.out.bytes = t.out;
  request.done = [](Result<std::uint32_t>) {};
  REQUIRE(t.state.begin(std::move(request)).ok());
  const bool is_first_owned = is_owner(t.at(0));
  Partition& owned = t.at(is_first_owned ? 0 : 1);
  Partition& other = t.at(is_first_owned ? 1 : 0);
  REQUIRE(is_owner(owned));
  REQUIRE(other.role == Partition::Role::member);
  t.state.on_summed(owned);
  t.state.on_handed_over(owned, false);
  REQUIRE(t.state.receive(owned) != nullptr);
  t.state.on_answer(owned, 2);
  CHECK(owned.confirmed == Partition::Confirmed::stored);
  t.state.on_not_spread(other, make_error(ErrorCode::out_of_memory, "none"));
  CHECK(other.state == Partition::State::failed);
  CHECK(other.confirmed == Partition::Confirmed::no);
  t.state.on_not_spread(owned, make_error(ErrorCode::out_of_memory, "none"));
}

TEST_CASE("tensor: contributions name the region that they lie in") {
  Tensor t(true);
  auto region = allocate_ordinary_region(2 * kSliceBytes);
  REQUIRE(region.ok());
  Request request;
  request.in.bytes = (*region)->bytes().first(t.out.size());
  request.in.home = *region;
  request.out.bytes = t.out;
  request.done = [](Result<std::uint32_t>) {};
  REQUIRE(t.state.begin(std::move(request)).ok());
  const Payload payload = t.state.contribution(t.at(1));
  CHECK(payload.region == region->get());
  CHECK(payload.bytes.data() == (*region)->bytes().data() + kSliceBytes);
  CHECK(payload.bytes.size() == 100);
}

}  // namespace bps
