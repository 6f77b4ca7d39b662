// Shared by the tests of the index: a scratch directory, a plain model of the index, and random batches.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/records.h"
#include "store/index/index.h"

namespace kvcachefs::index_test {

// Removed with its content. Under TMPDIR, else /tmp; in memory: under /dev/shm if that is writable.
class ScratchDirectory {
 public:
  enum Where { kOnDisk, kInMemory };
  explicit ScratchDirectory(Where where = kOnDisk);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  std::string path(const std::string& below = {}) const { return below.empty() ? path_ : path_ + "/" + below; }

 private:
  std::string path_;
};

IndexIdentity identity();
// Opens an index; fails the test if that fails or `found` differs from `expected`.
std::unique_ptr<Index> open_index(const std::string& directory, Index::Found expected, std::string* why = nullptr);

ObjectRecord make_file(ObjectId id, Place place, uint64_t size_bytes = 5000);
ObjectRecord make_directory(ObjectId id);
Place packed(uint64_t extent, uint64_t block, uint64_t length = 5000);

// A naive model of the index: no rows, no layers, everything computed anew when asked.
class Model {
 public:
  // Returns the places that become free, by (extent, offset).
  std::set<std::pair<ExtentId, uint64_t>> apply(const Batch& batch);

  std::map<ObjectId, ObjectRecord> objects;
  std::map<std::pair<ObjectId, std::string>, ObjectId> names;
  std::map<ObjectId, SuccessorsRecord> successors;

  bool is_directory(ObjectId id) const;
  uint32_t nlink(ObjectId id) const;
  size_t names_of(ObjectId child) const;
  bool has_children(ObjectId directory) const;
  IndexTotals totals() const;
  std::map<ExtentId, ExtentUsage> extents() const;

 private:
  void name(const NameRecord& record, std::set<ObjectId>& losers);
  std::set<std::pair<ExtentId, uint64_t>> places() const;
};

// Makes batches as a store would journal them, and some that it should not.
class BatchMaker {
 public:
  explicit BatchMaker(uint64_t seed) : random_(seed) {}
  Batch make(const Model& model);
  // The object with this number, spread over several epochs; the first numbers are the root's and those of no object.
  static ObjectId id_of(uint64_t number) {
    return number < 10 ? ObjectId{number} : ObjectId::make(0, 1 + static_cast<uint32_t>(number / 300), number);
  }
  uint64_t below(uint64_t end) { return random_() % end; }

 private:
  void add_operation(const Model& model, std::vector<Record>& records);
  void add_odd_operation(const Model& model, std::vector<Record>& records);
  void add_new(const Model& model, std::vector<Record>& records);
  void add_takeover(const Model& model, std::vector<Record>& records);
  void add_change(const Model& model, std::vector<Record>& records);
  ObjectId new_id() { return id_of(next_number_++); }
  Place new_place();
  std::string some_name();
  ObjectId some_directory(const Model& model);
  ObjectId some_object(const Model& model, bool file_only);
  std::pair<std::pair<ObjectId, std::string>, ObjectId> some_entry(const Model& model);

  std::mt19937_64 random_;
  uint64_t next_number_ = 10;
  uint64_t next_block_ = 1;
  uint64_t stamp_ = 1000;
};

// Compares every answer of the index with the model's.
void expect_same(const Index& index, const Model& model);
// The same for the scans; everything applied must be committed.
void expect_same_scans(const Index& index, const Model& model);
// Streams the committed state of `from` into a fresh index, as a checkpoint would.
Status copy_by_load(const Index& from, Index& into, JournalPosition position);

}  // namespace kvcachefs::index_test
