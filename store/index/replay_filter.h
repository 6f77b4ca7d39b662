// What of the journals is believed after the machine stopped: a body that did not reach the medium is left out, and so is what
// the journals say of names because of it, so that what was there before stays. What the next mount does, and what fsck expects.
// One replay, in the order of the journals; not thread-safe.
#pragma once

#include <functional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "store/index/index.h"

namespace kvcachefs {

class ReplayFilter {
 public:
  // Whether a record is not to be believed. Asked once of each, but for names.
  using Refused = std::function<bool(const Record&)>;

  // `index` holds what was believed so far.
  explicit ReplayFilter(const Index& index) : index_(index) {}
  Result<Batch> believed(const Batch& batch, const Refused& refused);

 private:
  Status leave_out(const PutRecord& record, const std::unordered_set<ObjectId>& put);
  Result<bool> leaves_out(const NameRecord& name, Batch& result);
  Result<bool> leaves_out(const UnnameRecord& name, Batch& result);
  bool forget(ObjectId parent, std::string_view name);
  bool has_name(ObjectId child) const;
  void catch_up(ObjectId object, bool whole, Batch& batch);

  const Index& index_;
  std::unordered_set<ObjectId> absent_;  // no version of them is whole
  std::unordered_set<ObjectId> older_;   // the last version is not, one before it is: they have the names that one had
  std::vector<NameRecord> names_;        // of both: given after all when a later version is whole
  std::vector<UnnameRecord> kept_;       // of `older_`: names they would have lost for one that is left out, until then
};

}  // namespace kvcachefs
