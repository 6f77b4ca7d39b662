#include "store/index/mapped_pages.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "store/base/log.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {

struct Mapping {
  char* begin = nullptr;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the file
};

// A file has several mappings once a part of it is locked.
std::vector<Mapping> mappings_of(const struct stat& file) {
  std::vector<Mapping> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, offset = 0, inode = 0;
    unsigned major = 0, minor = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %lx %x:%x %lu", &begin, &end, &offset, &major, &minor, &inode) != 6) continue;
    if (inode == file.st_ino && makedev(major, minor) == file.st_dev) found.push_back({reinterpret_cast<char*>(begin), end - begin, offset});
  }
  return found;
}

uint64_t resident_file_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    unsigned long kib = 0;
    if (std::sscanf(line.c_str(), "RssFile: %lu kB", &kib) == 1) return kib * kKiB;
  }
  return 0;
}

Mutex<LockRank::kInner>& letting_go() {
  static Mutex<LockRank::kInner> mutex;
  return mutex;
}

}  // namespace

std::unique_lock<Mutex<LockRank::kInner>> hold_mapped_pages() { return std::unique_lock(letting_go()); }

void lock_mapped_pages(const std::string& path, uint64_t most_bytes) {
  struct stat file = {};
  if (stat(path.c_str(), &file) != 0) return;
  const std::vector<Mapping> mappings = mappings_of(file);
  if (mappings.empty()) return;
  const uint64_t length = std::min(mappings.front().bytes, most_bytes);
  if (mlock2(mappings.front().begin, length, MLOCK_ONFAULT) != 0) log::debug("{}: not kept in memory: {}", path, std::strerror(errno));
  const uint64_t present = std::min(length, align_down(static_cast<uint64_t>(file.st_size), kBlockBytes));
  if (present > 0) madvise(mappings.front().begin, present, MADV_POPULATE_READ);
}

void let_go_of_mapped_pages(const std::string& path, uint64_t kept_bytes, uint64_t most_bytes) {
  struct stat file = {};
  if (resident_file_bytes() <= most_bytes || stat(path.c_str(), &file) != 0) return;
  const auto held = hold_mapped_pages();
  for (const Mapping& mapping : mappings_of(file)) {
    const uint64_t kept = std::min(mapping.bytes, kept_bytes - std::min(kept_bytes, mapping.offset));
    if (kept < mapping.bytes) madvise(mapping.begin + kept, mapping.bytes - kept, MADV_DONTNEED);
  }
}

}  // namespace kvcachefs
