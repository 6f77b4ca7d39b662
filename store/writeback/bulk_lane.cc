#include "store/writeback/bulk_lane.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <unordered_map>

#include "store/base/thread.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kBatchBytes = 256 * kMiB;  // sealed before the journal hears of it
constexpr size_t kBatchBodies = 8192;
constexpr int kMostFailedCommits = 50;        // 100 ms apart (take_drains()), before a drain is told
constexpr int64_t kQuietNs = 1'000'000'000;   // a body open for writing is sealed when left alone this long

}  // namespace

void BulkLane::start() {
  thread_ = start_thread("kvc-bulk", [this] { run(); });
}

void BulkLane::ask_to_stop() {
  stopping_ = true;
  parts_.dirty.stop();
}

void BulkLane::stop() {
  ask_to_stop();
  if (thread_.joinable()) thread_.join();
}

void BulkLane::run() {
  while (true) {
    if (!parts_.dirty.wait_for_work() || !parts_.dirty.wait_out(std::chrono::milliseconds(parts_.options.flush_interval_ms()))) return;
    // Under pressure at once again, as long as it helps; else there is time until the next interval.
    bool helped = step(false);
    while (helped && !stopping_ && memory_is_wanted()) helped = step(false);
    if (!helped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

std::vector<Snapshot> BulkLane::choose(bool force, Sealer::Promise promise, Remaining& remaining) {
  std::vector<ObjectPtr> candidates = parts_.dirty.take_content();
  std::vector<ObjectPtr> kept;
  std::vector<std::pair<uint64_t, Snapshot>> chosen;
  std::vector<LayoutItem> layout;
  uint64_t bytes = 0;
  const int64_t now = parts_.clock.monotonic_ns();
  {
    const Tree::Read tree = parts_.tree.read();  // for nlink
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
      } else if (ready && parts_.sealer.begin_seal(object, promise, snapshot)) {
        if (!snapshot.raw) bytes += snapshot.size_bytes;
        const ChainOrigin& origin = object->origin;
        layout.push_back({object->id, origin.key, origin.stem, origin.sequence, origin.arrival});
        chosen.emplace_back(0, std::move(snapshot));
      }
      kept.push_back(std::move(object));  // leaves the queue when it is found clean
    }
  }
  parts_.dirty.put_back_content(std::move(kept));
  // Bodies of one prefix next to each other, in prefix order, as far as probes and creates told it.
  std::unordered_map<ObjectId, uint64_t> rank;
  for (ObjectId id : parts_.accesses.lay_out(layout)) rank.emplace(id, rank.size());
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
std::vector<BulkLane::Drain> BulkLane::take_drains() {
  std::vector<Drain> drains;
  std::optional<Error> failed;  // the commit before this
  parts_.dirty.begin_round();         // before they are taken: one that comes meanwhile has another round
  {
    std::lock_guard lock(mutex_);
    drains.swap(drains_);
    failed = std::exchange(commit_error_, std::nullopt);
  }
  if (failed)  // what they wait for is dirty again, for as long as the journal takes nothing
    std::erase_if(drains, [&](Drain& drain) {
      if (!drain.listed || ++drain.failed_commits < kMostFailedCommits) return false;
      drain.done(std::unexpected(*failed));
      return true;
    });
  if (failed && parts_.background) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (Drain& drain : drains) {
    if (std::exchange(drain.listed, true)) continue;
    if (drain.sync && !parts_.relocator.is_in_vain()) parts_.relocator.move_all();  // or there is no mark, and who asked would be refused
    drain.bodies = finished_dirty_bodies(drain.for_room);
  }
  return drains;
}

// Or spills, where nothing is ready and memory is short. False: nothing to do. `status`: how the sealing went.
bool BulkLane::seal_finished(bool force, Sealer::Promise promise, Remaining& remaining, Status& status) {
  if (!parts_.refusals.may_try() || (parts_.refusals.journal_lacks_room() && records_wait())) {
    remaining.some = true;
    if (auto last = parts_.refusals.last()) status = std::unexpected(std::move(*last));
    return false;
  }
  std::vector<Snapshot> snapshots = choose(force, promise, remaining);
  if (snapshots.empty()) {
    const bool spilled = memory_is_wanted() && parts_.spiller.spill_one();
    // Nothing is left to try (a spill that failed a moment ago apart): the next writer finds out whether the volume takes it.
    if (!spilled && parts_.refusals.may_try()) parts_.refusals.succeeded();
    return spilled;
  }
  CommitRequest request;
  request.bodies = parts_.sealer.seal(std::move(snapshots), target_, status);
  request.closed = std::exchange(target_.closed, {});
  parts_.health.report(Health::Of::kData, status);
  const bool helped = status || !request.bodies.empty();
  if (!helped) parts_.refusals.failed(status.error());
  request.done = [this, wrote = !request.bodies.empty()](Status committed) {
    parts_.refusals.journal_ended(committed);
    if (committed && wrote) parts_.refusals.succeeded();
    if (committed) return;
    parts_.refusals.failed(committed.error());
    std::lock_guard lock(mutex_);
    commit_error_ = std::move(committed).error();
  };
  parts_.commits.add(std::move(request));
  return helped;  // else the next try is as good as this one was, and can wait
}

bool BulkLane::records_wait() const {
  const Tree::Read tree = parts_.tree.read();
  return tree.names().has_pending() || parts_.dirty.has_attributes();
}

void BulkLane::commit_pending_names(Remaining& remaining) {
  if (!records_wait()) return;
  if (!parts_.refusals.may_try_journal()) {
    remaining.some = true;
    return;
  }
  CommitRequest request;
  request.done = [this](const Status& committed) { parts_.refusals.journal_ended(committed); };
  if (parts_.commits.idle())
    parts_.commits.add(std::move(request));
  else
    remaining.some = true;  // one at a time: what is in work may take them along, else the next turn sees
}

// Leaves those that still wait. False: none of them is answered by a commit.
bool BulkLane::settle_drains(std::vector<Drain>& drains, const Status& status) {
  bool any = false;
  std::vector<Drain> waiting;
  for (Drain& drain : drains) {
    Tree::Read tree = parts_.tree.read();  // for nlink
    std::erase_if(drain.bodies, [for_room = drain.for_room](const auto& body) {
      const auto lock = body.first->lock();
      const Object& object = *body.first;
      if (for_room && object.promises_room() && !object.sealing) return true;  // by now: it waits for the room that this drain is to make
      return object.sealed_version >= body.second || object.nlink == 0 || !object.sealable() || !object.can_be_recorded();
    });
    tree.unlock();
    if (!status) {
      drain.done(status);
    } else if (drain.bodies.empty()) {
      CommitRequest request;
      request.sync = request.sync_all = drain.sync;
      request.done = std::move(drain.done);
      parts_.commits.add(std::move(request));
      any = true;
    } else {
      waiting.push_back(std::move(drain));
    }
  }
  drains = std::move(waiting);
  return any;
}

bool BulkLane::step(bool force) {
  std::vector<Drain> drains = take_drains();
  Remaining remaining;
  Status status;
  const bool all = force || !std::ranges::all_of(drains, &Drain::for_room);
  bool any = seal_finished(force || !drains.empty(), all ? Sealer::Promise::kMayEnd : Sealer::Promise::kKept, remaining, status);
  if (!any) commit_pending_names(remaining);
  any |= settle_drains(drains, status);
  if (remaining.some) parts_.dirty.note_work(/*hurry=*/false);
  if (drains.empty() && !remaining.at_once) return any;
  {
    std::lock_guard lock(mutex_);
    drains_.insert(drains_.begin(), std::make_move_iterator(drains.begin()), std::make_move_iterator(drains.end()));
  }
  parts_.dirty.note_work(/*hurry=*/true);
  return any;
}

// What a drain that begins now waits for.
std::vector<std::pair<ObjectPtr, uint64_t>> BulkLane::finished_dirty_bodies(bool for_room) {
  std::vector<std::pair<ObjectPtr, uint64_t>> bodies;
  const Tree::Read tree = parts_.tree.read();  // for nlink
  for (ObjectPtr& object : parts_.dirty.content()) {
    const auto lock = object->lock();
    if (for_room && object->promises_room()) continue;
    if (object->content_dirty() && object->can_be_recorded() && object->nlink > 0)
      bodies.emplace_back(object, object->content_version);
  }
  return bodies;
}

void BulkLane::drain(bool sync, StatusCompletion done) {
  Drain drain;
  drain.sync = sync;
  drain.done = std::move(done);
  add(std::move(drain));
}

void BulkLane::drain_for_room(StatusCompletion done) {
  Drain drain;
  drain.for_room = true;
  drain.done = std::move(done);
  add(std::move(drain));
}

void BulkLane::add(Drain drain) {
  // Calls that wait for room, one after another, are no reason to hurry: what came back since is.
  if (!drain.for_room) parts_.refusals.try_soon();
  {
    std::lock_guard lock(mutex_);
    drains_.push_back(std::move(drain));
  }
  parts_.dirty.wake(true);
}

}  // namespace kvcachefs
