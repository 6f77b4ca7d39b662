#include "store/recovery/first_records.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
  constexpr size_t kMostAtOnce = 10'000;  // of a journaled batch, which has a largest size
  for (size_t from = 0; from < nameless.size(); from += kMostAtOnce)
    KVC_TRY(drop(std::span(nameless).subspan(from, std::min(kMostAtOnce, nameless.size() - from))));
  parts_.counters.swept_files.fetch_add(nameless.size());
  return {};
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
