// Keys and values of the index's tables. Keys are encoded so that LMDB's order is the order of ids and cookies: `id`
// is epoch (with the node ordinal above it) and number as ordered varints, big endian, whose leading one bits count the
// bytes that follow the first; fixed-width integers are big endian. Values are little endian like every format here,
// and omit what their key tells. Private to the index: other formats never refer to these bytes, and a
// change of them raises kIndexFormat, upon which an index of the old format is rebuilt.
//
//   names       parent (id) cookie (8) -> entries in name order: name with the child's type, child as a difference
//   objects     id                     -> names and subdirectories that count into nlink, object as in the journal
//   extents     epoch (4) seq (8)      -> usage
//   successors  id                     -> record as in the journal
//   meta        "identity", "state", "epoch" epoch (4), "leftovers" (void unless its position is that of "state"), "scrub",
//               "seen" node -> position, "statement" position (4, 8, 8) number in its batch (4) -> record as in the journal
// The environment adds a checksum to every value (lmdb_env.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"

namespace kvcachefs {

inline constexpr uint32_t kIndexFormat = 2;
inline constexpr uint32_t kTypeMask = 0170000;  // S_IFMT
inline constexpr int kTypeShift = 12;           // to the eight bits of it that a row stores

struct NameKey {
  ObjectId parent;
  uint64_t cookie = 0;
  auto operator<=>(const NameKey&) const = default;
};

// All names of one directory with one cookie, sorted by name: one entry unless cookies collide.
using NameRow = std::vector<NameEntry>;

struct ObjectRow {
  ObjectRecord object;          // without its nlink
  uint32_t names = 0;           // number of names that lead to it
  uint32_t subdirectories = 0;  // of a directory: counted by the types in its names

  bool is_directory() const;
  // Files: names. Directories: 2 + subdirectories, or 0 without a name (the root needs none).
  uint32_t nlink() const;
};

// Highest numbers ever used in an epoch; the rows that had them may be gone.
struct EpochHighs {
  uint64_t number = 0;
  uint64_t extent = 0;
  bool operator==(const EpochHighs&) const = default;
};

// The position at which a statement about another node's object was made, and its number within its batch.
struct StatementKey {
  JournalPosition said;
  uint32_t number = 0;
  auto operator<=>(const StatementKey&) const = default;
};

struct IndexState {
  JournalPosition position;
  Stamp stamp;
  IndexTotals totals;
};
struct CommittedState {
  IndexState state;
  bool loading = false;  // a bulk load was cut short: the tables are useless
};

struct CommittedLeftovers {
  JournalPosition position;
  Leftovers leftovers;
};

// Tests narrow cookies to make names collide; the default is all of the hash. Not thread-safe.
void set_cookie_mask_for_tests(uint64_t mask);

using KeyBytes = std::vector<std::byte>;
KeyBytes name_key(NameKey key);
KeyBytes object_key(ObjectId id);  // also of successors
KeyBytes extent_key(ExtentId id);
KeyBytes epoch_key(uint32_t epoch);
KeyBytes seen_key(std::string_view node);
KeyBytes statement_key(const StatementKey& key);
extern const ByteSpan kIdentityKey;
extern const ByteSpan kStateKey;
extern const ByteSpan kEpochKeyPrefix;
extern const ByteSpan kLeftoversKey;
extern const ByteSpan kScrubKey;
extern const ByteSpan kSeenKeyPrefix;
extern const ByteSpan kStatementKeyPrefix;

// For keys that a scan found; kCorrupt if they are malformed.
Result<NameKey> parse_name_key(ByteSpan key);
Result<ObjectId> parse_object_key(ByteSpan key);
Result<ExtentId> parse_extent_key(ByteSpan key);
Result<uint32_t> parse_epoch_key(ByteSpan key);
Result<StatementKey> parse_statement_key(ByteSpan key);

void encode_row(ObjectId parent, const NameRow& row, Bytes& out);
void encode_row(const ObjectRow& row, Bytes& out);
void encode_row(const ExtentUsage& row, Bytes& out);
void encode_row(const SuccessorsRecord& row, Bytes& out);
void encode_row(const EpochHighs& row, Bytes& out);
void encode_row(const CommittedState& row, Bytes& out);
void encode_row(const IndexIdentity& row, Bytes& out);  // written with kIndexFormat
void encode_row(const CommittedLeftovers& row, Bytes& out);
void encode_row(const ScrubMark& row, Bytes& out);
void encode_row(const JournalPosition& row, Bytes& out);
void encode_row(const StatementRecord& row, Bytes& out);

// kCorrupt if the bytes do not have the form that encode_row() makes, or contradict the key.
Result<NameRow> decode_name_row(NameKey key, ByteSpan value);
// `summary`: skips checksums and inline bytes.
Result<ObjectRow> decode_object_row(ObjectId id, ByteSpan value, bool summary = false);
Result<ExtentUsage> decode_extent_row(ByteSpan value);
Result<SuccessorsRecord> decode_successors_row(ObjectId id, ByteSpan value);
Result<EpochHighs> decode_epoch_row(ByteSpan value);
Result<CommittedState> decode_state_row(ByteSpan value);
Result<CommittedLeftovers> decode_leftovers_row(ByteSpan value);
Result<ScrubMark> decode_scrub_row(ByteSpan value);
Result<SeenRecord> decode_seen_row(ByteSpan key, ByteSpan value);
Result<StatementRecord> decode_statement_row(const StatementKey& key, ByteSpan value);

}  // namespace kvcachefs
