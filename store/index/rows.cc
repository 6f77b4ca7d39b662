#include "store/index/rows.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <limits>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {

namespace {

constexpr size_t kMostNameBytes = 255;
constexpr uint8_t kLeftInPacks = 1, kLeftUnlisted = 2, kLeftHeld = 4, kLeftAllHeld = 8;  // kLeftHeld: a list follows
uint64_t cookie_mask = ~uint64_t{0};

template <class T>
void big_endian(KeyBytes& out, T value) {
  for (size_t i = sizeof(T); i-- > 0;) out.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
}

template <class T>
T from_big_endian(ByteSpan bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value = value << 8 | static_cast<uint64_t>(bytes[i]);
  return static_cast<T>(value);
}

// 0xxxxxxx, 10xxxxxx and one more byte, 110xxxxx and two more, ... 11111111 and eight more: a shorter code is a smaller value.
void ordered_varint(KeyBytes& out, uint64_t value) {
  unsigned more = 0;
  while (more < 8 && value >> (7 * (more + 1)) != 0) ++more;
  const auto head = static_cast<uint8_t>(0xff00u >> more);  // `more` ones, then zeros
  out.push_back(static_cast<std::byte>(more < 8 ? head | static_cast<uint8_t>(value >> (8 * more)) : head));
  for (unsigned i = more; i-- > 0;) out.push_back(static_cast<std::byte>(value >> (8 * i)));
}

// Removes a varint from the front of `bytes`; false if there is none in its shortest form.
bool take_ordered_varint(ByteSpan& bytes, uint64_t* value) {
  if (bytes.empty()) return false;
  const auto head = static_cast<uint8_t>(bytes[0]);
  const auto more = static_cast<unsigned>(std::countl_one(head));
  if (bytes.size() <= more) return false;
  *value = more < 8 ? head & (0x7fu >> more) : 0;
  for (unsigned i = 1; i <= more; ++i) *value = *value << 8 | static_cast<uint64_t>(bytes[i]);
  bytes = bytes.subspan(more + 1);
  return more == 0 || *value >> (7 * more) != 0;
}

void ordered_id(KeyBytes& out, ObjectId id) {
  ordered_varint(out, id.value >> ObjectId::kNumberBits);
  ordered_varint(out, id.number());
}

bool take_ordered_id(ByteSpan& bytes, ObjectId* id) {
  uint64_t home = 0, number = 0;
  if (!take_ordered_varint(bytes, &home) || !take_ordered_varint(bytes, &number)) return false;
  if (home >> (64 - ObjectId::kNumberBits) != 0 || number >> ObjectId::kNumberBits != 0) return false;
  id->value = home << ObjectId::kNumberBits | number;
  return true;
}

// A row omits what its key tells: the context holds the id.
RecordContext context_of(ObjectId id) {
  RecordContext context;
  context.id = id;
  return context;
}

std::unexpected<Error> bad_key(const char* table, ByteSpan key) {
  return fail(Code::kCorrupt, fmt::format("index: a key of {} has {} bytes", table, key.size()));
}

std::unexpected<Error> bad_row(std::string_view which) {
  return fail(Code::kCorrupt, fmt::format("index: {} does not decode", which));
}

void encode_totals(const IndexTotals& totals, ByteWriter& out) {
  for (const uint64_t value :
       {totals.objects, totals.directories, totals.inline_bodies, totals.packed_bodies, totals.solo_bodies,
        totals.raw_bodies, totals.quarantined, totals.live_bytes, totals.logical_bytes}) {
    out.varint(value);
  }
}

IndexTotals decode_totals(ByteReader& in) {
  IndexTotals totals;
  for (uint64_t* value :
       {&totals.objects, &totals.directories, &totals.inline_bodies, &totals.packed_bodies, &totals.solo_bodies,
        &totals.raw_bodies, &totals.quarantined, &totals.live_bytes, &totals.logical_bytes}) {
    *value = in.varint();
  }
  return totals;
}

}  // namespace

const ByteSpan kIdentityKey = as_bytes("identity");
const ByteSpan kStateKey = as_bytes("state");
const ByteSpan kEpochKeyPrefix = as_bytes("epoch");
const ByteSpan kLeftoversKey = as_bytes("leftovers");
const ByteSpan kScrubKey = as_bytes("scrub");
const ByteSpan kSeenKeyPrefix = as_bytes("seen");
const ByteSpan kStatementKeyPrefix = as_bytes("statement");

uint64_t name_cookie(std::string_view name) {
  // 63 bits, because off_t is signed; directory readers use 0 to 2, and the last values mean "no more".
  constexpr uint64_t kFirst = 3, kEnd = std::numeric_limits<int64_t>::max();
  return kFirst + (checksum(as_bytes(name)) & cookie_mask) % (kEnd - kFirst);
}

void set_cookie_mask_for_tests(uint64_t mask) { cookie_mask = mask; }

bool ObjectRow::is_directory() const { return S_ISDIR(object.attributes.mode); }

uint32_t ObjectRow::nlink() const {
  if (!is_directory()) return names;
  return names > 0 || object.id == kRootId ? 2 + subdirectories : 0;
}

KeyBytes name_key(NameKey key) {
  KeyBytes out;
  out.reserve(24);
  ordered_id(out, key.parent);
  big_endian(out, key.cookie);
  return out;
}

KeyBytes object_key(ObjectId id) {
  KeyBytes out;
  out.reserve(16);
  ordered_id(out, id);
  return out;
}

KeyBytes extent_key(ExtentId id) {
  KeyBytes out;
  out.reserve(12);
  big_endian(out, id.epoch);
  big_endian(out, id.seq);
  return out;
}

KeyBytes epoch_key(uint32_t epoch) {
  KeyBytes out(kEpochKeyPrefix.begin(), kEpochKeyPrefix.end());
  big_endian(out, epoch);
  return out;
}

KeyBytes seen_key(std::string_view node) {
  KeyBytes out(kSeenKeyPrefix.begin(), kSeenKeyPrefix.end());
  out.insert(out.end(), as_bytes(node).begin(), as_bytes(node).end());
  return out;
}

KeyBytes statement_key(const StatementKey& key) {
  KeyBytes out(kStatementKeyPrefix.begin(), kStatementKeyPrefix.end());
  big_endian(out, key.said.epoch);
  big_endian(out, key.said.seq);
  big_endian(out, key.said.offset);
  big_endian(out, key.number);
  return out;
}

Result<NameKey> parse_name_key(ByteSpan key) {
  NameKey parsed;
  ByteSpan rest = key;
  if (!take_ordered_id(rest, &parsed.parent) || rest.size() != 8) return bad_key("names", key);
  parsed.cookie = from_big_endian<uint64_t>(rest);
  return parsed;
}

Result<ObjectId> parse_object_key(ByteSpan key) {
  ObjectId id;
  ByteSpan rest = key;
  if (!take_ordered_id(rest, &id) || !rest.empty()) return bad_key("objects", key);
  return id;
}

Result<ExtentId> parse_extent_key(ByteSpan key) {
  if (key.size() != 12) return bad_key("extents", key);
  return ExtentId{from_big_endian<uint32_t>(key), from_big_endian<uint64_t>(key.subspan(4))};
}

Result<uint32_t> parse_epoch_key(ByteSpan key) {
  if (key.size() != kEpochKeyPrefix.size() + 4) return bad_key("meta", key);
  return from_big_endian<uint32_t>(key.subspan(kEpochKeyPrefix.size()));
}

Result<StatementKey> parse_statement_key(ByteSpan key) {
  constexpr size_t kBytes = 4 + 8 + 8 + 4;
  const size_t prefix = kStatementKeyPrefix.size();
  if (key.size() != prefix + kBytes) return bad_key("meta", key);
  const ByteSpan rest = key.subspan(prefix);
  return StatementKey{{from_big_endian<uint32_t>(rest), from_big_endian<uint64_t>(rest.subspan(4)), from_big_endian<uint64_t>(rest.subspan(12))},
                      from_big_endian<uint32_t>(rest.subspan(20))};
}

void encode_row(ObjectId parent, const NameRow& row, Bytes& out) {
  ByteWriter writer(out);
  for (const NameEntry& entry : row) {
    encode_name(entry.name, writer, static_cast<uint8_t>((entry.type_bits & kTypeMask) >> kTypeShift));
    writer.svarint(static_cast<int64_t>(entry.child.value - parent.value));
  }
}

void encode_row(const ObjectRow& row, Bytes& out) {
  ByteWriter writer(out);
  // Most objects have no subdirectories: names and the flag take one byte.
  writer.varint(uint64_t{row.names} << 1 | (row.subdirectories > 0 ? 1 : 0));
  if (row.subdirectories > 0) writer.varint(row.subdirectories);
  encode_object(row.object, writer, context_of(row.object.id));
}

void encode_row(const SuccessorsRecord& row, Bytes& out) {
  ByteWriter writer(out);
  encode_successors(row, writer, context_of(row.id));
}

void encode_row(const ExtentUsage& row, Bytes& out) {
  ByteWriter writer(out);
  writer.u8(static_cast<uint8_t>(row.kind));
  writer.varint(row.live_bytes);
  writer.varint(row.bodies);
  writer.varint(row.object.value);
}

void encode_row(const EpochHighs& row, Bytes& out) {
  ByteWriter writer(out);
  writer.varint(row.number);
  writer.varint(row.extent);
}

void encode_row(const CommittedState& row, Bytes& out) {
  ByteWriter writer(out);
  writer.u8(row.loading ? 1 : 0);
  writer.u32(row.state.position.epoch);
  writer.u64(row.state.position.seq);
  writer.u64(row.state.position.offset);
  writer.u64(row.state.stamp.value);
  encode_totals(row.state.totals, writer);
}

void encode_row(const IndexIdentity& row, Bytes& out) {
  ByteWriter writer(out);
  writer.u32(kIndexFormat);
  writer.raw(row.volume_uuid);
  writer.text(row.node);
}

void encode_row(const CommittedLeftovers& row, Bytes& out) {
  ByteWriter writer(out);
  writer.u32(row.position.epoch);
  writer.u64(row.position.seq);
  writer.u64(row.position.offset);
  const bool all_held = row.leftovers.held_until != JournalPosition{};
  writer.u8(static_cast<uint8_t>((row.leftovers.in_packs ? kLeftInPacks : 0) | (row.leftovers.unlisted ? kLeftUnlisted : 0) |
                                 (row.leftovers.held.empty() ? 0 : kLeftHeld) | (all_held ? kLeftAllHeld : 0)));
  writer.varint(row.leftovers.swept_epoch);
  writer.varint(row.leftovers.extents.size());
  for (const Leftovers::Extent& extent : row.leftovers.extents) {
    writer.varint(extent.id.epoch);
    writer.varint(extent.id.seq);
    writer.u8(static_cast<uint8_t>(extent.kind));
  }
  if (row.leftovers.held.empty()) return;
  writer.varint(row.leftovers.held.size());
  for (const FreedPlace& freed : row.leftovers.held) {
    writer.varint(freed.object.value);
    writer.u8(static_cast<uint8_t>(freed.place.kind));
    writer.varint(freed.place.extent.epoch);
    writer.varint(freed.place.extent.seq);
    writer.varint(freed.place.offset);
    writer.varint(freed.place.length);
  }
}

void encode_row(const ScrubMark& row, Bytes& out) {
  ByteWriter writer(out);
  writer.u64(row.after.value);
  writer.u64(static_cast<uint64_t>(row.begun_ns));
  writer.u64(static_cast<uint64_t>(row.ended_ns));
}

void encode_row(const JournalPosition& row, Bytes& out) {
  ByteWriter writer(out);
  writer.u32(row.epoch);
  writer.u64(row.seq);
  writer.u64(row.offset);
}

void encode_row(const StatementRecord& row, Bytes& out) {
  ByteWriter writer(out);
  RecordContext context;
  encode_record(row, context, writer);
}

Result<NameRow> decode_name_row(NameKey key, ByteSpan value) {
  NameRow row;
  ByteReader in(value);
  while (in.ok() && !in.at_end()) {
    NameEntry entry;
    uint8_t type = 0;
    auto name = decode_name(in, &type);
    if (!name) return std::unexpected(std::move(name).error().at("index: a name"));
    entry.name = std::move(*name);
    const bool possible = !entry.name.empty() && entry.name.size() <= kMostNameBytes && entry.name != "." && entry.name != ".." &&
                          entry.name.find('/') == std::string::npos && entry.name.find('\0') == std::string::npos;
    if (!possible) return bad_row("a row of names");
    entry.child = ObjectId{key.parent.value + static_cast<uint64_t>(in.svarint())};
    entry.type_bits = uint32_t{type} << kTypeShift;
    entry.cookie = key.cookie;
    row.push_back(std::move(entry));
  }
  if (!in.ok() || row.empty()) return bad_row("a row of names");
  return row;
}

Result<ObjectRow> decode_object_row(ObjectId id, ByteSpan value, bool summary) {
  ObjectRow row;
  ByteReader in(value);
  const uint64_t counts = in.varint();
  row.names = static_cast<uint32_t>(counts >> 1);
  if (counts & 1) row.subdirectories = static_cast<uint32_t>(in.varint());
  auto object = decode_object(in, summary ? ObjectParts::kSummary : ObjectParts::kAll, context_of(id));
  if (!object) return std::unexpected(std::move(object).error().at(fmt::format("index: object {:#x}", id.value)));
  row.object = std::move(*object);
  if (!in.ok() || (!summary && !in.at_end()) || row.object.id != id) return bad_row("a row of objects");
  return row;
}

Result<ExtentUsage> decode_extent_row(ByteSpan value) {
  ExtentUsage usage;
  ByteReader in(value);
  const uint8_t kind = in.u8();
  usage.kind = static_cast<PlaceKind>(kind);
  usage.live_bytes = in.varint();
  usage.bodies = in.varint();
  usage.object.value = in.varint();
  if (!in.ok() || !in.at_end() || kind > static_cast<uint8_t>(PlaceKind::kRaw)) return bad_row("a row of extents");
  return usage;
}

Result<SuccessorsRecord> decode_successors_row(ObjectId id, ByteSpan value) {
  ByteReader in(value);
  KVC_ASSIGN(SuccessorsRecord record, decode_successors(in, context_of(id)));
  if (!in.at_end() || record.id != id) return bad_row("a row of successors");
  return record;
}

Result<EpochHighs> decode_epoch_row(ByteSpan value) {
  ByteReader in(value);
  EpochHighs highs;
  highs.number = in.varint();
  highs.extent = in.varint();
  if (!in.ok() || !in.at_end()) return bad_row("the row of an epoch");
  return highs;
}

Result<CommittedState> decode_state_row(ByteSpan value) {
  ByteReader in(value);
  CommittedState row;
  row.loading = in.u8() != 0;
  row.state.position.epoch = in.u32();
  row.state.position.seq = in.u64();
  row.state.position.offset = in.u64();
  row.state.stamp.value = in.u64();
  row.state.totals = decode_totals(in);
  if (!in.ok() || !in.at_end()) return bad_row("the row of its state");
  return row;
}

Result<CommittedLeftovers> decode_leftovers_row(ByteSpan value) {
  ByteReader in(value);
  CommittedLeftovers row;
  row.position.epoch = in.u32();
  row.position.seq = in.u64();
  row.position.offset = in.u64();
  const uint8_t flags = in.u8();
  row.leftovers.in_packs = (flags & kLeftInPacks) != 0;
  row.leftovers.unlisted = (flags & kLeftUnlisted) != 0;
  row.leftovers.swept_epoch = static_cast<uint32_t>(in.varint());
  for (uint64_t left = in.varint(); left > 0 && in.ok(); --left) {
    Leftovers::Extent extent;
    extent.id.epoch = static_cast<uint32_t>(in.varint());
    extent.id.seq = in.varint();
    extent.kind = static_cast<PlaceKind>(in.u8());
    row.leftovers.extents.push_back(extent);
  }
  if ((flags & kLeftAllHeld) != 0) row.leftovers.held_until = row.position;
  for (uint64_t left = (flags & kLeftHeld) != 0 ? in.varint() : 0; left > 0 && in.ok(); --left) {
    FreedPlace freed;
    freed.object.value = in.varint();
    freed.place.kind = static_cast<PlaceKind>(in.u8());
    freed.place.extent.epoch = static_cast<uint32_t>(in.varint());
    freed.place.extent.seq = in.varint();
    freed.place.offset = in.varint();
    freed.place.length = in.varint();
    freed.given_up_at = row.position;  // or before
    const PlaceKind kind = freed.place.kind;
    if (kind != PlaceKind::kPacked && kind != PlaceKind::kSolo && kind != PlaceKind::kRaw) return bad_row("the row of leftovers");
    row.leftovers.held.push_back(freed);
  }
  if (!in.ok() || !in.at_end()) return bad_row("the row of leftovers");
  return row;
}

Result<ScrubMark> decode_scrub_row(ByteSpan value) {
  ByteReader in(value);
  ScrubMark row;
  row.after.value = in.u64();
  row.begun_ns = static_cast<int64_t>(in.u64());
  row.ended_ns = static_cast<int64_t>(in.u64());
  if (!in.ok() || !in.at_end()) return bad_row("the row of the scrub");
  return row;
}

Result<SeenRecord> decode_seen_row(ByteSpan key, ByteSpan value) {
  ByteReader in(value);
  SeenRecord record;
  record.node = as_text(key.subspan(kSeenKeyPrefix.size()));
  record.position.epoch = in.u32();
  record.position.seq = in.u64();
  record.position.offset = in.u64();
  if (!in.ok() || !in.at_end()) return bad_row("the row of a node");
  return record;
}

Result<StatementRecord> decode_statement_row(const StatementKey& key, ByteSpan value) {
  ByteReader in(value);
  RecordContext context;
  KVC_ASSIGN(const auto about, decode_record(in, context));
  KVC_ASSIGN(auto record, decode_record(in, context));
  auto* statement = record ? std::get_if<StatementRecord>(&*record) : nullptr;
  if (about || statement == nullptr || !in.at_end() || statement->said != key.said) return bad_row("a statement");
  return std::move(*statement);
}

}  // namespace kvcachefs
