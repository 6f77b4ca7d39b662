#include "fs/control.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "fs/driver.h"
#include "fs/status_text.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kDirectory = 1;
constexpr std::pair<const char*, uint64_t> kFiles[] = {{"status", 2}, {"metrics", 3}, {"options", 4}, {"log", 5}, {"chains", 6}};

fuse_ino_t node_of(uint64_t number) { return ObjectId::make(ControlFiles::kOrdinal, 0, number).value; }
uint64_t number_of(fuse_ino_t node) { return ObjectId{node}.number(); }

// Of the mount as a whole: root's, and of who mounted it. Who may write the root directory is another matter.
bool may_change_mount(fuse_req_t request) {
  const uid_t user = fuse_req_ctx(request)->uid;
  return user == 0 || user == geteuid();
}

}  // namespace

ControlFiles::ControlFiles(Driver& driver) : driver_(driver), started_s_(std::time(nullptr)) {}

struct stat ControlFiles::stat_of(uint64_t number) {
  struct stat result {};
  result.st_ino = node_of(number);
  result.st_mode = number == kDirectory ? S_IFDIR | 0555 : S_IFREG | 0444;
  result.st_nlink = number == kDirectory ? 2 : 1;
  result.st_uid = getuid();
  result.st_gid = getgid();
  result.st_atim.tv_sec = result.st_mtim.tv_sec = result.st_ctim.tv_sec = started_s_;
  return result;
}

std::string ControlFiles::content(uint64_t number) {
  switch (number) {
    case 2: return status_json(driver_);
    case 3: return metrics_text(driver_);
    case 4: return options_text(driver_);
    case 6: return driver_.store->chains_text();
    default: break;
  }
  std::string text;
  for (const std::string& line : log::recent()) text += line;
  return text;
}

bool ControlFiles::answers_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  uint64_t number = 0;
  if (parent == FUSE_ROOT_ID && std::strcmp(name, ".kvcachefs") == 0) {
    number = kDirectory;
  } else if (owns(parent) && std::strcmp(name, ".") == 0) {  // of a file handle
    number = number_of(parent);
  } else if (owns(parent) && std::strcmp(name, "..") == 0) {
    return false;
  } else if (owns(parent)) {
    for (const auto& [file, value] : kFiles)
      if (std::strcmp(name, file) == 0) number = value;
    if (number == 0) {
      fuse_reply_err(request, ENOENT);
      return true;
    }
  } else {
    return false;
  }
  fuse_entry_param entry{};
  entry.ino = node_of(number);
  entry.attr = stat_of(number);
  entry.entry_timeout = kEntryTimeoutSeconds;
  entry.attr_timeout = kAttributeTimeoutSeconds;
  fuse_reply_entry(request, &entry);
  return true;
}

bool ControlFiles::answers_attributes(fuse_req_t request, fuse_ino_t node) {
  if (!owns(node)) return false;
  const struct stat attributes = stat_of(number_of(node));
  fuse_reply_attr(request, &attributes, kAttributeTimeoutSeconds);
  return true;
}

bool ControlFiles::answers_open(fuse_req_t request, fuse_ino_t node, fuse_file_info* file) {
  if (!owns(node)) return false;
  if ((file->flags & O_ACCMODE) != O_RDONLY) {
    fuse_reply_err(request, EACCES);
    return true;
  }
  auto text = std::make_unique<std::string>(content(number_of(node)));  // one reader sees one moment
  file->fh = reinterpret_cast<uint64_t>(text.get());
  file->direct_io = 1;  // its size is known only now: reads go past the size of 0 that stat tells
  file->noflush = 1;
  if (fuse_reply_open(request, file) == 0) text.release();
  return true;
}

bool ControlFiles::answers_read(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* file) {
  if (!owns(node)) return false;
  const auto& text = *reinterpret_cast<std::string*>(file->fh);
  const size_t start = std::min(text.size(), static_cast<size_t>(offset));
  const std::string piece = text.substr(start, size);  // once the reply is on its way RELEASE may come on another thread
  fuse_reply_buf(request, piece.data(), piece.size());
  return true;
}

bool ControlFiles::answers_release(fuse_req_t request, fuse_ino_t node, fuse_file_info* file) {
  if (!owns(node)) return false;
  delete reinterpret_cast<std::string*>(file->fh);
  fuse_reply_err(request, 0);
  return true;
}

bool ControlFiles::answers_listing(fuse_req_t request, fuse_ino_t node, size_t size, off_t offset, bool plus) {
  if (!owns(node)) return false;
  std::vector<char> bytes(size);
  size_t used = 0;
  for (off_t at = offset; at < static_cast<off_t>(std::size(kFiles)); ++at) {
    const auto& [name, number] = kFiles[at];
    fuse_entry_param entry{};
    entry.attr = stat_of(number);
    if (plus) entry.ino = node_of(number);
    entry.attr_timeout = entry.entry_timeout = kEntryTimeoutSeconds;
    const size_t needed = plus ? fuse_add_direntry_plus(request, bytes.data() + used, size - used, name, &entry, at + 1)
                               : fuse_add_direntry(request, bytes.data() + used, size - used, name, &entry.attr, at + 1);
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, bytes.data(), used);
  return true;
}

std::optional<std::string> ControlFiles::root_attribute(std::string_view name) {
  if (name == "status") return status_json(driver_);
  if (!name.starts_with("option.")) return std::nullopt;
  name.remove_prefix(std::strlen("option."));
  for (const OptionText& option : store_options_text(driver_.store->options()))
    if (option.name == name) return option.value;
  for (const OptionText& option : driver_.options_text())
    if (option.name == name) return option.value;
  return std::nullopt;
}

void ControlFiles::set_root_attribute(fuse_req_t request, std::string_view name, std::string_view value) {
  const bool is_option = name.starts_with("option.");
  const bool is_known = is_option || name == "flush" || name == "drop_caches";
  if (is_known && !may_change_mount(request)) return void(fuse_reply_err(request, EPERM));
  if (name == "flush") return driver_.store->drain(true, replying(request));  // all of it: nothing that anybody may ask for
  if (name == "drop_caches") {
    driver_.store->drop_caches();
    return void(fuse_reply_err(request, 0));
  }
  if (!is_option) return void(fuse_reply_err(request, EOPNOTSUPP));
  name.remove_prefix(std::strlen("option."));
  Status status = name == "log_level" ? driver_.set_option(name, value) : driver_.store->set_option(name, value);
  if (!status) log::warn("setfattr user.kvcachefs.option.{}: {}", name, status.error().message);
  reply_status(request, status);
}

}  // namespace kvcachefs
