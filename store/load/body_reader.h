// Reads bodies from the volume, unit by unit and verified, for the store's own threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "store/api/counters.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/extent/extents.h"
#include "store/memory/pool.h"
#include "store/object/snapshot.h"

namespace kvcachefs {

// Thread-safe; no lock, no state. Blocks on the volume.
class BodyReader {
 public:
  // Gives at least `bytes`, always.
  using Memory = std::function<Reservation(uint64_t bytes)>;

  BodyReader(Extents& extents, Counters& counters) : extents_(extents), counters_(counters) {}

  // Reads one unit that is not in RAM, from the spill file or the base, with zeros behind its bytes. If they do not match their checksum,
  // or the descriptor is dead, reads them once more through a fresh descriptor.
  Result<BlockPtr> fetch(const Snapshot& snapshot, size_t index, const Memory& memory) const;
  // After kNotFound: see Extents::was_removed().
  bool was_removed(const Place& place) const { return extents_.was_removed(place.extent, place.kind); }

  // kAbsent only if that is certain: a start leaves the body out, and its space is soon given back. kUnknown: the volume does not answer.
  enum class Wholeness : uint8_t { kWhole, kAbsent, kUnknown };
  // Reads all of a journaled body, and tells whether it is whole. Logs a body that is not.
  Wholeness wholeness(const ObjectRecord& object, const Memory& memory) const;

 private:
  Status read(const Snapshot& snapshot, size_t index, uint64_t length, Block& block) const;
  static Status copy_inline(const Body& base, size_t index, uint64_t length, Block& block);

  Extents& extents_;
  Counters& counters_;
};

}  // namespace kvcachefs
