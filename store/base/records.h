// The persistent types shared by journal, checkpoint and index: the state of a node consists of them. Encodings are in
// store/journal/record_codec.h and specified in store/FORMAT.md.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/types.h"

namespace kvcachefs {

// A point in a node's journals. Positions are ordered by epoch, then file, then offset.
struct JournalPosition {
  uint32_t epoch = 0;
  uint64_t seq = 0;     // journal file
  uint64_t offset = 0;  // in that file
  auto operator<=>(const JournalPosition&) const = default;
};

struct Xattr {
  std::string name;  // with its namespace: "user.x"
  std::string value;
  bool operator==(const Xattr&) const = default;
};

// Everything but the body.
struct Attributes {
  uint32_t mode = 0;  // file type and permission bits, as st_mode
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint32_t rdev = 0;  // devices made by mknod
  int64_t atime_ns = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  int64_t btime_ns = 0;
  std::vector<Xattr> xattrs;  // sorted by name
  bool operator==(const Attributes&) const = default;
};

inline uint64_t bytes_of(const std::vector<Xattr>& xattrs) {
  uint64_t bytes = 0;
  for (const Xattr& xattr : xattrs) bytes += xattr.name.size() + xattr.value.size();
  return bytes;
}

struct Body {
  uint64_t size_bytes = 0;       // of the file; for kRaw as of the record (the backing file has the real size)
  uint32_t version = 0;          // rises with every seal of the object
  Place place;
  std::vector<uint64_t> checksums;  // XXH3-64 of every kUnitBytes of the body, the last one short; none for kRaw
  Bytes inline_bytes;            // kInline bodies, and the target of a symlink
  bool quarantined = false;      // a checksum mismatched: kept aside, no longer served
  bool operator==(const Body&) const = default;
};

// Compares sizes and checksums, not places. False for bodies without checksums.
inline bool has_same_bytes(const Body& one, const Body& other) {
  return !one.checksums.empty() && one.size_bytes == other.size_bytes && one.checksums == other.checksums;
}

// An object as the index keeps it.
struct ObjectRecord {
  ObjectId id;
  Attributes attributes;
  Body body;
  uint32_t nlink = 0;  // derived: names of a file; 2 + subdirectories of a directory. Not in the journal.
  bool operator==(const ObjectRecord&) const = default;
};

struct PutRecord {  // the object is now this (nlink is not part of it)
  ObjectRecord object;
};
struct AttributesRecord {  // the same object with other attributes, body unchanged
  ObjectId id;
  Attributes attributes;
};
struct NameRecord {  // parent/name -> child, replacing what was there
  ObjectId parent;
  std::string name;
  ObjectId child;
};
struct UnnameRecord {  // removes parent/name, if it still names `child`
  ObjectId parent;
  std::string name;
  ObjectId child;
  bool evicted = false;  // removed to free space, not by a client
};
struct MoveRecord {  // the body of this version lies elsewhere now (compaction)
  ObjectId id;
  uint32_t version = 0;
  Place place;
};
struct TouchRecord {  // recency of reads
  std::vector<std::pair<ObjectId, int64_t>> atimes_ns;
};
// These objects of another node were read, and their bytes were wrong. Nothing is told from it: their node reads them itself.
struct DamagedRecord {
  std::vector<ObjectId> ids;
};
struct SuccessorsRecord {  // replaces the row of `id`
  ObjectId id;
  ObjectId predecessor;
  std::vector<std::pair<ObjectId, uint32_t>> successors;  // with the number of times seen, most likely first
};
// Everything before this record in this epoch's journal, and the bodies it names, was synced to the medium.
struct SyncedRecord {};

// A statement of this node about an object that another node of the volume owns; ids are the owner's. Kept in the index and in
// checkpoints until the owner has answered it.
struct StatementRecord {
  std::string node;      // the owner; never empty
  JournalPosition said;  // in this node's journals, behind the batch with the statement; {0, 0, 0} inside that batch
  std::variant<UnnameRecord, AttributesRecord, TouchRecord, DamagedRecord> what;
};
// This node has answered all statements of `node` about its objects before `position` of that node's journals.
struct SeenRecord {
  std::string node;
  JournalPosition position;
};
// The first record of an epoch: how far the journals of the earlier epochs count. What lies behind that was appended by a
// daemon that had lost this node to another one.
struct EndsRecord {
  JournalPosition end;
  bool left_out = false;  // something before `end` was not believed: readers of the journals take the next checkpoint
};
// The last record of a journal file: the epoch goes on in file `seq`.
struct NextRecord {
  uint64_t seq = 0;
};

using Record = std::variant<PutRecord, AttributesRecord, NameRecord, UnnameRecord, MoveRecord, TouchRecord,
                            SuccessorsRecord, SyncedRecord, StatementRecord, SeenRecord, EndsRecord, NextRecord>;

// Whether the owner answers the statement, which may hide names until then. Neither is true of those that only tell of a read.
inline bool is_answered(const StatementRecord& said) {
  return !std::holds_alternative<TouchRecord>(said.what) && !std::holds_alternative<DamagedRecord>(said.what);
}
inline bool is_answered_statement(const Record& record) {
  const auto* const said = std::get_if<StatementRecord>(&record);
  return said != nullptr && is_answered(*said);
}

// Applied as a whole or not at all.
struct Batch {
  Stamp stamp;
  std::vector<Record> records;
};

// A place that no record names any more after a batch: may be reclaimed once that batch is synced (invariant 6) and other nodes have
// read it.
struct FreedPlace {
  ObjectId object;
  Place place;
  JournalPosition given_up_at = {};  // the end of that batch; zeros: no record ever named it
  bool operator==(const FreedPlace&) const = default;
};

}  // namespace kvcachefs
