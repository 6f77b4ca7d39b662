// The directory an index lives in: where it may be, whose it is, whether it was closed cleanly, and how a bad one is
// put aside. Knows files, not LMDB.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "store/base/result.h"

namespace kvcachefs {

// Above this the data is not read whole at a start: that would take more than a second.
inline constexpr uint64_t kMaxChecksummedBytes = uint64_t{512} << 20;

// By the f_type of statfs(2).
bool is_network_file_system(uint32_t type);

// Whether the path leads to what is open.
bool leads_to(const std::string& path, int descriptor);

// Moves an index that nobody has open to "<directory>.damaged", in place of what is there, for people to look at. kExists, and nothing is moved, if
// one of the two holds anything else.
Status set_index_aside(const std::string& directory);

class IndexDirectory {
 public:
  // Makes the directory if need be and takes its lock, which holds the mark that the directory is an index's: kExists, and
  // nothing is changed, if it holds anything else, data of another program's LMDB or links among it. kUnsupported on a network file system (invariant 11: two clients
  // of one LMDB file lose data without any error), kBusy if another index object has it.
  static Result<IndexDirectory> take(std::string path);
  IndexDirectory(IndexDirectory&& other) noexcept;
  IndexDirectory& operator=(IndexDirectory&& other) noexcept;
  ~IndexDirectory();

  const std::string& path() const { return path_; }
  std::string data_path() const { return path_ + "/data.mdb"; }
  // An error: the path leads elsewhere than to what was taken: a volume can be moved away under its mount, and another begun in its place, which
  // has an index of its own. Nothing is written by that path then.
  Status check_in_place() const;
  bool has_data() const;
  uint64_t data_bytes() const;

  enum class Close : uint8_t {
    kUnclean,   // no mark
    kUnproved,  // marked, but the file was too large for a checksum
    kProved,    // marked, and the file is what it was
  };
  // Reads and removes the mark of a clean close, durably, before anything else is done to the data. kCorrupt: the data
  // is not what was closed.
  Result<Close> consume_clean_mark();
  // Call after the environment is closed.
  Status mark_clean() const;

  // Moves all of it to "<path>.damaged", replacing what is there, and starts over with an empty directory.
  Status set_aside();
  // Removes the data.
  Status clear();

  // Where a damaged index is built anew; removing what lies there; noting that it took the place of the damaged one.
  std::string rebuilt_path() const { return path_ + "/rebuild.tmp"; }
  Status remove_rebuilt() const;
  Status rebuilt() const;

 private:
  IndexDirectory(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  std::string path_;
  int lock_fd_ = -1;
};

}  // namespace kvcachefs
