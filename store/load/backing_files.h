// Chooses the file that the kernel may read in place of a body (FUSE passthrough), and remembers how clients read lately.
#pragma once

#include <atomic>
#include <cstdint>

#include "store/api/counters.h"
#include "store/api/options.h"
#include "store/api/request_types.h"
#include "store/base/clock.h"
#include "store/cache/file_policy.h"
#include "store/chain/access_tracker.h"
#include "store/extent/extents.h"
#include "store/load/unverified_bodies.h"
#include "store/memory/memory_file.h"
#include "store/tree/tree.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Thread-safe; no lock of its own: takes those of the Tree and of bodies. May block on an extent being opened.
class BackingFiles {
 public:
  struct Parts {
    Volume& volume;
    Extents& extents;
    Tree& tree;
    MemoryFiles& files;
    MemoryFilePolicy& policy;
    AccessTracker& accesses;
    UnverifiedBodies& unverified;
    Counters& counters;
    const Clock& clock;
    bool always_verify;  // verify every read of the volume: nothing is passed through
  };
  explicit BackingFiles(Parts parts) : parts_(parts) {}

  // Call if the mount passes bodies through: once, before the first open.
  Status expect_passthrough();
  bool passes_through() const { return passes_through_.load(); }
  // The kernel refused such a file: no more of its kind are offered.
  void refuse(bool in_memory);
  bool passes_extents() const { return passes_extents_.load(); }

  // The file for an open of the body, if there is one now: its memory file, or else its extent.
  BackingFile find(ObjectId id);
  // The file of its extent. Null: the bytes on the volume are not known to be good, or the body is in RAM, from where it is read faster.
  FilePtr extent_of(ObjectId id);

  // A client opened a body by passthrough. The store does not see its reads, so the body counts as read now.
  void count_open(ObjectId id, bool direct, bool in_memory);
  // A client opened a body of an extent so that it reads through the daemon: by a descriptor that can write, or with O_DIRECT.
  void note_read_here() { read_here_ns_.store(parts_.clock.monotonic_ns(), std::memory_order_relaxed); }
  // Clients read through the daemon, or with O_DIRECT, past the page cache: to fill that cache ahead would read bodies twice.
  bool read_here_lately() const { return came_lately(read_here_ns_); }
  bool passed_direct_lately() const { return came_lately(passed_direct_ns_); }
  // The kernel is about to read `bytes` of the volume for clients: the volume holds back writes meanwhile.
  void expect_kernel_reads(uint64_t bytes);

 private:
  MemoryFilePtr memory_file_of(ObjectId id);
  bool came_lately(const std::atomic<int64_t>& at_ns) const;

  const Parts parts_;
  std::atomic<bool> passes_through_{false};
  std::atomic<bool> passes_extents_{true};
  std::atomic<int64_t> read_here_ns_{0};      // time of the last note_read_here(); 0: never
  std::atomic<int64_t> passed_direct_ns_{0};  // when a body was last passed through to an O_DIRECT reader
};

}  // namespace kvcachefs
