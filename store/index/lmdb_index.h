// The Index over LMDB: reads through the layers of the overlay, newest first, then LMDB.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/index/absent_names.h"
#include "store/index/batch_applier.h"
#include "store/index/bulk_loader.h"
#include "store/index/index.h"
#include "store/index/index_directory.h"
#include "store/index/lmdb_env.h"
#include "store/index/overlay.h"

namespace kvcachefs {

// Address space reserved for the map, neither memory nor disk. It grows as needed.
inline constexpr uint64_t kMapBytes = uint64_t{64} << 30;

class LmdbIndex final : public Index, private RowSource {
 public:
  // Index::open() with another map size, for tests.
  static Result<std::unique_ptr<Index>> open(const std::string& directory, const IndexIdentity& identity, Found* found,
                                             std::string* why, uint64_t map_bytes);

  bool was_closed_cleanly() const override { return closed_cleanly_; }
  bool replaced_another() const override { return replaced_another_; }
  JournalPosition position() const override;
  Stamp stamp() const override;
  IndexTotals totals() const override;
  uint64_t highest_number(uint32_t epoch) const override;
  uint64_t highest_extent(uint32_t epoch) const override;

  Result<std::optional<NameEntry>> find_name(ObjectId parent, std::string_view name) const override;
  Result<std::optional<ObjectRecord>> find_object(ObjectId id) const override;
  Result<std::optional<ObjectRecord>> find_object_summary(ObjectId id) const override;
  Result<std::vector<NameEntry>> list(ObjectId parent, uint64_t after, size_t limit) const override;
  Result<bool> is_empty(ObjectId directory) const override;
  Result<std::optional<SuccessorsRecord>> find_successors(ObjectId id) const override;
  Result<std::optional<ExtentUsage>> find_extent(ExtentId id) const override;
  bool damaged() const override { return env_->damaged() || lacks_batch_; }
  void give_up_commits() override { lacks_batch_ = true; }
  Result<std::unique_ptr<Index>> begin_rebuild() override;
  Status finish_rebuild(std::unique_ptr<Index> filled) override;

  Result<std::vector<FreedPlace>> apply(const Batch& batch, JournalPosition after) override;
  void limit_kept(uint64_t most_bytes) override { most_kept_bytes_ = most_bytes; }
  void keep_in_memory() const override;
  void let_go_of_mapped() const override;
  void set_let_go_wanted(std::function<void()> wanted) override { let_go_wanted_ = std::move(wanted); }
  uint64_t unused_bytes() const override { return env_->pages().unused_bytes; }
  bool give_back_unused() override;
  void freeze() override;
  JournalPosition next_position() const override;
  Status commit() override;
  uint64_t overlay_rows() const override;
  uint64_t growth_bytes() const override;
  std::optional<Leftovers> leftovers() const override { return leftovers_; }
  void set_leftovers(Leftovers leftovers) override { leftovers_ = std::move(leftovers); }
  ScrubMark scrub_mark() const override;
  void set_scrub_mark(const ScrubMark& mark) override;
  Result<std::vector<ObjectId>> objects_after(ObjectId after, size_t limit) const override;

  Status begin_load() override;
  Status load(Record&& record) override;
  Status finish_load(JournalPosition position, Stamp stamp) override;

  Status scan_objects(const std::function<bool(ObjectRecord&&)>& row) const override;
  Status scan_names(const std::function<bool(NameRecord&&)>& row) const override;
  Status scan_successors(const std::function<bool(SuccessorsRecord&&)>& row) const override;
  Status scan_extents(const std::function<bool(ExtentId, const ExtentUsage&)>& row) const override;
  Status scan_peer_records(const std::function<bool(Record&&)>& row) const override;
  Status forget_statements(std::string_view node, JournalPosition answered) override;
  Result<std::vector<ObjectId>> scan_nameless() const override;

  Status close_clean() override;

 private:
  explicit LmdbIndex(IndexDirectory directory) : directory_(std::move(directory)) {}
  Status open_existing(const IndexIdentity& identity, uint64_t map_bytes);
  Status create(const IndexIdentity& identity, uint64_t map_bytes);
  Status read_epochs();
  Status read_leftovers();
  Status read_scrub_mark();
  Status write_scrub_mark();
  Result<uint64_t> check_file();  // returns its unused bytes; 0 if it is too large to be checked

  // RowSource: the state with everything applied so far.
  Result<std::shared_ptr<const ObjectRow>> read_object(ObjectId id) const override;
  Result<bool> has_object(ObjectId id) const override;
  Result<NameRow> read_names(NameKey key) const override;
  Result<ExtentUsage> read_extent(ExtentId id) const override;
  Result<bool> has_names(ObjectId directory, const NameRows::Rows& above) const override;
  EpochHighs read_epoch(uint32_t epoch) const override;

  // The overlay's names of a directory after `after`, merged from all layers, complete up to cookie `covered`.
  struct OverlayNames {
    std::map<uint64_t, NameRow> rows;
    uint64_t covered = 0;
  };
  OverlayNames overlay_names(ObjectId parent, uint64_t after, size_t limit,
                             const NameRows::Rows* above) const;
  Result<std::vector<NameEntry>> merge_names(ObjectId parent, uint64_t after, size_t limit,
                                             const NameRows::Rows* above) const;
  // Looks the key up in the layers, newest first; null if none has the row.
  template <class Map, class Key>
  const typename Map::mapped_type* in_overlay(Map Layer::* table, const Key& key) const;
  // Reports a decoding error as damage. The row's checksum matched, so another program wrote it, or memory is bad.
  template <class T>
  Result<T> checked(Result<T>&& decoded) const;

  // The content of one commit's transaction.
  struct Frozen {
    Layer rows;
    IndexState state;
  };
  void freeze_locked();
  // Newest first, until `visit` returns true. With overlay_mutex_ held.
  template <class Visit>
  bool visit_layers(const Visit& visit) const {
    return visit(active_) || (waiting_ && visit(waiting_->rows)) || (writing_ && visit(writing_->rows));
  }
  enum class LetsGo : uint8_t { kItself, kAnother };
  void count_mapped(uint64_t value_bytes, LetsGo who) const;
  Result<bool> get(Table table, ByteSpan key, Bytes& value) const;
  Status scan_whole(Table table, const LmdbEnv::RowFunction& row) const;
  Status write_transaction(const Frozen& frozen);
  Status write_rows(LmdbEnv::Writer& writer, const Layer& rows, const IndexState& state) const;

  IndexDirectory directory_;
  std::unique_ptr<LmdbEnv> env_;
  std::unique_ptr<BulkLoader> loader_;  // holds LmdbEnv's writer from begin_load() to finish_load(), on one thread
  std::atomic<bool> loading_ = false;
  std::atomic<bool> lacks_batch_ = false;  // see give_up_commits()

  IndexIdentity identity_;  // fixed by open()
  Mutex<LockRank::kIndexCommit> commit_mutex_;
  std::optional<Leftovers> leftovers_;  // touched only by the thread that commits
  static constexpr uint64_t kKeptBytes = 128 * kMiB;  // some 600,000 chunks; beyond this the kernel chooses what stays
  std::atomic<uint64_t> most_kept_bytes_{kKeptBytes};
  mutable std::atomic<uint64_t> touched_bytes_{0};  // by reads and commits since let_go_of_mapped()
  mutable std::atomic<bool> let_go_asked_{false};   // let_go_wanted_ was called since then
  std::function<void()> let_go_wanted_;             // may be empty
  mutable std::atomic<uint64_t> kept_bytes_{16 * kMiB};  // mapped bytes to keep in memory; more after keep_in_memory()
  mutable LeafMutex scrub_mutex_;       // a leaf; guards the next two
  ScrubMark scrub_mark_, scrub_found_;  // scrub_found_: as open() found it
  mutable SharedMutex<LockRank::kIndex> overlay_mutex_;  // held over memory work only
  mutable AbsentNames absent_;
  bool closed_cleanly_ = false;              // fixed by open()
  bool replaced_another_ = false;            // likewise
  bool is_of_another_ = false;  // set by open_existing() when it fails for that
  bool half_loaded_ = false;  // a bulk load into it was cut short
  // All below is guarded by overlay_mutex_. The layers, newest first:
  Layer active_;
  std::unique_ptr<Frozen> waiting_;  // for the next commit()
  std::unique_ptr<Frozen> writing_;  // constant while set: commit() reads it without the lock
  bool frozen_since_commit_ = false;
  IndexState state_;                       // with everything applied
  uint64_t batches_ = 0;                   // raised with each batch and each change of the file; what absent_ holds is as of this
  std::map<uint32_t, EpochHighs> epochs_;  // with everything applied
  JournalPosition committed_;
};

template <class T>
Result<T> LmdbIndex::checked(Result<T>&& decoded) const {
  if (!decoded) return env_->damage(decoded.error().message);
  return std::move(decoded);
}

}  // namespace kvcachefs
