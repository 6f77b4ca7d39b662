// Which names of a node are hidden by another node's statements, and which records the node journals in answer. Both follow one rule: a statement
// takes a file's name. It takes a directory's name if no name is left in the directory once that node's earlier statements are carried out. (Names
// that the node making the statement had not read are in no statement, and keep their directory.) Pure over an index and statements.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/peers/part.h"

namespace kvcachefs {

// Whether a statement of `by` that `owner` has not answered takes this name of `owner`. Ids are the owner's.
Result<bool> is_removed(const Part& by, const Part& owner, ObjectId directory, const NameEntry& entry);

// The records by which `own` answers all statements of `peer` about its objects up to `until`: the names taken, then `seen`. They belong into
// one batch, before anything accepted since. Empty if there is nothing to answer. `on_its_way`: whether a batch that peers may have read in the
// journal gives that name, and `own` does not have it yet. A statement about it, and all behind that, is answered later, or the name would come back.
using NameOnItsWay = std::function<bool(const UnnameRecord&)>;
struct PeerAnswer {
  std::vector<Record> records;
  bool waits = false;  // some statements are left to be answered later
};
Result<PeerAnswer> answer(const Part& own, const Part& peer, JournalPosition until, const NameOnItsWay& on_its_way = {});

// Whether attributes `given` by one node count more than `other`, given by the node `than`.
bool counts_more(const Attributes& given, std::string_view by, const Attributes& other, std::string_view than);

}  // namespace kvcachefs
