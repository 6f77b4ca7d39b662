// The four properties, each tried in both directions: one side does something, then the other one looks. Each function returns what this side saw
// that must not be, the first few cases; an error where the volume gave one, or the other side stopped. One thread; these block on the volume.
#pragma once

#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/pair_check/meeting.h"
#include "store/volume/volume.h"

namespace kvcachefs {

using Failures = std::vector<std::string>;

// (a) A write that was completed on one machine is read on the other: by a file opened anew, and with direct I/O also by one
// that was opened long before. Tries a file that is overwritten in place, like HEAD, and one that grows, like a journal.
Result<Failures> try_completed_writes(Volume& volume, Meeting& meeting, unsigned rounds);
// (b) If two sides make the same file exclusively, the same directory, or give a file the same name by link, one of them succeeds.
Result<Failures> try_exclusive_names(Volume& volume, Meeting& meeting, unsigned rounds);
// (c) A name made on one machine is in the next listing on the other.
Result<Failures> try_listings(Volume& volume, Meeting& meeting, unsigned rounds);
// (d) A lock that one machine holds keeps the other out, and can be had there once it is released.
Result<Failures> try_locks(Volume& volume, Meeting& meeting, unsigned rounds);

}  // namespace kvcachefs
