// What the shared-memory transport itself writes into the stream: the records hello, region and drop; what
// all that lend have, references and the record returned, is in loan_records. PROTOCOL.md, "Shared memory",
// is the truth about the bytes; this is bytes to structs and back, checked. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "proto/base/result.h"
#include "proto/transport/lending/loan_records.h"

namespace bps {

// The first frame in each direction. With a descriptor: the page with the sender's control word.
struct ShmHello {
  friend bool operator==(const ShmHello&, const ShmHello&) = default;
};
// A region that references will name. With its descriptor.
struct ShmRegionRecord {
  std::uint32_t region = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const ShmRegionRecord&, const ShmRegionRecord&) = default;
};
// No reference names the region any more; the id is free again.
struct ShmDrop {
  std::uint32_t region = 0;
  friend bool operator==(const ShmDrop&, const ShmDrop&) = default;
};
using ShmRecord = std::variant<ShmHello, ShmRegionRecord, ShmDrop, ReturnedLoans>;

Result<ShmRecord> decode_record(std::span<const std::byte> record);

// Whole frames, appended to `out`.
void append_hello(std::vector<std::byte>& out);
void append_region(std::vector<std::byte>& out, const ShmRegionRecord& record);
void append_drop(std::vector<std::byte>& out, const ShmDrop& record);

}  // namespace bps
