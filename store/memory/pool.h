// The one RAM pool: blocks of 4 KiB to 256 KiB, cut from 2 MiB huge-page arenas by a buddy scheme. Huge pages double the
// rate of O_DIRECT I/O; arenas stay mapped up to the limit, because clearing fresh pages costs more than copying into them.
//
// Invariant 10 (store/README.md): the bytes handed out never exceed the limit. A caller reserves memory first,
// without holding any lock, so that a full pool can never deadlock a lock holder. It then cuts blocks from the
// reservation, which cannot fail.
//
// The owner of a block tells what the block holds. Clean blocks can be given up at any time; all others are *held*: they come
// back after their bytes reached the volume, or arrived from there, or the request was answered.
#pragma once

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/memory/block.h"

namespace kvcachefs {

class MemoryPool;

// Bytes of the pool that are set aside for blocks to be made. Unused bytes go back on destruction. One owner, one thread.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();
  uint64_t bytes() const { return bytes_; }
  // Makes a block of at least `bytes`, rounded up to a power of two; the caller has reserved that much (block_bytes()).
  BlockPtr make_block(size_t bytes);

 private:
  friend class MemoryPool;
  Reservation(MemoryPool* pool, uint64_t bytes) : pool_(pool), bytes_(bytes) {}
  MemoryPool* pool_ = nullptr;
  uint64_t bytes_ = 0;
};

class MemoryPool {
 public:
  static constexpr uint64_t kArenaBytes = 2 * kMiB;
  static constexpr uint64_t kMaxBlockBytes = kUnitBytes;

  // `sealing_bytes` of the limit are for reserve_to_seal(). They are part of `left_bytes` where a caller leaves more than that.
  explicit MemoryPool(uint64_t limit_bytes, uint64_t sealing_bytes = 0);
  ~MemoryPool();  // no block may be left
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // The size of a block for `bytes`: a power of two from 4 KiB to 256 KiB.
  static uint32_t block_bytes(size_t bytes);

  // Sets `bytes` aside, or nothing. The Reservation is empty (bytes() == 0 for bytes > 0) if the limit would be exceeded, or less
  // than `left_bytes` would be left free or clean for others, or the machine gives no more. Never blocks.
  Reservation try_reserve(uint64_t bytes, uint64_t left_bytes = 0);
  // Whether giving up clean blocks can help a refused caller. A guess: other threads take and give memory meanwhile.
  bool could_reserve(uint64_t bytes, uint64_t left_bytes) const {
    return held_bytes() + bytes + std::max(left_bytes, sealing_bytes_) <= limit_bytes();
  }
  // Never refused: for work that gives memory back. The caller sees to it that all such work together has `sealing_bytes` at most.
  Reservation reserve_to_seal(uint64_t bytes);
  // Maps one more arena and touches its pages, within the limit, if less than `ahead_bytes` beyond the memory in use are mapped.
  // False: there is enough, or no more to get. For a thread of low priority: callers that need memory later find it ready.
  bool prepare_ahead(uint64_t ahead_bytes);

  // --- for the memory files, whose memory counts against the same limit ---
  // Counts `bytes` more as used, without arenas for them. Refused as try_reserve() is. Never blocks.
  bool try_charge(uint64_t bytes, uint64_t left_bytes = 0);
  void uncharge_files(uint64_t bytes);
  // Memory mapped outside the arenas, in use or not, has changed by `bytes`: all mapped memory together stays within the limit.
  void add_outside(int64_t bytes) { outside_bytes_.fetch_add(static_cast<uint64_t>(bytes)); }
  // Unmaps free arenas and has spares given up until `bytes` more may be mapped. Call with no lock held.
  bool make_room(uint64_t bytes);
  // Unmaps one free arena, if there are more than `ahead_bytes` of them.
  bool drop_free_arena(uint64_t ahead_bytes = 0);
  // Gives pages of free blocks, scattered in arenas in use, back to the kernel, until the mapped memory is within the limit (or no
  // such blocks are left). The blocks stay free: a caller that takes one finds fresh pages there.
  void release_beyond_limit();
  // `give` gives back up to that many unused bytes outside the arenas; false: there are none. Set once before use.
  void set_give_spares(std::function<bool(uint64_t)> give) { give_spares_ = std::move(give); }

  // After a refused try_reserve, the next thread that gives memory back or reports it as clean runs `callback`. It must not block
  // and must not call the pool.
  void set_available_callback(std::function<void()> callback);

  // True: dirty bodies are to be written soon. (Clean blocks are given up by the request that needs memory.)
  bool under_pressure() const { return held_bytes() * 4 > limit_bytes() * 3; }
  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }
  void set_limit_bytes(uint64_t bytes) { limit_bytes_.store(bytes, std::memory_order_relaxed); }
  // The clean memory has changed by `bytes`. If it grew, the caller then calls tell_available(), holding no leaf lock.
  void add_clean(int64_t bytes);
  void tell_available();

  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t dirty_bytes() const { return dirty_bytes_.load(std::memory_order_relaxed); }  // part of used_bytes()
  // The part of used_bytes() that is not clean. Not exact while blocks come and go.
  uint64_t held_bytes() const {
    const uint64_t used = used_bytes_.load();
    return used - std::min(used, clean_bytes_.load());
  }
  // Memory that is mapped: pages of arenas, and memory files.
  uint64_t mapped_bytes() const { return resident_bytes_.load(std::memory_order_relaxed) + outside_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Block;
  friend class Reservation;
  static constexpr int kOrders = 10;  // 4 KiB << 9 = 2 MiB: a whole arena
  static constexpr size_t kSlots = kArenaBytes / kBlockBytes;
  using Slots = std::bitset<kSlots>;
  struct Arena;

  std::byte* take(int order);             // takes mutex_
  void give(std::byte* data, int order);  // takes mutex_
  // Mapped bytes beyond the limit; free blocks may be part of them. A pool has one arena at least.
  uint64_t bytes_beyond_limit() const {
    const uint64_t mapped = mapped_bytes(), most = align_up(limit_bytes(), kArenaBytes);
    return mapped - std::min(mapped, most);
  }
  uint64_t release_free(uint64_t bytes);  // takes release_mutex_, mutex_; returns the bytes given back
  void uncharge(uint64_t bytes);
  bool try_use(uint64_t bytes, uint64_t left_bytes);
  enum class Need : uint8_t { kCanWait, kNow };
  bool prepare();                         // takes mutex_
  bool add_arena(Need need);              // takes mutex_
  bool map_region(size_t most_bytes, size_t slack_bytes);
  std::unique_ptr<Arena> map_arena(Need need);  // with its pages touched

  const uint64_t sealing_bytes_;
  std::atomic<uint64_t> limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<uint64_t> clean_bytes_{0}, dirty_bytes_{0};  // parts of used_bytes_, by what blocks hold
  std::atomic<uint64_t> file_used_bytes_{0};  // part of used_bytes_ that is not in arenas
  std::atomic<uint64_t> arena_bytes_{0};     // arenas on the lists, with or without their pages
  std::atomic<uint64_t> resident_bytes_{0};  // resident pages of arenas, including arenas that are being mapped
  std::atomic<size_t> scattered_arenas_{0};
  std::atomic<uint64_t> outside_bytes_{0};
  std::atomic<bool> refused_{false};
  std::function<void()> available_;  // set once before use
  std::function<bool(uint64_t)> give_spares_;  // set once before use

  InnerMutex region_mutex_;
  std::byte* region_next_ = nullptr;  // guarded by region_mutex_: address space that is no arena yet
  std::byte* region_end_ = nullptr;   // guarded by region_mutex_

  Mutex<LockRank::kPages> release_mutex_;  // before mutex_: one thread at a time gives pages back; others that want room wait for it

  InnerMutex mutex_;  // guards the free lists and arenas
  // Lies in the block itself, or in a table of the arena if the first page of the block was given back.
  struct FreeNode {
    FreeNode* next;
    FreeNode* previous;
    std::byte* data;
  };
  FreeNode* free_[kOrders] = {};      // free blocks with some or all of their pages
  FreeNode* released_[kOrders] = {};  // free blocks without pages
  std::vector<std::unique_ptr<Arena>> arenas_;  // sorted by base

  Arena* arena_of(const std::byte* data);
  static FreeNode* node_of(Arena& arena, size_t slot);
  void push_free(Arena& arena, size_t slot, int order);
  void drop_free(Arena& arena, size_t slot, int order);
  std::unique_ptr<FreeNode[]> scatter(std::byte* base);
  std::byte* give_locked(Arena& arena, size_t slot, int order);  // not null: an arena that the caller unmaps after releasing mutex_
  void forget(Arena& arena);
  struct Scattered;
  bool pick_to_release(Scattered& picked);
};

}  // namespace kvcachefs
