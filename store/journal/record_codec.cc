#include "store/journal/record_codec.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "store/base/units.h"

namespace kvcachefs {
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
constexpr uint8_t kAttributesHaveRdev = 1, kAttributesHaveXattrs = 2;
constexpr uint8_t kAttributesOfDirectory = 4, kAttributesOfOther = 8;  // mode, uid, gid as the last ones of that kind
constexpr uint8_t kAttributesCtimeIsMtime = 16, kAttributesAtimeIsBtime = 32, kAttributesKnown = 63;
constexpr uint8_t kBodyHasChecksums = 1, kBodyHasInline = 2, kBodyQuarantined = 4;
constexpr uint8_t kBodyNone = 8;  // alone: no bytes, version 0
constexpr uint8_t kBodySameSize = 16, kBodyFirstVersion = 32, kBodyChecksumCount = 64, kBodyKnown = 127;
// The format around a name owns the high nibble of its flag byte.
constexpr uint8_t kNamePacked = 1, kNamePackedAtStart = 2, kNameKnown = 3;
constexpr uint8_t kNameSameParent = 1, kNameEvicted = 2;  // in a record, in that nibble; the second only in an unname
constexpr int kNibbleShift = 4;
// Place byte: kind in the low three bits, then these.
constexpr uint8_t kPlaceKindMask = 7, kPlaceHasExtent = 8, kPlaceHasEpoch = 16, kPlaceHasLength = 32;
constexpr uint8_t kOffsetZero = 0, kOffsetBlocks = 1, kOffsetBytes = 2, kOffsetFollows = 3;  // in the top two bits
constexpr int kOffsetShift = 6;
constexpr uint8_t kAboutHasPosition = 1;
constexpr uint8_t kEndsLeftOut = 1;

// Packing shorter runs saves nothing, as their description takes two bytes.
constexpr size_t kMinHexRun = 8;

constexpr size_t kUsualRecordBytes = 128;

// A ByteReader that keeps its first error, so that decoders read on and check once.
class Cursor {
 public:
  explicit Cursor(ByteReader& in) : in_(in) {}
  ByteReader& in() { return in_; }
  bool ok() const { return in_.ok() && !error_; }
  uint8_t u8() { return in_.u8(); }
  uint64_t u64() { return in_.u64(); }
  uint64_t varint() { return in_.varint(); }
  int64_t svarint() { return in_.svarint(); }
  uint32_t varint32(const char* what) {
    const uint64_t value = in_.varint();
    if (value > std::numeric_limits<uint32_t>::max()) refuse(fmt::format("{} {} is out of range", what, value));
    return static_cast<uint32_t>(value);
  }
  uint8_t flags(uint8_t known, const char* what) {
    const uint8_t value = in_.u8();
    if (value & static_cast<uint8_t>(~known)) refuse_version(fmt::format("{} flags {:#x}", what, value));
    return value;
  }
  void refuse(std::string why) { keep(Code::kCorrupt, std::move(why)); }
  void refuse_version(const std::string& what) {
    keep(Code::kVersion, what + " not known to this program: written by a newer kvcachefs, or damaged");
  }
  Status end(const char* what) {
    if (error_) return std::unexpected(std::move(*error_).at(what));
    if (!in_.ok()) return fail(Code::kCorrupt, fmt::format("{}: ends too early or holds an overlong number", what));
    return {};
  }

 private:
  void keep(Code code, std::string message) {
    if (!error_ && in_.ok()) error_ = Error{code, 0, std::move(message)};
  }
  ByteReader& in_;
  std::optional<Error> error_;
};

// Differences are modulo 2^64, so every pair of values has one.
int64_t difference(int64_t value, int64_t base) {
  return static_cast<int64_t>(static_cast<uint64_t>(value) - static_cast<uint64_t>(base));
}
int64_t sum(int64_t base, int64_t delta) {
  return static_cast<int64_t>(static_cast<uint64_t>(base) + static_cast<uint64_t>(delta));
}

void put_id_delta(ObjectId id, ObjectId base, ByteWriter& out) {
  out.svarint(static_cast<int64_t>(id.value - base.value));
}
ObjectId get_id_delta(Cursor& in, ObjectId base) { return ObjectId{base.value + static_cast<uint64_t>(in.svarint())}; }

// The id of a record, as a difference from the previous record's in the frame.
void put_id(ObjectId id, RecordContext& context, ByteWriter& out) {
  put_id_delta(id, context.id, out);
  context.id = id;
}
ObjectId get_id(Cursor& in, RecordContext& context) { return context.id = get_id_delta(in, context.id); }

RecordContext::Owner owner_of(const Attributes& attributes) {
  return {attributes.mode, attributes.uid, attributes.gid};
}

void put_attributes(const Attributes& attributes, RecordContext& context, ByteWriter& out) {
  const bool directory = S_ISDIR(attributes.mode);
  RecordContext::Owner& last = directory ? context.directory : context.other;
  const bool known = owner_of(attributes) == last;
  const bool ctime = attributes.ctime_ns != attributes.mtime_ns, atime = attributes.atime_ns != attributes.btime_ns;
  out.u8(static_cast<uint8_t>((attributes.rdev ? kAttributesHaveRdev : 0) |
                              (attributes.xattrs.empty() ? 0 : kAttributesHaveXattrs) |
                              (known ? (directory ? kAttributesOfDirectory : kAttributesOfOther) : 0) |
                              (ctime ? 0 : kAttributesCtimeIsMtime) | (atime ? 0 : kAttributesAtimeIsBtime)));
  if (!known) {
    out.varint(attributes.mode);
    out.varint(attributes.uid);
    out.varint(attributes.gid);
    last = owner_of(attributes);
  }
  if (attributes.rdev) out.varint(attributes.rdev);
  out.svarint(difference(attributes.btime_ns, context.btime_ns));
  out.svarint(difference(attributes.mtime_ns, attributes.btime_ns));
  if (ctime) out.svarint(difference(attributes.ctime_ns, attributes.mtime_ns));
  if (atime) out.svarint(difference(attributes.atime_ns, attributes.btime_ns));
  context.btime_ns = attributes.btime_ns;
  if (attributes.xattrs.empty()) return;
  out.varint(attributes.xattrs.size());
  for (const Xattr& xattr : attributes.xattrs) {
    out.text(xattr.name);
    out.text(xattr.value);
  }
}

void get_owner(Cursor& in, uint8_t flags, RecordContext& context, Attributes& attributes) {
  constexpr uint8_t kBoth = kAttributesOfDirectory | kAttributesOfOther;
  if ((flags & kBoth) == kBoth) in.refuse("attributes are told from two others");
  if (flags & kBoth) {
    const RecordContext::Owner& last = flags & kAttributesOfDirectory ? context.directory : context.other;
    attributes.mode = last.mode;
    attributes.uid = last.uid;
    attributes.gid = last.gid;
    return;
  }
  attributes.mode = in.varint32("mode");
  attributes.uid = in.varint32("uid");
  attributes.gid = in.varint32("gid");
  (S_ISDIR(attributes.mode) ? context.directory : context.other) = owner_of(attributes);
}

Attributes get_attributes(Cursor& in, RecordContext& context) {
  Attributes attributes;
  const uint8_t flags = in.flags(kAttributesKnown, "attribute");
  get_owner(in, flags, context, attributes);
  if (flags & kAttributesHaveRdev) attributes.rdev = in.varint32("device number");
  attributes.btime_ns = context.btime_ns = sum(context.btime_ns, in.svarint());
  attributes.mtime_ns = sum(attributes.btime_ns, in.svarint());
  attributes.ctime_ns = flags & kAttributesCtimeIsMtime ? attributes.mtime_ns : sum(attributes.mtime_ns, in.svarint());
  attributes.atime_ns = flags & kAttributesAtimeIsBtime ? attributes.btime_ns : sum(attributes.btime_ns, in.svarint());
  if (!(flags & kAttributesHaveXattrs)) return attributes;
  const uint64_t count = in.varint();
  for (uint64_t i = 0; i < count && in.ok(); ++i) {  // grows with the bytes really read, whatever `count` says
    if (++context.xattrs > kMaxFrameXattrs) {
      in.refuse(fmt::format("a frame has more than {} extended attributes", kMaxFrameXattrs));
      break;
    }
    Xattr xattr;
    xattr.name = in.in().text();
    xattr.value = in.in().text();
    attributes.xattrs.push_back(std::move(xattr));
  }
  return attributes;
}

uint64_t default_length(PlaceKind kind, uint64_t size_bytes) { return kind == PlaceKind::kNone ? 0 : size_bytes; }

// Packs are filled one body after another: remembers where the next is expected.
void note_place(const Place& place, RecordContext& context) {
  context.extent = place.extent;
  context.next_offset = (place.offset + place.length + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

// `home`: the object's epoch, by default also its extent's; `size_bytes`: its size, by default the length.
void put_place(const Place& place, uint32_t home, uint64_t size_bytes, RecordContext& context, ByteWriter& out) {
  const bool any = place.extent.epoch != 0 || place.extent.seq != 0;
  const bool follows = any && place.extent == context.extent && place.offset == context.next_offset;
  const bool extent = any && !follows;
  const bool epoch = extent && place.extent.epoch != home;
  const bool length = place.length != default_length(place.kind, size_bytes);
  const uint8_t form = follows                            ? kOffsetFollows
                       : place.offset == 0                ? kOffsetZero
                       : place.offset % kBlockBytes == 0 ? kOffsetBlocks
                                                          : kOffsetBytes;
  out.u8(static_cast<uint8_t>(static_cast<uint8_t>(place.kind) | (extent ? kPlaceHasExtent : 0) |
                              (epoch ? kPlaceHasEpoch : 0) | (length ? kPlaceHasLength : 0) | (form << kOffsetShift)));
  if (epoch) out.varint(place.extent.epoch);
  if (extent) out.varint(place.extent.seq);
  if (form == kOffsetBlocks) out.varint(place.offset / kBlockBytes);
  if (form == kOffsetBytes) out.varint(place.offset);
  if (length) out.varint(place.length);
  if (any) note_place(place, context);
}

uint64_t get_offset(Cursor& in, uint8_t form) {
  if (form == kOffsetZero || form == kOffsetFollows) return 0;
  const uint64_t value = in.varint();
  if (form == kOffsetBytes) return value;
  if (value > std::numeric_limits<uint64_t>::max() / kBlockBytes) {
    in.refuse(fmt::format("offset of {} blocks is out of range", value));
    return 0;
  }
  return value * kBlockBytes;
}

Place get_place(Cursor& in, uint32_t home, uint64_t size_bytes, RecordContext& context) {
  Place place;
  const uint8_t head = in.u8();
  const uint8_t kind = head & kPlaceKindMask;
  const uint8_t form = static_cast<uint8_t>(head >> kOffsetShift);
  if (kind > static_cast<uint8_t>(PlaceKind::kRaw) || ((head & kPlaceHasEpoch) && !(head & kPlaceHasExtent)) ||
      ((head & kPlaceHasExtent) && form == kOffsetFollows)) {
    in.refuse_version(fmt::format("place {:#x}", head));
    return place;
  }
  place.kind = static_cast<PlaceKind>(kind);
  if (head & kPlaceHasExtent) {
    place.extent.epoch = head & kPlaceHasEpoch ? in.varint32("extent epoch") : home;
    place.extent.seq = in.varint();
  }
  place.offset = get_offset(in, form);
  if (form == kOffsetFollows) {
    place.extent = context.extent;
    place.offset = context.next_offset;
  }
  place.length = head & kPlaceHasLength ? in.varint() : default_length(place.kind, size_bytes);
  if (place.extent.epoch != 0 || place.extent.seq != 0) note_place(place, context);
  return place;
}

bool is_none(const Body& body) {
  return body.size_bytes == 0 && body.version == 0 && body.place == Place{} && body.checksums.empty() &&
         body.inline_bytes.empty() && !body.quarantined;
}

// One checksum a unit; raw and damaged bodies have another number.
uint64_t usual_checksums(uint64_t size_bytes) { return size_bytes / kUnitBytes + (size_bytes % kUnitBytes ? 1 : 0); }

void put_body(const Body& body, uint32_t home, RecordContext& context, ByteWriter& out) {
  if (is_none(body)) return out.u8(kBodyNone);
  const bool size = body.size_bytes != context.size_bytes;
  const bool count = !body.checksums.empty() && body.checksums.size() != usual_checksums(body.size_bytes);
  out.u8(static_cast<uint8_t>((body.checksums.empty() ? 0 : kBodyHasChecksums) |
                              (body.inline_bytes.empty() ? 0 : kBodyHasInline) |
                              (body.quarantined ? kBodyQuarantined : 0) | (size ? 0 : kBodySameSize) |
                              (body.version == 1 ? kBodyFirstVersion : 0) | (count ? kBodyChecksumCount : 0)));
  if (size) out.varint(body.size_bytes);
  context.size_bytes = body.size_bytes;
  if (body.version != 1) out.varint(body.version);
  put_place(body.place, home, body.size_bytes, context, out);
  if (count) out.varint(body.checksums.size());
  for (const uint64_t checksum : body.checksums) out.u64(checksum);
  if (!body.inline_bytes.empty()) {
    out.varint(body.inline_bytes.size());
    out.raw(body.inline_bytes);
  }
}

void get_checksums(Cursor& in, uint64_t count, std::vector<uint64_t>& checksums) {
  if (count > in.in().left() / sizeof(uint64_t)) {
    in.refuse(fmt::format("{} checksums in {} bytes", count, in.in().left()));
    return;
  }
  checksums.reserve(static_cast<size_t>(count));
  for (uint64_t i = 0; i < count; ++i) checksums.push_back(in.u64());
}

Body get_body(Cursor& in, uint32_t home, ObjectParts parts, RecordContext& context) {
  Body body;
  const uint8_t flags = in.flags(kBodyKnown, "body");
  if (flags & kBodyNone) {
    if (flags != kBodyNone) in.refuse(fmt::format("body flags {:#x} contradict each other", flags));
    return body;
  }
  if ((flags & kBodyChecksumCount) && !(flags & kBodyHasChecksums)) in.refuse("body counts checksums it has not");
  body.quarantined = flags & kBodyQuarantined;
  body.size_bytes = context.size_bytes = flags & kBodySameSize ? context.size_bytes : in.varint();
  body.version = flags & kBodyFirstVersion ? 1 : in.varint32("body version");
  body.place = get_place(in, home, body.size_bytes, context);
  if (parts == ObjectParts::kSummary || !in.ok()) return body;
  if (flags & kBodyHasChecksums) {
    const uint64_t count = flags & kBodyChecksumCount ? in.varint() : usual_checksums(body.size_bytes);
    get_checksums(in, count, body.checksums);
  }
  if ((flags & kBodyHasInline) && in.ok()) {
    const ByteSpan bytes = in.in().raw(in.varint());
    body.inline_bytes.assign(bytes.begin(), bytes.end());
  }
  return body;
}

ObjectRecord get_object(Cursor& in, ObjectParts parts, RecordContext& context) {
  ObjectRecord object;
  object.id = get_id(in, context);
  object.attributes = get_attributes(in, context);
  if (in.ok()) object.body = get_body(in, object.id.epoch(), parts, context);
  return object;
}

void put_object(const ObjectRecord& object, RecordContext& context, ByteWriter& out) {
  put_id(object.id, context, out);
  put_attributes(object.attributes, context, out);
  put_body(object.body, object.id.epoch(), context, out);
}

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
uint8_t hex_value(char c) { return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

struct HexRun {
  size_t start = 0;
  size_t pairs = 0;
};

// The first of the longest runs, cut to whole pairs; pairs == 0 if packing it saves nothing.
HexRun find_hex_run(std::string_view name) {
  HexRun best;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && is_hex(name[end])) ++end;
    if (end - i >= kMinHexRun && (end - i) / 2 > best.pairs) best = {i, (end - i) / 2};
    i = end + 1;
  }
  return best;
}

std::string get_name(Cursor& in, uint8_t* nibble) {
  const uint8_t flags = in.flags(kNameKnown | 0xf0, "name");
  *nibble = static_cast<uint8_t>(flags >> kNibbleShift);
  const uint64_t length = in.varint();
  uint64_t start = 0, pairs = 0;
  if (flags & kNamePacked) {
    if (!(flags & kNamePackedAtStart)) start = in.varint();
    pairs = in.varint();
  } else if (flags & kNamePackedAtStart) {
    in.refuse("name claims a packed run and has none");
  }
  if (!in.ok()) return {};
  // Written to avoid overflow; bounds `length` by twice the input before anything is allocated.
  if (start > length || pairs > (length - start) / 2 || length - pairs > in.in().left()) {
    in.refuse(fmt::format("name of {} bytes with {} packed pairs from {} on in {} bytes", length, pairs, start,
                          in.in().left()));
    return {};
  }
  std::string name;
  name.reserve(static_cast<size_t>(length));
  name += as_text(in.in().raw(start));
  for (const std::byte pair : in.in().raw(pairs)) {
    name += "0123456789abcdef"[static_cast<uint8_t>(pair) >> 4];
    name += "0123456789abcdef"[static_cast<uint8_t>(pair) & 15];
  }
  name += as_text(in.in().raw(length - start - 2 * pairs));
  return name;
}

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

void encode_object(const ObjectRecord& object, ByteWriter& out, RecordContext context) {
  put_object(object, context, out);
}

Result<ObjectRecord> decode_object(ByteReader& in, ObjectParts parts, RecordContext context) {
  Cursor cursor(in);
  ObjectRecord object = get_object(cursor, parts, context);
  KVC_TRY(cursor.end("object"));
  return object;
}

void encode_name(std::string_view name, ByteWriter& out, uint8_t nibble) {
  const HexRun run = find_hex_run(name);
  out.u8(static_cast<uint8_t>((run.pairs ? kNamePacked : 0) | (run.pairs && run.start == 0 ? kNamePackedAtStart : 0) |
                              nibble << kNibbleShift));
  out.varint(name.size());
  if (run.pairs == 0) {
    out.raw(as_bytes(name));
    return;
  }
  if (run.start != 0) out.varint(run.start);
  out.varint(run.pairs);
  out.raw(as_bytes(name.substr(0, run.start)));
  for (size_t i = 0; i < run.pairs; ++i) {
    const size_t at = run.start + 2 * i;
    out.u8(static_cast<uint8_t>((hex_value(name[at]) << 4) | hex_value(name[at + 1])));
  }
  out.raw(as_bytes(name.substr(run.start + 2 * run.pairs)));
}

Result<std::string> decode_name(ByteReader& in, uint8_t* nibble) {
  Cursor cursor(in);
  uint8_t ignored = 0;
  std::string name = get_name(cursor, nibble != nullptr ? nibble : &ignored);
  KVC_TRY(cursor.end("name"));
  return name;
}

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
