// A store on a simulated volume, in one thread, with a clock and an index directory of its own, and the calls of a client.
#pragma once

#include <functional>
#include <memory>
#include <iostream>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "store/base/clock.h"
#include "store/store.h"
#include "store/volume/fault_volume.h"
#include "tests/fault/reference.h"

namespace kvcachefs::testing {

// With KVCACHEFS_FAULT_TRACE=1 every operation and every call to the volume is printed.
bool tracing();
template <class... Args>
void trace(fmt::format_string<Args...> format, Args&&... args) {
  if (tracing()) std::cout << fmt::format(format, std::forward<Args>(args)...) << "\n";
}

// Small enough that a short workload meets every kind of place and closes pack extents.
StoreOptions small_options(Durability durability);

class Rig {
 public:
  explicit Rig(StoreOptions options, std::shared_ptr<SimVolume> disk = make_sim_volume());
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  // Asked before every call to the volume, from the next mount on.
  void set_hook(FaultHook hook) { hook_ = std::move(hook); }
  Status mount();
  Status unmount();
  void die() { store_.reset(); }  // the daemon is gone, without a close
  bool mounted() const { return store_ != nullptr; }
  // The disk stopped in the middle of a call: nothing more can be asked of this life.
  bool stopped() const { return disk_->stopped(); }
  SimVolume& disk() { return *disk_; }
  Store& store() { return *store_; }
  ManualClock& clock() { return clock_; }
  const StoreOptions& options() const { return options_; }
  void set_options(const StoreOptions& options) {  // of the next mount
    const std::string index = options_.index_directory;
    options_ = options;
    options_.index_directory = index;
  }
  const std::string& index_directory() const { return index_directory_; }
  void set_index_from(const std::string& directory);  // a copy of it; none there: the index is deleted
  std::string copy_index() const;                     // to a directory that lives as long as this

  // A handle that is released when it goes; null if the open failed.
  struct Release {
    Rig* rig;
    void operator()(Handle* handle) const;
  };
  using HandlePtr = std::unique_ptr<Handle, Release>;
  Result<HandlePtr> create(const std::string& path);
  Result<HandlePtr> open(const std::string& path, OpenRequest request);
  Status write(const HandlePtr& handle, uint64_t offset, const std::string& bytes);
  Status flush(const HandlePtr& handle);
  Status fsync(const HandlePtr& handle);
  Status rename(const std::string& from, const std::string& to, RenameMode mode = RenameMode::kReplace);
  Status unlink(const std::string& path);
  Status truncate(const std::string& path, uint64_t size_bytes);
  Status make_directory(const std::string& path);
  Status sync_directory();
  Status drain();
  Result<Content> read(const std::string& path);
  Result<std::string> read(const HandlePtr& handle);
  Result<Tree> tree();  // every regular file, read whole
  void settle(int rounds = 200);  // background work until there is none
  void pass_time(int64_t ns);
  uint64_t errors();    // all error counters of the status

 private:
  Result<ObjectId> resolve(const std::string& path);
  Result<std::pair<ObjectId, std::string>> parent_of(const std::string& path);
  Status add_to_tree(ObjectId directory, const std::string& path, Tree& tree);
  template <class T, class Call>
  Result<T> wait(Call call);

  StoreOptions options_;
  std::shared_ptr<SimVolume> disk_;
  FaultHook hook_;
  ManualClock clock_;
  std::string directory_, index_directory_;
  mutable int copies_ = 0;
  std::unique_ptr<Store> store_;
};

// The machine was started anew: every journal on `disk` is of another boot than the running one.
void reboot(SimVolume& disk);

}  // namespace kvcachefs::testing
