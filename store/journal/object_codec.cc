// Objects: attributes, bodies and places.
#include <sys/stat.h>

#include <limits>
#include <utility>

#include "store/base/units.h"
#include "store/journal/codec_parts.h"

namespace kvcachefs {
namespace codec {
namespace {

// Flag bytes. Unknown bits are refused: they may change the meaning of the following bytes.
constexpr uint8_t kAttributesHaveRdev = 1, kAttributesHaveXattrs = 2;
constexpr uint8_t kAttributesOfDirectory = 4, kAttributesOfOther = 8;  // mode, uid, gid as the last ones of that kind
constexpr uint8_t kAttributesCtimeIsMtime = 16, kAttributesAtimeIsBtime = 32, kAttributesKnown = 63;
constexpr uint8_t kBodyHasChecksums = 1, kBodyHasInline = 2, kBodyQuarantined = 4;
constexpr uint8_t kBodyNone = 8;  // alone: no bytes, version 0
constexpr uint8_t kBodySameSize = 16, kBodyFirstVersion = 32, kBodyChecksumCount = 64, kBodyKnown = 127;
// Place byte: kind in the low three bits, then these.
constexpr uint8_t kPlaceKindMask = 7, kPlaceHasExtent = 8, kPlaceHasEpoch = 16, kPlaceHasLength = 32;
constexpr uint8_t kOffsetZero = 0, kOffsetBlocks = 1, kOffsetBytes = 2, kOffsetFollows = 3;  // in the top two bits
constexpr int kOffsetShift = 6;

RecordContext::Owner owner_of(const Attributes& attributes) {
  return {attributes.mode, attributes.uid, attributes.gid};
}

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

uint64_t default_length(PlaceKind kind, uint64_t size_bytes) { return kind == PlaceKind::kNone ? 0 : size_bytes; }

// Packs are filled one body after another: remembers where the next is expected.
void note_place(const Place& place, RecordContext& context) {
  context.extent = place.extent;
  context.next_offset = (place.offset + place.length + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace codec

using namespace codec;

void encode_object(const ObjectRecord& object, ByteWriter& out, RecordContext context) {
  put_object(object, context, out);
}

Result<ObjectRecord> decode_object(ByteReader& in, ObjectParts parts, RecordContext context) {
  Cursor cursor(in);
  ObjectRecord object = get_object(cursor, parts, context);
  KVC_TRY(cursor.end("object"));
  return object;
}

}  // namespace kvcachefs
