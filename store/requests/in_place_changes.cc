// Judges by opens, changes and closes whether a file changes in place.
#include "store/requests/in_place_changes.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "store/object/in_place_mark.h"

namespace kvcachefs {

namespace {

constexpr uint32_t kFewChanges = 2;  // a rewrite of the whole file weighs 1, a change of some bytes 2

auto mark_in(std::vector<Xattr>& xattrs) {
  return std::lower_bound(xattrs.begin(), xattrs.end(), kInPlaceMark, [](const Xattr& x, std::string_view n) { return x.name < n; });
}

}  // namespace

// The object is locked.
void InPlaceChanges::put_mark(const ObjectPtr& object, InPlace how) {
  const InPlace told = in_place_mark_of(object->attributes);
  if (told == how || parts_.read_only || (told == InPlace::kNo && parts_.space.free_bytes() == 0)) return;
  auto& xattrs = object->attributes.xattrs;
  if (how == InPlace::kNo) {
    xattrs.erase(mark_in(xattrs));
  } else {
    auto where = mark_in(xattrs);
    if (told == InPlace::kNo) where = xattrs.insert(where, Xattr{std::string(kInPlaceMark), {}});
    where->value = how == InPlace::kWhole ? kWholeValue : how == InPlace::kPatched ? kPatchedValue : std::string_view();
  }
  parts_.changes.mark_attributes_dirty(object);
  parts_.dirty.wake();
}

// The object is locked. It is marked as changed in part while an open that changed it is not judged: the daemon could die before.
void InPlaceChanges::mark(const ObjectPtr& object) {
  object->in_place = true;
  if (object->changed_in_part || object->rewriters > 0) return put_mark(object, InPlace::kPartly);
  put_mark(object, object->patched ? InPlace::kPatched : InPlace::kWhole);
}

uint8_t InPlaceChanges::weight_of(const Tree::View&, const Object& object, const OpenRequest& request) {
  if (!request.write || object.size_bytes == 0) return 0;
  if (request.append) return kFewChanges;
  return object.published && !request.truncate ? kFewChanges : 1;
}

void InPlaceChanges::note_change(const ObjectPtr& object, Handle* handle) {
  handle->changed = true;
  if (object->size_bytes == 0) object->first_writes = std::make_unique<FirstWrites>();
  const uint8_t weight = std::exchange(handle->weight_of_changes, 0);
  if (weight == 0) return;  // not its first change
  object->changes_in_place += weight;
  if (!handle->request.truncate && !object->changed_in_part) {
    handle->rewrites = std::make_unique<WrittenRanges>();
    ++object->rewriters;
  }
  if (object->changes_in_place >= kFewChanges) mark(object);
}

void InPlaceChanges::note_written(Handle* handle, uint64_t offset, uint64_t length) {
  if (handle->rewrites) handle->rewrites->add(offset, offset + length);
  const ObjectPtr& object = handle->object;
  if (object->write_error) drop_first_writes(object);  // a client may write the failed bytes again
  if (!object->first_writes) return;
  object->first_writes->add(offset, offset + length, handle->request.append);
  // At once: the daemon could die before the open is judged.
  put_patched(object, object->first_writes->are_patched(object->size_bytes));
}

void InPlaceChanges::note_page_written(Handle* handle) {
  const auto lock = handle->object->lock();
  drop_first_writes(handle->object);
}

// The object is locked. Call it when the writes no longer tell how the file is filled.
void InPlaceChanges::drop_first_writes(const ObjectPtr& object) {
  if (!object->first_writes) return;
  object->first_writes.reset();
  put_patched(object, false);
}

void InPlaceChanges::judge(const Handle& handle) {
  const ObjectPtr& object = handle.object;
  if (handle.request.write && object->write_handles == 1) judge_first_writes(object);
  if (handle.rewrites) {
    --object->rewriters;
    if (handle.kernel_cuts || !handle.rewrites->covers(object->size_bytes)) object->changed_in_part = true;
  }
  if (object->in_place) mark(object);  // again: there may have been no room for the mark before
  else if (object->patched) put_mark(object, InPlace::kPatched);
}

// The object is locked, and its last writer is about to close it.
void InPlaceChanges::judge_first_writes(const ObjectPtr& object) {
  if (!object->first_writes) return;
  put_patched(object, !object->first_writes->are_of_a_chunk(object->size_bytes));
}

// The object is locked.
void InPlaceChanges::put_patched(const ObjectPtr& object, bool patched) {
  if (object->patched.exchange(patched) == patched && !patched) return;
  if (object->in_place) mark(object);
  else put_mark(object, patched ? InPlace::kPatched : InPlace::kNo);
}

void InPlaceChanges::note_change_by_path(const ObjectPtr& object, uint64_t size_bytes) {
  const auto lock = object->lock();
  if (object->size_bytes == 0 || object->size_bytes == size_bytes) return;
  object->changes_in_place += size_bytes == 0 ? 1 : kFewChanges;
  if (size_bytes > 0) object->changed_in_part = true;
  if (object->changes_in_place >= kFewChanges) mark(object);
}

void InPlaceChanges::note_locked(Handle* handle) {
  const ObjectPtr& object = handle->object;
  if (object->locked.load(std::memory_order_relaxed)) return;
  const auto lock = object->lock();
  object->locked = object->changed_in_part = true;
  mark(object);
}

bool InPlaceChanges::closes_quietly(Handle* handle) {
  Object& object = *handle->object;
  if (object.locked.load(std::memory_order_relaxed)) return false;
  const auto lock = object.lock();
  return object.size_bytes >= kBlockBytes;
}

}  // namespace kvcachefs
