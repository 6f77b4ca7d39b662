#include "store/cache/body_cache.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "store/base/opener.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kReadersPart = 8;  // of the memory
constexpr uint64_t kMostXattrBytes = 32 * kMiB;  // total of the bodies that have many
}  // namespace

Reservation BodyCache::reserve(uint64_t bytes, MemoryFor who) {
  while (true) {
    Reservation memory = parts_.pool.try_reserve(bytes, left_to_others(who));
    if (memory.bytes() >= bytes) return memory;
    if (!recover(bytes, who)) return {};
  }
}

bool BodyCache::recover(uint64_t bytes, MemoryFor who) {
  if (parts_.files.settle() > 0) return true;
  // Writers wait until dirty bytes reach the volume: they may not take what readers have, or what was read ahead for them.
  if (!parts_.pool.could_reserve(bytes, left_to_others(who))) return false;
  const bool dropped = drop_clean(std::max<uint64_t>(bytes, 4 * kMiB), who == MemoryFor::kReadAhead) > 0;
  return parts_.files.settle() > 0 || dropped;
}

Reservation BodyCache::reserve_to_seal(uint64_t bytes, const std::function<void()>& before_last_reserve) {
  Reservation memory = reserve(bytes, MemoryFor::kReader);
  if (memory.bytes() > 0) return memory;
  if (before_last_reserve) before_last_reserve();
  return parts_.pool.reserve_to_seal(bytes);
}

bool BodyCache::get_file(FileRequest& file, MemoryFor who) {
  const uint64_t left_bytes = left_to_others(who);
  const MemoryFilePtr grows = std::exchange(file.grows, nullptr);
  MemoryFiles::Got got = MemoryFiles::Got::kNo;
  uint64_t needed_bytes = MemoryFile::kChunkBytes;
  if (grows || file.bytes <= parts_.files.most_bytes()) {  // otherwise the limit was lowered
    do {
      got = grows ? parts_.files.grow(*grows, file.first, file.last, left_bytes)
                  : parts_.files.take(file.bytes, file.fresh, left_bytes, &needed_bytes);
    } while (got == MemoryFiles::Got::kNoMemory && recover(needed_bytes, who));
  }
  if (!grows && parts_.warms && parts_.files.wants_spares(parts_.warmer.ahead_bytes() / 2)) parts_.warmer.kick();
  if (got == MemoryFiles::Got::kNoMemory) {
    // Do not wait for a file while blocks are available.
    if (!parts_.pool.could_reserve(MemoryFile::kChunkBytes, left_bytes)) return false;
    file.refused = true;
  }
  if (grows) return true;  // a file that cannot grow reports that itself
  if (got == MemoryFiles::Got::kNo) file.refused = true;
  (file.refused ? parts_.counters.memory_files_refused : parts_.counters.memory_files_taken).fetch_add(1, std::memory_order_relaxed);
  return true;
}

// True if a run expects it, or it is open: then it is being read, or about to be.
bool BodyCache::is_wanted_soon(const ObjectPtr& object) {
  {
    const auto lock = object->lock();
    if (object->handles > 0) return true;
  }
  return parts_.accesses.about_to_be_used(object->id);
}

uint64_t BodyCache::drop_clean(uint64_t bytes, bool spare_expected) {
  uint64_t freed = 0;
  int spared = 0;
  const Object* first_spared = nullptr;
  int kept = 0;
  const Object* first_kept = nullptr;
  std::vector<ObjectPtr> keepers;  // bodies that keep clean blocks: tried again next time
  // After that many, bodies wanted soon are dropped too: a demand read must not fail, nor wait for long. Spared bodies are at the end of
  // the list for the next caller.
  constexpr int kMaxSpared = 4096;
  while (freed < bytes) {
    ObjectPtr object = clean_.take();
    if (!object) break;
    if (object.get() == first_spared) {  // all had their turn
      if (freed > 0) {
        clean_.add(object);
        break;
      }
      spared = kMaxSpared;
    }
    if (spared < kMaxSpared && bytes != UINT64_MAX && is_wanted_soon(object)) {
      if (spared++ == 0) first_spared = object.get();
      clean_.add(object);
      continue;
    }
    if (spare_expected && parts_.accesses.about_to_be_used(object->id)) {
      clean_.add(object);
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
    if (!dropped.blocks.empty()) parts_.accesses.left_ram(object->id);
    dropped.blocks.clear();
    std::optional<Tree::Write> tree = parts_.tree.try_write();
    if (tree) tree->forget_if_idle(object);
    if (dropped.keeps_some || !tree) keepers.push_back(object);  // otherwise nothing would forget it
  }
  for (const ObjectPtr& object : keepers) clean_.add(object);
  return freed;
}

void BodyCache::drop_all() {
  drop_clean(UINT64_MAX);
  parts_.files.settle();
}

void BodyCache::trim() {
  const size_t most_objects = std::max<size_t>(100'000, parts_.pool.limit_bytes() / (32 * kKiB));
  while (clean_.count() > most_objects && drop_clean(4 * kMiB) > 0) {
  }
  trim_xattrs(SIZE_MAX);
}

void BodyCache::trim_xattrs(size_t most_objects) {
  if (!has_too_many_xattrs()) return;
  for (size_t left = std::min(most_objects, clean_.count_with_many_xattrs()); left > 0 && has_too_many_xattrs(); --left)
    if (const ObjectPtr object = clean_.next_with_many_xattrs()) drop_one_with_xattrs(object);
}

bool BodyCache::has_too_many_xattrs() const { return clean_.xattr_bytes() > kMostXattrBytes; }

// The attributes are read from the index again when needed.
void BodyCache::drop_one_with_xattrs(const ObjectPtr& object) {
  DroppedBlocks dropped;
  {
    const auto lock = object->lock();
    if (object->handles > 0 || object->content_dirty() || object->attributes_version != object->attributes_durable) return;
    if (bytes_of(object->attributes.xattrs) < CleanBodies::kManyXattrBytes) return;
    clean_.remove(object);  // a later load adds it again
    dropped = object->drop_clean();
  }
  if (!dropped.blocks.empty()) parts_.accesses.left_ram(object->id);
  dropped.blocks.clear();
  if (dropped.keeps_some) clean_.add(object);
  else parts_.tree.forget_when_idle(object);
}

void BodyCache::keep_to_limit() {
  const uint64_t limit = parts_.pool.limit_bytes();
  if (const uint64_t used = parts_.pool.used_bytes(); used > limit) drop_clean(used - limit);
  while (parts_.pool.mapped_bytes() > limit && parts_.pool.drop_free_arena()) {
  }
  parts_.pool.release_beyond_limit();
}

void BodyCache::wait(MemoryFor who, ObjectId object, uint64_t lacks_bytes, MemoryWaiters::Retry retry, MemoryWaiters::GiveUp give_up) {
  auto must_not_block = [retry = std::move(retry)](MemoryWaiters::Try& attempt) mutable {
    const MustNotBlock others_wait;
    return retry(attempt);
  };
  parts_.resumer.wait(line_of(who), object, lacks_bytes, std::move(must_not_block), [give_up = std::move(give_up)](Error why) mutable {
    const MustNotBlock others_wait;
    give_up(std::move(why));
  });
}

uint64_t BodyCache::left_to_others(MemoryFor who) const {
  if (who != MemoryFor::kWriter || stopping_.load(std::memory_order_relaxed)) return 0;
  const uint64_t readers_bytes = parts_.pool.limit_bytes() / kReadersPart;
  const uint64_t lacks = parts_.resumer.waiters().first_reader_lacks_bytes();
  return lacks == 0 ? readers_bytes : std::max(readers_bytes, lacks + kSealingBytes);
}

uint64_t BodyCache::piece_bytes() const { return std::max(kUnitBytes, align_down(parts_.pool.limit_bytes() / 4, kUnitBytes)); }

uint64_t BodyCache::most_read_bytes() const {
  const uint64_t kept = kSealingBytes + kUnitBytes;
  return std::max(kUnitBytes, parts_.pool.limit_bytes() - std::min(parts_.pool.limit_bytes(), kept));
}

void drop_unused_file(Object& object) {
  MemoryFilePtr unused;  // released after the lock
  const auto lock = object.lock();
  if (object.memory_file && object.memory_file->block_count() == 0) unused.swap(object.memory_file);
}

}  // namespace kvcachefs
