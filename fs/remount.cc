#include "fs/remount.h"

#include <sys/mount.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "fs/mountpoint.h"
#include "fs/options.h"
#include "store/api/options.h"

namespace kvcachefs {

namespace {

#ifndef MS_NOSYMFOLLOW
#define MS_NOSYMFOLLOW 256
#endif

struct FlagWord {
  std::string_view name;
  unsigned long flag;
  bool set;
};
constexpr FlagWord kFlagWords[] = {
    {"ro", MS_RDONLY, true},           {"rw", MS_RDONLY, false},          {"nosuid", MS_NOSUID, true},
    {"suid", MS_NOSUID, false},        {"nodev", MS_NODEV, true},         {"dev", MS_NODEV, false},
    {"noexec", MS_NOEXEC, true},       {"exec", MS_NOEXEC, false},        {"sync", MS_SYNCHRONOUS, true},
    {"async", MS_SYNCHRONOUS, false},  {"dirsync", MS_DIRSYNC, true},     {"noatime", MS_NOATIME, true},
    {"atime", MS_NOATIME, false},      {"nodiratime", MS_NODIRATIME, true}, {"diratime", MS_NODIRATIME, false},
    {"relatime", MS_RELATIME, true},   {"norelatime", MS_RELATIME, false}, {"nosymfollow", MS_NOSYMFOLLOW, true},
    {"symfollow", MS_NOSYMFOLLOW, false},
};
// Options that mountinfo lists for every FUSE mount and that mount(8) passes back.
constexpr std::string_view kOfEveryMount[] = {"default_permissions", "user_id", "group_id", "max_read", "blksize"};
constexpr char kOptionPrefix[] = "user.kvcachefs.option.";

const FlagWord* flag_word(std::string_view word) {
  for (const FlagWord& known : kFlagWords)
    if (known.name == word) return &known;
  return nullptr;
}

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (size_t start = 0; start <= list.size();) {
    const size_t comma = std::min(list.find(',', start), list.size());
    if (comma > start) words.push_back(list.substr(start, comma - start));
    start = comma + 1;
  }
  return words;
}

unsigned long flags_in_force(const MountedThere& mount) {
  unsigned long flags = 0;
  for (const std::string& word : words_of(mount.options))
    if (const FlagWord* known = flag_word(word); known != nullptr && known->set) flags |= known->flag;
  return flags;
}

Result<std::string> in_force(const std::string& mountpoint, const std::string& name) {
  char value[4096];
  const ssize_t size = getxattr(mountpoint.c_str(), (kOptionPrefix + name).c_str(), value, sizeof value);
  if (size < 0) return fail_errno(errno, fmt::format("{}: the daemon does not tell its option '{}'", mountpoint, name));
  return std::string(value, static_cast<size_t>(size));
}

// The requested changes, sorted by kind.
struct Wanted {
  unsigned long flags = 0;
  std::vector<std::pair<std::string, std::string>> live;  // name and value
};

Status refuse_change(const std::string& name, const std::string& now, const std::string& value) {
  return fail(Code::kInvalid, fmt::format("option '{}' is {} and cannot be changed to {} while mounted; unmount and mount again", name,
                                          now.empty() ? "not set" : now, value));
}

// Sorts in one option of the daemon. Its value has been checked.
Status sort_option(const std::string& mountpoint, const std::string& word, const std::vector<OptionText>& parsed, Wanted& wanted) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  if (name == "nonempty") return {};  // it matters only for a new mount
  const auto entry = std::find_if(parsed.begin(), parsed.end(), [&](const OptionText& option) { return option.name == name; });
  if (entry == parsed.end()) return fail(Code::kInvalid, fmt::format("option '{}' cannot be changed while mounted", name));
  if (entry->live) {
    wanted.live.emplace_back(name, word.substr(equals + 1));
    return {};
  }
  KVC_ASSIGN(const std::string now, in_force(mountpoint, name));
  return now == entry->value ? Status() : refuse_change(name, now, entry->value);
}

// Refuses a change of `noatime`: the daemon keeps read times, as it was told at its start.
Status keep_read_times(const MountedThere& mount, const FlagWord* asked, Wanted& wanted) {
  const bool now = flags_in_force(mount) & MS_NOATIME;
  if (asked != nullptr && asked->set != now) return refuse_change("noatime", now ? "on" : "off", now ? "off" : "on");
  wanted.flags = now ? wanted.flags | MS_NOATIME : wanted.flags & ~static_cast<unsigned long>(MS_NOATIME);
  return {};
}

Result<Wanted> sort_options(const std::string& mountpoint, const MountedThere& mount, const std::vector<std::string>& lists) {
  Wanted wanted;
  if (!called_by_mount8()) wanted.flags = flags_in_force(mount);
  const FlagWord* asked = nullptr;  // the last word about read times
  std::vector<std::string> ours;    // the last word of each name: the values in force, or in fstab, come before the requested ones
  for (const std::string& list : lists)
    for (const std::string& word : words_of(list)) {
      const std::string name = word.substr(0, word.find('='));
      if (word == "remount" || std::find(std::begin(kOfEveryMount), std::end(kOfEveryMount), name) != std::end(kOfEveryMount)) continue;
      const FlagWord* known = flag_word(word);
      if (known != nullptr && known->flag == MS_NOATIME) asked = known;
      if (known == nullptr) {
        std::erase_if(ours, [&](const std::string& earlier) { return earlier.substr(0, earlier.find('=')) == name; });
        ours.push_back(word);
      } else if (known->set) {
        wanted.flags |= known->flag;
      } else {
        wanted.flags &= ~known->flag;
      }
    }
  KVC_TRY(keep_read_times(mount, asked, wanted));
  KVC_ASSIGN(const MountOptions options, parse_mount_options(ours));
  std::vector<OptionText> parsed = store_options_text(options.store);
  for (OptionText& option : mount_options_text(options)) parsed.push_back(std::move(option));
  for (const std::string& word : ours) KVC_TRY(sort_option(mountpoint, word, parsed, wanted));
  if (!(wanted.flags & MS_RDONLY)) {
    KVC_ASSIGN(const std::string now, in_force(mountpoint, "ro"));
    if (now == "on") return std::unexpected(refuse_change("ro", now, "off").error());
  }
  return wanted;
}

Status set_flags(const std::string& mountpoint, const MountedThere& mount, unsigned long flags) {
  const unsigned long now = flags_in_force(mount);
  if (flags == now) return {};
  if ((flags & MS_RDONLY) && !(now & MS_RDONLY) && setxattr((mountpoint + "/.kvcachefs").c_str(), "user.kvcachefs.flush", "1", 1, 0) != 0)
    return fail_errno(errno, fmt::format("{}: writing out what is staged; it stays as it is", mountpoint));
  // Without one of these flags the kernel keeps the current handling of read times; it does not accept both together.
  if (flags & MS_NOATIME)
    flags &= ~static_cast<unsigned long>(MS_RELATIME);
  else
    flags |= MS_RELATIME;
  if (::mount(mount.source.c_str(), mountpoint.c_str(), nullptr, MS_REMOUNT | flags, nullptr) == 0) return {};
  if (errno == EBUSY) return fail(Code::kBusy, fmt::format("{} is busy: files are open for writing below it", mountpoint));
  return fail_errno(errno, fmt::format("remounting {}", mountpoint));
}

Status set_live(const std::string& mountpoint, const MountedThere& mount, const Wanted& wanted) {
  for (const auto& [name, value] : wanted.live) {
    if (setxattr(mountpoint.c_str(), (kOptionPrefix + name).c_str(), value.data(), value.size(), 0) == 0) continue;
    if (errno == EROFS && (flags_in_force(mount) & wanted.flags & MS_RDONLY))  // the mount is read-only, not the volume
      return fail(Code::kReadOnly, fmt::format("option '{}' cannot be changed: {} is read-only; remount it rw first", name, mountpoint));
    return fail_errno(errno, fmt::format("option {}={}: {}/.kvcachefs/log says more", name, value, mountpoint));
  }
  return {};
}

Status remount(const MountRequest& request) {
  char* resolved = realpath(request.mountpoint.c_str(), nullptr);
  if (resolved == nullptr) return fail_errno(errno, request.mountpoint);
  const std::string mountpoint(resolved);
  free(resolved);
  const auto mount = mounted_on(mountpoint);
  if (!mount || mount->type != kMountType)
    return fail(Code::kInvalid, fmt::format("{}: no kvcachefs is mounted there that could be remounted", mountpoint));
  char* volume = realpath(request.volume.c_str(), nullptr);
  const bool same = request.volume == mount->source || (volume != nullptr && mount->source == volume);
  free(volume);
  if (!same)
    return fail(Code::kInvalid, fmt::format("{} is a mount of {}, not of {}", mountpoint, mount->source, request.volume));
  KVC_ASSIGN(const Wanted wanted, sort_options(mountpoint, *mount, request.options));
  // Attributes of a read-only mount cannot be set, so set them while it is writable.
  const bool first_live = wanted.flags & MS_RDONLY;
  if (first_live) KVC_TRY(set_live(mountpoint, *mount, wanted));
  KVC_TRY(set_flags(mountpoint, *mount, wanted.flags));
  return first_live ? Status() : set_live(mountpoint, *mount, wanted);
}

}  // namespace

bool asks_for_remount(const std::vector<std::string>& lists) {
  for (const std::string& list : lists)
    for (const std::string& word : words_of(list))
      if (word == "remount") return true;
  return false;
}

int run_remount(const MountRequest& request) {
  Status status = remount(request);
  if (status) return 0;
  std::fprintf(stderr, "kvcachefs: %s\n", status.error().message.c_str());
  return 1;
}

}  // namespace kvcachefs
