// The file VOLUME on a volume: found, or made by the first mount.
#pragma once

#include "store/base/result.h"
#include "store/base/types.h"
#include "store/journal/volume_file.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// kExists, naming what is there, unless the directory is a volume or may become one: nothing is left in a directory that is
// another's.
Status check_may_be_volume(Volume& volume);

// The header of the volume; one is made, with `created`, where there is none. Of several that make one at once, also on hosts
// whose locks do not see each other, all have the header of one. Finishes what a first start that was cut short has left, so it
// needs a volume that may be written to if there is no node yet.
Result<VolumeHeader> open_or_make_volume(Volume& volume, Stamp created);

}  // namespace kvcachefs
