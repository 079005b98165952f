#include "proto/transport/shm/shm_records.h"

#include <fmt/core.h>

#include <string>

#include "proto/wire/bytes.h"

namespace bps {
namespace {

enum class Kind : std::uint32_t { hello = 1, region = 2, drop = 3, returned = kReturnedRecord };

constexpr std::size_t kHelloBytes = 8;
constexpr std::size_t kRegionBytes = 16;
constexpr std::size_t kDropBytes = 8;

void append_short(std::vector<std::byte>& out, Kind kind, std::uint32_t value) {
  FrameSpace frame(out, kDropBytes);
  store(frame.header(), kind);
  store(frame.header() + 4, value);
  frame.finish_record();
}

Error bad_record(const std::string& what) {
  return make_error(ErrorCode::protocol, "a record of shared memory " + what);
}

}  // namespace

Result<ShmRecord> decode_record(std::span<const std::byte> record) {
  if (record.size() < 8) return bad_record(fmt::format("has {} bytes, at least 8 are needed", record.size()));
  const auto kind = load<std::uint32_t>(record.data());
  const auto second = load<std::uint32_t>(record.data() + 4);
  const auto wrong_size = [&] {
    return bad_record(fmt::format("of kind {} has {} bytes", kind, record.size()));
  };
  switch (static_cast<Kind>(kind)) {
    case Kind::hello:
      if (record.size() != kHelloBytes) return wrong_size();
      if (second != 0) return bad_record(fmt::format("of kind hello has {:#010x} where 0 is due", second));
      return ShmRecord(ShmHello{});
    case Kind::region:
      if (record.size() != kRegionBytes) return wrong_size();
      return ShmRecord(ShmRegionRecord{second, load<std::uint64_t>(record.data() + 8)});
    case Kind::drop:
      if (record.size() != kDropBytes) return wrong_size();
      return ShmRecord(ShmDrop{second});
    case Kind::returned: {
      auto returned = decode_returned(record);
      if (!returned) return std::move(returned).error();
      return ShmRecord(*returned);
    }
  }
  return bad_record(fmt::format("has the unknown kind {}", kind));
}

void append_hello(std::vector<std::byte>& out) { append_short(out, Kind::hello, 0); }

void append_region(std::vector<std::byte>& out, const ShmRegionRecord& record) {
  FrameSpace frame(out, kRegionBytes);
  store(frame.header(), Kind::region);
  store(frame.header() + 4, record.region);
  store(frame.header() + 8, record.bytes);
  frame.finish_record();
}

void append_drop(std::vector<std::byte>& out, const ShmDrop& record) {
  append_short(out, Kind::drop, record.region);
}

}  // namespace bps
