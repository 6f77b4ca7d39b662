#include "store/index/batch_applier.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "store/base/units.h"

namespace kvcachefs {

bool is_on_volume(const Place& place) {
  return place.kind == PlaceKind::kPacked || place.kind == PlaceKind::kSolo || place.kind == PlaceKind::kRaw;
}

uint64_t space_of(const Place& place) { return is_on_volume(place) ? align_up(place.length, kBlockBytes) : 0; }

void add_to_extent(ObjectId object, const Place& place, ExtentUsage& usage) {
  usage.kind = place.kind;
  usage.live_bytes += space_of(place);
  usage.bodies += 1;
  usage.object = place.kind == PlaceKind::kPacked ? ObjectId{} : object;
}

namespace {

// Unsigned arithmetic wraps, so the same code adds (+1) and subtracts (-1 as the largest value).
void count(const ObjectRecord& object, uint64_t sign, IndexTotals& totals) {
  if (S_ISDIR(object.attributes.mode)) {
    totals.directories += sign;
  } else {
    totals.objects += sign;
  }
  switch (object.body.place.kind) {
    case PlaceKind::kNone: break;
    case PlaceKind::kInline: totals.inline_bodies += sign; break;
    case PlaceKind::kPacked: totals.packed_bodies += sign; break;
    case PlaceKind::kSolo: totals.solo_bodies += sign; break;
    case PlaceKind::kRaw: totals.raw_bodies += sign; break;
  }
  if (object.body.quarantined) totals.quarantined += sign;
  totals.live_bytes += sign * space_of(object.body.place);
  if (S_ISREG(object.attributes.mode)) totals.logical_bytes += sign * object.body.size_bytes;
}

class BatchApplier {
 public:
  BatchApplier(JournalPosition after, const RowSource& before, const IndexTotals& totals) : after_(after), before_(before) {
    effect_.totals = totals;
  }

  Status apply(const Record& record) {
    return std::visit([this](const auto& typed) { return on(typed); }, record);
  }
  Result<BatchEffect> finish();

 private:
  template <class Row>
  struct Entry {
    Row row;
    bool changed = false;
  };
  using ObjectEntry = Entry<std::shared_ptr<ObjectRow>>;  // null: no such object

  Status on(const PutRecord& record);
  Status on(const AttributesRecord& record);
  Status on(const NameRecord& record);
  Status on(const UnnameRecord& record);
  Status on(const MoveRecord& record);
  Status on(const TouchRecord& record);
  Status on(const SuccessorsRecord& record);
  Status on(const SyncedRecord&) { return {}; }
  Status on(const StatementRecord& record);
  Status on(const SeenRecord& record);
  Status on(const EndsRecord&) { return {}; }  // only for readers of journals
  Status on(const NextRecord&) { return {}; }

  Result<ObjectEntry*> object(ObjectId id);
  Result<Entry<NameRow>*> names(NameKey key);
  Result<Entry<ExtentUsage>*> extent(ExtentId id);
  Status take_place(ObjectId id, const Place& place);
  Status drop_place(ObjectId id, const Place& place);
  Status link(ObjectId parent, const NameEntry& entry);
  Status unlink(ObjectId parent, const NameEntry& entry);
  Status count_subdirectory(ObjectId parent, bool added);
  Status remove_nameless();
  std::vector<FreedPlace> freed_places() const;
  void note_number(ObjectId id);
  void note_extent(const Place& place);
  EpochHighs& highs(uint32_t epoch);

  const JournalPosition after_;
  const RowSource& before_;
  BatchEffect effect_;
  uint32_t statements_ = 0;  // of the batch so far
  std::unordered_map<ObjectId, ObjectEntry> objects_;
  std::map<NameKey, Entry<NameRow>> names_;
  std::map<ExtentId, Entry<ExtentUsage>> extents_;
  std::vector<ObjectId> losers_;     // objects that lost a name, or should have: removed if nameless at the end
  std::vector<FreedPlace> dropped_;  // places given up: freed unless some object has the place at the end
};

Result<BatchApplier::ObjectEntry*> BatchApplier::object(ObjectId id) {
  const auto found = objects_.find(id);
  if (found != objects_.end()) return &found->second;
  KVC_ASSIGN(const auto row, before_.read_object(id));
  return &objects_.emplace(id, ObjectEntry{row ? std::make_shared<ObjectRow>(*row) : nullptr}).first->second;
}

Result<BatchApplier::Entry<NameRow>*> BatchApplier::names(NameKey key) {
  const auto found = names_.find(key);
  if (found != names_.end()) return &found->second;
  KVC_ASSIGN(auto row, before_.read_names(key));
  return &names_.emplace(key, Entry<NameRow>{std::move(row)}).first->second;
}

Result<BatchApplier::Entry<ExtentUsage>*> BatchApplier::extent(ExtentId id) {
  const auto found = extents_.find(id);
  if (found != extents_.end()) return &found->second;
  KVC_ASSIGN(const auto row, before_.read_extent(id));
  return &extents_.emplace(id, Entry<ExtentUsage>{row}).first->second;
}

EpochHighs& BatchApplier::highs(uint32_t epoch) {
  return effect_.rows.epochs.try_emplace(epoch, before_.read_epoch(epoch)).first->second;
}

void BatchApplier::note_number(ObjectId id) {
  if (id.node_ordinal() != 0) return;
  EpochHighs& known = highs(id.epoch());
  known.number = std::max(known.number, id.number());
}

void BatchApplier::note_extent(const Place& place) {
  if (!is_on_volume(place)) return;
  EpochHighs& known = highs(place.extent.epoch);
  known.extent = std::max(known.extent, place.extent.seq);
}

Status BatchApplier::take_place(ObjectId id, const Place& place) {
  note_extent(place);
  if (!is_on_volume(place)) return {};
  KVC_ASSIGN(auto* const usage, extent(place.extent));
  add_to_extent(id, place, usage->row);
  usage->changed = true;
  return {};
}

Status BatchApplier::drop_place(ObjectId id, const Place& place) {
  if (!is_on_volume(place)) return {};
  KVC_ASSIGN(auto* const usage, extent(place.extent));
  usage->row.live_bytes -= std::min(usage->row.live_bytes, space_of(place));
  usage->row.bodies -= std::min<uint64_t>(usage->row.bodies, 1);
  usage->changed = true;
  dropped_.push_back({id, place});
  return {};
}

Status BatchApplier::on(const PutRecord& record) {
  const ObjectRecord& put = record.object;
  note_number(put.id);
  KVC_ASSIGN(auto* const entry, object(put.id));
  if (entry->row == nullptr) {
    entry->row = std::make_shared<ObjectRow>();
  } else {
    subtract_from_totals(entry->row->object, effect_.totals);
    KVC_TRY(drop_place(put.id, entry->row->object.body.place));
  }
  entry->row->object = put;
  entry->row->object.nlink = 0;
  entry->changed = true;
  add_to_totals(put, effect_.totals);
  return take_place(put.id, put.body.place);
}

Status BatchApplier::on(const AttributesRecord& record) {
  KVC_ASSIGN(auto* const entry, object(record.id));
  if (entry->row == nullptr) return {};
  ObjectRecord& known = entry->row->object;
  if ((known.attributes.mode ^ record.attributes.mode) & kTypeMask) return {};  // the body of `known` belongs to another type of file
  subtract_from_totals(known, effect_.totals);
  known.attributes = record.attributes;
  add_to_totals(known, effect_.totals);
  entry->changed = true;
  return {};
}

Status BatchApplier::on(const MoveRecord& record) {
  note_extent(record.place);
  KVC_ASSIGN(auto* const entry, object(record.id));
  if (entry->row == nullptr || entry->row->object.body.version != record.version) {
    // A removal or a new version overtook the move: no record names the copy at the new place.
    if (is_on_volume(record.place)) dropped_.push_back({record.id, record.place});
    return {};
  }
  ObjectRecord& known = entry->row->object;
  subtract_from_totals(known, effect_.totals);
  KVC_TRY(drop_place(record.id, known.body.place));
  known.body.place = record.place;
  add_to_totals(known, effect_.totals);
  entry->changed = true;
  return take_place(record.id, record.place);
}

Status BatchApplier::on(const TouchRecord& record) {
  for (const auto& [id, atime_ns] : record.atimes_ns) {
    KVC_ASSIGN(auto* const entry, object(id));
    if (entry->row == nullptr || entry->row->object.attributes.atime_ns == atime_ns) continue;
    entry->row->object.attributes.atime_ns = atime_ns;
    entry->changed = true;
  }
  return {};
}

Status BatchApplier::on(const SuccessorsRecord& record) {
  const auto found = objects_.find(record.id);
  // A batch has up to 100,000 of these: their rows of objects are not kept.
  KVC_ASSIGN(const bool exists, found != objects_.end() ? Result<bool>(found->second.row != nullptr) : before_.has_object(record.id));
  if (!exists) return {};
  effect_.rows.successors[record.id] = std::make_shared<SuccessorsRecord>(record);
  return {};
}

// A `touch` statement is for nodes that follow the journal. No node answers it, so a row of it would stay forever.
Status BatchApplier::on(const StatementRecord& record) {
  if (!is_answered(record)) return {};
  auto statement = std::make_shared<StatementRecord>(record);
  statement->said = after_;
  effect_.rows.statements[{after_, statements_++}] = std::move(statement);
  return {};
}

Status BatchApplier::on(const SeenRecord& record) {
  effect_.rows.seen[record.node] = record.position;
  return {};
}

Status BatchApplier::count_subdirectory(ObjectId parent, bool added) {
  KVC_ASSIGN(auto* const entry, object(parent));
  if (entry->row == nullptr) return {};
  uint32_t& known = entry->row->subdirectories;
  if (added) {
    known += 1;
  } else if (known > 0) {
    known -= 1;
  }
  entry->changed = true;
  return {};
}

Status BatchApplier::link(ObjectId parent, const NameEntry& entry) {
  KVC_ASSIGN(auto* const child, object(entry.child));
  child->row->names += 1;
  child->changed = true;
  return S_ISDIR(entry.type_bits) ? count_subdirectory(parent, true) : Status{};
}

Status BatchApplier::unlink(ObjectId parent, const NameEntry& entry) {
  KVC_ASSIGN(auto* const child, object(entry.child));
  if (child->row != nullptr && child->row->names > 0) {
    child->row->names -= 1;
    child->changed = true;
    losers_.push_back(entry.child);
  }
  return S_ISDIR(entry.type_bits) ? count_subdirectory(parent, false) : Status{};
}

Status BatchApplier::on(const NameRecord& record) {
  note_number(record.child);
  KVC_ASSIGN(const auto* const child, object(record.child));
  KVC_ASSIGN(const auto* const parent, object(record.parent));
  if (child->row == nullptr || (parent->row == nullptr && record.parent != kRootId)) return {};
  NameEntry entry{record.name, record.child, child->row->object.attributes.mode & kTypeMask, name_cookie(record.name)};

  KVC_ASSIGN(auto* const row, names({record.parent, entry.cookie}));
  const auto at = std::ranges::lower_bound(row->row, record.name, {}, &NameEntry::name);
  row->changed = true;
  if (at == row->row.end() || at->name != record.name) {
    row->row.insert(at, entry);
    return link(record.parent, entry);
  }
  const NameEntry replaced = std::exchange(*at, entry);
  KVC_TRY(link(record.parent, entry));
  return unlink(record.parent, replaced);
}

Status BatchApplier::on(const UnnameRecord& record) {
  KVC_ASSIGN(auto* const row, names({record.parent, name_cookie(record.name)}));
  const auto at = std::ranges::lower_bound(row->row, record.name, {}, &NameEntry::name);
  if (at == row->row.end() || at->name != record.name || at->child != record.child) {
    losers_.push_back(record.child);  // its journal wants it removed: remove it if it has no other name
    return {};
  }
  const NameEntry removed = std::move(*at);
  row->row.erase(at);
  row->changed = true;
  return unlink(record.parent, removed);
}

Status BatchApplier::remove_nameless() {
  // has_names() needs the rows as they will be after the batch.
  for (auto& [key, entry] : names_) {
    if (entry.changed) effect_.rows.names.emplace(key, std::move(entry.row));
  }
  for (const ObjectId id : losers_) {
    KVC_ASSIGN(auto* const entry, object(id));
    if (entry->row == nullptr || entry->row->names > 0 || id == kRootId) continue;
    if (entry->row->is_directory()) {
      KVC_ASSIGN(const bool in_use, before_.has_names(id, effect_.rows.names.rows()));
      if (in_use) continue;  // stays, nameless: else its entries would lie in a directory that does not exist
    }
    subtract_from_totals(entry->row->object, effect_.totals);
    KVC_TRY(drop_place(id, entry->row->object.body.place));
    entry->row = nullptr;
    entry->changed = true;
    effect_.rows.successors[id] = nullptr;
  }
  return {};
}

std::vector<FreedPlace> BatchApplier::freed_places() const {
  if (dropped_.empty()) return {};
  std::set<std::pair<ExtentId, uint64_t>> held;
  for (const auto& [id, entry] : objects_) {
    if (entry.row == nullptr || !is_on_volume(entry.row->object.body.place)) continue;
    held.emplace(entry.row->object.body.place.extent, entry.row->object.body.place.offset);
  }
  std::vector<FreedPlace> freed;
  for (const FreedPlace& dropped : dropped_) {
    // Also keeps a place that two objects shared from being listed twice.
    if (held.emplace(dropped.place.extent, dropped.place.offset).second) freed.push_back(dropped);
  }
  return freed;
}

Result<BatchEffect> BatchApplier::finish() {
  KVC_TRY(remove_nameless());
  effect_.freed = freed_places();
  for (auto& [id, entry] : objects_) {
    if (entry.changed) effect_.rows.objects.emplace(id, std::move(entry.row));
  }
  for (auto& [id, entry] : extents_) {
    if (entry.changed) effect_.rows.extents.emplace(id, entry.row);
  }
  return std::move(effect_);
}

}  // namespace

void add_to_totals(const ObjectRecord& object, IndexTotals& totals) { count(object, 1, totals); }
void subtract_from_totals(const ObjectRecord& object, IndexTotals& totals) { count(object, ~uint64_t{0}, totals); }

Result<BatchEffect> apply_batch(const Batch& batch, JournalPosition after, const RowSource& before, const IndexTotals& totals) {
  BatchApplier applier(after, before, totals);
  for (const Record& record : batch.records) KVC_TRY(applier.apply(record));
  return applier.finish();
}

}  // namespace kvcachefs
