// What no daemon writes, but a damaged or hostile volume may hold behind good checksums: judged by one record alone. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "store/base/records.h"

namespace kvcachefs {

// Why it cannot be a record of a journal of `epoch`, or of a checkpoint that covers journals up to `epoch`; empty if it can.
std::string why_impossible(const Record& record, uint32_t epoch);

// Takes out what attributes can be without: extended attributes that no client could have set, and bits of the mode that mean
// nothing. How many.
size_t trim_attributes(Attributes& attributes);

// "object 17", "the name 'x' in directory 17": what a message says the record is of. Bytes that do not print are escaped.
std::string subject_of(const Record& record);

}  // namespace kvcachefs
