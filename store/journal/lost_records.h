// That records of a node were lost, for good: a file on the volume says so to all later starts and checks. What no record names may be what a lost one named, so it
// is kept until somebody who knows better says otherwise (`kvcachefs fsck --repair --remove-orphans`).
//
// Block on the volume.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

std::string lost_records_path(std::string_view node);  // its content: the last of those epochs, in decimal

// Of the epochs up to this one. 0: of none. The last there can be where the file says nothing that can be read.
Result<uint32_t> epochs_with_lost_records(Volume& volume, std::string_view node);
// On the medium when it returns. Never lowers what is there. By who holds LOCK, before a checkpoint takes the place of what is damaged.
Status note_lost_records(Volume& volume, std::string_view node, uint32_t up_to_epoch);
// By who holds LOCK.
Status forget_lost_records(Volume& volume, std::string_view node);

}  // namespace kvcachefs
