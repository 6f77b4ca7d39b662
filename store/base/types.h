// Strong ids of the format. All are plain values: free to copy, ordered, hashable.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvcachefs {

// (node ordinal, epoch, number), packed so that it is also the FUSE nodeid and the inode number: never reused.
// The node ordinal is local to a mount (0 = this node); epoch and number are those in the journals of that node.
struct ObjectId {
  uint64_t value = 0;

  static constexpr int kNumberBits = 36;  // 68 G objects an epoch
  static constexpr int kEpochBits = 20;   // 1 M mounts
  static constexpr ObjectId make(uint32_t node_ordinal, uint32_t epoch, uint64_t number) {
    return ObjectId{(static_cast<uint64_t>(node_ordinal) << (kEpochBits + kNumberBits)) |
                    (static_cast<uint64_t>(epoch) << kNumberBits) | number};
  }
  constexpr uint32_t node_ordinal() const { return static_cast<uint32_t>(value >> (kEpochBits + kNumberBits)); }
  constexpr uint32_t epoch() const {
    return static_cast<uint32_t>((value >> kNumberBits) & ((uint64_t{1} << kEpochBits) - 1));
  }
  constexpr uint64_t number() const { return value & ((uint64_t{1} << kNumberBits) - 1); }
  constexpr bool valid() const { return value != 0; }
  constexpr bool is_foreign() const { return node_ordinal() != 0; }  // of a peer
  auto operator<=>(const ObjectId&) const = default;
};

inline constexpr ObjectId kRootId{1};  // FUSE_ROOT_ID; epoch 0 is never an epoch of a mount
inline constexpr uint32_t kMaxEpoch = (uint32_t{1} << ObjectId::kEpochBits) - 1;

// An extent file: nodes/<node>/<epoch>/extents/<seq/4096>/<seq>.<kind>
struct ExtentId {
  uint32_t epoch = 0;  // on a mount: with the node's ordinal in the bits above (0 = this node)
  uint64_t seq = 0;
  constexpr uint32_t node_ordinal() const { return epoch >> ObjectId::kEpochBits; }
  constexpr bool is_foreign() const { return node_ordinal() != 0; }
  constexpr ExtentId here(uint32_t ordinal) const { return valid() ? ExtentId{(ordinal << ObjectId::kEpochBits) | epoch, seq} : *this; }
  constexpr ExtentId there() const { return {epoch & kMaxEpoch, seq}; }  // as in its own node's journals
  constexpr bool valid() const { return epoch != 0; }
  auto operator<=>(const ExtentId&) const = default;
};

// Which part of the index a change of names or attributes makes larger.
enum class Growth : uint8_t {
  kNone,      // none: it gives back the room that it takes
  kFiles,     // that of files, which can be evicted
  kBodiless,  // that of names without a body, which cannot
  kLinks,     // the same, with targets that can be long
  kXattrs,    // that of extended attributes
};

enum class PlaceKind : uint8_t {
  kNone = 0,    // no bytes (empty file, directory, symlink)
  kInline = 1,  // the bytes are in the record itself
  kPacked = 2,  // [offset, offset+length) of a pack extent; offset is 4 KiB-aligned
  kSolo = 3,    // a whole solo extent, from offset 0, cut to size
  kRaw = 4,     // a random-access backing file, 1:1, not checksummed
};

// Where a body lies. `length` is the body's size in bytes (for kRaw the file's own size counts).
struct Place {
  PlaceKind kind = PlaceKind::kNone;
  ExtentId extent;
  uint64_t offset = 0;
  uint64_t length = 0;
  auto operator<=>(const Place&) const = default;
};

// Nanoseconds since the Unix epoch, ordered with a logical counter in the low bits by HybridClock.
struct Stamp {
  uint64_t value = 0;
  auto operator<=>(const Stamp&) const = default;
};

}  // namespace kvcachefs

template <>
struct std::hash<kvcachefs::ObjectId> {
  size_t operator()(kvcachefs::ObjectId id) const noexcept {
    uint64_t x = id.value * 0x9e3779b97f4a7c15ULL;
    return static_cast<size_t>(x ^ (x >> 32));
  }
};
template <>
struct std::hash<kvcachefs::ExtentId> {
  size_t operator()(kvcachefs::ExtentId id) const noexcept {
    uint64_t x = (id.seq ^ (static_cast<uint64_t>(id.epoch) << 44)) * 0x9e3779b97f4a7c15ULL;
    return static_cast<size_t>(x ^ (x >> 32));
  }
};
