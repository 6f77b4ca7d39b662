#include "store/journal/test_records.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/base/units.h"

namespace kvcachefs {
namespace {

std::string random_bytes(TestRandom& random, size_t length) {
  std::string bytes;
  for (size_t i = 0; i < length; ++i) bytes += static_cast<char>(random.next());
  return bytes;
}

std::string random_hex(TestRandom& random, size_t length) {
  std::string digits;
  for (size_t i = 0; i < length; ++i) digits += "0123456789abcdef"[random.below(16)];
  return digits;
}

Attributes random_attributes(TestRandom& random) {
  Attributes a;
  a.mode = random.one_in(3) ? static_cast<uint32_t>(random.any()) : random.one_in(2) ? 0040755 : 0100644;
  a.uid = random.one_in(3) ? static_cast<uint32_t>(random.any()) : 1000;
  a.gid = random.one_in(3) ? static_cast<uint32_t>(random.any()) : 1000;
  if (random.one_in(4)) a.rdev = static_cast<uint32_t>(random.any());
  if (random.one_in(4)) {
    a.atime_ns = static_cast<int64_t>(random.next());
    a.mtime_ns = static_cast<int64_t>(random.next());
    a.ctime_ns = static_cast<int64_t>(random.next());
    a.btime_ns = static_cast<int64_t>(random.next());
  } else {
    a.btime_ns = 1763712345123456789 + static_cast<int64_t>(random.below(1000000000));
    a.mtime_ns = a.btime_ns + static_cast<int64_t>(random.below(100000000));
    a.ctime_ns = a.mtime_ns + static_cast<int64_t>(random.below(1000000));
    a.atime_ns = a.btime_ns;
    if (random.one_in(2)) a.ctime_ns = a.mtime_ns;
  }
  if (random.one_in(4)) {
    for (uint64_t i = random.below(4); i > 0; --i) {
      a.xattrs.push_back({"user." + random_bytes(random, random.below(20)), random_bytes(random, random.below(60))});
    }
  }
  std::sort(a.xattrs.begin(), a.xattrs.end(), [](const Xattr& x, const Xattr& y) { return x.name < y.name; });
  return a;
}

Place random_place(TestRandom& random, uint32_t epoch, uint64_t size) {
  Place place;
  place.kind = static_cast<PlaceKind>(random.below(5));
  if (!random.one_in(4)) {
    place.extent.epoch = random.one_in(3) ? static_cast<uint32_t>(random.any()) : epoch;
    place.extent.seq = random.any();
  }
  place.offset = random.one_in(3) ? random.any() : random.below(1 << 20) * kBlockBytes;
  place.length = random.one_in(3) ? random.any() : size;
  return place;
}

template <class T>
T random_naming(TestRandom& random) {
  T record;
  record.parent = random_id(random);
  record.child = random_id(random);
  record.name = random_name(random);
  return record;
}

UnnameRecord random_unname(TestRandom& random) {
  auto record = random_naming<UnnameRecord>(random);
  record.evicted = random.one_in(3);
  return record;
}

TouchRecord random_touch(TestRandom& random) {
  TouchRecord touch;
  for (uint64_t i = random.below(6); i > 0; --i) touch.atimes_ns.emplace_back(random_id(random), static_cast<int64_t>(random.next()));
  return touch;
}

JournalPosition random_position(TestRandom& random) {
  return {static_cast<uint32_t>(1 + random.below(1000)), random.any(), random.any()};
}

}  // namespace

std::string random_name(TestRandom& random) {
  switch (random.below(6)) {
    case 0: return random_hex(random, 64) + ".bin";
    case 1: return "model@" + random_hex(random, random.below(70)) + "@bfloat16.kvcache.safetensors";
    case 2: return random_hex(random, random.below(256));
    case 3:
      return random_hex(random, random.below(20)) + "-" + random_hex(random, random.below(20)) + "." +
             random_hex(random, random.below(20));
    default: return random_bytes(random, random.below(256));
  }
}

ObjectId random_id(TestRandom& random) {
  if (random.one_in(8)) return ObjectId{random.any()};
  return ObjectId::make(0, 1 + static_cast<uint32_t>(random.below(5)), random.below(2000000));
}

ObjectRecord random_object(TestRandom& random) {
  ObjectRecord object;
  object.id = random_id(random);
  object.attributes = random_attributes(random);
  Body& body = object.body;
  if (random.one_in(4)) return object;
  if (random.one_in(3)) {  // bodies one behind another, as those of similar chunks are
    body.size_bytes = 5000;
    body.version = 1;
    body.place = {PlaceKind::kPacked, {3, 1}, kBlockBytes * (1 + 2 * random.below(3)), 5000};
    body.checksums = {random.next()};
    return object;
  }
  body.size_bytes = random.any();
  body.version = static_cast<uint32_t>(random.any());
  body.place = random_place(random, object.id.epoch(), body.size_bytes);
  for (uint64_t i = random.below(5); i > 0; --i) body.checksums.push_back(random.next());
  if (random.one_in(4)) {
    const std::string bytes = random_bytes(random, random.below(200));
    body.inline_bytes.assign(as_bytes(bytes).begin(), as_bytes(bytes).end());
  }
  body.quarantined = random.one_in(10);
  return object;
}

Record random_record(TestRandom& random) {
  switch (random.below(12)) {
    case 0: return PutRecord{random_object(random)};
    case 1: return AttributesRecord{random_id(random), random_attributes(random)};
    case 2: return random_naming<NameRecord>(random);
    case 3: return random_unname(random);
    case 4: {
      const ObjectId id = random_id(random);
      return MoveRecord{id, static_cast<uint32_t>(random.any()), random_place(random, id.epoch(), random.any())};
    }
    case 5: return random_touch(random);
    case 6: {
      SuccessorsRecord record{random_id(random), random_id(random), {}};
      for (uint64_t i = random.below(6); i > 0; --i) {
        record.successors.emplace_back(random_id(random), static_cast<uint32_t>(random.any()));
      }
      return record;
    }
    case 7: {
      StatementRecord statement{random.one_in(2) ? "node-b" : "node-c", {}, random_touch(random)};
      if (random.one_in(2)) statement.said = random_position(random);
      if (random.one_in(2)) statement.what = random_unname(random);
      if (random.one_in(3)) statement.what = AttributesRecord{random_id(random), random_attributes(random)};
      return statement;
    }
    case 8: return SeenRecord{random_name(random), random_position(random)};
    case 9: return EndsRecord{random_position(random), random.one_in(2)};
    case 10: return NextRecord{random.any()};
    default: return SyncedRecord{};
  }
}

Batch random_batch(TestRandom& random) {
  Batch batch;
  batch.stamp.value = random.next();
  for (uint64_t i = random.below(6); i > 0; --i) batch.records.push_back(random_record(random));
  return batch;
}

ObjectRecord chunk_object(uint64_t number) {
  ObjectRecord object;
  object.id = ObjectId::make(0, 3, number);
  const int64_t born_ns = 1763712345123456789 + static_cast<int64_t>(number) * 1000003;
  object.attributes = {0100644, 1000, 1000, 0, born_ns, born_ns + 450000, born_ns + 520000, born_ns, {}};
  object.body.size_bytes = 65536;
  object.body.version = 1;
  object.body.place = {PlaceKind::kPacked, {3, number / 4096}, kBlockBytes + number % 4096 * 65536, 65536};
  object.body.checksums = {TestRandom(number).next()};
  return object;
}

NameRecord chunk_name(uint64_t number) {
  TestRandom random(number);
  return {ObjectId::make(0, 3, number / 100), random_hex(random, 64) + ".bin", ObjectId::make(0, 3, number)};
}

FileIdentity test_identity(uint32_t epoch) {
  FileIdentity identity{{}, "node-a", epoch};
  for (size_t i = 0; i < identity.volume_uuid.size(); ++i) identity.volume_uuid[i] = static_cast<std::byte>(17 * i);
  return identity;
}

bool operator==(const PutRecord& a, const PutRecord& b) { return a.object == b.object; }
bool operator==(const AttributesRecord& a, const AttributesRecord& b) {
  return a.id == b.id && a.attributes == b.attributes;
}
bool operator==(const NameRecord& a, const NameRecord& b) {
  return a.parent == b.parent && a.name == b.name && a.child == b.child;
}
bool operator==(const UnnameRecord& a, const UnnameRecord& b) {
  return a.parent == b.parent && a.name == b.name && a.child == b.child && a.evicted == b.evicted;
}
bool operator==(const MoveRecord& a, const MoveRecord& b) {
  return a.id == b.id && a.version == b.version && a.place == b.place;
}
bool operator==(const TouchRecord& a, const TouchRecord& b) { return a.atimes_ns == b.atimes_ns; }
bool operator==(const DamagedRecord& a, const DamagedRecord& b) { return a.ids == b.ids; }
bool operator==(const SuccessorsRecord& a, const SuccessorsRecord& b) {
  return a.id == b.id && a.predecessor == b.predecessor && a.successors == b.successors;
}
bool operator==(const SyncedRecord&, const SyncedRecord&) { return true; }
bool operator==(const StatementRecord& a, const StatementRecord& b) {
  return a.node == b.node && a.said == b.said && a.what == b.what;
}
bool operator==(const SeenRecord& a, const SeenRecord& b) { return a.node == b.node && a.position == b.position; }
bool operator==(const EndsRecord& a, const EndsRecord& b) { return a.end == b.end && a.left_out == b.left_out; }
bool operator==(const NextRecord& a, const NextRecord& b) { return a.seq == b.seq; }

bool same_batch(const Batch& a, const Batch& b) { return a.stamp == b.stamp && a.records == b.records; }

}  // namespace kvcachefs
