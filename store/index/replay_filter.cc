#include "store/index/replay_filter.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "store/index/batch_applier.h"
#include "store/index/record_check.h"
#include "store/index/rows.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kToldRecords = 50;

// The same place; or the same solo or raw file, which may have grown.
bool is_same_file(const Place& a, const Place& b) {
  return a == b || (a.kind == b.kind && a.kind != PlaceKind::kPacked && a.extent == b.extent);
}

constexpr Stamp kLastStamp{static_cast<uint64_t>(INT64_MAX)};  // 2262: no clock goes further, and later stamps still have room
}  // namespace

ReplayFilter::ReplayFilter(const Index& index, bool complete, Tell tell)
    : index_(index), complete_(complete), tell_(std::move(tell)), audit_(index) {}

Stamp ReplayFilter::believed(Stamp stamp) { return std::min(stamp, kLastStamp); }

void ReplayFilter::tell(const Record& record, const std::string& why) {
  if (++left_out_ > kToldRecords) return;
  tell_(Told::kLeftOut, fmt::format("{}: {}; left out", subject_of(record), why));
}

// --- checkpoint: objects by id, names by directory and cookie, successors by id, answers by node, statements in the order they were made ---

bool ReplayFilter::believes(Record& record, uint32_t epoch) {
  std::string why = why_impossible(record, epoch);
  if (why.empty()) {
    if (auto* put = std::get_if<PutRecord>(&record)) {
      if (const size_t odd = trim_attributes(put->object.attributes); odd > 0)
        tell(record, fmt::format("{} of its attributes cannot be", odd));
      why = why_not(*put);
    } else if (const auto* name = std::get_if<NameRecord>(&record)) {
      why = why_not(*name);
    } else if (const auto* row = std::get_if<SuccessorsRecord>(&record)) {
      why = why_not(*row);
    } else if (const auto* seen = std::get_if<SeenRecord>(&record)) {
      why = why_not(*seen);
    } else if (auto* statement = std::get_if<StatementRecord>(&record)) {
      if (auto* changed = std::get_if<AttributesRecord>(&statement->what); changed != nullptr && trim_attributes(changed->attributes) > 0)
        tell(record, "some of its attributes cannot be");
      why = why_not(*statement, epoch);
    } else {
      why = "it is not in its place in a checkpoint";
    }
  }
  if (!why.empty()) tell(record, why);
  return why.empty();
}

std::string ReplayFilter::why_not(const PutRecord& put) {
  const ObjectId id = put.object.id;
  if (id <= last_put_ || last_name_ || last_row_.valid() || peers_begun()) return "it is out of order";
  if (is_on_volume(put.object.body.place) && !taken_.take(put.object.body.place)) return "its bytes are those of another object";
  last_put_ = id;
  if (S_ISDIR(put.object.attributes.mode)) directories_.push_back(id);
  return {};
}

std::string ReplayFilter::why_not(const NameRecord& name) {
  const uint64_t cookie = name_cookie(name.name);
  if (last_row_.valid() || peers_begun()) return "it is out of order";
  if (last_name_ && std::tie(name.parent, cookie, name.name) <= std::tie(last_name_->parent, last_cookie_, last_name_->name))
    return "it is out of order";
  if (name.parent != kRootId && !std::ranges::binary_search(directories_, name.parent)) return "it is in what is no directory";
  if (std::ranges::binary_search(directories_, name.child)) {
    if (above_.contains(name.child)) return "a directory has one name";
    if (top_of(name.parent) == name.child) return "a directory does not lie below itself";
    above_.emplace(name.child, name.parent);
  }
  last_name_ = name;
  last_cookie_ = cookie;
  return {};
}

std::string ReplayFilter::why_not(const SuccessorsRecord& row) {
  if (row.id <= last_row_ || peers_begun()) return "it is out of order";
  last_row_ = row.id;
  return {};
}

std::string ReplayFilter::why_not(const SeenRecord& seen) {
  if (seen.node <= last_seen_ || last_said_ != JournalPosition{}) return "it is out of order";
  last_seen_ = seen.node;
  return {};
}

std::string ReplayFilter::why_not(const StatementRecord& statement, uint32_t epoch) {
  if (statement.said.epoch == 0 || statement.said.epoch > epoch) return fmt::format("it was said in epoch {}", statement.said.epoch);
  if (statement.said < last_said_) return "it is out of order";
  last_said_ = statement.said;
  return {};
}

// Follows above_ from this directory up to one without a known name. Shortens the path for the next call.
ObjectId ReplayFilter::top_of(ObjectId directory) {
  ObjectId top = directory;
  for (auto above = above_.find(top); above != above_.end(); above = above_.find(top)) top = above->second;
  while (directory != top) directory = std::exchange(above_.find(directory)->second, top);
  return top;
}

// --- journal ---

Status ReplayFilter::apply(const Batch& batch, JournalPosition after, const NotWhole& not_whole, const Apply& apply) {
  if (after.epoch != position_.epoch) KVC_TRY(settle_epoch(apply));
  KVC_ASSIGN(const Batch trusted, believed(batch, after.epoch, not_whole));
  KVC_TRY(audit(trusted));
  KVC_TRY(apply(trusted, after));
  position_ = after;
  stamp_ = trusted.stamp;
  return {};
}

Status ReplayFilter::finish(const Apply& apply) {
  KVC_TRY(settle_epoch(apply));
  if (left_out_ > kToldRecords) tell_(Told::kLeftOut, fmt::format("{} more records are left out", left_out_ - kToldRecords));
  return {};
}

Status ReplayFilter::audit(const Batch& believed) {
  audit_.begin();
  for (const Record& record : believed.records) {
    if (const auto* put = std::get_if<PutRecord>(&record)) audit_.put(put->object);
    if (const auto* name = std::get_if<NameRecord>(&record)) KVC_TRY(audit_.name(*name));
    if (const auto* gone = std::get_if<UnnameRecord>(&record)) KVC_TRY(audit_.unname(*gone));
  }
  return {};
}

Status ReplayFilter::settle_epoch(const Apply& apply) {
  return audit_.settle([&](const Record& record, const std::string& why) -> Status {
    if (++put_right_ <= kToldRecords) tell_(Told::kPutRight, fmt::format("{}: {}", subject_of(record), why));
    return apply(Batch{stamp_, {record}}, position_);
  });
}

Result<Batch> ReplayFilter::believed(const Batch& batch, uint32_t epoch, const NotWhole& not_whole) {
  Batch result;
  result.stamp = believed(batch.stamp);
  put_.clear();
  replaced_.reset();
  for (const Record& record : batch.records) {
    KVC_ASSIGN(const std::string why, why_refused(record, batch, epoch));
    bool left = !why.empty();
    if (left) tell(record, why);
    if (const auto* body = std::get_if<PutRecord>(&record)) {
      const bool impossible = left;
      if (!left && not_whole(*body)) {
        left = true;
        if (taken_now_) taken_.give_back(*taken_now_);  // a body of equal bytes that shares the place is incomplete too, but not impossible
      }
      if (left) KVC_TRY(leave_out(*body, impossible));
    } else if (const auto* name = std::get_if<NameRecord>(&record); name != nullptr && !left) {
      KVC_ASSIGN(left, leaves_out(*name, result));
    } else if (const auto* gone = std::get_if<UnnameRecord>(&record); gone != nullptr && !left) {
      KVC_ASSIGN(left, leaves_out(*gone, result));
    }
    if (left) continue;
    result.records.push_back(record);
    Attributes* attributes = nullptr;
    if (auto* put = std::get_if<PutRecord>(&result.records.back())) attributes = &put->object.attributes;
    if (auto* changed = std::get_if<AttributesRecord>(&result.records.back())) attributes = &changed->attributes;
    if (auto* statement = std::get_if<StatementRecord>(&result.records.back()))
      if (auto* changed = std::get_if<AttributesRecord>(&statement->what)) attributes = &changed->attributes;
    if (const size_t odd = attributes != nullptr ? trim_attributes(*attributes) : 0; odd > 0)
      tell(record, fmt::format("{} of its attributes cannot be", odd));
    const auto* body = std::get_if<PutRecord>(&record);
    if (body == nullptr) continue;
    put_[body->object.id] = {body->object.attributes.mode & kTypeMask, body->object.body.place};
    if (absent_.erase(body->object.id) + older_.erase(body->object.id) > 0) catch_up(body->object.id, /*whole=*/true, result);
  }
  return result;
}

Result<std::string> ReplayFilter::why_refused(const Record& record, const Batch& batch, uint32_t epoch) {
  if (std::string why = why_impossible(record, epoch); !why.empty()) return why;
  if (const auto* put = std::get_if<PutRecord>(&record)) return why_refused(*put, batch, epoch);
  if (const auto* name = std::get_if<NameRecord>(&record)) return why_refused(*name);
  if (const auto* move = std::get_if<MoveRecord>(&record)) return why_refused(*move, epoch);
  return std::string();
}

Result<std::string> ReplayFilter::why_refused(const PutRecord& put, const Batch& batch, uint32_t epoch) {
  const ObjectId id = put.object.id;
  taken_now_.reset();
  KVC_ASSIGN(const auto known, index_.find_object_summary(id));
  const auto in_batch = put_.find(id);
  const bool again = in_batch != put_.end();
  const uint32_t type_bits = put.object.attributes.mode & kTypeMask;
  if ((known && (known->attributes.mode & kTypeMask) != type_bits) || (again && in_batch->second.type_bits != type_bits))
    return std::string("it was of another type of file before");
  const Place& place = put.object.body.place;
  // A place that the object gave up is about to be freed and is no longer its own.
  const Place* const now = again ? &in_batch->second.place : known ? &known->body.place : nullptr;
  if (!is_on_volume(place) || (now != nullptr && is_same_file(*now, place))) return std::string();
  if (now != nullptr && is_on_volume(*now)) static_cast<void>(taken_.take(*now));
  KVC_ASSIGN(const bool fine, may_have(id, place, &batch, epoch));
  return std::string(fine ? "" : "its bytes are those of another object");
}

Result<std::string> ReplayFilter::why_refused(const NameRecord& name) {
  if (name.parent == kRootId) return std::string();
  uint32_t type_bits = S_IFDIR;
  if (const auto put = put_.find(name.parent); put != put_.end()) {
    type_bits = put->second.type_bits;
  } else {
    KVC_ASSIGN(const auto parent, index_.find_object_summary(name.parent));
    if (parent) type_bits = parent->attributes.mode & kTypeMask;  // else the parent is unknown, and the index ignores the name
  }
  return std::string(S_ISDIR(type_bits) ? "" : "it is in what is no directory");
}

Result<std::string> ReplayFilter::why_refused(const MoveRecord& move, uint32_t epoch) {
  KVC_ASSIGN(const auto known, index_.find_object_summary(move.id));
  if (known && known->body.version == move.version) {
    const Place& from = known->body.place;
    if (from == move.place) return std::string();
    if (from.kind != PlaceKind::kPacked && from.kind != PlaceKind::kSolo) return std::string("it does not lie where a body is moved from");
    if (from.length != move.place.length) return std::string("it had another length before");
  }
  KVC_ASSIGN(const bool fine, may_have(move.id, move.place, nullptr, epoch));
  return std::string(fine ? "" : "its bytes would be those of another object");
}

// Whether `object` may have this place: no other object is known to have it. Takes the place.
Result<bool> ReplayFilter::may_have(ObjectId object, const Place& place, const Batch* batch, uint32_t epoch) {
  if (!complete_) {
    KVC_ASSIGN(const auto usage, index_.find_extent(place.extent));
    if (usage && usage->bodies > 0) {
      if (usage->kind != place.kind) return false;
      const bool own = place.kind != PlaceKind::kPacked && usage->object == object;
      const bool known = own || (place.kind == PlaceKind::kPacked && place.extent.epoch == epoch);
      if (!known) return batch != nullptr ? is_of_replaced(place, *batch) : Result<bool>(false);
    }
  }
  if (taken_.take(place)) {
    taken_now_ = place;
    return true;
  }
  return batch != nullptr ? is_of_replaced(place, *batch) : Result<bool>(false);
}

// Whether an object that loses its last name in this batch has this place: a body of equal bytes hands its place on to its replacement.
Result<bool> ReplayFilter::is_of_replaced(const Place& place, const Batch& batch) {
  if (!replaced_) {
    replaced_.emplace();
    std::unordered_map<ObjectId, uint32_t> names_lost;
    for (const Record& record : batch.records) {
      const auto* name = std::get_if<NameRecord>(&record);
      const auto* gone = std::get_if<UnnameRecord>(&record);
      if (name == nullptr && gone == nullptr) continue;
      KVC_ASSIGN(const auto entry, name != nullptr ? index_.find_name(name->parent, name->name)
                                                   : index_.find_name(gone->parent, gone->name));
      if (entry && (entry->child == (name != nullptr ? name->child : gone->child)) == (gone != nullptr)) ++names_lost[entry->child];
    }
    for (const auto& [object, lost] : names_lost) {
      KVC_ASSIGN(const auto row, index_.find_object_summary(object));
      if (row && is_on_volume(row->body.place) && lost >= row->nlink) replaced_->push_back(row->body.place);
    }
    std::ranges::sort(*replaced_);
  }
  return std::ranges::binary_search(*replaced_, place);
}

// --- bodies that did not reach the medium ---

// An impossible record says nothing about the version before it, so that version stays valid.
Status ReplayFilter::leave_out(const PutRecord& record, bool impossible) {
  const ObjectId id = record.object.id;
  KVC_ASSIGN(const auto earlier, index_.find_object_summary(id));
  if (!earlier && !put_.contains(id))
    absent_.insert(id);
  else if (!impossible && !absent_.contains(id))
    older_.insert(id);
  return {};
}

Result<bool> ReplayFilter::leaves_out(const NameRecord& name, Batch& result) {
  names_.forget(name.parent, name.name);
  bool left = absent_.contains(name.child);
  if (!left && !older_.empty()) {
    KVC_ASSIGN(const auto there, index_.find_name(name.parent, name.name));
    // Its older version never had this name, unless the index says so.
    if (older_.contains(name.child)) left = !there || there->child != name.child;
    // Another object takes a name that an older_ object was to keep: apply the changes held back for the older_ object, or it would be gone.
    if (!left && there && there->child != name.child && older_.erase(there->child) > 0) catch_up(there->child, /*whole=*/true, result);
  }
  if (left) names_.add(name);
  return left;
}

Result<bool> ReplayFilter::leaves_out(const UnnameRecord& name, Batch& result) {
  // The name of a left-out object is unlinked: the object that it replaced must not come back. Not if the left-out object has another name (a rename).
  if (names_.forget(name.parent, name.name) && !names_.has(name.child)) {
    catch_up(name.child, /*whole=*/false, result);
    KVC_ASSIGN(const auto before, index_.find_name(name.parent, name.name));
    if (before) result.records.emplace_back(UnnameRecord{name.parent, name.name, before->child});
    return true;
  }
  if (!older_.contains(name.child) || !names_.has(name.child)) return false;
  kept_[name.child].push_back(name);
  return true;
}

// Applies the changes of names held back for `object`; the names that it was to get only if `whole`.
void ReplayFilter::catch_up(ObjectId object, bool whole, Batch& batch) {
  for (NameRecord& name : names_.take(object))
    if (whole) batch.records.emplace_back(std::move(name));
  const auto kept = kept_.find(object);
  if (kept == kept_.end()) return;
  for (UnnameRecord& name : kept->second) batch.records.emplace_back(std::move(name));
  kept_.erase(kept);
}

}  // namespace kvcachefs
