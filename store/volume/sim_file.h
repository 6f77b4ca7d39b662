// A file of a simulated volume.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "store/volume/sim_core.h"
#include "store/volume/volume.h"

namespace kvcachefs {

FileInfo to_file_info(const SimInode& inode, uint64_t id);

// "PATH: read of 4096 bytes at 0", for messages.
std::string transfer_text(const std::string& path, const char* verb, uint64_t offset, uint64_t length);
// The error of the kernel for misaligned requests on a file open for direct I/O.
Status check_aligned(const std::string& path, const char* verb, std::span<const std::byte> memory, uint64_t offset);

class SimFile final : public File {
 public:
  // Caller holds the core's mutex.
  SimFile(SimCorePtr core, uint64_t inode, std::string path, bool writable, bool direct)
      : core_(std::move(core)), path_(std::move(path)), inode_(inode), writable_(writable), direct_(direct) {
    core_->state.open_handle(inode_);
  }
  ~SimFile() override {
    const std::lock_guard lock(core_->mutex);
    core_->state.close_handle(inode_);
  }

  const std::string& path() const override { return path_; }
  Result<size_t> read(std::span<std::byte> into, uint64_t offset) override;
  Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) override;
  Status sync_data() override;
  Status truncate(uint64_t size_bytes) override;
  Status allocate(uint64_t offset, uint64_t length) override;
  Status punch(uint64_t offset, uint64_t length) override;
  void will_need(uint64_t, uint64_t) override {}
  Result<FileInfo> info() override;
  Result<uint64_t> next_data(uint64_t offset) override;
  Result<uint64_t> next_hole(uint64_t offset) override;
  Result<uint64_t> allocated_in(uint64_t offset, uint64_t length) override;
  bool is_direct() const override { return direct_; }
  int descriptor() const override { return -1; }

 private:
  Status check_range(const char* verb, uint64_t offset, uint64_t length) const;
  Status check_aligned(const char* verb, std::span<const std::byte> memory, uint64_t offset) const {
    return direct_ ? kvcachefs::check_aligned(path_, verb, memory, offset) : Status();
  }
  std::string where(const char* verb, uint64_t offset, uint64_t length) const { return transfer_text(path_, verb, offset, length); }

  SimCorePtr core_;
  std::string path_;
  uint64_t inode_;
  bool writable_;
  bool direct_;
};

}  // namespace kvcachefs
