// remove_covered.
#include <fmt/format.h>

#include <utility>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/journal/file_header.h"
#include "store/journal/journal.h"
#include "store/journal/journal_file.h"

namespace kvcachefs {
namespace {

Result<Bytes> read_start(Volume& volume, const std::string& path) {
  KVC_ASSIGN(const FilePtr file, volume.open(path, {}));
  Bytes start(kMaxHeaderBytes);
  KVC_ASSIGN(const size_t got, file->read(start, 0));
  start.resize(got);
  return start;
}

// Another program put it there while the volume was mounted: renames it to a name that no start reads.
Status set_aside(Volume& volume, const std::string& path) {
  log::warn("{}/{} is no file of this program, and is renamed to {}.foreign", volume.root(), path, path);
  return volume.rename(path, path + ".foreign");
}

// Removes the files "<seq><suffix>" with seq below `end` and syncs the directory if there were any.
Status remove_below(Volume& volume, const std::string& directory, std::string_view suffix, uint64_t end) {
  KVC_ASSIGN(const auto seqs, list_seqs(volume, directory, suffix));
  bool any = false;
  for (const uint64_t seq : seqs) {
    if (seq >= end) break;
    const std::string path = fmt::format("{}/{}{}", directory, seq, suffix);
    const auto there = volume.info(path);
    if (!there && is_no_file(there.error())) KVC_TRY(set_aside(volume, path));
    else KVC_TRY(remove_file_if_there(volume, path));
    kill_point("journals-half-removed");
    any = true;
  }
  return any ? volume.sync_directory(directory) : Status{};
}

// Seq of the first file of that epoch that is still needed: the file of the position, or the next one if its header says that this file
// ends there.
Result<uint64_t> first_needed(Volume& volume, const FileIdentity& identity, JournalPosition covered) {
  KVC_ASSIGN(const auto seqs, list_seqs(volume, journal_directory(identity.node, covered.epoch), ".log"));
  for (const uint64_t seq : seqs) {  // a file that was never finished is in no later header
    if (seq <= covered.seq) continue;
    const auto start = read_start(volume, journal_path(identity.node, covered.epoch, seq));
    const auto header = start ? decode_journal_header(*start) : std::unexpected(start.error());
    if (header && header->header.previous == JournalLink{covered.seq, covered.offset}) return covered.seq + 1;
  }
  return covered.seq;
}

// For an epoch that is over: nothing will be added to it.
Status remove_if_empty(Volume& volume, const std::string& directory) {
  auto entries = volume.list(directory);
  if (!entries) {
    if (entries.error().code == Code::kNotFound) return {};
    return std::unexpected(std::move(entries).error());
  }
  if (!entries->empty()) return {};
  const Status removed = volume.remove_directory(directory);
  // The server may have restarted and answer so for our own success.
  return !removed && removed.error().code == Code::kNotFound ? Status{} : removed;
}

// Removes an epoch that is over and empty: else every start and checkpoint would look through one more directory for each mount
// there ever was. Does not list it: an epoch with extents beyond the first extent directory stays. Also removes what its daemon
// told other nodes (HEAD, ACKS), which means nothing any more.
Status remove_empty_epoch(Volume& volume, const std::string& directory) {
  std::string changed;
  const std::string head = std::string("/") + kHeadFileName, acks = std::string("/") + kAcksFileName;
  for (const std::string& below : {std::string("/extents/0"), std::string("/extents"), head, acks, std::string()}) {
    const std::string path = directory + below;
    const Status removed = below == head || below == acks ? volume.remove_file(path) : volume.remove_directory(path);
    if (removed)
      changed = path.substr(0, path.rfind('/'));
    else if (removed.error().code != Code::kNotFound)
      break;
  }
  // The last directory changed and still there: else, after a power loss, the removed names in it would come back.
  return changed.empty() ? Status{} : volume.sync_directory(changed);
}

}  // namespace

Status remove_covered(Volume& volume, const FileIdentity& identity, JournalPosition covered,
                      const CheckpointInfo& keep) {
  if (covered > keep.header.covers) {
    return fail(Code::kInvalid,
                fmt::format("journals of node '{}' up to {}/{}/{} are not covered by checkpoint {}/{}: not removed",
                            identity.node, covered.epoch, covered.seq, covered.offset, keep.epoch, keep.seq));
  }
  constexpr uint64_t kAll = ~uint64_t{0};
  KVC_ASSIGN(const auto epochs, list_epochs(volume, identity.node));
  for (const uint32_t epoch : epochs) {
    const std::string journals = journal_directory(identity.node, epoch);
    const std::string checkpoints = checkpoint_directory(identity.node, epoch);
    if (epoch < covered.epoch) KVC_TRY(remove_below(volume, journals, ".log", kAll));
    if (epoch == covered.epoch) {
      KVC_ASSIGN(const uint64_t end, first_needed(volume, identity, covered));
      KVC_TRY(remove_below(volume, journals, ".log", end));
    }
    if (epoch <= keep.epoch) {
      const uint64_t end = epoch < keep.epoch ? kAll : keep.seq;
      KVC_TRY(remove_below(volume, checkpoints, "", end));
      KVC_TRY(remove_below(volume, checkpoints, ".tmp", end));
    }
    if (epoch < covered.epoch && epoch < identity.epoch) {
      KVC_TRY(remove_if_empty(volume, journals));
      KVC_TRY(remove_if_empty(volume, checkpoints));
      KVC_TRY(remove_empty_epoch(volume, epoch_directory(identity.node, epoch)));
    }
  }
  kill_point("journals-removed");
  return {};
}

}  // namespace kvcachefs
