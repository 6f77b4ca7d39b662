#include "store/object/dirty_queue.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

namespace kvcachefs {

void DirtyQueue::add_content(ObjectPtr object) {
  std::lock_guard lock(mutex_);
  content_.push_back(std::move(object));
}

DirtyQueue::Objects DirtyQueue::take_content() {
  std::lock_guard lock(mutex_);
  return std::exchange(content_, {});
}

void DirtyQueue::put_back_content(Objects objects) {
  std::lock_guard lock(mutex_);
  content_.insert(content_.end(), std::make_move_iterator(objects.begin()), std::make_move_iterator(objects.end()));
}

DirtyQueue::Objects DirtyQueue::content() const {
  std::lock_guard lock(mutex_);
  return content_;
}

void DirtyQueue::add_attributes(ObjectPtr object) {
  std::lock_guard lock(mutex_);
  attributes_.push_back(std::move(object));
}

DirtyQueue::Objects DirtyQueue::take_attributes() {
  std::lock_guard lock(mutex_);
  return std::exchange(attributes_, {});
}

bool DirtyQueue::has_attributes() const {
  std::lock_guard lock(mutex_);
  return !attributes_.empty();
}

void DirtyQueue::clear() {
  Objects content, attributes;  // released after the lock is
  std::lock_guard lock(mutex_);
  content.swap(content_);
  attributes.swap(attributes_);
}

void DirtyQueue::wake(bool hurry) {
  if (!hurry && has_work_.load(std::memory_order_relaxed)) return;
  note_work(hurry);
  ready_.notify_one();
}

void DirtyQueue::begin_round() {
  std::lock_guard lock(mutex_);
  hurry_ = false;
  has_work_.store(false);
}

void DirtyQueue::note_work(bool hurry) {
  std::lock_guard lock(mutex_);
  has_work_.store(true);
  hurry_ |= hurry;
}

bool DirtyQueue::wait_for_work() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return stopping_ || has_work_; });
  return !stopping_;
}

bool DirtyQueue::wait_out(std::chrono::milliseconds interval) {
  std::unique_lock lock(mutex_);
  ready_.wait_for(lock, interval, [this] { return stopping_ || hurry_; });
  return !stopping_;
}

void DirtyQueue::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
}

uint64_t record_bytes(const Object& object) {
  constexpr uint64_t kRecordBytes = 256;  // includes its share of a batch, and of a name
  return kRecordBytes + (object.durable ? 0 : object.base.inline_bytes.size()) + bytes_of(object.attributes.xattrs);
}

void mark_attributes_dirty(const ObjectPtr& object, RecordSpace& records, DirtyQueue& dirty) {
  if (object->id.is_foreign()) return;  // the other node journals them; here they last as long as the object is in RAM
  const bool first = object->attributes_version == object->attributes_durable;
  ++object->attributes_version;
  const uint64_t bytes = record_bytes(*object);
  const uint64_t counted = std::max(object->accepted_bytes, object->durable ? 0 : object->awaiting_body_bytes);
  if (bytes > counted) {
    records.accept(bytes - counted);
    object->accepted_bytes = bytes;
  }
  if (first) dirty.add_attributes(object);
}

}  // namespace kvcachefs
