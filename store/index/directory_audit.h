// Keeps the directories of a replayed index a tree. A commit that is split into batches gives new names before it takes old ones away,
// so between two batches a directory may have two names or lie within itself. Violations that remain at the end of the epoch are repaired:
//   a directory with several names keeps the oldest one;
//   a directory that lies below itself loses the name that put it there;
//   a directory that lost its last name while it has entries gets that name back, if the name is free.
// Looks only at directories whose names changed, so the cost is that of the subtrees below them. One audit for each replay; one thread.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "store/index/index.h"

namespace kvcachefs {

class DirectoryAudit {
 public:
  // `index` holds the state before the replay.
  explicit DirectoryAudit(const Index& index) : index_(index) {}

  // Report each record before it is applied, in order; call begin() before the first record of each batch.
  void begin();
  void put(const ObjectRecord& object);
  Status name(const NameRecord& record);
  Status unname(const UnnameRecord& record);

  // Call after all batches of the epoch were applied. Passes each repair, with its reason, to `repair`, which must apply it before it returns.
  using Repair = std::function<Status(const Record& record, const std::string& why)>;
  Status settle(const Repair& repair);

 private:
  using Spot = std::pair<ObjectId, std::string>;
  struct Suspect {
    int names = 0;
    std::vector<Spot> given, taken;
  };
  struct Holder {
    ObjectId child;
    bool is_directory = false;
  };
  Result<bool> is_directory(ObjectId id) const;  // as of the end of the batch so far
  Result<bool> is_known(ObjectId id) const;
  Result<Holder> holder(const Spot& spot) const;
  Result<bool> has_names_in(ObjectId directory) const;
  Result<int> names_before(ObjectId directory) const;
  Result<Suspect*> suspect(ObjectId directory);
  Status gave(ObjectId directory, const Spot& spot);
  Status lost(ObjectId directory, const Spot& spot);
  Status settle(ObjectId directory, Suspect suspect, const Repair& repair);
  Status restore(ObjectId directory, const std::vector<Spot>& taken, const Repair& repair);
  Result<bool> lies_below(ObjectId directory, ObjectId ancestor);

  const Index& index_;
  std::map<ObjectId, Suspect> suspects_;
  uint64_t steps_left_ = 50'000'000;  // entries that lies_below() may still look at; at 0 no further directory is moved
  // State of the current batch:
  std::unordered_map<ObjectId, bool> put_;  // object -> whether it is a directory
  std::map<Spot, Holder> names_;
  std::unordered_set<ObjectId> parents_;
  std::unordered_map<ObjectId, Spot> named_;  // directories that got their first name
  std::unordered_set<ObjectId> unnamed_;      // empty directories that lost their name
};

}  // namespace kvcachefs
