// Which objects of a node may be in quarantine, in RAM: a listing asks for each name, and reads the rows of these only. Bounded.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <unordered_set>
#include <variant>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/index/index.h"

namespace kvcachefs {

// Guarded as the part that has it. Ids are the node's own. An id stays when its object leaves quarantine: the row decides.
class QuarantinedIds {
 public:
  static constexpr size_t kMost = 1 << 14;

  void add(ObjectId id) {
    if (ids_.size() >= kMost) all_ = true;
    else ids_.insert(id);
  }
  void add_all() { all_ = true; }  // they are not known
  void add(const Batch& batch) {
    for (const Record& record : batch.records)
      if (const auto* const put = std::get_if<PutRecord>(&record); put != nullptr && put->object.body.quarantined) add(put->object.id);
  }
  bool may_contain(ObjectId id) const { return all_ || ids_.contains(id); }
  bool has_all() const { return all_; }

 private:
  std::unordered_set<ObjectId> ids_;
  bool all_ = false;  // there were too many
};

// Usually there is none, and nothing is scanned. Else all objects are; `meanwhile` is called often, and an error of it ends the scan.
Result<std::shared_ptr<QuarantinedIds>> quarantined_in(const Index& index, const std::function<Status()>& meanwhile);

}  // namespace kvcachefs
