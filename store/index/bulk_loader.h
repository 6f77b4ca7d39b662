// Fills an empty index from a checkpoint: appends sorted records to LMDB in a few synced transactions. Until finish() the state row
// says "loading"; an index that is opened in that state is thrown away.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/lmdb_env.h"
#include "store/index/rows.h"

namespace kvcachefs {

class BulkLoader {
 public:
  static Result<std::unique_ptr<BulkLoader>> begin(LmdbEnv& env);

  // Records must come in this order: objects by id, names by (parent, cookie, name), successors by id, then the records about other nodes. Any other
  // order is kCorrupt. After an error the load cannot go on.
  Status load(Record&& record);
  // The load is durable when this returns.
  Status finish(JournalPosition position, Stamp stamp);

  // Valid after finish().
  const IndexState& state() const { return state_; }
  const std::map<uint32_t, EpochHighs>& epochs() const { return epochs_; }

 private:
  explicit BulkLoader(LmdbEnv& env) : env_(env) {}
  // What the names need to know of each object: 10 bytes an object, so 10 M objects take 100 MB for the time of the load.
  struct Loaded {
    std::vector<uint64_t> ids;
    std::vector<uint8_t> types;  // S_IFMT >> 12
    std::vector<uint8_t> names;  // counted so far; 255: see many_names_
  };
  static constexpr size_t kUnknown = SIZE_MAX;
  size_t find(ObjectId id) const;

  Status load_object(const ObjectRecord& object);
  Status load_name(NameRecord&& name);
  Status load_successors(const SuccessorsRecord& record);
  Status load_statement(const StatementRecord& record);
  Status flush_names();
  Status append(Table table, ByteSpan key);  // appends the row in value_
  template <class Row>
  Status put(Table table, const KeyBytes& key, const Row& row);
  Status next_transaction();
  Status correct_counts();
  Status correct(size_t object, uint32_t names);
  Status write_extents_and_epochs();
  Status commit(bool loading);

  LmdbEnv& env_;
  std::optional<LmdbEnv::Writer> writer_;
  uint64_t rows_in_transaction_ = 0;
  uint64_t bytes_in_transaction_ = 0;
  Bytes value_;
  Loaded loaded_;
  std::unordered_map<ObjectId, uint32_t> many_names_;
  std::unordered_map<ObjectId, uint32_t> subdirectories_;
  std::unordered_map<ExtentId, ExtentUsage> extents_;
  std::map<uint32_t, EpochHighs> epochs_;
  IndexState state_;
  NameKey row_key_;  // of the row being gathered
  NameRow row_;
  ObjectId known_parent_;
  StatementKey next_statement_;
};

}  // namespace kvcachefs
