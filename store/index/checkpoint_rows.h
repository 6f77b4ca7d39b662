// What a checkpoint of an index holds.
#pragma once

#include <functional>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"

namespace kvcachefs {

// All of it, in the order in which Index::load() wants it. Ends at the first error of `add`. kCorrupt: the index is damaged(), and rows may lack.
Status for_each_checkpoint_record(const Index& index, const std::function<Status(Record)>& add);

}  // namespace kvcachefs
