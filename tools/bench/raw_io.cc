#include "tools/bench/raw_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <liburing.h>

#include "store/base/unique_fd.h"
#include "store/base/units.h"
#include "tools/load/cpu_time.h"
#include "tools/load/mount_status.h"
#include "tools/load/payload.h"

namespace kvcachefs {
namespace {

constexpr unsigned kDepth = 8;
constexpr size_t kRequestBytes = kMiB;

class Ring {
 public:
  Ring() = default;
  ~Ring() {
    if (live_) ::io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Registers the buffer if the memory lock limit permits; otherwise each request pins its pages.
  Status open(std::span<std::byte> buffer) {
    const int failed = ::io_uring_queue_init(kDepth, &ring_, 0);
    if (failed < 0) return fail_errno(-failed, "io_uring_queue_init (is kernel.io_uring_disabled set?)");
    live_ = true;
    const iovec whole = {buffer.data(), buffer.size()};
    fixed_ = ::io_uring_register_buffers(&ring_, &whole, 1) == 0;
    return {};
  }

  Status transfer(int fd, std::span<std::byte> buffer, bool write);

 private:
  Status submit(int fd, std::span<std::byte> buffer, size_t offset, bool write);
  Status reap(bool write);

  io_uring ring_ = {};
  bool live_ = false;
  bool fixed_ = false;
  unsigned in_flight_ = 0;
};

Status Ring::submit(int fd, std::span<std::byte> buffer, size_t offset, bool write) {
  io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
  if (entry == nullptr) return fail(Code::kIo, "io_uring: no free submission entry");
  std::byte* at = buffer.data() + offset;
  const auto length = static_cast<unsigned>(kRequestBytes);
  if (fixed_) {
    write ? ::io_uring_prep_write_fixed(entry, fd, at, length, offset, 0)
          : ::io_uring_prep_read_fixed(entry, fd, at, length, offset, 0);
  } else {
    write ? ::io_uring_prep_write(entry, fd, at, length, offset) : ::io_uring_prep_read(entry, fd, at, length, offset);
  }
  return {};
}

Status Ring::reap(bool write) {
  io_uring_cqe* completion = nullptr;
  int waited = 0;
  do {
    waited = ::io_uring_submit_and_wait(&ring_, 1);
  } while (waited == -EINTR);
  if (waited < 0) return fail_errno(-waited, "io_uring_submit_and_wait");
  while (::io_uring_peek_cqe(&ring_, &completion) == 0) {
    const int result = completion->res;
    ::io_uring_cqe_seen(&ring_, completion);
    --in_flight_;
    if (result < 0) return fail_errno(-result, write ? "raw write" : "raw read");
    if (static_cast<size_t>(result) != kRequestBytes) return fail(Code::kIo, "raw: a short transfer");
  }
  return {};
}

// After an error, requests in flight end with the ring, before the buffer is freed.
Status Ring::transfer(int fd, std::span<std::byte> buffer, bool write) {
  for (size_t offset = 0; offset < buffer.size() || in_flight_ > 0;) {
    for (; offset < buffer.size() && in_flight_ < kDepth; offset += kRequestBytes, ++in_flight_) {
      KVC_TRY(submit(fd, buffer, offset, write));
    }
    KVC_TRY(reap(write));
  }
  return {};
}

Result<UniqueFd> open_scratch(const std::string& directory) {
  UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600));
  if (fd.valid()) return fd;
  std::string name = directory + "/.kvcachefs-raw-XXXXXX";
  if (!UniqueFd(::mkostemp(name.data(), O_CLOEXEC)).valid()) return fail_errno(errno, directory + ": create a file");
  // Opens separately: if the file system refuses O_DIRECT at creation, the file is left behind.
  fd = UniqueFd(::open(name.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  const int failed = errno;
  ::unlink(name.c_str());
  if (!fd.valid()) return fail_errno(failed, directory + ": open a new file with O_DIRECT");
  return fd;
}

// Measures rate and CPU of one direction.
Status timed(Ring& ring, int fd, std::span<std::byte> buffer, bool write, double& gib_s, double& cpu_s_per_gib) {
  const double gib = static_cast<double>(buffer.size()) / static_cast<double>(kGiB);
  const double cpu = thread_cpu_s();
  const double start = monotonic_s();
  KVC_TRY(ring.transfer(fd, buffer, write));
  gib_s = gib / (monotonic_s() - start);
  cpu_s_per_gib = (thread_cpu_s() - cpu) / gib;
  return {};
}

}  // namespace

Result<RawRates> measure_raw(const std::string& directory, std::span<std::byte> buffer) {
  KVC_ASSIGN(const UniqueFd fd, open_scratch(directory));
  const Payload payload(hash_name(directory));
  payload.fill(buffer);
  RawRates rates;
  Status done = [&]() -> Status {
    Ring ring;
    KVC_TRY(ring.open(buffer));
    KVC_TRY(timed(ring, fd.get(), buffer, true, rates.write_gib_s, rates.write_cpu_s_per_gib));
    // Without this, reads could be served from the device's write-back.
    if (::fdatasync(fd.get()) != 0) return fail_errno(errno, "fdatasync");
    std::memset(buffer.data(), 0, buffer.size());
    return timed(ring, fd.get(), buffer, false, rates.read_gib_s, rates.read_cpu_s_per_gib);
  }();
  if (!done) return std::unexpected(std::move(done).error().at("raw file in " + directory));
  if (const auto wrong = payload.first_mismatch(buffer)) {
    return fail(Code::kCorrupt, "raw file in " + directory + ": wrong byte at offset " + std::to_string(*wrong));
  }
  return rates;
}

Result<std::string> raw_directory(const std::string& directory, const std::string& volume_option) {
  const auto mount = read_mount_status(directory);
  if (!mount) return directory;
  const std::string volume = volume_option.empty() ? mount->volume : volume_option;
  if (volume.empty()) {
    return fail(Code::kInvalid, mount->root + ": its volume is not known; name it by --volume");
  }
  // Use a directory beside the volume, not in it, if it is on the same file system and writable.
  const std::string above = std::filesystem::path(volume).parent_path().string();
  struct stat inside, outside;
  if (::stat(volume.c_str(), &inside) != 0) return fail_errno(errno, volume + ": stat");
  const bool beside = ::stat(above.c_str(), &outside) == 0 && inside.st_dev == outside.st_dev;
  return beside && ::access(above.c_str(), W_OK) == 0 ? above : volume;
}

}  // namespace kvcachefs
