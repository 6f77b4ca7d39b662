#include "store/journal/record_codec.h"

#include <fmt/format.h>

#include <optional>
#include <type_traits>
#include <utility>

#include "store/journal/codec_parts.h"

namespace kvcachefs {

using namespace codec;

namespace {

enum class RecordType : uint8_t {
  kPut = 1,
  kAttributes = 2,
  kName = 3,
  kUnname = 4,
  kMove = 5,
  kTouch = 6,
  kSuccessors = 7,
  kSynced = 8,
  kAbout = 9,
  kSeen = 10,
  kEnds = 11,
  kNext = 12,
};
// Hints: a reader ignores those that it does not know. They do not change the context.
constexpr uint8_t kFirstHint = 64, kLastHint = 127;
constexpr uint8_t kDamaged = 64;  // said of another node's objects

// Flag bytes. Unknown bits are refused: they may change the meaning of the following bytes.
constexpr uint8_t kNameSameParent = 1, kNameEvicted = 2;  // in the high nibble of a name's flag byte; the second only in an unname
constexpr uint8_t kAboutHasPosition = 1;
constexpr uint8_t kEndsLeftOut = 1;

constexpr size_t kUsualRecordBytes = 128;

void put_successors(const SuccessorsRecord& record, RecordContext& context, ByteWriter& out) {
  put_id(record.id, context, out);
  out.varint(uint64_t{record.successors.size()} << 1 | (record.predecessor.valid() ? 1 : 0));
  if (record.predecessor.valid()) put_id_delta(record.predecessor, record.id, out);
  ObjectId last = record.id;
  for (const auto& [id, seen] : record.successors) {
    put_id_delta(id, last, out);
    out.varint(seen);
    last = id;
  }
}

SuccessorsRecord get_successors(Cursor& in, RecordContext& context) {
  SuccessorsRecord record;
  record.id = get_id(in, context);
  const uint64_t head = in.varint();
  if (head & 1) record.predecessor = get_id_delta(in, record.id);
  ObjectId last = record.id;
  for (uint64_t i = 0; i < head >> 1 && in.ok(); ++i) {
    last = get_id_delta(in, last);
    const uint32_t seen = in.varint32("successor count");
    record.successors.emplace_back(last, seen);
  }
  return record;
}

void put_position(JournalPosition position, ByteWriter& out) {
  out.varint(position.epoch);
  out.varint(position.seq);
  out.varint(position.offset);
}
JournalPosition get_position(Cursor& in) {
  JournalPosition position;
  position.epoch = in.varint32("epoch");
  position.seq = in.varint();
  position.offset = in.varint();
  return position;
}

struct RecordEncoder {
  RecordContext& context;
  ByteWriter& out;
  void type(RecordType type) { out.u8(static_cast<uint8_t>(type)); }

  void operator()(const PutRecord& record) {
    type(RecordType::kPut);
    put_object(record.object, context, out);
  }
  void operator()(const AttributesRecord& record) {
    type(RecordType::kAttributes);
    put_id(record.id, context, out);
    put_attributes(record.attributes, context, out);
  }
  void operator()(const NameRecord& record) { name(RecordType::kName, record.parent, record.child, record.name, 0); }
  void operator()(const UnnameRecord& record) {
    name(RecordType::kUnname, record.parent, record.child, record.name, record.evicted ? kNameEvicted : 0);
  }
  void operator()(const MoveRecord& record) {
    type(RecordType::kMove);
    put_id(record.id, context, out);
    out.varint(record.version);
    put_place(record.place, record.id.epoch(), 0, context, out);
  }
  void operator()(const TouchRecord& record) {
    type(RecordType::kTouch);
    out.varint(record.atimes_ns.size());
    ObjectId last_id;
    int64_t last_ns = 0;
    for (const auto& [id, atime_ns] : record.atimes_ns) {
      put_id_delta(id, last_id, out);
      out.svarint(difference(atime_ns, last_ns));
      last_id = id;
      last_ns = atime_ns;
    }
  }
  void operator()(const DamagedRecord& record) {
    out.u8(kDamaged);
    out.varint(record.ids.size());
    ObjectId last;
    for (const ObjectId id : record.ids) {
      put_id_delta(id, last, out);
      last = id;
    }
  }
  void operator()(const SuccessorsRecord& record) {
    type(RecordType::kSuccessors);
    put_successors(record, context, out);
  }
  void operator()(const SyncedRecord&) { type(RecordType::kSynced); }
  void operator()(const StatementRecord& record) {
    std::visit([this](const auto& what) { (*this)(what); }, record.what);
  }
  void operator()(const SeenRecord& record) {
    type(RecordType::kSeen);
    out.text(record.node);
    put_position(record.position, out);
  }
  void operator()(const EndsRecord& record) {
    type(RecordType::kEnds);
    put_position(record.end, out);
    out.u8(record.left_out ? kEndsLeftOut : 0);
  }
  void operator()(const NextRecord& record) {
    type(RecordType::kNext);
    out.varint(record.seq);
  }

  void name(RecordType which, ObjectId parent, ObjectId child, std::string_view text, uint8_t nibble) {
    type(which);
    const ObjectId before = context.id;  // often the parent: a directory just made
    put_id(child, context, out);
    const bool same = parent == context.parent;
    encode_name(text, out, static_cast<uint8_t>(nibble | (same ? kNameSameParent : 0)));
    if (!same) put_id_delta(parent, before, out);
    context.parent = parent;
  }
};

template <class T>
T get_naming(Cursor& in, RecordContext& context) {
  T record;
  const ObjectId before = context.id;
  record.child = get_id(in, context);
  if (!in.ok()) return record;
  uint8_t nibble = 0;
  record.name = get_name(in, &nibble);
  constexpr uint8_t kKnown = std::is_same_v<T, UnnameRecord> ? kNameSameParent | kNameEvicted : kNameSameParent;
  if (nibble & static_cast<uint8_t>(~kKnown)) {
    in.refuse_version(fmt::format("name flags {:#x}", nibble << kNibbleShift));
  }
  if constexpr (std::is_same_v<T, UnnameRecord>) record.evicted = nibble & kNameEvicted;
  if (!(nibble & kNameSameParent)) context.parent = get_id_delta(in, before);
  record.parent = context.parent;
  return record;
}

MoveRecord get_move(Cursor& in, RecordContext& context) {
  MoveRecord record;
  record.id = get_id(in, context);
  record.version = in.varint32("body version");
  record.place = get_place(in, record.id.epoch(), 0, context);
  return record;
}

TouchRecord get_touch(Cursor& in) {
  TouchRecord record;
  const uint64_t count = in.varint();
  ObjectId id;
  int64_t atime_ns = 0;
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    id = get_id_delta(in, id);
    atime_ns = sum(atime_ns, in.svarint());
    record.atimes_ns.emplace_back(id, atime_ns);
  }
  return record;
}

DamagedRecord get_damaged(Cursor& in) {
  DamagedRecord record;
  const uint64_t count = in.varint();
  ObjectId id;
  for (uint64_t i = 0; i < count && in.ok(); ++i) record.ids.push_back(id = get_id_delta(in, id));
  return record;
}

AttributesRecord get_attributes_record(Cursor& in, RecordContext& context) {
  AttributesRecord record;
  record.id = get_id(in, context);
  record.attributes = get_attributes(in, context);
  return record;
}

SeenRecord get_seen(Cursor& in) {
  SeenRecord record;
  record.node = in.in().text();
  record.position = get_position(in);
  return record;
}

EndsRecord get_ends(Cursor& in) {
  EndsRecord record;
  record.end = get_position(in);
  record.left_out = in.flags(kEndsLeftOut, "ends") & kEndsLeftOut;
  return record;
}

// Resets the ids of the context: ids of one node are not encoded relative to those of another.
void speak_of(std::string_view node, JournalPosition said, RecordContext& context) {
  context.about = node;
  context.said = said;
  context.id = context.parent = {};
}

void get_about(Cursor& in, RecordContext& context) {
  const std::string_view node = in.in().text();
  const uint8_t flags = in.flags(kAboutHasPosition, "about");
  speak_of(node, flags & kAboutHasPosition ? get_position(in) : JournalPosition{}, context);
}

struct NamedRecord {
  std::optional<Record> record;
  const char* what;
};

// Decodes a record while the context is about another node's objects.
NamedRecord get_statement(RecordType type, Cursor& in, RecordContext& context) {
  const auto statement = [&](auto&& what) { return StatementRecord{context.about, context.said, std::move(what)}; };
  switch (type) {
    case RecordType::kAttributes: return {statement(get_attributes_record(in, context)), "statement of attributes"};
    case RecordType::kUnname: return {statement(get_naming<UnnameRecord>(in, context)), "statement of an unname"};
    case RecordType::kTouch: return {statement(get_touch(in)), "statement of a touch"};
    default: break;
  }
  in.refuse(fmt::format("a record of type {} speaks of another node's objects", static_cast<unsigned>(type)));
  return {std::nullopt, "statement"};
}

NamedRecord get_typed(RecordType type, Cursor& in, RecordContext& context) {
  const auto number = static_cast<uint8_t>(type);
  if (number > static_cast<uint8_t>(RecordType::kNext) || number == 0) {
    in.refuse_version(fmt::format("record type {}", number));
    return {std::nullopt, "record"};
  }
  if (!context.about.empty() && type != RecordType::kAbout) return get_statement(type, in, context);
  switch (type) {
    case RecordType::kPut: return {PutRecord{get_object(in, ObjectParts::kAll, context)}, "put record"};
    case RecordType::kAttributes: return {get_attributes_record(in, context), "attributes record"};
    case RecordType::kName: return {get_naming<NameRecord>(in, context), "name record"};
    case RecordType::kUnname: return {get_naming<UnnameRecord>(in, context), "unname record"};
    case RecordType::kMove: return {get_move(in, context), "move record"};
    case RecordType::kTouch: return {get_touch(in), "touch record"};
    case RecordType::kSuccessors: return {get_successors(in, context), "successors record"};
    case RecordType::kSynced: return {SyncedRecord{}, "synced record"};
    case RecordType::kAbout: break;
    case RecordType::kSeen: return {get_seen(in), "seen record"};
    case RecordType::kEnds: return {get_ends(in), "ends record"};
    case RecordType::kNext: return {NextRecord{in.varint()}, "next record"};
  }
  get_about(in, context);
  return {std::nullopt, "about record"};
}

bool is_hint(uint8_t type) { return type >= kFirstHint && type <= kLastHint; }

// The node that a record is about and the position of the statement; empty for this node's own records.
std::pair<std::string_view, JournalPosition> subject_of(const Record& record) {
  if (const auto* statement = std::get_if<StatementRecord>(&record)) return {statement->node, statement->said};
  return {};
}

// The bytes of the next record, type byte first; never empty.
Result<ByteSpan> next_record(ByteReader& in) {
  const uint64_t length = in.varint();
  const ByteSpan bytes = in.raw(length);
  if (!in.ok() || bytes.empty()) return fail(Code::kCorrupt, "record: its length passes the end or is 0");
  return bytes;
}

}  // namespace

void encode_successors(const SuccessorsRecord& record, ByteWriter& out, RecordContext context) {
  put_successors(record, context, out);
}

Result<SuccessorsRecord> decode_successors(ByteReader& in, RecordContext context) {
  Cursor cursor(in);
  SuccessorsRecord record = get_successors(cursor, context);
  KVC_TRY(cursor.end("successors"));
  return record;
}

size_t encode_record(const Record& record, RecordContext& context, ByteWriter& out) {
  Bytes bytes;
  bytes.reserve(kUsualRecordBytes);
  ByteWriter body(bytes);
  size_t records = 1;
  if (const auto [node, said] = subject_of(record); node != context.about || said != context.said) {
    body.u8(static_cast<uint8_t>(RecordType::kAbout));
    body.text(node);
    body.u8(said == JournalPosition{} ? 0 : kAboutHasPosition);
    if (said != JournalPosition{}) put_position(said, body);
    speak_of(node, said, context);
    out.varint(bytes.size());
    out.raw(bytes);
    bytes.clear();
    ++records;
  }
  std::visit(RecordEncoder{context, body}, record);
  out.varint(bytes.size());
  out.raw(bytes);
  return records;
}

Result<std::optional<Record>> decode_record(ByteReader& in, RecordContext& context) {
  KVC_ASSIGN(const ByteSpan bytes, next_record(in));
  ByteReader reader(bytes);
  Cursor cursor(reader);
  const uint8_t type = cursor.u8();
  const bool damaged = type == kDamaged && !context.about.empty();
  if (is_hint(type) && !damaged) return std::nullopt;
  NamedRecord named = damaged ? NamedRecord{StatementRecord{context.about, context.said, get_damaged(cursor)}, "statement of damage"}
                              : get_typed(static_cast<RecordType>(type), cursor, context);
  KVC_TRY(cursor.end(named.what));
  if (!reader.at_end()) {
    return fail(Code::kCorrupt, fmt::format("{}: {} bytes follow its end", named.what, reader.left()));
  }
  return std::move(named.record);
}

namespace {
// Most objects are born shortly before their batch, so its stamp is the first base of birth times.
RecordContext context_of(Stamp stamp) {
  RecordContext context;
  context.btime_ns = static_cast<int64_t>(stamp.value);
  return context;
}
}  // namespace

void encode_batch(const Batch& batch, Bytes& out) {
  ByteWriter writer(out);
  writer.u64(batch.stamp.value);
  size_t count = batch.records.size();
  std::pair<std::string_view, JournalPosition> last;
  for (const Record& record : batch.records) {
    const auto subject = subject_of(record);
    if (subject != last) ++count;
    last = subject;
  }
  writer.varint(count);
  RecordContext context = context_of(batch.stamp);
  for (const Record& record : batch.records) encode_record(record, context, writer);
}

Result<Batch> decode_batch(ByteSpan payload) {
  ByteReader in(payload);
  Batch batch;
  batch.stamp.value = in.u64();
  const uint64_t count = in.varint();
  if (!in.ok() || count > in.left() / 2 || count > kMaxBatchRecords) {
    return fail(Code::kCorrupt, fmt::format("batch: {} records in {} bytes", count, payload.size()));
  }
  RecordContext context = context_of(batch.stamp);
  for (uint64_t i = 0; i < count; ++i) {
    auto record = decode_record(in, context);
    if (!record) return std::unexpected(std::move(record).error().at(fmt::format("batch record {}", i)));
    if (*record) batch.records.push_back(std::move(**record));
  }
  if (!in.at_end()) return fail(Code::kCorrupt, fmt::format("batch: {} bytes follow its end", in.left()));
  return batch;
}

Result<bool> batch_has_synced(ByteSpan payload) {
  ByteReader in(payload);
  in.u64();
  const uint64_t count = in.varint();
  bool synced = false;
  for (uint64_t i = 0; i < count; ++i) {
    KVC_ASSIGN(const ByteSpan bytes, next_record(in));
    synced |= bytes[0] == static_cast<std::byte>(RecordType::kSynced);
  }
  if (!in.ok()) return fail(Code::kCorrupt, "batch: ends too early");
  return synced;
}

Result<std::optional<EndsRecord>> batch_ends(ByteSpan payload) {
  ByteReader in(payload);
  const uint64_t stamp = in.u64(), count = in.varint();
  if (count == 0) return std::nullopt;
  RecordContext context = context_of(Stamp{stamp});
  KVC_ASSIGN(const auto first, decode_record(in, context));
  const auto* ends = first ? std::get_if<EndsRecord>(&*first) : nullptr;
  return ends != nullptr ? std::optional(*ends) : std::nullopt;
}

}  // namespace kvcachefs
