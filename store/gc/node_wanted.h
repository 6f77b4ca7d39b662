// A daemon that begins, and finds its node tended by another one (Caretaker), asks that one to leave: it holds the lock of the file WANTED, beside
// LOCK, for as long as it waits. The caretaker checks whether that lock is held.
//
// These functions block on the volume.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

class Volume;
class VolumeLock;

// Part of the text that a caretaker writes as the holder of a node's LOCK; the message of kBusy quotes it.
inline constexpr std::string_view kTendedHolder = " command=tend ";

// Asks for the node as long as the result lives. `node` empty: this host's. kBusy: another daemon waits as well.
Result<std::shared_ptr<VolumeLock>> want_node(const std::string& volume_root, const std::string& node);
// Makes the file, so that no lookup finds it absent: clients of a network file system would remember that. Caller holds the node's LOCK.
Status prepare_wanted(Volume& volume, const std::string& node);
// Whether a daemon asks for the node. False as well where that cannot be found out.
bool is_node_wanted(Volume& volume, const std::string& node);

}  // namespace kvcachefs
