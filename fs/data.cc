// Requests about bytes.
#include <linux/falloc.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "fs/after_answer.h"
#include "fs/driver.h"
#include "fs/open_guards.h"

namespace kvcachefs {

namespace {

// Replies to an open that store and passthrough have accepted.
void answer_open(const Request& request, fuse_ino_t node, fuse_file_info file, const Passthrough::Decision& decision, Accepted accepted,
                 Counted counted, HeldNode held, bool direct) {
  Driver& driver = driver_of(request);
  set_open_flags(driver, file, accepted.get());
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 16)
  if (decision.backing_id > 0) {
    file.backing_id = decision.backing_id;
    file.fh |= kPassedThroughBit;
    file.direct_io = decision.by_daemon;
    file.keep_cache = 0;
    if (!decision.by_daemon) driver.store->count_passthrough_open(object_of(request, node), direct, decision.in_memory);
  }
#endif
  counted.stays();
  Handle* const handle = accepted.take();
  if (fuse_reply_open(request, &file) == -ENOENT) {  // the request was aborted: no RELEASE will come
    driver.passthrough.release(ObjectId{node}, decision.backing_id > 0);
    held.end();
    driver.store->release(handle);
  }
  held.stays();
}

// Answers ESTALE, so that the kernel looks the name up again. Returns false, without an answer, if the kernel did that already or if the path
// has no name (/proc/self/fd/3).
bool told_to_look_again(const Request& request, const OpenRequest& how, ObjectId file = {}) {
  if (!driver_of(request).store->told_stale(how, caller_of(request), file)) return false;
  fuse_reply_err(request, ESTALE);
  return true;
}

// Another node has changed the file a moment ago, and the kernel may have its former size. This drops the attributes only, and takes no lock of the inode.
void forget_former_attributes(Driver& driver, fuse_ino_t node, const Handle* opened) {
  if (driver.store->changed_lately(opened)) fuse_lowlevel_notify_inval_inode(driver.session, node, -1, 0);
}

// Opens what the nodeid shows: of another node's file that is open, the state that is open, which may change meanwhile.
Result<Handle*> open_shown(const Request& request, fuse_ino_t node, const OpenRequest& how, HeldNode& held) {
  Driver& driver = driver_of(request);
  std::vector<Accepted> earlier;  // until the end: what a repeated lookup found stays open, so that the open is not answered ESTALE twice
  while (true) {
    const ObjectId shown = object_of(request, node);
    OpenRequest asked = how;
    asked.again = !how.truncate && (!earlier.empty() || shown != driver.passthrough.file_of(ObjectId{node}));
    Result<Handle*> opened = driver.store->open(shown, asked, caller_of(request));
    const bool is_gone = !opened && asked.again && opened.error().code == Code::kNotFound;
    if (is_gone && object_of(request, node) != shown) continue;  // the others closed it in this moment: the nodeid shows another state
    if (!opened && (!is_gone || earlier.empty())) return opened;
    Accepted accepted(opened ? Accepted(*driver.store, *opened) : std::move(earlier.back()));  // its node has removed the file: what was opened is the last state
    if (is_gone) earlier.pop_back();
    const PeerState state = driver.store->peer_state(accepted.get());
    if (!state) return accepted.take();
    if (!driver.passthrough.hold(ObjectId{node}, state, /*is_last=*/is_gone)) {  // its node changed the file in this moment
      if (is_gone) return opened;
      earlier.push_back(std::move(accepted));
      continue;
    }
    held = HeldNode(driver.passthrough, ObjectId{node});
    forget_former_attributes(driver, node, accepted.get());
    return accepted.take();
  }
}

void open_to_write(const Request& request, fuse_ino_t node, const fuse_file_info& file, const OpenRequest& how) {
  Driver& driver = driver_of(request);
  const ObjectId file_id = driver.passthrough.file_of(ObjectId{node});
  if (!how.truncate && object_of(request, node) != file_id && told_to_look_again(request, how, file_id)) return;
  driver.passthrough.open(ObjectId{node}, Passthrough::Access::kWrite, [&driver, request, node, file, how](Passthrough::Decision decision) {
    run_handler(request, [&] {
      // If the kernel cannot look a name up again, it finds no other nodeid. Example: a program that is being executed.
      if (decision.stale) return void(told_to_look_again(request, how) || fuse_reply_err(request, ETXTBSY));
      Counted counted(driver.passthrough, ObjectId{node}, decision);
      HeldNode held;
      auto handle = open_shown(request, node, how, held);
      if (!handle) return reply_error(request, handle.error());
      Accepted accepted(*driver.store, *handle);
      if (how.truncate && drops_privileges(file)) drop_privileges(request, node, accepted.get());
      answer_open(request, node, file, decision, std::move(accepted), std::move(counted), std::move(held), how.direct);
    });
  });
}

void open_to_read(const Request& request, fuse_ino_t node, const fuse_file_info& file, const OpenRequest& how) {
  Driver& driver = driver_of(request);
  if (driver.passthrough.is_outdated(ObjectId{node}) && told_to_look_again(request, how, driver.passthrough.file_of(ObjectId{node}))) return;
  HeldNode held;
  auto handle = open_shown(request, node, how, held);
  if (!handle) return reply_error(request, handle.error());
  Handle* const opened = *handle;
  auto answer = [&driver, request, node, file, accepted = Accepted(*driver.store, opened), held = std::move(held), direct = how.direct]() mutable {
    run_handler(request, [&] {
      const auto access = direct ? Passthrough::Access::kReadDirect : Passthrough::Access::kRead;
      driver.passthrough.open(ObjectId{node}, access,
                              [&driver, request, node, file, accepted = std::move(accepted), held = std::move(held), direct](Passthrough::Decision decision) mutable {
                                run_handler(request, [&] {
                                  Counted counted(driver.passthrough, ObjectId{node}, decision);
                                  answer_open(request, node, file, decision, std::move(accepted), std::move(counted), std::move(held), direct);
                                });
                              });
    });
  };
  if (!driver.passthrough.enabled() || how.direct) return answer();  // O_DIRECT readers do not map
  driver.store->await_loads(opened, std::move(answer));
}

void open(const Request& request, fuse_ino_t node, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  const ReadAheadAfterAnswer later(*driver.store);
  OpenRequest how = open_request_of(file->flags);
  how.truncate = file->flags & O_TRUNC;
  if (how.write || how.truncate) return open_to_write(request, node, *file, how);
  const ObjectId object = object_of(request, node);
  if (!object.is_foreign()) return open_to_read(request, node, *file, how);
  driver.store->await_catching_up(object, [request, node, file = *file, how] {
    run_handler(request, [&] { open_to_read(request, node, file, how); });
  });
}

void release(const Request& request, fuse_ino_t node, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  Handle* handle = handle_of(file);
  driver.locks.table.released(driver.store->lock_identity(handle), file->fh);
  driver.passthrough.release(ObjectId{node}, file->fh & kPassedThroughBit);
  if (driver.store->peer_state(handle)) driver.passthrough.let_go(ObjectId{node});
  driver.store->release(handle);
  fuse_reply_err(request, 0);
}

void read(const Request& request, fuse_ino_t, size_t size, off_t offset, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  const ReadAheadAfterAnswer later(*driver.store);
  // A read() of a directly read file carries its lock owner; a READ that fills pages of a mapping carries none.
  if (driver.direct_io_mmap && !(file->flags & O_DIRECT) && file->lock_owner == 0) driver.store->note_mapped_read(handle_of(file));
  driver.store->read(handle_of(file), static_cast<uint64_t>(offset), size, [request](Result<ReadReply> reply) {
    if (!reply) return reply_error(request, reply.error());
    // Copied by the kernel straight from the pool: splicing and bounce buffers are several times slower.
    fuse_reply_iov(request, reply->pieces.data(), static_cast<int>(reply->pieces.size()));
  });
}

// O_SYNC, O_DSYNC, RWF_SYNC, RWF_DSYNC, a mount with `sync`: the kernel puts all of them into the flags of the write. In page-cache mode
// it sends FSYNC after the write; for a file opened with FOPEN_DIRECT_IO it sends none.
bool is_to_be_synced(const fuse_file_info& file) {
  return (file.flags & (O_SYNC | O_DSYNC)) && !file.writepage && !(file.fh & kKernelSyncsBit);
}

void write(const Request& request, fuse_ino_t node, const char* bytes, size_t size, off_t offset, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  if (drops_privileges(*file)) drop_privileges(request, node, handle_of(file));
  if (file->writepage) driver.store->note_page_written(handle_of(file));
  driver.store->note_writer(handle_of(file), file->writepage ? 0 : file->lock_owner);
  driver.store->write(handle_of(file), static_cast<uint64_t>(offset), {reinterpret_cast<const std::byte*>(bytes), size},
                      [request, handle = handle_of(file), sync = is_to_be_synced(*file)](Result<size_t> written) {
                        if (!written) return reply_error(request, written.error());
                        if (sync) return reply_written_and_synced(request, handle, *written);
                        fuse_reply_write(request, *written);
                      },
                      file->writepage ? WriteOf::kPages : WriteOf::kCall);
}

void flush(const Request& request, fuse_ino_t, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  driver.locks.table.flushed(driver.store->lock_identity(handle_of(file)), file->fh, file->lock_owner);
  if (driver.store->is_left_to_writer(handle_of(file), file->lock_owner)) return void(fuse_reply_err(request, 0));
  driver.store->flush(handle_of(file), replying(request));
}

void fsync(const Request& request, fuse_ino_t, int, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  driver.store->fsync(handle_of(file), replying(request));
}

void allocate(const Request& request, fuse_ino_t node, int mode, off_t offset, off_t length, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  Store::AllocateMode how;
  switch (mode) {
    case 0: how = Store::AllocateMode::kExtend; break;
    case FALLOC_FL_KEEP_SIZE: how = Store::AllocateMode::kKeepSize; break;
    case FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE: how = Store::AllocateMode::kPunchHole; break;
    case FALLOC_FL_ZERO_RANGE: how = Store::AllocateMode::kZeroRange; break;
    case FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE: how = Store::AllocateMode::kZeroRangeKeepSize; break;
    default: return void(fuse_reply_err(request, EOPNOTSUPP));
  }
  drop_privileges_of(request, node, file);
  driver.store->allocate(handle_of(file), how, static_cast<uint64_t>(offset), static_cast<uint64_t>(length), replying(request));
}

void seek(const Request& request, fuse_ino_t, off_t offset, int whence, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  if (offset < 0) return void(fuse_reply_err(request, ENXIO));
  if (whence != SEEK_DATA && whence != SEEK_HOLE) return void(fuse_reply_err(request, EINVAL));
  const auto what = whence == SEEK_DATA ? Store::SeekFor::kData : Store::SeekFor::kHole;
  driver.store->seek(handle_of(file), what, static_cast<uint64_t>(offset), [request](Result<uint64_t> found) {
    if (!found) return reply_error(request, found.error());
    fuse_reply_lseek(request, static_cast<off_t>(*found));
  });
}

void control_device(const Request& request, fuse_ino_t, unsigned, void*, fuse_file_info*, unsigned, const void*, size_t, size_t) {
  fuse_reply_err(request, ENOTTY);
}

}  // namespace

void reply_written_and_synced(const Request& request, Handle* handle, size_t count) {
  driver_of(request).store->fsync(handle, [request, count](Status status) {
    if (!status) return reply_error(request, status.error());
    fuse_reply_write(request, count);
  });
}

void drop_privileges(const Request& request, fuse_ino_t node, Handle* handle) {
  Driver& driver = driver_of(request);
  // Invalidates the attributes alone: that takes no lock of the inode, and a write holds it.
  if (driver.store->drop_privileges(handle, groups_of(request))) fuse_lowlevel_notify_inval_inode(driver.session, node, -1, 0);
}

void drop_privileges_of(const Request& request, fuse_ino_t node, fuse_file_info* file) {
  if (!kTellsOfPrivileges<fuse_file_info> || fuse_req_ctx(request)->uid == 0) return;
  drop_privileges(request, node, handle_of(file));
}

OpenRequest open_request_of(int flags) {
  OpenRequest how;
  const int access = flags & O_ACCMODE;
  how.read = access != O_WRONLY;
  how.write = access != O_RDONLY;
  how.direct = flags & O_DIRECT;
  how.append = flags & O_APPEND;
  how.keeps_read_time = flags & O_NOATIME;
  return how;
}

void set_open_flags(Driver& driver, fuse_file_info& file, Handle* handle) {
  file.fh = reinterpret_cast<uint64_t>(handle);
  // Buffered clients bypass the page cache (0.62 of the raw rate, against 0.28 when filling it). O_DIRECT clients use page-cache mode,
  // where their reads and writes bypass the cache anyway and the kernel sends several requests at once.
  file.direct_io = !(file.flags & O_DIRECT) && driver.direct_io_mmap;
  file.keep_cache = 0;
  file.parallel_direct_writes = 1;
  // Closing a descriptor that only reads a chunk sends no FLUSH, which saves a round trip. Record locks end
  // at a close, though: for a file that is locked, or so small that it is likely to be a lock file, each close sends FLUSH.
  file.noflush = (file.flags & O_ACCMODE) == O_RDONLY && driver.store->closes_quietly(handle);
  if (file.noflush) file.fh |= kUnseenCloseBit;
  if (!file.direct_io) file.fh |= kKernelSyncsBit;
  if (file.flags & (O_SYNC | O_DSYNC)) file.fh |= kSyncedBit;
}

void add_data_operations(fuse_lowlevel_ops& operations) {
  operations.open = guarded<open>;
  operations.release = guarded<release>;
  operations.read = guarded<read>;
  operations.write = guarded<write>;
  operations.flush = guarded<flush>;
  operations.fsync = guarded<fsync>;
  operations.fallocate = guarded<allocate>;
  operations.lseek = guarded<seek>;
  operations.ioctl = guarded<control_device>;
}

}  // namespace kvcachefs
