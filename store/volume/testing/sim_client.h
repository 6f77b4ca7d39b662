// One machine that has mounted a SimServer: a Volume with the caches of an NFS client.
//
//  - Opens ask the server (close-to-open), except for a name, or a directory on the way, that an earlier look-up found absent: the machine remembers that
//    until it makes the name, lists the directory, or `attributes_ns` have passed. Listings come from the server.
//  - Attributes are cached for `attributes_ns` or until this machine changes or opens the file. Direct reads go to the server, others to cached pages that
//    are valid for as long. Buffered writes stay here until a sync, the last close, or the machine's end.
//  - v4: a removed file stays while any machine has it open. v3: only on the machine that removes it (as .nfs...), others get ESTALE.
//  - The mount is hard: a call made while the machine is cut off waits. In one thread, `before` does the waiting; it is called before each
//    request to the server, lets other machines run, and returns when this machine is connected again. If it returns sooner, the call fails with
//    ETIMEDOUT, as on a soft mount.
//  - kill() kills the machine's process, also within `before`: that request is not made, or is made, wholly or in part, and not answered; the
//    files and locks of that life are useless then. restart() begins the next life, with the machine's caches as they are.
//
// Locks are the server's, held in the name of this machine; after a lost lock (v4, after a cut longer than the lease) its descriptor fails with EIO.
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/volume/fault_volume.h"
#include "store/volume/testing/sim_server.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class SimClient final : public Volume, public std::enable_shared_from_this<SimClient> {
 public:
  SimClient(std::shared_ptr<SimServer> server, std::string name);

  using Before = std::function<void(const VolumeCall&)>;  // `number` counts requests of this machine
  void set_before(Before before) { before_ = std::move(before); }
  void cut();
  void heal();
  bool is_cut() const { return cut_; }
  enum class LastRequest : uint8_t { kNotMade, kInPart, kUnanswered };
  // Chooses the fate of the request that is about to be made, if there is one. The machine still writes what the process wrote and did not sync.
  void kill(LastRequest last = LastRequest::kNotMade);
  // The machine ends and loses all that it had not written, except for some of it.
  void lose_power(uint64_t seed);
  bool is_killed() const { return killed_; }
  void restart();
  // The next change of names is sent twice, because the server restarted and its answer was lost: the client gets the second answer.
  void repeat_next() { repeat_next_ = true; }
  SimServer& server() { return *server_; }

  const VolumeFeatures& features() const override { return features_; }
  const std::string& root() const override { return name_; }
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

 private:
  friend class SimClientFile;
  friend class SimClientLock;
  using Kind = VolumeCall::Kind;
  struct Cached {  // of one file
    FileInfo info;
    int64_t until_ns = INT64_MIN;  // valid until then
    std::map<uint64_t, Bytes> pages;
    std::set<uint64_t> dirty;      // dirty pages; `info.size_bytes` is then this machine's
    uint64_t opens = 0;
    std::string removed_as;        // v3: name to remove at the last close
  };

  Status begin(uint64_t life, Kind kind, const std::string& path, uint64_t offset = 0, uint64_t length = 0);
  Status end(const std::string& path);
  template <class Work>
  Status change_names(Kind kind, const std::string& path, Work work);
  std::string place(const std::string& path) const;
  Status look_up(const std::string& path, uint64_t& file, const char* verb);
  const std::string* remembered_absent(const std::string& path);
  void remember_absent(const std::string& path);
  void forget_absent(const std::string& path) { absent_ns_.erase(path); }
  void move_aside(const std::string& path);
  Cached& cached(uint64_t file);
  FileInfo fresh_info(uint64_t file) const;
  void take_in(uint64_t file, bool by_this);
  Status write_back(uint64_t file, const std::string& path);
  void opened(uint64_t file);
  void closed(uint64_t file);
  int64_t now_ns() const { return server_->now_ns(); }

  const std::shared_ptr<SimServer> server_;
  const std::string name_;
  const SimServer::Machine machine_;
  VolumeFeatures features_;
  Before before_;
  bool cut_ = false, killed_ = false, lost_power_ = false, repeat_next_ = false;
  LastRequest last_ = LastRequest::kNotMade;
  bool ends_with_request_ = false;  // killed while a request was about to be made; that request is made
  uint64_t life_ = 1, requests_ = 0, moved_aside_ = 0;
  std::map<std::string, int64_t> absent_ns_;     // since when
  std::map<std::string, std::pair<uint64_t, int64_t>> names_;  // path -> file and expiry; for info() only
  std::map<uint64_t, Cached> files_;
  std::map<uint64_t, uint64_t> locks_;           // owner -> file, of this life
  std::vector<std::pair<uint64_t, uint64_t>> unlocks_;  // to be sent when the machine is connected again
};

}  // namespace kvcachefs
