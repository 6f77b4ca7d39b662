#include "store/index/bulk_loader.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "store/base/units.h"
#include "store/index/batch_applier.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {

namespace {

// Limits the pages that a transaction holds in RAM. Each transaction costs one sync.
constexpr uint64_t kMaxRows = 400'000;
constexpr uint64_t kMaxBytes = 48 * kMiB;
constexpr uint8_t kMany = 255;

}  // namespace

Result<std::unique_ptr<BulkLoader>> BulkLoader::begin(LmdbEnv& env) {
  std::unique_ptr<BulkLoader> loader(new BulkLoader(env));
  KVC_TRY(loader->next_transaction());
  KVC_TRY(loader->commit(true));
  return loader;
}

template <class Row>
Status BulkLoader::put(Table table, const KeyBytes& key, const Row& row) {
  value_.clear();
  encode_row(row, value_);
  KVC_TRY(writer_->put(table, key, value_));
  bytes_in_transaction_ += key.size() + value_.size();
  if (++rows_in_transaction_ < kMaxRows && bytes_in_transaction_ < kMaxBytes) return {};
  return commit(true);
}

Status BulkLoader::load(Record&& record) {
  if (const auto* put = std::get_if<PutRecord>(&record)) return load_object(put->object);
  if (auto* name = std::get_if<NameRecord>(&record)) return load_name(std::move(*name));
  if (const auto* successors = std::get_if<SuccessorsRecord>(&record)) return load_successors(*successors);
  if (const auto* seen = std::get_if<SeenRecord>(&record)) return put(Table::kMeta, seen_key(seen->node), seen->position);
  if (const auto* statement = std::get_if<StatementRecord>(&record)) return load_statement(*statement);
  return fail(Code::kCorrupt, "index: a checkpoint holds objects, names, successors and what concerns other nodes only");
}

size_t BulkLoader::find(ObjectId id) const {
  const auto at = std::ranges::lower_bound(loaded_.ids, id.value);
  return at != loaded_.ids.end() && *at == id.value ? static_cast<size_t>(at - loaded_.ids.begin()) : kUnknown;
}

Status BulkLoader::next_transaction() {
  writer_.reset();
  // A transaction that filled the map would have to be repeated from its first record, which is gone by then.
  while (env_.file_bytes() + 4 * kMaxBytes > env_.map_bytes()) KVC_TRY(env_.enlarge_map());
  KVC_ASSIGN(auto writer, env_.begin_write());
  writer_.emplace(std::move(writer));
  rows_in_transaction_ = bytes_in_transaction_ = 0;
  return {};
}

Status BulkLoader::commit(bool loading) {
  value_.clear();
  encode_row(CommittedState{state_, loading}, value_);
  KVC_TRY(writer_->put(Table::kMeta, kStateKey, value_));
  KVC_TRY(writer_->commit());
  if (!loading) {
    writer_.reset();
    return {};
  }
  return next_transaction();
}

Status BulkLoader::append(Table table, ByteSpan key) {
  KVC_TRY(writer_->append(table, key, value_));
  bytes_in_transaction_ += key.size() + value_.size();
  if (++rows_in_transaction_ < kMaxRows && bytes_in_transaction_ < kMaxBytes) return {};
  return commit(true);
}

Status BulkLoader::load_object(const ObjectRecord& object) {
  if (!loaded_.ids.empty() && object.id.value <= loaded_.ids.back()) {
    return fail(Code::kCorrupt, fmt::format("index: object {:#x} of a checkpoint is out of order", object.id.value));
  }
  loaded_.ids.push_back(object.id.value);
  loaded_.types.push_back(static_cast<uint8_t>((object.attributes.mode & kTypeMask) >> kTypeShift));
  loaded_.names.push_back(0);
  add_to_totals(object, state_.totals);
  if (object.id.node_ordinal() == 0) {
    EpochHighs& highs = epochs_[object.id.epoch()];
    highs.number = std::max(highs.number, object.id.number());
  }
  const Place& place = object.body.place;
  if (is_on_volume(place)) {
    add_to_extent(object.id, place, extents_[place.extent]);
    EpochHighs& highs = epochs_[place.extent.epoch];
    highs.extent = std::max(highs.extent, place.extent.seq);
  }
  // Nearly all objects have one name and no subdirectories; correct_counts() writes the others once more.
  value_.clear();
  encode_row(ObjectRow{object, object.id == kRootId ? 0u : 1u, 0}, value_);
  return append(Table::kObjects, object_key(object.id));
}

Status BulkLoader::load_name(NameRecord&& name) {
  const size_t child = find(name.child);
  if (name.parent != known_parent_) {
    if (name.parent != kRootId && find(name.parent) == kUnknown) return {};
    known_parent_ = name.parent;
  }
  if (child == kUnknown) return {};
  NameEntry entry{std::move(name.name), name.child, uint32_t{loaded_.types[child]} << kTypeShift, 0};
  entry.cookie = name_cookie(entry.name);
  if (loaded_.names[child] < kMany) {
    ++loaded_.names[child];
  } else {
    ++many_names_.try_emplace(name.child, kMany).first->second;
  }
  if (S_ISDIR(entry.type_bits)) ++subdirectories_[name.parent];
  const NameKey key{name.parent, entry.cookie};
  if (key != row_key_) KVC_TRY(flush_names());
  if (!row_.empty() && row_.back().name >= entry.name) {
    return fail(Code::kCorrupt, fmt::format("index: name {} of a checkpoint is out of order", entry.name));
  }
  row_key_ = key;
  row_.push_back(std::move(entry));
  return {};
}

Status BulkLoader::flush_names() {
  if (row_.empty()) return {};
  value_.clear();
  encode_row(row_key_.parent, row_, value_);
  row_.clear();
  return append(Table::kNames, name_key(row_key_));
}

Status BulkLoader::load_successors(const SuccessorsRecord& record) {
  if (find(record.id) == kUnknown) return {};
  value_.clear();
  encode_row(record, value_);
  return append(Table::kSuccessors, object_key(record.id));
}

// One batch may hold several statements.
Status BulkLoader::load_statement(const StatementRecord& record) {
  if (record.said != next_statement_.said) next_statement_ = {record.said, 0};
  const StatementKey key = next_statement_;
  ++next_statement_.number;
  return put(Table::kMeta, statement_key(key), record);
}

Status BulkLoader::correct(size_t object, uint32_t names) {
  const ObjectId id{loaded_.ids[object]};
  const KeyBytes key = object_key(id);
  KVC_ASSIGN(const bool found, env_.get(Table::kObjects, key, value_));
  if (!found) return env_.damage(fmt::format("object {:#x}, just loaded, is gone", id.value));
  KVC_ASSIGN(ObjectRow row, decode_object_row(id, value_));
  row.names = names;
  const auto below = subdirectories_.find(id);
  row.subdirectories = below == subdirectories_.end() ? 0 : below->second;
  return put(Table::kObjects, key, row);
}

Status BulkLoader::correct_counts() {
  for (size_t i = 0; i < loaded_.ids.size(); ++i) {
    const ObjectId id{loaded_.ids[i]};
    uint32_t names = loaded_.names[i];
    if (names == kMany) {
      const auto many = many_names_.find(id);
      if (many != many_names_.end()) names = many->second;
    }
    const bool as_written = names == (id == kRootId ? 0u : 1u) && !subdirectories_.contains(id);
    if (!as_written) KVC_TRY(correct(i, names));
  }
  return {};
}

Status BulkLoader::write_extents_and_epochs() {
  std::vector<ExtentId> ids;
  ids.reserve(extents_.size());
  for (const auto& [id, usage] : extents_) ids.push_back(id);
  std::ranges::sort(ids);
  for (const ExtentId id : ids) {
    value_.clear();
    encode_row(extents_.at(id), value_);
    KVC_TRY(append(Table::kExtents, extent_key(id)));
  }
  for (const auto& [epoch, highs] : epochs_) {
    value_.clear();
    encode_row(highs, value_);
    KVC_TRY(writer_->put(Table::kMeta, epoch_key(epoch), value_));
  }
  return {};
}

Status BulkLoader::finish(JournalPosition position, Stamp stamp) {
  KVC_TRY(flush_names());
  KVC_TRY(commit(true));  // correct_counts() reads what is committed
  KVC_TRY(correct_counts());
  KVC_TRY(write_extents_and_epochs());
  state_.position = position;
  state_.stamp = stamp;
  return commit(false);
}

}  // namespace kvcachefs
