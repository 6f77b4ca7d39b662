// The two lanes that seal: bulk, for what is finished, and urgent, for what somebody waits for. Each chooses what goes,
// has it sealed (store_seal.cc) and hands the result to the committer; who waits is answered when that is done.
#include <algorithm>

#include <fmt/format.h>

#include "store/store_impl.h"
#include "store/store_seal.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kBatchBytes = 256 * kMiB;  // sealed before the journal hears of it
constexpr size_t kBatchBodies = 8192;
constexpr int kMostFailedCommits = 50;        // 100 ms apart (bulk_step()), before a drain is told
constexpr int64_t kQuietNs = 1'000'000'000;   // a body open for writing is sealed when left alone this long

}  // namespace

// --- bulk ---

void StoreImpl::volume_failed(const Status& status) {
  refusals_.failed(status.error());
  // What it does not take now is not accepted either: inodes and quotas show in no count of free bytes.
  if (status.error().code == Code::kNoSpace) space_.set_refused(true);
}

void StoreImpl::volume_took_it() {
  if (refusals_.succeeded()) space_.set_refused(false);
}

std::vector<Snapshot> StoreImpl::choose_for_bulk(bool force, Remaining& remaining) {
  std::vector<ObjectPtr> candidates = dirty_.take_content();
  std::vector<ObjectPtr> kept;
  std::vector<std::pair<uint64_t, Snapshot>> chosen;
  std::vector<LayoutItem> layout;
  uint64_t bytes = 0;
  const int64_t now = clock_.monotonic_ns();
  {
    const Tree::Read tree = tree_->read();  // for nlink
    for (ObjectPtr& object : candidates) {
      bool ready = false;
      {
        const auto lock = object->lock();
        if ((object->nlink == 0 && object->handles == 0) || !object->content_dirty()) {
          object->in_dirty_queue = false;
          continue;
        }
        const bool may_be = object->nlink > 0 && object->can_be_recorded() && object->sealable();
        ready = may_be && (force || object->raw || object->write_handles == 0 || now - object->last_write_ns > kQuietNs);
        // Time alone makes it ready. Whoever makes another so kicks the lane: an idle mount is not woken for what stays open.
        remaining.some |= may_be || object->sealing;
      }
      Snapshot snapshot;
      if (ready && (bytes >= kBatchBytes || chosen.size() >= kBatchBodies)) {
        remaining.at_once = true;
      } else if (ready && snapshot_for_seal(object, force ? Promise::kMayEnd : Promise::kKept, snapshot)) {
        if (!snapshot.raw) bytes += snapshot.size_bytes;
        const ChainOrigin& origin = object->origin;
        layout.push_back({object->id, origin.key, origin.stem, origin.sequence, origin.arrival});
        chosen.emplace_back(0, std::move(snapshot));
      }
      kept.push_back(std::move(object));  // leaves the queue when it is found clean
    }
  }
  dirty_.put_back_content(std::move(kept));
  // Bodies of one prefix next to each other, in prefix order, as far as probes and creates told it.
  std::unordered_map<ObjectId, uint64_t> rank;
  for (ObjectId id : accesses_->lay_out(layout)) rank.emplace(id, rank.size());
  for (auto& [position, snapshot] : chosen) {
    auto found = rank.find(snapshot.object->id);
    position = found == rank.end() ? UINT64_MAX : found->second;
  }
  std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Snapshot> snapshots;
  for (auto& [sequence, snapshot] : chosen) snapshots.push_back(std::move(snapshot));
  return snapshots;
}

// With what each waits for. Those that waited too long for a journal that takes nothing are answered.
std::vector<StoreImpl::Drain> StoreImpl::take_drains() {
  std::vector<Drain> drains;
  std::optional<Error> failed;  // the commit before this
  dirty_.begin_round();         // before they are taken: one that comes meanwhile has another round
  {
    std::lock_guard lock(bulk_mutex_);
    drains.swap(drains_);
    failed = std::exchange(bulk_commit_error_, std::nullopt);
  }
  if (failed)  // what they wait for is dirty again, for as long as the journal takes nothing
    std::erase_if(drains, [&](Drain& drain) {
      if (!drain.listed || ++drain.failed_commits < kMostFailedCommits) return false;
      drain.done(std::unexpected(*failed));
      return true;
    });
  if (failed && background_) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (Drain& drain : drains) {
    if (std::exchange(drain.listed, true)) continue;
    if (drain.sync && !rescue_in_vain_) move_all_from_lost();  // or there is no mark, and who asked would be refused
    drain.bodies = finished_dirty_bodies();
  }
  return drains;
}

// Or spills, where nothing is ready and memory is short. False: nothing to do. `status`: how the sealing went.
bool StoreImpl::seal_finished(bool force, Remaining& remaining, Status& status) {
  if (!refusals_.may_try()) {
    remaining.some = true;
    if (auto last = refusals_.last()) status = std::unexpected(std::move(*last));
    return false;
  }
  std::vector<Snapshot> snapshots = choose_for_bulk(force, remaining);
  if (snapshots.empty()) {
    const bool spilled = (pool_->under_pressure() || !resumer_.waiters().nobody_waits()) && spill_one();
    // Nothing is left to try (a spill that failed a moment ago apart): the next writer finds out whether the volume takes it.
    if (!spilled && refusals_.may_try()) volume_took_it();
    return spilled;
  }
  CommitRequest request;
  request.bodies = seal(std::move(snapshots), *bulk_target_, status);
  request.closed = std::exchange(bulk_target_->closed, {});
  health_.report(Health::Of::kData, status);
  const bool helped = status || !request.bodies.empty();
  if (!helped) volume_failed(status);
  request.done = [this, wrote = !request.bodies.empty()](Status committed) {
    if (committed && wrote) volume_took_it();
    if (committed) return;
    volume_failed(committed);
    std::lock_guard lock(bulk_mutex_);
    bulk_commit_error_ = std::move(committed).error();
  };
  commits_.add(std::move(request));
  return helped;  // else the next try is as good as this one was, and can wait
}

void StoreImpl::commit_pending_names(Remaining& remaining) {
  {
    const Tree::Read tree = tree_->read();
    if (!tree.names().has_pending() && !dirty_.has_attributes()) return;
  }
  if (commits_.idle())
    commits_.add({});
  else
    remaining.some = true;  // one at a time: what is in work may take them along, else the next turn sees
}

// Leaves those that still wait. False: none of them is answered by a commit.
bool StoreImpl::settle_drains(std::vector<Drain>& drains, const Status& status) {
  bool any = false;
  std::vector<Drain> waiting;
  for (Drain& drain : drains) {
    Tree::Read tree = tree_->read();  // for nlink
    std::erase_if(drain.bodies, [](const auto& body) {
      const auto lock = body.first->lock();
      const Object& object = *body.first;
      return object.sealed_version >= body.second || object.nlink == 0 || !object.sealable() || !object.can_be_recorded();
    });
    tree.unlock();
    if (!status) {
      drain.done(status);
    } else if (drain.bodies.empty()) {
      CommitRequest request;
      request.sync = request.sync_all = drain.sync;
      request.done = std::move(drain.done);
      commits_.add(std::move(request));
      any = true;
    } else {
      waiting.push_back(std::move(drain));
    }
  }
  drains = std::move(waiting);
  return any;
}

bool StoreImpl::bulk_step(bool force) {
  std::vector<Drain> drains = take_drains();
  Remaining remaining;
  Status status;
  bool any = seal_finished(force || !drains.empty(), remaining, status);
  if (!any) commit_pending_names(remaining);
  any |= settle_drains(drains, status);
  if (remaining.some) dirty_.note_work(/*hurry=*/false);
  if (drains.empty() && !remaining.at_once) return any;
  {
    std::lock_guard lock(bulk_mutex_);
    drains_.insert(drains_.begin(), std::make_move_iterator(drains.begin()), std::make_move_iterator(drains.end()));
  }
  dirty_.note_work(/*hurry=*/true);
  return any;
}

// What a drain that begins now waits for.
std::vector<std::pair<ObjectPtr, uint64_t>> StoreImpl::finished_dirty_bodies() {
  std::vector<std::pair<ObjectPtr, uint64_t>> bodies;
  const Tree::Read tree = tree_->read();  // for nlink
  for (ObjectPtr& object : dirty_.content()) {
    const auto lock = object->lock();
    if (object->content_dirty() && object->can_be_recorded() && object->nlink > 0)
      bodies.emplace_back(object, object->content_version);
  }
  return bodies;
}

void StoreImpl::drain(bool sync, StatusCompletion done) {
  Drain drain;
  drain.sync = sync;
  drain.done = std::move(done);
  refusals_.try_soon();
  {
    std::lock_guard lock(bulk_mutex_);
    drains_.push_back(std::move(drain));
  }
  dirty_.wake(true);
}

// --- urgent ---

void StoreImpl::make_durable(ObjectPtr object, bool sync, StatusCompletion done) {
  UrgentItem item{std::move(object), 0, sync, std::move(done)};
  if (item.object) {
    const auto lock = item.object->lock();
    item.content_version = item.object->content_version;
  }
  urgent_.add(std::move(item));
}

// Those that are sealed at once go together, with one sync; names in any case, after the bodies. Answers with the first error.
void StoreImpl::make_all_durable(std::vector<ObjectPtr> objects, bool sync, StatusCompletion done) {
  if (objects.size() <= 1) return make_durable(objects.empty() ? nullptr : objects.front(), sync, std::move(done));
  struct All {
    std::atomic<size_t> open;
    std::mutex mutex;
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

bool StoreImpl::is_journaled(const UrgentItem& item) {
  if (!item.object) return true;
  const auto lock = item.object->lock();
  return item.object->sealed_version >= item.content_version || item.object->nlink == 0;
}

// The object is locked.
Status StoreImpl::own_error(const Object& object) {
  if (object.lacks_a_write()) return std::unexpected(*object.write_error);
  if (!object.base.quarantined) return {};
  return fail(Code::kCorrupt, fmt::format("object {} failed its checksum and is quarantined", object.id.value));
}

// What one turn of the lane has in hand.
struct StoreImpl::UrgentTurn {
  CommitRequest request;
  std::vector<Snapshot> snapshots;
  std::deque<UrgentItem> taken, deferred;
};

void StoreImpl::take_urgent(UrgentItem item, UrgentTurn& turn) {
  if (!item.object) return turn.taken.push_back(std::move(item));
  auto lock = item.object->lock();
  if (item.sync && move_from_lost(item.object)) item.content_version = item.object->content_version;
  const bool dirty = item.object->content_dirty() && item.object->nlink > 0;  // without a name nothing of it is kept
  const bool busy = item.object->sealing;
  // Sealed before, perhaps by the other lane, and perhaps not synced.
  Status own;
  if (item.sync && !dirty && !busy && extents_->is_lost(item.object->base.place))
    own = item.object->nlink > 0 ? own_error(*item.object) : Status();
  else if (item.sync && !dirty && !busy && item.object->base.place.extent.valid())
    turn.request.extents.push_back(item.object->base.place.extent);
  lock.unlock();
  if (!own) return item.done(std::move(own));  // not in the commit, which would fail for everybody
  const bool mine = std::any_of(turn.snapshots.begin(), turn.snapshots.end(),
                                [&](const Snapshot& each) { return each.object == item.object; });
  if (mine || (!dirty && !busy)) return turn.taken.push_back(std::move(item));
  Snapshot snapshot;
  if (busy || !snapshot_for_seal(item.object, Promise::kMayEnd, snapshot)) return turn.deferred.push_back(std::move(item));
  turn.snapshots.push_back(std::move(snapshot));
  turn.taken.push_back(std::move(item));
}

// `failed`: of what was to be sealed. Those who wait for it are answered at once, the others when the journal has it.
void StoreImpl::commit_urgent(UrgentTurn& turn, const std::vector<ObjectId>& failed, const Status& status) {
  if (turn.taken.empty()) return;
  auto waiting = std::make_shared<std::deque<UrgentItem>>();
  for (UrgentItem& item : turn.taken) {
    if (item.object && std::count(failed.begin(), failed.end(), item.object->id) > 0) {
      auto lock = item.object->lock();
      Status own = own_error(*item.object);
      lock.unlock();
      item.done(own ? status : std::move(own));
      continue;
    }
    turn.request.sync |= item.sync;
    waiting->push_back(std::move(item));
  }
  turn.request.done = [this, waiting, wrote = !turn.request.bodies.empty()](Status result) {
    if (result && wrote) volume_took_it();
    for (UrgentItem& item : *waiting) {
      if (!result || is_journaled(item)) {
        item.done(result);
        continue;
      }
      // Its body was to take over the place of another, and that did not work out: it is sealed again.
      urgent_.add(std::move(item));
    }
  };
  commits_.add(std::move(turn.request));
}

// Either somebody else seals it, and requeue_deferred() follows when that ends, or its content cannot be sealed.
void StoreImpl::defer_urgent(UrgentItem item) {
  auto lock = item.object->lock();
  if (item.object->lacks_a_write()) {
    Error error = *item.object->write_error;
    lock.unlock();
    return item.done(std::unexpected(std::move(error)));
  }
  const bool busy = item.object->sealing;
  busy ? urgent_.defer(std::move(item)) : urgent_.add(std::move(item));
}

bool StoreImpl::urgent_step() {
  std::vector<UrgentItem> items = urgent_.take();
  if (items.empty()) return false;
  UrgentTurn turn;
  for (UrgentItem& item : items) take_urgent(std::move(item), turn);
  Status status;
  std::vector<ObjectId> failed;
  for (const Snapshot& snapshot : turn.snapshots) failed.push_back(snapshot.object->id);
  if (!turn.snapshots.empty()) turn.request.bodies = seal(std::move(turn.snapshots), *urgent_target_, status);
  turn.request.closed = std::exchange(urgent_target_->closed, {});
  for (const SealedBody& body : turn.request.bodies) std::erase(failed, body.snapshot.object->id);
  if (!turn.request.bodies.empty()) health_.report(Health::Of::kData, {});
  commit_urgent(turn, failed, status);
  for (UrgentItem& item : turn.deferred) defer_urgent(std::move(item));
  return true;
}

}  // namespace kvcachefs
