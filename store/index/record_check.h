// Finds records that no daemon writes, but that a damaged or hostile volume may hold behind good checksums. Judges each record alone. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "store/base/records.h"

namespace kvcachefs {

// Tells why `record` cannot be in a journal of `epoch`, or in a checkpoint that covers journals up to `epoch`; empty if it can.
std::string why_impossible(const Record& record, uint32_t epoch);

// Removes from attributes what they can do without: extended attributes that no client could have set, and meaningless bits of
// the mode. Returns how many.
size_t trim_attributes(Attributes& attributes);

// Names the subject of a record for messages: "object 17", "the name 'x' in directory 17". Escapes bytes that do not print.
std::string subject_of(const Record& record);

}  // namespace kvcachefs
