// Every bound that a peer's bytes are checked against. PROTOCOL.md explains each; change both together.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bps {

inline constexpr std::uint32_t kProtocolMagic = 0x31535042;  // "BPS1" on the wire
inline constexpr std::uint32_t kMaxFeatures = 32;            // named by a hello or its answer
inline constexpr std::size_t kMaxFeatureBytes = 64;          // value of one of them

inline constexpr std::size_t kMaxHelloHeaderBytes = 8 * 1024;  // before the handshake is done
inline constexpr std::size_t kMaxLaneHeaderBytes =
    40 * 1024;  // data frames on lanes: 8 bytes for each rank of an async job
inline constexpr std::size_t kMaxControlHeaderBytes = 16 * 1024 * 1024;  // control connections
inline constexpr std::uint64_t kMaxPayloadBytes = 64ull * 1024 * 1024;   // one partition

inline constexpr std::uint64_t kMinPartitionBytes = 4 * 1024;
inline constexpr std::uint64_t kMaxPartitionBytes = 64ull * 1024 * 1024;
inline constexpr std::uint64_t kPartitionBytesMultiple = 8;  // so no slice ends inside an element
inline constexpr std::uint64_t kDefaultPartitionBytes =
    252 * 1024;  // with its header: four segments of 64 KiB

inline constexpr std::uint32_t kMaxWorldSize = 4096;
inline constexpr std::uint32_t kMaxServers = 1024;
inline constexpr std::uint32_t kMaxShardsPerServer = 256;
inline constexpr std::uint32_t kMaxCpus = 1024;  // of a host that threads are bound to
inline constexpr std::uint32_t kMaxLanesPerJob = 1u << 16;
inline constexpr std::uint32_t kMaxTensorsPerJob = 1u << 20;
inline constexpr std::uint32_t kMaxPartitionsPerJob = 1u << 24;
inline constexpr std::uint32_t kMaxTensorsPerDeclare = 1024;         // larger lists are sent in pieces
inline constexpr std::uint32_t kMaxPartitionsPerDeclare = 1u << 19;  // of all its tensors together
inline constexpr std::uint32_t kMaxPartsPerDeclare = 1u << 19;       // likewise
inline constexpr std::uint64_t kMaxTensorElements = 1ull << 40;
inline constexpr std::size_t kMaxNameBytes = 512;  // job and tensor names
inline constexpr std::size_t kMaxHostBytes = 256;
inline constexpr std::size_t kMaxMessageBytes = 4096;                     // error texts; longer ones are cut
inline constexpr std::size_t kMaxAdviceBytes = 1024;                      // likewise
inline constexpr std::size_t kMaxLaneQueuedBytes = 1024 * 1024;           // unread answers of a lane, and
inline constexpr std::size_t kMaxLaneQueuedBytesPerPartition = 8 * 1024;  // ... for each partition of the job
inline constexpr std::uint32_t kMaxMissingNamed = 64;                     // ranks named in a JoinProgress
inline constexpr std::uint32_t kMaxPartitionsPerResume = 256;             // longer lists are sent in pieces
inline constexpr std::uint32_t kMaxOpenCallsNamed = 256;                  // in one OpenCalls
inline constexpr std::uint32_t kMaxWaitsNamed = 64;                       // in one Waits, OpenRounds, Drained
inline constexpr std::uint32_t kMaxJobsListed = 1024;                     // in one ClusterState
inline constexpr std::uint32_t kMaxGoneServersListed = 8;                 // likewise

// The ranks of a host that sum as one contributor.
inline constexpr std::uint32_t kMaxLocalGroupSize = 64;
inline constexpr std::size_t kMaxGroupNameBytes = 256;
inline constexpr std::uint32_t kMaxNewsPerMessage = 1024;  // of either kind, in one LocalNews
inline constexpr std::uint32_t kMaxItemsPerBatch = 1024;
inline constexpr std::size_t kMaxLocalSetupBytes = 256;

// Shared memory, of one connection and direction.
inline constexpr std::uint32_t kMaxShmRegions = 1024;            // mapped by the receiver at a time
inline constexpr std::uint64_t kMaxShmRegionBytes = 1ull << 40;  // of one region, and of all together
inline constexpr std::uint32_t kMaxTokensPerRecord = 500;        // payloads given back at once
inline constexpr std::uint32_t kMaxShmPendingDescriptors = 4;    // received, but not yet used by a record

// RDMA: what an end may say of its receive buffers.
inline constexpr std::uint32_t kMinRdmaBuffers = 4;
inline constexpr std::uint32_t kMaxRdmaBuffers = 16 * 1024;
inline constexpr std::uint32_t kMinRdmaBufferBytes = 256;
inline constexpr std::uint32_t kMaxRdmaBufferBytes = 1024 * 1024;

}  // namespace bps
