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
constexpr size_t kSlots = MemoryPool::kArenaBytes / kSmallest;

int order_of(size_t bytes) {
  return static_cast<int>(std::bit_width(std::bit_ceil(std::max(bytes, kSmallest)) / kSmallest)) - 1;
}
}  // namespace

// For each 4 KiB slot: which order begins there and whether it is free. The state of a buddy is read from here, so free
// blocks can be merged without searching.
struct MemoryPool::Arena {
  static constexpr uint8_t kNoBlock = 0xff;
  static constexpr uint8_t kFree = 0x80;
  std::byte* base = nullptr;
  size_t used_slots = 0;
  uint8_t state[kSlots];
};

// What it held goes first: who finds its memory given back is not refused for it.
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
  if (holds == Holds::kClean) pool_.add_clean(capacity_bytes());
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
  if (pool_ == nullptr || bytes_ < size) std::abort();  // the caller's sum was wrong: a bug, not a condition
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
    // Announce the refusal, then look once more: memory given back in between would otherwise tell nobody.
    refused_.store(true);
    used = used_bytes_.load();
  }
  return false;
}

Reservation MemoryPool::try_reserve(uint64_t bytes, uint64_t left_bytes) {
  if (!try_use(bytes, left_bytes)) return {};
  if (prepare()) return Reservation(this, bytes);
  // Nobody is told: he who waits would try again at once, and in vain. What others give back tells him.
  used_bytes_.fetch_sub(bytes);
  refused_.store(true);
  return {};
}

bool MemoryPool::try_charge(uint64_t bytes, uint64_t left_bytes) {
  file_used_bytes_.fetch_add(bytes);  // first: no arena is mapped for them meanwhile
  if (try_use(bytes, left_bytes)) return true;
  file_used_bytes_.fetch_sub(bytes);
  return false;
}

void MemoryPool::uncharge_files(uint64_t bytes) {
  used_bytes_.fetch_sub(bytes);
  file_used_bytes_.fetch_sub(bytes);  // second: nobody maps arenas meanwhile for what was in files
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

void MemoryPool::add_clean(int64_t bytes) {
  clean_bytes_.fetch_add(static_cast<uint64_t>(bytes));
  if (bytes > 0) tell_available();
}

void MemoryPool::tell_available() {
  if (refused_.load() && refused_.exchange(false) && available_) available_();
}

// Maps what is in use may take, here, where no lock is held: the kernel clears fresh pages at first touch, 2 MiB at a time,
// and that must not happen under somebody's mutex. Arenas once mapped stay, until memory files want their memory. False: the
// machine does not give that much.
bool MemoryPool::prepare() {
  while (true) {
    const uint64_t files = file_used_bytes_.load(), used = used_bytes_.load();
    if (arena_bytes_.load() + files >= used) return true;
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
  arenas_.insert(where, std::move(arena));
  push_free(base, kOrders - 1);
  return true;
}

bool MemoryPool::drop_free_arena(uint64_t ahead_bytes) {
  std::byte* base = nullptr;
  {
    std::lock_guard lock(mutex_);
    // Not those that are reserved.
    const uint64_t needed = used_bytes_.load() + kArenaBytes + ahead_bytes;
    if (free_[kOrders - 1] == nullptr || arena_bytes_.load() + file_used_bytes_.load() < needed) return false;
    base = reinterpret_cast<std::byte*>(free_[kOrders - 1]);
    drop_free(base, kOrders - 1);
    Arena* arena = arena_of(base);
    std::erase_if(arenas_, [&](const auto& each) { return each.get() == arena; });
    arena_bytes_.fetch_sub(kArenaBytes);
  }
  munmap(base, kArenaBytes);
  return true;
}

bool MemoryPool::prepare_ahead(uint64_t ahead_bytes) {
  const uint64_t wanted = std::min(limit_bytes(), used_bytes() + ahead_bytes);
  if (mapped_bytes() + kArenaBytes > wanted) return false;
  return add_arena(Need::kCanWait);
}

// region_mutex_ held. `most_bytes`, or less where the machine does not give that much (RLIMIT_AS, vm.overcommit_memory=2), and
// nothing if `slack_bytes` would not be left then.
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

// Address space is taken a gigabyte at a time and its pages touched by plain stores: mapping and populating piece by piece would
// hold the process's memory map lock against everybody's page faults. Null: there is none. What
// can wait leaves something for what cannot, and for the rest of the daemon.
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
  for (size_t at = 0; at < kArenaBytes; at += kSmallest) *reinterpret_cast<volatile char*>(base + at) = 0;
  auto arena = std::make_unique<Arena>();
  arena->base = base;
  std::fill(std::begin(arena->state), std::end(arena->state), Arena::kNoBlock);
  arena_bytes_.fetch_add(kArenaBytes, std::memory_order_relaxed);
  return arena;
}

MemoryPool::Arena* MemoryPool::arena_of(const std::byte* data) {
  auto after = std::upper_bound(arenas_.begin(), arenas_.end(), data,
                                [](const std::byte* b, const auto& arena) { return b < arena->base; });
  return std::prev(after)->get();
}

void MemoryPool::push_free(std::byte* data, int order) {
  auto* node = new (data) FreeNode{free_[order], nullptr};
  if (free_[order] != nullptr) free_[order]->previous = node;
  free_[order] = node;
}

void MemoryPool::drop_free(std::byte* data, int order) {
  auto* node = reinterpret_cast<FreeNode*>(data);
  if (node->previous != nullptr) node->previous->next = node->next;
  if (node->next != nullptr) node->next->previous = node->previous;
  if (free_[order] == node) free_[order] = node->next;
}

std::byte* MemoryPool::take(int order) {
  std::unique_lock lock(mutex_);
  int found = order;
  auto look = [&] {
    for (found = order; found < kOrders && free_[found] == nullptr;) ++found;
    return found < kOrders;
  };
  while (!look()) {  // fragmentation: the bytes are there, but not in one piece
    lock.unlock();
    if (!add_arena(Need::kNow)) throw std::bad_alloc();  // not even what was left for this
    lock.lock();
  }
  auto* data = reinterpret_cast<std::byte*>(free_[found]);
  drop_free(data, found);
  Arena* arena = arena_of(data);
  auto slot_of = [&](const std::byte* at) { return static_cast<size_t>(at - arena->base) / kSmallest; };
  while (found > order) {  // give the upper halves back
    --found;
    std::byte* half = data + (kSmallest << found);
    arena->state[slot_of(half)] = static_cast<uint8_t>(Arena::kFree | found);
    push_free(half, found);
  }
  arena->state[slot_of(data)] = static_cast<uint8_t>(order);
  arena->used_slots += size_t{1} << order;
  return data;
}

void MemoryPool::give(std::byte* data, int order) {
  std::unique_lock lock(mutex_);
  Arena* arena = arena_of(data);
  arena->used_slots -= size_t{1} << order;
  size_t slot = static_cast<size_t>(data - arena->base) / kSmallest;
  while (order < kOrders - 1) {
    const size_t buddy = slot ^ (size_t{1} << order);
    if (arena->state[buddy] != (Arena::kFree | order)) break;
    drop_free(arena->base + buddy * kSmallest, order);
    arena->state[std::max(slot, buddy)] = Arena::kNoBlock;
    slot = std::min(slot, buddy);
    ++order;
  }
  if (arena->used_slots == 0 && mapped_bytes() > limit_bytes() + kArenaBytes) {  // the limit was lowered, or fragmentation passed
    std::byte* base = arena->base;
    std::erase_if(arenas_, [&](const auto& each) { return each.get() == arena; });
    arena_bytes_.fetch_sub(kArenaBytes, std::memory_order_relaxed);
    lock.unlock();
    munmap(base, kArenaBytes);
    return;
  }
  arena->state[slot] = static_cast<uint8_t>(Arena::kFree | order);
  push_free(arena->base + slot * kSmallest, order);
}

}  // namespace kvcachefs
