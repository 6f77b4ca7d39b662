// The four properties, each tried in both directions: one side does something, then the other one looks. Each returns what this side saw
// that must not be, the first few; an error where the volume gave one, or the other side does not go on. One thread; block on the volume.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/pair_check/meeting.h"
#include "store/volume/volume.h"

namespace kvcachefs {

using Failures = std::vector<std::string>;

// (a) What was written and completed on one machine is read on the other: by a file opened anew, and where the volume has direct I/O
// by one that is open for long. A file that is overwritten in place, as HEAD, and one that grows, as a journal.
Result<Failures> try_completed_writes(Volume& volume, Meeting& meeting, unsigned rounds);
// (b) Of two that make the same file exclusively, the same directory, or give a file the same name by link, one succeeds.
Result<Failures> try_exclusive_names(Volume& volume, Meeting& meeting, unsigned rounds);
// (c) A name that was made on one machine is in the next listing on the other.
Result<Failures> try_listings(Volume& volume, Meeting& meeting, unsigned rounds);
// (d) A lock that one machine holds keeps the other out, and is had there once it is given up.
Result<Failures> try_locks(Volume& volume, Meeting& meeting, unsigned rounds);

}  // namespace kvcachefs
