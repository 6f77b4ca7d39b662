// Memory files: RAM of big bodies that the kernel can read by itself. A body's units lie in one file of a private tmpfs, in
// huge pages, each at its own offset, so that FUSE can pass the file through once the body is whole.
//
// Life of a file: it is made with all its pages, ahead of need by the warmer or for a body, or taken from the spares. It grows by
// 2 MiB at a time if the body turns out to be larger. The one body that has it cuts its units as blocks. When the body and all
// blocks are gone it becomes a spare, whose next user finds its pages ready. While there is memory that was never touched, no
// body gets a file whose pages are not ready: it would wait for them, up to twenty times as long as for memory that was in use
// before if a host has to back the pages first. Before a file is passed through it is *frozen*: a client's mapping can outlive
// everything, so the file's bytes never change again, and it is never reused, grown, cut a second time or punched. Its memory
// counts until the tmpfs reports that it is free.
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
  // A pinned file cannot be given up even if all of it is clean: a client has the body open by passthrough.
  void set_pinned(bool pinned);

  // For the body that has the file; caller holds its lock. True: the unit has pages and no block, so make_block() succeeds.
  bool offers(size_t index) const { return has_pages(index) && !taken_[index].load(std::memory_order_relaxed); }
  // True: the unit has no pages, and MemoryFiles::grow() can give it some.
  bool lacks_pages(size_t index) const;
  // The block of unit `index`; null unless offered. `self` owns this file.
  static BlockPtr make_block(const std::shared_ptr<MemoryFile>& self, size_t index);

 private:
  friend class Block;
  friend class MemoryFiles;
  MemoryFile(MemoryPool& pool, int descriptor, std::byte* data, uint64_t capacity_bytes);
  bool has_pages(size_t index) const;
  void give(const std::byte* data, Block::Holds held);  // a block of the file is gone
  void count_blocks(Block::Holds before, Block::Holds after);  // one block has changed
  template <class Change>
  void count_clean(Change change);  // applies `change` to the counts under holds_mutex_, then updates clean_bytes_

  MemoryPool& pool_;
  const int descriptor_;
  std::byte* const data_;
  const uint64_t capacity_bytes_;
  std::vector<std::atomic<bool>> chunks_;  // true: the chunk has pages
  std::vector<std::atomic<bool>> taken_;   // true: the unit has a block
  std::atomic<size_t> block_count_{0};
  std::atomic<uint64_t> frozen_bytes_{0};  // size of the body it was frozen with; 0: it is not frozen
  std::atomic<bool> full_{false};          // does not grow any more
  Mutex<LockRank::kMemoryFile> mutex_;     // for growing and cutting; held while pages are cleared, by a thread that holds no other lock
  std::atomic<uint64_t> page_bytes_{0};    // (atomic) memory of its pages; changed under mutex_
  std::atomic<uint64_t> passed_page_bytes_{0};  // part of these that freeze() counted as passed through
  bool cut_ = false;                       // guarded by mutex_

  InnerMutex holds_mutex_;    // guards:
  size_t clean_blocks_ = 0;
  size_t other_blocks_ = 0;   // while there is one, no page can come back
  bool pinned_ = false;
  uint64_t clean_bytes_ = 0;  // counted in the pool's sum: all its pages or none
};
using MemoryFilePtr = std::shared_ptr<MemoryFile>;

// All memory files of a store. Their memory counts against the limit of the pool.
// Thread-safe. Lock order: a file's mutex, then shape_mutex_; spares_mutex_ is a leaf, taken by any thread that drops a file.
class MemoryFiles {
 public:
  explicit MemoryFiles(MemoryPool& pool) : pool_(pool) {}
  ~MemoryFiles();  // no file may be left
  MemoryFiles(const MemoryFiles&) = delete;
  MemoryFiles& operator=(const MemoryFiles&) = delete;

  // Makes the tmpfs. An error: this machine has no memory files. Called once, before anything else.
  Status start();
  bool started() const { return started_.load(std::memory_order_acquire); }
  // The largest body that may have a file.
  uint64_t most_bytes() const;

  // Announces a warmer: a thread that calls prepare_ahead() soon after wants_spares() returns true.
  void expect_warmer() { has_warmer_.store(true, std::memory_order_relaxed); }
  enum class Got : uint8_t { kYes, kNoMemory, kNo };  // kNo: there is no file, whatever memory is free; use the pool's blocks
  // None of these may be called with a lock held. `left_bytes` as for MemoryPool::try_reserve().
  // A file for a body of about `bytes`. With kNoMemory, `needed_bytes` is set to the memory that it needs.
  Got take(uint64_t bytes, MemoryFilePtr& file, uint64_t left_bytes = 0, uint64_t* needed_bytes = nullptr);
  Got grow(MemoryFile& file, size_t first_unit, size_t last_unit, uint64_t left_bytes = 0);
  // Closes frozen files that are not in use here any more, and counts memory that the kernel has given back. Returns those bytes.
  uint64_t settle();
  // True: less than half of the spares that prepare_ahead() would keep are ready, or none fits the size last asked for.
  bool wants_spares(uint64_t ahead_bytes);
  // Makes one more spare of the size last asked for, if the spares have less than `ahead_bytes`, or in place of the oldest if none
  // fits. Takes memory from free arenas if the pool has more than `arenas_ahead_bytes` of them: memory that was in use before is
  // cleared quickly. For the pool's warmer.
  bool prepare_ahead(uint64_t ahead_bytes, uint64_t arenas_ahead_bytes);
  // Frees spares with at least `bytes` of memory, if there are so many. True: it freed any.
  bool drop_spares(uint64_t bytes);

  // Freezes a file that will be passed through with a body of `bytes`. False if frozen files would hold more than half of the memory.
  // Caller holds the lock of the body, and has checked that every block of the file belongs to this body.
  bool freeze(MemoryFile& file, uint64_t bytes);
  // Gives a frozen file the size of its body. Call with no lock held.
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
  // Gives a new file its first pages. False: it did not get all of them.
  bool fill(MemoryFile& file, uint64_t bytes);
  // There is memory that was never touched, and a warmer that touches it ahead of need.
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
  uint64_t most_files_ = 0;                // limit of open_files_; fixed by start()
  std::atomic<uint64_t> open_files_{0};

  Mutex<LockRank::kMemoryShape> shape_mutex_;  // files lose pages only under it, so that the usage of the tmpfs can be compared with held_bytes_
  std::atomic<uint64_t> held_bytes_{0};       // pages of files that are open here, spares included
  std::atomic<uint64_t> passed_bytes_{0};     // pages of files that were passed through, the lingering included
  std::atomic<uint64_t> lingering_bytes_{0};  // pages of files that are closed here and that clients have mapped

  InnerMutex spares_mutex_;
  std::deque<std::unique_ptr<MemoryFile>> spares_;   // guarded by spares_mutex_: oldest first
  std::deque<std::unique_ptr<MemoryFile>> retired_;  // guarded by spares_mutex_: frozen or empty, to be closed by settle()
  std::atomic<uint64_t> spare_bytes_{0};
};

}  // namespace kvcachefs
