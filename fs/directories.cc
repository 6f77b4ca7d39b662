// Requests about directories. An offset is the cookie of the last name given. Cookies are in the order of the names' hashes, so they
// stay valid while names are added and removed, and a listing takes time linear in the number of names.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "fs/driver.h"
#include "fs/listings.h"

namespace kvcachefs {

namespace {

constexpr off_t kAfterDot = 1;     // offsets behind "." and ".."; the cookies of names are larger
constexpr off_t kAfterDotDot = 2;
constexpr size_t kNamesInListing = 1024;
constexpr size_t kLeastEntryBytes = 32;  // smallest size of a name in a reply

// fi->fh of an open directory is its number in Listings.
void open_directory(const Request& request, fuse_ino_t node, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  const auto opened = driver.store->open_directory(object_of(request, node), caller_of(request));
  if (!opened) return reply_error(request, opened.error());
  file->fh = driver.listings.open();
  file->keep_cache = 0;
  fuse_reply_open(request, file);  // if it fails, no RELEASEDIR comes, and Listings keeps nothing for it
}

void release_directory(const Request& request, fuse_ino_t, fuse_file_info* file) {
  driver_of(request).listings.close(file->fh);
  fuse_reply_err(request, 0);
}

// Adds entries until the reply is full. Memory grows with the entries: new kernels ask for as much as the reader's buffer takes, up to 1 MiB,
// but most directories of chunks have a handful of names.
class ReplyBuffer {
 public:
  ReplyBuffer(const Request& request, size_t size, bool plus)
      : request_(request), plus_(plus), size_(size), bytes_(std::min<size_t>(size, 4096)) {}
  // Returns false if there is no room.
  bool add(const char* name, const fuse_entry_param& entry, off_t offset) {
    while (!add_to_memory(name, entry, offset)) {
      if (bytes_.size() == size_) return false;
      bytes_.resize(std::min(size_, 2 * bytes_.size()));
    }
    return true;
  }
  bool empty() const { return used_ == 0; }
  size_t size() const { return size_; }
  void reply() { fuse_reply_buf(request_, bytes_.data(), used_); }

 private:
  bool add_to_memory(const char* name, const fuse_entry_param& entry, off_t offset) {
    const size_t left = bytes_.size() - used_;
    const size_t needed = plus_ ? fuse_add_direntry_plus(request_.get(), bytes_.data() + used_, left, name, &entry, offset)
                                : fuse_add_direntry(request_.get(), bytes_.data() + used_, left, name, &entry.attr, offset);
    if (needed > left) return false;
    used_ += needed;
    return true;
  }

  Request request_;
  bool plus_;
  size_t size_;
  std::vector<char> bytes_;
  size_t used_ = 0;
};

fuse_entry_param dot_entry(ObjectId id) {
  fuse_entry_param entry{};
  entry.attr.st_ino = id.value;
  entry.attr.st_mode = S_IFDIR;
  return entry;
}

// Fills the buffer from `offset` on. `page` holds the rest of the page read last, on entry and on return; none after the last name.
Status fill(const Request& request, ObjectId directory, off_t offset, bool plus, ReplyBuffer& buffer, std::optional<ListingPage>& page) {
  Driver& driver = driver_of(request);
  if (offset < kAfterDot && !buffer.add(".", dot_entry(directory), kAfterDot)) return {};
  if (offset < kAfterDotDot && !buffer.add("..", dot_entry(directory), kAfterDotDot)) return {};
  uint64_t after = offset <= kAfterDotDot ? 0 : static_cast<uint64_t>(offset);
  while (true) {
    const bool goes_on = after == 0 || (page && page->continues(after));
    if (!page || !page->continues(after) || page->empty()) {
      // If the page was dropped, the next one may be dropped, too: then read no more names than this reply has room for.
      const size_t most = goes_on ? kNamesInListing : std::min(kNamesInListing, buffer.size() / kLeastEntryBytes + 1);
      KVC_ASSIGN(const auto items, driver.store->list(directory, after, most));
      page.reset();
      if (items.empty()) return {};
      page.emplace(after, items);
    }
    const ListingPage::Item& item = page->item();
    fuse_entry_param param{};
    // The page may be older than this request: a name that now means another object gets nodeid 0, and the kernel looks it up itself.
    // Nodeid 0 is also given to names whose probes the daemon must see (the kernel's own entry stays as it is), and to directories, because the
    // kernel caches their names for long.
    if (plus && !S_ISDIR(item.type_bits)) {
      auto stat = driver.store->stat_entry(directory, page->name(), item.id);
      if (stat) param = to_entry(driver, *stat);
    }
    if (!plus || param.ino == 0) {
      param.attr.st_ino = item.id.value;
      param.attr.st_mode = item.type_bits;
    }
    if (!buffer.add(page->name(), param, static_cast<off_t>(item.cookie))) {
      driver.passthrough.forget_node(ObjectId{param.ino}, 1);
      return {};
    }
    after = item.cookie;
    page->pass();
  }
}

void read_directory(const Request& request, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* file, bool plus) {
  Driver& driver = driver_of(request);
  if (plus) driver.gone_names.note_listing();
  ReplyBuffer buffer(request, size, plus);
  std::optional<ListingPage> page = driver.listings.take(file->fh);
  Status filled = fill(request, object_of(request, node), offset, plus, buffer, page);
  if (page) driver.listings.keep(file->fh, *std::move(page));
  if (!filled && buffer.empty()) return reply_error(request, filled.error());
  buffer.reply();
}

void read_names(const Request& request, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* file) {
  read_directory(request, node, size, offset, file, false);
}
void read_names_plus(const Request& request, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* file) {
  read_directory(request, node, size, offset, file, true);
}

void sync_directory(const Request& request, fuse_ino_t node, int, fuse_file_info*) {
  Driver& driver = driver_of(request);
  driver.store->sync_directory(object_of(request, node), replying(request));
}

}  // namespace

void add_directory_operations(fuse_lowlevel_ops& operations) {
  operations.opendir = guarded<open_directory>;
  operations.releasedir = guarded<release_directory>;
  operations.readdir = guarded<read_names>;
  operations.readdirplus = guarded<read_names_plus>;
  operations.fsyncdir = guarded<sync_directory>;
}

}  // namespace kvcachefs
