#include "store/commit/committer.h"

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/thread.h"

namespace kvcachefs {

Status Committer::start() {
  running_ = true;
  KVC_ASSIGN(thread_, start_thread("kvc-committer", [this] {
               while (parts_.queue.wait()) step();
             }));
  return {};
}

void Committer::stop() {
  parts_.queue.stop();
  if (thread_.joinable()) thread_.join();
  running_ = false;
}

bool Committer::step() {
  Commit commit;
  commit.requests = parts_.queue.take();
  if (commit.requests.empty()) return false;
  const size_t count = commit.requests.size();
  Status status = check_fence();
  if (status) status = sync_data(commit);
  builder_.take_rows(commit);
  if (status) builder_.take_nameless(commit);
  while (status && builder_.build(commit)) status = journal_batch(commit);
  Status marked;
  if (status) {
    if (commit.sync) status = sync_journal();
    if (status && commit.sync) kill_point("journal-synced");
    if (status && commit.sync_all) marked = may_mark();
    if (status && commit.sync_all && marked) status = mark_synced();
    if (status && commit.sync) parts_.counters.syncs.fetch_add(1, std::memory_order_relaxed);
  } else {
    builder_.give_up(commit);
  }
  parts_.health.report(Health::Of::kJournal, status);
  parts_.builds.records.settle(commit.accepted_bytes, status.has_value());
  parts_.settles.record_waiters.resume();
  if (!status) {
    parts_.counters.errors_journal.fetch_add(1, std::memory_order_relaxed);
    failure_.tell("journal: " + status.error().message);
    parts_.builds.dirty.wake();  // to try again
  } else if (commit.appended_bytes > 0 || commit.sync) {  // the journal took something
    failure_.over();
  }
  parts_.builds.accesses.not_kept(commit.early_rows);
  for (const CommitRequest& request : commit.requests)
    parts_.builds.dead.packs_closed(request.closed);  // all bodies in them are committed or given up
  parts_.queue.settled(count);
  parts_.builds.dirty.seal_ended();
  if (!parts_.resumer.waiters().nobody_waits()) parts_.resumer.memory_came_back();  // journaled bytes can be dropped
  if (status) status = check_fence();  // this process may have been stopped meanwhile
  for (CommitRequest& request : commit.requests) {
    if (!request.done) continue;
    if (status && request.sync_all && !marked) request.done(marked);
    else request.done(status && request.sync ? parts_.extents.told_of_raw(request.extents) : status);
  }
  return true;
}

Status Committer::commit_and_wait(CommitRequest request) {
  auto promise = std::make_shared<std::promise<Status>>();
  std::future<Status> answer = promise->get_future();
  request.done = [promise](Status status) { promise->set_value(std::move(status)); };
  parts_.queue.add(std::move(request));
  if (!running_.load())
    while (step()) {
    }
  return answer.get();
}

Status Committer::journal_batch(Commit& commit) {
  JournalPosition after;
  if (!commit.batch.records.empty()) {
    kill_point("batch-made");
    KVC_ASSIGN(after, append(commit.batch));
    if (parts_.fence != nullptr) parts_.fence->heard_of();
    kill_point("batch-appended");
    if (commit.replaces) kill_point("replacement-appended");
    if (commit.removes) kill_point("removal-appended");
    parts_.counters.journal_batches.fetch_add(1, std::memory_order_relaxed);
    commit.appended_bytes = parts_.journal.appended().bytes_in_all;
  }
  Status applied = apply(commit, after);
  if (!applied) log::error("index: {}", applied.error().message);
  kill_point("batch-applied");
  return {};
}

Result<JournalPosition> Committer::append(const Batch& batch) {
  return parts_.room.write([&] { return parts_.journal.append(batch); });
}

Status Committer::sync_journal() {
  const uint64_t synced_bytes = parts_.extents.synced_bytes();
  const Status status = parts_.room.write([&] { return parts_.journal.sync(); });
  if (status) parts_.counters.durable_bytes = synced_bytes;
  return status;
}

Status Committer::sync_data(Commit& commit) {
  std::vector<ExtentId> extents;
  for (CommitRequest& request : commit.requests) {
    commit.sync |= request.sync || request.sync_all;
    commit.sync_all |= request.sync_all;
    if (!request.sync) continue;
    for (const SealedBody& sealed : request.bodies)  // also a shared place: it may not be synced either
      if (sealed.body.place.extent.valid()) request.extents.push_back(sealed.body.place.extent);
    extents.insert(extents.end(), request.extents.begin(), request.extents.end());
  }
  if (commit.sync_all) {
    parts_.queue.note_syncing();
    KVC_TRY(parts_.extents.sync_all());
  }
  if (commit.sync && !(commit.sync_all && extents.empty())) KVC_TRY(parts_.extents.sync(extents));
  if (commit.sync) kill_point("data-synced");
  return {};
}

// Call after sync_all: everything journaled before this, and its data, is on the medium. Recovery need not verify it, and the index may
// have it (an index ahead of the data would trust bodies that a power cut took).
Status Committer::mark_synced() {
  Batch mark;
  mark.stamp = parts_.builds.stamps.next();
  mark.records.emplace_back(SyncedRecord{});
  KVC_ASSIGN(JournalPosition after, append(mark));
  kill_point("mark-appended");
  auto freed = apply_to_index(mark, after);
  if (!freed) return std::unexpected(std::move(freed).error());
  KVC_TRY(sync_journal());  // the index must not get ahead of the medium
  parts_.builds.index.freeze();
  parts_.settles.unmarked.clear();
  kill_point("mark-synced");
  return {};
}

// Between the records and a mark: no mark while a body that it would cover could not be synced. This goes by the journal: a body moved or
// removed only in RAM is at its old place after a crash.
Status Committer::may_mark() {
  Status status;
  for (const auto& [extent, error] : parts_.extents.lost()) {
    std::vector<ObjectId> ids = parts_.settles.unmarked.in(extent);
    std::erase_if(ids, [&](ObjectId id) {
      auto record = parts_.builds.index.find_object(id);
      return record && (!*record || (*record)->body.place.extent != extent || (*record)->body.quarantined);
    });
    if (!ids.empty() && status) status = std::unexpected(error);
    parts_.settles.unmarked.set(extent, std::move(ids));
  }
  return status;
}

namespace {
bool speaks_of_peers(const Batch& batch) {
  return std::ranges::any_of(batch.records, [](const Record& record) {
    return is_answered_statement(record) || std::holds_alternative<SeenRecord>(record);
  });
}
}  // namespace

// Statements about peers, and answers to them, change what clients see of the peers' files.
Result<std::vector<FreedPlace>> Committer::try_to_apply(const Batch& batch, JournalPosition after) {
  if (!speaks_of_peers(batch)) return parts_.builds.index.apply(batch, after);
  Result<std::vector<FreedPlace>> freed;
  KVC_TRY(parts_.builds.tree.change_own(batch, after, [&]() -> Status {
    freed = parts_.builds.index.apply(batch, after);
    return freed ? Status{} : std::unexpected(freed.error());
  }));
  return freed;
}

// The batch is already in the journal, so this must not fail: a damaged index is rebuilt first, or no longer committed. Called without the
// Tree's lock, because a rebuild reads all journals.
Result<std::vector<FreedPlace>> Committer::apply_to_index(const Batch& batch, JournalPosition after) {
  if (parts_.builds.index.damaged()) static_cast<void>(parts_.mend_index());
  auto freed = try_to_apply(batch, after);
  if (!freed && parts_.builds.index.damaged() && parts_.mend_index()) freed = try_to_apply(batch, after);
  if (!freed) parts_.builds.index.give_up_commits();
  if (freed)
    for (FreedPlace& place : *freed) place.given_up_at = after;
  return freed;
}

Status Committer::apply(Commit& commit, JournalPosition after) {
  // Not under the Tree's lock: until they are settled, names and objects of the batch are answered from RAM.
  auto freed = commit.batch.records.empty() ? Result<std::vector<FreedPlace>>(std::in_place) : apply_to_index(commit.batch, after);
  settler_.settle(commit, freed ? std::span<const FreedPlace>(*freed) : std::span<const FreedPlace>());
  if (freed) return {};
  parts_.counters.errors_index.fetch_add(1, std::memory_order_relaxed);
  return std::unexpected(std::move(freed).error());
}

}  // namespace kvcachefs
