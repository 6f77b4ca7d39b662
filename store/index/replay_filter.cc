#include "store/index/replay_filter.h"

#include <algorithm>
#include <variant>

namespace kvcachefs {

Result<Batch> ReplayFilter::believed(const Batch& batch, const Refused& refused) {
  Batch result;
  result.stamp = batch.stamp;
  std::unordered_set<ObjectId> put;
  for (const Record& record : batch.records) {
    bool left = false;
    if (const auto* body = std::get_if<PutRecord>(&record)) {
      left = refused(record);
      if (left) KVC_TRY(leave_out(*body, put));
    } else if (const auto* name = std::get_if<NameRecord>(&record)) {
      KVC_ASSIGN(left, leaves_out(*name, result));
    } else if (const auto* gone = std::get_if<UnnameRecord>(&record)) {
      KVC_ASSIGN(left, leaves_out(*gone, result));
    } else {
      left = refused(record);
    }
    if (left) continue;
    result.records.push_back(record);
    const auto* body = std::get_if<PutRecord>(&record);
    if (body == nullptr) continue;
    put.insert(body->object.id);
    if (absent_.erase(body->object.id) + older_.erase(body->object.id) > 0) catch_up(body->object.id, /*whole=*/true, result);
  }
  return result;
}

// `put`: of this batch, so far.
Status ReplayFilter::leave_out(const PutRecord& record, const std::unordered_set<ObjectId>& put) {
  const ObjectId id = record.object.id;
  KVC_ASSIGN(const auto earlier, index_.find_object_summary(id));
  if (!earlier && !put.contains(id))
    absent_.insert(id);
  else if (!absent_.contains(id))
    older_.insert(id);
  return {};
}

Result<bool> ReplayFilter::leaves_out(const NameRecord& name, Batch& result) {
  forget(name.parent, name.name);
  bool left = absent_.contains(name.child);
  if (!left && !older_.empty()) {
    KVC_ASSIGN(const auto there, index_.find_name(name.parent, name.name));
    // What is left of it was never called so, unless it was.
    if (older_.contains(name.child)) left = !there || there->child != name.child;
    // Another takes the name that it was to keep: it has those that were left out, or it would be gone.
    if (!left && there && there->child != name.child && older_.erase(there->child) > 0) catch_up(there->child, /*whole=*/true, result);
  }
  if (left) names_.push_back(name);
  return left;
}

Result<bool> ReplayFilter::leaves_out(const UnnameRecord& name, Batch& result) {
  // Unlinked: what the object left out had replaced must not come back. Not so if it has another name (a rename).
  if (forget(name.parent, name.name) && !has_name(name.child)) {
    catch_up(name.child, /*whole=*/false, result);
    KVC_ASSIGN(const auto before, index_.find_name(name.parent, name.name));
    if (before) result.records.emplace_back(UnnameRecord{name.parent, name.name, before->child});
    return true;
  }
  if (!older_.contains(name.child) || !has_name(name.child)) return false;
  kept_.push_back(name);
  return true;
}

// `name` is spoken for anew. Whether an object left out had it.
bool ReplayFilter::forget(ObjectId parent, std::string_view name) {
  return std::erase_if(names_, [&](const NameRecord& each) { return each.parent == parent && each.name == name; }) > 0;
}

bool ReplayFilter::has_name(ObjectId child) const {
  return std::ranges::any_of(names_, [&](const NameRecord& each) { return each.child == child; });
}

// What was left out of the object's names is done after all; those it is to have only if `whole`.
void ReplayFilter::catch_up(ObjectId object, bool whole, Batch& batch) {
  for (const NameRecord& name : names_)
    if (whole && name.child == object) batch.records.emplace_back(name);
  for (const UnnameRecord& name : kept_)
    if (name.child == object) batch.records.emplace_back(name);
  std::erase_if(names_, [&](const NameRecord& name) { return name.child == object; });
  std::erase_if(kept_, [&](const UnnameRecord& name) { return name.child == object; });
}

}  // namespace kvcachefs
