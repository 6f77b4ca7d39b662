// What others do to the volume while it is mounted: they fill it or make room, enlarge it, take its inodes, remove it. And the space
// that is kept for the journal and for new files on a volume that is full.
#pragma once

#include <functional>
#include <optional>
#include <memory>

#include "store/api/live_options.h"
#include "store/api/options.h"
#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/health.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/object/dirty_queue.h"
#include "store/space/dead_space.h"
#include "store/space/raw_space.h"
#include "store/space/reserve.h"
#include "store/space/space.h"
#include "store/upkeep/checkpointer.h"
#include "store/volume/volume.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// A start, then the keeper's thread: no lock. Blocks on the volume.
class VolumeWatch {
 public:
  struct Parts {
    Volume& volume;
    const FileIdentity& identity;
    Extents& extents;
    const Index& index;
    Space& space;
    RawSpace& raw_space;
    DeadSpace& dead;
    Reserve& reserve;
    Checkpointer& checkpointer;
    VolumeRefusals& refusals;
    Health& health;
    DirtyQueue& dirty;
    LiveOptions& options;
    const Clock& clock;
    std::function<OptionDefaults(const SpaceInfo&)> defaults;  // of options that depend on the size of the file system
    bool read_only, background;
    bool keeps_reserve;  // a command does not: it does not know the capacity that the node is mounted with
  };
  // `seen`: of the file system when the options were resolved.
  VolumeWatch(Parts parts, const SpaceInfo& seen) : parts_(std::move(parts)), seen_(seen) {}

  // What is accepted is held to what is free now.
  void measure();
  // The same, to be called each second: on a network file system, where each is a question to the server, every fifth time only while
  // nothing is stored or refused.
  void measure_when_due(int64_t now_ns);
  // The same, with all raw files, and what journals, checkpoint and index take.
  void measure_all();
  // Once there is room again what was taken of the reserve of the journal. A small volume is not filled with it: what a life with a larger
  // capacity kept is given back.
  void refill_reserve();
  // The second alone: at a start, before anything is evicted for it, where to refill would take long.
  void trim_reserve();

 private:
  uint64_t reserve_bytes(const SpaceInfo& backing) const;
  void keep_reserve_within(uint64_t bytes);
  void look_for_volume();
  void follow_size(const SpaceInfo& backing);
  void keep_spare_files(const SpaceInfo& backing);

  const Parts parts_;
  SpaceInfo seen_;  // when it was measured last
  uint64_t used_bytes_ = 0;
  std::optional<int64_t> measured_ns_;
  Backoff spares_pause_{1'000'000'000, 60'000'000'000};
};

}  // namespace kvcachefs
