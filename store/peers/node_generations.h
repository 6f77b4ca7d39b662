// What tells apart the nodes that have one ordinal at different mounts: the generation of inodes whose ids carry it. The same for a node at each
// mount, whatever was lost of this machine's files. Ordinal 0 is the node of the mount itself, which another mount of that directory may not be.
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
  // What it was stays where the node has gone: the kernel may know its ids.
  void note(uint32_t ordinal, std::string_view node, std::span<const std::byte> volume_uuid) { of_[ordinal] = of_node(node, volume_uuid); }
  // Never 0. Ids of directories that are no member's are numbered anew by each mount, of which `mount` is the random number.
  uint32_t of(uint32_t ordinal, std::span<const std::byte> mount) const {
    const uint32_t noted = ordinal < of_.size() ? of_[ordinal].load(std::memory_order_relaxed) : 0;
    return noted != 0 ? noted : shortened(checksum(mount));
  }

 private:
  static uint32_t shortened(uint64_t hash) { return std::max<uint32_t>(static_cast<uint32_t>(hash), 1); }
  std::array<std::atomic<uint32_t>, Discovery::kLastOrdinal + 1> of_{};
};

}  // namespace kvcachefs
