#include "store/memory/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "store/base/descriptors.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kMostFileBytes = 256 * kMiB;
constexpr size_t kUnitsPerChunk = MemoryFile::kChunkBytes / kUnitBytes;

// The limit of open files: each takes a descriptor and a mapping, and a process may have only so many of both.
uint64_t most_files_here() {
  uint64_t most_mappings = 65'530;  // the kernel's default
  std::ifstream("/proc/sys/vm/max_map_count") >> most_mappings;
  return std::min(descriptor_shares().memory_files, most_mappings / 4);
}

// Reserves pages for [offset, +bytes). If that succeeds, touching them cannot fail.
bool reserve_pages(int descriptor, uint64_t offset, uint64_t bytes) {
  constexpr int kTries = 16;  // a signal interrupts it
  for (int i = 0; i < kTries; ++i) {
    if (fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0) return true;
    if (errno != EINTR) return false;
  }
  return false;
}
}  // namespace

// --- one file ---

MemoryFile::MemoryFile(MemoryPool& pool, int descriptor, std::byte* data, uint64_t capacity_bytes)
    : pool_(pool),
      descriptor_(descriptor),
      data_(data),
      capacity_bytes_(capacity_bytes),
      chunks_(capacity_bytes / kChunkBytes),
      taken_(capacity_bytes / kUnitBytes) {}

MemoryFile::~MemoryFile() {
  munmap(data_, capacity_bytes_);
  close(descriptor_);
}

bool MemoryFile::has_pages(size_t index) const {
  return index < taken_.size() && chunks_[index / kUnitsPerChunk].load(std::memory_order_acquire);
}

bool MemoryFile::lacks_pages(size_t index) const {
  return index < taken_.size() && !has_pages(index) && !full_.load(std::memory_order_relaxed);
}

template <class Change>
void MemoryFile::count_clean(Change change) {
  uint64_t before = 0, now = 0;
  {
    std::lock_guard lock(holds_mutex_);
    change();
    const bool clean = clean_blocks_ > 0 && other_blocks_ == 0 && !pinned_;
    now = clean ? page_bytes_.load() : 0;
    before = std::exchange(clean_bytes_, now);
    if (before != now) pool_.add_clean(static_cast<int64_t>(now - before));
  }
  if (before < now) pool_.tell_available();
}

BlockPtr MemoryFile::make_block(const std::shared_ptr<MemoryFile>& self, size_t index) {
  // Acquire: the previous holder of the unit has finished with its bytes.
  if (!self->has_pages(index) || self->taken_[index].exchange(true, std::memory_order_acquire)) return nullptr;
  self->block_count_.fetch_add(1, std::memory_order_relaxed);
  self->count_clean([&] { ++self->other_blocks_; });
  return std::make_shared<Block>(self->pool_, self, self->data_ + index * kUnitBytes, static_cast<uint32_t>(kUnitBytes));
}

void MemoryFile::set_pinned(bool pinned) {
  count_clean([&] { pinned_ = pinned; });
}

void MemoryFile::count_blocks(Block::Holds before, Block::Holds after) {
  count_clean([&] {
    --(before == Block::Holds::kClean ? clean_blocks_ : other_blocks_);
    ++(after == Block::Holds::kClean ? clean_blocks_ : other_blocks_);
  });
}

void MemoryFile::give(const std::byte* data, Block::Holds held) {
  count_clean([&] { --(held == Block::Holds::kClean ? clean_blocks_ : other_blocks_); });
  block_count_.fetch_sub(1, std::memory_order_relaxed);
  taken_[static_cast<size_t>(data - data_) / kUnitBytes].store(false, std::memory_order_release);
}

// --- all of them ---

MemoryFiles::~MemoryFiles() {
  spares_.clear();
  retired_.clear();
  if (mount_ >= 0) close(mount_);
}

Status MemoryFiles::start() {
  const int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
  if (context < 0) return fail(Code::kUnsupported, fmt::format("no tmpfs of its own: fsopen: {}", std::strerror(errno)));
  auto set = [context](const char* name, const char* value) {
    return fsconfig(context, FSCONFIG_SET_STRING, name, value, 0) == 0;
  };
  // Limits beyond any memory: without a limit statfs would not report how much is in use.
  const bool made = set("huge", "always") && set("size", "1024t") && set("nr_inodes", "1g") &&
                    fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) == 0;
  if (made) mount_ = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
  const int error = errno;
  close(context);
  if (mount_ < 0) return fail(Code::kUnsupported, fmt::format("no tmpfs with huge pages: {}", std::strerror(error)));
  most_files_ = most_files_here();
  started_.store(true, std::memory_order_release);
  return {};
}

uint64_t MemoryFiles::most_bytes() const { return std::min(kMostFileBytes, pool_.limit_bytes() / 4); }

std::unique_ptr<MemoryFile> MemoryFiles::make(uint64_t capacity_bytes) {
  if (open_files_.load() >= most_files_) return nullptr;
  const int descriptor = openat(mount_, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) return nullptr;
  constexpr uint64_t kAlign = MemoryFile::kChunkBytes;
  void* reserved = MAP_FAILED;
  if (ftruncate(descriptor, static_cast<off_t>(capacity_bytes)) == 0)
    reserved = mmap(nullptr, capacity_bytes + kAlign, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    close(descriptor);
    return nullptr;
  }
  auto* start = static_cast<std::byte*>(reserved);
  auto* data = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<uintptr_t>(start), kAlign));
  const bool mapped = mmap(data, capacity_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor, 0) == data;
  if (data > start) munmap(start, static_cast<size_t>(data - start));
  if (std::byte* end = data + capacity_bytes; end < start + capacity_bytes + kAlign)
    munmap(end, static_cast<size_t>(start + capacity_bytes + kAlign - end));
  if (!mapped) {
    munmap(data, capacity_bytes);
    close(descriptor);
    return nullptr;
  }
  open_files_.fetch_add(1);
  return std::unique_ptr<MemoryFile>(new MemoryFile(pool_, descriptor, data, capacity_bytes));
}

bool MemoryFiles::fill(MemoryFile& file, uint64_t bytes) {
  std::lock_guard lock(file.mutex_);
  for (size_t chunk = 0; chunk < bytes / MemoryFile::kChunkBytes; ++chunk)
    if (!add_pages(file, chunk)) return false;
  return true;
}

// True if the file has enough addresses for the body, and not many more pages than it takes.
bool MemoryFiles::fits(const MemoryFile& file, uint64_t bytes, Pages pages) {
  const uint64_t page_bytes = file.page_bytes_.load();
  return file.capacity_bytes_ >= bytes && page_bytes <= bytes + bytes / 4 && (pages == Pages::kAny || page_bytes >= bytes);
}

bool MemoryFiles::has_spare(uint64_t bytes) {
  std::lock_guard lock(spares_mutex_);
  return std::any_of(spares_.begin(), spares_.end(), [&](const auto& spare) { return fits(*spare, bytes, Pages::kReady); });
}

// Takes the spare with the most pages among those that fit.
std::unique_ptr<MemoryFile> MemoryFiles::take_spare(uint64_t bytes, Pages pages) {
  std::lock_guard lock(spares_mutex_);
  auto best = spares_.end();
  for (auto spare = spares_.begin(); spare != spares_.end(); ++spare) {
    if (!fits(**spare, bytes, pages)) continue;
    if (best == spares_.end() || (*spare)->page_bytes_.load() > (*best)->page_bytes_.load()) best = spare;
  }
  if (best == spares_.end()) return nullptr;
  std::unique_ptr<MemoryFile> file = std::move(*best);
  spares_.erase(best);
  spare_bytes_.fetch_sub(file->page_bytes_.load());
  return file;
}

MemoryFiles::Got MemoryFiles::take(uint64_t bytes, MemoryFilePtr& file, uint64_t left_bytes, uint64_t* needed_bytes) {
  if (!started()) return Got::kNo;
  const uint64_t capacity = align_up(bytes, MemoryFile::kChunkBytes);
  wanted_bytes_.store(capacity, std::memory_order_relaxed);
  const bool warming_up = is_warming_up(capacity);
  if (std::unique_ptr<MemoryFile> spare = take_spare(capacity, warming_up ? Pages::kReady : Pages::kAny)) {
    const uint64_t pages = spare->page_bytes_.load();
    if (needed_bytes != nullptr) *needed_bytes = pages;
    const bool charged = pool_.try_charge(pages, left_bytes);
    if (charged) {
      file = wrap(spare.release());
      return Got::kYes;
    }
    std::lock_guard lock(spares_mutex_);
    spare_bytes_.fetch_add(spare->page_bytes_.load());
    spares_.push_back(std::move(spare));
    return Got::kNoMemory;
  }
  if (warming_up) return Got::kNo;
  // On kNoMemory the caller has memory given up, which may come as a file that fits. All of it is charged at once: a caller that waited for
  // more later would hold what it has.
  if (needed_bytes != nullptr) *needed_bytes = capacity;
  if (!pool_.try_charge(capacity, left_bytes)) return Got::kNoMemory;
  // Twice the addresses, which cost nothing, for a body that turns out to be larger.
  std::unique_ptr<MemoryFile> made = make(2 * capacity);
  if (made && fill(*made, capacity)) {
    file = wrap(made.release());
    return Got::kYes;
  }
  if (made) destroy(std::move(made));
  pool_.uncharge_files(capacity);
  return Got::kNo;
}

// Caller holds file.mutex_, and has charged the memory.
bool MemoryFiles::add_pages(MemoryFile& file, size_t chunk) {
  constexpr uint64_t kBytes = MemoryFile::kChunkBytes;
  if (!pool_.make_room(kBytes) || !reserve_pages(file.descriptor_, chunk * kBytes, kBytes)) return false;
  std::byte* at = file.data_ + chunk * kBytes;
  for (uint64_t offset = 0; offset < kBytes; offset += kBlockBytes) *reinterpret_cast<volatile char*>(at + offset) = 0;
  held_bytes_.fetch_add(kBytes);
  pool_.add_outside(static_cast<int64_t>(kBytes));
  file.page_bytes_.fetch_add(kBytes);
  file.count_clean([] {});
  file.chunks_[chunk].store(true, std::memory_order_release);
  return true;
}

MemoryFiles::Got MemoryFiles::grow(MemoryFile& file, size_t first_unit, size_t last_unit, uint64_t left_bytes) {
  std::lock_guard lock(file.mutex_);
  if (file.frozen() || file.full_.load()) return Got::kNo;
  const size_t last = std::min(div_ceil(last_unit, kUnitsPerChunk), file.chunks_.size());
  for (size_t chunk = first_unit / kUnitsPerChunk; chunk < last; ++chunk) {
    if (file.chunks_[chunk].load()) continue;
    if (!pool_.try_charge(MemoryFile::kChunkBytes, left_bytes)) return Got::kNoMemory;
    if (add_pages(file, chunk)) continue;
    pool_.uncharge_files(MemoryFile::kChunkBytes);
    file.full_.store(true);
    return Got::kNo;
  }
  return Got::kYes;
}

// Called by the last holder of the file, which may hold any lock: so it only changes lists.
void MemoryFiles::retire(MemoryFile* raw) {
  std::unique_ptr<MemoryFile> file(raw);
  if (file->frozen() || file->page_bytes_.load() == 0) {
    std::lock_guard lock(spares_mutex_);
    retired_.push_back(std::move(file));
    return;
  }
  const uint64_t bytes = file->page_bytes_.load();
  file->full_.store(false);
  {
    std::lock_guard lock(spares_mutex_);
    spare_bytes_.fetch_add(bytes);
    spares_.push_back(std::move(file));
  }
  pool_.uncharge_files(bytes);
}

// A frozen file lives on while a client has it mapped: its memory counts until settle() finds it free.
void MemoryFiles::destroy(std::unique_ptr<MemoryFile> file) {
  const uint64_t bytes = file->page_bytes_.load();
  std::lock_guard lock(shape_mutex_);
  held_bytes_.fetch_sub(bytes);
  if (file->frozen())
    lingering_bytes_.fetch_add(bytes);
  else
    pool_.add_outside(-static_cast<int64_t>(bytes));
  file.reset();
  open_files_.fetch_sub(1);
}

bool MemoryFiles::drop_spares(uint64_t bytes) {
  uint64_t dropped = 0;
  while (dropped < bytes) {
    std::unique_ptr<MemoryFile> file;
    {
      std::lock_guard lock(spares_mutex_);
      if (spares_.empty()) break;
      file = std::move(spares_.front());
      spares_.pop_front();
      spare_bytes_.fetch_sub(file->page_bytes_.load());
    }
    dropped += std::max<uint64_t>(file->page_bytes_.load(), 1);
    destroy(std::move(file));
  }
  return dropped > 0;
}

// Memory that the tmpfs has in use beyond the files that are open here is mapped by clients. Files that grow meanwhile make that
// sum too large, never too small: they are counted after they have grown.
uint64_t MemoryFiles::settle() {
  if (!started()) return 0;
  std::deque<std::unique_ptr<MemoryFile>> retired;
  {
    std::lock_guard lock(spares_mutex_);
    retired.swap(retired_);
  }
  for (auto& file : retired) destroy(std::move(file));
  const uint64_t limit = pool_.limit_bytes();
  if (const uint64_t spare = spare_bytes(); spare > limit / 4) drop_spares(spare - limit / 4);
  if (lingering_bytes_.load() == 0) return 0;
  uint64_t came = 0;
  {
    std::lock_guard lock(shape_mutex_);
    const uint64_t held = held_bytes_.load(), lingering = lingering_bytes_.load();
    struct statfs info {};
    if (fstatfs(mount_, &info) != 0) return 0;
    const uint64_t used = (info.f_blocks - info.f_bfree) * static_cast<uint64_t>(info.f_bsize);
    const uint64_t left = std::min(lingering, used - std::min(used, held));
    came = lingering - left;
    lingering_bytes_.store(left);
    passed_bytes_.fetch_sub(came);
    pool_.add_outside(-static_cast<int64_t>(came));
  }
  if (came > 0) pool_.uncharge_files(came);
  return came;
}

bool MemoryFiles::wants_spares(uint64_t ahead_bytes) {
  const uint64_t capacity = wanted_bytes_.load(std::memory_order_relaxed);
  if (capacity == 0) return false;
  return spare_bytes() + capacity <= std::min(ahead_bytes, pool_.limit_bytes() / 4) / 2 || !has_spare(capacity);
}

bool MemoryFiles::prepare_ahead(uint64_t ahead_bytes, uint64_t arenas_ahead_bytes) {
  if (!started()) return false;
  const uint64_t capacity = wanted_bytes_.load(std::memory_order_relaxed);
  const uint64_t most_bytes_ahead = std::min(ahead_bytes, pool_.limit_bytes() / 4);
  if (capacity == 0 || capacity > std::min(most_bytes(), most_bytes_ahead)) return false;
  if (const uint64_t bytes = spare_bytes() + capacity; bytes > most_bytes_ahead) {
    if (has_spare(capacity)) return false;
    drop_spares(bytes - most_bytes_ahead);
  }
  // Spares come on top of the memory in use: the pool keeps so much less ready.
  if (pool_.used_bytes() + spare_bytes() + capacity > pool_.limit_bytes()) return false;
  std::unique_ptr<MemoryFile> file = make(2 * capacity);
  if (!file) return false;
  bool whole = true;
  {
    std::lock_guard lock(file->mutex_);
    for (size_t chunk = 0; whole && chunk < capacity / MemoryFile::kChunkBytes; ++chunk) {
      const bool arena_came = pool_.drop_free_arena(arenas_ahead_bytes);
      // Not from other spares: replacing one by another would never end.
      whole = (arena_came || pool_.mapped_bytes() + MemoryFile::kChunkBytes <= pool_.limit_bytes() || pool_.drop_free_arena()) &&
              add_pages(*file, chunk);
    }
  }
  const uint64_t pages = file->page_bytes_.load();
  if (pages == 0) {
    destroy(std::move(file));
    return false;
  }
  std::lock_guard lock(spares_mutex_);
  spare_bytes_.fetch_add(pages);
  spares_.push_back(std::move(file));
  return whole;
}

bool MemoryFiles::freeze(MemoryFile& file, uint64_t bytes) {
  const uint64_t pages = file.page_bytes_.load(), most = pool_.limit_bytes() / 2;
  uint64_t passed = passed_bytes_.load();
  do {
    if (passed + pages > most) return false;
  } while (!passed_bytes_.compare_exchange_weak(passed, passed + pages));
  file.passed_page_bytes_.store(pages);
  file.frozen_bytes_.store(bytes);
  return true;
}

Status MemoryFiles::cut(MemoryFile& file) {
  std::lock_guard lock(file.mutex_);
  if (std::exchange(file.cut_, true)) return {};
  // Pages that a read under way added since the file was frozen count as passed through as well.
  const uint64_t page_bytes = file.page_bytes_.load();
  passed_bytes_.fetch_add(page_bytes - file.passed_page_bytes_.exchange(page_bytes));
  uint64_t came = 0;
  {
    std::lock_guard shape_lock(shape_mutex_);
    if (ftruncate(file.descriptor_, static_cast<off_t>(file.frozen_bytes())) != 0) {
      file.cut_ = false;
      return fail(Code::kIo, fmt::format("memory file: ftruncate: {}", std::strerror(errno)));
    }
    // A huge page that I/O holds cannot be split: its part beyond the end stays.
    struct stat info {};
    if (fstat(file.descriptor_, &info) != 0) return {};
    const uint64_t pages = file.page_bytes_.load(), left = std::min(pages, static_cast<uint64_t>(info.st_blocks) * 512);
    came = pages - left;
    file.page_bytes_.store(left);
    file.count_clean([] {});
    passed_bytes_.fetch_sub(came);
    held_bytes_.fetch_sub(came);
    pool_.add_outside(-static_cast<int64_t>(came));
  }
  pool_.uncharge_files(came);
  return {};
}

}  // namespace kvcachefs
