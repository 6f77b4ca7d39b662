// A whole volume behind good checksums, of which the journal or the checkpoint of its last epoch says what the input chooses:
// records that name other objects, other bodies' places, epochs to come, directories that are no tree.
#pragma once

#include "store/base/bytes.h"

namespace kvcachefs {

// Checks it, mounts it, reads all of it, writes to it and removes from it, checks it and mounts it again with an index made anew.
// What must hold whatever the records say: no crash, no endless tree; what is read is what was once written under these
// checksums; what is made new is new, and its going takes nothing of others along; both indexes show one tree.
// A broken property ends the process.
void fuzz_hostile_volume(ByteSpan input);

}  // namespace kvcachefs
