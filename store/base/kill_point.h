// Named places in the code at which a test has the process die as by kill -9: just before or after the steps that
// matter when it is started again. kvcachefs mount arms one from the environment; without that a passing costs one
// relaxed load.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

// Every name there is; tests/crash/test_kill_points.py reads them here, one a line. Who passes one that is not listed
// does not compile; one that is never passed fails the test.
inline constexpr auto kKillPoints = std::to_array<std::string_view>({
    // bodies and extents
    "extent-made",    // a new extent file is there and is empty
    "extent-header",  // ... has its header and no body
    "body-placed",    // a body has its place, and nothing of it is written
    "body-written",   // bodies are in their extents, and the journal has not heard of them
    "solo-cut",       // the same, each extent of its own cut to the length of its body
    "spill-made",     // a body too large for the memory has a file of its own, empty
    "spill-written",  // ... and a part of it is there
    // names, in RAM
    "name-replaced",  // a rename has put one file in place of another; the caller has no answer
    "name-removed",   // a name is unlinked; the caller has no answer
    // a batch of the journal
    "batch-made",            // made up, nothing of it written
    "batch-torn",            // the first half of it is in the journal
    "batch-appended",        // in the journal, the index has not heard of it
    "replacement-appended",  // the same, for one that gives a journaled name to another object
    "removal-appended",      // the same, for one that removes a name
    "batch-applied",         // in the overlay of the index, the callers have no answer
    // a sync point and the index
    "data-synced",          // extents are synced, the journal is not
    "journal-synced",       // both are, and no record says so
    "mark-appended",        // the record is in the journal
    "mark-synced",          // ... and synced
    "index-before-commit",  // its transaction is made, not committed
    "index-committed",
    // a checkpoint, and the journals before it
    "checkpoint-torn",        // a part is in the file
    "checkpoint-written",     // whole and synced, under its temporary name
    "checkpoint-named",       // under its name, the directory is not synced
    "journal-made",           // a new journal file is there and is empty
    "journal-header",         // ... has its header, and nothing was appended
    "journal-next",           // ... and the one before it does not say so: only in journals in blocks
    "journals-half-removed",  // one file that the checkpoint covers is gone, others may not be
    "journals-removed",       // all of them are
    // giving space back
    "reclaim-begun",           // what is dead was given up by synced records
    "range-punched",
    "extent-removed",
    "crashed-extent-removed",  // at a start: one extent is gone that no record names, others may not be
    "leftover-punched",        // after a start: one dead range of a pack of an earlier life is given back
    // a start
    "volume-linked",           // the first one: a new volume has its header, which has its temporary name as well
    "checkpoint-half-loaded",  // the index is rebuilt and has read a part of the checkpoint
    "batch-replayed",          // one batch of the journals is applied
    "epoch-made",              // the directories of a new epoch are there, without a journal
    // a node is taken out of the volume
    "node-set-aside",     // its directory has another name, and nothing of it is removed
    "node-half-removed",  // one of its files is, others may not be
    // a request
    "attributes-asked",  // somebody waits for an answer: at a mount its own daemon first
    // an unmount
    "drained",       // everything is on the volume and journaled, the index has not followed
    "index-closed",  // the index is closed, not marked so
    "index-marked",  // ... and marked
});

// One of them. That it exists is checked by the compiler.
struct KillPoint {
  consteval KillPoint(const char* name) {  // NOLINT(google-explicit-constructor): kill_point("name")
    while (kKillPoints.at(index) != std::string_view(name)) ++index;  // past the end it is no constant
  }
  uint32_t index = 0;
};

// `text` is NAME or NAME:COUNT, COUNT at least 1: the COUNT-th passing of it is the last thing this process does.
// Empty: none. To be called before there are threads.
Status arm_kill_point(std::string_view text);

namespace detail {
constexpr uint32_t kNoKillPoint = UINT32_MAX;
inline std::atomic<uint32_t> armed_kill_point{kNoKillPoint};
bool last_passing();
[[noreturn]] void die();
}  // namespace detail

// Whether this is the passing to die at. For who does half of a step first, and then die_at_kill_point().
inline bool kill_point_due(KillPoint point) {
  return detail::armed_kill_point.load(std::memory_order_relaxed) == point.index && detail::last_passing();
}
[[noreturn]] inline void die_at_kill_point() { detail::die(); }

inline void kill_point(KillPoint point) {
  if (kill_point_due(point)) detail::die();
}

}  // namespace kvcachefs
