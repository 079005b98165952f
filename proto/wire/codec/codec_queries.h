// The messages of queries.h, to FlatBuffers and back.
#pragma once

#include "proto/wire/codec/codec_check.h"
#include "proto/wire/codec/codec_pack.h"

namespace bps::codec {

void read(Check& check, const fb::HelloAdmin& in, HelloAdmin& out);
void read(Check& check, const fb::AskOpenRounds& in, AskOpenRounds& out);
void read(Check& check, const fb::OpenRounds& in, OpenRounds& out);
void read(Check& check, const fb::AskWaits& in, AskWaits& out);
void read(Check& check, const fb::Waits& in, Waits& out);
void read(Check& check, const fb::AskCluster& in, AskCluster& out);
void read(Check& check, const fb::ClusterState& in, ClusterState& out);
void read(Check& check, const fb::Drain& in, Drain& out);
void read(Check& check, const fb::Drained& in, Drained& out);
void read(Check& check, const fb::EndCluster& in, EndCluster& out);
void read(Check& check, const fb::ClusterEnded& in, ClusterEnded& out);
void read(Check& check, const fb::OpenCalls& in, OpenCalls& out);
void read(Check& check, const fb::CallsMade& in, CallsMade& out);
void read(Check& check, const fb::RankJoined& in, RankJoined& out);

Offset<fb::HelloAdmin> pack(Builder& b, const HelloAdmin& m);
Offset<fb::AskOpenRounds> pack(Builder& b, const AskOpenRounds& m);
Offset<fb::OpenRounds> pack(Builder& b, const OpenRounds& m);
Offset<fb::AskWaits> pack(Builder& b, const AskWaits& m);
Offset<fb::Waits> pack(Builder& b, const Waits& m);
Offset<fb::AskCluster> pack(Builder& b, const AskCluster& m);
Offset<fb::ClusterState> pack(Builder& b, const ClusterState& m);
Offset<fb::Drain> pack(Builder& b, const Drain& m);
Offset<fb::Drained> pack(Builder& b, const Drained& m);
Offset<fb::EndCluster> pack(Builder& b, const EndCluster& m);
Offset<fb::ClusterEnded> pack(Builder& b, const ClusterEnded& m);
Offset<fb::OpenCalls> pack(Builder& b, const OpenCalls& m);
Offset<fb::CallsMade> pack(Builder& b, const CallsMade& m);
Offset<fb::RankJoined> pack(Builder& b, const RankJoined& m);

}  // namespace bps::codec
