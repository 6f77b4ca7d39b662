// The first steps of a start: find the volume, find the node in it, begin a new epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Used by the thread that starts the store; no lock. Blocks on the volume.
class NodeStart {
 public:
  // Runs `attempt`; while it fails for want of space, frees reserved space and tries again.
  using WithRoom = std::function<Status(const std::function<Status()>& attempt)>;
  struct Epoch {
    uint32_t number = 0;
    std::unique_ptr<JournalWriter> journal;
  };

  NodeStart(std::shared_ptr<Volume> volume, HybridClock& stamps) : volume_(std::move(volume)), stamps_(stamps) {}

  // Returns the volume's id (makes a volume in an empty directory, if that `may_create`) and the node's name; no epoch yet. `node`: from the option; empty:
  // the machine's name. If the directory holds something else, or the volume has another node and this one may not join it, returns an
  // error that says what to do.
  Result<FileIdentity> settle(const std::string& node, bool read_only, bool may_join, bool may_create);
  // The largest epoch of the node that was ever begun, as far as the volume tells; 0: none. Includes epochs of a removed node of that name, and epochs without a
  // directory that LOST or the ACKS of another node mention: peers that read such an epoch would otherwise continue in it.
  Result<uint32_t> last_epoch(const FileIdentity& identity) const;
  // Begins the next epoch, with its journal. Older epochs are only read from now on.
  Result<Epoch> begin_epoch(FileIdentity identity, uint32_t last_epoch, const Index& index, JournalForm form,
                            const WithRoom& with_room);

 private:
  Result<std::unique_ptr<VolumeLock>> lock_first_mount();
  Result<FileIdentity> take_node(const std::string& node, bool read_only, bool may_join);
  Status check_is_only_node(const FileIdentity& identity);

  const std::shared_ptr<Volume> volume_;
  HybridClock& stamps_;
};

}  // namespace kvcachefs
