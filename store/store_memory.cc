// The memory for bodies: reserved, and got back from clean ones, the one opened longest ago first, what is open or
// expected last; and the requests that wait until there is some.
#include <algorithm>

#include "store/store_impl.h"
#include "store/store_load.h"
#include "store/store_seal.h"

namespace kvcachefs {

Reservation StoreImpl::reserve_memory(uint64_t bytes, MemoryFor who) {
  while (true) {
    Reservation memory = pool_->try_reserve(bytes, left_to_others(who));
    if (memory.bytes() >= bytes) return memory;
    if (!recover_memory(bytes, who)) return {};
  }
}

bool StoreImpl::recover_memory(uint64_t bytes, MemoryFor who) {
  if (files_->settle() > 0) return true;
  // Writers wait for what is dirty to reach the volume: what readers have, or was read ahead for them, is not theirs to take.
  if (!pool_->could_reserve(bytes, left_to_others(who))) return false;
  const bool evicted = evict_clean(std::max<uint64_t>(bytes, 4 * kMiB), who == MemoryFor::kReadAhead) > 0;
  return files_->settle() > 0 || evicted;
}

// Expected by a run, or open: then it is being read, or about to be.
bool StoreImpl::is_wanted_soon(const ObjectPtr& object) {
  {
    const auto lock = object->lock();
    if (object->handles > 0) return true;
  }
  return accesses_->about_to_be_used(object->id);
}

uint64_t StoreImpl::evict_clean(uint64_t bytes, bool spare_expected) {
  uint64_t freed = 0;
  int spared = 0;
  const Object* first_spared = nullptr;
  int kept = 0;
  const Object* first_kept = nullptr;
  std::vector<ObjectPtr> keepers;  // of clean blocks: looked at again next time
  // Then what is wanted soon goes, too: a demand read must not fail, nor wait for long. What was passed over is behind all
  // others for the next caller.
  constexpr int kMaxSpared = 4096;
  while (freed < bytes) {
    ObjectPtr object = clean_bodies_.take();
    if (!object) break;
    if (object.get() == first_spared) {  // it was the turn of all
      if (freed > 0) {
        clean_bodies_.add(object);
        break;
      }
      spared = kMaxSpared;
    }
    if (spared < kMaxSpared && bytes != UINT64_MAX && is_wanted_soon(object)) {
      if (spared++ == 0) first_spared = object.get();
      clean_bodies_.add(object);
      continue;
    }
    if (spare_expected && accesses_->about_to_be_used(object->id)) {
      clean_bodies_.add(object);
      if (object.get() == first_kept || ++kept >= kMaxSpared) break;
      if (first_kept == nullptr) first_kept = object.get();
      continue;
    }
    DroppedBlocks dropped;
    {
      const auto lock = object->lock();
      dropped = object->drop_clean();
    }
    freed += dropped.bytes;
    if (!dropped.blocks.empty()) accesses_->left_ram(object->id);
    dropped.blocks.clear();
    std::optional<Tree::Write> tree = tree_->try_write();
    if (tree) tree->forget_if_idle(object);
    if (dropped.keeps_some || !tree) keepers.push_back(object);  // or nobody would forget it
  }
  for (const ObjectPtr& object : keepers) clean_bodies_.add(object);
  return freed;
}

// An object in RAM takes a kilobyte beside its blocks, which the pool does not count: small bodies are kept by number.
void StoreImpl::trim_clean_objects() {
  const size_t most_objects = std::max<size_t>(100'000, pool_->limit_bytes() / (32 * kKiB));
  while (clean_bodies_.count() > most_objects && evict_clean(4 * kMiB) > 0) {
  }
}

void StoreImpl::drop_caches() {
  evict_clean(UINT64_MAX);
  files_->settle();
}

// Writers leave an eighth to readers, and what the first of those that wait lacks beside what is kept for seals.
uint64_t StoreImpl::left_to_others(MemoryFor who) const {
  if (who != MemoryFor::kWriter || stopping_) return 0;
  const uint64_t lacks = resumer_.waiters().first_reader_lacks_bytes();
  return lacks == 0 ? readers_bytes() : std::max(readers_bytes(), lacks + kSealingBytes);
}

// With one unit more, for it may begin and end within units.
uint64_t StoreImpl::most_read_bytes() const {
  const uint64_t kept = kSealingBytes + kUnitBytes;
  return std::max(kUnitBytes, pool_->limit_bytes() - std::min(pool_->limit_bytes(), kept));
}

void StoreImpl::wait_for_memory(MemoryFor who, ObjectId object, uint64_t lacks_bytes, MemoryWaiters::Retry retry) {
  resumer_.wait(line_of(who), object, lacks_bytes, [retry = std::move(retry)](MemoryWaiters::Try& attempt) mutable {
    const MustNotBlock others_wait;
    return retry(attempt);
  });
}

}  // namespace kvcachefs
