// A file and a lock of a SimClient.
#pragma once

#include <memory>
#include <string>

#include "store/volume/sim_file.h"
#include "store/volume/testing/sim_client.h"

namespace kvcachefs {

class SimClientFile final : public File {
 public:
  SimClientFile(std::shared_ptr<SimClient> client, uint64_t file, std::string path, bool writable, bool direct);
  ~SimClientFile() override;

  const std::string& path() const override { return place_; }
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
  using Kind = VolumeCall::Kind;
  Status begin(Kind kind, const char* verb, uint64_t offset = 0, uint64_t length = 0, bool flush = true);
  Status check_aligned(const char* verb, std::span<const std::byte> memory, uint64_t offset) const {
    return direct_ ? kvcachefs::check_aligned(place_, verb, memory, offset) : Status();
  }
  size_t read_pages(std::span<std::byte> into, uint64_t offset);
  void write_pages(ByteSpan bytes, uint64_t offset);
  Bytes& page(uint64_t index);
  std::string where(const char* verb, uint64_t offset, uint64_t length) const { return transfer_text(place_, verb, offset, length); }

  const std::shared_ptr<SimClient> client_;
  const uint64_t file_, life_;
  const std::string path_, place_;
  const bool writable_, direct_;
};

class SimClientLock final : public VolumeLock {
 public:
  SimClientLock(std::shared_ptr<SimClient> client, uint64_t file, uint64_t owner, FilePtr opened);
  ~SimClientLock() override;
  Status describe(std::string_view holder) override;

 private:
  const std::shared_ptr<SimClient> client_;
  const uint64_t file_, owner_, life_;
  FilePtr opened_;
};

}  // namespace kvcachefs
