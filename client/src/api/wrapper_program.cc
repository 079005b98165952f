// The C++ wrapper in a program of its own, compiled as C++17 and as C++20: every dtype and operation, errors
// with and without exceptions, handles. Prints what is wrong; exit status 0 when nothing is.
#include <algorithm>
#include <array>
#include <atomic>
#include <bps/client.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>
#if __cplusplus >= 202002L
#include <span>
#endif

namespace {

using namespace std::chrono_literals;

int failures = 0;

void check(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("wrong: %s\n", what.c_str());
}

static_assert(!std::is_copy_constructible_v<bps::Client> &&
              std::is_nothrow_move_constructible_v<bps::Client>);
static_assert(!std::is_copy_constructible_v<bps::Handle> && std::is_nothrow_move_assignable_v<bps::Handle>);
static_assert(std::is_nothrow_copy_constructible_v<bps::Error>);
static_assert(bps::Timeout(1500us).milliseconds() == 2 && bps::Timeout(-1s).milliseconds() == 0);
static_assert(bps::Timeout(std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN()))
                  .milliseconds() == 0);
static_assert(bps::Timeout().milliseconds() == -1 &&
              bps::Timeout(std::chrono::hours::max()).milliseconds() == INT64_MAX);

template <class T>
void round_trip(bps::Client& client, const char* name, bps::DType dtype) {
  std::vector<T> in(1001), out(1001);
  for (std::size_t i = 0; i < in.size(); ++i)
    in[i] = static_cast<T>(i % 100);
  const bps::Tensor tensor = client.declare(name, dtype, in.size());
  check(tensor.bytes() == in.size() * sizeof(T), std::string("bytes of ") + name);
  const bps::Op operations[] = {bps::Op::sum, bps::Op::average, bps::Op::min, bps::Op::max, bps::Op::product};
  const auto round_trip_of = [&](bps::Op operation) {
    std::fill(out.begin(), out.end(), T{});
    bps::Handle handle = client.push_pull(tensor, in, out, operation);
    handle.wait(30s);
    check(handle.ranks() == 1 && in == out, std::string("round trip of ") + name);
  };
  for (const bps::Op operation : operations)
    round_trip_of(operation);
  const bool has_bits = dtype == bps::DType::i8 || dtype == bps::DType::u8 || dtype == bps::DType::i32 ||
                        dtype == bps::DType::i64;
  if (has_bits) {
    for (const bps::Op operation : {bps::Op::bit_and, bps::Op::bit_or, bps::Op::bit_xor})
      round_trip_of(operation);
  }
  client.push_pull(tensor, out.data()).wait();
  client.broadcast(tensor, out, 0).wait();
  check(in == out, std::string("in place and broadcast of ") + name);
  std::fill(out.begin(), out.end(), T{});
  client.reduce(tensor, in, out, 0).wait();
  check(in == out, std::string("reduce of ") + name);
}

void errors(bps::Client& client) {
  const bps::Tensor tensor = client.declare("errors", bps::DType::f32, 10);
  std::vector<float> eleven(11);
  std::vector<double> doubles(10);
  bps::Status status;
  check(!client.push_pull(tensor, eleven, bps::Op::sum, status), "a long buffer gives an empty handle");
  check(status.code() == bps::Code::invalid_argument && status.exit_code() == 64, "a long buffer is refused");
  check(status.message().find("44 bytes") != std::string::npos,
        "the message has the numbers: " + status.message());
  // Not a GPU's memory, or there is no GPU.
  std::vector<float> ten(10);
  const bps::CudaMemory device{ten.data(), ten.size() * sizeof(float), 0, nullptr};
  check(!client.push_pull(tensor, device, device, bps::Op::sum, status), "the host's memory is no GPU's");
  check(status.code() == bps::Code::configuration || status.code() == bps::Code::invalid_argument,
        "it is refused: " + status.message());
  bps::Handle on_host = client.push_pull(tensor, ten);
  on_host.wait_stream(nullptr, status);
  check(status.code() == bps::Code::invalid_argument, "no stream waits for host memory: " + status.message());
  on_host.wait();
  (void)client.push_pull(tensor, doubles, bps::Op::sum, status);
  check(status.message().find("element type") != std::string::npos,
        "doubles are no f32: " + status.message());
  try {
    client.push_pull(tensor, eleven);
    check(false, "a long buffer throws");
  } catch (const bps::Error& error) {
    check(error.code() == bps::Code::invalid_argument &&
              std::string(error.what()).find("; ") != std::string::npos,
          std::string("what() has message and advice: ") + error.what());
  }
  bps::Client none;
  none.barrier(1s, status);
  check(status.code() == bps::Code::closed, "an empty client is closed");
  bps::Handle().wait(status);
  check(status.code() == bps::Code::invalid_argument, "an empty handle is refused");
  const bps::Client failed(bps::Options{}.scheduler("embedded:").rank(0).world_size(3), status);
  check(!failed && status.code() == bps::Code::configuration && status.exit_code() == 78,
        "embedded is for one");
  bps::Options options;
  options.set("transport", "pigeon", status);
  check(status.code() == bps::Code::configuration, "a wrong value of a setting: " + status.message());
  try {
    options.set("rdma_tclass", 104);
    check(false, "a setting that does not exist throws");
  } catch (const bps::Error& error) {
    check(error.advice() == "did you mean rdma-tclass?", "the nearest setting is named: " + error.advice());
  }
}

void programs() {
  check(bps::run_main("wrapper", [] {}) == 0, "a program without a result ends well");
  check(bps::run_main("wrapper", [] { return 3; }) == 3, "a program's result");
  const auto lost = [] {
    throw bps::Error(bps::Status(bps::Code::peer_lost, 75, "rank 1 is gone", "restart"));
  };
  check(bps::run_main("/folder/wrapper", lost) == 75, "an error's exit code");
  check(bps::run_main(nullptr, []() -> int { throw std::runtime_error("of the program's own"); }) == 1,
        "an exception of the program's own");
}

void handles(bps::Client& client) {
  const std::vector<bps::Tensor> tensors =
      client.declare({{"a", bps::DType::f32, 10}, {"b", bps::DType::f32, 10, 5, bps::Mode::async}}, 30s);
  std::array<float, 10> a{}, b{};
  std::promise<bool> called;
  bps::Handle handle = client.push_pull(tensors[0], a, bps::Op::sum);
  handle.then([&](const bps::Status& status) { called.set_value(status.ok()); });
  check(called.get_future().get(), "the callback sees success");
  bool has_run = false;
  handle.then([&](const bps::Status&) { has_run = true; });
  handle.wait();
  check(has_run, "a wait returns after the callbacks");
  bps::Handle moved = std::move(handle);
  check(moved.poll() && moved.fd() >= 0 && !handle, "a moved handle works");
  bps::Handle first = client.broadcast(tensors[1], b, 0);
  first.wait();
  first = client.push_pull(tensors[1], b, b);
  bps::Status status;
  first.wait(30s, status);
  check(status.ok() && first.ranks() == 1, "an async tensor: " + status.message());
#if __cplusplus >= 202002L
  client.push_pull(tensors[0], std::span<const float>(a), std::span<float>(b), bps::Op::max).wait();
#endif
  client.push_pull(tensors[0], {a.data(), sizeof a}, {a.data(), sizeof a}).wait();
}

void drops(bps::Client& client) {
  bps::Tensor tensor = client.declare("dropped", bps::DType::f32, 10);
  std::array<float, 10> floats{1};
  client.push_pull(tensor, floats).wait(30s);
  bps::Handle handle = client.drop(tensor);
  bps::Status status;
  check(!client.push_pull(tensor, floats, bps::Op::sum, status) &&
            status.code() == bps::Code::invalid_argument &&
            status.message().find("has been dropped") != std::string::npos,
        "a dropped tensor is refused: " + status.message());
  check(!client.drop(tensor, status) && status.code() == bps::Code::invalid_argument, "it is dropped once");
  try {
    client.drop(tensor);
    check(false, "a second drop throws");
  } catch (const bps::Error& error) {
    check(error.advice().find("declare it again") != std::string::npos, "its advice: " + error.advice());
  }
  tensor = client.declare("dropped", bps::DType::f64, 20);
  std::array<double, 20> doubles{2};
  client.push_pull(tensor, doubles).wait(30s);
  handle.wait(30s);
  check(handle.poll() && handle.ranks() == 0, "the drop is done, and has no answer");
  handle.wait_stream(nullptr, status);
  check(status.code() == bps::Code::invalid_argument, "no stream waits for a drop: " + status.message());
  check(handle.view(status).empty() && !status.ok(), "a drop has no view: " + status.message());
  client.drop(tensor, status);  // nobody waits
  check(status.ok(), "a drop without a handle: " + status.message());
  (void)bps::Client().drop(tensor, status);
  check(status.code() == bps::Code::closed, "an empty client is closed: " + status.message());
}

void memory(bps::Client& client) {
  const bps::Tensor tensor = client.declare("memory", bps::DType::f32, 3000);  // three partitions
  bps::Memory in = client.allocate(tensor.bytes()), out = client.allocate(tensor.bytes());
  for (int i = 0; i < 3000; ++i)
    in.as<float>()[i] = static_cast<float>(i);
  client.push_pull(tensor, in, out).wait(30s);
  check(std::equal(in.as<float>(), in.as<float>() + 3000, out.as<float>()), "allocated memory");
  client.push_pull(tensor, in).wait(30s);
  client.push_pull(tensor, in.as<float>(), out.as<float>(), bps::Op::max).wait(30s);
  check(std::equal(in.as<float>(), in.as<float>() + 3000, out.as<float>()), "typed allocated memory");
  out = bps::Memory();
  bps::Memory moved = std::move(in);
  check(moved && !in && !out && in.bytes() == 0 && moved.bytes() == tensor.bytes(), "moved memory");

  bps::Handle handle = client.push_pull_view(tensor, moved, bps::Op::average);
  bps::Status status;
  handle.wait(30s);
  std::uint64_t read = 0;
  for (const bps::Piece& piece : handle.view()) {
    check(
        piece.offset == read && std::equal(piece.as<float>(), piece.as<float>() + piece.bytes / sizeof(float),
                                           moved.as<float>() + read / sizeof(float)),
        "a piece of the view at " + std::to_string(read));
    read += piece.bytes;
  }
  check(read == tensor.bytes(), "the view is the whole answer");
  client.push_pull(tensor, moved, bps::Op::sum, status);
  check(status.code() == bps::Code::invalid_argument, "a view that is not released: " + status.message());
  handle.release();
  check(handle.view(status).empty() && !status.ok(), "a view that has been released");
  client.push_pull(tensor, moved).wait(30s);
  (void)client.allocate(0, status);
  check(status.ok(), "no memory at all");
}

}  // namespace

void groups(bps::Client& client) {
  const bps::Group group = client.group("mine", {0});
  std::vector<float> in{1, 2, 3}, out(3);
  for (const bps::Group& on : {client.world(), group}) {
    on.push_pull(bps::DType::f32, in, out).wait(30s);
    check(in == out, "a call on a group");
    on.broadcast(out, 0).wait(30s);
    on.reduce(bps::DType::f32, in, out, 0, bps::Op::max).wait(30s);
    on.push_pull(bps::DType::f32, bps::ConstBuffer(in).scaled({1, 3, 1}), out).wait(30s);
    check(out == std::vector<float>{3, 6, 9}, "a scaled call");
    on.reduce_scatter(bps::DType::f32, in, out).wait(30s);
    on.all_gather(in, out, {12}).wait(30s);
    check(out == in, "calls of parts");
    on.push_pull_many(bps::DType::f32, {in, bps::ConstBuffer(in).scaled({1, 2, 1})}, {in, out}).wait(30s);
    check(out[2] == 2 * in[2], "two calls in one");
    on.scatter(in, out, 0).wait(30s);
    on.gather(in, out, 0, {12}).wait(30s);
    on.all_to_all(in, out).wait(30s);
    const bps::Handle gathered = on.all_gather(in);
    gathered.wait(30s);
    check(gathered.view().size() == 1 && gathered.view()[0].bytes == 12, "parts in memory of the library");
    on.all_to_all(in, {12}).wait(30s);
    const bps::Handle joined = on.join();
    joined.wait(30s);
    check(joined.last_joined() == 0 && gathered.last_joined() == -1, "a join");
    std::vector<float> none;
    on.push_pull(bps::DType::f32, none, none).wait(30s);
  }
  bps::Status status;
  check(!group.push_pull(bps::DType::f64, in, out, bps::Op::sum, status) &&
            status.code() == bps::Code::invalid_argument,
        "a call of another type");
  check(!group.push_pull(bps::DType::f32, in.data(), out.data(), bps::Op::sum, status) &&
            status.code() == bps::Code::invalid_argument,
        "a call without a length");
  check(!group.send(in, 0, 7, status) && status.code() == bps::Code::invalid_argument, "a send to itself");
  check(!group.receive(out, 1, 7, status) && status.code() == bps::Code::invalid_argument,
        "a receive from nobody");
  check(!group.all_to_all(in, out, {12}, {4, 8}, status) && status.code() == bps::Code::invalid_argument,
        "lengths of other groups");
  client.group("mine", {}, 0, status);
  check(status.code() == bps::Code::invalid_argument, "a name that is in use");
  group.drop().wait(30s);
  client.group("mine").drop().wait(30s);
}

int main() try {
  bps::Memory late;  // outlives its client
  std::atomic<int> lines{0};
  bps::Client client{bps::Options{}
                         .scheduler("embedded:")
                         .job("wrapper")
                         .rank(0)
                         .world_size(1)
                         .join_timeout(30s)
                         .set("partition-bytes", 4096)
                         .set("retain", true)
                         .log([&lines](bps::LogLevel, std::string_view) { ++lines; })};
  check(client.rank() == 0 && client.world_size() == 1, "rank and size");
  round_trip<float>(client, "f32", bps::DType::f32);
  round_trip<double>(client, "f64", bps::DType::f64);
  round_trip<std::uint16_t>(client, "f16", bps::DType::f16);
  round_trip<std::uint16_t>(client, "bf16", bps::DType::bf16);
  round_trip<std::int8_t>(client, "i8", bps::DType::i8);
  round_trip<std::uint8_t>(client, "u8", bps::DType::u8);
  round_trip<std::int32_t>(client, "i32", bps::DType::i32);
  round_trip<std::int64_t>(client, "i64", bps::DType::i64);
  errors(client);
  programs();
  handles(client);
  drops(client);
  groups(client);
  memory(client);
  client.barrier(30s);
  check(client.stats().rounds > 50, "rounds are counted");
  check(client.info().local_group == "off" && client.info().cuda_device == -1, "what it works with is told");
  bps::Client other = std::move(client);
  late = other.allocate(100);
  other.close(1s);
  other.close();
  late.as<float>()[0] = 1.0f;
  check(lines > 0, "the log function was called");
  bps::Status status;
  other.barrier(status);
  check(status.code() == bps::Code::closed, "use after close");
  if (failures == 0)
    std::printf("C++%ld: all well, library %s\n", __cplusplus / 100 % 100, bps::version().c_str());
  return failures == 0 ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("wrong: %s\n", error.what());
  return 1;
}
