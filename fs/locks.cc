#include "fs/locks.h"

#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <limits>

#include "fs/driver.h"
#include "store/base/log.h"
#include "store/base/thread.h"

namespace kvcachefs {

namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

int errno_of(LockTable::Outcome outcome) {
  switch (outcome) {
    case LockTable::Outcome::kGranted: return 0;
    case LockTable::Outcome::kWouldBlock: return EAGAIN;
    case LockTable::Outcome::kInterrupted: return EINTR;
    case LockTable::Outcome::kDeadlock: return EDEADLK;
    case LockTable::Outcome::kTooMany: return ENOLCK;
  }
  return EIO;
}

// The lock identity is the same for all versions of a temporary name, and for all nodeids of an object.
LockTable::Request request_of(Driver& driver, const fuse_file_info* file) {
  LockTable::Request wanted;
  wanted.file = driver.store->lock_identity(handle_of(file));
  wanted.owner = file->lock_owner;
  wanted.handle = file->fh;
  wanted.closes_unseen = file->fh & kUnseenCloseBit;
  return wanted;
}

LockTable::Request request_of(Driver& driver, const fuse_file_info* file, const struct flock& lock) {
  LockTable::Request wanted = request_of(driver, file);
  wanted.family = LockTable::Family::kRecord;
  wanted.mode = lock.l_type == F_RDLCK   ? LockTable::Mode::kShared
                : lock.l_type == F_WRLCK ? LockTable::Mode::kExclusive
                                         : LockTable::Mode::kUnlocked;
  wanted.process = static_cast<uint32_t>(lock.l_pid);
  wanted.first = static_cast<uint64_t>(lock.l_start);
  wanted.last = lock.l_len == 0 ? static_cast<uint64_t>(std::numeric_limits<off_t>::max())
                                : static_cast<uint64_t>(lock.l_start + lock.l_len - 1);
  return wanted;
}

void on_interrupt(fuse_req_t request, void* driver) {
  static_cast<Driver*>(driver)->locks.table.interrupt(reinterpret_cast<uint64_t>(request));
}

void set(const Request& request, const fuse_file_info* file, LockTable::Request wanted, bool waits) {
  Driver& driver = driver_of(request);
  LockTable& table = driver.locks.table;
  if (wanted.mode != LockTable::Mode::kUnlocked) {
    driver.store->note_locked(handle_of(file));
    wanted.file = driver.store->lock_identity(handle_of(file));  // once locked, the identity does not change
  }
  const auto token = reinterpret_cast<uint64_t>(request.get());
  table.announce(token);
  fuse_req_interrupt_func(request.get(), on_interrupt, &driver);  // may call on_interrupt() at once
  table.set(wanted, waits, token, now_ns(), [request](LockTable::Outcome outcome) { fuse_reply_err(request, errno_of(outcome)); });
  if (!waits) driver.locks.watch();
}

void get_record_lock(const Request& request, fuse_ino_t, fuse_file_info* file, struct flock* lock) {
  Driver& driver = driver_of(request);
  const auto held = driver.locks.table.conflict(request_of(driver, file, *lock));
  if (!held) {
    lock->l_type = F_UNLCK;
    return void(fuse_reply_lock(request, lock));
  }
  lock->l_type = held->mode == LockTable::Mode::kShared ? F_RDLCK : F_WRLCK;
  lock->l_whence = SEEK_SET;
  lock->l_start = static_cast<off_t>(held->first);
  const bool to_the_end = held->last >= static_cast<uint64_t>(std::numeric_limits<off_t>::max());
  lock->l_len = to_the_end ? 0 : static_cast<off_t>(held->last - held->first + 1);
  lock->l_pid = static_cast<pid_t>(held->process);
  fuse_reply_lock(request, lock);
}

void set_record_lock(const Request& request, fuse_ino_t, fuse_file_info* file, struct flock* lock, int waits) {
  Driver& driver = driver_of(request);
  set(request, file, request_of(driver, file, *lock), waits != 0);
}

void set_flock(const Request& request, fuse_ino_t, fuse_file_info* file, int operation) {
  Driver& driver = driver_of(request);
  LockTable::Request wanted = request_of(driver, file);
  wanted.mode = operation & LOCK_SH   ? LockTable::Mode::kShared
                : operation & LOCK_EX ? LockTable::Mode::kExclusive
                                      : LockTable::Mode::kUnlocked;
  set(request, file, wanted, (operation & LOCK_NB) == 0);
}

}  // namespace

void FileLocks::watch() {
  if (!table.next_expiry()) return;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (has_thread()) {
      kicked_ = true;
      ready_.notify_one();
      return;
    }
  }
  table.expire(std::numeric_limits<int64_t>::max());  // refuses them now: no thread can do it later
}

// With mutex_ held.
bool FileLocks::has_thread() {
  if (thread_.joinable()) return true;
  auto started = start_thread("kvc-locks", [this] { run(); });
  if (!started) {
    log::debug("no thread that ends waits for locks: {}", started.error().message);
    return false;
  }
  thread_ = *std::move(started);
  return true;
}

void FileLocks::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    kicked_ = false;
    lock.unlock();
    const auto next_ns = table.expire(now_ns());
    lock.lock();
    const auto due = [&] { return kicked_ || stopping_; };
    if (next_ns)
      ready_.wait_until(lock, std::chrono::steady_clock::time_point(std::chrono::nanoseconds(*next_ns)), due);
    else
      ready_.wait(lock, due);
  }
}

void FileLocks::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    ready_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  table.interrupt_all();
}

void add_lock_operations(fuse_lowlevel_ops& operations) {
  operations.getlk = guarded<get_record_lock>;
  operations.setlk = guarded<set_record_lock>;
  operations.flock = guarded<set_flock>;
}

}  // namespace kvcachefs
