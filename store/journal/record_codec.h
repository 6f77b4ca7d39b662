// Encodes and decodes records, batches and objects: pure functions, no I/O. The grammar is store/FORMAT.md.
//
// Encoding is total: every value of the types in store/base/records.h can be written (a statement names a node). Decoding takes hostile bytes:
// it returns a value or a clean error (kCorrupt: the bytes break the grammar; kVersion: a record type, place kind or
// flag that this program does not know), never reads past the input and allocates in proportion to it; records and attributes can be
// two bytes long and take far more in RAM, so their numbers have the bounds below. Decoding encoded bytes
// gives the same value (nlink apart, which is derived and not encoded).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/records.h"
#include "store/base/result.h"

namespace kvcachefs {

// Limits on the records of a batch, including `about` records, and on the extended attributes of all records of a frame. More are neither
// written nor accepted. Writers make a quarter of that at most: batches end at 8 MiB, and a record counts as 32 bytes or more.
inline constexpr uint64_t kMaxBatchRecords = 1u << 20, kMaxFrameXattrs = 1u << 20;

// Records are encoded relative to the ones before them in the same frame or, at its beginning, to these values. Encoder and decoder each
// keep one context, and every record changes it.
struct RecordContext {
  struct Owner {
    uint32_t mode = 0, uid = 0, gid = 0;
    bool operator==(const Owner&) const = default;
  };
  ObjectId id;      // of the last put, attributes, move or successors record, or the last child of a name
  ObjectId parent;  // of the last name
  Owner directory{0040755, 0, 0};
  Owner other{0100644, 0, 0};
  int64_t btime_ns = 0;  // initially the stamp of the batch
  uint64_t size_bytes = 0;
  ExtentId extent;  // the last place's; next_offset is the next block behind it
  uint64_t next_offset = 0;
  std::string about;     // the node whose objects the records are about; empty: this one
  JournalPosition said;  // position of the statement, in a checkpoint
  uint64_t xattrs = 0;   // extended attributes read so far
};

// An object (without nlink) as in a PUT record and in an index row. Self-delimiting. For an index row the context
// holds the id of its key.
void encode_object(const ObjectRecord& object, ByteWriter& out, RecordContext context = {});

enum class ObjectParts : uint8_t {
  kAll,
  kSummary,  // no checksums and no inline bytes; the reader stops in front of them
};
Result<ObjectRecord> decode_object(ByteReader& in, ObjectParts parts = ObjectParts::kAll, RecordContext context = {});

// A name; its longest run of lower-case hex digits is packed two to a byte: 64 digits and ".bin" take 39 bytes. Exactly
// reversible for every byte string; one name always has the same bytes. `nibble`: four bits of the first byte
// that the surrounding format may use.
void encode_name(std::string_view name, ByteWriter& out, uint8_t nibble = 0);
Result<std::string> decode_name(ByteReader& in, uint8_t* nibble = nullptr);

void encode_successors(const SuccessorsRecord& record, ByteWriter& out, RecordContext context = {});
Result<SuccessorsRecord> decode_successors(ByteReader& in, RecordContext context = {});

// One record, preceded by its length; if it is about another node's objects than the last one, an `about` record that says so
// comes first. Returns the number of records written.
size_t encode_record(const Record& record, RecordContext& context, ByteWriter& out);
// nullopt: an `about` record, which only changes the context, or a hint that this program does not know.
Result<std::optional<Record>> decode_record(ByteReader& in, RecordContext& context);

// A batch is the payload of a journal frame.
void encode_batch(const Batch& batch, Bytes& out);
Result<Batch> decode_batch(ByteSpan payload);
// Whether an encoded batch contains a SyncedRecord: reads lengths and types only.
Result<bool> batch_has_synced(ByteSpan payload);
// The EndsRecord at the beginning of an encoded batch, if there is one.
Result<std::optional<EndsRecord>> batch_ends(ByteSpan payload);

}  // namespace kvcachefs
