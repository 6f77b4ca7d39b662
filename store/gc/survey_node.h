// Private to this room: finds what a node has, without changing anything.
#pragma once

#include "store/base/result.h"
#include "store/check/offline_node.h"
#include "store/gc/collect_node.h"

namespace kvcachefs {

// Surveys the node as the next start would find it, by an index made for this beside `scratch`.
Status survey_node(const OfflineNode& node, const std::string& scratch, GcReport& report);

}  // namespace kvcachefs
