#include "store/recovery/first_records.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace kvcachefs {

Status FirstRecords::journal(const Batch& batch) {
  KVC_ASSIGN(JournalPosition after, parts_.append(batch));
  KVC_ASSIGN(auto freed, parts_.index.apply(batch, after));
  parts_.dead.found(freed);
  return {};
}

Status FirstRecords::end_earlier(JournalPosition end, bool left_out) {
  if (end == JournalPosition{}) return {};
  Batch batch;
  batch.stamp = parts_.stamps.next();
  batch.records.emplace_back(EndsRecord{end, left_out});
  return journal(batch);
}

Status FirstRecords::make_root() {
  KVC_ASSIGN(auto there, parts_.index.find_object(kRootId));
  if (there) return {};
  PutRecord root;
  root.object.id = kRootId;
  Attributes& attributes = root.object.attributes;
  attributes.mode = S_IFDIR | 0755;
  attributes.uid = getuid();
  attributes.gid = getgid();
  attributes.btime_ns = parts_.clock.realtime_ns();
  attributes.atime_ns = attributes.mtime_ns = attributes.ctime_ns = attributes.btime_ns;
  Batch batch;
  batch.stamp = parts_.stamps.next();
  batch.records.emplace_back(std::move(root));
  return journal(batch);
}

Status FirstRecords::drop_nameless() {
  KVC_ASSIGN(auto nameless, parts_.index.scan_nameless());
  std::erase(nameless, kRootId);
  constexpr size_t kMostAtOnce = 10'000;  // of a journaled batch, whose size is limited
  for (size_t from = 0; from < nameless.size(); from += kMostAtOnce)
    KVC_TRY(drop(std::span(nameless).subspan(from, std::min(kMostAtOnce, nameless.size() - from))));
  parts_.counters.swept_files.fetch_add(nameless.size());
  return {};
}

// Goes depth first: the index keeps a directory that still has names, nameless.
Status FirstRecords::remove_all_names(const std::function<Status()>& sync) {
  constexpr size_t kMostAtOnce = 4096;
  struct Level {
    ObjectId directory;
    std::vector<NameEntry> names;  // not visited yet, of those listed last
    uint64_t after = 0;
    bool whole = false;  // everything was listed
    NameEntry own;
    ObjectId above;
  };
  std::vector<Level> levels(1);
  levels.back().directory = kRootId;
  std::set<ObjectId> entered{kRootId};  // a damaged volume may hold directories that form no tree
  Batch batch;
  const auto unname = [&](ObjectId parent, NameEntry& entry) -> Status {
    batch.records.emplace_back(UnnameRecord{.parent = parent, .name = std::move(entry.name), .child = entry.child});
    if (batch.records.size() < kMostAtOnce) return {};
    return remove(std::exchange(batch, {}), sync);
  };
  while (!levels.empty()) {
    Level& level = levels.back();
    if (level.names.empty() && !level.whole) {
      KVC_ASSIGN(level.names, parts_.index.list(level.directory, level.after, kMostAtOnce));
      level.whole = level.names.empty();
      if (!level.whole) level.after = level.names.back().cookie;
      continue;
    }
    if (level.names.empty()) {
      Level done = std::move(levels.back());
      levels.pop_back();
      if (done.directory != kRootId) KVC_TRY(unname(done.above, done.own));
      continue;
    }
    NameEntry entry = std::move(level.names.back());
    level.names.pop_back();
    if (S_ISDIR(entry.type_bits) && entered.insert(entry.child).second) {
      Level below;
      below.directory = entry.child;
      below.above = level.directory;
      below.own = std::move(entry);
      levels.push_back(std::move(below));
    } else {
      KVC_TRY(unname(level.directory, entry));
    }
  }
  return batch.records.empty() ? Status() : remove(batch, sync);
}

Status FirstRecords::remove(const Batch& batch, const std::function<Status()>& sync) {
  constexpr uint64_t kMostRows = 50'000;
  Batch stamped = batch;
  stamped.stamp = parts_.stamps.next();
  KVC_ASSIGN(const JournalPosition after, parts_.append(stamped));
  KVC_ASSIGN(auto freed, parts_.index.apply(stamped, after));
  for (FreedPlace& place : freed) place.given_up_at = after;
  parts_.dead.journaled(freed, parts_.index.totals().live_bytes, 0);
  if (parts_.index.overlay_rows() < kMostRows) return {};
  KVC_TRY(sync());
  return parts_.index.commit();
}

Status FirstRecords::drop(std::span<const ObjectId> nameless) {
  Batch batch;
  batch.stamp = parts_.stamps.next();
  for (ObjectId id : nameless) {
    const std::string name = fmt::format(".kvcachefs-nameless-{}", id.value);
    batch.records.emplace_back(NameRecord{kRootId, name, id});
    batch.records.emplace_back(UnnameRecord{kRootId, name, id});
  }
  return journal(batch);
}

}  // namespace kvcachefs
