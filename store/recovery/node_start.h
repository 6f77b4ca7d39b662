// The first steps of a start: which volume this is, which node of it, and a new epoch.
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

// By the thread that starts the store; no lock. Blocks on the volume.
class NodeStart {
 public:
  // Runs a try, and gives up room that is kept for it as long as it fails for want of it.
  using WithRoom = std::function<Status(const std::function<Status()>& attempt)>;
  struct Epoch {
    uint32_t number = 0;
    std::unique_ptr<JournalWriter> journal;
  };

  NodeStart(std::shared_ptr<Volume> volume, HybridClock& stamps) : volume_(std::move(volume)), stamps_(stamps) {}

  // The id of the volume, which is made in an empty directory, and the node's name; no epoch yet. `node`: as the option says, empty for
  // the machine's name. Where the directory holds something else, or another node has the volume, and this one may not join it, an error
  // that says what to do.
  Result<FileIdentity> settle(const std::string& node, bool read_only, bool may_join);
  // The largest epoch of the node that was begun, as far as the volume tells: also of one of that name that was taken out of it, and one of which the directory is
  // gone but LOST or the ACKS of another node know it, whose peers would go on with what they have read of it. 0: none.
  Result<uint32_t> last_epoch(const FileIdentity& identity) const;
  // The next one, with its journal. Older ones are only read from now on.
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
