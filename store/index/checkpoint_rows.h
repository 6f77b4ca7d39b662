// The records that a checkpoint of an index holds.
#pragma once

#include <functional>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"

namespace kvcachefs {

// Passes all of them to `add`, in the order that Index::load() wants. Stops at the first error of `add`. kCorrupt: the index is damaged(), and rows may be missing.
Status for_each_checkpoint_record(const Index& index, const std::function<Status(Record)>& add);

}  // namespace kvcachefs
