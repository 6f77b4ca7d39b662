#include "fs/negotiate.h"

#include <cerrno>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "fs/driver.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

constexpr unsigned kRequestBytes = 1 << 20;  // fs.fuse.max_pages_limit is 256 pages by default
constexpr unsigned kMaxBackground = 1024;    // RELEASE is a background request: it must not queue behind writes

// Capabilities as 64 bits: libfuse >= 3.17 has more than 32 of them and functions to set them.
class Capabilities {
 public:
  explicit Capabilities(fuse_conn_info* connection) : connection_(connection) {}
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)
  bool want(uint64_t capability) { return fuse_set_feature_flag(connection_, capability); }
  void refuse(uint64_t capability) { fuse_unset_feature_flag(connection_, capability); }
#else
  bool want(uint64_t capability) {
    if (!(connection_->capable & capability)) return false;
    connection_->want |= static_cast<unsigned>(capability);
    return true;
  }
  void refuse(uint64_t capability) { connection_->want &= ~static_cast<unsigned>(capability); }
#endif

 private:
  fuse_conn_info* connection_;
};

// Called at the first open of a file: no earlier call tells that the kernel will refuse.
void passthrough_refused(Driver& driver, bool in_memory, int error) {
  driver.store->backing_refused(in_memory);
  const std::string what = in_memory ? "of chunks in RAM" : "of chunks on this volume";
  driver.add_lost_feature(fmt::format("passthrough {} (the kernel refuses: {}); ", what, std::strerror(error)));
  log::warn("the kernel takes no backing file for passthrough {}: {}{}; they go through the daemon", what, std::strerror(error),
            error == ELOOP ? " (the volume lies on file systems stacked too high, as of overlayfs on overlayfs)" : "");
}

}  // namespace

void negotiate(void* userdata, fuse_conn_info* connection) {
  Driver& driver = *static_cast<Driver*>(userdata);
  Capabilities capabilities(connection);
  // Never splice: replies by splice reach a fifth of the rate of writev, and libfuse >= 3.17 turns it on by itself.
  for (uint64_t splice : {FUSE_CAP_SPLICE_READ, FUSE_CAP_SPLICE_WRITE, FUSE_CAP_SPLICE_MOVE}) capabilities.refuse(splice);
  // Never the write-back cache: the slowest way of all, appends become random writes, and it excludes passthrough.
  capabilities.refuse(FUSE_CAP_WRITEBACK_CACHE);
  // The kernel would keep locks by nodeid, and one file can have two (passthrough.h).
  capabilities.want(FUSE_CAP_POSIX_LOCKS);
  capabilities.want(FUSE_CAP_FLOCK_LOCKS);
  capabilities.want(FUSE_CAP_ASYNC_READ);
  capabilities.want(FUSE_CAP_ASYNC_DIO);        // several requests of one O_DIRECT read at once; off costs half of it
  capabilities.want(FUSE_CAP_ATOMIC_O_TRUNC);   // O_TRUNC comes with the open: a second writer can be told ESTALE
  capabilities.want(FUSE_CAP_PARALLEL_DIROPS);
  capabilities.want(FUSE_CAP_READDIRPLUS);
  capabilities.want(FUSE_CAP_READDIRPLUS_AUTO);  // if READDIRPLUS were always used, plain listings would be 13 times slower
  capabilities.want(FUSE_CAP_CACHE_SYMLINKS);
  capabilities.want(FUSE_CAP_EXPORT_SUPPORT);  // lookups by nodeid: file handles stay valid after the kernel has forgotten the nodeid
  // The daemon drops set-id bits if libfuse tells it when; otherwise the kernel drops them, and asks for security.capability before
  // every write.
  capabilities.refuse(FUSE_CAP_HANDLE_KILLPRIV);
#ifdef FUSE_CAP_HANDLE_KILLPRIV_V2
  if (kTellsOfPrivileges<fuse_file_info>) capabilities.want(FUSE_CAP_HANDLE_KILLPRIV_V2);
  else capabilities.refuse(FUSE_CAP_HANDLE_KILLPRIV_V2);
#endif
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
  // Without this, a file opened with FOPEN_DIRECT_IO cannot be mapped shared: then buffered opens go through the page cache.
  driver.direct_io_mmap = capabilities.want(FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
#endif
  driver.passthrough.set_epoch(driver.store->status().epoch);
#ifdef FUSE_CAP_PASSTHROUGH
  if (driver.options.store.passthrough && capabilities.want(FUSE_CAP_PASSTHROUGH)) {
    // The number of file systems that may lie below the files that are passed through. Each one reduces the number that may be stacked on the
    // mount, of two in all: at 1, overlayfs could not use the mount as a layer.
    connection->max_backing_stack_depth = driver.volume_is_stacked ? 1 : 0;
    const StoreStatus status = driver.store->status();
    driver.passthrough.enable(driver.session, {[store = driver.store](ObjectId object) { return store->backing_file(object); },
                                               [store = driver.store](ObjectId object) { return store->stat(object); }},
                              status.epoch, status.network_volume,
                              [&driver](bool in_memory, int error) { passthrough_refused(driver, in_memory, error); });
    if (Status memory_files = driver.store->expect_passthrough(); !memory_files)
      driver.add_lost_feature(fmt::format("passthrough of big chunks in RAM ({}); ", memory_files.error().message));
  }
#endif
#ifdef FUSE_CAP_OVER_IO_URING
  if (driver.ring_used() && !fuse_get_feature_flag(connection, FUSE_CAP_OVER_IO_URING)) {
    const std::string_view state = "off: the kernel does not offer it for this mount";
    driver.set_ring(false, state);
    driver.add_lost_feature(fmt::format("FUSE over io_uring ({}); ", state));
  }
#endif
  connection->max_write = kRequestBytes;
  connection->max_readahead = kReadAheadBytes;
  connection->max_background = kMaxBackground;
  connection->congestion_threshold = kMaxBackground * 3 / 4;
  connection->time_gran = 1;

  if (!driver.direct_io_mmap) driver.add_lost_feature("mmap of files opened for direct I/O (Linux 6.6, libfuse 3.17); ");
  if (!driver.passthrough.enabled() && driver.options.passthrough != Switch::kOff)
    driver.add_lost_feature("passthrough (Linux 6.9, libfuse 3.17, root); ");
}

}  // namespace kvcachefs
