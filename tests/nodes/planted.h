// Faults of the program, put between a store and its machine: what it reads or writes there is changed to what such a program would have read or
// written. So the simulation is seen to find them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/volume/volume.h"

namespace kvcachefs::testing {

enum class Planted : uint8_t {
  kReclaimsUnacknowledged,  // to the node all others have followed it to its end, and have nothing open
  kAcknowledgesUnread,      // the node tells that it has followed the others to their ends, and has nothing open
  kForgetsStatements,       // what it removes of other nodes' is not journaled
  kForgetsRemovals,         // nor is what it removes of its own, also where it answers that it did
  kListsOnce,               // it goes by the first listing of each node
  kPublishesUnwritten,      // one body in five does not reach the volume before the journal that tells of it, nor later
};
inline constexpr Planted kAllPlanted[] = {Planted::kReclaimsUnacknowledged, Planted::kAcknowledgesUnread, Planted::kForgetsStatements,
                                          Planted::kForgetsRemovals,        Planted::kListsOnce,          Planted::kPublishesUnwritten};
std::string name_of(Planted planted);
// `hits` counts what was changed.
std::shared_ptr<Volume> plant(Planted planted, std::shared_ptr<Volume> inner, std::shared_ptr<uint64_t> hits);

}  // namespace kvcachefs::testing
