// Which files are no chunks: what is locked, appended to, or changed in place again and again. The kernel may not read such a
// file past the daemon, for its readers would not see what changes; and a lock file has no versions. What was found is kept with
// the attributes of the object, so that it holds after a remount.
#include <algorithm>

#include "store/object/in_place_mark.h"
#include "store/store_impl.h"

namespace kvcachefs {

namespace {

constexpr uint32_t kFewChanges = 2;  // a whole rewrite is one, a change of some bytes is two

auto mark_in(std::vector<Xattr>& xattrs) {
  return std::lower_bound(xattrs.begin(), xattrs.end(), kInPlaceMark, [](const Xattr& x, std::string_view n) { return x.name < n; });
}

}  // namespace

// The object is locked.
void StoreImpl::set_in_place(const ObjectPtr& object) {
  if (object->in_place.exchange(true) || read_only_ || space_.free_bytes() == 0) return;
  auto& xattrs = object->attributes.xattrs;
  const auto where = mark_in(xattrs);
  if (where != xattrs.end() && where->name == kInPlaceMark) return;
  xattrs.insert(where, Xattr{std::string(kInPlaceMark), {}});
  mark_attributes_dirty(object);
  dirty_.wake();
}

// The object is locked: what the first change by this handle will be.
uint8_t StoreImpl::weight_of_changes(const Tree::View&, const Object& object, const OpenRequest& request) {
  if (!request.write || object.size_bytes == 0) return 0;
  if (request.append) return kFewChanges;
  return object.published && !request.truncate ? kFewChanges : 1;
}

// The object is locked. Bytes or size are about to change.
void StoreImpl::note_change(const ObjectPtr& object, Handle* handle) {
  object->changes_in_place += std::exchange(handle->weight_of_changes, 0);
  if (object->changes_in_place >= kFewChanges) set_in_place(object);
}

void StoreImpl::note_change_by_path(const ObjectPtr& object, uint64_t size_bytes) {
  const auto lock = object->lock();
  if (object->size_bytes == 0 || object->size_bytes == size_bytes) return;
  object->changes_in_place += size_bytes == 0 ? 1 : kFewChanges;
  if (object->changes_in_place >= kFewChanges) set_in_place(object);
}

void StoreImpl::note_locked(Handle* handle) {
  const ObjectPtr& object = handle->object;
  if (object->locked.load(std::memory_order_relaxed)) return;
  const auto lock = object->lock();
  object->locked = true;
  set_in_place(object);
}

bool StoreImpl::closes_quietly(Handle* handle) {
  Object& object = *handle->object;
  if (object.locked.load(std::memory_order_relaxed)) return false;
  const auto lock = object.lock();
  return object.size_bytes >= kBlockBytes;
}

}  // namespace kvcachefs
