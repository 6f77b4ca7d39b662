// The directory of an index: where it may be, which index owns it, whether that was closed cleanly, and how a bad index is
// moved aside. Knows files, not LMDB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "store/base/result.h"

namespace kvcachefs {

// A larger data file is not read whole at a start: that would take more than a second.
inline constexpr uint64_t kMaxChecksummedBytes = uint64_t{512} << 20;

// `type` is the f_type of statfs(2).
bool is_network_file_system(uint32_t type);

// Where a node has its index unless the option `index` says otherwise: in its part of the volume, or elsewhere for a network volume (LMDB needs a
// local file system). `uuid`: of the volume; `root`: its directory.
std::string default_index_directory(const std::string& root, bool is_network, std::span<const std::byte> uuid, const std::string& node);

// Whether `path` leads to the file or directory that `descriptor` has open.
bool leads_to(const std::string& path, int descriptor);

// Moves an index that nobody has open to "<directory>.damaged", for people to look at; replaces an older one there. kExists, and nothing is moved, if
// either directory holds anything else.
Status set_index_aside(const std::string& directory);

class IndexDirectory {
 public:
  // Makes the directory if need be and locks its lock file, which also marks the directory as an index's. kExists, and nothing is changed, if the
  // directory holds anything else: other files, data of another program's LMDB, links. kUnsupported on a network file system (invariant 11: two
  // clients of one LMDB file lose data without any error). kBusy if another index object has it.
  static Result<IndexDirectory> take(std::string path);
  IndexDirectory(IndexDirectory&& other) noexcept;
  IndexDirectory& operator=(IndexDirectory&& other) noexcept;
  ~IndexDirectory();

  const std::string& path() const { return path_; }
  std::string data_path() const { return path_ + "/data.mdb"; }
  // An error if the path no longer leads to the directory that was taken: a volume can be moved away under its mount, and another volume begun in its
  // place, with an index of its own. The caller must then write nothing by that path.
  Status check_in_place() const;
  bool has_data() const;
  uint64_t data_bytes() const;

  enum class Close : uint8_t {
    kUnclean,   // no mark
    kUnproved,  // marked, but the file was too large for a checksum
    kProved,    // marked, and the file has not changed
  };
  // Reads and removes the mark of a clean close, durably. Call before anything else is done to the data. kCorrupt: the data
  // has changed since the close.
  Result<Close> consume_clean_mark();
  // Call after the environment is closed.
  Status mark_clean() const;

  // Moves the whole content to "<path>.damaged", replacing what is there, and starts over with an empty directory.
  Status set_aside();
  // Removes the data.
  Status clear();

  // For a rebuild: the directory in which it is built; removing that directory; noting that the rebuilt file replaced the damaged one.
  std::string rebuilt_path() const { return path_ + "/rebuild.tmp"; }
  Status remove_rebuilt() const;
  Status rebuilt() const;

 private:
  IndexDirectory(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  std::string path_;
  int lock_fd_ = -1;
};

}  // namespace kvcachefs
