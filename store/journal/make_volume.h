// Finds the file VOLUME on a volume, or makes it on the first mount; and makes it anew where it was lost.
#pragma once

#include <array>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/journal/volume_file.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// kExists, naming what is there, unless the directory is a volume or may become one. Protects directories of others: nothing is made in
// them.
Status check_may_be_volume(Volume& volume);

// kNotFound if the directory is empty: the file system of the volume may not be mounted there.
Status check_is_volume(Volume& volume);

// Returns the header of the volume; makes one, with `created`, if there is none. If several nodes make one at once, even on hosts
// whose locks do not see each other, all get the same header. Finishes an interrupted first start, so it needs a writable
// volume as long as there is no node yet.
Result<VolumeHeader> open_or_make_volume(Volume& volume, Stamp created);

// Reads VOLUME. If it is missing or damaged although there are nodes, the error says how it can be made anew.
Result<VolumeHeader> read_volume_file(Volume& volume);
// For errors of read_volume_file() and for those of reading or decoding VOLUME: it is missing, or what is there is no VOLUME of any version.
bool lacks_volume_file(const Error& error);
// A header with the id that the volume's other files name: journals and checkpoints, or packs where none of those can be read. An error if there are none, or
// if they name several ids. Only reads.
Result<VolumeHeader> header_of_other_files(Volume& volume, Stamp created);
// Writes VOLUME as a whole. kExists if there is one, unless `replaces`.
Status write_volume_file(Volume& volume, ByteSpan content, bool replaces);

}  // namespace kvcachefs
