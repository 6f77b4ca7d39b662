// Recovery: the index opened, or filled anew from the newest checkpoint; the journals replayed from where it ends; what of
// that is whole, if the machine stopped; and what a crash left. Reads what came since the last checkpoint, never every chunk.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/index/replay_filter.h"
#include "store/store_impl.h"
#include "store/store_io.h"
#include "store/store_start.h"

namespace kvcachefs {

// --- the index ---

Status StoreImpl::open_index() {
  // Opened by path, as the administrator's own. Where it is part of the volume it is as little trusted as that.
  if (index_directory_.starts_with(volume_->root() + "/nodes/")) KVC_TRY(check_plain(*volume_, index_directory_.substr(volume_->root().size() + 1)));
  std::error_code ignored;
  std::filesystem::create_directories(index_directory_, ignored);
  const IndexIdentity who{identity_.volume_uuid, identity_.node};
  Index::Found found{};
  std::string why;
  KVC_ASSIGN(index_, Index::open(index_directory_, who, &found, &why));
  if (!why.empty()) log::warn("index {}: {}", index_directory_, why);
  // The journals alone do not tell: what was begun after their last record left none.
  unclean_start_ = found == Index::Found::kOpened && !index_->was_closed_cleanly();

  KVC_ASSIGN(auto journals, list_journals(*volume_, identity_));
  std::vector<std::string> problems;
  KVC_ASSIGN(auto checkpoint, find_checkpoint(*volume_, identity_, problems));
  for (const std::string& problem : problems) log::error("checkpoint: {}", problem);
  records_lost_ = !problems.empty();
  if (checkpoint) {
    auto file = volume_->info(checkpoint_path(identity_.node, checkpoint->epoch, checkpoint->seq));
    checkpoint_bytes_ = file ? file->size_bytes : checkpoint->records * 64;
  }
  for (const JournalFileInfo& file : journals) older_journals_bytes_ += file.size_bytes;
  journal_files_ = journals.size() + 1;

  if (found == Index::Found::kOpened && !index_fits(journals, checkpoint)) {
    log::warn("index {} does not fit the journals (it is older, or of another time): rebuilding it", index_directory_);
    index_.reset();
    KVC_TRY(remove_index(index_directory_));
    KVC_ASSIGN(index_, Index::open(index_directory_, who, &found, &why));
  }
  orphans_.take_leftovers(*index_);
  const auto fill = [&]() -> Status {
    const bool anything = !journals.empty() || checkpoint;
    ReplayFilter filter(*index_, found == Index::Found::kFresh, [](ReplayFilter::Told what, const std::string& line) {
      if (what == ReplayFilter::Told::kLeftOut) log::error("journal: {}", line);
      else log::warn("journal: {}; put right", line);
    });
    if (found == Index::Found::kFresh && anything) {
      index_rebuilt_ = true;
      log::info("rebuilding the index from {} journal files{}", journals.size(), checkpoint ? " and a checkpoint" : "");
      if (checkpoint) KVC_TRY(load_checkpoint(*checkpoint, filter));
    }
    KVC_TRY(replay(journals, filter));
    counters_.records_left_out = filter.left_out();
    return {};
  };
  Status filled = fill();
  if (filled || found != Index::Found::kOpened || !index_->damaged()) return filled;
  log::warn("{}: rebuilding the index", filled.error().message);  // rows that the open did not look at
  index_.reset();
  KVC_TRY(remove_index(index_directory_));
  KVC_ASSIGN(index_, Index::open(index_directory_, who, &found, &why));
  dead_.clear();
  orphans_.take_leftovers(*index_);
  return fill();
}

// Do the journals go on where the index ends?
bool StoreImpl::index_fits(const std::vector<JournalFileInfo>& journals,
                           const std::optional<CheckpointInfo>& checkpoint) const {
  const JournalPosition at = index_->position();
  if (checkpoint && at < checkpoint->header.covers) return false;  // the journals in between may be gone
  if (checkpoint && at == checkpoint->header.covers) return true;
  for (const JournalFileInfo& file : journals)
    if (file.epoch == at.epoch && file.seq == at.seq) return file.counting_bytes >= at.offset;
  return at == JournalPosition{} && !checkpoint;
}

Status StoreImpl::load_checkpoint(const CheckpointInfo& checkpoint, ReplayFilter& filter) {
  KVC_TRY(index_->begin_load());
  std::vector<std::string> problems;
  KVC_TRY(read_checkpoint(*volume_, identity_, checkpoint, [&](Record&& record) {
    return filter.believes(record, checkpoint.header.covers.epoch) ? index_->load(std::move(record)) : Status();
  }, problems));
  for (const std::string& problem : problems) log::error("checkpoint: {}", problem);
  records_lost_ |= !problems.empty();
  const Stamp stamp = ReplayFilter::believed(checkpoint.header.stamp);
  stamps_.observe(stamp);
  return index_->finish_load(checkpoint.header.covers, stamp);
}

// --- replay ---

Status StoreImpl::replay(const std::vector<JournalFileInfo>& journals, ReplayFilter& filter) {
  // Epochs of another boot of this machine: what they did not sync may be lost or torn.
  std::unordered_set<uint32_t> other_boot;
  for (const JournalFileInfo& file : journals)
    if (file.boot_id != boot_id()) other_boot.insert(file.epoch);
  extents_ = std::make_unique<Extents>(volume_, identity_, kMaxOpenExtents);  // for reading only
  bool unsynced_seen = false;
  auto result = replay_journals(*volume_, identity_, index_->position(),
                                [&](const Batch& batch, JournalPosition after, bool synced) {
                                  unsynced_seen |= !synced;
                                  return apply_replayed(batch, after, !synced && other_boot.contains(after.epoch), filter);
                                });
  if (!result) return std::unexpected(std::move(result).error());
  KVC_TRY(filter.finish([&](const Batch& batch, JournalPosition after) { return apply_believed(batch, after); }));
  unclean_start_ |= unsynced_seen || result->torn_tails > 0;
  judged_tail_ |= unclean_start_;  // also what was trusted unread: after a reboot it would be judged anew
  counters_.replayed_batches = result->batches;
  if (unclean_start_ || index_rebuilt_) orphans_.doubt_packs();
  records_lost_ |= result->damaged_files > 0 || filter.left_out() > 0;
  pack_sweep_over_ = records_lost_;
  // What a daemon that died wrote is trusted, for the page cache has it. From here on it is synced as well: neither the index,
  // nor who asks for a sync, nor who gives back what it replaced, looks at the files of an earlier epoch again.
  if (unclean_start_ || index_rebuilt_) KVC_TRY(volume_->sync_everything());
  for (const std::string& problem : result->problems) log::warn("journal: {}", problem);
  if (result->batches > 0) {
    log::info("replayed {} batches, {} records, {} of journal{}", result->batches, result->records,
              format_size(result->bytes), !other_boot.empty() && unsynced_seen ? " after an unclean stop of the host" : "");
    orphans_.note_leftovers(*index_, {});
    Status committed = index_->commit();
    if (!committed && committed.error().code != Code::kNoSpace) return committed;
    if (!committed) log::warn("{}; it is written when there is room, from the journals", committed.error().message);
  }
  extents_.reset();
  return {};
}

// After an unclean stop of the host, a body that was not synced is read before it is trusted.
Status StoreImpl::apply_replayed(const Batch& batch, JournalPosition after, bool verify, ReplayFilter& filter) {
  judged_tail_ |= verify;
  const auto not_whole = [&](const PutRecord& put) {
    const Wholeness found = verify ? wholeness(put.object) : Wholeness::kWhole;
    if (found == Wholeness::kUnknown) unverified_.insert(put.object.id);
    if (found == Wholeness::kWhole) unverified_.erase(put.object.id);  // an earlier version of it
    if (found == Wholeness::kAbsent) counters_.dropped_bodies.fetch_add(1);
    return found == Wholeness::kAbsent;
  };
  return filter.apply(batch, after, not_whole,
                      [&](const Batch& trusted, JournalPosition behind) { return apply_believed(trusted, behind); });
}

Status StoreImpl::apply_believed(const Batch& batch, JournalPosition after) {
  stamps_.observe(batch.stamp);
  KVC_ASSIGN(auto freed, index_->apply(batch, after));
  dead_.found(freed);
  return {};
}

// Absent for sure: what is left out is given back soon, for good. A volume that does not answer says nothing of that: the body
// stays then, is read with its checksums only, and is looked at again.
StoreImpl::Wholeness StoreImpl::wholeness(const ObjectRecord& object) {
  const Body& body = object.body;
  if (body.place.kind == PlaceKind::kNone || body.place.kind == PlaceKind::kInline || body.quarantined) return Wholeness::kWhole;
  const auto judge = [&](const Error& error) {
    const bool absent = error.code == Code::kCorrupt || error.code == Code::kNotFound;
    log::warn("object {} {}: {}", object.id.value,
              absent ? "was not on the medium when the machine stopped" : "could not be verified, and is kept", error.message);
    return absent ? Wholeness::kAbsent : Wholeness::kUnknown;
  };
  if (body.place.kind == PlaceKind::kRaw) {
    auto info = extents_->info(body.place.extent, PlaceKind::kRaw);
    return info ? Wholeness::kWhole : judge(info.error());
  }
  counters_.verified_bodies.fetch_add(1);
  Snapshot stored;
  stored.size_bytes = body.size_bytes;
  stored.base = body;
  stored.base_valid_bytes = body.size_bytes;
  if (body.checksums.size() < div_ceil(body.size_bytes, kUnitBytes)) return Wholeness::kAbsent;
  for (size_t index = 0; index < div_ceil(body.size_bytes, kUnitBytes); ++index)
    if (auto block = fetch_unit(stored, index, nullptr); !block) return judge(block.error());
  return Wholeness::kWhole;
}

// What a start could not verify, once more: the next start trusts what this one's checkpoint holds.
void StoreImpl::verify_again() {
  std::vector<ObjectId> ids;
  {
    std::lock_guard lock(unverified_mutex_);
    ids.assign(unverified_.begin(), unverified_.end());
  }
  for (ObjectId id : ids) {
    auto record = index_->find_object(id);
    if (!record) continue;
    const Wholeness found = *record ? wholeness(**record) : Wholeness::kWhole;
    if (found == Wholeness::kUnknown) continue;
    auto object = found == Wholeness::kAbsent ? tree_->get(id) : Result<ObjectPtr>(nullptr);
    if (object && *object) quarantine(*object, (*record)->body.version, "it was not on the medium when the machine stopped");
    std::lock_guard lock(unverified_mutex_);
    unverified_.erase(id);
  }
}

bool StoreImpl::is_unverified(ObjectId id) {
  std::lock_guard lock(unverified_mutex_);
  return unverified_.contains(id);
}

// --- what the journals do not tell ---

// Objects whose name a crash took: named and unnamed in one batch, which drops them and frees their places.
Status StoreImpl::drop_nameless() {
  if (!unclean_start_ && !index_rebuilt_) return {};
  KVC_ASSIGN(auto nameless, index_->scan_nameless());
  std::erase(nameless, kRootId);
  if (nameless.empty()) return {};
  constexpr size_t kMostAtOnce = 10'000;  // of a journaled batch, which has a largest size
  for (size_t from = 0; from < nameless.size(); from += kMostAtOnce)
    KVC_TRY(drop_nameless(std::span(nameless).subspan(from, std::min(kMostAtOnce, nameless.size() - from))));
  counters_.swept_files.fetch_add(nameless.size());
  return {};
}

Status StoreImpl::drop_nameless(std::span<const ObjectId> nameless) {
  Batch batch;
  batch.stamp = stamps_.next();
  for (ObjectId id : nameless) {
    const std::string name = fmt::format(".kvcachefs-nameless-{}", id.value);
    batch.records.emplace_back(NameRecord{kRootId, name, id});
    batch.records.emplace_back(UnnameRecord{kRootId, name, id});
  }
  KVC_ASSIGN(JournalPosition after, append_to_journal(batch));
  KVC_ASSIGN(auto freed, index_->apply(batch, after));
  dead_.found(freed);
  return {};
}

// What is dead by the journals and was not reclaimed since comes back at once.
void StoreImpl::forget_reclaimed() {
  reclaim_wanted_ = dead_.forget_reclaimed(*index_, volume_->features().punch_hole,
                                           [this](ExtentId id, PlaceKind kind) { return extents_->info(id, kind); });
  if (reclaim_wanted_) keeper_wakeup_.wake();
}

void StoreImpl::find_quarantined() {
  if (index_->totals().quarantined == 0) return;
  Tree::Write tree = tree_->write();
  Status status = index_->scan_objects([&](ObjectRecord&& row) {
    if (row.body.quarantined) tree.found_quarantined(row.id);
    return true;
  });
  if (!status) log::error("index: {}", status.error().message);
}

}  // namespace kvcachefs
