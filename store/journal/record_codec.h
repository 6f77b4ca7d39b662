// Bytes of records, batches and objects: pure functions, no I/O. The grammar is store/FORMAT.md.
//
// Encoding is total: every value of the shapes in store/base/records.h can be written. Decoding is for hostile bytes:
// it ends in a value or in a clean error (kCorrupt: the bytes break the grammar; kVersion: a record type, place kind or
// flag that this program does not know), never looks past the input and allocates in proportion to it. Decoding what
// was encoded gives the same value (nlink apart, which is derived and not encoded).
#pragma once

#include <string>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/records.h"
#include "store/base/result.h"

namespace kvcachefs {

// An object (without nlink) as it stands in a PUT record and in an index row. Self-delimiting.
void encode_object(const ObjectRecord& object, ByteWriter& out);

enum class ObjectParts : uint8_t {
  kAll,
  kSummary,  // no checksums and no inline bytes; the reader is left in front of them
};
Result<ObjectRecord> decode_object(ByteReader& in, ObjectParts parts = ObjectParts::kAll);

// A name, its longest run of lower-case hex digits packed in nibbles: 64 digits and ".bin" take 39 bytes. Exactly
// reversible for every byte string; the same name always has the same bytes.
void encode_name(std::string_view name, ByteWriter& out);
Result<std::string> decode_name(ByteReader& in);

void encode_successors(const SuccessorsRecord& record, ByteWriter& out);
Result<SuccessorsRecord> decode_successors(ByteReader& in);

// One record with its length in front.
void encode_record(const Record& record, ByteWriter& out);
Result<Record> decode_record(ByteReader& in);

// The payload of a journal frame.
void encode_batch(const Batch& batch, Bytes& out);
Result<Batch> decode_batch(ByteSpan payload);
// Whether a SyncedRecord is among the records of an encoded batch: walks lengths and types only.
Result<bool> batch_has_synced(ByteSpan payload);

}  // namespace kvcachefs
