// A file of a PosixVolume.
#pragma once

#include <string>

#include "store/base/unique_fd.h"
#include "store/volume/volume.h"

struct stat;

namespace kvcachefs {

FileInfo to_file_info(const struct stat& attributes);

class PosixFile final : public File {
 public:
  // `path` is for messages and includes the volume's root. `direct`: the descriptor was opened with O_DIRECT.
  PosixFile(UniqueFd fd, std::string path, bool direct) : path_(std::move(path)), fd_(std::move(fd)), direct_(direct) {}

  const std::string& path() const override { return path_; }
  Result<size_t> read(std::span<std::byte> into, uint64_t offset) override;
  Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) override;
  Status sync_data() override;
  Status truncate(uint64_t size_bytes) override;
  Status allocate(uint64_t offset, uint64_t length) override;
  Status punch(uint64_t offset, uint64_t length) override;
  void will_need(uint64_t offset, uint64_t length) override;
  Result<FileInfo> info() override;
  Result<uint64_t> next_data(uint64_t offset) override;
  Result<uint64_t> next_hole(uint64_t offset) override;
  Result<uint64_t> allocated_in(uint64_t offset, uint64_t length) override;
  bool is_direct() const override { return direct_; }
  int descriptor() const override { return fd_.get(); }

 private:
  Status change_allocation(int mode, const char* verb, uint64_t offset, uint64_t length);
  Result<uint64_t> seek(uint64_t offset, int whence, const char* what);

  std::string path_;
  UniqueFd fd_;
  bool direct_;
};

}  // namespace kvcachefs
