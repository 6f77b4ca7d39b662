#include "store/check/recovered_index.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <unordered_set>
#include <variant>

#include <fmt/format.h>

#include "store/base/boot_id.h"
#include "store/base/checksum.h"
#include "store/check/copy_file.h"
#include "store/extent/extents.h"
#include "store/index/replay_filter.h"
#include "store/journal/goes_on.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kCommitRows = 50'000;  // bounds the memory of a long replay

IndexIdentity identity_of(const OfflineNode& node) { return {node.identity.volume_uuid, node.identity.node}; }

// True if the body is not on the medium as its record says. False if the medium did not give its bytes: they may be good.
bool was_lost(const ObjectRecord& object, BodyChecker& bodies, std::vector<std::string>& dropped) {
  const auto bad = bodies.check(object);
  if (!bad || !bad->wrong || bad->is_no_file) return false;
  dropped.push_back(fmt::format("object {} was not on the medium when the host went down: {}", object.id.value, bad->why));
  return true;
}

// A repair of bad bodies journals nothing else. (One that writes a checkpoint removes the index.)
bool is_of_repair(const Record& record) {
  const auto* const put = std::get_if<PutRecord>(&record);
  return std::holds_alternative<SyncedRecord>(record) || (put != nullptr && put->object.body.quarantined);
}

Status replay_into(const OfflineNode& node, const NodeHistory& history, JournalPosition from, BodyChecker& bodies, ReplayFilter& filter, RecoveredIndex& into) {
  const auto apply = [&](const Batch& believed, JournalPosition after) -> Status {
    KVC_TRY(into.index->apply(believed, after));
    return {};
  };
  auto statistics = replay_journals(*node.volume, node.identity, from,
                                    [&](const Batch& batch, JournalPosition after, bool synced) -> Status {
                                      into.unclean |= !synced;
                                      into.reached[after.epoch] = after;
                                      into.is_repair.try_emplace(after.epoch, true).first->second &= std::ranges::all_of(batch.records, is_of_repair);
                                      const bool verify = !synced && history.other_boot.contains(after.epoch);
                                      const auto not_whole = [&](const PutRecord& put) {
                                        return verify && was_lost(put.object, bodies, into.dropped);
                                      };
                                      KVC_TRY(filter.apply(batch, after, not_whole, apply));
                                      if (into.index->overlay_rows() > kCommitRows) return into.index->commit();
                                      return {};
                                    });
  if (!statistics) return std::unexpected(std::move(statistics).error());
  KVC_TRY(filter.finish(apply));
  into.statistics = std::move(*statistics);
  into.unclean |= into.statistics.torn_tails > 0;
  return into.index->commit();
}

// The key of a row (first, second) and a digest of its content.
struct RowMark {
  uint64_t first = 0, second = 0, content = 0;
  auto operator<=>(const RowMark&) const = default;
};
using RowMarks = std::vector<RowMark>;

uint64_t digest(const Record& record, uint64_t more = 0) {
  Bytes bytes;
  ByteWriter out(bytes);
  RecordContext context;
  encode_record(record, context, out);
  out.u64(more);
  return checksum(bytes);
}

enum class Rows : uint8_t { kObjects, kNames, kSuccessors, kExtents };

Result<RowMarks> marks_of(const Index& index, Rows rows) {
  RowMarks marks;
  auto add = [&](uint64_t first, uint64_t second, uint64_t content) {
    marks.push_back({first, second, content});
    return true;
  };
  switch (rows) {
    case Rows::kObjects:
      KVC_TRY(index.scan_objects([&](ObjectRecord&& row) {
        const auto [id, nlink] = std::pair{row.id.value, row.nlink};
        return add(id, 0, digest(PutRecord{std::move(row)}, nlink));
      }));
      break;
    case Rows::kNames:
      KVC_TRY(index.scan_names([&](NameRecord&& row) {
        const auto [parent, child] = std::pair{row.parent.value, row.child.value};
        return add(parent, child, digest(std::move(row)));
      }));
      break;
    case Rows::kSuccessors:
      KVC_TRY(
          index.scan_successors([&](SuccessorsRecord&& row) { return add(row.id.value, 0, digest(std::move(row))); }));
      break;
    case Rows::kExtents:
      KVC_TRY(index.scan_extents([&](ExtentId id, const ExtentUsage& usage) {
        const uint64_t parts[] = {static_cast<uint64_t>(usage.kind), usage.live_bytes, usage.bodies,
                                  usage.object.value};
        return add(id.epoch, id.seq, checksum(std::as_bytes(std::span(parts))));
      }));
      break;
  }
  std::ranges::sort(marks);
  return marks;
}

std::string describe(Rows rows, const RowMark& mark) {
  switch (rows) {
    case Rows::kObjects: return fmt::format("object {}", mark.first);
    case Rows::kNames: return fmt::format("the name of object {} in directory {}", mark.second, mark.first);
    case Rows::kSuccessors: return fmt::format("the successors of object {}", mark.first);
    case Rows::kExtents: return fmt::format("the usage of extent {}/{}", mark.first, mark.second);
  }
  return {};
}

void compare(Rows rows, const RowMarks& right, const RowMarks& found, std::vector<std::string>& differences) {
  auto a = right.begin(), b = found.begin();
  auto same_row = [](const RowMark& x, const RowMark& y) { return x.first == y.first && x.second == y.second; };
  while (a != right.end() || b != found.end()) {
    if (a != right.end() && b != found.end() && *a == *b) {
      ++a, ++b;
    } else if (a != right.end() && b != found.end() && same_row(*a, *b)) {
      differences.push_back(describe(rows, *a++) + " differs");
      ++b;
    } else if (b == found.end() || (a != right.end() && *a < *b)) {
      differences.push_back(describe(rows, *a++) + " is missing");
    } else {
      differences.push_back(describe(rows, *b++) + " should not be there");
    }
  }
}

}  // namespace

Result<NodeHistory> read_history(const OfflineNode& node) {
  NodeHistory history;
  KVC_ASSIGN(history.journals, list_journals(*node.volume, node.identity));
  KVC_ASSIGN(history.checkpoint, find_checkpoint(*node.volume, node.identity, history.checkpoint_problems));
  for (const JournalFileInfo& file : history.journals)
    if (file.boot_id != boot_id()) history.other_boot.insert(file.epoch);
  return history;
}

Result<RecoveredIndex> recover_index(const OfflineNode& node, const NodeHistory& history, const std::string& directory,
                                     BodyChecker& bodies) {
  RecoveredIndex recovered;
  Index::Found found{};
  std::string why;
  KVC_ASSIGN(recovered.index, Index::open(directory, identity_of(node), &found, &why));
  ReplayFilter filter(*recovered.index, /*complete=*/true, [&](ReplayFilter::Told what, const std::string& line) {
    (what == ReplayFilter::Told::kLeftOut ? recovered.impossible : recovered.put_right).push_back(line);
  });
  if (history.checkpoint) {
    const CheckpointHeader& header = history.checkpoint->header;
    KVC_TRY(recovered.index->begin_load());
    KVC_TRY(read_checkpoint(*node.volume, node.identity, *history.checkpoint, [&](Record&& record) {
      return filter.believes(record, header.covers.epoch) ? recovered.index->load(std::move(record)) : Status();
    }, recovered.impossible));
    KVC_TRY(recovered.index->finish_load(header.covers, ReplayFilter::believed(header.stamp)));
  }
  KVC_TRY(replay_into(node, history, recovered.index->position(), bodies, filter, recovered));
  return recovered;
}

namespace {
// Judges, as a mount does, an index that has read records that the journals lack. Empty: a mount would go by it.
Result<std::string> why_not_to_believe(const OfflineNode& node, const NodeHistory& history, const Index& index) {
  if (!node.index_directory.starts_with(node.volume->root() + "/")) {
    KVC_ASSIGN(std::string why, why_of_another_time(*node.volume, node.identity, index.position(), index.was_closed_cleanly(), history.checkpoint, history.journals));
    if (!why.empty()) return why;
  }
  std::set<std::string> paths;
  KVC_TRY(index.scan_objects([&](ObjectRecord&& row) {
    const Place& place = row.body.place;
    if (place.extent.valid() && !row.body.quarantined) paths.insert(extent_path(node.identity.node, place.extent, place.kind));
    return true;
  }));
  for (const std::string& path : paths)
    if (const auto info = node.volume->info(path); !info) return fmt::format("what it names is not there: {}", info.error().message);
  return std::string();
}

// A mount takes the mark of a clean close away from its index. So behind an index that has it nothing of a later mount that used it can come.
std::string why_stale(const ExistingIndex& existing, const NodeHistory& history, const RecoveredIndex& recovered) {
  if (!existing.closed_cleanly) return {};
  for (const JournalFileInfo& file : history.journals) {
    if (file.epoch <= existing.position.epoch || (file.header_bytes != 0 && file.size_bytes <= file.header_bytes)) continue;
    if (const auto known = recovered.is_repair.find(file.epoch); known == recovered.is_repair.end() || !known->second)
      return fmt::format("it was closed in epoch {}, and epoch {} did without it", existing.position.epoch, file.epoch);
  }
  return {};
}
}  // namespace

Result<ExistingIndex> catch_up_existing_index(const OfflineNode& node, const NodeHistory& history, const RecoveredIndex& recovered,
                                              const std::string& directory, BodyChecker& bodies) {
  ExistingIndex existing;
  std::error_code error;
  if (!std::filesystem::exists(node.index_directory, error)) return existing;
  // Opening an index changes its directory, so a copy is opened.
  std::filesystem::create_directories(directory, error);
  for (const char* name : {"data.mdb", "clean", "lock"}) {
    const auto from = std::filesystem::path(node.index_directory) / name;
    if (!std::filesystem::exists(from, error)) continue;
    KVC_TRY(copy_file_sparse(from, std::filesystem::path(directory) / name));
  }
  RecoveredIndex copy;
  Index::Found found{};
  KVC_ASSIGN(copy.index, Index::open(directory, identity_of(node), &found, &existing.wrong));
  const std::string of_the_copy = fmt::format("index {}: ", directory);
  if (existing.wrong.starts_with(of_the_copy)) existing.wrong.erase(0, of_the_copy.size());
  if (copy.index->replaced_another()) existing.stale = existing.wrong;
  if (!existing.wrong.empty()) return existing;
  existing.closed_cleanly = found == Index::Found::kOpened && copy.index->was_closed_cleanly();
  if (found == Index::Found::kFresh) return existing;
  existing.position = copy.index->position();
  existing.stale = why_stale(existing, history, recovered);
  auto leftovers = copy.index->leftovers();
  JournalPosition from = existing.position;
  if (!journals_go_on_from(from, history.checkpoint, history.journals)) {
    KVC_ASSIGN(existing.is_past_journals, journals_were_lost(*node.volume, node.identity, from, history.checkpoint, history.journals));
    if (!existing.is_past_journals) {
      existing.stale = existing.wrong = "its position is not one of these journals: it is older than they are, or of another time";
      return existing;
    }
    KVC_ASSIGN(const std::string why, why_not_to_believe(node, history, *copy.index));
    if (!why.empty()) {
      existing.wrong = fmt::format("it has read journals that are missing or cut short, but {}", why);
      return existing;
    }
    from = behind_what_is_lost(from, history.journals);
  }
  ReplayFilter filter(*copy.index, /*complete=*/false, [](ReplayFilter::Told, const std::string&) {});  // the fresh index reports these lines
  if (Status status = replay_into(node, history, from, bodies, filter, copy); !status) {
    if (status.error().code != Code::kCorrupt) return std::unexpected(std::move(status).error());
    existing.wrong = status.error().message;
    return existing;
  }
  existing.is_behind_damage = copy.statistics.damaged_files > 0;
  if (copy.statistics.batches == 0) existing.leftovers = std::move(leftovers);
  existing.index = std::move(copy.index);
  return existing;
}

namespace {
// The objects that the journals name, also those that were removed again.
Result<std::unordered_set<ObjectId>> told_of(const OfflineNode& node, JournalPosition from) {
  std::unordered_set<ObjectId> told;
  KVC_TRY(replay_journals(*node.volume, node.identity, from, [&](const Batch& batch, JournalPosition, bool) -> Status {
    for (const Record& record : batch.records)
      if (const auto* put = std::get_if<PutRecord>(&record)) told.insert(put->object.id);
    return {};
  }));
  return told;
}
}  // namespace

Result<bool> may_lack(const OfflineNode& node, const NodeHistory& history, const RecoveredIndex& recovered, const ExistingIndex& existing, BodyChecker& bodies) {
  if (recovered.statistics.damaged_files > 0 || recovered.statistics.torn_tails > 0 || recovered.unclean || !history.checkpoint_problems.empty()) return true;
  const JournalPosition from = history.checkpoint ? history.checkpoint->header.covers : JournalPosition{1, 0, 0};
  for (uint32_t epoch = from.epoch; epoch <= existing.position.epoch; ++epoch) {
    const auto reached = recovered.reached.find(epoch);
    if (reached == recovered.reached.end()) {  // in the first epoch all batches may lie before `from`
      if (epoch > from.epoch || existing.position > from) return true;
    } else if (epoch == existing.position.epoch && reached->second < existing.position) {
      return true;
    }
  }
  KVC_ASSIGN(const auto told, told_of(node, from));
  bool lack = false;
  KVC_TRY(existing.index->scan_objects([&](ObjectRecord&& row) {
    if (row.body.place.kind == PlaceKind::kNone || told.contains(row.id)) return true;
    const auto known = recovered.index->find_object_summary(row.id);
    lack = known && !*known && !bodies.check(row);
    return !lack;
  }));
  return lack;
}

Result<std::vector<std::string>> index_differences(const Index& right, const Index& found) {
  std::vector<std::string> differences;
  for (Rows rows : {Rows::kObjects, Rows::kNames, Rows::kSuccessors, Rows::kExtents}) {
    KVC_ASSIGN(const RowMarks expected, marks_of(right, rows));
    auto actual = marks_of(found, rows);
    if (!actual && actual.error().code == Code::kCorrupt) {
      differences.push_back(actual.error().message);
      continue;
    }
    if (!actual) return std::unexpected(std::move(actual).error());
    compare(rows, expected, *actual, differences);
  }
  return differences;
}

}  // namespace kvcachefs
