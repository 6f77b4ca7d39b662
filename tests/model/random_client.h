// Does random things to a store and to the reference and compares what comes back, one call at a time. Everything follows
// from the seed, apart from what the store does by the time of day.
#pragma once

#include <deque>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "store/testing/test_store.h"
#include "tests/model/reference.h"

namespace kvcachefs::testing {

// As the kernel's: more at once, of many clients, need not fit in the smallest memory.
inline constexpr uint64_t kLargestRequestBytes = kMiB;

struct Setting {
  StoreOptions options;
  bool tight = false;  // the capacity is small: calls that need space may be refused
  uint64_t largest_file_bytes = 3 * kMiB;
  size_t names = 12;  // a directory's
};

class RandomClient {
 public:
  RandomClient(uint64_t seed, const Setting& setting);
  ~RandomClient();

  // One random call, compared. False: something differed (and was reported with the last calls).
  bool step();
  // Everything there is, compared.
  bool verify();
  // At the end: everything removed, and all space back.
  bool finish();

 private:
  struct OpenFile {
    Handle* handle = nullptr;
    EntityPtr entity;
    OpenRequest request;
  };
  using Operation = void (RandomClient::*)();
  struct Weighted {
    int weight;
    Operation operation;
  };
  static const std::vector<Weighted>& operations();

  // --- random_names.cc ---
  void create_file();
  void publish();
  void make_directory();
  void make_node();
  void make_symlink();
  void link();
  void unlink();
  void remove_directory();
  void rename();
  void look_up();
  void list_some();

  // --- random_attributes.cc ---
  void change_attributes();
  void change_xattr();

  // --- random_io.cc ---
  void open_file();
  void close_file();
  void write();
  void write_big();
  void read();
  void truncate();
  void allocate();
  void seek();
  void flush();
  void fsync();

  // --- random_whole.cc ---
  void pump_some();
  void drain();
  void drop_caches();
  void set_memory();
  void check_figures();
  void remount();
  void crash_after_drain();

  // --- shared ---
  template <class T, class Call>
  Result<T> wait(Call call);
  void note(std::string text);  // what is being done, for the report
  void differ(const std::string& what);
  bool same_code(Code seen, Code expected);  // reports
  // For calls that may be refused on a full volume: true = done, false = refused (as expected or reported).
  bool allowed(Code seen, Code expected);
  template <class T>
  static Code code_of(const Result<T>& result) {
    return result ? Reference::kGood : result.error().code;
  }
  uint64_t below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool one_in(uint64_t n) { return below(n) == 0; }
  std::string random_name();
  std::string random_bytes(size_t size);
  size_t random_size();
  uint64_t random_offset(uint64_t size);
  EntityPtr random_directory();
  EntityPtr random_file();                  // by a name; null if there is none
  OpenFile* random_open(bool for_writing);  // null if there is none
  Caller caller() const { return {.uid = 0, .gid = 0, .thread_id = thread_id_}; }
  void adopt(const EntityPtr& entity, const Stat& stat);
  Handle* open_handle(const EntityPtr& entity, const OpenRequest& request);
  bool look_up_again(const EntityPtr& entity);
  void release(OpenFile& file);
  void release_all();
  void put(const OpenFile& file, uint64_t offset, const std::string& bytes);
  Code write_code(Handle* handle, uint64_t offset, const std::string& bytes);
  std::string read_bytes(Handle* handle, uint64_t offset, size_t length);
  void compare_bytes(const EntityPtr& entity, uint64_t offset, const std::string& seen, const std::string& expected);
  void compare_stat(Entity& entity, const Stat& stat);
  void compare_xattrs(const Entity& entity);
  void compare_content(const EntityPtr& entity);
  void compare_directory(const EntityPtr& directory);
  Code expected_of(Entity& entity, bool fails, Code seen, Code otherwise = Reference::kGood);
  void note_failed_write(Entity& entity);
  void note_content(Entity& entity);
  void note_emptied(Entity& entity);
  void adopt_undone(const OpenFile& file, bool released);
  void adopt_partly_zeroed(const OpenFile& file, uint64_t offset, uint64_t length, uint64_t new_size);
  void before_unmount();
  bool failed() const { return failed_; }
  int64_t now() const;

  const uint64_t seed_;
  const Setting setting_;
  const uint32_t thread_id_;
  std::mt19937_64 random_;
  std::deque<std::string> log_;
  uint64_t steps_ = 0;
  int64_t start_ns_ = 0;  // of the current call
  bool failed_ = false;
  Reference reference_;
  std::vector<OpenFile> open_;
  std::unordered_set<ObjectId> seen_ids_;
  TestStore store_;
};

}  // namespace kvcachefs::testing
