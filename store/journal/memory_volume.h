// For tests and fuzz targets of this room: files in memory, with the few calls that journals and checkpoints make. Several threads
// may call Volume and its files; while they do, a test must not touch files() or the public members
// directly. For faults and power cuts there is SimVolume (store/volume/fault_volume.h).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "store/base/bytes.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class MemoryVolume : public Volume {
 public:
  using Files = std::map<std::string, std::shared_ptr<Bytes>>;
  Files& files() { return files_; }
  // Also makes the parent directories.
  void put(const std::string& path, ByteSpan content);
  // > 0: so many more writes succeed, then each fails with ENOSPC after half of its bytes; < 0: no write fails.
  int writes_until_full = -1;
  // Syncs of files fail with EIO while set.
  bool sync_fails = false;
  int file_syncs = 0;
  int directory_syncs = 0;
  void set_network(bool network) { features_.network = network; }

  const VolumeFeatures& features() const override { return features_; }
  const std::string& root() const override { return root_; }
  Result<FilePtr> open(const std::string& path, OpenOptions options) override;
  Status make_directory(const std::string& path) override;
  Status make_directories(const std::string& path) override;
  Status remove_file(const std::string& path) override;
  Status remove_directory(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status publish(const std::string& from, const std::string& to) override;
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override;
  Result<FileInfo> info(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Status sync_everything() override;
  Result<SpaceInfo> space() override;
  Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) override;
  void submit(std::vector<IoRequest> requests) override;
  void drain() override {}
  // Held during each call, also by files and locks of this volume; recursive, because calls use each other.
  std::recursive_mutex& mutex() { return *mutex_; }

 private:
  VolumeFeatures features_;
  std::string root_ = "memory";
  Files files_;
  std::set<std::string> directories_;
  std::shared_ptr<std::recursive_mutex> mutex_ = std::make_shared<std::recursive_mutex>();
  std::shared_ptr<std::set<std::string>> locked_ = std::make_shared<std::set<std::string>>();
};

}  // namespace kvcachefs
