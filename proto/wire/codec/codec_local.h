// The messages of local_messages.h, to FlatBuffers and back.
#pragma once

#include "proto/wire/codec/codec_check.h"
#include "proto/wire/codec/codec_pack.h"

namespace bps::codec {

void read(Check& check, const fb::HelloLocal& in, HelloLocal& out);
void read(Check& check, const fb::LocalNews& in, LocalNews& out);
void read(Check& check, const fb::LocalBatch& in, LocalBatch& out);

Offset<fb::HelloLocal> pack(Builder& b, const HelloLocal& m);
Offset<fb::LocalNews> pack(Builder& b, const LocalNews& m);
Offset<fb::LocalBatch> pack(Builder& b, const LocalBatch& m);

}  // namespace bps::codec
