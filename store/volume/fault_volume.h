// Fault injection below the seam, for tests. Two tools:
//  - FaultVolume wraps any volume and fails or tears chosen calls;
//  - SimVolume is a whole volume in memory that behaves like a disk with a write-back cache: a power cut can drop, reorder or
//    tear unsynced changes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/volume/volume.h"

namespace kvcachefs {

// A mutating or reading call at the seam. Numbers count from 1 in the order of the calls.
struct VolumeCall {
  enum class Kind : uint8_t {
    kOpen, kCreate, kRead, kWrite, kSync, kTruncate, kAllocate, kPunch, kMakeDirectory, kRemoveFile, kRemoveDirectory,
    kRename, kList, kSyncDirectory, kSyncEverything, kLock,
  };
  Kind kind;
  uint64_t number;       // among mutating calls (kCreate, kWrite, kSync, kTruncate, kAllocate, kPunch, k*Directory, kRemove*, kRename,
                         // kSyncEverything)
  std::string path;
  uint64_t offset = 0;
  uint64_t length = 0;
  bool mutates() const;
};
const char* call_kind_name(VolumeCall::Kind kind);

// What a hook makes of a call. Default: the call goes on.
struct Fault {
  int sys_errno = 0;              // fail with this instead of making the call (EIO, ENOSPC, ...)
  int64_t write_only_bytes = -1;  // >= 0: a write stores only its first so many bytes, then fails with
                                  // sys_errno (or EIO)
  int64_t delay_ns = 0;
};
// Called before each call, on the calling thread; must be thread-safe.
using FaultHook = std::function<Fault(const VolumeCall&)>;

std::shared_ptr<Volume> make_fault_volume(std::shared_ptr<Volume> inner, FaultHook hook);

// A volume in memory. `cut_power` returns a new volume in the state of a disk whose power was cut at this
// moment; the old volume then fails every call with EIO.
class SimVolume : public Volume {
 public:
  struct PowerLoss {
    uint64_t seed = 1;
    double keep_probability = 0.5;   // for each unsynced piece (a sector run, a size change, a directory operation)
    uint64_t tear_bytes = 4096;      // unsynced writes are kept or dropped in pieces of this size (512 or 4096)
  };
  virtual std::shared_ptr<SimVolume> cut_power(const PowerLoss& loss) = 0;
  // Like kill -9 of the daemon: everything written stays, open handles and locks are gone.
  virtual std::shared_ptr<SimVolume> crash_process() = 0;
  virtual uint64_t mutating_calls() const = 0;
  // From mutating call `number` on every call fails with EIO; that call's own fault (torn write) is applied first.
  // 0 = never. Models a crash inside any call.
  virtual void stop_at(uint64_t number, int64_t torn_bytes) = 0;
  virtual bool stopped() const = 0;
  // Like a kernel that failed to write a file back and then forgot the dirty pages: unsynced writes to it read as
  // zeros (or as what was there before), and no later sync brings them back. Sizes and holes stay as they are.
  virtual Status lose_unsynced(const std::string& path) = 0;
  // Corruption below the store: flips bits in place, truncates or removes.
  virtual Status corrupt(const std::string& path, uint64_t offset, std::byte xor_with) = 0;
  virtual Status cut(const std::string& path, uint64_t size_bytes) = 0;
  virtual std::vector<std::string> all_files() const = 0;
  virtual unsigned open_files(const std::string& path) const = 0;  // descriptors of the file; 0 if it does not exist
};
struct SimVolumeOptions {
  uint64_t capacity_bytes = uint64_t{1} << 40;
  bool punch_hole = true;
  bool direct_io = true;   // enforce alignment on files opened direct
  bool network = false;
};
std::shared_ptr<SimVolume> make_sim_volume(const SimVolumeOptions& options = {});

}  // namespace kvcachefs
