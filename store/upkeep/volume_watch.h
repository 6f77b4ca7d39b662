// Watches what others do to the volume while it is mounted: fill it, make room, enlarge it, use up its inodes, remove it. Also keeps the
// space that is reserved for the journal and for new files on a full volume.
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
#include "store/journal/kept_volume_file.h"
#include "store/object/dirty_queue.h"
#include "store/space/dead_space.h"
#include "store/space/raw_space.h"
#include "store/space/reserve.h"
#include "store/space/space.h"
#include "store/upkeep/checkpointer.h"
#include "store/volume/volume.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

// Used by a start, then by the keeper's thread: needs no lock. Blocks on the volume.
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
    std::function<OptionDefaults(const SpaceInfo&)> defaults;  // for options that depend on the size of the file system
    bool read_only, background;
    bool keeps_reserve;  // false for a command: it does not know the capacity that the node is mounted with
  };
  // `seen`: the file system when the options were resolved.
  VolumeWatch(Parts parts, const SpaceInfo& seen) : parts_(std::move(parts)), file_(parts_.volume, parts_.identity.volume_uuid), seen_(seen) {}

  // Limits what is accepted to the space that is free now.
  void measure();
  // As measure(); call it each second. On a network file system, where it asks the server, it measures only after 5 s, then every 10 s, while
  // nothing is stored or refused.
  void measure_when_due(int64_t now_ns);
  // As measure(), with all raw files and the size of journals, checkpoint and index.
  void measure_all();
  // Once there is room again, restores the used part of the journal's reserve. A small volume is not filled with it: excess that a run with
  // a larger capacity kept is given back.
  void refill_reserve();
  // Looks for the volume's directories, the journal and the file VOLUME, which others may have removed or damaged. measure() does so as well.
  void look_for_volume();
  // Only gives the excess back: at a start, before anything is evicted for it, where refilling would take long.
  void trim_reserve();

 private:
  uint64_t reserve_bytes(const SpaceInfo& backing) const;
  void keep_reserve_within(uint64_t bytes);
  void look_for_volume_file();
  void follow_size(const SpaceInfo& backing);
  void keep_spare_files(const SpaceInfo& backing);

  const Parts parts_;
  KeptVolumeFile file_;
  SpaceInfo seen_;  // when it was last measured
  bool was_unused_ = false;  // nothing was stored or refused between the last two measurements
  uint64_t used_bytes_ = 0;
  std::optional<int64_t> measured_ns_;
  Backoff spares_pause_{1'000'000'000, 60'000'000'000};
};

}  // namespace kvcachefs
