// Requests about attributes. access(2) is not here: the kernel checks modes itself (default_permissions, always on).
#include <linux/capability.h>
#include <linux/xattr.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "fs/control.h"
#include "fs/driver.h"
#include "fs/open_guards.h"
#include "fs/record_gate.h"
#include "store/base/kill_point.h"

namespace kvcachefs {

namespace {

constexpr std::string_view kOwnPrefix = "user.kvcachefs.";
constexpr std::string_view kPin = "pin";         // can be set and removed
constexpr std::string_view kAllFacts = "info";  // a line for each
constexpr std::string_view kCapability = "security.capability";  // not stored: the kernel asks for it before every first write

// Attributes that cannot be set, read, removed or listed. `system.` attributes belong to the file system itself, which has none.
bool is_refused(std::string_view name) { return name.starts_with("system.") || name == "security.selinux"; }

// The errno that other file systems return for a name in no namespace, or a namespace prefix without a name.
int refusal_of(std::string_view name) {
  if (is_refused(name) || name == kCapability) return EOPNOTSUPP;
  for (const std::string_view space : {"user.", "trusted.", "security."})
    if (name.starts_with(space)) return name.size() > space.size() ? 0 : EINVAL;
  return EOPNOTSUPP;
}

void get_attributes(const Request& request, fuse_ino_t node, fuse_file_info*) {
  kill_point("attributes-asked");
  const auto stat = stat_shown(driver_of(request), ObjectId{node});
  if (!stat) return reply_object_error(request, stat.error());
  reply_attributes(request, *stat);
}

void set_attributes(const Request& request, fuse_ino_t node, struct stat* wanted, int which, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  SetAttributes change;
  // Times are 64-bit nanoseconds: times before 1677 or after 2262 become the first or last second of that range, as ext4 does with its own range.
  auto ns = [](const timespec& time) {
    constexpr int64_t kLastSecond = INT64_MAX / 1'000'000'000 - 1;
    const int64_t second = std::clamp<int64_t>(time.tv_sec, -kLastSecond, kLastSecond);
    return second * 1'000'000'000 + (second == time.tv_sec ? time.tv_nsec : 0);
  };
  if (which & FUSE_SET_ATTR_MODE) change.mode = wanted->st_mode;
  if (which & FUSE_SET_ATTR_UID) change.uid = wanted->st_uid;
  if (which & FUSE_SET_ATTR_GID) change.gid = wanted->st_gid;
  if (which & FUSE_SET_ATTR_SIZE) change.size_bytes = static_cast<uint64_t>(wanted->st_size);
  if (which & FUSE_SET_ATTR_ATIME) change.atime_ns = ns(wanted->st_atim);
  if (which & FUSE_SET_ATTR_MTIME) change.mtime_ns = ns(wanted->st_mtim);
  if (which & FUSE_SET_ATTR_CTIME) change.ctime_ns = ns(wanted->st_ctim);
  change.atime_now = which & FUSE_SET_ATTR_ATIME_NOW;
  change.mtime_now = which & FUSE_SET_ATTR_MTIME_NOW;
  change.kill_privileges = which & FUSE_SET_ATTR_KILL_SUID;
  if (change.kill_privileges) {
    change.in_group = groups_of(request);
    if (::fuse_req_ctx(request.get())->uid == 0) change.in_group = [](uint32_t) { return true; };  // as for CAP_FSETID
  }
  // A truncate by path is treated as a short open for writing, so that no reader gets the older body passed through meanwhile.
  const bool by_path = change.size_bytes && file == nullptr;
  auto apply = [&driver, request, node, change, handle = file != nullptr ? handle_of(file) : nullptr](Counted counted) {
    driver.store->set_attributes(object_of(request, node), handle, change, caller_of(request),
                                 [&driver, request, node, counted = std::move(counted)](Result<Stat> stat) mutable {
                                   counted.end();
                                   if (stat && stat->id.is_foreign()) stat = stat_shown(driver, ObjectId{node});
                                   if (!stat) return reply_object_error(request, stat.error());
                                   driver.passthrough.show_as_opened(ObjectId{node}, *stat);
                                   reply_attributes(request, *stat);
                                 });
  };
  if (!by_path) return apply({});
  driver.passthrough.open(ObjectId{node}, Passthrough::Access::kWrite,
                          [&driver, request, node, apply = std::move(apply)](Passthrough::Decision decision) {
                            run_handler(request, [&] {
                              if (!decision.stale) return apply(Counted(driver.passthrough, ObjectId{node}, decision));
                              const bool again = driver.store->told_stale({.read = false, .write = true}, caller_of(request));
                              fuse_reply_err(request, again ? ESTALE : ETXTBSY);
                            });
                          });
}

void statfs(const Request& request, fuse_ino_t) {
  const FileSystemSpace space = driver_of(request).store->space();
  struct statvfs result {};
  result.f_bsize = result.f_frsize = space.block_bytes;
  result.f_blocks = space.blocks;
  result.f_bfree = result.f_bavail = space.blocks_free;
  result.f_files = space.files;
  result.f_ffree = result.f_favail = space.files_free;
  result.f_namemax = 255;
  fuse_reply_statfs(request, &result);
}

auto facts_of(const Request& request, fuse_ino_t node) {
  Driver& driver = driver_of(request);
  return driver.passthrough.ask_shown(ObjectId{node}, [&](ObjectId object) { return driver.store->describe(object, caller_of(request)); });
}

void get_xattr(const Request& request, fuse_ino_t node, const char* name, size_t size) {
  Driver& driver = driver_of(request);
  const std::string_view wanted(name);
  // ENODATA, never ENOSYS: that would switch off every xattr of the mount.
  if (wanted == kCapability) return void(fuse_reply_err(request, ENODATA));
  // EOPNOTSUPP makes `ls -l` stop asking for these names on each file.
  if (is_refused(wanted)) return void(fuse_reply_err(request, EOPNOTSUPP));
  if (!wanted.starts_with(kOwnPrefix)) {
    auto value = driver.passthrough.ask_shown(ObjectId{node}, [&](ObjectId object) { return driver.store->get_xattr(object, wanted); });
    if (!value) return reply_object_error(request, value.error());
    return reply_value(request, *value, size);
  }
  const std::string_view fact = wanted.substr(kOwnPrefix.size());
  if (node == FUSE_ROOT_ID && fact != kPin) {
    if (auto value = mount_attribute(driver, fact)) return reply_value(request, *value, size);
    return void(fuse_reply_err(request, ENODATA));
  }
  auto facts = facts_of(request, node);
  if (!facts) return reply_object_error(request, facts.error());
  std::string all;
  for (const auto& [key, value] : *facts) {
    if (key == fact) return reply_value(request, value, size);
    all.append(key).append(1, ' ').append(value).append(1, '\n');
  }
  if (fact == kAllFacts) return reply_value(request, all, size);
  fuse_reply_err(request, ENODATA);
}

void set_now(const Request& request, fuse_ino_t node, std::string_view name, std::string_view value, Store::XattrMode mode) {
  Status status = driver_of(request).store->set_xattr(object_of(request, node), name, value, mode);
  if (!status && status.error().code == Code::kTooBig) return void(fuse_reply_err(request, E2BIG));
  reply_object_status(request, status);
}

void set_xattr(const Request& request, fuse_ino_t node, const char* name, const char* value, size_t size, int flags) {
  Driver& driver = driver_of(request);
  const std::string_view wanted(name);
  if (wanted.starts_with(kOwnPrefix)) {
    if (wanted.substr(kOwnPrefix.size()) == kPin) {
      if (std::string_view(value, size) != "1") return void(fuse_reply_err(request, EINVAL));
      return reply_object_status(request, driver.store->set_pinned(object_of(request, node), true));
    }
    const std::string_view own = wanted.substr(kOwnPrefix.size());
    if (node == FUSE_ROOT_ID || is_mount_command(own)) return set_mount_attribute(request, own, {value, size});
    // The facts of another file, set by a copy: accepted and dropped, so that the copy goes on and no file gets false facts.
    return void(fuse_reply_err(request, 0));
  }
  if (const int refusal = refusal_of(wanted); refusal != 0) return void(fuse_reply_err(request, refusal));
  const auto mode = flags & XATTR_CREATE    ? Store::XattrMode::kCreate
                    : flags & XATTR_REPLACE ? Store::XattrMode::kReplace
                                            : Store::XattrMode::kAny;
  const uint64_t bytes = wanted.size() + size;
  if (driver.store->has_room_for_xattr(bytes)) return set_now(request, node, wanted, {value, size}, mode);
  driver.store->await_room_for_xattr(
      bytes, [request, node, file = driver.store->keep(object_of(request, node)), kept_name = std::string(wanted), kept_value = std::string(value, size), mode](Status status) {
        if (!status) return reply_error(request, status.error());
        run_handler(request, [&] { set_now(request, node, kept_name, kept_value, mode); });
      });
}

// The facts are listed to `getfattr -m user.kvcachefs` only: `cp -a` would copy them to other file systems, `rsync -X`
// would try to remove what its source does not have, and they would clutter listings of the user's attributes. listxattr(2) has
// no pattern, so only the program's arguments tell which attributes it wants. Every program can read the facts by name.
std::string of_process(const Request& request, const char* file) {
  std::ifstream stream("/proc/" + std::to_string(fuse_req_ctx(request)->pid) + "/" + file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
bool may_ask_for_facts(const Request& request) { return of_process(request, "comm") == "getfattr\n"; }
// Runs in the side thread: the arguments lie in the memory of the process, and its other threads may hold that memory's lock while they wait for the mount.
bool asks_for_facts(const Request& request) {
  const std::string arguments = of_process(request, "cmdline");
  for (const char* pattern : {"user.kvcachefs", "user\\.kvcachefs"})
    if (arguments.find(pattern) != std::string::npos) return true;
  return false;
}

// As in other file systems, names that only a privileged caller can read are listed to no other. Root may lack the capability (in a container);
// /proc tells if it shows that process.
bool sees_trusted(const Request& request) {
  if (fuse_req_ctx(request)->uid != 0) return false;
  constexpr std::string_view kEffective = "\nCapEff:";
  const std::string status = of_process(request, "status");
  const size_t line = status.find(kEffective);
  if (line == std::string::npos) return true;
  return std::strtoull(status.c_str() + line + kEffective.size(), nullptr, 16) >> CAP_SYS_ADMIN & 1;
}

void list_xattrs(const Request& request, fuse_ino_t node, size_t size) {
  Driver& driver = driver_of(request);
  auto listed = driver.passthrough.ask_shown(ObjectId{node}, [&](ObjectId object) { return driver.store->list_xattrs(object); });
  if (!listed) return reply_object_error(request, listed.error());
  const auto is_trusted = [](std::string_view name) { return name.starts_with("trusted."); };
  const bool hide_trusted = std::ranges::any_of(*listed, is_trusted) && !sees_trusted(request);
  std::string names;
  for (const std::string& name : *listed)
    if (name != kCapability && !is_refused(name) && !(hide_trusted && is_trusted(name))) names.append(name).push_back('\0');
  if (node == FUSE_ROOT_ID || !may_ask_for_facts(request)) return reply_value(request, names, size);
  driver.side_thread.run([&driver, request, node, size, names = std::move(names)]() mutable {
    run_handler(request, [&] {
      if (asks_for_facts(request))
        if (auto facts = facts_of(request, node))
          for (const auto& [key, value] : *facts) names.append(kOwnPrefix).append(key).push_back('\0');
      reply_value(request, names, size);
    });
  });
}

void remove_xattr(const Request& request, fuse_ino_t node, const char* name) {
  Driver& driver = driver_of(request);
  if (std::string_view(name) == std::string(kOwnPrefix).append(kPin))
    return reply_object_status(request, driver.store->set_pinned(object_of(request, node), false));
  if (std::string_view(name).starts_with(kOwnPrefix)) return void(fuse_reply_err(request, EPERM));
  if (is_refused(name)) return void(fuse_reply_err(request, EOPNOTSUPP));
  reply_object_status(request, driver.store->remove_xattr(object_of(request, node), name));
}

}  // namespace

void add_attribute_operations(fuse_lowlevel_ops& operations) {
  operations.getattr = guarded<get_attributes>;
  operations.setattr = guarded<gives_back<set_attributes>>;
  operations.statfs = guarded<statfs>;
  operations.getxattr = guarded<get_xattr>;
  operations.setxattr = guarded<set_xattr>;
  operations.listxattr = guarded<list_xattrs>;
  operations.removexattr = guarded<gives_back<remove_xattr>>;
}

}  // namespace kvcachefs
