#include "store/upkeep/checkpointer.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/checkpoint_rows.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kManyJournalFiles = 32;
constexpr uint64_t kRoomCheckpointBytes = 2 * kMiB;  // of journals and checkpoint: where there is no room, more than this is worth another checkpoint
constexpr uint64_t kWorthPart = 16;                  // ... if it saves at least this fraction
}  // namespace

// Syncs on this thread, which nobody waits for: the committer has answers to give, and only syncs what is left.
void Checkpointer::sync_ahead() {
  const Status status = parts_.extents.sync_ahead();
  if (status) return;
  parts_.counters.errors_volume_write.fetch_add(1, std::memory_order_relaxed);
  parts_.health.report(Health::Of::kData, status);
}

void Checkpointer::sync_if_asked() {
  if (parts_.extents.take_asked_for_syncs()) sync_ahead();
}

Status Checkpointer::sync_point() {
  constexpr size_t kMostRows = 100'000;
  parts_.raw_space.sync_begins();
  sync_ahead();
  parts_.relocator.rescue([this] {
    parts_.drainer.drain();
    sync_ahead();
  });
  CommitRequest request;
  request.sync = request.sync_all = true;
  if (!parts_.reserve.is_cut()) request.successors = parts_.accesses.changed_rows(kMostRows);  // otherwise the rows wait for room
  Status status = parts_.committer.commit_and_wait(std::move(request));
  if (status) parts_.raw_space.synced();
  return status;
}

Status Checkpointer::index_point(const Reclaimer::Amount& amount) {
  reclaim_cut_short_ = false;
  static_cast<void>(earlier_lives());  // while DeadSpace has everything that died in this run
  std::vector<FreedPlace> dead = parts_.dead.take();  // their records are synced by the sync point below
  parts_.records.index_commit_begins();
  Status status = sync_point();
  const bool synced = status.has_value();
  if (status) {
    note_leftovers(dead);
    status = parts_.index.commit();
    if (status) parts_.records.index_committed();
  }
  if (status && (found_.judged_tail || wants_checkpoint())) status = write_checkpoint();  // before giving back what an older checkpoint names
  if (!status) {
    parts_.counters.errors_index.fetch_add(1, std::memory_order_relaxed);
    // An index that cannot be written, perhaps on a full disk, does not stop the reclaim: the synced journal has the records. Except when a
    // start left records out, or a journal was removed: only a checkpoint settles that.
    if (synced && !found_.judged_tail && !wants_checkpoint_) reclaim(std::exchange(dead, {}), amount);
    parts_.dead.put_back(std::move(dead));
    return status;
  }
  parts_.counters.index_commits.fetch_add(1, std::memory_order_relaxed);
  found_.judged_tail = false;
  parts_.index_rebuild.allow(true);
  if (!holds_earlier_lives()) parts_.sweep.sweep_extents(dead);
  if (!dead.empty()) kill_point("reclaim-begun");
  reclaim(std::move(dead), amount);
  measure_overhead();
  if (parts_.records.wants_checkpoint() || found_.journal_files > kManyJournalFiles) return write_checkpoint();
  return {};
}

uint64_t Checkpointer::least_checkpoint_bytes() const {
  constexpr uint64_t kObjectBytes = 64;  // of an object with a short name
  const IndexTotals totals = parts_.index.totals();
  return (totals.objects + totals.directories) * kObjectBytes + totals.live_bytes / kUnitBytes * 8;
}

Status Checkpointer::rotate_journal(bool lost) {
  const uint64_t bytes = parts_.committer.journal_bytes();
  KVC_TRY(parts_.journal_room.write([this, lost] { return parts_.journal.rotate(lost); }));
  found_.older_journals_bytes += bytes;
  return {};
}

void Checkpointer::look_for_journal() {
  const JournalWriter::Current at = parts_.journal.current();
  const std::string path = journal_path(parts_.identity.node, at.end.epoch, at.end.seq);
  const auto found = parts_.volume->info(path);
  const char* what = nullptr;
  if (!found && is_not_there(found.error())) what = found.error().code == Code::kNotFound ? "removed" : "replaced";
  else if (found && (found->is_directory || (at.file_id != 0 && found->file_id != at.file_id))) what = "replaced";
  else if (found && found->size_bytes < at.end.offset) what = "cut short";
  if (what != nullptr) {
    const bool is_told = std::exchange(told_lost_seq_, at.end.seq) == at.end.seq;
    if (!is_told) log::error("{}: the journal was {} by others while the volume was mounted", path, what);
    const Status rotated = rotate_journal(/*lost=*/true);
    if (!rotated && !is_told) log::error("journal: {}", rotated.error().message);  // the next look is in a second
  } else if (at.is_nowhere) {
    static_cast<void>(rotate_journal());  // the interference was undone meanwhile
  }
  if (!parts_.journal.take_lost_file()) return;
  if (!wants_checkpoint_) log::error("what others took from the journal is written anew: a checkpoint follows");
  wants_checkpoint_ = true;
}

// Only this thread commits, so the scan sees one consistent state.
Status Checkpointer::write_checkpoint() {
  if (to_clear_ && !wants_checkpoint()) return remove_before_checkpoint();  // it is complete: only the removal of what it covers is missing
  // Do not fill the volume with a checkpoint that cannot fit. But after an unclean end nothing is given back before the first checkpoint,
  // and root may have more space than this shows: then try.
  if (auto backing = parts_.volume->space(); backing && !found_.judged_tail && backing->available_bytes < least_checkpoint_bytes())
    return fail(Code::kNoSpace, fmt::format("{}: a checkpoint takes {} at least, and {} are free", parts_.volume->root(),
                                            format_size(least_checkpoint_bytes()), format_size(backing->available_bytes)));
  const uint64_t seq = next_seq_++;  // never reused: a failed checkpoint may have left a file of this name
  CheckpointHeader header;
  header.covers = parts_.index.position();
  header.stamp = parts_.index.stamp();
  header.next_number = parts_.next_number.load();
  KVC_ASSIGN(auto writer, parts_.journal_room.write([&] { return CheckpointWriter::create(parts_.volume, parts_.identity, seq, header); }));
  KVC_TRY(for_each_checkpoint_record(parts_.index, [&](Record record) { return writer->add(std::move(record)); }));
  KVC_TRY(writer->finish());
  CheckpointInfo info;
  info.epoch = parts_.identity.epoch;
  info.seq = seq;
  info.header = header;
  parts_.counters.checkpoints.fetch_add(1, std::memory_order_relaxed);
  if (auto file = parts_.volume->info(checkpoint_path(parts_.identity.node, info.epoch, info.seq))) found_.checkpoint_bytes = file->size_bytes;
  if (peers_ != nullptr) peers_->note_checkpoint({info.epoch, info.seq});
  to_clear_ = std::move(info);
  return remove_before_checkpoint();
}

Status Checkpointer::remove_before_checkpoint() {
  // The journal goes on in a new file: if nothing was appended meanwhile, the file before it can be removed too.
  KVC_TRY(rotate_journal());
  const int64_t now_ns = parts_.clock.monotonic_ns();
  const KeptJournals before = std::exchange(kept_journals_, std::nullopt).value_or(KeptJournals{{}, 0, now_ns, now_ns});
  const uint64_t bytes = before.bytes + found_.older_journals_bytes;
  const JournalPosition covers = to_clear_->header.covers, followed = followed_by_peers(covers, bytes, before.since_ns);
  KVC_TRY(remove_covered(*parts_.volume, parts_.identity, followed, *to_clear_));
  if (followed < covers) kept_journals_ = KeptJournals{*to_clear_, bytes, before.since_ns, now_ns};
  to_clear_.reset();
  wants_checkpoint_ = false;
  rotted_ = false;
  found_.journal_files = 1;
  found_.older_journals_bytes = followed < covers ? 0 : bytes_of_journals_before_this();
  epochs_bytes_.reset();
  measure_overhead();
  return {};
}

// The journal file with the checkpoint's position stays if anything was appended behind that position meanwhile.
uint64_t Checkpointer::bytes_of_journals_before_this() const {
  const JournalPosition at = parts_.journal.position();
  const auto files = list_journals(*parts_.volume, parts_.identity);
  uint64_t bytes = 0;
  if (files)
    for (const JournalFileInfo& file : *files)
      if (std::pair(file.epoch, file.seq) < std::pair(at.epoch, at.seq)) bytes += file.held_bytes;
  return bytes;
}

// Up to which position journals that a checkpoint covers can be removed: peers that have not read a removed journal have to load the
// checkpoint. The wait for peers is limited in time and bytes: no chunk is evicted to keep journals.
JournalPosition Checkpointer::followed_by_peers(JournalPosition covers, uint64_t bytes, int64_t since_ns) const {
  constexpr int64_t kMostNs = 600'000'000'000;
  constexpr uint64_t kMostBytes = kGiB, kMostPart = 64;  // of the capacity
  const bool too_many = bytes > std::min(kMostBytes, parts_.options.current().capacity_bytes / kMostPart);
  if (peers_ == nullptr || too_many || parts_.clock.monotonic_ns() - since_ns > kMostNs) return covers;
  return std::min(covers, peers_->read_acknowledged()->read_by_all);
}

void Checkpointer::remove_kept_journals(bool room_is_wanted) {
  constexpr int64_t kTryAgainNs = 1'000'000'000;
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (!kept_journals_ || now_ns - kept_journals_->tried_ns < kTryAgainNs) return;
  kept_journals_->tried_ns = now_ns;
  const JournalPosition covers = kept_journals_->checkpoint.header.covers;
  const JournalPosition followed = room_is_wanted ? covers : followed_by_peers(covers, kept_journals_->bytes, kept_journals_->since_ns);
  if (Status removed = remove_covered(*parts_.volume, parts_.identity, followed, kept_journals_->checkpoint); !removed) {
    log::warn("journals that the checkpoint covers: {}", removed.error().message);
  } else if (followed == covers) {
    kept_journals_.reset();
    epochs_bytes_.reset();
    measure_overhead();
  }
}

void Checkpointer::follow_peers(PeerFollower& peers, const Clock& running) {
  peers_ = &peers;
  holds_.emplace(PeerHolds::Source{[&peers] { return peers.acknowledged(); }, [&peers] { return peers.read_acknowledged(); },
                                    [&peers](bool wanted) { peers.want_acknowledged(wanted); }, [&running] { return running.monotonic_ns(); }});
}

// Journals and checkpoints contain attributes and small bodies.
bool Checkpointer::checkpoint_for_room() {
  constexpr uint64_t kObjectBytes = 512;  // estimate, with its name
  const IndexTotals totals = parts_.index.totals();
  const uint64_t checkpoint = totals.inline_bodies * parts_.options.inline_below_bytes() +
                              (totals.objects + totals.directories) * kObjectBytes + totals.live_bytes / kUnitBytes * 8;
  const auto records = [&] { return found_.checkpoint_bytes + found_.older_journals_bytes + parts_.committer.journal_bytes(); };
  const uint64_t before = records();
  if (before < kRoomCheckpointBytes || checkpoint > before / 2) return false;
  Status status = write_checkpoint();
  if (!status) log::error("checkpoint: {}", status.error().message);
  return status && records() < before - before / kWorthPart;  // otherwise the next one would give nothing more back
}

bool Checkpointer::shrink_index() {
  constexpr uint64_t kLeastBytes = 2 * kMiB, kPart = 64;  // of the capacity
  constexpr int64_t kTryAgainNs = 10'000'000'000;
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (now_ns - shrunk_ns_ < kTryAgainNs || index_is_elsewhere()) return false;
  const uint64_t unused = parts_.index.unused_bytes();
  struct stat data {};
  if (unused < std::max(kLeastBytes, parts_.options.current().capacity_bytes / kPart) || ::stat(index_file().c_str(), &data) != 0) return false;
  const auto before = static_cast<uint64_t>(data.st_size);
  if (unused < before / 2) return false;
  shrunk_ns_ = now_ns;
  const uint64_t copy_bytes = before - unused + kMiB;
  // Space set aside for the next checkpoint and for the index itself is not written meanwhile.
  const uint64_t there = parts_.space.physical_bytes() + parts_.space.reserved_bytes();
  if (there + copy_bytes > parts_.space.own_limit_bytes() || copy_bytes > parts_.space.backing_free_soon_bytes()) return false;
  parts_.space.reserve(copy_bytes);
  const bool shrunk = parts_.index.give_back_unused();
  parts_.space.release(copy_bytes);
  measure_overhead();
  if (shrunk) log::debug("index {}: {} of {} were unused and are given back", parts_.index_directory, format_size(unused), format_size(before));
  if (shrunk) checkpoint_for_room();  // records that were in the index are in the last checkpoint, too
  return shrunk;
}

uint64_t Checkpointer::awaited_from_peers_bytes() {
  const uint64_t held = held_for_peers_bytes_, read = holds_ ? holds_->read_bytes() : 0;
  return held - std::min(held, read) + (earlier_lives() == PeerHolds::Earlier::kUnread ? parts_.orphans.bytes() : 0);
}

void Checkpointer::note_leftovers(std::span<const FreedPlace> taken, bool ends) {
  OrphanNotes::MayBeRead may_be_read;
  if (holds_) {
    holds_->refresh();
    may_be_read = [this](const FreedPlace& freed) { return holds_->may_hold(freed); };
  }
  parts_.records.set_notes(parts_.orphans.note_leftovers(parts_.index, taken, may_be_read, ends));
}

PeerHolds::Earlier Checkpointer::earlier_lives() {
  PeerHolds::Earlier earlier = PeerHolds::Earlier::kFree;
  if (holds_ && parts_.sweep.is_left()) {
    // That the object has a record proves nothing, unless it never had another body: peers may have its previous one open, which an earlier run
    // replaced, or moved where the volume cannot punch holes.
    earlier = holds_->earlier_epochs(parts_.identity.epoch, [this](ObjectId id) {
      if (parts_.orphans.places_known()) return true;
      bool died_here = false;
      parts_.dead.for_each([&](const FreedPlace& freed) { died_here |= freed.object == id; });
      if (died_here || !parts_.volume->features().punch_hole) return died_here;
      const auto record = parts_.index.find_object(id);
      return record && *record && (*record)->body.version == 1;
    });
  }
  if (holds_ && earlier == PeerHolds::Earlier::kFree && !parts_.orphans.unlisted()) parts_.orphans.now_places_are_known();
  held_of_earlier_lives_bytes_ = earlier == PeerHolds::Earlier::kFree ? 0 : parts_.orphans.bytes();
  return earlier;
}

void Checkpointer::measure_overhead() {
  RecordSpace::Measured measured;
  const JournalWriter::Appended appended = parts_.journal.appended();
  measured.appended_bytes = appended.bytes_in_all;
  measured.journal_bytes = found_.older_journals_bytes + appended.bytes_since_rotate;
  measured.checkpoint_bytes = found_.checkpoint_bytes + (kept_journals_ ? kept_journals_->bytes : 0);
  measured.reserve_bytes = parts_.reserve.held_bytes();
  struct stat data {};
  measured.index_is_elsewhere = index_is_elsewhere();
  if (::stat(index_file().c_str(), &data) == 0)
    measured.index_bytes = static_cast<uint64_t>(data.st_blocks) * 512;
  measured.index_unused_bytes = parts_.index.unused_bytes();
  constexpr uint64_t kFileBytes = 1 * kKiB;  // row and name, in pages that are not full
  constexpr uint64_t kBodilessBytes = 256;   // the same without a body
  const IndexTotals totals = parts_.index.totals();
  const uint64_t bodies = totals.inline_bodies + totals.packed_bodies + totals.solo_bodies + totals.raw_bodies;
  measured.bodiless_bytes = (totals.directories + totals.objects - std::min(totals.objects, bodies)) * kBodilessBytes;
  measured.files_bytes = totals.objects * kFileBytes + (totals.inline_bodies > 0 ? totals.logical_bytes - std::min(totals.logical_bytes, totals.live_bytes) : 0);
  if (peers_ != nullptr) peers_->measure();
  if (!epochs_bytes_) epochs_bytes_ = measure_epochs();
  measured.reserve_bytes += *epochs_bytes_;
  parts_.records.measured(measured);
}

// Bytes that the epochs of this node take beside journals, checkpoints and extents: directories, and HEAD and ACKS of earlier runs. Skips
// files that cannot be examined.
uint64_t Checkpointer::measure_epochs() const {
  uint64_t bytes = 0;
  const auto add = [&](const std::string& path) {
    if (const auto info = parts_.volume->info(path)) bytes += info->allocated_bytes;
  };
  for (const uint32_t epoch : list_epochs(*parts_.volume, parts_.identity.node).value_or(std::vector<uint32_t>())) {
    const std::string directory = epoch_directory(parts_.identity.node, epoch);
    add(directory);
    for (const DirectoryEntry& entry : parts_.volume->list(directory).value_or(std::vector<DirectoryEntry>()))
      if (entry.is_directory || epoch < parts_.identity.epoch) add(directory + "/" + entry.name);
  }
  return bytes;
}

// --- giving space back (invariant 6: only after the records that gave it up, and their data, were synced) ---

void Checkpointer::reclaim(std::vector<FreedPlace> dead, const Reclaimer::Amount& amount) {
  parts_.tree.write().drop_unread_places();
  if (holds_) holds_->begin(dead);
  const Reclaimer::Outcome outcome = parts_.reclaimer.reclaim(std::move(dead), nobody_reads_ ? Reclaimer::Amount() : amount);
  if (holds_) holds_->end(outcome.held_places > 0);
  held_for_peers_bytes_ = outcome.held_bytes;
  reclaim_cut_short_ = outcome.cut_short;
  const uint64_t earlier_read_bytes = earlier_lives() == PeerHolds::Earlier::kOpen ? parts_.orphans.bytes() : 0;
  parts_.eviction.note_reclaimed(outcome, holds_ ? holds_->read_bytes() + earlier_read_bytes : 0);
}

}  // namespace kvcachefs
