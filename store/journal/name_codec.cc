// Names, with runs of hex digits packed.
#include "store/journal/codec_parts.h"

namespace kvcachefs {
namespace {

// Flag bytes. Unknown bits are refused: they may change the meaning of the following bytes.
constexpr uint8_t kNamePacked = 1, kNamePackedAtStart = 2, kNameKnown = 3;

// Packing shorter runs saves nothing, as their description takes two bytes.
constexpr size_t kMinHexRun = 8;

bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
uint8_t hex_value(char c) { return static_cast<uint8_t>(c <= '9' ? c - '0' : c - 'a' + 10); }

struct HexRun {
  size_t start = 0;
  size_t pairs = 0;
};

// The first of the longest runs, cut to whole pairs; pairs == 0 if packing it saves nothing.
HexRun find_hex_run(std::string_view name) {
  HexRun best;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && is_hex(name[end])) ++end;
    if (end - i >= kMinHexRun && (end - i) / 2 > best.pairs) best = {i, (end - i) / 2};
    i = end + 1;
  }
  return best;
}

}  // namespace

namespace codec {

std::string get_name(Cursor& in, uint8_t* nibble) {
  const uint8_t flags = in.flags(kNameKnown | 0xf0, "name");
  *nibble = static_cast<uint8_t>(flags >> kNibbleShift);
  const uint64_t length = in.varint();
  uint64_t start = 0, pairs = 0;
  if (flags & kNamePacked) {
    if (!(flags & kNamePackedAtStart)) start = in.varint();
    pairs = in.varint();
  } else if (flags & kNamePackedAtStart) {
    in.refuse("name claims a packed run and has none");
  }
  if (!in.ok()) return {};
  // Written to avoid overflow; bounds `length` by twice the input before anything is allocated.
  if (start > length || pairs > (length - start) / 2 || length - pairs > in.in().left()) {
    in.refuse(fmt::format("name of {} bytes with {} packed pairs from {} on in {} bytes", length, pairs, start,
                          in.in().left()));
    return {};
  }
  std::string name;
  name.reserve(static_cast<size_t>(length));
  name += as_text(in.in().raw(start));
  for (const std::byte pair : in.in().raw(pairs)) {
    name += "0123456789abcdef"[static_cast<uint8_t>(pair) >> 4];
    name += "0123456789abcdef"[static_cast<uint8_t>(pair) & 15];
  }
  name += as_text(in.in().raw(length - start - 2 * pairs));
  return name;
}

}  // namespace codec

using namespace codec;

void encode_name(std::string_view name, ByteWriter& out, uint8_t nibble) {
  const HexRun run = find_hex_run(name);
  out.u8(static_cast<uint8_t>((run.pairs ? kNamePacked : 0) | (run.pairs && run.start == 0 ? kNamePackedAtStart : 0) |
                              nibble << kNibbleShift));
  out.varint(name.size());
  if (run.pairs == 0) {
    out.raw(as_bytes(name));
    return;
  }
  if (run.start != 0) out.varint(run.start);
  out.varint(run.pairs);
  out.raw(as_bytes(name.substr(0, run.start)));
  for (size_t i = 0; i < run.pairs; ++i) {
    const size_t at = run.start + 2 * i;
    out.u8(static_cast<uint8_t>((hex_value(name[at]) << 4) | hex_value(name[at + 1])));
  }
  out.raw(as_bytes(name.substr(run.start + 2 * run.pairs)));
}

Result<std::string> decode_name(ByteReader& in, uint8_t* nibble) {
  Cursor cursor(in);
  uint8_t ignored = 0;
  std::string name = get_name(cursor, nibble != nullptr ? nibble : &ignored);
  KVC_TRY(cursor.end("name"));
  return name;
}

}  // namespace kvcachefs
