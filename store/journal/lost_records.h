// Marks a node whose records were lost: a file on the volume tells all later starts and checks. Data without a record may belong to a lost record, so it
// is kept until an administrator decides otherwise (`kvcachefs fsck --repair --remove-orphans`).
//
// All calls block on the volume.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

std::string lost_records_path(std::string_view node);  // content: the last epoch with lost records, in decimal

// Records were lost in epochs up to this one. 0: in none. The largest possible epoch if the file is unreadable.
Result<uint32_t> epochs_with_lost_records(Volume& volume, std::string_view node);
// Durable when it returns. Never lowers the epoch in the file. Caller holds LOCK, and calls this before a checkpoint replaces the damaged records.
Status note_lost_records(Volume& volume, std::string_view node, uint32_t up_to_epoch);
// Caller holds LOCK.
Status forget_lost_records(Volume& volume, std::string_view node);

}  // namespace kvcachefs
