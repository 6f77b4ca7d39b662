// The writing half of ChunkIo.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "store/base/unique_fd.h"
#include "store/base/units.h"
#include "tools/load/bus_guard.h"
#include "tools/load/chunk_io.h"
#include "tools/load/payload.h"

namespace kvcachefs {
namespace {

constexpr mode_t kFileMode = 0644;

Status write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (put < 0) return fail_errno(errno, path + ": write");
    if (put == 0) return fail(Code::kIo, path + ": write took no bytes");
    done += static_cast<size_t>(put);
  }
  return {};
}

Status close_checked(UniqueFd& fd, const std::string& path) {
  if (fd.close() != 0) return fail_errno(errno, path + ": close");
  return {};
}

Result<UniqueFd> create(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), O_CREAT | O_CLOEXEC | flags, kFileMode));
  if (fd.valid()) return fd;
  if (errno == EINVAL && (flags & O_DIRECT) != 0) {
    return fail_errno(errno,
                      path + ": create with O_DIRECT (this file system does not take it: leave out --style odirect)");
  }
  return fail_errno(errno, path + ": create");
}

Status rename_to(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return fail_errno(errno, from + ": rename to " + to);
  return {};
}

}  // namespace

ChunkIo::ChunkIo(std::string root, AccessStyle style, unsigned writer)
    : root_(std::move(root)), style_(style), writer_(writer) {
  if (!root_.ends_with('/')) root_ += '/';
}

Status make_parent_directories(const std::string& root, const std::string& path) {
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string directory = root + path.substr(0, slash);
    if (::mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) return fail_errno(errno, directory + ": mkdir");
  }
  return {};
}

std::string ChunkIo::temp_name(const ChunkName& name) {
  const uint64_t unique = mix64((writer_ << 32) + ++sequence_);
  switch (style_) {
    case AccessStyle::kVllm:  // the random part stays the same for the life of a thread
      return full(name.path.substr(0, name.path.size() - 4)) + fmt::format("_{:08x}.tmp", mix64(writer_) >> 32);
    case AccessStyle::kLmcacheGds: return full(name.path) + fmt::format(".tmp{:08x}", unique >> 32);
    case AccessStyle::kSglang: return full(fmt::format(".{:016x}{:016x}.tmp", unique, mix64(unique)));
    default: return full(name.path) + fmt::format(".tmp.{:x}", unique);
  }
}

Result<bool> ChunkIo::store(const ChunkName& name, std::span<const std::byte> content) {
  const std::string path = full(name.path);
  const std::string temp = temp_name(name);
  if (style_ == AccessStyle::kLmcacheGds) KVC_TRY(make_parent_directories(root_, name.path));
  // vLLM checks again right before it writes.
  if (style_ == AccessStyle::kVllm && ::access(path.c_str(), F_OK) == 0) return false;
  auto write_temp = [&]() -> Status {
    if (style_ == AccessStyle::kMmap) return store_by_mmap(temp, content, O_CREAT | O_EXCL);
    if (style_ == AccessStyle::kLmcacheGds) return store_lmcache_gds(temp, content);
    return store_by_write(temp, content);
  };
  Status written = write_temp();
  if (!written && written.error().code == Code::kNotFound) {
    KVC_TRY(make_parent_directories(root_, name.path));
    written = write_temp();
  }
  if (written) written = rename_to(temp, path);
  if (!written) {
    ::unlink(temp.c_str());
    return std::unexpected(std::move(written).error());
  }
  if (!name.sidecar.empty()) KVC_TRY(store_sidecar(name, content.first(kSidecarBytes)));
  return true;
}

Status ChunkIo::store_by_write(const std::string& temp, std::span<const std::byte> content) const {
  const int flags = O_WRONLY | O_EXCL | O_TRUNC | (style_ == AccessStyle::kOdirect ? O_DIRECT : 0);
  KVC_ASSIGN(UniqueFd fd, create(temp, flags));
  if (style_ != AccessStyle::kSglang) {
    KVC_TRY(write_all(fd.get(), content, temp));
    return close_checked(fd, temp);
  }
  // As numpy.tofile does: a duplicated descriptor, two writes, two closes.
  UniqueFd duplicate(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate.valid()) return fail_errno(errno, temp + ": dup");
  const size_t first = std::min<size_t>(content.size(), kBlockBytes);
  KVC_TRY(write_all(duplicate.get(), content.first(first), temp));
  KVC_TRY(write_all(duplicate.get(), content.subspan(first), temp));
  KVC_TRY(close_checked(duplicate, temp));
  return close_checked(fd, temp);
}

Status ChunkIo::store_by_mmap(const std::string& temp, std::span<const std::byte> content, int create_flags) const {
  UniqueFd fd(::open(temp.c_str(), O_RDWR | O_CLOEXEC | create_flags, kFileMode));
  if (!fd.valid()) return fail_errno(errno, temp + ": open for writing");
  if (::ftruncate(fd.get(), static_cast<off_t>(content.size())) != 0) return fail_errno(errno, temp + ": ftruncate");
  void* memory = ::mmap(nullptr, content.size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return fail_errno(errno, temp + ": mmap for writing");
  const Status closed = close_checked(fd, temp);
  const bool copied = survives_bus_error([&] { std::memcpy(memory, content.data(), content.size()); });
  ::munmap(memory, content.size());
  if (!copied) return fail_errno(ENOSPC, temp + ": write to the mapping (SIGBUS: most likely the disk is full)");
  return closed;
}

// Writes the header through one open and the rest through another, as LMCache's POSIX path does.
Status ChunkIo::store_lmcache_gds(const std::string& temp, std::span<const std::byte> content) const {
  KVC_ASSIGN(UniqueFd fd, create(temp, O_WRONLY | O_TRUNC));
  KVC_TRY(write_all(fd.get(), content.first(kSidecarBytes), temp));
  KVC_TRY(close_checked(fd, temp));
  return store_by_mmap(temp, content, 0);
}

Status ChunkIo::store_sidecar(const ChunkName& name, std::span<const std::byte> header) {
  const std::string path = full(name.sidecar);
  const std::string temp = path + fmt::format(".tmp{:08x}", mix64((writer_ << 32) + ++sequence_) >> 32);
  Status written = [&]() -> Status {
    KVC_ASSIGN(UniqueFd fd, create(temp, O_WRONLY | O_TRUNC));
    KVC_TRY(write_all(fd.get(), header, temp));
    KVC_TRY(close_checked(fd, temp));
    return rename_to(temp, path);
  }();
  if (!written) ::unlink(temp.c_str());
  return written;
}

}  // namespace kvcachefs
