#include "store/memory/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

#include "store/memory/memory_file.h"

namespace kvcachefs {

namespace {
constexpr size_t kSmallest = kBlockBytes;
// Each is a mapping or two of its own. A process usually may have 65,530 mappings; a quarter is for these arenas.
constexpr size_t kMostScatteredArenas = 8'192;

int order_of(size_t bytes) {
  return static_cast<int>(std::bit_width(std::bit_ceil(std::max(bytes, kSmallest)) / kSmallest)) - 1;
}
}  // namespace

// Keeps for each 4 KiB slot which order begins there and whether it is free. The state of a buddy is read from here, so that
// free blocks can be merged without searching.
struct MemoryPool::Arena {
  static constexpr uint8_t kNoBlock = 0xff;
  static constexpr uint8_t kFree = 0x80;
  std::byte* base = nullptr;
  size_t used_slots = 0;
  uint8_t state[kSlots];
  // 12 KiB, made when pages of the arena first go back to the kernel. From then on the arena has small pages.
  std::unique_ptr<FreeNode[]> nodes;
  Slots released;  // slots of free blocks whose pages were given back

  size_t slot_of(const std::byte* data) const { return static_cast<size_t>(data - base) / kSmallest; }
  static Slots slots(size_t slot, int order) { return (~Slots() >> (kSlots - (size_t{1} << order))) << slot; }
  // How many pages of a block were given back.
  size_t released_of(size_t slot, int order) const { return nodes ? (released & slots(slot, order)).count() : 0; }
  uint64_t resident_bytes() const { return nodes ? kArenaBytes - released.count() * kSmallest : kArenaBytes; }
};

// A free block that was taken off the lists because its pages are about to be given back.
struct MemoryPool::Scattered {
  Arena* arena = nullptr;
  size_t slot = 0;
  int order = 0;
};

// First subtracts what the block held: a caller that finds its memory given back must not be refused because of that sum.
Block::~Block() {
  if (holds_ == Holds::kDirty) pool_.dirty_bytes_.fetch_sub(dirty_bytes_);
  if (file_) {
    file_->give(data_, holds_);
    return;
  }
  if (holds_ == Holds::kClean) pool_.add_clean(-int64_t{capacity_bytes()});
  pool_.give(data_, order_of(capacity_bytes()));
  pool_.uncharge(capacity_bytes());
}

void Block::set_holds(Holds holds) {
  if (holds == holds_) return;
  const Holds before = std::exchange(holds_, holds);
  pool_.dirty_bytes_.fetch_sub(std::exchange(dirty_bytes_, holds == Holds::kDirty ? capacity_bytes() : 0));
  pool_.dirty_bytes_.fetch_add(dirty_bytes_);
  if (file_) return file_->count_blocks(before, holds);
  if (before == Holds::kClean) pool_.add_clean(-int64_t{capacity_bytes()});
  if (holds != Holds::kClean) return;
  pool_.add_clean(capacity_bytes());
  pool_.tell_available();
}

bool Block::frozen() const { return file_ && file_->frozen(); }

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    if (pool_ != nullptr && bytes_ > 0) pool_->uncharge(bytes_);
    pool_ = std::exchange(other.pool_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Reservation::~Reservation() {
  if (pool_ != nullptr && bytes_ > 0) pool_->uncharge(bytes_);
}

BlockPtr Reservation::make_block(size_t bytes) {
  const uint32_t size = MemoryPool::block_bytes(bytes);
  if (pool_ == nullptr || bytes_ < size) std::abort();  // the caller's sum was wrong: a bug
  bytes_ -= size;                                       // the charge passes to the block
  return std::make_shared<Block>(*pool_, pool_->take(order_of(size)), size);
}

MemoryPool::MemoryPool(uint64_t limit_bytes, uint64_t sealing_bytes)
    : sealing_bytes_(sealing_bytes), limit_bytes_(limit_bytes) {}

MemoryPool::~MemoryPool() {
  for (auto& arena : arenas_) munmap(arena->base, kArenaBytes);
  if (region_next_ != region_end_) munmap(region_next_, static_cast<size_t>(region_end_ - region_next_));
}

uint32_t MemoryPool::block_bytes(size_t bytes) {
  return static_cast<uint32_t>(std::min<size_t>(std::bit_ceil(std::max(bytes, kSmallest)), kMaxBlockBytes));
}

bool MemoryPool::try_use(uint64_t bytes, uint64_t left_bytes) {
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  for (int attempt = 0; attempt < 2; ++attempt) {
    do {
      if (used + bytes + sealing_bytes_ > limit_bytes() || (left_bytes > 0 && !could_reserve(bytes, left_bytes))) break;
      if (used_bytes_.compare_exchange_weak(used, used + bytes)) return true;
    } while (true);
    // Announces the refusal, then tries once more: otherwise memory given back in between would wake no caller.
    refused_.store(true);
    used = used_bytes_.load();
  }
  return false;
}

Reservation MemoryPool::try_reserve(uint64_t bytes, uint64_t left_bytes) {
  if (!try_use(bytes, left_bytes)) return {};
  if (prepare()) return Reservation(this, bytes);
  // Without tell_available(): a waiting caller would try again at once, and fail. It is told when others give memory back.
  used_bytes_.fetch_sub(bytes);
  refused_.store(true);
  return {};
}

bool MemoryPool::try_charge(uint64_t bytes, uint64_t left_bytes) {
  file_used_bytes_.fetch_add(bytes);  // first, so that no arena is mapped for these bytes meanwhile
  if (try_use(bytes, left_bytes)) return true;
  file_used_bytes_.fetch_sub(bytes);
  return false;
}

void MemoryPool::uncharge_files(uint64_t bytes) {
  used_bytes_.fetch_sub(bytes);
  file_used_bytes_.fetch_sub(bytes);  // second, so that no thread maps arenas meanwhile for bytes that were in files
  tell_available();
}

bool MemoryPool::make_room(uint64_t bytes) {
  while (mapped_bytes() + bytes > limit_bytes())
    if (!drop_free_arena() && !(give_spares_ && give_spares_(bytes))) return false;
  return true;
}

Reservation MemoryPool::reserve_to_seal(uint64_t bytes) {
  used_bytes_.fetch_add(bytes);
  return Reservation(this, bytes);
}

void MemoryPool::set_available_callback(std::function<void()> callback) { available_ = std::move(callback); }

void MemoryPool::uncharge(uint64_t bytes) {
  used_bytes_.fetch_sub(bytes);
  tell_available();
}

void MemoryPool::add_clean(int64_t bytes) { clean_bytes_.fetch_add(static_cast<uint64_t>(bytes)); }

void MemoryPool::tell_available() {
  if (refused_.load() && refused_.exchange(false) && available_) available_();
}

// Maps enough arenas for the memory in use. It is done here, where no lock is held: the kernel clears fresh pages at first touch,
// 2 MiB at a time, and that must not happen under a mutex. Mapped arenas stay until memory files want their memory. False: the
// machine does not give that much.
bool MemoryPool::prepare() {
  while (true) {
    const uint64_t files = file_used_bytes_.load(), used = used_bytes_.load();
    if (arena_bytes_.load() + files >= used) {
      // Pages that were given back to the kernel come back now: unused memory outside the arenas must make room for them.
      const uint64_t outside = outside_bytes_.load();
      if (give_spares_ && resident_bytes_.load() + files < used && used + outside > limit_bytes() + files && outside > files)
        give_spares_(std::min(outside - files, used + outside - limit_bytes() - files));
      return true;
    }
    if (mapped_bytes() + kArenaBytes > limit_bytes() && give_spares_) give_spares_(kArenaBytes);
    if (!add_arena(Need::kCanWait) && !(give_spares_ && give_spares_(kArenaBytes))) return false;
  }
}

bool MemoryPool::add_arena(Need need) {
  auto arena = map_arena(need);
  if (!arena) return false;
  std::byte* base = arena->base;
  std::lock_guard lock(mutex_);
  auto where = std::upper_bound(arenas_.begin(), arenas_.end(), base,
                                [](const std::byte* b, const auto& other) { return b < other->base; });
  arena->state[0] = static_cast<uint8_t>(Arena::kFree | (kOrders - 1));
  arena_bytes_.fetch_add(kArenaBytes, std::memory_order_relaxed);
  push_free(**arenas_.insert(where, std::move(arena)), 0, kOrders - 1);
  return true;
}

bool MemoryPool::drop_free_arena(uint64_t ahead_bytes) {
  std::byte* base = nullptr;
  {
    std::lock_guard lock(mutex_);
    // Keeps the arenas that reservations need.
    const uint64_t needed = used_bytes_.load() + kArenaBytes + ahead_bytes;
    if (free_[kOrders - 1] == nullptr || resident_bytes_.load() + file_used_bytes_.load() < needed) return false;
    base = free_[kOrders - 1]->data;
    Arena* arena = arena_of(base);
    drop_free(*arena, 0, kOrders - 1);
    forget(*arena);
  }
  munmap(base, kArenaBytes);
  return true;
}

bool MemoryPool::prepare_ahead(uint64_t ahead_bytes) {
  const uint64_t wanted = std::min(limit_bytes(), used_bytes() + ahead_bytes);
  if (mapped_bytes() + kArenaBytes > wanted) return false;
  return add_arena(Need::kCanWait);
}

// Caller holds region_mutex_. Maps `most_bytes`, or less if the machine does not give that much (RLIMIT_AS, vm.overcommit_memory=2),
// and nothing if `slack_bytes` would not be left then.
bool MemoryPool::map_region(size_t most_bytes, size_t slack_bytes) {
  for (size_t bytes = most_bytes; bytes >= kArenaBytes; bytes /= 2) {
    const size_t more = slack_bytes + kArenaBytes;  // to align it
    void* raw = mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) continue;
    auto* start = static_cast<std::byte*>(raw);
    region_next_ = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<uintptr_t>(start), kArenaBytes));
    region_end_ = region_next_ + bytes;
    if (region_next_ > start) munmap(start, static_cast<size_t>(region_next_ - start));
    std::byte* end = start + bytes + more;
    if (region_end_ < end) munmap(region_end_, static_cast<size_t>(end - region_end_));
    madvise(region_next_, bytes, MADV_HUGEPAGE);
    return true;
  }
  return false;
}

// Gives the arena small pages, so that they can be given back one by one. A huge page would come back as soon as a part of it is
// touched, or the kernel finds the time. Null: no more mappings, or no memory for the table.
std::unique_ptr<MemoryPool::FreeNode[]> MemoryPool::scatter(std::byte* base) {
  std::unique_ptr<FreeNode[]> nodes;
  if (scattered_arenas_.fetch_add(1) < kMostScatteredArenas && madvise(base, kArenaBytes, MADV_NOHUGEPAGE) == 0)
    nodes.reset(new (std::nothrow) FreeNode[kSlots]);
  if (!nodes) scattered_arenas_.fetch_sub(1);
  return nodes;
}

// Takes address space a gigabyte at a time and touches the pages by plain stores: to map and populate piece by piece would hold
// the process's memory map lock against page faults of all threads. Null: there is no address space. A caller that
// can wait leaves some for those that cannot, and for the rest of the daemon.
std::unique_ptr<MemoryPool::Arena> MemoryPool::map_arena(Need need) {
  constexpr size_t kSlackBytes = 64 * kMiB;
  std::byte* base = nullptr;
  {
    std::lock_guard lock(region_mutex_);
    if (region_next_ == region_end_ && !map_region(kGiB, kSlackBytes) &&
        (need == Need::kCanWait || !map_region(kArenaBytes, 0)))
      return nullptr;
    base = region_next_;
    region_next_ += kArenaBytes;
  }
  auto arena = std::make_unique<Arena>();
  arena->base = base;
  resident_bytes_.fetch_add(kArenaBytes);
  release_beyond_limit();
  if (bytes_beyond_limit() > 0) arena->nodes = scatter(base);
  if (arena->nodes) {  // its pages come one by one, when blocks are taken
    arena->released.set();
    resident_bytes_.fetch_sub(kArenaBytes);
  } else {
    for (size_t at = 0; at < kArenaBytes; at += kSmallest) *reinterpret_cast<volatile char*>(base + at) = 0;
  }
  std::fill(std::begin(arena->state), std::end(arena->state), Arena::kNoBlock);
  return arena;
}

MemoryPool::Arena* MemoryPool::arena_of(const std::byte* data) {
  auto after = std::upper_bound(arenas_.begin(), arenas_.end(), data,
                                [](const std::byte* b, const auto& arena) { return b < arena->base; });
  return std::prev(after)->get();
}

// Caller holds mutex_, has taken all blocks of the arena off the free lists, and unmaps it afterwards.
void MemoryPool::forget(Arena& arena) {
  resident_bytes_.fetch_sub(arena.resident_bytes());
  arena_bytes_.fetch_sub(kArenaBytes);
  if (arena.nodes) --scattered_arenas_;
  std::erase_if(arenas_, [&](const auto& each) { return each.get() == &arena; });
}

MemoryPool::FreeNode* MemoryPool::node_of(Arena& arena, size_t slot) {
  if (arena.nodes && arena.released[slot]) return &arena.nodes[slot];
  return reinterpret_cast<FreeNode*>(arena.base + slot * kSmallest);
}

void MemoryPool::push_free(Arena& arena, size_t slot, int order) {
  FreeNode*& first = arena.released_of(slot, order) == size_t{1} << order ? released_[order] : free_[order];
  auto* node = new (node_of(arena, slot)) FreeNode{first, nullptr, arena.base + slot * kSmallest};
  if (first != nullptr) first->previous = node;
  first = node;
}

void MemoryPool::drop_free(Arena& arena, size_t slot, int order) {
  FreeNode* node = node_of(arena, slot);
  if (node->previous != nullptr) node->previous->next = node->next;
  if (node->next != nullptr) node->next->previous = node->previous;
  if (free_[order] == node) free_[order] = node->next;
  if (released_[order] == node) released_[order] = node->next;
}

// Takes the smallest free block that is large enough, so that larger ones stay whole; among these one with pages, if there is one. Touches
// no page that was given back, and gives pages back only if those that come back would exceed the limit.
std::byte* MemoryPool::take(int order) {
  std::unique_lock lock(mutex_);
  int found = order;
  auto look = [&] {
    for (found = order; found < kOrders && free_[found] == nullptr && released_[found] == nullptr;) ++found;
    return found < kOrders;
  };
  while (!look()) {  // fragmentation: the bytes are free, but not in one piece
    lock.unlock();
    if (!add_arena(Need::kNow)) throw std::bad_alloc();  // not even the slack that was left for this
    lock.lock();
  }
  std::byte* data = (free_[found] != nullptr ? free_[found] : released_[found])->data;
  Arena& arena = *arena_of(data);
  const size_t slot = arena.slot_of(data);
  drop_free(arena, slot, found);
  while (found > order) {  // gives the upper halves back
    --found;
    const size_t half = slot + (size_t{1} << found);
    arena.state[half] = static_cast<uint8_t>(Arena::kFree | found);
    push_free(arena, half, found);
  }
  arena.state[slot] = static_cast<uint8_t>(order);
  arena.used_slots += size_t{1} << order;
  const size_t came_back = arena.released_of(slot, order);
  if (came_back == 0) return data;
  arena.released &= ~Arena::slots(slot, order);
  resident_bytes_.fetch_add(came_back * kSmallest);
  lock.unlock();
  release_beyond_limit();
  return data;
}

void MemoryPool::give(std::byte* data, int order) {
  std::unique_lock lock(mutex_);
  Arena& arena = *arena_of(data);
  std::byte* unneeded = give_locked(arena, arena.slot_of(data), order);
  lock.unlock();
  if (unneeded != nullptr) munmap(unneeded, kArenaBytes);
}

std::byte* MemoryPool::give_locked(Arena& arena, size_t slot, int order) {
  const uint64_t given_bytes = kSmallest << order;
  arena.used_slots -= size_t{1} << order;
  while (order < kOrders - 1) {
    const size_t buddy = slot ^ (size_t{1} << order);
    if (arena.state[buddy] != (Arena::kFree | order)) break;
    drop_free(arena, buddy, order);
    arena.state[std::max(slot, buddy)] = Arena::kNoBlock;
    slot = std::min(slot, buddy);
    ++order;
  }
  // Drops the free arena if the limit was lowered, or if it has small pages and the reservations do not need it: the next arena has
  // huge pages again. (The bytes given still count as used.)
  const bool needed = resident_bytes_.load() + file_used_bytes_.load() + given_bytes < used_bytes_.load() + arena.resident_bytes();
  if (arena.used_slots == 0 && (mapped_bytes() > limit_bytes() + kArenaBytes || (arena.nodes && !needed))) {
    std::byte* base = arena.base;
    forget(arena);
    return base;
  }
  arena.state[slot] = static_cast<uint8_t>(Arena::kFree | order);
  push_free(arena, slot, order);
  return nullptr;
}

void MemoryPool::release_beyond_limit() {
  constexpr uint64_t kAheadBytes = kArenaBytes / 2;  // so that the next blocks taken find room
  for (uint64_t beyond = bytes_beyond_limit(); beyond > 0; beyond = bytes_beyond_limit())
    if (!drop_free_arena() && release_free(beyond + kAheadBytes) == 0) return;
}

// Caller holds mutex_. Takes the largest free block off the lists; a whole arena only if there is no other (it is reserved, or it would
// have been dropped).
bool MemoryPool::pick_to_release(Scattered& picked) {
  constexpr int kWhole = kOrders - 1;
  for (int turn = 1; turn <= kOrders; ++turn) {
    const int order = turn < kOrders ? kWhole - turn : kWhole;
    if (free_[order] == nullptr) continue;
    std::byte* data = free_[order]->data;
    Arena& arena = *arena_of(data);
    picked = {&arena, arena.slot_of(data), order};
    drop_free(arena, picked.slot, order);
    arena.state[picked.slot] = static_cast<uint8_t>(order);
    arena.used_slots += size_t{1} << order;
    return true;
  }
  return false;
}

// Calls the kernel without mutex_: meanwhile the block is on no list and has no owner, and counts as used, which keeps its arena.
uint64_t MemoryPool::release_free(uint64_t bytes) {
  std::lock_guard turn(release_mutex_);
  uint64_t released = 0;
  while (released < bytes) {
    Scattered picked;
    {
      std::lock_guard lock(mutex_);
      if (!pick_to_release(picked)) break;
    }
    std::byte* data = picked.arena->base + picked.slot * kSmallest;
    const size_t length = kSmallest << picked.order;
    // Only this code, under release_mutex_, gives an arena in use its table.
    std::unique_ptr<FreeNode[]> nodes = picked.arena->nodes ? nullptr : scatter(picked.arena->base);
    bool gone = picked.arena->nodes || nodes;
    if (gone) {
      madvise(data, length, MADV_COLD);  // splits the huge page: without it a part of one would only be marked as unused
      gone = madvise(data, length, MADV_DONTNEED) == 0;
    }
    std::byte* unneeded = nullptr;
    {
      std::lock_guard lock(mutex_);
      Arena& arena = *picked.arena;
      if (nodes) arena.nodes = std::move(nodes);
      if (gone) {
        const uint64_t here = length - arena.released_of(picked.slot, picked.order) * kSmallest;
        arena.released |= Arena::slots(picked.slot, picked.order);
        resident_bytes_.fetch_sub(here);
        released += here;
      }
      unneeded = give_locked(arena, picked.slot, picked.order);
    }
    if (unneeded != nullptr) munmap(unneeded, kArenaBytes);
    if (!gone) break;
  }
  return released;
}

}  // namespace kvcachefs
