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
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <lmdb.h>

#include "store/base/checksum.h"
#include "store/base/log.h"
#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/index/fault_guard.h"
#include "store/index/index_directory.h"
#include "store/index/mapped_pages.h"
#include "store/index/reader_pool.h"

namespace kvcachefs {

namespace {

using fault_guard::run_guarded;

constexpr const char* kTableNames[kTableCount] = {"meta", "names", "objects", "extents", "successors"};
constexpr size_t kChecksumBytes = 4;
// Larger than any row can be (the checksums of a body of 2 TiB are 64 MiB); a longer row has a damaged length.
constexpr size_t kMaxRowBytes = 256 * kMiB;
// Smallest file worth rewriting at close, and largest files for refilling (a million rows a second) and for compacting (many pages): beyond these it takes too long.
constexpr uint64_t kMinRewrittenBytes = 128 * kKiB, kMaxRefilledBytes = 64 * kMiB, kMaxCompactedBytes = 512 * kMiB;
constexpr uint64_t kRefillBytes = 16 * kMiB;  // of a refill's transaction, whose pages are in RAM until its end
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

// LMDB keeps a list of the pages that each transaction freed. The next transaction must not write those of the newest one, for readers of the
// snapshot before it need them.
int pages_freed_last(MDB_txn* txn, uint64_t& pages) {
  constexpr MDB_dbi kFreePages = 0;
  MDB_cursor* cursor = nullptr;
  if (const int code = mdb_cursor_open(txn, kFreePages, &cursor); code != 0) return code;
  MDB_val key = {}, list = {};
  const int code = mdb_cursor_get(cursor, &key, &list, MDB_LAST);
  size_t by = 0, count = 0;
  if (code == 0 && key.mv_size == sizeof(by) && list.mv_size >= sizeof(count)) {
    std::memcpy(&by, key.mv_data, sizeof(by));
    std::memcpy(&count, list.mv_data, sizeof(count));
  }
  mdb_cursor_close(cursor);
  if (by == mdb_txn_id(txn)) pages = count;
  return code == MDB_NOTFOUND ? 0 : code;
}

// Keeps transactions that a fault left: nothing may touch them again, and leak checkers find them here.
void abandon(std::vector<MDB_txn*> transactions) {
  static LeafMutex mutex;
  static auto* const all = new std::vector<std::vector<MDB_txn*>>();
  const std::lock_guard lock(mutex);
  all->push_back(std::move(transactions));
}

}  // namespace

// One opening of the file: LMDB's environment, its tables, and its readers. Replaced as a whole.
class LmdbEnv::Environment {
 public:
  Environment() : readers([this](MDB_txn*& txn) { return start_reader(txn); }) {}
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  int open(const std::string& directory, uint64_t map_bytes, Open how);
  // Waits for its readers.
  bool close();

  MDB_env* env = nullptr;
  unsigned tables[kTableCount] = {};
  ReaderPool readers;
  // A fault interrupted a write: LMDB's own state may be inconsistent, so this environment is only read from now on, and its map
  // and descriptors are leaked.
  std::atomic<bool> broken = false;

  // LMDB starts a transaction from the newest meta page in the file. If a page rotted, or an older file was written back in place, that would lose what was
  // committed since: so a transaction must begin with the last commit. Called by the writer, and by readers while its gate is open.
  bool is_newest(uint64_t transaction) {
    uint64_t before = newest_;
    if (asks_for_newest_.exchange(false) && transaction == before + 1) newest_.compare_exchange_strong(before, transaction);
    return transaction == newest_;
  }
  // A commit ended, with or without success: the next transaction to start shows which is newest, mostly the reader that opening the gate starts.
  void ask_for_newest() { asks_for_newest_ = true; }

 private:
  int open_tables(Open how);
  int start_reader(MDB_txn*& txn);
  std::atomic<uint64_t> newest_ = 0;
  std::atomic<bool> asks_for_newest_ = false;
};

// Called under the guard; returns an LMDB code.
int LmdbEnv::Environment::open(const std::string& directory, uint64_t map_bytes, Open how) {
  int code = mdb_env_create(&env);
  if (code != 0) return code;
  mdb_env_set_assert(env, on_assertion);
  code = mdb_env_set_maxdbs(env, kTableCount);
  if (code == 0) code = mdb_env_set_mapsize(env, map_bytes);
  // NOLOCK: see reader_pool.h; the lock of IndexDirectory excludes other processes, write_mutex_ other writers. NOTLS: read
  // transactions belong to the pool, not to threads. NORDAHEAD: lookups are random. Never WRITEMAP (a full disk would
  // raise SIGBUS), never NOSYNC (invariant 11).
  if (code == 0) code = mdb_env_open(env, directory.c_str(), MDB_NOLOCK | MDB_NOTLS | MDB_NORDAHEAD, 0600);
  if (code == 0) code = open_tables(how);
  if (code != 0) mdb_env_close(std::exchange(env, nullptr));
  return code;
}

int LmdbEnv::Environment::open_tables(Open how) {
  // Existing tables are opened read-only: making a table whose name was damaged would write into damaged pages.
  const bool create = how == Open::kNew;
  MDB_txn* txn = nullptr;
  int code = mdb_txn_begin(env, nullptr, create ? 0 : MDB_RDONLY, &txn);
  for (size_t i = 0; i < kTableCount && code == 0; ++i) {
    code = mdb_dbi_open(txn, kTableNames[i], create ? MDB_CREATE : 0, &tables[i]);
    unsigned flags = 0;
    if (code == 0) code = mdb_dbi_flags(txn, tables[i], &flags);
    if (code == 0 && flags != 0) code = MDB_INCOMPATIBLE;
  }
  if (code == 0) code = mdb_txn_commit(std::exchange(txn, nullptr));
  if (code == 0) code = mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn);
  if (code == 0) newest_ = mdb_txn_id(txn);
  if (txn != nullptr) mdb_txn_abort(txn);
  return code;
}

int LmdbEnv::Environment::start_reader(MDB_txn*& txn) {
  int code = 0;
  MDB_txn* started = txn;
  const bool whole = run_guarded([&] {
    if (started != nullptr) mdb_txn_reset(started);
    code = started != nullptr ? mdb_txn_renew(started) : mdb_txn_begin(env, nullptr, MDB_RDONLY, &started);
    if (code != 0 && txn != nullptr) return mdb_txn_abort(txn);
    if (code != 0) return;
    if (is_newest(mdb_txn_id(started))) return;
    mdb_txn_abort(started);
    code = MDB_CORRUPTED;
  });
  if (whole && code == 0) {
    txn = started;
    return 0;
  }
  txn = nullptr;
  return whole ? code : MDB_CORRUPTED;
}

bool LmdbEnv::Environment::close() {
  std::vector<MDB_txn*> ended = readers.retire();
  if (broken) abandon(std::move(ended));
  if (env == nullptr || broken) return true;
  const bool whole = run_guarded([&] {
    for (MDB_txn* txn : ended) mdb_txn_abort(txn);
    const auto held = hold_mapped_pages();
    mdb_env_close(env);
  });
  env = nullptr;
  return whole;
}

// A read transaction of the snapshot that is newest at its construction.
class LmdbEnv::Reader {
 public:
  explicit Reader(const LmdbEnv& env) {
    do {
      opened_ = env.opened();
      if (opened_ == nullptr) return;  // closed
      reader_ = opened_->readers.take();
    } while (reader_.retired);
  }
  ~Reader() {
    if (reader_.txn != nullptr) opened_->readers.give_back(reader_, left_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  bool closed() const { return opened_ == nullptr; }
  int code() const { return reader_.code; }
  MDB_txn* txn() const { return reader_.txn; }
  unsigned table(Table table) const { return opened_->tables[static_cast<size_t>(table)]; }
  // Call after guarded use of the transaction: records whether it can be used again.
  void used(bool whole, int code) {
    if (!whole) left_ = ReaderPool::Left::kLost;
    if (whole && code != 0 && code != MDB_NOTFOUND) left_ = ReaderPool::Left::kSpoiled;
  }

 private:
  std::shared_ptr<Environment> opened_;
  ReaderPool::Reader reader_;
  ReaderPool::Left left_ = ReaderPool::Left::kSound;
};

LmdbEnv::LmdbEnv(std::string directory, uint64_t map_bytes)
    : directory_(std::move(directory)), held_(::open(directory_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)), map_bytes_(map_bytes) {}

Status LmdbEnv::check_in_place() const {
  if (leads_to(directory_, held_.get())) return {};
  return fail(Code::kIo, fmt::format("index {} was moved away", directory_));
}

Result<std::unique_ptr<LmdbEnv>> LmdbEnv::open(const std::string& directory, Open how, uint64_t map_bytes) {
  fault_guard::install();
  std::unique_ptr<LmdbEnv> env(new LmdbEnv(directory, map_bytes));
  KVC_ASSIGN(env->opened_, env->open_environment(how, map_bytes));
  return env;
}

LmdbEnv::~LmdbEnv() {
  (void)replace(nullptr);
  if (damaged()) mark_damaged();
}

std::shared_ptr<LmdbEnv::Environment> LmdbEnv::opened() const {
  std::lock_guard lock(opened_mutex_);
  return opened_;
}

Result<std::shared_ptr<LmdbEnv::Environment>> LmdbEnv::open_environment(Open how, uint64_t map_bytes) const {
  KVC_TRY(check_in_place());
  auto opening = std::make_shared<Environment>();
  int code = 0;
  if (!run_guarded([&] { code = opening->open(directory_, map_bytes, how); })) return damage("it could not be opened");
  if (code != 0) return error(code, "opening it");
  return opening;
}

bool LmdbEnv::replace(std::shared_ptr<Environment> next) {
  {
    std::lock_guard lock(opened_mutex_);
    std::swap(opened_, next);
  }
  return next == nullptr || next->close();
}

Status LmdbEnv::close(uint64_t unused_bytes) {
  const bool copied = write_copy(unused_bytes);
  std::lock_guard writers(write_mutex_);
  if (damaged()) return damage(kFoundBefore);
  if (!replace(nullptr)) return fail(Code::kCorrupt, fmt::format("index {} could not be closed", directory_));
  const std::string copy = directory_ + kCopyName;
  if (copied && check_in_place() && std::rename(copy.c_str(), (directory_ + "/data.mdb").c_str()) != 0) unlink(copy.c_str());
  return {};
}

bool LmdbEnv::write_copy(uint64_t unused_bytes) {
  const uint64_t bytes = file_bytes();
  if (damaged() || bytes < kMinRewrittenBytes || bytes > kMaxCompactedBytes || !check_in_place()) return false;
  if (bytes - unused_bytes <= kMaxRefilledBytes) return unused_bytes > bytes / 8 && refill();
  return unused_bytes > bytes / 3 && compact();  // compact() keeps free space inside of pages: usually a fifth
}

// Copies row by row in key order, which fills pages completely; random keys leave them two thirds full.
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
  unlink(copy.c_str());
  const int fd = ::open(copy.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  int code = 0;
  // LMDB copies with a thread of its own, which the guard does not protect: the caller has just checked the pages.
  const bool whole = run_guarded([&] { code = mdb_env_copyfd2(opened()->env, fd, MDB_CP_COMPACT); });
  const bool synced = whole && code == 0 && fsync(fd) == 0;
  ::close(fd);
  if (!whole) (void)damage("it cannot be copied");
  if (!synced) unlink(copy.c_str());
  return synced;
}

Status LmdbEnv::enlarge_map() {
  std::lock_guard writers(write_mutex_);
  log::info("index {}: growing its map to {}", directory_, format_size(map_bytes_ * 2));
  if (damaged()) return damage(kFoundBefore);
  KVC_ASSIGN(auto larger, open_environment(Open::kExisting, map_bytes_ * 2));
  map_bytes_ *= 2;
  if (!replace(std::move(larger))) return damage("it could not be closed");
  return {};
}

IndexPages LmdbEnv::pages() const {
  Reader reader(*this);
  if (reader.closed() || reader.code() != 0) return {};
  IndexPages file;
  int code = 0;
  const bool whole = run_guarded([&] {
    constexpr MDB_dbi kFreePages = 0, kTables = 1;  // LMDB's own
    MDB_env* const env = mdb_txn_env(reader.txn());
    MDB_envinfo info = {};
    code = mdb_env_info(env, &info);
    uint64_t used_pages = 2;  // the meta pages
    MDB_stat table = {};
    const auto add = [&](MDB_dbi dbi) {
      if (code == 0) code = mdb_stat(reader.txn(), dbi, &table);
      used_pages += table.ms_branch_pages + table.ms_leaf_pages + table.ms_overflow_pages;
      file.branches += table.ms_branch_pages;
      return table.ms_leaf_pages;
    };
    file.other_leaves = add(kFreePages) + add(kTables);
    for (size_t i = 0; i < kTableCount; ++i) {
      const auto each = static_cast<Table>(i);
      (each == Table::kNames ? file.leaves_of_names : each == Table::kObjects ? file.leaves_of_objects : file.other_leaves) += add(reader.table(each));
    }
    const uint64_t pages = info.me_last_pgno + 1;
    uint64_t held_pages = 0;
    if (code == 0) code = pages_freed_last(reader.txn(), held_pages);
    const uint64_t unused_pages = pages > used_pages ? pages - used_pages : 0;
    file.unused_bytes = unused_pages * table.ms_psize;
    file.reusable_bytes = (unused_pages - std::min(unused_pages, held_pages)) * table.ms_psize;
  });
  reader.used(whole, code);
  return whole && code == 0 ? file : IndexPages{};
}

Status LmdbEnv::rewrite(uint64_t unused_bytes) {
  if (!write_copy(unused_bytes)) return fail(Code::kUnsupported, fmt::format("index {} stays as it is", directory_));
  if (damaged()) return damage(kFoundBefore);
  const std::string copy = directory_ + kCopyName;
  if (Status replaced = replace_file(copy); !replaced) {
    // The rename succeeded and only the opening failed: writes from now on would go into a file without a name.
    if (access(copy.c_str(), F_OK) != 0) return damage(replaced.error().message);
    unlink(copy.c_str());
    return replaced;
  }
  const int fd = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) fsync(fd);  // else, after a power loss, the name could lead to an older file, whose journals are gone
  if (fd >= 0) ::close(fd);
  return {};
}

Status LmdbEnv::replace_file(const std::string& with) {
  std::lock_guard writers(write_mutex_);
  KVC_TRY(check_in_place());
  const std::string data = directory_ + "/data.mdb";
  if (std::rename(with.c_str(), data.c_str()) != 0)
    return fail_errno(errno, fmt::format("index {}: putting {} in its place", directory_, with));
  KVC_ASSIGN(auto sound, open_environment(Open::kExisting, map_bytes_));
  must_reopen_ = false;
  // Even if the old environment fails to close: it is not used any more.
  if (!replace(std::move(sound))) log::warn("index {}: the damaged file could not be closed", directory_);
  damaged_.store(false, std::memory_order_release);
  return {};
}

std::unexpected<Error> LmdbEnv::damage(std::string_view what) const {
  if (!damaged_.exchange(true, std::memory_order_acq_rel)) log::error("index {} is damaged: {}", directory_, what);
  return fail(Code::kCorrupt, fmt::format("index {} is damaged ({}); it is to be rebuilt from checkpoint and journals",
                                          directory_, what));
}

std::unexpected<Error> LmdbEnv::closed() const {
  return fail(Code::kInvalid, fmt::format("index {} is closed", directory_));
}

void LmdbEnv::mark_damaged() const {
  if (!check_in_place()) return;
  const std::string mark = directory_ + "/damaged";
  const int fd = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return log::error("index {}: its damage could not be noted: {}", directory_, std::strerror(errno));
  fsync(fd);
  ::close(fd);
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
    case MDB_MAP_RESIZED:  // no other process writes the file
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
  if (const auto kept_open = opened()) lock_mapped_pages(directory_ + "/data.mdb", most_bytes);
}

void LmdbEnv::let_go_of_mapped(uint64_t kept_bytes, uint64_t most_bytes) const {
  const Reader reader(*this);  // while a reader exists the file stays mapped where it is
  if (!reader.closed() && reader.code() == 0) let_go_of_mapped_pages(directory_ + "/data.mdb", kept_bytes, most_bytes);
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
  Reader reader(*this);
  if (reader.closed()) return closed();
  if (reader.code() != 0) return error(reader.code(), "starting to read");
  int code = 0;
  MDB_val found = {};
  value.resize(std::max<size_t>(value.capacity(), 512));
  bool whole = run_guarded([&] {
    MDB_val wanted = as_val(key);
    code = mdb_get(reader.txn(), reader.table(table), &wanted, &found);
    if (code == 0 && found.mv_size <= value.size()) std::memcpy(value.data(), found.mv_data, found.mv_size);
  });
  reader.used(whole, code);
  if (!whole) return damage("a page sends readers astray");
  if (code == MDB_NOTFOUND) return false;
  if (code != 0) return damage(mdb_strerror(code));  // a read of mapped pages has no other reason to fail
  if (found.mv_size > kMaxRowBytes) return damage("a row has an impossible length");
  const bool copied = found.mv_size <= value.size();
  value.resize(found.mv_size);
  if (!copied && !run_guarded([&] { std::memcpy(value.data(), found.mv_data, found.mv_size); })) {
    return damage("a row reaches out of the file");
  }
  KVC_TRY(verify(table, key, value));
  return true;
}

Result<bool> LmdbEnv::has(Table table, ByteSpan key) const {
  Reader reader(*this);
  if (reader.closed()) return closed();
  if (reader.code() != 0) return error(reader.code(), "starting to read");
  int code = 0;
  const bool whole = run_guarded([&] {
    MDB_val wanted = as_val(key), found = {};
    code = mdb_get(reader.txn(), reader.table(table), &wanted, &found);
  });
  reader.used(whole, code);
  if (!whole) return damage("a page sends readers astray");
  if (code != 0 && code != MDB_NOTFOUND) return damage(mdb_strerror(code));
  return code == 0;
}

// A run of rows copied out of the map: for each, key length and value length (4 bytes each), key, value.
struct LmdbEnv::Copied {
  Bytes buffer = Bytes(64 * kKiB);
  size_t rows = 0;
  size_t used = 0;
  size_t need = 0;  // > 0: the next row did not fit; it takes this many bytes

  // Copies from the first row with a key >= `from`, or > `from` if `above`. Guarded code: owns nothing, allocates nothing.
  int fill(MDB_cursor* cursor, MDB_val from, bool above, size_t limit) {
    rows = used = need = 0;
    MDB_val key = from;
    MDB_val value = {};
    MDB_cursor_op operation = MDB_SET_RANGE;
    for (; rows < limit; operation = MDB_NEXT) {
      const int code = mdb_cursor_get(cursor, &key, &value, operation);
      if (code != 0) return code;
      if (above && key.mv_size == from.mv_size && std::memcmp(key.mv_data, from.mv_data, from.mv_size) == 0) {
        above = false;
        continue;
      }
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
      ++rows;
    }
    return 0;
  }
};

Status LmdbEnv::scan(Table table, ByteSpan from, const RowFunction& row) const {
  static constexpr std::byte kFirst{};
  Copied copied;
  Bytes last, value;
  int code = 0;
  for (size_t limit = 32; code == 0; limit = std::min<size_t>(limit * 2, 1024)) {
    const ByteSpan start = !last.empty() ? ByteSpan(last) : !from.empty() ? from : ByteSpan(&kFirst, 1);
    {
      Reader reader(*this);
      if (reader.closed()) return closed();
      if (reader.code() != 0) return error(reader.code(), "starting to read");
      const bool whole = run_guarded([&] {
        MDB_cursor* cursor = nullptr;
        code = mdb_cursor_open(reader.txn(), reader.table(table), &cursor);
        if (code != 0) return;
        code = copied.fill(cursor, as_val(start), !last.empty(), limit);
        mdb_cursor_close(cursor);
      });
      reader.used(whole, code);
      if (!whole || (code != 0 && code != MDB_NOTFOUND)) return damage("a page sends scans astray");
    }
    for (size_t at = 0, n = 0; n < copied.rows; ++n) {
      uint32_t lengths[2];
      std::memcpy(lengths, copied.buffer.data() + at, 8);
      const ByteSpan key = ByteSpan(copied.buffer).subspan(at + 8, lengths[0]);
      value.assign(key.data() + lengths[0], key.data() + lengths[0] + lengths[1]);
      at += 8 + size_t{lengths[0]} + lengths[1];
      // If keys did not ascend, a scan of a damaged tree could loop forever.
      if (!last.empty() && !std::ranges::lexicographical_compare(last, key)) return damage("keys are out of order");
      last.assign(key.begin(), key.end());
      KVC_TRY(verify(table, key, value));
      if (!row(key, value)) return {};
    }
    if (copied.need > copied.buffer.size()) copied.buffer.resize(copied.need);
  }
  return {};
}

Result<LmdbEnv::Writer> LmdbEnv::begin_write() {
  std::unique_lock lock(write_mutex_);
  if (damaged()) return damage(kFoundBefore);
  if (must_reopen_) {
    KVC_ASSIGN(auto anew, open_environment(Open::kExisting, map_bytes_));
    must_reopen_ = false;
    if (!replace(std::move(anew))) return damage("it could not be closed");
  }
  Writer writer(*this, std::move(lock), opened());
  if (writer.opened_ == nullptr) return closed();
  writer.opened_->readers.await_overtaken();
  int code = 0;
  const bool whole = run_guarded([&] { code = mdb_txn_begin(writer.opened_->env, nullptr, 0, &writer.txn_); });
  if (!whole) return writer.broken("a write transaction could not be started");
  if (code == 0 && !writer.opened_->is_newest(mdb_txn_id(writer.txn_) - 1)) return damage("its meta pages are not those of the last commit");
  if (code == 0) return writer;
  writer.txn_ = nullptr;
  must_reopen_ = code == MDB_PANIC;
  return error(code, "starting to write");
}

LmdbEnv::Writer::Writer(Writer&& other) noexcept
    : env_(other.env_),
      opened_(std::move(other.opened_)),
      lock_(std::move(other.lock_)),
      txn_(std::exchange(other.txn_, nullptr)),
      map_full_(other.map_full_),
      scratch_(std::move(other.scratch_)) {}

LmdbEnv::Writer::~Writer() {
  if (txn_ == nullptr || opened_->broken) return;
  if (!run_guarded([this] { mdb_txn_abort(txn_); })) (void)broken("a write could not be undone");
}

Status LmdbEnv::Writer::failed(int code, const char* what) {
  map_full_ = code == MDB_MAP_FULL;
  return env_->error(code, what);
}

std::unexpected<Error> LmdbEnv::Writer::broken(const char* what) {
  opened_->broken = true;
  return env_->damage(what);
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
    code = mdb_put(txn_, opened_->tables[static_cast<size_t>(table)], &row_key, &row_value, flags);
  });
  if (!whole) return broken("a page sends writers astray");
  if (code == MDB_KEYEXIST) return fail(Code::kCorrupt, "rows of a bulk load are not in ascending order");
  if (code != 0) return failed(code, "writing a row");
  return {};
}

Status LmdbEnv::Writer::remove(Table table, ByteSpan key) {
  int code = 0;
  const bool whole = run_guarded([&] {
    MDB_val row_key = as_val(key);
    code = mdb_del(txn_, opened_->tables[static_cast<size_t>(table)], &row_key, nullptr);
  });
  if (!whole) return broken("a page sends writers astray");
  if (code != 0 && code != MDB_NOTFOUND) return failed(code, "removing a row");
  return {};
}

Status LmdbEnv::Writer::commit() {
  MDB_txn* txn = std::exchange(txn_, nullptr);  // the transaction is gone, whatever the commit returns
  int code = 0;
  opened_->readers.close_gate();
  const bool whole = run_guarded([&] { code = mdb_txn_commit(txn); });
  if (!whole) {
    // No reader is started any more: a meta page may be half written. Readers use the transactions provided before.
    opened_->readers.abandon_gate(MDB_CORRUPTED);
    return broken("a commit was lost");
  }
  opened_->ask_for_newest();
  const int started = opened_->readers.open_gate(code == 0);
  env_->must_reopen_ = code != 0 && started != 0;
  if (code != 0) return failed(code, "committing");
  return {};
}

}  // namespace kvcachefs
