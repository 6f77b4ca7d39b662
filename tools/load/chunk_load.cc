// The reading half of ChunkIo.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
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

std::unexpected<Error> short_file(const std::string& path, uint64_t got, uint64_t expected) {
  return fail(Code::kCorrupt, fmt::format("{}: {} bytes read, {} expected: a short file", path, got, expected));
}

int open_flags(AccessStyle style) { return O_RDONLY | O_CLOEXEC | (style == AccessStyle::kOdirect ? O_DIRECT : 0); }

// Opens the file; none if it does not exist.
Result<UniqueFd> open_existing(const std::string& path, int flags) {
  UniqueFd fd(::open(path.c_str(), flags));
  if (fd.valid() || errno == ENOENT) return fd;
  if (errno == EINVAL && (flags & O_DIRECT) != 0) {
    return fail_errno(errno,
                      path + ": open with O_DIRECT (this file system does not take it: leave out --style odirect)");
  }
  return fail_errno(errno, path + ": open");
}

// Like LMCache, asks for O_NOATIME, which only the owner may use, and falls back to a normal open.
UniqueFd open_noatime(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME));
  return fd.valid() || errno != EPERM ? std::move(fd) : UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

Result<bool> probe_sidecar(const std::string& path, const ChunkName& name) {
  if (::access(path.c_str(), F_OK) != 0) {
    if (errno == ENOENT) return false;
    return fail_errno(errno, path + ": access");
  }
  const UniqueFd fd = open_noatime(path);
  if (!fd.valid()) {
    if (errno == ENOENT) return false;
    return fail_errno(errno, path + ": open");
  }
  std::array<std::byte, kSidecarBytes> header;
  const ssize_t got = ::pread(fd.get(), header.data(), header.size(), 0);
  if (got < 0) return fail_errno(errno, path + ": read");
  if (static_cast<size_t>(got) != header.size()) return short_file(path, static_cast<uint64_t>(got), header.size());
  if (!Payload(name.payload_seed).sample_matches(header)) {
    return fail(Code::kCorrupt, path + ": the sidecar is not the head of its chunk");
  }
  return true;
}

}  // namespace

Result<bool> ChunkIo::probe(const ChunkName& name) const {
  if (!name.sidecar.empty()) return probe_sidecar(full(name.sidecar), name);
  const std::string path = full(name.path);
  if (::access(path.c_str(), F_OK) == 0) return true;
  if (errno == ENOENT) return false;
  return fail_errno(errno, path + ": access");
}

Result<bool> ChunkIo::load(const ChunkName& name, uint64_t bytes, Slot& slot) const {
  const std::string path = full(name.path);
  if (style_ == AccessStyle::kMmap || style_ == AccessStyle::kLmcacheGds) return load_by_mmap(path, name, bytes, slot);
  return load_by_read(path, name, bytes, slot);
}

Result<bool> ChunkIo::load_by_read(const std::string& path, const ChunkName& name, uint64_t bytes, Slot& slot) const {
  KVC_ASSIGN(const UniqueFd fd, open_existing(path, open_flags(style_)));
  if (!fd.valid()) return false;
  // vLLM and SGLang know the size and trust it; the others call fstat.
  if (style_ == AccessStyle::kRead || style_ == AccessStyle::kOdirect) {
    struct stat info;
    if (::fstat(fd.get(), &info) != 0) return fail_errno(errno, path + ": fstat");
    if (static_cast<uint64_t>(info.st_size) != bytes)
      return short_file(path, static_cast<uint64_t>(info.st_size), bytes);
  }
  const size_t ask = style_ == AccessStyle::kOdirect ? align_up(bytes, kBlockBytes) : bytes;
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(fd.get(), slot.buffer().data() + done, ask - done);
    if (got < 0) return fail_errno(errno, path + ": read");
    // vLLM reads only once, and deletes a file after a short read.
    if (got == 0 || (style_ == AccessStyle::kVllm && static_cast<uint64_t>(got) != bytes)) {
      return short_file(path, done + static_cast<uint64_t>(got), bytes);
    }
    done += static_cast<uint64_t>(got);
  }
  slot.hold(name, bytes);
  return true;
}

Result<bool> ChunkIo::load_by_mmap(const std::string& path, const ChunkName& name, uint64_t bytes, Slot& slot) const {
  KVC_ASSIGN(UniqueFd fd, open_existing(path, open_flags(style_)));
  if (!fd.valid()) return false;
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return fail_errno(errno, path + ": fstat");
  if (static_cast<uint64_t>(info.st_size) != bytes) return short_file(path, static_cast<uint64_t>(info.st_size), bytes);
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd.get(), 0);
  if (memory == MAP_FAILED) return fail_errno(errno, path + ": mmap");
  fd.reset();
  if (style_ == AccessStyle::kMmap) {
    slot.hold_mapping(name, memory, bytes);
    return true;
  }
  // LMCache copies from the mapping to the device and then unmaps.
  const bool copied = survives_bus_error([&] { std::memcpy(slot.buffer().data(), memory, bytes); });
  ::munmap(memory, bytes);
  if (!copied) return fail_errno(EIO, path + ": read of the mapping (SIGBUS)");
  slot.hold(name, bytes);
  return true;
}

}  // namespace kvcachefs
