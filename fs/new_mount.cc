#include "fs/new_mount.h"

#include <fcntl.h>
#include <linux/mount.h>  // not together with <sys/mount.h>: that does not compile with older C libraries
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "fs/mountpoint.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

#ifndef MOVE_MOUNT_BENEATH
#define MOVE_MOUNT_BENEATH 0x00000200
#endif

constexpr int kDetach = 2;  // MNT_DETACH of <sys/mount.h>

// Older C libraries have no functions for these system calls.
int move_mount(int from, int to_directory, const char* to, unsigned flags) {
  return static_cast<int>(syscall(SYS_move_mount, from, "", to_directory, to, flags | MOVE_MOUNT_F_EMPTY_PATH));
}

// The effect of a word of the options: attributes of the mount, and a flag of the file system.
struct Word {
  std::string_view name;
  uint64_t set, cleared;
  bool of_file_system;
};
constexpr Word kWords[] = {
    {"ro", MOUNT_ATTR_RDONLY, 0, true},
    {"nosuid", MOUNT_ATTR_NOSUID, 0, false},
    {"suid", 0, MOUNT_ATTR_NOSUID, false},
    {"nodev", MOUNT_ATTR_NODEV, 0, false},
    {"dev", 0, MOUNT_ATTR_NODEV, false},
    {"noexec", MOUNT_ATTR_NOEXEC, 0, false},
    {"exec", 0, MOUNT_ATTR_NOEXEC, false},
    {"noatime", MOUNT_ATTR_NOATIME, 0, false},
    {"atime", 0, MOUNT_ATTR_NOATIME, false},
    {"nodiratime", MOUNT_ATTR_NODIRATIME, 0, false},
    {"sync", 0, 0, true},
    {"async", 0, 0, true},
    {"dirsync", 0, 0, true},
    {"default_permissions", 0, 0, true},
    {"allow_other", 0, 0, true},
};

const Word* find_word(std::string_view name) {
  for (const Word& word : kWords)
    if (word.name == name) return &word;
  return nullptr;
}

class Context {
 public:
  static Result<Context> open() {
    UniqueFd descriptor(static_cast<int>(syscall(SYS_fsopen, "fuse", FSOPEN_CLOEXEC)));
    if (!descriptor.valid()) return fail_errno(errno, "fsopen");
    return Context(std::move(descriptor));
  }
  Status set(const char* name, const std::string& value) { return set(FSCONFIG_SET_STRING, name, value.c_str()); }
  Status set_flag(const char* name) { return set(FSCONFIG_SET_FLAG, name, nullptr); }
  Status create() { return set(FSCONFIG_CMD_CREATE, nullptr, nullptr); }
  Result<UniqueFd> mount(uint64_t attributes) {
    UniqueFd root(static_cast<int>(syscall(SYS_fsmount, descriptor_.get(), FSMOUNT_CLOEXEC, static_cast<unsigned>(attributes))));
    if (!root.valid()) return fail_errno(errno, "fsmount");
    return root;
  }

 private:
  Status set(unsigned command, const char* name, const char* value) {
    if (syscall(SYS_fsconfig, descriptor_.get(), command, name, value, 0) == 0) return {};
    return fail_errno(errno, fmt::format("fsconfig {}", name == nullptr ? "create" : name));
  }
  explicit Context(UniqueFd descriptor) : descriptor_(std::move(descriptor)) {}
  UniqueFd descriptor_;
};

}  // namespace

Result<NewMount> NewMount::make(const std::string& source, const std::vector<std::string>& words) {
  UniqueFd device(::open("/dev/fuse", O_RDWR | O_CLOEXEC));
  if (!device.valid()) return fail_errno(errno, "/dev/fuse");
  KVC_ASSIGN(Context context, Context::open());
  KVC_TRY(context.set("source", source));
  KVC_TRY(context.set("subtype", std::string(kMountType.substr(kMountType.find('.') + 1))));
  KVC_TRY(context.set("fd", fmt::format("{}", device.get())));
  KVC_TRY(context.set("rootmode", fmt::format("{:o}", S_IFDIR)));
  KVC_TRY(context.set("user_id", fmt::format("{}", getuid())));
  KVC_TRY(context.set("group_id", fmt::format("{}", getgid())));
  uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;  // the defaults, unless `words` say otherwise, as in libfuse
  for (const std::string& name : words) {
    const Word* word = find_word(name);
    if (word == nullptr) return fail(Code::kInvalid, fmt::format("option '{}'", name));
    attributes = (attributes | word->set) & ~word->cleared;
    if (word->of_file_system) KVC_TRY(context.set_flag(name.c_str()));
  }
  KVC_TRY(context.create());
  KVC_ASSIGN(UniqueFd root, context.mount(attributes));
  return NewMount(std::move(device), std::move(root));
}

Status NewMount::replace_dead(const std::string& mountpoint) {
  // This descriptor names the very mount to detach, even if another mount comes on top or another program detaches it meanwhile.
  const UniqueFd dead(::open(mountpoint.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct statfs space {};
  if (!dead.valid()) return fail_errno(errno, fmt::format("mountpoint {}", mountpoint));
  if (::fstatfs(dead.get(), &space) == 0 || !means_dead(errno)) {  // the dead mount was unmounted or replaced meanwhile
    if (mounted_on(mountpoint)) return fail(Code::kBusy, fmt::format("mountpoint {} has something else mounted on it by now", mountpoint));
    return put_on(mountpoint);
  }
  const auto detach_dead = [path = fmt::format("/proc/self/fd/{}", dead.get())] { return syscall(SYS_umount2, path.c_str(), kDetach) == 0; };
  if (move_mount(root_.get(), dead.get(), "", MOVE_MOUNT_T_EMPTY_PATH | MOVE_MOUNT_BENEATH) == 0) {
    if (detach_dead()) return {};
    return fail_errno(errno, fmt::format("{}: detaching what a dead daemon left", mountpoint));
  }
  log::debug("{}: no mount beneath another one ({}): that is detached first", mountpoint, std::strerror(errno));
  if (!detach_dead()) return fail_errno(errno, fmt::format("{}: detaching what a dead daemon left", mountpoint));
  return put_on(mountpoint);
}

Status NewMount::put_on(const std::string& mountpoint) {
  if (move_mount(root_.get(), AT_FDCWD, mountpoint.c_str(), 0) == 0) return {};
  return fail_errno(errno, fmt::format("mounting on {}", mountpoint));
}

UniqueFd directory_below(const std::string& mountpoint) {
  const size_t slash = mountpoint.rfind('/');
  const std::string parent = slash == 0 ? "/" : mountpoint.substr(0, slash);
  // A copy of the mount that contains the directory, without what is mounted on the directory.
  const UniqueFd tree(static_cast<int>(syscall(SYS_open_tree, AT_FDCWD, parent.c_str(), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC)));
  if (!tree.valid()) return {};
  return UniqueFd(::openat(tree.get(), mountpoint.c_str() + slash + 1, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

}  // namespace kvcachefs
