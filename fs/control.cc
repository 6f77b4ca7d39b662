#include "fs/control.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "fs/driver.h"
#include "fs/status_text.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kDirectory = 1;
constexpr std::pair<const char*, uint64_t> kFiles[] = {{"status", 2}, {"metrics", 3}, {"options", 4}, {"log", 5}, {"chains", 6}};

fuse_ino_t node_of(uint64_t number) { return ObjectId::make(kControlOrdinal, 0, number).value; }
uint64_t number_of(fuse_ino_t node) { return ObjectId{node}.number(); }

// True for root and the user who mounted: they may change the mount as a whole, whatever the mode of the root directory is.
bool may_change_mount(const Request& request) {
  const uid_t user = fuse_req_ctx(request)->uid;
  return user == 0 || user == geteuid();
}

struct stat stat_of(Driver& driver, uint64_t number) {
  struct stat result {};
  result.st_ino = node_of(number);
  result.st_mode = number == kDirectory ? S_IFDIR | 0755 : S_IFREG | 0444;
  result.st_nlink = number == kDirectory ? 2 : 1;
  result.st_uid = getuid();
  result.st_gid = getgid();
  result.st_atim.tv_sec = result.st_mtim.tv_sec = result.st_ctim.tv_sec = driver.started_s;
  return result;
}

std::string content(Driver& driver, uint64_t number) {
  switch (number) {
    case 2: return status_json(driver);
    case 3: return metrics_text(driver);
    case 4: return options_text(driver);
    case 6: return driver.store->chains_text();
    default: break;
  }
  std::string text;
  for (const std::string& line : log::recent()) text += line;
  return text;
}

// Replies the root, which contains the virtual directory; an error if the store cannot stat it.
void reply_parent(const Request& request) {
  Driver& driver = driver_of(request);
  auto stat = driver.store->stat(kRootId);
  if (!stat) return reply_error(request, stat.error());
  const fuse_entry_param entry = to_entry(driver, *stat);
  fuse_reply_entry(request, &entry);
}

// Returns the number of the node with this name; 0 if there is none.
uint64_t number_of_name(fuse_ino_t parent, std::string_view name) {
  if (parent == FUSE_ROOT_ID) return kDirectory;
  if (name == ".") return number_of(parent);  // lookup for a file handle
  for (const auto& [file, number] : kFiles)
    if (name == file) return number;
  return 0;
}

void look_up_control(const Request& request, fuse_ino_t parent, const char* name) {
  if (std::string_view(name) == "..") return reply_parent(request);  // lookup for a file handle
  const uint64_t number = number_of_name(parent, name);
  if (number == 0) return void(fuse_reply_err(request, ENOENT));
  fuse_entry_param entry{};
  entry.ino = node_of(number);
  entry.attr = stat_of(driver_of(request), number);
  entry.entry_timeout = kEntryTimeoutSeconds;
  entry.attr_timeout = kAttributeTimeoutSeconds;
  fuse_reply_entry(request, &entry);
}

void get_control_attributes(const Request& request, fuse_ino_t node, fuse_file_info*) {
  const struct stat attributes = stat_of(driver_of(request), number_of(node));
  fuse_reply_attr(request, &attributes, kAttributeTimeoutSeconds);
}

void open_control(const Request& request, fuse_ino_t node, fuse_file_info* file) {
  if ((file->flags & O_ACCMODE) != O_RDONLY) return void(fuse_reply_err(request, EACCES));
  Driver& driver = driver_of(request);
  file->fh = driver.control_texts.open(content(driver, number_of(node)));  // a reader sees the text of one moment
  file->direct_io = 1;  // stat shows size 0; direct reads go beyond it
  file->noflush = 1;
  if (fuse_reply_open(request, file) != 0) driver.control_texts.close(file->fh);
}

// If the text was dropped because many others were opened since, a reader at offset 0 gets the current text; any other reader gets an error.
void read_control(const Request& request, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  const auto start = static_cast<size_t>(offset);
  std::optional<std::string> piece = driver.control_texts.read(file->fh, start, size);
  if (!piece && start == 0) {
    driver.control_texts.renew(file->fh, content(driver, number_of(node)));
    piece = driver.control_texts.read(file->fh, start, size);
  }
  if (!piece) return void(fuse_reply_err(request, ESTALE));
  fuse_reply_buf(request, piece->data(), piece->size());
}

void release_control(const Request& request, fuse_ino_t, fuse_file_info* file) {
  driver_of(request).control_texts.close(file->fh);
  fuse_reply_err(request, 0);
}

void open_control_directory(const Request& request, fuse_ino_t, fuse_file_info* file) {
  file->keep_cache = 0;
  fuse_reply_open(request, file);
}

// Does the same as the attribute `flush`, for a mount that has become read-only, where the kernel lets no attribute be set. For users who may not
// flush the mount it does nothing and replies success.
void sync_control_directory(const Request& request, fuse_ino_t, int, fuse_file_info*) {
  Driver& driver = driver_of(request);
  if (!may_change_mount(request) || driver.store->options().read_only) return void(fuse_reply_err(request, 0));
  driver.store->drain(true, driver.interruptible.answering(request));
}

template <bool plus>
void list_control_names(const Request& request, fuse_ino_t, size_t size, off_t offset, fuse_file_info*) {
  std::vector<char> bytes(size);
  size_t used = 0;
  for (off_t at = offset; at < static_cast<off_t>(std::size(kFiles)); ++at) {
    const auto& [name, number] = kFiles[at];
    fuse_entry_param entry{};
    entry.attr = stat_of(driver_of(request), number);
    if (plus) entry.ino = node_of(number);
    entry.attr_timeout = entry.entry_timeout = kEntryTimeoutSeconds;
    const size_t needed = plus ? fuse_add_direntry_plus(request.get(), bytes.data() + used, size - used, name, &entry, at + 1)
                               : fuse_add_direntry(request.get(), bytes.data() + used, size - used, name, &entry.attr, at + 1);
    if (needed > size - used) break;
    used += needed;
  }
  fuse_reply_buf(request, bytes.data(), used);
}

std::optional<std::string_view> own_name(fuse_ino_t node, const char* name) {
  constexpr std::string_view kPrefix = "user.kvcachefs.";
  const std::string_view wanted(name);
  if (number_of(node) != kDirectory || !wanted.starts_with(kPrefix)) return std::nullopt;
  return wanted.substr(kPrefix.size());
}

// Answers once all changes that were on the volume before are visible here, and the kernel uses no answer that it cached earlier.
void refresh(const Request& request, InterruptibleAnswers::Reply reply) {
  Driver& driver = driver_of(request);
  driver.store->refresh([&driver, answer = driver.interruptible.answering(request, reply)](Status status) mutable {
    driver.gone_names.forget_all([answer = std::move(answer), status = std::move(status)]() mutable { answer(std::move(status)); });
  });
}

// Reading `refresh` does the same as setting it, because on a read-only mount the kernel lets no attribute be set.
void get_control_xattr(const Request& request, fuse_ino_t node, const char* name, size_t size) {
  const auto wanted = own_name(node, name);
  if (wanted == "refresh") {
    if (!may_change_mount(request)) return void(fuse_reply_err(request, EPERM));
    if (size == 0) return reply_value(request, "1", size);
    return refresh(request, [](const Request& asked, const Status& status) { status ? reply_value(asked, "1", 1) : reply_error(asked, status.error()); });
  }
  const auto value = wanted ? mount_attribute(driver_of(request), *wanted) : std::nullopt;
  if (!value) return void(fuse_reply_err(request, ENODATA));
  reply_value(request, *value, size);
}

void set_control_xattr(const Request& request, fuse_ino_t node, const char* name, const char* value, size_t size, int) {
  const auto wanted = own_name(node, name);
  if (!wanted) return void(fuse_reply_err(request, EPERM));
  set_mount_attribute(request, *wanted, {value, size});
}

void list_control_xattrs(const Request& request, fuse_ino_t, size_t size) {
  if (size == 0) return void(fuse_reply_xattr(request, 0));
  fuse_reply_buf(request, nullptr, 0);
}

// Replies an errno (or 0) and does nothing else. The arguments are those of the operation in whose entry it is put.
template <int problem, class... Arguments>
void answer(fuse_req_t request, Arguments...) {
  fuse_reply_err(request, problem);
}

}  // namespace

std::optional<std::string> mount_attribute(Driver& driver, std::string_view name) {
  if (name == "status") return status_json(driver);
  if (!name.starts_with("option.")) return std::nullopt;
  name.remove_prefix(std::strlen("option."));
  for (const OptionText& option : store_options_text(driver.store->options()))
    if (option.name == name) return option.value;
  for (const OptionText& option : driver.options_text())
    if (option.name == name) return option.value;
  return std::nullopt;
}

bool is_mount_command(std::string_view name) {
  return name.starts_with("option.") || name == "flush" || name == "drop_caches" || name == "scrub" || name == "refresh";
}

void set_mount_attribute(const Request& request, std::string_view name, std::string_view value) {
  Driver& driver = driver_of(request);
  if (!is_mount_command(name)) return void(fuse_reply_err(request, EOPNOTSUPP));
  if (!may_change_mount(request)) return void(fuse_reply_err(request, EPERM));
  if (name == "refresh") return refresh(request, nullptr);
  if (name == "flush") return driver.store->drain(true, driver.interruptible.answering(request));  // syncs the data of all users
  if (name == "drop_caches") {
    driver.store->drop_caches();
    return void(fuse_reply_err(request, 0));
  }
  if (name == "scrub") return reply_status(request, driver.store->begin_scrub());
  name.remove_prefix(std::strlen("option."));
  Status status = name == "log_level" ? driver.set_option(name, value) : driver.store->set_option(name, value);
  if (!status && status.error().code == Code::kNotFound) status = refuse_mount_option(name, value);
  if (!status) log::warn("setfattr user.kvcachefs.option.{}: {}", name, status.error().message);
  reply_status(request, status);
}

void add_control_operations(fuse_lowlevel_ops& operations) {
  operations.lookup = guarded<look_up_control>;
  operations.mknod = answer<EPERM>;
  operations.mkdir = answer<EPERM>;
  operations.symlink = answer<EPERM>;
  operations.readlink = answer<EINVAL>;
  operations.create = answer<EPERM>;
  operations.link = answer<EPERM>;
  operations.unlink = answer<EPERM>;
  operations.rmdir = answer<EPERM>;
  operations.rename = answer<EPERM>;

  operations.getattr = guarded<get_control_attributes>;
  operations.setattr = answer<EPERM>;
  operations.getxattr = guarded<get_control_xattr>;
  operations.setxattr = guarded<set_control_xattr>;
  operations.listxattr = guarded<list_control_xattrs>;
  operations.removexattr = answer<EPERM>;

  operations.open = guarded<open_control>;
  operations.release = guarded<release_control>;
  operations.read = guarded<read_control>;
  operations.write = answer<EPERM>;
  operations.flush = answer<0>;
  operations.fsync = answer<0>;
  operations.fallocate = answer<EPERM>;
  operations.lseek = answer<EINVAL>;
  operations.copy_file_range = answer<EXDEV>;

  operations.opendir = guarded<open_control_directory>;
  operations.releasedir = answer<0>;
  operations.readdir = guarded<list_control_names<false>>;
  operations.readdirplus = guarded<list_control_names<true>>;
  operations.fsyncdir = guarded<sync_control_directory>;

  operations.getlk = answer<ENOLCK>;
  operations.setlk = answer<ENOLCK>;
  operations.flock = answer<ENOLCK>;
}

}  // namespace kvcachefs
