// A simulated NFS server: the disk of one machine, which several SimClients use, with a clock that its owner moves. Deterministic, one thread.
//
// Durability: a completed direct write, a flushed write, and each change of names is on the medium when the server answers, as on a `sync`
// export; with `async` it gets there some seconds later, and is lost if the server loses power before. A file that is removed while
// it is open stays (v4) until the last close or the server's next start, or is gone at once (v3).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"
#include "store/volume/sim_state.h"

namespace kvcachefs {

struct SimServerOptions {
  uint64_t capacity_bytes = uint64_t{1} << 36;
  unsigned nfs_version = 4;              // 4 (as 4.2: holes can be punched) or 3
  bool async = false;                    // async export
  int64_t lease_ns = 90'000'000'000;     // v4: a machine silent for longer loses its locks to the next machine that asks for them
  int64_t attributes_ns = 60'000'000'000;  // how long clients keep attributes, cached pages and absent names (acregmax, acdirmax)
  int64_t start_ns = 1'800'000'000'000'000'000;
};

class SimServer {
 public:
  explicit SimServer(const SimServerOptions& options = {});
  SimServer(const SimServer&) = delete;
  SimServer& operator=(const SimServer&) = delete;

  const SimServerOptions& options() const { return options_; }
  int64_t now_ns() const { return now_ns_; }
  void advance_ns(int64_t by_ns);
  // Power loss and immediate restart: clients go on and reclaim their v4 locks. Changes not on the medium survive in part or not at all.
  void crash(uint64_t seed);
  uint64_t starts() const { return starts_; }
  // Others have used up all free space: only space that is freed can be used again.
  void set_full(bool full) { most_bytes_ = full ? used_bytes() : options_.capacity_bytes; }
  bool is_full() const { return most_bytes_ < options_.capacity_bytes; }
  uint64_t free_bytes() const { return most_bytes_ - std::min(most_bytes_, used_bytes()); }

  uint64_t used_bytes() const { return disk_.used_bytes(); }
  uint64_t allocated_bytes(std::string_view in_path) const;  // of files whose path contains this
  std::vector<std::string> all_files() const { return disk_.all_files(); }
  const SimState& disk() const { return disk_; }

  // --- requests of clients; errors are errno values ---
  SimResult<uint64_t> create(const std::string& path, bool is_directory);
  SimResult<void> remove(const std::string& path, bool is_directory);
  SimResult<void> rename(const std::string& from, const std::string& to);
  SimResult<void> write(uint64_t file, uint64_t offset, Bytes data);
  SimResult<void> truncate(uint64_t file, uint64_t size);
  SimResult<void> allocate(uint64_t file, uint64_t offset, uint64_t length);
  SimResult<void> punch(uint64_t file, uint64_t offset, uint64_t length);
  void commit(uint64_t file);
  // v4: opens and closes by clients. is_there(): whether a client that had the file open can still use it.
  void open(uint64_t file);
  void close(uint64_t file);
  bool is_there(uint64_t file) const;

  // --- machines and their locks ---
  using Machine = unsigned;
  Machine add_machine();
  void set_silent(Machine machine, bool silent);
  void rebooted(Machine machine);  // the machine reports its restart: its locks are released
  bool lock(uint64_t file, Machine machine, uint64_t owner);
  void unlock(uint64_t file, uint64_t owner);
  bool holds(uint64_t file, uint64_t owner) const;
  bool is_locked(uint64_t file) const { return locks_.contains(file); }

 private:
  struct Held {
    Machine machine;
    uint64_t owner;
  };
  bool has_lost_lease(Machine machine) const;
  void settle_names(std::string_view path);
  template <class Change>
  SimResult<void> change(uint64_t file, Change apply);

  const SimServerOptions options_;
  SimState disk_;
  int64_t now_ns_, flushed_ns_;
  uint64_t starts_ = 1;
  uint64_t most_bytes_ = options_.capacity_bytes;
  std::map<uint64_t, unsigned> opens_;  // v4
  std::map<uint64_t, Held> locks_;      // by file
  std::vector<std::optional<int64_t>> silent_since_ns_;  // by machine
};

}  // namespace kvcachefs
