#include "proto/base/log/log_output.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "proto/base/unique_fd.h"

namespace bps {
namespace {

using namespace std::chrono_literals;

// A pipe or a pair of sockets, both ends blocking, as programs get them.
struct Stream {
  explicit Stream(bool socket = false) {
    int ends[2];
    REQUIRE((socket ? ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : ::pipe(ends)) == 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
  }
  // What is there, without waiting.
  std::string read() const {
    ::fcntl(reader.get(), F_SETFL, O_NONBLOCK);
    std::string text;
    std::array<char, 65536> bytes;
    for (ssize_t count; (count = ::read(reader.get(), bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<std::size_t>(count));
    return text;
  }
  LogOutput output() const {
    return LogOutput(writer.get(), [](std::uint64_t lines) { return std::to_string(lines) + " missing\n"; });
  }
  UniqueFd reader, writer;
};

std::string line(int number) {
  std::string text = "line " + std::to_string(number) + " ";
  text.resize(199, 'x');
  return text + "\n";
}

// All lines in their order, but for those that a gap counts.
void check_lines(const std::string& text, int count, bool may_lack) {
  int next = 0, missing = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    const std::string got = text.substr(at, end + 1 - at);
    at = end + 1;
    int lines = 0;
    if (got[0] != 'l' && std::sscanf(got.c_str(), "%d missing", &lines) == 1) {
      missing += lines;
      next += lines;
    } else {
      REQUIRE(got == line(next++));
    }
  }
  CHECK(next == count);
  CHECK((missing > 0) == may_lack);
}

TEST_CASE("log output: lines leave at once, and the descriptor stays as it is") {
  const Stream stream;
  LogOutput output = stream.output();
  output.write("one\n");
  output.write("two\n");
  CHECK(stream.read() == "one\ntwo\n");
  CHECK_FALSE(output.has_kept());
  CHECK((::fcntl(stream.writer.get(), F_GETFL) & O_NONBLOCK) == 0);
}

TEST_CASE("log output: what nobody reads is kept, then dropped, and never waited for") {
  for (const bool socket : {false, true}) {
    const Stream stream(socket);
    LogOutput output = stream.output();
    int count = 0;
    while (!output.has_kept())
      output.write(line(count++));
    SECTION(socket ? "kept, socket" : "kept") {
      for (int i = 0; i < 100; ++i)
        output.write(line(count++));
      CHECK_FALSE(output.write_kept());
      std::string text = stream.read();
      CHECK(output.write_kept());
      text += stream.read();
      check_lines(text, count, false);
    }
    SECTION(socket ? "dropped, socket" : "dropped") {
      for (int i = 0; i < 10'000; ++i)
        output.write(line(count++));
      std::string text = stream.read();
      while (!output.write_kept())
        text += stream.read();
      text += stream.read();
      check_lines(text, count, true);
      CHECK(text.ends_with(line(count - 1)));
      output.write(line(count));
      CHECK(stream.read() == line(count));
    }
  }
}

TEST_CASE("log output: a line that is longer than a pipe takes at once is whole in the end") {
  const Stream stream;
  LogOutput output = stream.output();
  const std::string longest(50'000, 'y');
  output.write(longest + "\n");
  output.write(longest + "\n");
  CHECK(output.has_kept());
  output.write(line(0));
  std::string text;
  while (!output.write_kept())
    text += stream.read();
  text += stream.read();
  CHECK((text == longest + "\n" + longest + "\n" + line(0)));
}

TEST_CASE("log output: at the end of a program its reader has some time, and no more") {
  const Stream stream;
  LogOutput output = stream.output();
  while (!output.has_kept())
    output.write(line(0));
  CHECK_FALSE(output.write_kept(1ms));
  (void)stream.read();
  CHECK(output.write_kept(10s));
}

TEST_CASE("log output: what cannot be written at all is forgotten") {
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  REQUIRE(::sigaction(SIGPIPE, &ignore, &before) == 0);
  Stream stream;
  LogOutput output = stream.output();
  while (!output.has_kept())
    output.write(line(0));
  stream.reader = UniqueFd();
  CHECK(output.write_kept());
  output.write(line(1));
  CHECK_FALSE(output.has_kept());
  stream.writer = UniqueFd();
  output.write(line(2));
  CHECK_FALSE(output.has_kept());
  ::sigaction(SIGPIPE, &before, nullptr);
}

TEST_CASE("log output: a pipe that nobody reads sends no signal to who logs") {
  const bool is_blocking = GENERATE(false, true);
  sigset_t pipe_signal, before, pending;
  ::sigemptyset(&pipe_signal);
  ::sigaddset(&pipe_signal, SIGPIPE);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before) == 0);
  Stream stream;
  if (!is_blocking) REQUIRE(::fcntl(stream.writer.get(), F_SETFL, O_NONBLOCK) == 0);
  LogOutput output = stream.output();
  stream.reader = UniqueFd();
  output.write(line(0));
  CHECK_FALSE(output.has_kept());
  REQUIRE(::sigpending(&pending) == 0);
  CHECK(::sigismember(&pending, SIGPIPE) == 0);
  const timespec at_once{};
  (void)::sigtimedwait(&pipe_signal, nullptr, &at_once);  // one that has come goes no farther
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace bps
