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

void StoreImpl::backing_refused(bool in_memory) {
  if (in_memory)
    file_policy_->refuse();
  else
    passes_extents_ = false;
}

// Another mapping of it would be faster by passthrough: it is moved, if it is in blocks.
void StoreImpl::note_mapped_read(Handle* handle) {
  file_policy_->note_mapped_read();
  file_mover_->move_soon(handle->object);
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
  if (!grows && background_ && files_->wants_spares(page_warmer_->ahead_bytes() / 2)) page_warmer_->kick();
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
  if (!files_->started() || file_policy_->refused() || verify_ == Verify::kAlways) return nullptr;
  auto found = tree_->get(id);
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
    if (!file_policy_->takes(object->size_bytes) || object->write_handles > 0) return;
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
  if (file_policy_->refused() || !file_policy_->loads_into_files()) return then();
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
  waiter->done = [this, then = std::move(then)](Status) mutable { resumer_.answer_later(std::move(then)); };
  waiter->finish_one({});
}

}  // namespace kvcachefs
