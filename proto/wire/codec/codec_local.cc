#include "proto/wire/codec/codec_local.h"

namespace bps::codec {
namespace {

// Fills `out`, whose old elements keep their memory, with what the vector has; it may be absent.
template <class From, class To, class Function>
void read_list(Check& check, std::string_view field, const From* in, std::size_t limit, std::vector<To>& out,
               Function&& function) {
  const std::size_t count = in == nullptr ? 0 : in->size();
  if (!check.count(field, count, limit)) return out.clear();
  out.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    function(*in->Get(static_cast<flatbuffers::uoffset_t>(i)), out[i]);
}

void read_item(Check& check, const fb::LocalItem& from, LocalItem& to) {
  to.kind = check.known<LocalItem::Kind>("items.kind", from.kind(), LocalItem::kKindCount);
  to.tensor = check.below<TensorId>("items.tensor", from.tensor(), kMaxTensorsPerJob);
  to.round = Round{from.round()};
  to.first = check.range("items.first", from.first(), 0, kMaxPartitionsPerJob - 1);
  to.count = check.range("items.count", from.count(), 0, kMaxPartitionsPerJob - to.first);
  to.weight = check.range("items.weight", from.weight(), 0, kMaxWorldSize);
  to.member = check.range("items.member", from.member(), 0, kMaxLocalGroupSize - 1);
  check.error("items.error", from.error(), to.error);
}

}  // namespace

// ---- reading ----

void read(Check& check, const fb::HelloLocal& in, HelloLocal& out) {
  out.job_run = JobRun{in.job_run()};
  out.rank = check.below<Rank>("rank", in.rank(), kMaxWorldSize);
  out.incarnation = Incarnation{in.incarnation()};
  out.to_incarnation = Incarnation{in.to_incarnation()};
  out.nonce = read(in.nonce());
}

void read(Check& check, const fb::LocalNews& in, LocalNews& out) {
  out.leaving = in.leaving();
  if (in.ready() != nullptr && !check.aligned("ready", in.ready())) return;
  read_list(check, "ready", in.ready(), kMaxNewsPerMessage, out.ready,
            [&](const fb::LocalReady& from, LocalReady& to) {
              to.tensor = check.below<TensorId>("ready.tensor", from.tensor(), kMaxTensorsPerJob);
              to.round = Round{from.round()};
              to.call = check.call(from);
              to.memory = check.known<MemoryKind>("ready.memory", from.memory(), kMemoryKindCount);
            });
  read_list(check, "answered", in.answered(), kMaxNewsPerMessage, out.answered,
            [&](const fb::LocalAnswer& from, LocalAnswer& to) {
              to.tensor = check.below<TensorId>("answered.tensor", from.tensor(), kMaxTensorsPerJob);
              to.round = Round{from.round()};
              to.index = check.range("answered.index", from.index(), 0, kMaxPartitionsPerJob - 1);
              to.weight = check.range("answered.weight", from.weight(), 0, kMaxWorldSize);
              check.error("answered.error", from.error(), to.error);
            });
  check.ids("dropped", in.dropped(), kMaxNewsPerMessage, kMaxTensorsPerJob, out.dropped);
}

void read(Check& check, const fb::LocalBatch& in, LocalBatch& out) {
  out.number = in.number();
  out.setup.clear();
  const std::size_t setup = in.setup() == nullptr ? 0 : in.setup()->size();
  if (!check.count("setup", setup, kMaxLocalSetupBytes)) return;
  if (setup > 0) {
    const auto* bytes = reinterpret_cast<const std::byte*>(in.setup()->data());
    out.setup.assign(bytes, bytes + setup);
  }
  read_list(check, "items", in.items(), kMaxItemsPerBatch, out.items,
            [&](const fb::LocalItem& from, LocalItem& to) { read_item(check, from, to); });
  read_list(check, "waiting", in.waiting(), kMaxWaitsNamed, out.waiting,
            [&](const fb::LocalWaiting& from, LocalWaiting& to) {
              to.tensor = check.below<TensorId>("waiting.tensor", from.tensor(), kMaxTensorsPerJob);
              to.round = Round{from.round()};
              to.age_ms = from.age_ms();
              check.ids("waiting.missing", from.missing(), kMaxLocalGroupSize, kMaxWorldSize, to.missing);
            });
}

// ---- packing ----

Offset<fb::HelloLocal> pack(Builder& b, const HelloLocal& m) {
  return fb::CreateHelloLocal(b, m.job_run.value, m.rank.value, m.incarnation.value, m.to_incarnation.value,
                              OptionalSecret(m.nonce).pointer());
}

Offset<fb::LocalNews> pack(Builder& b, const LocalNews& m) {
  Offset<flatbuffers::Vector<const fb::LocalReady*>> ready;
  if (!m.ready.empty()) {
    fb::LocalReady* out = nullptr;
    ready = b.CreateUninitializedVectorOfStructs(m.ready.size(), &out);
    for (const LocalReady& r : m.ready) {
      *out++ = fb::LocalReady(
          r.round.value, r.tensor.value, r.call.root.value, static_cast<std::uint8_t>(r.call.kind),
          static_cast<std::uint8_t>(r.call.operation), static_cast<std::uint8_t>(r.memory));
    }
  }
  Offset<flatbuffers::Vector<Offset<fb::LocalAnswer>>> answered;
  if (!m.answered.empty()) {
    answered = pack_tables(b, m.answered, [&](const LocalAnswer& a) {
      const auto error = pack_unless_ok(b, a.error);
      return fb::CreateLocalAnswer(b, a.tensor.value, a.round.value, a.index, a.weight, error);
    });
  }
  const auto dropped = pack_ids(b, m.dropped);
  return fb::CreateLocalNews(b, ready, answered, dropped, m.leaving);
}

Offset<fb::LocalBatch> pack(Builder& b, const LocalBatch& m) {
  Offset<flatbuffers::Vector<std::uint8_t>> setup;
  if (!m.setup.empty())
    setup = b.CreateVector(reinterpret_cast<const std::uint8_t*>(m.setup.data()), m.setup.size());
  Offset<flatbuffers::Vector<Offset<fb::LocalItem>>> items;
  if (!m.items.empty()) {
    items = pack_tables(b, m.items, [&](const LocalItem& item) {
      const auto error = pack_unless_ok(b, item.error);
      return fb::CreateLocalItem(b, static_cast<std::uint8_t>(item.kind), item.tensor.value, item.round.value,
                                 item.first, item.count, item.weight, item.member, error);
    });
  }
  Offset<flatbuffers::Vector<Offset<fb::LocalWaiting>>> waiting;
  if (!m.waiting.empty()) {
    waiting = pack_tables(b, m.waiting, [&](const LocalWaiting& w) {
      const auto missing = pack_ids(b, w.missing);
      return fb::CreateLocalWaiting(b, w.tensor.value, w.round.value, w.age_ms, missing);
    });
  }
  return fb::CreateLocalBatch(b, m.number, setup, items, waiting);
}

}  // namespace bps::codec
