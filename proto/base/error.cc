#include "proto/base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "proto/base/assert.h"

namespace bps {

const char* words_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::unreachable: return "unreachable";
    case ErrorCode::os: return "refused by the operating system";
    case ErrorCode::deadline: return "deadline expired";
    case ErrorCode::peer_lost: return "peer lost";
    case ErrorCode::protocol: return "protocol error";
    case ErrorCode::unauthorised: return "not authorised";
    case ErrorCode::configuration: return "wrong configuration";
    case ErrorCode::out_of_memory: return "out of memory";
    case ErrorCode::cancelled: return "cancelled";
    case ErrorCode::closed: return "closed";
    case ErrorCode::internal: return "internal error";
  }
  return "unknown status";
}

int exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return 0;
    case ErrorCode::invalid_argument:
    case ErrorCode::cancelled:
    case ErrorCode::closed: return 64;
    case ErrorCode::unreachable: return 69;
    case ErrorCode::os:
    case ErrorCode::out_of_memory: return 71;
    case ErrorCode::deadline:
    case ErrorCode::peer_lost: return 75;
    case ErrorCode::protocol: return 76;
    case ErrorCode::unauthorised: return 77;
    case ErrorCode::configuration: return 78;
    case ErrorCode::internal: return 70;
  }
  return 70;
}

std::string to_string(const Error& error) {
  return error.advice.empty() ? error.message : error.message + "; " + error.advice;
}

Error os_error(std::string_view what, int errno_value, std::string advice) {
  if (errno_value == EMFILE || errno_value == ENFILE) advice = "raise `ulimit -n`";
  return Error{ErrorCode::os, std::string(what) + ": " + std::strerror(errno_value), std::move(advice)};
}

void assertion_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "bps: internal error: %s at %s:%d\n", expression, file, line);
  std::abort();
}

}  // namespace bps
