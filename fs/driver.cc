#include "fs/driver.h"

#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "fs/file_handles.h"

namespace kvcachefs {

Driver::Driver() = default;
Driver::~Driver() = default;

Caller caller_of(const Request& request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  return {context->uid, context->gid, static_cast<uint32_t>(context->pid)};
}

std::function<bool(uint32_t)> groups_of(const Request& request) {
  return [request = request.get()](uint32_t gid) {
    if (::fuse_req_ctx(request)->gid == gid) return true;
    std::vector<gid_t> groups(64);
    while (true) {
      const int count = fuse_req_getgroups(request, static_cast<int>(groups.size()), groups.data());
      if (count < 0) return false;  // the caller's groups cannot be seen from here
      const bool all = static_cast<size_t>(count) <= groups.size();
      groups.resize(static_cast<size_t>(count));
      if (all) return std::find(groups.begin(), groups.end(), gid) != groups.end();
    }
  };
}

ObjectId object_of(const Request& request, fuse_ino_t node) { return driver_of(request).passthrough.object_of(ObjectId{node}); }

namespace {
timespec to_timespec(int64_t ns) {
  timespec result;
  result.tv_sec = ns / 1'000'000'000;
  result.tv_nsec = ns % 1'000'000'000;
  if (result.tv_nsec < 0) {
    result.tv_nsec += 1'000'000'000;
    --result.tv_sec;
  }
  return result;
}

double attribute_timeout_seconds(const Driver& driver, const Stat& stat) {
  return driver.passthrough.has_aliases(stat.id) ? 0 : driver.timeout_seconds(S_ISDIR(stat.mode));
}
}  // namespace

struct stat to_stat(const Stat& stat) {
  struct stat result {};
  result.st_ino = stat.id.value;
  result.st_mode = stat.mode;
  result.st_nlink = stat.nlink;
  result.st_uid = stat.uid;
  result.st_gid = stat.gid;
  result.st_rdev = stat.rdev;
  result.st_size = static_cast<off_t>(stat.size_bytes);
  // The size of tools' reads and writes. For a directory it is the buffer that opendir() of glibc allocates for a listing, and a new kernel allocates as
  // much again for each part of the listing: most directories of chunks have a handful of names.
  result.st_blksize = S_ISDIR(stat.mode) ? 64 << 10 : 1 << 20;
  result.st_blocks = static_cast<blkcnt_t>(stat.blocks_512);
  result.st_atim = to_timespec(stat.atime_ns);
  result.st_mtim = to_timespec(stat.mtime_ns);
  result.st_ctim = to_timespec(stat.ctime_ns);
  return result;
}

Result<Stat> stat_shown(Driver& driver, ObjectId node) {
  auto stat = driver.passthrough.ask_shown(node, [&driver](ObjectId object) { return driver.store->stat(object); });
  if (stat) driver.passthrough.show_as_opened(node, *stat);
  return stat;
}

fuse_entry_param to_entry(Driver& driver, const Stat& stat) {
  const ObjectId node = driver.passthrough.tell_node(stat.id, stat.to_be_written);
  fuse_entry_param entry = to_entry(driver, node, stat);
  if (stat.id.is_foreign() && node != stat.id)  // its node has changed the file, perhaps since the store looked the name up
    if (const auto shown = stat_shown(driver, node)) entry.attr = to_stat(*shown);
  return entry;
}

fuse_entry_param to_entry(Driver& driver, ObjectId node, const Stat& stat) {
  fuse_entry_param entry{};
  entry.ino = node.value;
  entry.generation = driver.store->generation_of(stat.id);
  entry.attr = to_stat(stat);
  entry.attr_timeout = attribute_timeout_seconds(driver, stat);
  // A READLINK of a symbolic link that another node removed is answered ESTALE, and tells nothing of the call that it is for: with it goes the one
  // repetition of an open. So the kernel looks each link up before it reads it.
  const bool brief = stat.brief || (S_ISLNK(stat.mode) && driver.store->has_peers());
  entry.entry_timeout = brief ? 0 : driver.timeout_seconds(S_ISDIR(stat.mode));
  return entry;
}

void reply_attributes(const Request& request, const Stat& stat) {
  const struct stat attributes = to_stat(stat);
  fuse_reply_attr(request, &attributes, attribute_timeout_seconds(driver_of(request), stat));
}

}  // namespace kvcachefs
