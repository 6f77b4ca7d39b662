// How large the file is, and its copies without unused pages: while it is open, and at the last call.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/fault_guard.h"
#include "store/index/lmdb_environment.h"

namespace kvcachefs {

namespace {

using fault_guard::run_guarded;
using namespace lmdb;

// Smallest file worth rewriting at close, and largest files for refilling (a million rows a second) and for compacting (many pages): beyond these it takes too long.
constexpr uint64_t kMinRewrittenBytes = 128 * kKiB, kMaxRefilledBytes = 64 * kMiB, kMaxCompactedBytes = 512 * kMiB;
constexpr uint64_t kRefillBytes = 16 * kMiB;  // of a refill's transaction, whose pages are in RAM until its end
constexpr const char* kCopyName = "/compact.tmp";  // beside data.mdb

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

}  // namespace

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

}  // namespace kvcachefs
