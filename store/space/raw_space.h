// How much of the volume raw files take. They are sparse and written in place, so only the file system knows what a write will
// allocate: the most that it can allocate is reserved before it, and the file is measured after it (invariant 8).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/types.h"
#include "store/space/space.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Thread-safe.
class RawSpace {
 public:
  // `blocks_lag`: see VolumeFeatures.
  RawSpace(Space& space, bool blocks_lag) : space_(space), blocks_lag_(blocks_lag) {}

  // Room reserved for one operation on a raw file. Destroy it after the operation ended: then the room counts as the file's.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept { swap(other); }
    Claim& operator=(Claim&& other) noexcept {
      Claim moved(std::move(other));
      swap(moved);
      return *this;
    }
    ~Claim() {
      if (owner_ != nullptr) owner_->end(*this);
    }

   private:
    friend class RawSpace;
    void swap(Claim& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(id_, other.id_);
      std::swap(file_, other.file_);
      std::swap(data_bytes_, other.data_bytes_);
      std::swap(map_bytes_, other.map_bytes_);
    }
    RawSpace* owner_ = nullptr;
    ExtentId id_;
    FilePtr file_;
    uint64_t data_bytes_ = 0, map_bytes_ = 0;
  };

  // For writing or allocating [offset, offset + length). nullopt: it does not fit. With plenty of room it does no I/O; else
  // it blocks: it measures files, and looks at this file's map, for ranges that have blocks need no more.
  std::optional<Claim> claim(ExtentId id, const FilePtr& file, uint64_t offset, uint64_t length);

  // Measures one file, after some of its space was given back or allocated. Blocks.
  void measure(ExtentId id, File& file);
  // Measures the files on which operations ended since they were measured. Blocks if there are any.
  void measure_changed();
  // Measures `ids` and all files known here. `info` looks a file up; a file that is not there is forgotten. Blocks.
  void measure_all(std::vector<ExtentId> ids, const std::function<Result<FileInfo>(ExtentId)>& info);

  // Call before and after a sync of everything: measuring after it includes the blocks that delayed allocation adds.
  void sync_begins();
  void synced();

  // Size changes are made one at a time, so that grow() never shortens a file. These two block.
  Status set_size(File& file, uint64_t size_bytes);
  // Instead of allocating: XFS allocates ahead of appends, up to gigabytes, but not ahead of writes below the end.
  Status grow(File& file, uint64_t size_bytes);

 private:
  struct Entry {
    FilePtr file;                // set while operations ended on it since it was measured
    uint64_t measured_bytes = 0;
    uint64_t ended_bytes = 0;    // data of all operations that ended
    uint64_t told_bytes = 0;     // part of ended_bytes that measured_bytes includes
    uint64_t map_bytes = 0;      // how much operations may have grown the file's map
    uint64_t synced_map_bytes = 0;
    uint64_t ended_at_sync = 0, map_at_sync = 0;
    uint64_t counted() const { return measured_bytes + (ended_bytes - told_bytes) + (map_bytes - synced_map_bytes); }
  };
  void end(Claim& claim);
  void note(ExtentId id, const FileInfo& info, uint64_t ended_before);
  uint64_t ended_of(ExtentId id);

  Space& space_;
  const bool blocks_lag_;
  Mutex<LockRank::kPartOfSpace> mutex_;  // a leaf, but for the mutex of Space
  std::unordered_map<ExtentId, Entry> entries_;
  LeafMutex size_mutex_;  // a leaf, held over changes of the size of one file
};

}  // namespace kvcachefs
