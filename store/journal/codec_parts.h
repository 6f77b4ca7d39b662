// Parts of records as bytes, for record_codec.cc, object_codec.cc and name_codec.cc, which share out the functions of record_codec.h.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "store/journal/record_codec.h"

namespace kvcachefs::codec {

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
inline int64_t difference(int64_t value, int64_t base) {
  return static_cast<int64_t>(static_cast<uint64_t>(value) - static_cast<uint64_t>(base));
}
inline int64_t sum(int64_t base, int64_t delta) {
  return static_cast<int64_t>(static_cast<uint64_t>(base) + static_cast<uint64_t>(delta));
}

inline void put_id_delta(ObjectId id, ObjectId base, ByteWriter& out) {
  out.svarint(static_cast<int64_t>(id.value - base.value));
}
inline ObjectId get_id_delta(Cursor& in, ObjectId base) { return ObjectId{base.value + static_cast<uint64_t>(in.svarint())}; }

// The id of a record, as a difference from the previous record's in the frame.
inline void put_id(ObjectId id, RecordContext& context, ByteWriter& out) {
  put_id_delta(id, context.id, out);
  context.id = id;
}
inline ObjectId get_id(Cursor& in, RecordContext& context) { return context.id = get_id_delta(in, context.id); }

// --- object_codec.cc ---
void put_attributes(const Attributes& attributes, RecordContext& context, ByteWriter& out);
Attributes get_attributes(Cursor& in, RecordContext& context);
// `home`: the object's epoch, by default also its extent's; `size_bytes`: its size, by default the length.
void put_place(const Place& place, uint32_t home, uint64_t size_bytes, RecordContext& context, ByteWriter& out);
Place get_place(Cursor& in, uint32_t home, uint64_t size_bytes, RecordContext& context);
void put_object(const ObjectRecord& object, RecordContext& context, ByteWriter& out);
ObjectRecord get_object(Cursor& in, ObjectParts parts, RecordContext& context);

// --- name_codec.cc ---
// The format around a name owns the high nibble of its flag byte.
inline constexpr int kNibbleShift = 4;
std::string get_name(Cursor& in, uint8_t* nibble);

}  // namespace kvcachefs::codec
