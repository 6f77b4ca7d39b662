// Which names of a node are hidden by what another node said, and what the node journals in answer. Both are one rule: a statement takes
// a file's name, and that of a directory in which no name is left once what the same node said before that is done. (Of names that this
// node had not read nothing was said, and they keep their directory.) Pure over an index and statements.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/peers/part.h"

namespace kvcachefs {

// Whether something that `by` said, and `owner` has not answered, takes this name of `owner`. Ids are the owner's.
Result<bool> is_removed(const Part& by, const Part& owner, ObjectId directory, const NameEntry& entry);

// The records by which `own` answers all that `peer` said of its objects up to `until`: what is taken, then that it was seen. They belong into
// one batch, before anything that was accepted since. None if there is nothing to answer. `keeps`: whether a file keeps its name (it is being
// written under it, and others use the same name for files of their own). `on_its_way`: a batch that peers may have read from the journal
// gives that name, and `own` does not have it yet. What was said of it, and behind that, is answered another time, or it would come back.
using KeepsName = std::function<bool(ObjectId)>;
using NameOnItsWay = std::function<bool(const UnnameRecord&)>;
struct PeerAnswer {
  std::vector<Record> records;
  bool waits = false;  // something is answered another time
};
Result<PeerAnswer> answer(const Part& own, const Part& peer, JournalPosition until, const KeepsName& keeps,
                          const NameOnItsWay& on_its_way = {});

// Whether attributes that `by` gave an object count more than those that `than` did.
bool counts_more(const Attributes& given, std::string_view by, const Attributes& other, std::string_view than);

}  // namespace kvcachefs
