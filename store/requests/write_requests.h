// Changes of bytes by clients: writes, sizes and holes of bodies, and of raw files (1:1 with a backing file, without checksums).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "store/api/counters.h"
#include "store/api/live_options.h"
#include "store/api/request_types.h"
#include "store/base/opener.h"
#include "store/cache/body_cache.h"
#include "store/cache/file_policy.h"
#include "store/cache/waiting_bytes.h"
#include "store/extent/extents.h"
#include "store/load/loader.h"
#include "store/object/body_changes.h"
#include "store/object/handle.h"
#include "store/object/object.h"
#include "store/object/plans.h"
#include "store/readahead/read_ahead.h"
#include "store/requests/in_place_changes.h"
#include "store/requests/raw_turns.h"
#include "store/space/discards.h"
#include "store/space/raw_space.h"
#include "store/space/space_waiters.h"
#include "store/volume/volume.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Thread-safe. A request is tried under the lock of the object; if it lacks memory, bytes of the volume, or space, it releases every
// lock, gets that, and is tried again: the body may have become raw by then, or ceased to be raw. Callers hold no lock. Calls may block
// on raw files, and on bytes that are put aside (WaitingBytes).
class WriteRequests {
 public:
  struct Parts {
    Volume& volume;
    Extents& extents;
    Space& space;
    RawSpace& raw_space;
    SpaceWaiters& space_waiters;
    Discards& discards;
    const BodyChanges& changes;
    DirtyQueue& dirty;
    BodyCache& cache;
    const MemoryFilePolicy& files;
    WaitingBytes& waiting_bytes;
    Loader& loader;
    ReadAhead& read_ahead;
    InPlaceChanges& in_place;
    const VolumeRefusals& refusals;
    Opener& opener;
    Resumer& resumer;
    Counters& counters;
    const LiveOptions& options;
    std::function<Status(const Object&)> check_may_change;  // an error: this node may not change the object's bytes (it is a peer's)
  };
  explicit WriteRequests(Parts parts) : parts_(std::move(parts)), raw_turns_(parts_.resumer) {}

  // `bytes` is copied before the call returns, also when the completion comes later.
  void write(Handle* handle, uint64_t offset, std::span<const std::byte> bytes, Completion<size_t> done, WriteOf of = WriteOf::kCall);
  void allocate(Handle* handle, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done);
  // Caller has noted the change, by its handle or by path, with InPlaceChanges.
  void resize(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done);
  // The kind of a truncation by this handle, or by path (null).
  static Resize kind_of_truncation(Handle* handle);

  Error no_space(const Object& object, uint64_t bytes) const;
  // Writes of raw files that wait for their turn.
  size_t raw_waiting() const { return raw_turns_.waiting(); }

 private:
  // --- writes of bodies (write_requests.cc) ---
  enum class Progress : uint8_t { kDone, kNeedsMemory, kNeedsLoad, kNeedsSpace, kIsRaw };  // kIsRaw: nothing was done
  struct WriteAttempt;
  struct PendingWrite;
  // The bytes of a write, or `zeros` zeros (these do not extend the file).
  struct WriteSource {
    uint64_t offset = 0;
    std::span<const std::byte> bytes;
    uint64_t zeros = 0;
    uint64_t length() const { return bytes.empty() ? zeros : bytes.size(); }
  };
  Progress try_write(const ObjectPtr& object, Handle* handle, WriteSource source, WriteAttempt& attempt);
  Progress push_write(PendingWrite& pending, bool takes_memory);
  void continue_write(std::shared_ptr<PendingWrite> pending);
  void proceed(const std::shared_ptr<PendingWrite>& pending, Progress progress);
  void continue_in_raw(const std::shared_ptr<PendingWrite>& pending);
  bool retry_write(const std::shared_ptr<PendingWrite>& pending, MemoryWaiters::Try& attempt);
  bool begin_write_loads(const std::shared_ptr<PendingWrite>& pending, MemoryWaiters::Try& attempt);
  void wait_to_write(const std::shared_ptr<PendingWrite>& pending, uint64_t lacks_bytes);
  bool fetch_bytes_of(const std::shared_ptr<PendingWrite>& pending);
  void fail_write(const std::shared_ptr<PendingWrite>& pending, Error error);

  // --- sizes and holes (write_requests_size.cc) ---
  void resize_body(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done);
  void load_and_resize(ObjectPtr object, uint64_t size_bytes, Resize how, StatusCompletion done);
  void resize_with(ObjectPtr object, uint64_t size_bytes, Resize how, Reservation memory, StatusCompletion done);
  Status resize_now(const ObjectPtr& object, uint64_t size_bytes, Resize how, Reservation& memory);
  Status take_room_for(const ObjectPtr& object, uint64_t offset, uint64_t end);
  void zero_range(ObjectPtr object, uint64_t offset, uint64_t length, StatusCompletion done);
  void allocate_in(ObjectPtr object, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done);

  // --- raw files (write_requests_raw.cc) ---
  Status make_raw(const ObjectPtr& object, uint64_t size_bytes);
  void resize_raw(ObjectPtr object, FilePtr raw, uint64_t size_bytes, Resize how, StatusCompletion done);
  static bool raw_extent(Object& object, const FilePtr& raw, ExtentId& extent);
  void allocate_raw(ObjectPtr object, FilePtr raw, uint64_t size, AllocateMode mode, uint64_t offset, uint64_t length,
                    StatusCompletion done);
  void note_raw_write(Object& object, const FilePtr& raw, uint64_t offset, uint64_t length, const Status& status);
  void write_raw(Handle* handle, FilePtr raw, uint64_t offset, std::span<const std::byte> bytes, std::unique_ptr<WaitingBytes::Kept> kept,
                 RawTurns::Turn turn, Completion<size_t> done);
  void write_claimed_raw(Handle* handle, FilePtr raw, uint64_t offset, uint64_t length, std::unique_ptr<WaitingBytes::Kept> kept,
                         RawSpace::Claim claim, Completion<size_t> done);
  void write_raw_bytes(Handle* handle, FilePtr raw, uint64_t offset, std::vector<std::byte> bytes, RawSpace::Claim claim,
                       RawTurns::Turn turn, Completion<size_t> done);
  void write_raw_in_turn(Handle* handle, FilePtr raw, uint64_t offset, std::span<const std::byte> bytes, Completion<size_t> done);

  const Parts parts_;
  RawTurns raw_turns_;
};

}  // namespace kvcachefs
