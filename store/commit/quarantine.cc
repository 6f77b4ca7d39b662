#include "store/commit/quarantine.h"

#include <mutex>
#include <utility>

#include "store/base/log.h"

namespace kvcachefs {

namespace {

// Makes a seal that ends when the record is journaled. Caller holds the object's lock.
SealedBody quarantine_record(const ObjectPtr& object) {
  object->sealing = true;
  SealedBody record;
  record.snapshot.object = object;
  record.snapshot.size_bytes = object->size_bytes;
  record.snapshot.content_version = object->content_version;
  record.snapshot.mtime_ns = object->attributes.mtime_ns;
  record.snapshot.ctime_ns = object->attributes.ctime_ns;
  record.body = object->base;
  return record;
}

}  // namespace

void Quarantine::put(const ObjectPtr& object, uint32_t base_version, const std::string& why, bool again) {
  if (object->id.is_foreign()) return put_foreign(object, base_version, why);
  SealedBody record;
  {
    Tree::Write tree = parts_.tree.write();
    const auto lock = object->lock();
    if (object->base.quarantined != again || object->base.version != base_version) return;
    tree.mark_quarantined(object);
    if (object->sealing || object->content_dirty()) return;  // a new body that replaces it is on its way
    record = quarantine_record(object);
  }
  log::error("object {} is quarantined: {}. It reads as absent from now on; `kvcachefs fsck` tells more", object->id.value,
             why);
  CommitRequest request;
  request.bodies.push_back(std::move(record));
  parts_.commits.add(std::move(request));
}

// Its name is absent on this mount from now on. Returns false if there is another body by now (clients that have this one open get the error), or no name.
bool Quarantine::hide(const ObjectPtr& object, uint32_t base_version) {
  Tree::Write tree = parts_.tree.write();
  const auto lock = object->lock();
  if (object->outdated.load().valid() || object->nlink == 0 || object->base.version != base_version || tree.is_quarantined(object->id)) return false;
  tree.found_quarantined(object->id);
  return true;
}

void Quarantine::put_missing(const ObjectPtr& object, uint32_t base_version, const std::string& why) {
  if (object->id.is_foreign()) return put_foreign(object, base_version, why);
  if (hide(object, base_version)) log::error("object {} reads as absent until it is stored anew, or until the next mount: {}", object->id.value, why);
}

// Usually its node has given the place back a moment ago, and this node will read about that next.
void Quarantine::put_foreign(const ObjectPtr& object, uint32_t base_version, const std::string& why) {
  if (!hide(object, base_version)) return;
  if (parts_.tell_owner) parts_.tell_owner(object->id);
  log::warn("object {} of another node reads as absent here until that node says something new of it: {}", object->id.value, why);
}

bool Quarantine::is_beyond_help(const Object& object) const {
  return object.lacks_a_write() && object.write_handles == 0 && !object.sealing && object.content_dirty() &&
         (object.write_error->code == Code::kCorrupt || object.write_error->code == Code::kNotFound) &&
         parts_.extents.is_lost(object.base.place);
}

bool Quarantine::put_moving(const ObjectPtr& object, const std::string& why) {
  CommitRequest request;
  bool lost = false;
  {
    Tree::Write tree = parts_.tree.write();
    const auto lock = object->lock();
    if (!object->is_moving() && !is_beyond_help(*object)) return false;
    lost = parts_.extents.is_lost(object->base.place);
    object->sealed_version = object->content_version;
    for (Unit& unit : object->units) unit.set_dirty(false);
    parts_.space.release(std::exchange(object->sealing_reserved_bytes, 0) + std::exchange(object->reserved_bytes, 0));
    tree.mark_quarantined(object);
    request.bodies.push_back(quarantine_record(object));
  }
  parts_.counters.errors_checksum.fetch_add(1, std::memory_order_relaxed);
  log::error("object {} is quarantined: {}. {}", object->id.value, why,
             lost ? "Its extent could not be synced" : "It was to be moved out of a pack that is mostly dead");
  parts_.commits.add(std::move(request));
  return true;
}

}  // namespace kvcachefs
