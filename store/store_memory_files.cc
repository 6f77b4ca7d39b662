// Big bodies in RAM lie in memory files, which FUSE passes through once a body is whole: which body gets one, its memory, and
// when it may be passed through.
#include <algorithm>
#include <cstring>

#include "store/store_impl.h"
#include "store/store_load.h"

namespace kvcachefs {

Status StoreImpl::expect_passthrough() {
  passes_through_ = true;
  return files_->start();
}

void StoreImpl::backing_refused(bool in_memory) { (in_memory ? passes_memory_ : passes_extents_) = false; }

bool StoreImpl::uses_memory_files() const {
  return passes_memory_ && options_.memory_file_min_bytes() > 0 && files_->started();
}

bool StoreImpl::takes_memory_file(uint64_t size_bytes) const {
  return uses_memory_files() && size_bytes >= options_.memory_file_min_bytes() &&
         size_bytes <= files_->most_bytes();
}

// Another mapping of it would be faster by passthrough: it is moved, if it is in blocks.
void StoreImpl::note_mapped_read(Handle* handle) {
  mapped_read_ns_.store(clock_.monotonic_ns(), std::memory_order_relaxed);
  move_soon(handle->object);
}

// A body that is about to be read from RAM is moved before its reader is there: past the daemon it is read twice as fast, and
// the copy takes less of a processor than answering its reads does.
void StoreImpl::move_soon(const ObjectPtr& object) {
  constexpr size_t kMostToMove = 64;  // the rest is asked for again by the next who reads it
  if (!uses_memory_files() || verify_ == Verify::kAlways) return;
  // Who reads all the time does not have room made all the time, in vain.
  constexpr int64_t kRefusedNs = 1'000'000'000;
  const int64_t refused_ns = move_refused_ns_.load(std::memory_order_relaxed);
  if (refused_ns != INT64_MIN && clock_.monotonic_ns() - refused_ns < kRefusedNs) return;
  const auto object_lock = object->lock();
  if (object->to_be_moved || !may_move(*object)) return;
  std::lock_guard lock(mover_mutex_);
  if (to_move_.size() >= kMostToMove) return;
  object->to_be_moved = true;
  to_move_.push_back(object);
  mover_ready_.notify_one();
}

// What is read() once is faster from blocks of the pool: their pages are there, those of a file that was passed through can
// never be used again and the next must be cleared (2.6 against 1.5 GiB/s, bodies of 9 MiB on two processors). A mapping is
// faster by passthrough (0.14 against 0.8 of a plain file once in RAM); the reads of those who map are not seen then, so it is
// remembered for longer than a prompt takes to come back.
bool StoreImpl::loads_into_files() const {
  constexpr int64_t kRememberedNs = 600'000'000'000;
  const int64_t last_ns = mapped_read_ns_.load(std::memory_order_relaxed);
  return last_ns != INT64_MIN && clock_.monotonic_ns() - last_ns < kRememberedNs;
}

// 0: of no use, because no file would be taken.
uint64_t StoreImpl::guess_size(uint64_t kind_key, uint32_t thread_id) const {
  if (!uses_memory_files()) return 0;
  const uint64_t alike = kind_key != 0 ? size_guess_.of(kind_key) : 0;
  return alike > 0 ? alike : size_guess_.of(SizeGuess::thread_key(thread_id));
}

void StoreImpl::note_size(uint64_t kind_key, uint32_t thread_id, uint64_t size_bytes) {
  if (!uses_memory_files()) return;
  if (kind_key != 0) size_guess_.note(kind_key, size_bytes);
  size_guess_.note(SizeGuess::thread_key(thread_id), size_bytes);
}

// object.mutex held: a new body, before its first byte.
void StoreImpl::expect_size(Object& object, uint64_t size_bytes) {
  if (takes_memory_file(size_bytes)) object.expected_bytes = size_bytes;
}

bool StoreImpl::get_file_memory(FileRequest& file, MemoryFor who) {
  const uint64_t left_bytes = left_to_others(who);
  const MemoryFilePtr grows = std::exchange(file.grows, nullptr);
  MemoryFiles::Got got = MemoryFiles::Got::kNo;
  uint64_t needed_bytes = MemoryFile::kChunkBytes;
  if (grows || file.bytes <= files_->most_bytes()) {  // else the limit was lowered
    do {
      got = grows ? files_->grow(*grows, file.first, file.last, left_bytes)
                  : files_->take(file.bytes, file.fresh, left_bytes, &needed_bytes);
    } while (got == MemoryFiles::Got::kNoMemory && recover_memory(needed_bytes, who));
  }
  if (!grows && background_ && files_->wants_spares(warm_bytes() / 2)) kick_warmer();
  if (got == MemoryFiles::Got::kNoMemory) {
    // Nobody waits for a file where blocks are to be had.
    if (!pool_->could_reserve(MemoryFile::kChunkBytes, left_bytes)) return false;
    file.refused = true;
  }
  if (grows) return true;  // one that cannot grow says so by itself
  if (got == MemoryFiles::Got::kNo) file.refused = true;
  (file.refused ? counters_.memory_files_refused : counters_.memory_files_taken).fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Before somebody waits for memory: a file that has no block of its body yet would hold some that nothing can free.
void StoreImpl::drop_unused_file(const ObjectPtr& object) {
  MemoryFilePtr unused;  // let go of after the lock
  const auto lock = object->lock();
  if (object->memory_file && object->memory_file->block_count() == 0) unused.swap(object->memory_file);
}

// The file is frozen from then on. Null: this body cannot be passed through from RAM as it is now.
MemoryFilePtr StoreImpl::passable_memory_file(ObjectId id) {
  if (!files_->started() || !passes_memory_ || verify_ == Verify::kAlways) return nullptr;
  auto found = get(id);
  if (!found) return nullptr;
  Object& object = **found;
  MemoryFilePtr file;
  {
    const auto lock = object.lock();
    // Who has it open for writing would go on writing beside what readers see.
    if (!object.is_regular() || object.in_place || object.raw || object.write_handles > 0 || !object.finished() || object.lacks_a_write() ||
        object.base.quarantined)
      return nullptr;
    file = object.whole_in_file();
    if (!file) return nullptr;
    if (file->frozen()) {
      if (file->frozen_bytes() != object.size_bytes) return nullptr;
    } else {
      if (!files_->freeze(*file, object.size_bytes)) return nullptr;
      const uint64_t in_last = object.size_bytes - (object.units.size() - 1) * kUnitBytes;
      object.units.back().block->shorten(static_cast<uint32_t>(align_up(in_last, kBlockBytes)));
      object.memory_file.reset();
      object.may_be_frozen = true;
      object.pin_frozen();
    }
  }
  if (!files_->cut(*file)) return nullptr;
  return file;
}

// A body that is queued to be read ahead, and will lie in a file, is read now.
void StoreImpl::hurry_into_file(const ObjectPtr& object) {
  {
    std::lock_guard lock(prefetch_mutex_);
    if (!ahead_queue_.contains(object->id)) return;
  }
  if (passable_file(object->id)) return;  // the kernel reads it
  size_t units = 0;
  {
    const auto lock = object->lock();
    if (!takes_memory_file(object->size_bytes) || object->write_handles > 0) return;
    units = div_ceil(object->size_bytes, kUnitBytes);
  }
  promote_ahead(object->id);
  auto nobody = std::make_shared<LoadWaiter>();
  nobody->done = [](const Status&) {};
  // Where there is no memory for all of it, its reader asks for what he needs.
  MemoryWaiters::Try now{.may_take = may_take_memory(MemoryFor::kReader)};
  if (start_loads(object, 0, units, units, MemoryFor::kReader, nobody, nullptr, now)) nobody->finish_one({});
}

void StoreImpl::await_loads(Handle* handle, std::move_only_function<void()> then) {
  if (background_ && passes_extents_ && kernel_ahead_.await(handle->object->id, then)) return;
  if (!passes_memory_ || !loads_into_files()) return then();
  hurry_into_file(handle->object);
  auto waiter = std::make_shared<LoadWaiter>();
  bool waits = false;
  {
    Object& object = *handle->object;
    const auto lock = object.lock();
    waits = object.comes_into_file();
    if (waits)
      for (auto& [index, waiting] : object.loading) {
        waiter->open.fetch_add(1);
        waiting.push_back([waiter](Status status) { waiter->finish_one(std::move(status)); });
      }
  }
  if (!waits) return then();
  // A load that failed: the read says so.
  waiter->done = [this, then = std::move(then)](Status) mutable { answer_later(std::move(then)); };
  waiter->finish_one({});
}

// --- from blocks into a file ---

// object.mutex held.
bool StoreImpl::may_move(const Object& object) const {
  return takes_memory_file(object.size_bytes) && object.in_ram() && object.loading.empty() && !object.raw && !object.forgotten &&
         object.write_handles == 0 && object.finished() && !object.lacks_a_write() && !object.whole_in_file();
}

// Bodies that were loaded or written before a file was to be had. Their memory is taken twice for the moment of the copy.
// True if it is worth another call.
bool StoreImpl::move_into_files() {
  ObjectPtr object;
  {
    std::lock_guard lock(mover_mutex_);
    if (to_move_.empty()) return false;
    object = std::move(to_move_.front());
    to_move_.pop_front();
  }
  if (move_into_file(object)) counters_.memory_files_moved.fetch_add(1, std::memory_order_relaxed);
  const auto lock = object->lock();
  object->to_be_moved = false;
  return true;
}

bool StoreImpl::move_into_file(const ObjectPtr& object) {
  std::vector<BlockPtr> blocks;  // held: who writes meanwhile clones them
  uint64_t size = 0;
  WantedUnits pin;  // or room would be made of what is moved
  {
    const auto lock = object->lock();
    if (!may_move(*object)) return false;
    size = object->size_bytes;
    for (const Unit& unit : object->units) blocks.push_back(unit.block);
    pin.hold(object, 0, blocks.size());
  }
  // More than what may be passed through would be moved for nothing.
  if (files_->passed_bytes() + size > pool_->limit_bytes() / 2) return false;
  MemoryFilePtr file;
  uint64_t needed = 0;
  MemoryFiles::Got got = files_->take(size, file, 0, &needed);
  if (got == MemoryFiles::Got::kNoMemory && recover_memory(needed, MemoryFor::kReader)) got = files_->take(size, file);
  if (got != MemoryFiles::Got::kYes) {
    move_refused_ns_.store(clock_.monotonic_ns(), std::memory_order_relaxed);
    return false;
  }
  if (file->lacks_pages(blocks.size() - 1)) files_->grow(*file, 0, blocks.size());  // a spare with fewer than asked for
  std::vector<BlockPtr> moved;
  for (size_t index = 0; index < blocks.size(); ++index) {
    BlockPtr block = MemoryFile::make_block(file, index);
    if (!block) return false;
    // Not what lies beyond the body: it is zeros, and where the blocks are those of a file, that may be cut meanwhile.
    const uint64_t in_unit = align_up(unit_length(size, index), kBlockBytes);
    const size_t bytes = std::min<size_t>(in_unit, std::min(blocks[index]->capacity_bytes(), block->capacity_bytes()));
    std::memcpy(block->data(), blocks[index]->data(), bytes);
    std::memset(block->data() + bytes, 0, block->capacity_bytes() - bytes);
    moved.push_back(std::move(block));
  }
  const auto lock = object->lock();
  if (!may_move(*object) || object->size_bytes != size || object->units.size() != blocks.size()) return false;
  for (size_t index = 0; index < blocks.size(); ++index)
    if (object->units[index].block != blocks[index]) return false;
  for (size_t index = 0; index < blocks.size(); ++index) {
    Unit& unit = object->units[index];
    unit.block = std::move(moved[index]);
    unit.set_dirty(unit.dirty);
  }
  object->memory_file = std::move(file);
  return true;
}

}  // namespace kvcachefs
