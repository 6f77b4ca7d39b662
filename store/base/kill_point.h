// Named places in the code at which a test lets the process die as by kill -9: just before or after the steps that
// matter at the next start. kvcachefs mount arms one from the environment; an unarmed one costs one
// relaxed load.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

// All names; tests/crash/test_kill_points.py reads them here, one a line. Passing an unlisted name does not compile; a
// listed name that is never passed fails the test.
inline constexpr auto kKillPoints = std::to_array<std::string_view>({
    // bodies and extents
    "extent-made",    // a new extent file is there and is empty
    "extent-header",  // ... has its header and no body
    "body-placed",    // a body has its place, and none of its bytes are written
    "body-written",   // bodies are in their extents, the journal does not name them yet
    "solo-cut",       // the same, each solo extent is cut to the length of its body
    "spill-made",     // a body too large for the memory has its own file, still empty
    "spill-written",  // ... and a part of it is written
    // names, in RAM
    "name-replaced",  // a rename has put one file in place of another; the client has no answer
    "name-removed",   // a name is unlinked; the client has no answer
    // a batch of the journal
    "batch-made",            // encoded, nothing of it written
    "batch-torn",            // the first half of it is in the journal
    "batch-appended",        // in the journal, not applied to the index
    "replacement-appended",  // the same, for a batch that gives a journaled name to another object
    "removal-appended",      // the same, for a batch that removes a name
    "batch-applied",         // in the overlay of the index, the clients have no answers
    // a sync point and the index
    "data-synced",          // extents are synced, the journal is not
    "journal-synced",       // both are synced, no record says so
    "mark-appended",        // the record is in the journal
    "mark-synced",          // ... and synced
    "index-before-commit",  // its transaction is made but not committed
    "index-committed",
    // a checkpoint, and the journals before it
    "checkpoint-torn",        // a part of it is in the file
    "checkpoint-written",     // whole and synced, under its temporary name
    "checkpoint-named",       // under its name, the directory is not synced
    "journal-made",           // a new journal file is there and is empty
    "journal-header",         // ... has its header, and nothing was appended
    "journal-next",           // ... and the file before it does not name it: only in journals in blocks
    "journals-half-removed",  // one file that the checkpoint covers is gone, others may not be
    "journals-removed",       // all of these files are gone
    // giving space back
    "reclaim-begun",           // synced records have given up the dead places
    "range-punched",
    "extent-removed",
    "crashed-extent-removed",  // at a start: one extent that no record names is removed, others may not be
    "leftover-punched",        // after a start: one dead range of a pack of an earlier life is given back
    // a start
    "volume-linked",           // a new volume, or one that had lost it, has its header, still with its temporary name as well
    "checkpoint-half-loaded",  // the index is rebuilt and has read a part of the checkpoint
    "batch-replayed",          // one batch of the journals is applied
    "epoch-made",              // the directories of a new epoch are there, without a journal
    // a node is taken out of the volume
    "node-set-aside",     // its directory is renamed, nothing of it is removed
    "node-half-removed",  // one of its files is removed, others may not be
    // a request
    "attributes-asked",  // a client waits for an answer: at a mount its own daemon first
    // an unmount
    "drained",       // everything is on the volume and journaled, the index has not followed
    "index-closed",  // the index is closed, but not marked as closed
    "index-marked",  // ... and marked
});

// One of these names; the compiler checks that it exists.
struct KillPoint {
  consteval KillPoint(const char* name) {  // NOLINT(google-explicit-constructor): kill_point("name")
    while (kKillPoints.at(index) != std::string_view(name)) ++index;  // running past the end is not a constant expression
  }
  uint32_t index = 0;
};

// `text` is NAME or NAME:COUNT, COUNT at least 1: the process dies when it passes that point for the COUNT-th time.
// Empty: never. Call before there are threads.
Status arm_kill_point(std::string_view text);

namespace detail {
constexpr uint32_t kNoKillPoint = UINT32_MAX;
inline std::atomic<uint32_t> armed_kill_point{kNoKillPoint};
bool last_passing();
[[noreturn]] void die();
}  // namespace detail

// Whether the process should die here. For code that does half of a step first and then calls die_at_kill_point().
inline bool kill_point_due(KillPoint point) {
  return detail::armed_kill_point.load(std::memory_order_relaxed) == point.index && detail::last_passing();
}
[[noreturn]] inline void die_at_kill_point() { detail::die(); }

inline void kill_point(KillPoint point) {
  if (kill_point_due(point)) detail::die();
}

}  // namespace kvcachefs
