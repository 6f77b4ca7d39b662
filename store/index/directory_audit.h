// Keeps the directories of a replayed index a tree. A commit that is split into batches gives names before it takes others, so
// a directory may have two names, or lie within itself, between two batches; what lasts is put right at the end of the epoch:
//   a directory with several names keeps the oldest one;
//   one that lies below itself loses the name that made it so;
//   one that lost its last name while names are in it gets that name back, if it is free.
// Looks only at directories whose names changed: the cost is that of what is below those. One replay; one thread.
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
  // `index` has what came before.
  explicit DirectoryAudit(const Index& index) : index_(index) {}

  // What is about to be applied, record by record in order; begin() before the first record of each batch.
  void begin();
  void put(const ObjectRecord& object);
  Status name(const NameRecord& record);
  Status unname(const UnnameRecord& record);

  // After all of it was applied. Each repair is given to `repair`, which applies it before it returns, with the reason.
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
  Result<bool> is_directory(ObjectId id) const;  // once the batch holds
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
  uint64_t steps_left_ = 50'000'000;  // of looks below directories; then none is moved any more
  // Of the batch:
  std::unordered_map<ObjectId, bool> put_;  // whether it is a directory
  std::map<Spot, Holder> names_;
  std::unordered_set<ObjectId> parents_;
  std::unordered_map<ObjectId, Spot> named_;  // directories that got their first name
  std::unordered_set<ObjectId> unnamed_;      // empty ones that lost it
};

}  // namespace kvcachefs
