#include "store/cache/file_mover.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "store/base/thread.h"
#include "store/object/wanted_units.h"

namespace kvcachefs {

Status FileMover::start() {
  KVC_ASSIGN(thread_, start_thread("kvc-mover", [this] { run(); }));
  return {};
}

void FileMover::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FileMover::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
    }
    step();
  }
}

void FileMover::clear() {
  std::deque<ObjectPtr> queue;  // released without the lock
  std::lock_guard lock(mutex_);
  queue.swap(queue_);
}

void FileMover::move_soon(const ObjectPtr& object) {
  constexpr size_t kMostQueued = 64;  // the next reader of a body beyond that asks for it again
  if (!parts_.enabled || !parts_.policy.in_use()) return;
  // After a refusal, wait a second before making room again: a steady reader would drop other bodies each time for nothing.
  constexpr int64_t kRefusedNs = 1'000'000'000;
  const int64_t refused_ns = refused_ns_.load(std::memory_order_relaxed);
  if (refused_ns != INT64_MIN && parts_.clock.monotonic_ns() - refused_ns < kRefusedNs) return;
  const auto object_lock = object->lock();
  if (object->to_be_moved || !may_move(*object)) return;
  std::lock_guard lock(mutex_);
  if (queue_.size() >= kMostQueued) return;
  object->to_be_moved = true;
  queue_.push_back(object);
  ready_.notify_one();
}

bool FileMover::may_move(const Object& object) const {
  return parts_.policy.takes(object.size_bytes) && object.in_ram() && object.loading.empty() && !object.raw && !object.forgotten &&
         object.write_handles == 0 && object.finished() && !object.lacks_a_write() && !object.whole_in_file();
}

bool FileMover::step() {
  ObjectPtr object;
  {
    std::lock_guard lock(mutex_);
    if (queue_.empty()) return false;
    object = std::move(queue_.front());
    queue_.pop_front();
  }
  if (move(object)) parts_.counters.memory_files_moved.fetch_add(1, std::memory_order_relaxed);
  const auto lock = object->lock();
  object->to_be_moved = false;
  return true;
}

bool FileMover::move(const ObjectPtr& object) {
  MemoryFiles& files = parts_.files;
  std::vector<BlockPtr> blocks;  // held: a write meanwhile clones them
  uint64_t size = 0;
  WantedUnits pin;  // otherwise making room would drop the body being moved
  {
    const auto lock = object->lock();
    if (!may_move(*object)) return false;
    size = object->size_bytes;
    for (const Unit& unit : object->units) blocks.push_back(unit.block);
    pin.hold(object, 0, blocks.size());
  }
  // More than what may be passed through would be moved for nothing.
  if (files.passed_bytes() + size > parts_.pool.limit_bytes() / 2) return false;
  MemoryFilePtr file;
  uint64_t needed = 0;
  MemoryFiles::Got got = files.take(size, file, 0, &needed);
  if (got == MemoryFiles::Got::kNoMemory && parts_.recover_memory(needed)) got = files.take(size, file);
  if (got != MemoryFiles::Got::kYes) {
    refused_ns_.store(parts_.clock.monotonic_ns(), std::memory_order_relaxed);
    return false;
  }
  if (file->lacks_pages(blocks.size() - 1)) files.grow(*file, 0, blocks.size());  // a spare file with fewer pages than asked for
  std::vector<BlockPtr> moved;
  for (size_t index = 0; index < blocks.size(); ++index) {
    BlockPtr block = MemoryFile::make_block(file, index);
    if (!block) return false;
    // Does not copy bytes beyond the body: they are zeros, and if the blocks belong to a file, it may be cut meanwhile.
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
