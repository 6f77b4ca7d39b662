// A cache of open files for the next reader.
#pragma once

#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/types.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Not thread-safe. Closes no file except in its destructor: files that leave it go to the caller, who may hold a lock.
class FileCache {
 public:
  explicit FileCache(size_t most) : most_(most) {}

  // Null: not in the cache.
  FilePtr find(ExtentId id) {
    const auto found = files_.find(id);
    if (found == files_.end()) return nullptr;
    ages_.splice(ages_.begin(), ages_, found->second.age);
    return found->second.file;
  }
  // Returns the file that is cached from now on: if one was there already, that one. A file evicted for it goes to `dropped`.
  FilePtr add(ExtentId id, FilePtr file, FilePtr& dropped) {
    const auto [entry, fresh] = files_.try_emplace(id);
    if (!fresh) return entry->second.file;
    ages_.push_front(id);
    entry->second = {file, ages_.begin()};
    if (files_.size() > most_) dropped = take(ages_.back());
    return file;
  }
  FilePtr take(ExtentId id) {
    const auto found = files_.find(id);
    if (found == files_.end()) return nullptr;
    FilePtr file = std::move(found->second.file);
    ages_.erase(found->second.age);
    files_.erase(found);
    return file;
  }
  std::vector<FilePtr> take_all() {
    std::vector<FilePtr> all;
    for (auto& [id, cached] : files_) all.push_back(std::move(cached.file));
    files_.clear();
    ages_.clear();
    return all;
  }
  std::vector<ExtentId> ids() const { return {ages_.begin(), ages_.end()}; }

 private:
  struct Cached {
    FilePtr file;
    std::list<ExtentId>::iterator age;
  };
  const size_t most_;
  std::unordered_map<ExtentId, Cached> files_;
  std::list<ExtentId> ages_;  // most recent first
};

}  // namespace kvcachefs
