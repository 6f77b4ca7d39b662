#include "store/volume/sim_file.h"

#include <algorithm>
#include <cerrno>
#include <limits>

namespace kvcachefs {

namespace {
constexpr uint64_t kMaxFileBytes = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}  // namespace

FileInfo to_file_info(const SimInode& inode, uint64_t id) {
  return {.size_bytes = inode.content.size(),
          .allocated_bytes = inode.content.allocated_bytes(),
          .mtime_ns = inode.mtime_ns,
          .is_directory = inode.is_directory,
          .file_id = id};
}

Status SimFile::check_range(const char* verb, uint64_t offset, uint64_t length) const {
  if (offset > kMaxFileBytes || length > kMaxFileBytes - offset)
    return fail(Code::kTooBig, where(verb, offset, length) + ": past the largest offset");
  return {};
}

std::string transfer_text(const std::string& path, const char* verb, uint64_t offset, uint64_t length) {
  return path + ": " + verb + " of " + std::to_string(length) + " bytes at " + std::to_string(offset);
}

Status check_aligned(const std::string& path, const char* verb, std::span<const std::byte> memory, uint64_t offset) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  if (memory.empty() || ((offset | memory.size() | address) % kBlockBytes) == 0) return {};
  return fail(Code::kInvalid,
              transfer_text(path, verb, offset, memory.size()) + ": not aligned to 4096 bytes, but the file is open for direct I/O");
}

Result<size_t> SimFile::read(std::span<std::byte> into, uint64_t offset) {
  KVC_TRY(check_range("read", offset, into.size()));
  KVC_TRY(check_aligned("read", into, offset));
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, where("read", offset, into.size()));
  return core_->state.inode(inode_).content.read(into, offset);
}

Status SimFile::write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) {
  Bytes data;
  bool aligned = true;
  for (const auto piece : pieces) {
    aligned = aligned && check_aligned("write", piece, offset + data.size());
    data.insert(data.end(), piece.begin(), piece.end());
  }
  const std::string place = where("write", offset, data.size());
  KVC_TRY(check_range("write", offset, data.size()));
  if (!aligned) return fail(Code::kInvalid, place + ": not aligned to 4096 bytes, but the file is open for direct I/O");
  const std::lock_guard lock(core_->mutex);
  const auto verdict = core_->begin_mutating();
  if (verdict == SimCore::Verdict::kFail) return fail_errno(EIO, place);
  if (!writable_) return fail_errno(EBADF, place);
  if (verdict == SimCore::Verdict::kTorn) data.resize(std::min(data.size(), static_cast<size_t>(core_->torn_bytes)));
  if (const auto written = core_->state.write(inode_, offset, std::move(data)); !written)
    return fail_errno(written.error(), place);
  if (verdict == SimCore::Verdict::kTorn) return fail_errno(EIO, place);
  return {};
}

Status SimFile::sync_data() {
  const std::lock_guard lock(core_->mutex);
  if (!core_->may_mutate()) return fail_errno(EIO, path_ + ": sync");
  core_->state.sync(inode_);
  return {};
}

Status SimFile::truncate(uint64_t size_bytes) {
  const std::string place = path_ + ": truncate to " + std::to_string(size_bytes) + " bytes";
  const std::lock_guard lock(core_->mutex);
  if (!core_->may_mutate()) return fail_errno(EIO, place);
  if (!writable_ || size_bytes > kMaxFileBytes) return fail_errno(EINVAL, place);
  core_->state.truncate(inode_, size_bytes);
  return {};
}

Status SimFile::allocate(uint64_t offset, uint64_t length) {
  if (length == 0) return {};
  KVC_TRY(check_range("allocate", offset, length));
  const std::lock_guard lock(core_->mutex);
  const std::string place = where("allocate", offset, length);
  if (!core_->may_mutate()) return fail_errno(EIO, place);
  if (!writable_) return fail_errno(EBADF, place);
  if (!core_->options.punch_hole) return fail_errno(EOPNOTSUPP, place);
  if (const auto done = core_->state.allocate(inode_, offset, length); !done) return fail_errno(done.error(), place);
  return {};
}

Status SimFile::punch(uint64_t offset, uint64_t length) {
  if (length == 0) return {};
  KVC_TRY(check_range("punch", offset, length));
  const std::lock_guard lock(core_->mutex);
  const std::string place = where("punch", offset, length);
  if (!core_->may_mutate()) return fail_errno(EIO, place);
  if (!writable_) return fail_errno(EBADF, place);
  if (!core_->options.punch_hole) return fail_errno(EOPNOTSUPP, place);
  core_->state.punch(inode_, offset, length);
  return {};
}

Result<FileInfo> SimFile::info() {
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, path_ + ": fstat");
  return to_file_info(core_->state.inode(inode_), inode_);
}

Result<uint64_t> SimFile::next_data(uint64_t offset) {
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, path_ + ": seek");
  const auto found = core_->state.inode(inode_).content.next_data(offset);
  if (!found) return fail(Code::kNoData, path_ + ": no data at or after " + std::to_string(offset));
  return *found;
}

Result<uint64_t> SimFile::allocated_in(uint64_t offset, uint64_t length) {
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, path_ + ": fiemap");
  return length - std::min(length, core_->state.inode(inode_).content.missing_bytes(offset, length));
}

Result<uint64_t> SimFile::next_hole(uint64_t offset) {
  const std::lock_guard lock(core_->mutex);
  if (!core_->alive()) return fail_errno(EIO, path_ + ": seek");
  const auto found = core_->state.inode(inode_).content.next_hole(offset);
  if (!found) return fail(Code::kNoData, path_ + ": no hole at or after " + std::to_string(offset));
  return *found;
}

}  // namespace kvcachefs
