#include "store/index/lmdb_index.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/page_check.h"
#include "store/index/served_record.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {

template <class Map, class Key>
const typename Map::mapped_type* LmdbIndex::in_overlay(Map Layer::* table, const Key& key) const {
  const typename Map::mapped_type* row = nullptr;
  visit_layers([&](const Layer& layer) {
    const auto found = (layer.*table).find(key);
    if (found == (layer.*table).end()) return false;
    row = &found->second;
    return true;
  });
  return row;
}

JournalPosition LmdbIndex::position() const {
  std::shared_lock lock(overlay_mutex_);
  return committed_;
}

Stamp LmdbIndex::stamp() const {
  std::shared_lock lock(overlay_mutex_);
  return state_.stamp;
}

IndexTotals LmdbIndex::totals() const {
  std::shared_lock lock(overlay_mutex_);
  return state_.totals;
}

EpochHighs LmdbIndex::read_epoch(uint32_t epoch) const {
  std::shared_lock lock(overlay_mutex_);
  const auto found = epochs_.find(epoch);
  return found != epochs_.end() ? found->second : EpochHighs{};
}

uint64_t LmdbIndex::highest_number(uint32_t epoch) const { return read_epoch(epoch).number; }
uint64_t LmdbIndex::highest_extent(uint32_t epoch) const { return read_epoch(epoch).extent; }

uint64_t LmdbIndex::overlay_rows() const {
  std::shared_lock lock(overlay_mutex_);
  uint64_t rows = 0;
  visit_layers([&rows](const Layer& layer) {
    rows += layer.rows();
    return false;
  });
  return rows;
}

uint64_t LmdbIndex::growth_bytes() const {
  IndexGrowth growth;
  {
    std::shared_lock lock(overlay_mutex_);
    visit_layers([&growth](const Layer& layer) {
      growth.add(layer);
      return false;
    });
    if (leftovers_ && state_.position != committed_) growth.add(*leftovers_);
  }
  return growth.bytes(env_->pages());
}

// Clients that read large attributes, and large commits, map much of the file in less than a second, before the keeper lets go. A reader may hold
// the lock of the names, so it asks the keeper first.
void LmdbIndex::count_mapped(uint64_t value_bytes, LetsGo who) const {
  constexpr uint64_t kBytesUntilLetGo = 64 * kMiB, kAround = 64 * kKiB;  // the kernel maps so much around a page that is touched
  constexpr uint64_t kMostBytes = 3 * kBytesUntilLetGo;
  const uint64_t touched = touched_bytes_.fetch_add(kAround + value_bytes, std::memory_order_relaxed);
  if (touched < kBytesUntilLetGo) return;
  if (who == LetsGo::kAnother && let_go_wanted_ && touched < kMostBytes) {
    if (!let_go_asked_.exchange(true)) let_go_wanted_();
    return;
  }
  if (touched_bytes_.exchange(0, std::memory_order_relaxed) >= kBytesUntilLetGo) let_go_of_mapped();  // one of several threads
}

Result<bool> LmdbIndex::get(Table table, ByteSpan key, Bytes& value) const {
  constexpr size_t kLargeBytes = 2 * kKiB;  // the row has pages of its own. Small rows share theirs, and a lookup of one must cost little
  auto found = env_->get(table, key, value);
  if (value.size() >= kLargeBytes) count_mapped(value.size(), LetsGo::kAnother);
  return found;
}

// The reads below look into the overlay first and start to read LMDB after that: a row that moves from the overlay
// to LMDB in between is then in the newer snapshot.

Result<std::shared_ptr<const ObjectRow>> LmdbIndex::read_object(ObjectId id) const {
  {
    std::shared_lock lock(overlay_mutex_);
    if (const auto* row = in_overlay(&Layer::objects, id)) return *row;
  }
  Bytes value;
  KVC_ASSIGN(const bool found, get(Table::kObjects, object_key(id), value));
  if (!found) return nullptr;
  KVC_ASSIGN(auto row, checked(decode_object_row(id, value)));
  return std::make_shared<const ObjectRow>(std::move(row));
}

Result<bool> LmdbIndex::has_object(ObjectId id) const {
  {
    std::shared_lock lock(overlay_mutex_);
    if (const auto* row = in_overlay(&Layer::objects, id)) return *row != nullptr;
  }
  return env_->has(Table::kObjects, object_key(id));
}

Result<NameRow> LmdbIndex::read_names(NameKey key) const {
  uint64_t as_of = 0;
  {
    std::shared_lock lock(overlay_mutex_);
    if (const auto* row = in_overlay(&Layer::names, key)) return *row;
    as_of = batches_;
  }
  if (absent_.holds(key, as_of)) return NameRow{};
  Bytes value;
  KVC_ASSIGN(const bool found, get(Table::kNames, name_key(key), value));
  if (!found) {
    absent_.note(key, as_of);
    return NameRow{};
  }
  return checked(decode_name_row(key, value));
}

Result<ExtentUsage> LmdbIndex::read_extent(ExtentId id) const {
  {
    std::shared_lock lock(overlay_mutex_);
    if (const auto* row = in_overlay(&Layer::extents, id)) return *row;
  }
  Bytes value;
  KVC_ASSIGN(const bool found, get(Table::kExtents, extent_key(id), value));
  if (!found) return ExtentUsage{};
  return checked(decode_extent_row(value));
}

Result<std::optional<SuccessorsRecord>> LmdbIndex::find_successors(ObjectId id) const {
  {
    std::shared_lock lock(overlay_mutex_);
    if (const auto* row = in_overlay(&Layer::successors, id)) {
      return *row ? std::optional(**row) : std::nullopt;
    }
  }
  Bytes value;
  KVC_ASSIGN(const bool found, get(Table::kSuccessors, object_key(id), value));
  if (!found) return std::nullopt;
  KVC_ASSIGN(auto record, checked(decode_successors_row(id, value)));
  return record;
}

Result<std::optional<NameEntry>> LmdbIndex::find_name(ObjectId parent, std::string_view name) const {
  KVC_ASSIGN(auto row, read_names({parent, name_cookie(name)}));
  const auto found = std::ranges::find(row, name, &NameEntry::name);
  if (found == row.end()) return std::nullopt;
  return std::move(*found);
}

Result<std::optional<ObjectRecord>> LmdbIndex::find_object(ObjectId id) const {
  KVC_ASSIGN(const auto row, read_object(id));
  if (row == nullptr) return std::nullopt;
  if (!is_servable(row->object)) return env_->damage(fmt::format("the row of object {:#x} cannot be right", id.value));
  return as_record(*row);
}

Result<std::optional<ObjectRecord>> LmdbIndex::find_object_summary(ObjectId id) const {
  {
    std::shared_lock lock(overlay_mutex_);
    if (const auto* row = in_overlay(&Layer::objects, id)) {
      return *row ? std::optional(as_summary(**row)) : std::nullopt;
    }
  }
  Bytes value;
  KVC_ASSIGN(const bool found, get(Table::kObjects, object_key(id), value));
  if (!found) return std::nullopt;
  KVC_ASSIGN(const auto row, checked(decode_object_row(id, value, true)));
  return as_summary(row);
}

Result<std::optional<ExtentUsage>> LmdbIndex::find_extent(ExtentId id) const {
  KVC_ASSIGN(const auto usage, read_extent(id));
  if (usage.bodies == 0) return std::nullopt;
  return usage;
}

Result<std::vector<FreedPlace>> LmdbIndex::apply(const Batch& batch, JournalPosition after) {
  // Only apply() changes the active layer, so rows that are read here stay valid until they are changed below; a commit in
  // between moves rows but does not change them.
  if (loading_) return fail(Code::kInvalid, "index: a batch came before the load of a checkpoint was finished");
  KVC_ASSIGN(BatchEffect effect, apply_batch(batch, after, *this, totals()));
  std::unique_lock lock(overlay_mutex_);
  for (const auto& [epoch, highs] : effect.rows.epochs) epochs_[epoch] = highs;
  active_.absorb(std::move(effect.rows));
  ++batches_;
  state_.totals = effect.totals;
  state_.stamp = std::max(state_.stamp, batch.stamp);
  state_.position = after;
  return std::move(effect.freed);
}

void LmdbIndex::keep_in_memory() const {
  kept_bytes_ = most_kept_bytes_.load();
  env_->keep_in_memory(kept_bytes_);
}

void LmdbIndex::let_go_of_mapped() const {
  constexpr uint64_t kOthersBytes = 64 * kMiB;  // the program, and pages that are read until the next call
  touched_bytes_ = 0;
  let_go_asked_ = false;
  env_->let_go_of_mapped(kept_bytes_, most_kept_bytes_ + kOthersBytes);
}

void LmdbIndex::freeze() {
  std::unique_lock lock(overlay_mutex_);
  freeze_locked();
  frozen_since_commit_ = true;
}

void LmdbIndex::freeze_locked() {
  if (active_.empty() && state_.position == committed_) return;
  // Rows that an earlier commit could not write are still in waiting_: merge with them.
  if (waiting_ == nullptr) waiting_ = std::make_unique<Frozen>();
  waiting_->rows.absorb(std::exchange(active_, Layer{}));
  waiting_->state = state_;
}

JournalPosition LmdbIndex::next_position() const {
  std::shared_lock lock(overlay_mutex_);
  return frozen_since_commit_ && waiting_ != nullptr ? waiting_->state.position : state_.position;
}

Status LmdbIndex::commit() {
  // Checked before the lock is taken: the loader holds the writer, which comes after this lock in the lock order.
  if (loading_) return fail(Code::kInvalid, "index: a commit came before the load of a checkpoint was finished");
  std::lock_guard committing(commit_mutex_);
  if (damaged()) {
    env_->mark_damaged();
    return env_->damage("found before");
  }
  {
    std::unique_lock lock(overlay_mutex_);
    if (!frozen_since_commit_) freeze_locked();
    frozen_since_commit_ = false;
    if (waiting_ == nullptr) return {};
    writing_ = std::move(waiting_);
  }
  auto written = write_transaction(*writing_);
  std::unique_ptr<Frozen> done;  // destroyed without the lock
  std::unique_lock lock(overlay_mutex_);
  if (written) {
    kill_point("index-committed");
    committed_ = writing_->state.position;
    done = std::move(writing_);
    lock.unlock();
    let_go_of_mapped();
    return {};
  }
  if (waiting_ != nullptr) {  // frozen meanwhile
    writing_->rows.absorb(std::move(waiting_->rows));
    writing_->state = waiting_->state;
  }
  waiting_ = std::move(writing_);
  return written;
}

Status LmdbIndex::write_transaction(const Frozen& frozen) {
  for (;;) {
    {
      KVC_ASSIGN(auto writer, env_->begin_write());
      auto written = write_rows(writer, frozen.rows, frozen.state);
      kill_point("index-before-commit");
      if (written) written = writer.commit();
      if (written || !writer.map_full()) return written;
    }
    KVC_TRY(env_->enlarge_map());
  }
}

Status LmdbIndex::write_rows(LmdbEnv::Writer& writer, const Layer& rows, const IndexState& state) const {
  Bytes value;
  // New names are everywhere in the file: without this a large commit would map all of it.
  const auto let_go = [&] { count_mapped(value.size(), LetsGo::kItself); };
  const auto write = [&](Table table, ByteSpan key, const auto* row) -> Status {
    let_go();
    if (row == nullptr) return writer.remove(table, key);
    value.clear();
    encode_row(*row, value);
    return writer.put(table, key, value);
  };
  const auto write_names = [&](NameKey key, const NameRow& row) -> Status {
    let_go();
    if (row.empty()) return writer.remove(Table::kNames, name_key(key));
    value.clear();
    encode_row(key.parent, row, value);
    return writer.put(Table::kNames, name_key(key), value);
  };
  // Writes in key order, so that neighbours are written while their page is at hand and new ids fill pages completely.
  std::vector<ObjectId> ids;
  ids.reserve(rows.objects.size());
  for (const auto& [id, row] : rows.objects) ids.push_back(id);
  std::ranges::sort(ids);
  for (const ObjectId id : ids) KVC_TRY(write(Table::kObjects, object_key(id), rows.objects.at(id).get()));
  for (const auto& [key, row] : rows.names.rows()) KVC_TRY(write_names(key, row));
  for (const auto& [id, usage] : rows.extents) {
    KVC_TRY(write(Table::kExtents, extent_key(id), usage.bodies == 0 ? nullptr : &usage));
  }
  ids.clear();
  for (const auto& [id, record] : rows.successors) ids.push_back(id);
  std::ranges::sort(ids);
  for (const ObjectId id : ids) KVC_TRY(write(Table::kSuccessors, object_key(id), rows.successors.at(id).get()));
  for (const auto& [epoch, highs] : rows.epochs) KVC_TRY(write(Table::kMeta, epoch_key(epoch), &highs));
  for (const auto& [node, position] : rows.seen) KVC_TRY(write(Table::kMeta, seen_key(node), &position));
  for (const auto& [key, statement] : rows.statements) KVC_TRY(write(Table::kMeta, statement_key(key), statement.get()));
  if (leftovers_) {
    const CommittedLeftovers leftovers{state.position, leftovers_->as_of(state.position)};
    KVC_TRY(write(Table::kMeta, kLeftoversKey, &leftovers));
  }
  if (const ScrubMark mark = scrub_mark(); mark != scrub_found_) KVC_TRY(write(Table::kMeta, kScrubKey, &mark));
  const CommittedState committed{state, false};
  return write(Table::kMeta, kStateKey, &committed);
}

Status LmdbIndex::begin_load() {
  // Checked before the lock is taken, as in commit().
  if (loading_) return fail(Code::kInvalid, fmt::format("index {}: it is loading a checkpoint already", directory_.path()));
  std::lock_guard committing(commit_mutex_);
  std::unique_lock lock(overlay_mutex_);
  const bool fresh = !waiting_ && active_.empty() && state_.position == JournalPosition{} && state_.totals.objects + state_.totals.directories == 0;
  if (!fresh)
    return fail(Code::kInvalid, fmt::format("index {}: only an empty one can load a checkpoint", directory_.path()));
  lock.unlock();
  KVC_ASSIGN(loader_, BulkLoader::begin(*env_));
  loading_ = true;
  return {};
}

Status LmdbIndex::load(Record&& record) {
  if (!loader_) return fail(Code::kInvalid, "index: no load was begun");
  return loader_->load(std::move(record));
}

Status LmdbIndex::finish_load(JournalPosition position, Stamp stamp) {
  if (!loader_) return fail(Code::kInvalid, "index: no load was begun");
  KVC_TRY(loader_->finish(position, stamp));
  std::unique_lock lock(overlay_mutex_);
  ++batches_;
  state_ = loader_->state();
  epochs_ = loader_->epochs();
  committed_ = state_.position;
  loader_.reset();
  loading_ = false;
  return {};
}

Result<std::unique_ptr<Index>> LmdbIndex::begin_rebuild() {
  std::lock_guard committing(commit_mutex_);  // a commit under way moves position()
  if (lacks_batch_)
    return fail(Code::kInvalid, fmt::format("index {} lacks what is in the journal; the next start builds it", directory_.path()));
  env_->mark_damaged();
  KVC_TRY(directory_.remove_rebuilt());
  Found found{};
  std::string why;
  return open(directory_.rebuilt_path(), identity_, &found, &why, env_->map_bytes());
}

Status LmdbIndex::finish_rebuild(std::unique_ptr<Index> filled) {
  KVC_TRY(filled->commit());
  std::lock_guard committing(commit_mutex_);
  if (filled->position() != position())
    return fail(Code::kCorrupt, fmt::format("index {}: the journals do not lead to where it ended", directory_.path()));
  LmdbIndex& its = static_cast<LmdbIndex&>(*filled);
  KVC_TRY(its.env_->close(0));
  filled.reset();
  KVC_TRY(env_->replace_file(directory_.rebuilt_path() + "/data.mdb"));
  {
    std::unique_lock lock(overlay_mutex_);
    ++batches_;  // what was not found in the damaged file may be there
  }
  return directory_.rebuilt();
}

// Pages are checked first: a checksum over damaged pages would make the next start trust them, and compacting trusts them.
Result<uint64_t> LmdbIndex::check_file() {
  if (damaged() || directory_.data_bytes() > kMaxChecksummedBytes || !directory_.check_in_place()) return 0;
  auto unused = check_pages(directory_.data_path(), LmdbEnv::is_sound_row);
  if (!unused && unused.error().code == Code::kCorrupt) return env_->damage(unused.error().message);
  return unused;
}

bool LmdbIndex::give_back_unused() {
  std::lock_guard committing(commit_mutex_);
  if (loading_ || damaged()) return false;
  const auto unused = check_file();
  if (!unused || *unused == 0) return false;
  const Status rewritten = env_->rewrite(*unused);
  if (!rewritten) log::debug("{}", rewritten.error().message);
  return rewritten.has_value();
}

Status LmdbIndex::close_clean() {
  KVC_TRY(commit());
  KVC_TRY(commit());  // batches applied after the last freeze()
  std::lock_guard committing(commit_mutex_);
  KVC_TRY(write_scrub_mark());
  KVC_ASSIGN(const uint64_t unused_bytes, check_file());
  KVC_TRY(env_->close(unused_bytes));
  kill_point("index-closed");
  KVC_TRY(directory_.mark_clean());
  kill_point("index-marked");
  return {};
}

}  // namespace kvcachefs
