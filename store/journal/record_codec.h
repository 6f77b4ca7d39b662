// Bytes of records, batches and objects: pure functions, no I/O. The grammar is store/FORMAT.md.
//
// Encoding is total: every value of the shapes in store/base/records.h can be written (a statement names a node). Decoding is for hostile bytes:
// it ends in a value or in a clean error (kCorrupt: the bytes break the grammar; kVersion: a record type, place kind or
// flag that this program does not know), never looks past the input and allocates in proportion to it, of records and of attributes, which
// take far more in RAM than the two bytes that they can be, no more than the bounds below. Decoding what
// was encoded gives the same value (nlink apart, which is derived and not encoded).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/records.h"
#include "store/base/result.h"

namespace kvcachefs {

// Of a batch, with those that say whose objects the next ones speak of; and extended attributes of all records of a frame. More are neither
// written nor believed. Writers make a quarter of that at most: batches end at 8 MiB, of which a record counts as 32 bytes or more.
inline constexpr uint64_t kMaxBatchRecords = 1u << 20, kMaxFrameXattrs = 1u << 20;

// What records are told from: the ones before them in the same frame or, at its beginning, these values. Both sides
// keep one, and every record changes it.
struct RecordContext {
  struct Owner {
    uint32_t mode = 0, uid = 0, gid = 0;
    bool operator==(const Owner&) const = default;
  };
  ObjectId id;      // of the last put, attributes, move or successors record, or the last child of a name
  ObjectId parent;  // of the last name
  Owner directory{0040755, 0, 0};
  Owner other{0100644, 0, 0};
  int64_t btime_ns = 0;  // in a batch at first its stamp
  uint64_t size_bytes = 0;
  ExtentId extent;  // of the last place in one, with the next block behind it
  uint64_t next_offset = 0;
  std::string about;     // the node whose objects the records speak of; empty: this one's
  JournalPosition said;  // with it, in a checkpoint
  uint64_t xattrs = 0;   // so many were read
};

// An object (without nlink) as it stands in a PUT record and in an index row. Self-delimiting. An index row is told
// from its key: a context with that id.
void encode_object(const ObjectRecord& object, ByteWriter& out, RecordContext context = {});

enum class ObjectParts : uint8_t {
  kAll,
  kSummary,  // no checksums and no inline bytes; the reader is left in front of them
};
Result<ObjectRecord> decode_object(ByteReader& in, ObjectParts parts = ObjectParts::kAll, RecordContext context = {});

// A name, its longest run of lower-case hex digits packed in nibbles: 64 digits and ".bin" take 39 bytes. Exactly
// reversible for every byte string; the same name always has the same bytes. Its first byte has four bits to spare for
// what holds the name: `nibble`.
void encode_name(std::string_view name, ByteWriter& out, uint8_t nibble = 0);
Result<std::string> decode_name(ByteReader& in, uint8_t* nibble = nullptr);

void encode_successors(const SuccessorsRecord& record, ByteWriter& out, RecordContext context = {});
Result<SuccessorsRecord> decode_successors(ByteReader& in, RecordContext context = {});

// One record with its length in front; before it, where it speaks of another node's objects than the last one, the record that
// says so. How many that were.
size_t encode_record(const Record& record, RecordContext& context, ByteWriter& out);
// nullopt: one that says nothing by itself (whose objects the next ones speak of), or a hint that this program does not know.
Result<std::optional<Record>> decode_record(ByteReader& in, RecordContext& context);

// The payload of a journal frame.
void encode_batch(const Batch& batch, Bytes& out);
Result<Batch> decode_batch(ByteSpan payload);
// Whether a SyncedRecord is among the records of an encoded batch: walks lengths and types only.
Result<bool> batch_has_synced(ByteSpan payload);
// The EndsRecord that an encoded batch begins with, if it does.
Result<std::optional<EndsRecord>> batch_ends(ByteSpan payload);

}  // namespace kvcachefs
