#include "client/src/runtime/fork_mark.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

namespace bps {
namespace {

// What `in_child` says in a child, and in a child of that: the exit status has a bit for each.
int seen_by_children(const ForkMark& mark) {
  const pid_t child = ::fork();
  if (child == 0) {
    const int first = mark.in_child() ? 1 : 0;
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(mark.in_child() ? 2 : 0);
    int status = 0;
    ::waitpid(grandchild, &status, 0);
    ::_exit(first | (WIFEXITED(status) ? WEXITSTATUS(status) : 4));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("fork mark: children see it, their parent does not") {
  const ForkMark mark;
  CHECK_FALSE(mark.in_child());
  CHECK(seen_by_children(mark) == 3);
  CHECK_FALSE(mark.in_child());
}

TEST_CASE("fork mark: each process that makes one is its home") {
  const ForkMark before;
  const pid_t child = ::fork();
  if (child == 0) {
    const ForkMark own;
    ::_exit(!own.in_child() && before.in_child() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
}

}  // namespace bps
