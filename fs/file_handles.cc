#include "fs/file_handles.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "fs/driver.h"
#include "store/base/log.h"

namespace kvcachefs {

namespace {

constexpr size_t kNamesSearched = 1024;

// The answer repeats the nodeid.
void reply_node(const Request& request, ObjectId node) {
  Driver& driver = driver_of(request);
  const auto stat = stat_shown(driver, node);
  // The kernel does not repeat the call: the program that uses the handle gets this ESTALE.
  if (!stat) return void(fuse_reply_err(request, stat.error().code == Code::kNotFound ? ESTALE : errno_to_answer(stat.error())));
  if (stat->nlink == 0) return void(fuse_reply_err(request, ESTALE));  // removed: its attributes are kept a little longer
  const fuse_entry_param entry = to_entry(driver, node, *stat);
  driver.passthrough.tell_again(node);
  if (fuse_reply_entry(request, &entry) != 0) driver.passthrough.forget_node(node, 1);
}

}  // namespace

bool FileHandles::answers_lookup(const Request& request, fuse_ino_t node, std::string_view name) {
  if (name == ".") {
    reply_node(request, ObjectId{node});
    return true;
  }
  if (name != "..") return false;
  driver_.side_thread.run([this, request, node] { run_handler(request, [&] { answer_parent(request, ObjectId{node}); }); });
  return true;
}

void FileHandles::answer_parent(const Request& request, ObjectId directory) {
  const auto parent = parent_of(directory);
  if (parent) return reply_node(request, *parent);
  fuse_reply_err(request, driver_.side_thread.stopping() ? EIO : ESTALE);
}

std::optional<ObjectId> FileHandles::parent_of(ObjectId directory) {
  if (directory == kRootId) return kRootId;
  for (bool looked = false;; looked = true) {
    const auto known = std::lower_bound(parents_.begin(), parents_.end(), std::pair{directory, ObjectId{}});
    if (known != parents_.end() && known->first == directory && (looked || holds(known->second, directory))) return known->second;
    if (looked || driver_.side_thread.stopping() || !driver_.store->stat(directory)) return std::nullopt;
    look_at_all_directories();
  }
}

// Whether `parent` still contains `child`, which may have been moved since.
bool FileHandles::holds(ObjectId parent, ObjectId child) const {
  for (uint64_t after = 0; !driver_.side_thread.stopping();) {
    auto page = driver_.store->list(parent, after, kNamesSearched);
    if (!page || page->empty()) return false;
    for (const DirectoryItem& item : *page)
      if (item.id == child) return true;
    after = page->back().cookie;
  }
  return false;
}

void FileHandles::look_at_all_directories() {
  parents_ = {};
  std::vector<std::pair<ObjectId, ObjectId>> found;
  std::vector<ObjectId> to_look_at = {kRootId};
  while (!to_look_at.empty() && !driver_.side_thread.stopping()) {
    const ObjectId directory = to_look_at.back();
    to_look_at.pop_back();
    for (uint64_t after = 0; !driver_.side_thread.stopping();) {
      auto page = driver_.store->list(directory, after, kNamesSearched);
      if (!page) log::debug("file handles: listing {}: {}", directory.value, page.error().message);  // removed meanwhile
      if (!page || page->empty()) break;
      for (const DirectoryItem& item : *page) {
        if (!S_ISDIR(item.type_bits)) continue;
        found.emplace_back(item.id, directory);
        to_look_at.push_back(item.id);
      }
      after = page->back().cookie;
    }
  }
  std::sort(found.begin(), found.end());
  parents_ = std::move(found);
}

}  // namespace kvcachefs
