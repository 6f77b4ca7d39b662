// Finds the file VOLUME on a volume, or makes it on the first mount.
#pragma once

#include "store/base/result.h"
#include "store/base/types.h"
#include "store/journal/volume_file.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// kExists, naming what is there, unless the directory is a volume or may become one. Protects directories of others: nothing is made in
// them.
Status check_may_be_volume(Volume& volume);

// Returns the header of the volume; makes one, with `created`, if there is none. If several nodes make one at once, even on hosts
// whose locks do not see each other, all get the same header. Finishes an interrupted first start, so it needs a writable
// volume as long as there is no node yet.
Result<VolumeHeader> open_or_make_volume(Volume& volume, Stamp created);

}  // namespace kvcachefs
