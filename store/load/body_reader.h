// Bodies on the volume, read unit by unit and verified, for the store's own threads.
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
  // Gives at least so many bytes, always.
  using Memory = std::function<Reservation(uint64_t bytes)>;

  BodyReader(Extents& extents, Counters& counters) : extents_(extents), counters_(counters) {}

  // Bytes of one unit that is not in RAM, from the spill file or the base, zeros behind them. What does not match, or comes by a
  // descriptor that is dead, is read once more through a fresh one.
  Result<BlockPtr> fetch(const Snapshot& snapshot, size_t index, const Memory& memory) const;

  // kAbsent: for sure. What is left out by a start is given back soon, for good; a volume that does not answer says nothing of that.
  enum class Wholeness : uint8_t { kWhole, kAbsent, kUnknown };
  // Reads all of a journaled body. Logs what is not whole.
  Wholeness wholeness(const ObjectRecord& object, const Memory& memory) const;

 private:
  Status read(const Snapshot& snapshot, size_t index, uint64_t length, Block& block) const;
  static Status copy_inline(const Body& base, size_t index, uint64_t length, Block& block);

  Extents& extents_;
  Counters& counters_;
};

}  // namespace kvcachefs
