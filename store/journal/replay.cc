// replay_journals, list_journals. Walks each epoch twice: first to find how far it was synced, then to apply. Behind the
// last synced record a power cut leaves a tail with holes; it ends the epoch at its first hole, because a
// batch may depend on any earlier one. A hole before that record is damage: it is reported and skipped.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "store/base/kill_point.h"
#include "store/base/units.h"
#include "store/journal/epoch_ends.h"
#include "store/journal/epoch_walk.h"
#include "store/journal/file_header.h"
#include "store/journal/journal.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {
namespace {

using Apply = std::function<Status(const Batch&, JournalPosition after, bool synced)>;

// How far an epoch can be relied on.
struct Reach {
  JournalPosition synced;      // behind the last SyncedRecord; {0, 0, 0} if there is none
  JournalPosition last_valid;  // behind the last valid frame
};

class EpochReplay {
 public:
  EpochReplay(const EpochWalk& walk, uint32_t epoch, ReplayStatistics& statistics, const Apply& apply)
      : walk_(walk), epoch_(epoch), statistics_(statistics), apply_(apply) {}

  Status run(JournalLink from, std::optional<JournalLink> until) {
    KVC_TRY(walk_.walk(from, until,
                       {.frame = [this](const WalkedFile& file, const Frame& frame, uint64_t behind) { return look(file, frame, behind); },
                              .gap = [](const Gap&) { return true; },
                              .given_up_tail = [](const WalkedFile&) {}}));
    return walk_.walk(from, until,
                      {.frame = [this](const WalkedFile& file, const Frame& frame, uint64_t behind) { return replay(file, frame, behind); },
                       .gap = [this](const Gap& gap) { return judge(gap); },
                       .given_up_tail =
                           [this](const WalkedFile& file) {
                             ++statistics_.torn_tails;
                             statistics_.problems.push_back(fmt::format(
                                 "{}: bytes from {} on were given up after a failed write", file.path, *file.good_end));
                           }});
  }

 private:
  Result<bool> look(const WalkedFile& file, const Frame& frame, uint64_t behind) {
    reach_.last_valid = {epoch_, file.seq, behind};
    const auto synced = batch_has_synced(frame.payload);  // an unreadable batch is reported when it is applied
    if (synced && *synced) reach_.synced = reach_.last_valid;
    return true;
  }

  Result<bool> replay(const WalkedFile& file, const Frame& frame, uint64_t behind) {
    if (files_seen_.insert(file.seq).second) ++statistics_.files;
    const JournalPosition after{epoch_, file.seq, behind};
    auto batch = decode_batch(frame.payload);
    if (!batch) {
      std::string where = fmt::format("{}: frame at {}", file.path, frame.offset);
      if (batch.error().code == Code::kVersion) return std::unexpected(std::move(batch).error().at(where));
      damaged(file.seq, fmt::format("{}: {}", where, batch.error().message));
      return true;
    }
    if (says_only_next(*batch)) return true;
    ++statistics_.batches;
    statistics_.records += batch->records.size();
    statistics_.bytes += kFrameHeaderBytes + frame.payload.size();
    KVC_TRY(apply_(*batch, after, after <= reach_.synced));
    kill_point("batch-replayed");
    return true;
  }

  Result<bool> judge(const Gap& gap) {
    const JournalPosition where{epoch_, gap.seq, gap.offset};
    if (gap.at_start || where < reach_.synced) {
      damaged(gap.seq, gap.what);
      return true;
    }
    ++statistics_.torn_tails;
    if (!statistics_.first_cut) statistics_.first_cut = where;
    statistics_.problems.push_back(
        gap.what + (where < reach_.last_valid ? "; what follows in this epoch was never synced and is left out" : ""));
    return false;
  }

  void damaged(uint64_t seq, std::string what) {
    if (damaged_seen_.insert(seq).second) ++statistics_.damaged_files;
    statistics_.problems.push_back(std::move(what));
  }

  const EpochWalk& walk_;
  uint32_t epoch_;
  ReplayStatistics& statistics_;
  const Apply& apply_;
  Reach reach_;
  std::set<uint64_t> files_seen_, damaged_seen_;
};

}  // namespace

Result<ReplayStatistics> replay_journals(Volume& volume, const FileIdentity& identity, JournalPosition from,
                                         const Apply& apply, uint32_t before_epoch) {
  ReplayStatistics statistics;
  KVC_ASSIGN(const auto epochs, list_epochs(volume, identity.node));
  KVC_ASSIGN(const EpochEnds ends, EpochEnds::read(volume, identity, epochs, from.epoch));
  for (const uint32_t epoch : epochs) {
    if (epoch < from.epoch || epoch >= before_epoch) continue;
    FileIdentity its = identity;
    its.epoch = epoch;
    KVC_ASSIGN(const EpochWalk walk, EpochWalk::open(volume, its));
    EpochReplay replay(walk, epoch, statistics, apply);
    KVC_TRY(replay.run(epoch == from.epoch ? JournalLink{from.seq, from.offset} : JournalLink{}, ends.limit(epoch)));
  }
  return statistics;
}

Result<std::vector<JournalFileInfo>> list_journals(Volume& volume, const FileIdentity& identity) {
  std::vector<JournalFileInfo> infos;
  KVC_ASSIGN(const auto epochs, list_epochs(volume, identity.node));
  std::vector<std::pair<uint32_t, EpochWalk>> walks;
  for (const uint32_t epoch : epochs) {
    FileIdentity its = identity;
    its.epoch = epoch;
    KVC_ASSIGN(EpochWalk walk, EpochWalk::open(volume, its));
    walks.emplace_back(epoch, std::move(walk));
  }
  EpochEnds ends;
  for (const auto& [epoch, walk] : walks | std::views::reverse) KVC_TRY(ends.look_at(epoch, walk));
  for (const auto& [epoch, walk] : walks) {
    const auto end = ends.limit(epoch);
    for (const WalkedFile& file : walk.files()) {
      const uint64_t counts = !end || file.seq < end->seq ? file.size_bytes : file.seq == end->seq ? std::min(end->end, file.size_bytes) : 0;
      infos.push_back({.epoch = epoch,
                       .seq = file.seq,
                       .boot_id = file.header ? file.header->header.boot_id : std::string(),
                       .size_bytes = file.size_bytes,
                       .held_bytes = std::min(file.size_bytes, file.allocated_bytes + kMiB),  // a small file may lie beside its inode
                       .header_bytes = file.header ? file.header->size_bytes : 0,
                       .counting_bytes = counts,
                       .wants_checkpoint = ends.begins_with_checkpoint(epoch)});
    }
  }
  return infos;
}

}  // namespace kvcachefs
