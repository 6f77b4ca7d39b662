#include "store/writeback/bulk_lane.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <unordered_map>

#include "store/base/thread.h"
#include "store/tree/journaled_version.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kBatchBytes = 256 * kMiB;  // sealed before one commit
constexpr size_t kBatchBodies = 8192;
constexpr int kMostFailedCommits = 50;        // 100 ms apart (take_drains()), before a drain is answered with the error
constexpr int64_t kQuietNs = 1'000'000'000;   // a body open for writing is sealed after this long without a write

}  // namespace

Status BulkLane::start() {
  KVC_ASSIGN(thread_, start_thread("kvc-bulk", [this] { run(); }));
  return {};
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
    // Under memory pressure it runs again at once, as long as that helps; otherwise after the next interval.
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
        // Time alone will make it ready. Any other body is made ready by a call that wakes the lane, so a file that stays open does not
        // wake an idle mount.
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
      kept.push_back(std::move(object));  // it leaves the queue when it is found clean
    }
  }
  parts_.dirty.put_back_content(std::move(kept));
  // Places bodies of one prefix next to each other, in prefix order, as far as probes and creates told the order.
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

// Takes the drains, and lists the bodies that each waits for. Answers drains that waited too long for a journal that takes nothing.
std::vector<BulkLane::Drain> BulkLane::take_drains() {
  std::vector<Drain> drains;
  std::optional<Error> failed;  // of the previous commit
  parts_.dirty.begin_round();         // before they are taken: a drain that comes meanwhile gets another round
  {
    std::lock_guard lock(mutex_);
    drains.swap(drains_);
    failed = std::exchange(commit_error_, std::nullopt);
  }
  if (failed)  // the bodies that they wait for are dirty again, as long as the journal takes nothing
    std::erase_if(drains, [&](Drain& drain) {
      if (!drain.listed || ++drain.failed_commits < kMostFailedCommits) return false;
      drain.done(std::unexpected(*failed));
      return true;
    });
  if (failed && parts_.background) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (Drain& drain : drains) {
    if (std::exchange(drain.listed, true)) continue;
    if (drain.sync && !parts_.relocator.is_in_vain()) parts_.relocator.move_all();  // otherwise there is no mark, and the caller is refused
    drain.bodies = finished_dirty_bodies(drain.for_room);
  }
  return drains;
}

// Seals a batch, or spills a body if none is ready and memory is short. False: it achieved nothing. `status`: the result of the seals.
bool BulkLane::seal_finished(bool force, Sealer::Promise promise, Remaining& remaining, Status& status) {
  if (!parts_.refusals.may_try() || (parts_.refusals.journal_lacks_room() && records_wait())) {
    remaining.some = true;
    if (auto last = parts_.refusals.last()) status = std::unexpected(std::move(*last));
    return false;
  }
  std::vector<Snapshot> snapshots = choose(force, promise, remaining);
  if (snapshots.empty()) {
    const bool spilled = memory_is_wanted() && parts_.spiller.spill_one();
    // Nothing is left to try, unless a spill failed a moment ago: the next writer finds out whether the volume takes bytes again.
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
  remaining.commits = true;
  return helped;  // if not, the next try is no better than this one and can wait
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
    remaining.some = true;  // one at a time: the commit in progress may take the names along; otherwise the next turn does
}

// Answers drains whose bodies are journaled, by a commit, and leaves those that still wait. False: no commit was added.
bool BulkLane::settle_drains(std::vector<Drain>& drains, const Status& status) {
  bool any = false;
  std::vector<Drain> waiting;
  for (Drain& drain : drains) {
    Tree::Read tree = parts_.tree.read();  // for nlink
    std::erase_if(drain.bodies, [for_room = drain.for_room](const auto& body) {
      const auto lock = body.first->lock();
      const Object& object = *body.first;
      if (for_room && object.promises_room() && !object.sealing) return true;  // promised since: it waits for the room that this drain is to make
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
  if (!remaining.commits) commit_pending_names(remaining);  // also after a spill, which commits nothing
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

// The bodies that a drain that begins now waits for, with their versions.
std::vector<std::pair<ObjectPtr, uint64_t>> BulkLane::finished_dirty_bodies(bool for_room) {
  std::vector<std::pair<ObjectPtr, uint64_t>> bodies;
  const Tree::Read tree = parts_.tree.read();  // for nlink
  if (!for_room) tree.names().for_each_dirty([&](const NameState& state) { journal_former_version(tree, state, parts_.changes); });
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
  drain.done = [done = std::move(done)](Status status) mutable {
    // It concerns a file of the volume, not one of the client. Other reasons reach the client as they are: umount tells them.
    if (!status && status.error().code == Code::kNotFound) status.error().code = Code::kIo;
    done(std::move(status));
  };
  add(std::move(drain));
}

void BulkLane::drain_for_room(StatusCompletion done) {
  Drain drain;
  drain.for_room = true;
  drain.done = std::move(done);
  add(std::move(drain));
}

void BulkLane::add(Drain drain) {
  // Calls that wait for room, one after another, are no reason to try the volume at once; space that came back is one.
  if (!drain.for_room) parts_.refusals.try_soon();
  {
    std::lock_guard lock(mutex_);
    drains_.push_back(std::move(drain));
  }
  parts_.dirty.wake(true);
}

}  // namespace kvcachefs
