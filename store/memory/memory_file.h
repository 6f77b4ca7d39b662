// Memory files: RAM of big bodies that the kernel can read by itself. A body's units lie in one file of a tmpfs that nobody
// else sees, in huge pages, each at its own offset, so that FUSE can pass the file through once the body is whole.
//
// Life of a file: made with all its pages, ahead by the warmer or for a body, or taken from the spares; grown 2 MiB at a time
// where the body turns out to be larger; its units are cut as blocks by the one body that has it; when body and blocks let go
// of it, it becomes a spare, whose next user finds its pages ready. While memory is left that nobody has touched, no body gets
// a file whose pages are not ready: it would wait for them, where a host has to back them first up to twenty times as long as
// for memory that was in use before. One that was passed
// through is *frozen* before: a mapping of a client can outlive everything, so its bytes never change again, it is never
// reused, grown, cut a second time or punched, and its memory counts until the tmpfs says that it is free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/memory/pool.h"

namespace kvcachefs {

class MemoryFiles;

class MemoryFile {
 public:
  static constexpr uint64_t kChunkBytes = 2 * kMiB;  // a huge page: the grain of growth

  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  uint64_t capacity_bytes() const { return capacity_bytes_; }
  const std::byte* unit_data(size_t index) const { return data_ + index * kUnitBytes; }
  bool frozen() const { return frozen_bytes_.load(std::memory_order_relaxed) > 0; }
  uint64_t frozen_bytes() const { return frozen_bytes_.load(std::memory_order_relaxed); }
  size_t block_count() const { return block_count_.load(std::memory_order_relaxed); }
  // While it is pinned it cannot be given up, though all of it may be clean: somebody has the body open by passthrough.
  void set_pinned(bool pinned);

  // For the body that has the file, under its lock. The unit has pages and no block: make_block() succeeds.
  bool offers(size_t index) const { return has_pages(index) && !taken_[index].load(std::memory_order_relaxed); }
  // It would, once MemoryFiles::grow() was called for it.
  bool lacks_pages(size_t index) const;
  // The block of unit `index`; null unless offered. `self` owns this file.
  static BlockPtr make_block(const std::shared_ptr<MemoryFile>& self, size_t index);

 private:
  friend class Block;
  friend class MemoryFiles;
  MemoryFile(MemoryPool& pool, int descriptor, std::byte* data, uint64_t capacity_bytes);
  bool has_pages(size_t index) const;
  void give(const std::byte* data, Block::Holds held);  // a block of it is gone
  void count_blocks(Block::Holds before, Block::Holds after);  // of one block
  template <class Change>
  void count_clean(Change change);  // of what that depends on, under holds_mutex_

  MemoryPool& pool_;
  const int descriptor_;
  std::byte* const data_;
  const uint64_t capacity_bytes_;
  std::vector<std::atomic<bool>> chunks_;  // that have pages
  std::vector<std::atomic<bool>> taken_;   // units that have a block
  std::atomic<size_t> block_count_{0};
  std::atomic<uint64_t> frozen_bytes_{0};  // the body it was frozen with; 0: it was not
  std::atomic<bool> full_{false};          // does not grow any more
  Mutex<LockRank::kMemoryFile> mutex_;     // growing and cutting; held while pages are cleared, by who holds no other lock
  std::atomic<uint64_t> page_bytes_{0};    // (atomic) what its pages take; changed under mutex_
  std::atomic<uint64_t> passed_page_bytes_{0};  // of these, what freeze() counted as passed through
  bool cut_ = false;                       // mutex_

  InnerMutex holds_mutex_;    // guards:
  size_t clean_blocks_ = 0;
  size_t other_blocks_ = 0;   // as long as there is one, no page comes back
  bool pinned_ = false;
  uint64_t clean_bytes_ = 0;  // counted in the pool's sum: all its pages or none
};
using MemoryFilePtr = std::shared_ptr<MemoryFile>;

// All memory files of a store. Their memory counts against the limit of the pool.
// Thread-safe. Lock order: a file's mutex, then shape_mutex_; spares_mutex_ is a leaf, taken by whoever lets go of a file.
class MemoryFiles {
 public:
  explicit MemoryFiles(MemoryPool& pool) : pool_(pool) {}
  ~MemoryFiles();  // every file is gone by then
  MemoryFiles(const MemoryFiles&) = delete;
  MemoryFiles& operator=(const MemoryFiles&) = delete;

  // Makes the tmpfs. An error: there are no memory files on this machine. Called once, before anything else.
  Status start();
  bool started() const { return started_.load(std::memory_order_acquire); }
  // The largest body that may have a file.
  uint64_t most_bytes() const;

  // From now on somebody calls prepare_ahead(), soon after wants_spares() says so.
  void expect_warmer() { has_warmer_.store(true, std::memory_order_relaxed); }
  enum class Got : uint8_t { kYes, kNoMemory, kNo };  // kNo: not to be had, with memory or without; use the pool's blocks
  // None of these may be called with a lock held. `left_bytes` as for MemoryPool::try_reserve().
  // For a body of about `bytes`. `needed_bytes` is told what kNoMemory lacks.
  Got take(uint64_t bytes, MemoryFilePtr& file, uint64_t left_bytes = 0, uint64_t* needed_bytes = nullptr);
  Got grow(MemoryFile& file, size_t first_unit, size_t last_unit, uint64_t left_bytes = 0);
  // Ends the files that were passed through and let go of, and counts what the kernel has given back. The bytes that came.
  uint64_t settle();
  // Fewer spares lie ready than prepare_ahead() would have, less than half, or none that fits.
  bool wants_spares(uint64_t ahead_bytes);
  // A spare file more, of the size last asked for, if there are less than `ahead_bytes` of them, or instead of the oldest if none
  // of them fits. From free arenas if the pool has more than `arenas_ahead_bytes` of them: what was in use before is cleared
  // soon. For the pool's warmer.
  bool prepare_ahead(uint64_t ahead_bytes, uint64_t arenas_ahead_bytes);
  // Takes up to `bytes` of memory from the spares: whether any came.
  bool drop_spares(uint64_t bytes);

  // The file will be passed through with a body of `bytes`. False when such files hold half of the memory. The caller holds
  // the lock of the body, and has seen that every block of the file is one of this body.
  bool freeze(MemoryFile& file, uint64_t bytes);
  // Gives a frozen file the size of its body. No lock held.
  Status cut(MemoryFile& file);

  uint64_t file_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  uint64_t spare_bytes() const { return spare_bytes_.load(std::memory_order_relaxed); }
  uint64_t passed_bytes() const { return passed_bytes_.load(std::memory_order_relaxed); }
  uint64_t lingering_bytes() const { return lingering_bytes_.load(std::memory_order_relaxed); }

 private:
  MemoryFilePtr wrap(MemoryFile* file) {
    return {file, [this](MemoryFile* done) { retire(done); }};
  }
  void retire(MemoryFile* file);
  std::unique_ptr<MemoryFile> make(uint64_t capacity_bytes);
  // Gives a new file its first pages. False: not all of them were to be had.
  bool fill(MemoryFile& file, uint64_t bytes);
  // Memory is left that nobody has touched, and somebody touches it ahead.
  bool is_warming_up(uint64_t bytes) const {
    return has_warmer_.load(std::memory_order_relaxed) && pool_.mapped_bytes() + bytes <= pool_.limit_bytes();
  }
  enum class Pages : uint8_t { kAny, kReady };
  static bool fits(const MemoryFile& file, uint64_t bytes, Pages pages);
  bool has_spare(uint64_t bytes);
  std::unique_ptr<MemoryFile> take_spare(uint64_t bytes, Pages pages);
  bool add_pages(MemoryFile& file, size_t chunk);
  void destroy(std::unique_ptr<MemoryFile> file);

  MemoryPool& pool_;
  int mount_ = -1;  // of the tmpfs; fixed by start()
  std::atomic<bool> started_{false};
  std::atomic<bool> has_warmer_{false};
  std::atomic<uint64_t> wanted_bytes_{0};  // the capacity last asked for
  uint64_t most_files_ = 0;                // that may be open at once; fixed by start()
  std::atomic<uint64_t> open_files_{0};

  Mutex<LockRank::kMemoryShape> shape_mutex_;  // files lose pages only under it: so that what the tmpfs says can be compared with held_bytes_
  std::atomic<uint64_t> held_bytes_{0};       // pages of the files that are open here, spares included
  std::atomic<uint64_t> passed_bytes_{0};     // of files that were passed through, the lingering included
  std::atomic<uint64_t> lingering_bytes_{0};  // of files that are closed here: some client has them mapped

  InnerMutex spares_mutex_;
  std::deque<std::unique_ptr<MemoryFile>> spares_;   // spares_mutex_: oldest first
  std::deque<std::unique_ptr<MemoryFile>> retired_;  // spares_mutex_: frozen or empty, to be ended by settle()
  std::atomic<uint64_t> spare_bytes_{0};
};

}  // namespace kvcachefs
