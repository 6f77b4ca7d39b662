// Requests about directories. An offset is the cookie of the last name given; cookies follow the hash of the name, so they
// stay good while names come and go, and a listing takes time linear in the number of names.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "fs/driver.h"

namespace kvcachefs {

namespace {

constexpr off_t kAfterDot = 1;     // offsets behind "." and ".."; the cookies of names are larger
constexpr off_t kAfterDotDot = 2;
constexpr size_t kNamesInListing = 1024;

// One open directory. The page read last is kept: the kernel asks for some 4 KiB at a time.
struct Listing {
  std::mutex mutex;
  std::vector<DirectoryItem> page;
  size_t next = 0;
  uint64_t page_after = 0;  // the cookie the page starts behind
  bool loaded = false;
};

Listing* listing_of(fuse_file_info* file) { return reinterpret_cast<Listing*>(file->fh); }

void open_directory(const Request& request, fuse_ino_t node, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  auto stat = driver.store->stat(object_of(request, node));
  if (!stat) return reply_object_error(request, stat.error());
  if (stat->nlink == 0) return reply_object_error(request, {Code::kNotFound, 0, "a directory that was removed"});
  auto listing = std::make_unique<Listing>();
  file->fh = reinterpret_cast<uint64_t>(listing.get());
  file->keep_cache = 0;
  if (fuse_reply_open(request, file) == 0) listing.release();
}

void release_directory(const Request& request, fuse_ino_t, fuse_file_info* file) {
  delete listing_of(file);
  fuse_reply_err(request, 0);
}

// Adds entries until the reply is full. Memory grows with what is added: the kernel asks for as much as its reader has room for, often 1 MiB,
// and most directories of chunks have a handful of names.
class ReplyBuffer {
 public:
  ReplyBuffer(const Request& request, size_t size, bool plus)
      : request_(request), plus_(plus), size_(size), bytes_(std::min<size_t>(size, 4096)) {}
  // False: no room.
  bool add(const std::string& name, const fuse_entry_param& entry, off_t offset) {
    while (!add_to_memory(name, entry, offset)) {
      if (bytes_.size() == size_) return false;
      bytes_.resize(std::min(size_, 2 * bytes_.size()));
    }
    return true;
  }
  bool empty() const { return used_ == 0; }
  void reply() { fuse_reply_buf(request_, bytes_.data(), used_); }

 private:
  bool add_to_memory(const std::string& name, const fuse_entry_param& entry, off_t offset) {
    const size_t left = bytes_.size() - used_;
    const size_t needed = plus_ ? fuse_add_direntry_plus(request_.get(), bytes_.data() + used_, left, name.c_str(), &entry, offset)
                                : fuse_add_direntry(request_.get(), bytes_.data() + used_, left, name.c_str(), &entry.attr, offset);
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

// The next item behind `after`, loading a page when needed. Null at the end.
Result<const DirectoryItem*> next_item(Store& store, ObjectId directory, Listing& listing, uint64_t after) {
  const bool continues = listing.loaded && (listing.next == 0 ? listing.page_after == after
                                                              : listing.page[listing.next - 1].cookie == after);
  if (!continues || listing.next == listing.page.size()) {
    KVC_ASSIGN(listing.page, store.list(directory, after, kNamesInListing));
    listing.loaded = true;
    listing.next = 0;
    listing.page_after = after;
  }
  return listing.page.empty() ? nullptr : &listing.page[listing.next];
}

// Fills the buffer from `offset` on.
Status fill(const Request& request, ObjectId directory, Listing& listing, off_t offset, bool plus, ReplyBuffer& buffer) {
  Driver& driver = driver_of(request);
  std::lock_guard lock(listing.mutex);
  if (offset < kAfterDot && !buffer.add(".", dot_entry(directory), kAfterDot)) return {};
  if (offset < kAfterDotDot && !buffer.add("..", dot_entry(directory), kAfterDotDot)) return {};
  uint64_t after = offset <= kAfterDotDot ? 0 : static_cast<uint64_t>(offset);
  while (true) {
    KVC_ASSIGN(const DirectoryItem* item, next_item(*driver.store, directory, listing, after));
    if (item == nullptr) return {};
    fuse_entry_param param{};
    // The page may be older than this request: a name that means another object by now gets nodeid 0, and the kernel looks it up itself.
    // So do directories, because the kernel caches their names for long.
    if (plus && !S_ISDIR(item->type_bits)) {
      auto stat = driver.store->stat_entry(directory, item->name, item->id);
      if (stat) param = to_entry(driver, *stat);
    }
    if (!plus || param.ino == 0) {
      param.attr.st_ino = item->id.value;
      param.attr.st_mode = item->type_bits;
    }
    if (!buffer.add(item->name, param, static_cast<off_t>(item->cookie))) return {};
    after = item->cookie;
    ++listing.next;
  }
}

void read_directory(const Request& request, fuse_ino_t node, size_t size, off_t offset, fuse_file_info* file, bool plus) {
  if (plus) driver_of(request).gone_names.note_listing();
  ReplyBuffer buffer(request, size, plus);
  Status filled = fill(request, object_of(request, node), *listing_of(file), offset, plus, buffer);
  // The listing is not touched from here on: once replied, RELEASEDIR may come on another thread and free it.
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
