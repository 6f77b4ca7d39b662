// Which version of a temporary name the journal has. It has one at a time: a batch that gives the name to a newer version takes the record of the one
// before (`Object::durable` is false from then on).
#pragma once

#include "store/object/body_changes.h"
#include "store/tree/tree.h"

namespace kvcachefs {

// The object of this node that the next commit gives the name, once its body is journaled; {}: none. A version that a peer removed gets no record.
ObjectId version_to_journal(const Tree::View& tree, const NameState& state);

// When the newer version is renamed or removed, the name refers to an older one again, which has no record any more. Its body is clean, so no lane would
// write it. This queues it to be sealed again; it does nothing for other objects. Two versions count: the one that the next commit gives the name, and
// the one that clients see, which may have been synced though it is not finished. Not all of them: the others may never be renamed, and their bodies
// would be written for nothing.
// A commit that finds the name without a record calls it. So does, before it lists the bodies that it waits for, each call that promises that a file or
// a name is journaled: the commit would find the version only after the answer.
void journal_former_version(const Tree::View& tree, const NameState& state, const BodyChanges& changes);

}  // namespace kvcachefs
