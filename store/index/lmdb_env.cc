#include "store/index/lmdb_env.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/fault_guard.h"
#include "store/index/index_directory.h"
#include "store/index/lmdb_environment.h"
#include "store/index/mapped_pages.h"

namespace kvcachefs {

namespace {

using fault_guard::run_guarded;
using namespace lmdb;

// A full disk shows as a short write, which LMDB calls EIO.
bool file_system_full(const std::string& directory) {
  struct statvfs info = {};
  return statvfs(directory.c_str(), &info) == 0 && info.f_bavail * info.f_frsize < kMiB;
}

}  // namespace

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

Status LmdbEnv::enlarge_map() {
  std::lock_guard writers(write_mutex_);
  log::info("index {}: growing its map to {}", directory_, format_size(map_bytes_ * 2));
  if (damaged()) return damage(kFoundBefore);
  KVC_ASSIGN(auto larger, open_environment(Open::kExisting, map_bytes_ * 2));
  map_bytes_ *= 2;
  if (!replace(std::move(larger))) return damage("it could not be closed");
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

}  // namespace kvcachefs
