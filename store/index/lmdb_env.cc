#include "store/index/lmdb_env.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <lmdb.h>

#include "store/base/checksum.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/fault_guard.h"

namespace kvcachefs {

namespace {

using fault_guard::run_guarded;

constexpr const char* kTableNames[kTableCount] = {"meta", "names", "objects", "extents", "successors"};
constexpr size_t kChecksumBytes = 4;
// Above any row there can be (the checksums of a body of 2 TiB are 64 MiB); a longer one is a damaged length.
constexpr size_t kMaxRowBytes = 256 * kMiB;
constexpr unsigned kMaxReaders = 1024;
// What is worth a rewrite at close, and what would take too long then: a million rows a second, or many pages.
constexpr uint64_t kMinRewrittenBytes = 128 * kKiB, kMaxRefilledBytes = 64 * kMiB, kMaxCompactedBytes = 512 * kMiB;
constexpr uint64_t kRefillBytes = 16 * kMiB;  // a transaction: its pages are in RAM until its end
constexpr const char* kCopyName = "/compact.tmp";  // beside data.mdb
constexpr std::string_view kFoundBefore = "found before";

MDB_val as_val(ByteSpan bytes) { return {bytes.size(), const_cast<std::byte*>(bytes.data())}; }

uint32_t row_checksum(Table table, ByteSpan key, ByteSpan value) {
  return static_cast<uint32_t>(checksum(value, checksum(key, static_cast<uint64_t>(table) + 1)));
}

void on_assertion(MDB_env*, const char*) { fault_guard::leave_as_fault(); }

// A full disk shows as a short write, which LMDB calls EIO.
bool file_system_full(const std::string& directory) {
  struct statvfs info = {};
  return statvfs(directory.c_str(), &info) == 0 && info.f_bavail * info.f_frsize < kMiB;
}

}  // namespace

// A read transaction as of its construction, and the right to be in the map.
class LmdbEnv::Reader {
 public:
  explicit Reader(const LmdbEnv& env) : env_(env), in_map_(env.map_mutex_) {
    {
      std::lock_guard lock(env_.pool_mutex_);
      if (!env_.pool_.empty()) {
        txn_ = env_.pool_.back();
        env_.pool_.pop_back();
      }
    }
    if (env_.env_ == nullptr) {  // could not be reopened
      code_ = MDB_CORRUPTED;
      return;
    }
    MDB_txn* txn = txn_;
    int code = 0;
    const bool whole = run_guarded(
        [&] { code = txn != nullptr ? mdb_txn_renew(txn) : mdb_txn_begin(env_.env_, nullptr, MDB_RDONLY, &txn); });
    code_ = whole ? code : MDB_CORRUPTED;
    if (code_ == 0) txn_ = txn;
  }
  ~Reader() {
    if (txn_ == nullptr || env_.damaged()) return;
    if (!run_guarded([this] { mdb_txn_reset(txn_); })) {
      (void)env_.damage("a read transaction could not be ended");
      return;
    }
    std::lock_guard lock(env_.pool_mutex_);
    env_.pool_.push_back(txn_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  int code() const { return code_; }
  MDB_txn* txn() const { return txn_; }

 private:
  const LmdbEnv& env_;
  std::shared_lock<std::shared_mutex> in_map_;
  MDB_txn* txn_ = nullptr;
  int code_ = 0;
};

Result<std::unique_ptr<LmdbEnv>> LmdbEnv::open(const std::string& directory, Open how, uint64_t map_bytes) {
  fault_guard::install();
  std::unique_ptr<LmdbEnv> env(new LmdbEnv(directory, map_bytes));
  KVC_TRY(env->open_environment(how));
  return env;
}

LmdbEnv::~LmdbEnv() {
  if (!damaged()) close_environment();
}

Status LmdbEnv::close(uint64_t unused_bytes) {
  const bool copied = write_copy(unused_bytes);
  std::lock_guard writers(write_mutex_);
  std::unique_lock readers(map_mutex_);
  if (damaged()) return damage(kFoundBefore);
  const bool closed = close_environment();
  damaged_.store(true, std::memory_order_release);
  if (!closed) return fail(Code::kCorrupt, fmt::format("index {} could not be closed", directory_));
  const std::string copy = directory_ + kCopyName;
  if (copied && std::rename(copy.c_str(), (directory_ + "/data.mdb").c_str()) != 0) unlink(copy.c_str());
  return {};
}

Status LmdbEnv::open_environment(Open how) {
  int code = 0;
  MDB_env* opened = nullptr;
  const bool whole = run_guarded([&] {
    code = mdb_env_create(&opened);
    if (code != 0) return;
    mdb_env_set_assert(opened, on_assertion);
    if (code == 0) code = mdb_env_set_maxdbs(opened, kTableCount);
    if (code == 0) code = mdb_env_set_maxreaders(opened, kMaxReaders);
    if (code == 0) code = mdb_env_set_mapsize(opened, map_bytes_);
    // NOTLS: read transactions belong to the pool, not to threads. NORDAHEAD: lookups are random. Never WRITEMAP (a
    // full disk would be a SIGBUS), never NOSYNC (invariant 11).
    if (code == 0) code = mdb_env_open(opened, directory_.c_str(), MDB_NOTLS | MDB_NORDAHEAD, 0600);
    if (code != 0) mdb_env_close(opened);
  });
  if (!whole) return damage("it could not be opened");
  if (code != 0) return error(code, "opening it");
  env_ = opened;
  return open_tables(how);
}

Status LmdbEnv::open_tables(Open how) {
  int code = 0;
  // Existing ones are opened for reading: to make a table whose name was damaged would write into damaged pages.
  const bool create = how == Open::kNew;
  const bool whole = run_guarded([&] {
    MDB_txn* txn = nullptr;
    code = mdb_txn_begin(env_, nullptr, create ? 0 : MDB_RDONLY, &txn);
    for (size_t i = 0; i < kTableCount && code == 0; ++i) {
      code = mdb_dbi_open(txn, kTableNames[i], create ? MDB_CREATE : 0, &tables_[i]);
      unsigned flags = 0;
      if (code == 0) code = mdb_dbi_flags(txn, tables_[i], &flags);
      if (code == 0 && flags != 0) code = MDB_INCOMPATIBLE;
    }
    if (code == 0) {
      code = mdb_txn_commit(txn);
    } else if (txn != nullptr) {
      mdb_txn_abort(txn);
    }
  });
  if (!whole) return damage("its tables could not be opened");
  if (code != 0) return error(code, "opening its tables");
  return {};
}

bool LmdbEnv::write_copy(uint64_t unused_bytes) {
  const uint64_t bytes = file_bytes();
  if (damaged() || bytes < kMinRewrittenBytes || bytes > kMaxCompactedBytes) return false;
  if (bytes - unused_bytes <= kMaxRefilledBytes) return unused_bytes > bytes / 8 && refill();
  return unused_bytes > bytes / 3 && compact();  // which keeps what is unused inside of pages: usually a fifth
}

// Row by row in key order, which fills pages to the brim: what random keys leave two thirds full.
bool LmdbEnv::refill() {
  namespace fs = std::filesystem;
  const fs::path filled = directory_ + "/refill.tmp", copy = directory_ + kCopyName;
  std::error_code failed;
  fs::remove_all(filled, failed);
  fs::create_directory(filled, failed);
  if (failed) return false;
  const auto fill = [&]() -> Status {
    KVC_ASSIGN(const auto fresh, open(filled, Open::kNew, map_bytes_));
    std::optional<Writer> writer;
    uint64_t bytes = 0;
    const auto add = [&](Table table, ByteSpan key, ByteSpan value) -> Status {
      if (!writer) {
        KVC_ASSIGN(auto begun, fresh->begin_write());
        writer.emplace(std::move(begun));
      }
      KVC_TRY(writer->append(table, key, value));
      bytes += key.size() + value.size();
      if (bytes < kRefillBytes) return {};
      KVC_TRY(writer->commit());
      writer.reset();
      bytes = 0;
      return {};
    };
    for (size_t i = 0; i < kTableCount; ++i) {
      Status added;
      KVC_TRY(scan(static_cast<Table>(i), {}, [&](ByteSpan key, ByteSpan value) {
        added = add(static_cast<Table>(i), key, value);
        return added.has_value();
      }));
      KVC_TRY(added);
    }
    return writer ? writer->commit() : Status{};
  };
  const Status status = fill();
  if (!status) log::warn("index {} stays as it is: {}", directory_, status.error().message);
  if (status) fs::rename(filled / "data.mdb", copy, failed);
  std::error_code ignored;
  fs::remove_all(filled, ignored);
  return status && !failed;
}

bool LmdbEnv::compact() {
  const std::string copy = directory_ + kCopyName;
  const int fd = ::open(copy.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  int code = 0;
  // Copies with a thread of its own, which no guard can save: the caller has just checked the pages.
  const bool whole = run_guarded([&] { code = mdb_env_copyfd2(env_, fd, MDB_CP_COMPACT); });
  const bool synced = whole && code == 0 && fsync(fd) == 0;
  ::close(fd);
  if (!whole) (void)damage("it cannot be copied");
  if (!synced) unlink(copy.c_str());
  return synced;
}

bool LmdbEnv::close_environment() {
  if (env_ == nullptr) return true;
  const bool whole = run_guarded([this] {
    for (MDB_txn* txn : pool_) mdb_txn_abort(txn);
    mdb_env_close(env_);
  });
  pool_.clear();
  env_ = nullptr;
  return whole;
}

Status LmdbEnv::reopen(uint64_t map_bytes) {
  std::lock_guard writers(write_mutex_);
  std::unique_lock readers(map_mutex_);
  if (damaged()) return damage(kFoundBefore);
  std::lock_guard lock(pool_mutex_);
  if (!close_environment()) return damage("it could not be closed");
  map_bytes_ = map_bytes;
  auto opened = open_environment(Open::kExisting);
  // Without an environment there is nothing left to read: the same as damage for everyone above.
  if (!opened) damaged_.store(true, std::memory_order_release);
  return opened;
}

Status LmdbEnv::enlarge_map() {
  log::info("index {}: growing its map to {}", directory_, format_size(map_bytes_ * 2));
  return reopen(map_bytes_ * 2);
}

std::unexpected<Error> LmdbEnv::damage(std::string_view what) const {
  if (!damaged_.exchange(true, std::memory_order_acq_rel)) {
    log::error("index {} is damaged: {}", directory_, what);
    // For the next open: what is too large to be checked then would be trusted once more.
    if (const int mark = ::open((directory_ + "/damaged").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600); mark >= 0) ::close(mark);
  }
  return fail(Code::kCorrupt, fmt::format("index {} is damaged ({}); it is to be rebuilt from checkpoint and journals",
                                          directory_, what));
}

std::unexpected<Error> LmdbEnv::error(int code, std::string_view what) const {
  switch (code) {
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_VERSION_MISMATCH:
    case MDB_CURSOR_FULL:
    case MDB_INCOMPATIBLE:
    case MDB_BAD_VALSIZE:
    case MDB_BAD_DBI:
    case MDB_BAD_RSLOT:
    case MDB_NOTFOUND: return damage(fmt::format("{}: {}", what, mdb_strerror(code)));
    case MDB_MAP_FULL:
      return fail(Code::kNoSpace,
                  fmt::format("index {}: {}: its map of {} is full", directory_, what, format_size(map_bytes_)));
    default: break;
  }
  std::string message = fmt::format("index {}: {}", directory_, what);
  if (code == EIO && file_system_full(directory_)) return fail_errno(ENOSPC, std::move(message));
  if (code > 0) return fail_errno(code, std::move(message));
  return fail(Code::kIo, message + ": " + mdb_strerror(code));
}

uint64_t LmdbEnv::file_bytes() const {
  struct stat info = {};
  return stat((directory_ + "/data.mdb").c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

void LmdbEnv::keep_in_memory(uint64_t most_bytes) const {
  std::shared_lock reading(map_mutex_);
  struct stat info = {};
  if (env_ == nullptr || stat((directory_ + "/data.mdb").c_str(), &info) != 0) return;
  // LMDB does not tell where its map is.
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, inode = 0;
    unsigned major = 0, minor = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*x %x:%x %lu", &begin, &end, &major, &minor, &inode) != 5) continue;
    if (inode != info.st_ino || makedev(major, minor) != info.st_dev) continue;
    void* map = reinterpret_cast<void*>(begin);
    const size_t length = std::min<size_t>(end - begin, most_bytes);
    if (mlock2(map, length, MLOCK_ONFAULT) != 0) log::debug("index {}: not kept in memory: {}", directory_, std::strerror(errno));
    const size_t present = std::min<size_t>(length, static_cast<size_t>(info.st_size) / kBlockBytes * kBlockBytes);
    if (present > 0) madvise(map, present, MADV_POPULATE_READ);
    return;
  }
}

Status LmdbEnv::verify(Table table, ByteSpan key, Bytes& value) const {
  const char* name = kTableNames[static_cast<size_t>(table)];
  if (!is_sound_row(name, key, value)) return damage(fmt::format("a row of {} does not match its checksum", name));
  value.resize(value.size() - kChecksumBytes);
  return {};
}

bool LmdbEnv::is_sound_row(std::string_view table, ByteSpan key, ByteSpan stored) {
  const auto name = std::ranges::find(kTableNames, table);
  if (name == std::end(kTableNames) || stored.size() < kChecksumBytes) return false;
  return ByteReader(stored.last(kChecksumBytes)).u32() ==
         row_checksum(static_cast<Table>(name - kTableNames), key, stored.first(stored.size() - kChecksumBytes));
}

Result<bool> LmdbEnv::get(Table table, ByteSpan key, Bytes& value) const {
  bool panic = false;
  auto found = get_once(table, key, value, &panic);
  if (!panic) return found;
  KVC_TRY(const_cast<LmdbEnv*>(this)->reopen(map_bytes_));
  return get_once(table, key, value, &panic);
}

Result<bool> LmdbEnv::get_once(Table table, ByteSpan key, Bytes& value, bool* panic) const {
  if (damaged()) return damage(kFoundBefore);
  Reader reader(*this);
  if (reader.code() != 0) {
    *panic = reader.code() == MDB_PANIC;
    return error(reader.code(), "starting to read");
  }
  int code = 0;
  MDB_val found = {};
  value.resize(std::max<size_t>(value.capacity(), 512));
  const bool whole = run_guarded([&] {
    MDB_val wanted = as_val(key);
    code = mdb_get(reader.txn(), tables_[static_cast<size_t>(table)], &wanted, &found);
    if (code == 0 && found.mv_size <= value.size()) std::memcpy(value.data(), found.mv_data, found.mv_size);
  });
  if (!whole) return damage("a page sends readers astray");
  if (code == MDB_NOTFOUND) return false;
  if (code != 0) return damage(mdb_strerror(code));  // reading what is mapped has no other reason to fail
  if (found.mv_size > kMaxRowBytes) return damage("a row has an impossible length");
  const bool copied = found.mv_size <= value.size();
  value.resize(found.mv_size);
  if (!copied && !run_guarded([&] { std::memcpy(value.data(), found.mv_data, found.mv_size); })) {
    return damage("a row reaches out of the file");
  }
  KVC_TRY(verify(table, key, value));
  return true;
}

// A run of rows copied out of the map: key length, value length (4 bytes each), key, value.
struct LmdbEnv::Copied {
  Bytes buffer = Bytes(64 * kKiB);
  size_t rows = 0;
  size_t used = 0;
  size_t need = 0;  // > 0: the row at the cursor takes this much and did not fit

  // Guarded code: owns nothing, allocates nothing.
  int fill(MDB_cursor* cursor, MDB_val* from, size_t limit) {
    rows = used = need = 0;
    MDB_val key = *from;
    MDB_val value = {};
    MDB_cursor_op operation = from->mv_data != nullptr ? MDB_SET_RANGE : MDB_NEXT;
    if (from->mv_size == SIZE_MAX) operation = MDB_GET_CURRENT;
    for (; rows < limit; ++rows, operation = MDB_NEXT) {
      const int code = mdb_cursor_get(cursor, &key, &value, operation);
      if (code != 0) return code;
      const size_t size = 8 + key.mv_size + value.mv_size;
      if (key.mv_size > UINT16_MAX || value.mv_size > kMaxRowBytes) return MDB_CORRUPTED;
      if (size > buffer.size() - used) {
        need = size;
        return 0;
      }
      const uint32_t lengths[2] = {static_cast<uint32_t>(key.mv_size), static_cast<uint32_t>(value.mv_size)};
      std::memcpy(buffer.data() + used, lengths, 8);
      std::memcpy(buffer.data() + used + 8, key.mv_data, key.mv_size);
      std::memcpy(buffer.data() + used + 8 + key.mv_size, value.mv_data, value.mv_size);
      used += size;
    }
    return 0;
  }
};

Status LmdbEnv::scan(Table table, ByteSpan from, const RowFunction& row) const {
  if (damaged()) return damage(kFoundBefore);
  Reader reader(*this);
  if (reader.code() != 0) return error(reader.code(), "starting to read");
  MDB_cursor* cursor = nullptr;
  int code = 0;
  bool whole = run_guarded([&] { code = mdb_cursor_open(reader.txn(), tables_[static_cast<size_t>(table)], &cursor); });
  if (!whole || code != 0) return damage("a table cannot be scanned");

  Copied copied;
  static constexpr std::byte kFirst{};
  MDB_val start = {std::max<size_t>(from.size(), 1), const_cast<std::byte*>(from.empty() ? &kFirst : from.data())};
  Bytes last, value;
  Status status;
  for (size_t limit = 32; status && code == 0; limit = std::min<size_t>(limit * 2, 1024)) {
    whole = run_guarded([&] { code = copied.fill(cursor, &start, limit); });
    if (!whole || (code != 0 && code != MDB_NOTFOUND)) return damage("a page sends scans astray");
    bool stop = false;
    for (size_t at = 0, n = 0; n < copied.rows && status && !stop; ++n) {
      uint32_t lengths[2];
      std::memcpy(lengths, copied.buffer.data() + at, 8);
      const ByteSpan key = ByteSpan(copied.buffer).subspan(at + 8, lengths[0]);
      value.assign(key.data() + lengths[0], key.data() + lengths[0] + lengths[1]);
      at += 8 + size_t{lengths[0]} + lengths[1];
      // Keys that do not ascend would make a scan of a damaged tree go round for ever.
      if (!last.empty() && !std::ranges::lexicographical_compare(last, key)) return damage("keys are out of order");
      last.assign(key.begin(), key.end());
      status = verify(table, key, value);
      if (status) stop = !row(key, value);
    }
    if (stop) break;
    start = {copied.need > 0 ? SIZE_MAX : 0, nullptr};  // the row that did not fit, or the next one
    if (copied.need > copied.buffer.size()) copied.buffer.resize(copied.need);
  }
  if (!damaged() && !run_guarded([&] { mdb_cursor_close(cursor); })) return damage("a scan could not be ended");
  return status;
}

Result<LmdbEnv::Writer> LmdbEnv::begin_write() {
  for (int attempt = 0;; ++attempt) {
    if (damaged()) return damage(kFoundBefore);
    Writer writer(*this, std::unique_lock(write_mutex_));
    int code = 0;
    const bool whole = run_guarded([&] { code = mdb_txn_begin(env_, nullptr, 0, &writer.txn_); });
    if (!whole) return damage("a write transaction could not be started");
    if (code == 0) return writer;
    writer.txn_ = nullptr;
    if (code != MDB_PANIC || attempt > 0) return error(code, "starting to write");
    writer.lock_.unlock();
    KVC_TRY(reopen(map_bytes_));
  }
}

LmdbEnv::Writer::Writer(Writer&& other) noexcept
    : env_(other.env_),
      lock_(std::move(other.lock_)),
      txn_(std::exchange(other.txn_, nullptr)),
      map_full_(other.map_full_),
      scratch_(std::move(other.scratch_)) {}

LmdbEnv::Writer::~Writer() {
  if (txn_ == nullptr || env_->damaged()) return;
  if (!run_guarded([this] { mdb_txn_abort(txn_); })) (void)env_->damage("a write could not be undone");
}

Status LmdbEnv::Writer::failed(int code, const char* what) {
  map_full_ = code == MDB_MAP_FULL;
  return env_->error(code, what);
}

Status LmdbEnv::Writer::put(Table table, ByteSpan key, ByteSpan value) { return store(table, key, value, 0); }

Status LmdbEnv::Writer::append(Table table, ByteSpan key, ByteSpan value) {
  return store(table, key, value, MDB_APPEND);
}

Status LmdbEnv::Writer::store(Table table, ByteSpan key, ByteSpan value, unsigned flags) {
  scratch_.assign(value.begin(), value.end());
  ByteWriter(scratch_).u32(row_checksum(table, key, value));
  int code = 0;
  const bool whole = run_guarded([&] {
    MDB_val row_key = as_val(key);
    MDB_val row_value = as_val(scratch_);
    code = mdb_put(txn_, env_->tables_[static_cast<size_t>(table)], &row_key, &row_value, flags);
  });
  if (!whole) return env_->damage("a page sends writers astray");
  if (code == MDB_KEYEXIST) return fail(Code::kCorrupt, "rows of a bulk load are not in ascending order");
  if (code != 0) return failed(code, "writing a row");
  return {};
}

Status LmdbEnv::Writer::remove(Table table, ByteSpan key) {
  int code = 0;
  const bool whole = run_guarded([&] {
    MDB_val row_key = as_val(key);
    code = mdb_del(txn_, env_->tables_[static_cast<size_t>(table)], &row_key, nullptr);
  });
  if (!whole) return env_->damage("a page sends writers astray");
  if (code != 0 && code != MDB_NOTFOUND) return failed(code, "removing a row");
  return {};
}

Status LmdbEnv::Writer::commit() {
  MDB_txn* txn = std::exchange(txn_, nullptr);  // gone whatever comes of it
  int code = 0;
  if (!run_guarded([&] { code = mdb_txn_commit(txn); })) return env_->damage("a commit was lost");
  if (code != 0) return failed(code, "committing");
  return {};
}

}  // namespace kvcachefs
