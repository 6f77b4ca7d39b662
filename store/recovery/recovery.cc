#include "store/recovery/recovery.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/boot_id.h"
#include "store/base/descriptors.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/index/index_directory.h"
#include "store/index/replay_filter.h"
#include "store/journal/goes_on.h"
#include "store/journal/lost_records.h"
#include "store/load/body_reader.h"
#include "store/recovery/node_start.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kMostOpenExtents = 512;

// Syncs each file and directory below `directory`.
Status sync_tree(Volume& volume, const std::string& directory) {
  KVC_ASSIGN(const auto entries, volume.list(directory));
  for (const DirectoryEntry& entry : entries) {
    const std::string path = directory + "/" + entry.name;
    if (entry.is_directory) {
      KVC_TRY(sync_tree(volume, path));
      continue;
    }
    const auto file = volume.open(path, {});
    if (!file && is_not_there(file.error())) continue;  // nothing of the store
    if (!file) return std::unexpected(file.error());
    KVC_TRY((*file)->sync_data());
  }
  return volume.sync_directory(directory);
}

class Recovery {
 public:
  explicit Recovery(const RecoveryParts& parts)
      : parts_(parts), volume_(*parts.volume), extents_(parts.volume, parts.identity, std::min(kMostOpenExtents, descriptor_shares().open_extents)), reader_(extents_, parts.counters) {}
  Status open_index();
  Recovered take();

 private:
  using Journals = std::vector<JournalFileInfo>;
  using Wholeness = BodyReader::Wholeness;

  Status open_fresh();
  void take_leftovers();
  Status note_lost();
  Status open_past_journals();
  Result<std::string> why_not_to_believe();
  Status fill();
  Status load_checkpoint(ReplayFilter& filter);
  Status replay(ReplayFilter& filter);
  Status sync_earlier_lives();
  Status apply(const Batch& batch, JournalPosition after, bool verify, ReplayFilter& filter);
  Status apply_believed(const Batch& batch, JournalPosition after);
  bool is_absent(const ObjectRecord& object);

  const RecoveryParts& parts_;
  Volume& volume_;
  Extents extents_;  // for reading only
  const BodyReader reader_;
  Recovered found_;
  Index::Found opened_{};
  Journals journals_;
  std::optional<CheckpointInfo> checkpoint_;
  std::optional<JournalPosition> cut_;  // where a torn tail ends an epoch
  bool goes_by_index_ = false;  // the index's position lies behind the journals that exist, or in a missing one
};

// Completes `end`. Followers may have passed the beginning of a file or epoch that is empty, so `end` lies behind that, unless a torn tail is at or behind the last
// valid record: then `end` is the cut, for peers that passed it read the tail. If valid records follow a cut, `end` cannot take it back: peers need a checkpoint.
Recovered Recovery::take() {
  found_.last_epoch = std::max(found_.last_epoch, parts_.identity.epoch);
  if (cut_ && found_.end <= *cut_) {
    found_.tail_cut = true;
    found_.end = *cut_;
    return std::move(found_);
  }
  found_.peers_want_checkpoint |= cut_.has_value();
  found_.end = std::max(found_.end, JournalPosition{parts_.identity.epoch, 0, 0});
  if (!journals_.empty()) found_.end = std::max(found_.end, JournalPosition{journals_.back().epoch, journals_.back().seq, journals_.back().header_bytes});
  return std::move(found_);
}

// --- the index ---

// Opens a new index in place of the old one, if there is one. The old one is kept aside if records of its time are lost: it may have them, if a repair or a mount
// that did not see it has replaced the journals.
Status Recovery::open_fresh() {
  const uint32_t old = found_.index ? found_.index->position().epoch : 0;
  found_.index.reset();
  KVC_ASSIGN(const uint32_t lost, epochs_with_lost_records(volume_, parts_.identity.node));
  const bool aside = old > 0 && old <= lost;
  if (aside) log::warn("index {} is set aside as {}.damaged: it may have records that are lost (in epochs up to {})", parts_.index_directory, parts_.index_directory, lost);
  KVC_TRY(aside ? set_index_aside(parts_.index_directory) : remove_index(parts_.index_directory));
  std::string why;
  KVC_ASSIGN(found_.index, Index::open(parts_.index_directory, {parts_.identity.volume_uuid, parts_.identity.node}, &opened_, &why));
  return {};
}

Status Recovery::open_index() {
  // The index is opened by path, which is trusted as the administrator's. If it lies on the volume it is trusted no more than the volume.
  if (parts_.index_directory.starts_with(volume_.root() + "/nodes/"))
    KVC_TRY(check_plain(volume_, parts_.index_directory.substr(volume_.root().size() + 1)));
  std::error_code ignored;
  std::filesystem::create_directories(parts_.index_directory, ignored);
  std::string why;
  KVC_ASSIGN(found_.index, Index::open(parts_.index_directory, {parts_.identity.volume_uuid, parts_.identity.node}, &opened_, &why));
  if (!why.empty()) log::warn("index {}: {}", parts_.index_directory, why);
  found_.last_epoch = found_.index->position().epoch;
  // The journals alone do not tell: work begun after their last record left no record.
  found_.unclean = opened_ == Index::Found::kOpened && !found_.index->was_closed_cleanly();

  KVC_ASSIGN(journals_, list_journals(volume_, parts_.identity));
  std::vector<std::string> problems;
  KVC_ASSIGN(checkpoint_, find_checkpoint(volume_, parts_.identity, problems));
  for (const std::string& problem : problems) log::error("checkpoint: {}", problem);
  found_.checkpoint_damaged = !problems.empty();
  if (checkpoint_) {
    auto file = volume_.info(checkpoint_path(parts_.identity.node, checkpoint_->epoch, checkpoint_->seq));
    found_.checkpoint_bytes = file ? file->size_bytes : checkpoint_->records * 64;
  }
  for (const JournalFileInfo& file : journals_) {
    found_.older_journals_bytes += file.held_bytes;
    found_.peers_want_checkpoint |= file.wants_checkpoint && (!checkpoint_ || checkpoint_->epoch < file.epoch);
  }
  found_.journal_files = journals_.size() + 1;

  if (opened_ == Index::Found::kOpened && !journals_go_on_from(found_.index->position(), checkpoint_, journals_)) {
    KVC_ASSIGN(const bool lost, journals_were_lost(volume_, parts_.identity, found_.index->position(), checkpoint_, journals_));
    if (!lost) log::warn("index {} does not fit the journals (it is older, or of another time): rebuilding it", parts_.index_directory);
    KVC_TRY(lost ? open_past_journals() : open_fresh());
  }
  take_leftovers();
  Status filled = fill();
  if (filled || opened_ != Index::Found::kOpened || !found_.index->damaged()) return filled;
  log::warn("{}: rebuilding the index", filled.error().message);  // damaged rows that the open did not look at
  KVC_TRY(open_fresh());
  parts_.dead.clear();
  take_leftovers();
  return fill();
}

// A place that a record names is none that was given up, whatever the index says.
void Recovery::take_leftovers() {
  std::vector<FreedPlace> held = parts_.orphans.take_leftovers(*found_.index);
  std::erase_if(held, [this](const FreedPlace& freed) {
    const auto record = found_.index->find_object_summary(freed.object);
    if (!record) parts_.orphans.doubt_places();
    return !record || (*record && (*record)->body.place.extent == freed.place.extent && (*record)->body.place.offset == freed.place.offset);
  });
  parts_.dead.found(held);
}

Status Recovery::note_lost() {
  found_.records_lost = found_.peers_want_checkpoint = true;
  return parts_.note_lost(std::max(found_.last_epoch, parts_.identity.epoch));
}

// The journals lost records that the index had read, but the index has their content. All that it names was synced before it was committed, and none of that was
// given back since, however the daemon ended. If it was not closed, what came behind its position in the lost journals is lost. An index that is not to be
// believed is moved aside, for it is the only trace of the lost records. In either case nothing is removed because no record names it, and a checkpoint comes
// before anything is given back.
Status Recovery::open_past_journals() {
  const JournalPosition at = found_.index->position();
  const std::string what = fmt::format("journals of node {} are missing or cut short: index {} has read up to {} in {}", parts_.identity.node, parts_.index_directory,
                                       at.offset, journal_path(parts_.identity.node, at.epoch, at.seq));
  found_.judged_tail = found_.journals_lost = true;
  KVC_TRY(note_lost());
  KVC_ASSIGN(const std::string why, why_not_to_believe());
  if (why.empty()) {
    log::error("{}; it has what they lack, and a checkpoint of it follows{}", what,
               found_.unclean ? ". It was not closed: what was journaled behind that, in the last seconds before the daemon ended, is lost" : "");
    goes_by_index_ = true;
    return {};
  }
  log::error("{}, but {}: it is set aside as {}.damaged, and what the journals lack is lost", what, why, parts_.index_directory);
  found_.index.reset();
  KVC_TRY(set_index_aside(parts_.index_directory));
  return open_fresh();
}

// Why the index is not to be believed; empty: it belongs to this volume, and all extents that it names are there.
Result<std::string> Recovery::why_not_to_believe() {
  const Index& index = *found_.index;
  if (!parts_.index_directory.starts_with(volume_.root() + "/")) {
    KVC_ASSIGN(std::string why, why_of_another_time(volume_, parts_.identity, index.position(), index.was_closed_cleanly(), checkpoint_, journals_));
    if (!why.empty()) return why;
  }
  std::map<ExtentId, PlaceKind> named;
  KVC_TRY(index.scan_objects([&](ObjectRecord&& row) {
    if (row.body.place.extent.valid() && !row.body.quarantined) named.emplace(row.body.place.extent, row.body.place.kind);
    return true;
  }));
  for (const auto& [extent, kind] : named)
    if (const auto info = extents_.info(extent, kind); !info) return fmt::format("what it names is not there: {}", info.error().message);
  return std::string();
}

Status Recovery::fill() {
  const bool anything = !journals_.empty() || checkpoint_;
  ReplayFilter filter(*found_.index, opened_ == Index::Found::kFresh, [](ReplayFilter::Told what, const std::string& line) {
    if (what == ReplayFilter::Told::kLeftOut) log::error("journal: {}", line);
    else log::warn("journal: {}; put right", line);
  });
  if (opened_ == Index::Found::kFresh && anything) {
    found_.index_rebuilt = true;
    log::info("rebuilding the index from {} journal files{}", journals_.size(), checkpoint_ ? " and a checkpoint" : "");
    if (found_.checkpoint_damaged) KVC_TRY(note_lost());
    if (checkpoint_) KVC_TRY(load_checkpoint(filter));
  }
  KVC_TRY(replay(filter));
  parts_.counters.records_left_out = filter.left_out();
  return {};
}

Status Recovery::load_checkpoint(ReplayFilter& filter) {
  Index& index = *found_.index;
  KVC_TRY(index.begin_load());
  std::vector<std::string> problems;
  KVC_TRY(read_checkpoint(volume_, parts_.identity, *checkpoint_, [&](Record&& record) {
    return filter.believes(record, checkpoint_->header.covers.epoch) ? index.load(std::move(record)) : Status();
  }, problems));
  for (const std::string& problem : problems) log::error("checkpoint: {}", problem);
  found_.checkpoint_damaged |= !problems.empty();
  if (!problems.empty()) KVC_TRY(note_lost());
  const Stamp stamp = ReplayFilter::believed(checkpoint_->header.stamp);
  parts_.stamps.observe(stamp);
  return index.finish_load(checkpoint_->header.covers, stamp);
}

// --- replay ---

// An error of syncfs() may be about writes that failed long ago, also those of other programs: the kernel reports it once to each program that opens the file
// system. A second call would succeed even if writes of this one failed. So each file of the node is synced instead: that reports what failed since, but not an
// error that the daemon before was told of already, nor one of an inode that has left the cache.
Status Recovery::sync_earlier_lives() {
  const Status synced = volume_.sync_everything();
  if (synced) return {};
  KVC_TRY(sync_tree(volume_, "nodes/" + parts_.identity.node));
  log::warn("{}; but all files of node {} could be synced, so that was about an earlier time or other files", synced.error().message, parts_.identity.node);
  return {};
}

Status Recovery::replay(ReplayFilter& filter) {
  // Epochs of another boot or machine: what they did not sync may be lost or torn.
  std::unordered_set<uint32_t> other_boot;
  for (const JournalFileInfo& file : journals_)
    if (file.boot_id != boot_id()) other_boot.insert(file.epoch);
  found_.other_boot = !other_boot.empty();
  found_.end = found_.index->position();
  bool unsynced_seen = false;
  const JournalPosition at = found_.index->position();
  auto result = replay_journals(volume_, parts_.identity, goes_by_index_ ? behind_what_is_lost(at, journals_) : at,
                                [&](const Batch& batch, JournalPosition after, bool synced) {
                                  unsynced_seen |= !synced;
                                  found_.end = after;
                                  return apply(batch, after, !synced && other_boot.contains(after.epoch), filter);
                                });
  if (!result) return std::unexpected(std::move(result).error());
  KVC_TRY(filter.finish([&](const Batch& batch, JournalPosition after) { return apply_believed(batch, after); }));
  cut_ = result->first_cut;
  found_.unclean |= unsynced_seen || result->torn_tails > 0;
  found_.judged_tail |= found_.unclean;  // includes bodies trusted unread: after a reboot they would be judged anew
  parts_.counters.replayed_batches = result->batches;
  if (found_.unclean || found_.index_rebuilt) parts_.orphans.doubt_packs();
  if (result->damaged_files > 0 || filter.left_out() > 0) KVC_TRY(note_lost());
  // What a daemon of this boot wrote is trusted, for the page cache has it. It is synced here because neither the index, nor a
  // client's sync, nor the reclaim of what it replaced looks at the files of an earlier epoch again.
  if (found_.unclean || found_.index_rebuilt) KVC_TRY(sync_earlier_lives());
  for (const std::string& problem : result->problems) log::warn("journal: {}", problem);
  if (result->batches == 0) return {};
  log::info("replayed {} batches, {} records, {} of journal{}", result->batches, result->records,
            format_size(result->bytes), !other_boot.empty() && unsynced_seen ? " after an unclean stop of the host" : "");
  parts_.orphans.note_leftovers(*found_.index, {}, [](const FreedPlace&) { return true; });
  Status committed = found_.index->commit();
  if (!committed && committed.error().code != Code::kNoSpace) return committed;
  if (!committed) log::warn("{}; it is written when there is room, from the journals", committed.error().message);
  return {};
}

// After the host stopped uncleanly, a body that was not synced is read before it is trusted.
Status Recovery::apply(const Batch& batch, JournalPosition after, bool verify, ReplayFilter& filter) {
  found_.judged_tail |= verify;
  return filter.apply(batch, after,
                      [&](const PutRecord& put) {
                        if (verify) return is_absent(put.object);
                        found_.unverified.erase(put.object.id);  // an entry for an earlier version
                        return false;
                      },
                      [&](const Batch& trusted, JournalPosition behind) { return apply_believed(trusted, behind); });
}

// A body that the volume does not return just now is kept, its checksums are checked at each read, and it is looked at again later.
bool Recovery::is_absent(const ObjectRecord& object) {
  const Wholeness wholeness = reader_.wholeness(object, [this](uint64_t bytes) { return parts_.pool.reserve_to_seal(bytes); });
  if (wholeness == Wholeness::kUnknown) found_.unverified.insert(object.id);
  if (wholeness == Wholeness::kWhole) found_.unverified.erase(object.id);
  if (wholeness == Wholeness::kAbsent) {
    parts_.counters.dropped_bodies.fetch_add(1);
    found_.peers_want_checkpoint = true;  // its records stay in the journals, where peers may read them
  }
  return wholeness == Wholeness::kAbsent;
}

Status Recovery::apply_believed(const Batch& batch, JournalPosition after) {
  parts_.stamps.observe(batch.stamp);
  KVC_ASSIGN(auto freed, found_.index->apply(batch, after));
  for (FreedPlace& place : freed) place.given_up_at = after;
  parts_.dead.found(freed);
  return {};
}

}  // namespace

Result<Recovered> recover(const RecoveryParts& parts) {
  Recovery recovery(parts);
  KVC_TRY(recovery.open_index());
  return recovery.take();
}

void find_quarantined(const Index& index, Tree& tree) {
  if (index.totals().quarantined == 0) return;
  Tree::Write names = tree.write();
  Status status = index.scan_objects([&](ObjectRecord&& row) {
    if (row.body.quarantined) names.found_quarantined(row.id);
    return true;
  });
  if (!status) log::error("index: {}", status.error().message);
}

}  // namespace kvcachefs
