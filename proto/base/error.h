// Errors as values. A code exists only where a caller acts differently on it; everything else is in the
// message (the exact cause) and the advice (what to do next). Codes travel on the wire and through
// the C ABI: never renumber.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace bps {

enum class ErrorCode : std::uint16_t {
  ok = 0,
  invalid_argument = 1,  // the caller's mistake; the object is unchanged                  exit 64
  unreachable = 2,       // the scheduler does not answer                                    exit 69
  os = 3,                // the operating system refused (port taken, no file, no memory)    exit 71
  deadline = 4,          // a wait expired; the operation goes on                            exit 75
  peer_lost = 5,         // a worker or server of the job died; the job run has failed       exit 75
  protocol = 6,          // a peer spoke another protocol, version or broke a rule           exit 76
  unauthorised = 7,      // not allowed                                                      exit 77
  configuration = 8,     // ranks disagree, duplicate rank, tensor mismatch, bad setting     exit 78
  out_of_memory = 9,     // does not fit a memory budget                                     exit 71
  cancelled = 10,        // cancelled by the caller, or the connection closed by ourselves   exit 64
  closed = 11,           // use after close                                                  exit 64
  internal = 12,         // a bug in bps                                                     exit 70
};
inline constexpr std::uint16_t kErrorCodeCount = 13;

struct Error {
  ErrorCode code = ErrorCode::ok;
  std::string message;  // the exact cause, one line, no trailing dot
  std::string advice;   // what to do next; may be empty
  friend bool operator==(const Error&, const Error&) = default;
};

// As strerror: "deadline expired". Also for a number that is no code.
const char* words_of(ErrorCode code);

// The process exit status (sysexits.h) that a program which ends because of this error should use.
int exit_code_of(ErrorCode code);

// "message; advice"
std::string to_string(const Error& error);

inline Error make_error(ErrorCode code, std::string message, std::string advice = {}) {
  return Error{code, std::move(message), std::move(advice)};
}

// "what: strerror(errno_value)" with code `os`. A lack of descriptors has an advice of its own.
Error os_error(std::string_view what, int errno_value, std::string advice = {});

}  // namespace bps
