// Little-endian reading and writing of the on-volume formats. Readers are bounded: they never read past the end but
// turn "bad" instead, so a decoder checks only once, at the end of a record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvcachefs {

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

inline ByteSpan as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}
  void u8(uint8_t value) { out_.push_back(static_cast<std::byte>(value)); }
  void u16(uint16_t value) { fixed(value); }
  void u32(uint32_t value) { fixed(value); }
  void u64(uint64_t value) { fixed(value); }
  // LEB128: 7 bits a byte, low first.
  void varint(uint64_t value) {
    while (value >= 0x80) {
      u8(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    u8(static_cast<uint8_t>(value));
  }
  // Zigzag, for values that may be negative.
  void svarint(int64_t value) {
    varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void raw(ByteSpan bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  void text(std::string_view value) {  // varint length, then the bytes
    varint(value.size());
    raw(as_bytes(value));
  }
  size_t size() const { return out_.size(); }

 private:
  template <class T>
  void fixed(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) u8(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  Bytes& out_;
};

class ByteReader {
 public:
  explicit ByteReader(ByteSpan in) : in_(in) {}
  uint8_t u8() {
    if (position_ >= in_.size()) return static_cast<uint8_t>(bad());
    return static_cast<uint8_t>(in_[position_++]);
  }
  uint16_t u16() { return fixed<uint16_t>(); }
  uint32_t u32() { return fixed<uint32_t>(); }
  uint64_t u64() { return fixed<uint64_t>(); }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = u8();
      if (!ok_) return 0;
      if (shift == 63 && byte > 1) return bad();
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return value;
    }
    return bad();
  }
  int64_t svarint() {
    const uint64_t value = varint();
    return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  ByteSpan raw(uint64_t length) {
    if (length > in_.size() - position_) {
      bad();
      return {};
    }
    auto piece = in_.subspan(position_, static_cast<size_t>(length));
    position_ += static_cast<size_t>(length);
    return piece;
  }
  std::string_view text() { return as_text(raw(varint())); }
  bool ok() const { return ok_; }
  bool at_end() const { return position_ == in_.size(); }
  size_t position() const { return position_; }
  size_t left() const { return in_.size() - position_; }

 private:
  uint64_t bad() {
    ok_ = false;
    position_ = in_.size();
    return 0;
  }
  template <class T>
  T fixed() {
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(u8()) << (8 * i);
    return static_cast<T>(value);
  }
  ByteSpan in_;
  size_t position_ = 0;
  bool ok_ = true;
};

}  // namespace kvcachefs
