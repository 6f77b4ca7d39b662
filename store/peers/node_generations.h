// The inode generation for ids of each ordinal: tells apart nodes that have the same ordinal at different mounts. A node has the same generation at each
// mount, even if this machine's files were lost. Ordinal 0 is the node of the mount itself, which may be another node at another mount of that directory.
// Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/checksum.h"
#include "store/peers/discovery.h"

namespace kvcachefs {

class NodeGenerations {
 public:
  // Never 0.
  static uint32_t of_node(std::string_view node, std::span<const std::byte> volume_uuid) {
    return shortened(checksum(as_bytes(node), checksum(volume_uuid)));
  }
  // Stays when the node is gone: the kernel may know its ids.
  void note(uint32_t ordinal, std::string_view node, std::span<const std::byte> volume_uuid) { of_[ordinal] = of_node(node, volume_uuid); }
  // Never 0. Directory ids that are no member's are numbered anew by each mount; `mount` is the mount's random number.
  uint32_t of(uint32_t ordinal, std::span<const std::byte> mount) const {
    const uint32_t noted = ordinal < of_.size() ? of_[ordinal].load(std::memory_order_relaxed) : 0;
    return noted != 0 ? noted : shortened(checksum(mount));
  }

 private:
  static uint32_t shortened(uint64_t hash) { return std::max<uint32_t>(static_cast<uint32_t>(hash), 1); }
  std::array<std::atomic<uint32_t>, Discovery::kLastOrdinal + 1> of_{};
};

}  // namespace kvcachefs
