#include "store/writeback/urgent_lane.h"

#include <atomic>
#include <deque>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "store/base/mutex.h"
#include "store/base/thread.h"
#include "store/base/volume_error.h"

namespace kvcachefs {

// The work of one turn of the lane.
struct UrgentLane::Turn {
  CommitRequest request;
  std::vector<Snapshot> snapshots;
  std::unordered_set<const Object*> begun;  // objects of the snapshots
  std::deque<UrgentItem> taken, deferred;
};

Status UrgentLane::start() {
  KVC_ASSIGN(thread_, start_thread("kvc-urgent", [this] {
               while (queue_.wait()) step();
             }));
  return {};
}

void UrgentLane::stop() {
  ask_to_stop();
  if (thread_.joinable()) thread_.join();
}

void UrgentLane::make_durable(ObjectPtr object, bool sync, StatusCompletion done) {
  UrgentItem item{std::move(object), 0, sync, std::move(done)};
  if (item.object) {
    const auto lock = item.object->lock();
    item.content_version = item.object->content_version;
  }
  queue_.add(std::move(item));
}

void UrgentLane::make_all_durable(std::vector<ObjectPtr> objects, bool sync, StatusCompletion done) {
  if (objects.size() <= 1) return make_durable(objects.empty() ? nullptr : objects.front(), sync, std::move(done));
  struct All {
    std::atomic<size_t> open;
    LeafMutex mutex;
    Status first;
    StatusCompletion done;
  };
  auto all = std::make_shared<All>();
  all->open = objects.size();
  all->done = std::move(done);
  for (ObjectPtr& object : objects)
    make_durable(std::move(object), sync, [this, all, sync](Status status) {
      if (!status) {
        std::lock_guard lock(all->mutex);
        if (all->first) all->first = std::move(status);
      }
      if (all->open.fetch_sub(1) != 1) return;
      if (!all->first) return all->done(std::move(all->first));
      make_durable(nullptr, sync, std::move(all->done));
    });
}

bool UrgentLane::is_journaled(const UrgentItem& item) {
  if (!item.object) return true;
  const Object& object = *item.object;
  const auto lock = object.lock();
  const bool lost_its_record = !object.durable && object.content_dirty();  // to a newer version of its name: it is written anew
  return object.nlink == 0 || (object.sealed_version >= item.content_version && !lost_its_record);
}

// The object is locked.
Status UrgentLane::own_error(const Object& object) {
  if (object.lacks_a_write()) return std::unexpected(*object.write_error);
  if (!object.base.quarantined) return {};
  return fail(Code::kCorrupt, fmt::format("object {} failed its checksum and is quarantined", object.id.value));
}

void UrgentLane::take(UrgentItem item, Turn& turn) {
  if (!item.object) return turn.taken.push_back(std::move(item));
  auto lock = item.object->lock();
  if (item.sync && parts_.relocator.move(item.object)) item.content_version = item.object->content_version;
  const bool dirty = item.object->content_dirty() && item.object->nlink > 0;  // an object without a name is not kept
  const bool busy = item.object->sealing;
  // A clean body was sealed before, perhaps by the other lane, and may not be synced.
  Status own;
  if (item.sync && !dirty && !busy && parts_.extents.is_lost(item.object->base.place))
    own = item.object->nlink > 0 ? own_error(*item.object) : Status();
  else if (item.sync && !dirty && !busy && item.object->base.place.extent.valid())
    turn.request.extents.push_back(item.object->base.place.extent);
  lock.unlock();
  if (!own) return item.done(std::move(own));  // left out of the commit, which would fail for all calls
  if (turn.begun.contains(item.object.get()) || (!dirty && !busy)) return turn.taken.push_back(std::move(item));
  Snapshot snapshot;
  if (busy || !parts_.sealer.begin_seal(item.object, Sealer::Promise::kMayEnd, snapshot)) return turn.deferred.push_back(std::move(item));
  turn.begun.insert(item.object.get());
  turn.snapshots.push_back(std::move(snapshot));
  turn.taken.push_back(std::move(item));
}

// `failed`: the objects whose seal failed. Calls that wait for those are answered at once, the others once the journal has their bodies.
void UrgentLane::commit(Turn& turn, const std::unordered_set<ObjectId>& failed, const Status& status) {
  if (turn.taken.empty()) return;
  auto waiting = std::make_shared<std::deque<UrgentItem>>();
  for (UrgentItem& item : turn.taken) {
    if (item.object && failed.contains(item.object->id)) {
      auto lock = item.object->lock();
      Status own = own_error(*item.object);
      lock.unlock();
      // The body was only to be moved, and stays where it is. It has to be synced there: the item is queued once more.
      if (own && status) queue_.add(std::move(item));
      else item.done(status_of_volume(own ? status : std::move(own)));
      continue;
    }
    turn.request.sync |= item.sync;
    waiting->push_back(std::move(item));
  }
  turn.request.done = [this, waiting, wrote = !turn.request.bodies.empty()](Status result) {
    if (result && wrote) parts_.refusals.succeeded();
    for (UrgentItem& item : *waiting) {
      if (!result || is_journaled(item)) {
        item.done(status_of_volume(result));
        continue;
      }
      // The body could not take over the place of another: it is sealed again.
      queue_.add(std::move(item));
    }
  };
  parts_.commits.add(std::move(turn.request));
}

// Either another thread seals the body, and requeue_deferred() follows when that ends, or its content cannot be sealed.
void UrgentLane::defer(UrgentItem item) {
  auto lock = item.object->lock();
  if (item.object->lacks_a_write() && !item.object->raw) {
    Error error = *item.object->write_error;
    lock.unlock();
    return item.done(std::unexpected(std::move(error)));
  }
  const bool busy = item.object->sealing;
  busy ? queue_.defer(std::move(item)) : queue_.add(std::move(item));
}

bool UrgentLane::step() {
  std::vector<UrgentItem> items = queue_.take();
  if (items.empty()) return false;
  Turn turn;
  for (UrgentItem& item : items) take(std::move(item), turn);
  Status status;
  std::unordered_set<ObjectId> failed;
  for (const Snapshot& snapshot : turn.snapshots) failed.insert(snapshot.object->id);
  if (!turn.snapshots.empty()) turn.request.bodies = parts_.sealer.seal(std::move(turn.snapshots), target_, status);
  turn.request.closed = std::exchange(target_.closed, {});
  for (const SealedBody& body : turn.request.bodies) failed.erase(body.snapshot.object->id);
  if (!turn.request.bodies.empty()) parts_.health.report(Health::Of::kData, {});
  commit(turn, failed, status);
  for (UrgentItem& item : turn.deferred) defer(std::move(item));
  return true;
}

}  // namespace kvcachefs
