// A daemon that begins, and finds its node tended by another one (Caretaker), asks that one to leave: it holds the lock of the file WANTED beside
// LOCK for as long as it waits. The caretaker looks whether anybody does.
//
// Block on the volume.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

class Volume;
class VolumeLock;

// In what a caretaker says of itself as the holder of a node's LOCK, which the message of kBusy quotes.
inline constexpr std::string_view kTendedHolder = " command=tend ";

// As long as the result lives. `node` empty: this host's. kBusy: another one waits as well.
Result<std::shared_ptr<VolumeLock>> want_node(const std::string& volume_root, const std::string& node);
// Makes the file, so that looking for it never finds it absent: clients of a network file system would remember that. By who holds the LOCK.
Status prepare_wanted(Volume& volume, const std::string& node);
// False as well where that cannot be told.
bool is_node_wanted(Volume& volume, const std::string& node);

}  // namespace kvcachefs
