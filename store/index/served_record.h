// Builds the records that readers of the index get from rows of objects.
#pragma once

#include <cstdint>

#include "store/base/units.h"
#include "store/index/rows.h"

namespace kvcachefs {

inline ObjectRecord as_record(const ObjectRow& row) {
  ObjectRecord record = row.object;
  record.nlink = row.nlink();
  return record;
}

// Whether the record holds what a reader of the body needs. Even a row with a good checksum, in a file that was closed
// cleanly, may be one that no daemon wrote.
inline bool is_servable(const ObjectRecord& object) {
  const Body& body = object.body;
  constexpr uint64_t kMostBytes = uint64_t{1} << 62;
  if (body.size_bytes > kMostBytes || body.place.offset > kMostBytes || body.place.length > kMostBytes) return false;
  if (body.place.kind == PlaceKind::kInline) return body.inline_bytes.size() >= body.size_bytes;
  const bool checked = body.place.kind == PlaceKind::kPacked || body.place.kind == PlaceKind::kSolo;
  return !checked || body.quarantined || body.checksums.size() >= div_ceil(body.size_bytes, kUnitBytes);
}

inline ObjectRecord as_summary(const ObjectRow& row) {
  ObjectRecord record;
  record.id = row.object.id;
  record.attributes = row.object.attributes;
  record.body.size_bytes = row.object.body.size_bytes;
  record.body.version = row.object.body.version;
  record.body.place = row.object.body.place;
  record.body.quarantined = row.object.body.quarantined;
  record.nlink = row.nlink();
  return record;
}

}  // namespace kvcachefs
