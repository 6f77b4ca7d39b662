// Serves reads of clients, and finds data and holes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "store/api/counters.h"
#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/base/opener.h"
#include "store/cache/body_cache.h"
#include "store/cache/resumer.h"
#include "store/chain/access_tracker.h"
#include "store/load/loader.h"
#include "store/object/handle.h"
#include "store/object/object.h"
#include "store/readahead/read_ahead.h"
#include "store/requests/raw_turns.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Thread-safe. A request is tried under the lock of the object; if units are lacking it releases the lock, has them loaded, and is
// tried again. Callers hold no lock. A call blocks only to open an extent that is not in the cache.
class ReadRequests {
 public:
  struct Parts {
    Volume& volume;
    AccessTracker& accesses;
    BodyCache& cache;
    Loader& loader;
    ReadAhead& read_ahead;
    Opener& opener;
    Resumer& resumer;
    Counters& counters;
    const RequestClock& clock;
  };
  explicit ReadRequests(Parts parts) : parts_(parts), raw_turns_(parts.resumer) {}

  void read(Handle* handle, uint64_t offset, size_t length, Completion<ReadReply> done);
  // As in store.h.
  void seek(Handle* handle, SeekFor what, uint64_t offset, Completion<uint64_t> done);
  Result<uint64_t> seek_now(Handle* handle, SeekFor what, uint64_t offset);

  // Reads of raw files that wait for their turn.
  size_t raw_waiting() const { return raw_turns_.waiting(); }

 private:
  struct PieceByPiece;
  void read_next_piece(std::shared_ptr<PieceByPiece> read);
  void read_attempt(ObjectPtr object, uint64_t offset, size_t length, int attempts, std::shared_ptr<WantedUnits> pin,
                    Completion<ReadReply> done);
  // Begins to read the units that a request lacks, before units that are read ahead. See Loader::load().
  void load(const ObjectPtr& object, LoadRange range, std::shared_ptr<WantedUnits> pin, StatusCompletion done);
  void seek_in(ObjectPtr object, SeekFor what, uint64_t offset, int attempts, Completion<uint64_t> done);
  void read_raw_in_turn(ObjectPtr object, FilePtr raw, uint64_t offset, size_t length, Completion<ReadReply> done);
  void read_raw(ObjectPtr object, FilePtr raw, uint64_t offset, size_t length, Completion<ReadReply> done);

  const Parts parts_;
  RawTurns raw_turns_;
};

}  // namespace kvcachefs
