// A store on a temporary directory, driven from one thread, with the calls a client makes. For tests.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/volume/volume.h"

namespace kvcachefs::testing {

// Of a node of a volume that has others.
inline StoreOptions node_options(const char* name) {
  StoreOptions options;
  options.node = name;
  options.memory_bytes = 64 * kMiB;
  return options;
}

uint64_t file_bytes(const std::string& path);  // that it takes; 0: there is no such file
uint64_t tree_bytes(const std::string& directory);  // ... all files below it, beside those who make and remove some

class TestStore {
 public:
  explicit TestStore(StoreOptions options = {}, Clock& clock = system_clock());
  // Another node, named by the options, of the volume of one that outlives it.
  TestStore(StoreOptions options, const TestStore& first);
  ~TestStore();
  TestStore(const TestStore&) = delete;
  TestStore& operator=(const TestStore&) = delete;

  Store* operator->() { return store_.get(); }
  const std::string& root() const { return root_; }

  void mount();
  void unmount();
  void remount() {
    unmount();
    mount();
  }
  void die();    // the store object goes away without a close
  void crash();  // and a new one is mounted
  void drain();
  void refresh();  // what other nodes published is seen
  // Runs background work until nothing is left to do.
  void settle();

  static std::string payload(int seed, size_t bytes);
  void mkdir(const std::string& path);
  bool write_file(const std::string& path, const std::string& content, uint32_t thread = 1);
  // Where room may be short: false as well where the file was not made for want of it. What was made, and not written whole, stays.
  bool try_write_file(const std::string& path, const std::string& content, uint32_t thread = 1);
  std::string read_file(const std::string& path);
  Code try_read_file(const std::string& path);  // the error; kNoData if there was none
  bool exists(const std::string& path);
  bool rename(const std::string& from, const std::string& to, uint32_t thread = 1);
  bool unlink(const std::string& path);
  bool rmdir(const std::string& path);
  void truncate(const std::string& path, uint64_t size);
  Handle* create(const std::string& path, uint32_t thread = 1);
  Handle* open(const std::string& path, OpenRequest request, uint32_t thread = 1);
  // O_WRONLY|O_TRUNC as the kernel does it: on kStale one more lookup and open. Null if that fails, too.
  Handle* open_for_rewrite(const std::string& path, uint32_t thread);
  void pwrite(Handle* handle, uint64_t offset, const std::string& bytes);
  Code try_pwrite(Handle* handle, uint64_t offset, const std::string& bytes);
  bool close(Handle* handle);
  std::string read(Handle* handle);  // from the beginning to the end
  std::map<std::string, std::string> tree();  // path -> attributes and content
  // path -> content, of directories "/"; each looked up, as clients do.
  std::map<std::string, std::string> contents(const std::string& below = "");
  uint64_t allocated_bytes() const;           // of extents on the volume
  void flip_in_extents(const std::string& needle);

 private:
  bool write_and_close(Handle* handle, const std::string& content);
  ObjectId resolve(const std::string& path);  // 0 if absent
  std::pair<ObjectId, std::string> parent_of(const std::string& path);
  template <class T, class Call>
  Result<T> wait(Call call);
  void add_to_tree(ObjectId directory, const std::string& path, std::map<std::string, std::string>& tree);

  std::string root_;
  bool owns_root_ = true;
  StoreOptions options_;
  Clock& clock_;
  std::unique_ptr<Store> store_;
};

// Until each has read and answered what the other published before. `second` null: that one does not run.
inline void publish(TestStore& first, TestStore* second) {
  for (int round = 0; round < 3; ++round) {
    first.drain();
    if (second != nullptr) second->drain();
    first.refresh();
    if (second != nullptr) second->refresh();
  }
}

}  // namespace kvcachefs::testing
