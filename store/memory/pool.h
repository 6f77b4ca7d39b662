// The one RAM pool: blocks of 4 KiB to 256 KiB, cut from 2 MiB huge-page arenas by a buddy scheme. Huge pages double the
// rate of O_DIRECT I/O; arenas stay mapped up to the limit, because clearing fresh pages costs more than copying into them.
//
// Invariant 10 (store/README.md): the bytes handed out never exceed the limit. Who needs memory reserves first,
// without holding any lock, so that a full pool can never deadlock a lock holder; blocks are then cut from the
// reservation and cannot fail.
//
// The owner of a block says what it holds. What is clean can be given up at any time; the rest is held: it comes back when
// it reached the volume, or arrived from there, or was answered.
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

// Bytes of the pool set aside for blocks to be made. What is not used goes back on destruction. One owner, one thread.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();
  uint64_t bytes() const { return bytes_; }
  // A block of at least `bytes`, of the next power of two; the caller reserved that much (block_bytes()).
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

  // `sealing_bytes` of the limit are for reserve_to_seal(); of what is left to others, where somebody leaves them more.
  explicit MemoryPool(uint64_t limit_bytes, uint64_t sealing_bytes = 0);
  ~MemoryPool();  // every block is gone by then
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // The size a block for `bytes` takes: the power of two from 4 KiB to 256 KiB.
  static uint32_t block_bytes(size_t bytes);

  // Sets `bytes` aside, or nothing: an empty Reservation (bytes() == 0 for bytes > 0) when the limit would be passed, or less
  // than `left_bytes` be left for others to take or to have clean, or the machine gives no more. Never blocks.
  Reservation try_reserve(uint64_t bytes, uint64_t left_bytes = 0);
  // Whether giving up what is clean can be of use to who was refused. A guess: others take and give meanwhile.
  bool could_reserve(uint64_t bytes, uint64_t left_bytes) const {
    return held_bytes() + bytes + std::max(left_bytes, sealing_bytes_) <= limit_bytes();
  }
  // Never refused: for what gives memory back. All callers together have `sealing_bytes` at most.
  Reservation reserve_to_seal(uint64_t bytes);
  // Maps one more arena with its pages there if fewer than `ahead_bytes` beyond what is in use are, within the limit; false
  // if there are enough, or no more to be had. For a thread of low priority: who then needs memory finds it ready.
  bool prepare_ahead(uint64_t ahead_bytes);

  // --- for the memory files, whose memory counts against the same limit ---
  // Counts `bytes` more as used, without arenas for them; refused as try_reserve(). Never blocks.
  bool try_charge(uint64_t bytes, uint64_t left_bytes = 0);
  void uncharge_files(uint64_t bytes);
  // Memory that is there besides the arenas, in use or not: what is mapped stays within the limit, all together.
  void add_outside(int64_t bytes) { outside_bytes_.fetch_add(static_cast<uint64_t>(bytes)); }
  // Unmaps free arenas and has spares given up until `bytes` more may be mapped. No lock held.
  bool make_room(uint64_t bytes);
  // Unmaps one free arena, if there are more than `ahead_bytes` of them.
  bool drop_free_arena(uint64_t ahead_bytes = 0);
  // Gives the kernel the pages of free blocks back that lie scattered in arenas in use, until what is mapped is within the limit
  // (or there are no more of them). The blocks stay free: a caller that takes one finds fresh pages there.
  void release_beyond_limit();
  // Gives up to so many bytes outside back that nobody uses; false: there are none. Set once before use.
  void set_give_spares(std::function<bool(uint64_t)> give) { give_spares_ = std::move(give); }

  // Called, from whatever thread gives memory back or says that it is clean, after a refused try_reserve. Must not block
  // and must not call the pool.
  void set_available_callback(std::function<void()> callback);

  // What is clean is given up by the request that needs memory; beyond this, what is dirty is to be written soon.
  bool under_pressure() const { return held_bytes() * 4 > limit_bytes() * 3; }
  uint64_t limit_bytes() const { return limit_bytes_.load(std::memory_order_relaxed); }
  void set_limit_bytes(uint64_t bytes) { limit_bytes_.store(bytes, std::memory_order_relaxed); }
  // What can be given up became so much more, or less. Where it is more, tell_available() follows, under no leaf.
  void add_clean(int64_t bytes);
  void tell_available();

  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  uint64_t dirty_bytes() const { return dirty_bytes_.load(std::memory_order_relaxed); }  // of these
  // Of these, what is not clean. Not exact while blocks come and go.
  uint64_t held_bytes() const {
    const uint64_t used = used_bytes_.load();
    return used - std::min(used, clean_bytes_.load());
  }
  // What is there: pages of arenas, and memory files.
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
  // How much more is there than may be, of which free blocks may be a part. A pool has one arena at least.
  uint64_t bytes_beyond_limit() const {
    const uint64_t mapped = mapped_bytes(), most = align_up(limit_bytes(), kArenaBytes);
    return mapped - std::min(mapped, most);
  }
  uint64_t release_free(uint64_t bytes);  // takes release_mutex_, mutex_; returns how much
  void uncharge(uint64_t bytes);
  bool try_use(uint64_t bytes, uint64_t left_bytes);
  enum class Need : uint8_t { kCanWait, kNow };
  bool prepare();                         // takes mutex_
  bool add_arena(Need need);              // takes mutex_
  bool map_region(size_t most_bytes, size_t slack_bytes);
  std::unique_ptr<Arena> map_arena(Need need);  // with its pages there

  const uint64_t sealing_bytes_;
  std::atomic<uint64_t> limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
  std::atomic<uint64_t> clean_bytes_{0}, dirty_bytes_{0};  // of used_bytes_, what blocks hold
  std::atomic<uint64_t> file_used_bytes_{0};  // of used_bytes_, what is not in arenas
  std::atomic<uint64_t> arena_bytes_{0};     // on the lists, their pages there or not
  std::atomic<uint64_t> resident_bytes_{0};  // of arenas and of what is about to become one: the pages that are there
  std::atomic<size_t> scattered_arenas_{0};
  std::atomic<uint64_t> outside_bytes_{0};
  std::atomic<bool> refused_{false};
  std::function<void()> available_;  // set once before use
  std::function<bool(uint64_t)> give_spares_;  // set once before use

  InnerMutex region_mutex_;
  std::byte* region_next_ = nullptr;  // region_mutex_: address space not made an arena yet
  std::byte* region_end_ = nullptr;   // region_mutex_

  Mutex<LockRank::kPages> release_mutex_;  // before mutex_: one thread at a time gives pages back, the others that want room wait for it

  InnerMutex mutex_;  // guards the free lists and arenas
  // Lies in the block, or in a table of the arena where the block's first page is not there.
  struct FreeNode {
    FreeNode* next;
    FreeNode* previous;
    std::byte* data;
  };
  FreeNode* free_[kOrders] = {};      // some or all of their pages are there
  FreeNode* released_[kOrders] = {};  // none
  std::vector<std::unique_ptr<Arena>> arenas_;  // sorted by base

  Arena* arena_of(const std::byte* data);
  static FreeNode* node_of(Arena& arena, size_t slot);
  void push_free(Arena& arena, size_t slot, int order);
  void drop_free(Arena& arena, size_t slot, int order);
  std::unique_ptr<FreeNode[]> scatter(std::byte* base);
  std::byte* give_locked(Arena& arena, size_t slot, int order);  // not null: to be unmapped, once mutex_ is given up
  void forget(Arena& arena);
  struct Scattered;
  bool pick_to_release(Scattered& picked);
};

}  // namespace kvcachefs
