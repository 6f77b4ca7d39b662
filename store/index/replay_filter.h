// Decides which records of checkpoint and journals are believed. All records enter an index through it, at a mount as in fsck, --repair and rebuild:
//   - records that no daemon writes are left out, with the reason: impossible records, ids and places of later epochs, places that hold
//     another body, directories that form no tree. Nothing else is lost with them.
//   - after the machine stopped, a body that did not reach the medium is left out, and so are the changes of names that depend on it:
//     the older version stays.
// One replay, in the order of the journals; not thread-safe.
//
// Places are compared with those that this replay has named. For an index that was there before, only totals of each extent are known: in an
// extent of an earlier epoch a record may name its own place, that of the object it replaces, or any place if the extent holds no body.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "store/index/directory_audit.h"
#include "store/index/index.h"
#include "store/index/names_left_out.h"
#include "store/index/taken_places.h"

namespace kvcachefs {

class ReplayFilter {
 public:
  // Whether the body of a record is incomplete on the volume. Asked once for each record.
  using NotWhole = std::function<bool(const PutRecord&)>;
  using Apply = std::function<Status(const Batch&, JournalPosition after)>;
  enum class Told : uint8_t {
    kLeftOut,   // no daemon writes it, whatever crashed
    kPutRight,  // a violation of the tree that a crash can also leave
  };
  // Gets one line for each of the first 50 records: its subject and the reason; then one line with the number of the others.
  using Tell = std::function<void(Told, const std::string&)>;

  // `complete`: the index is empty, and this replay brings everything that it will hold.
  ReplayFilter(const Index& index, bool complete, Tell tell);

  // For each record of a checkpoint that covers journals up to `epoch`, in its order, before any batch. False: do not load the record.
  bool believes(Record& record, uint32_t epoch);
  // Passes the believed part of the batch to `apply`, after the repairs that the end of an epoch needs.
  Status apply(const Batch& batch, JournalPosition after, const NotWhole& not_whole, const Apply& apply);
  // Call after the last batch: makes the repairs of the last epoch.
  Status finish(const Apply& apply);

  // Limits a stamp to what a clock can reach, so that later stamps can still be larger.
  static Stamp believed(Stamp stamp);

  uint64_t left_out() const { return left_out_; }
  // Cost of holding names back so far: for tests.
  uint64_t steps() const { return names_.steps(); }

 private:
  void tell(const Record& record, const std::string& why);
  std::string why_not(const PutRecord& put);   // for records of a checkpoint
  std::string why_not(const NameRecord& name);
  std::string why_not(const SuccessorsRecord& row);
  std::string why_not(const SeenRecord& seen);
  std::string why_not(const StatementRecord& statement, uint32_t epoch);
  bool peers_begun() const { return !last_seen_.empty() || last_said_ != JournalPosition{}; }
  ObjectId top_of(ObjectId directory);

  Result<Batch> believed(const Batch& batch, uint32_t epoch, const NotWhole& not_whole);
  Result<std::string> why_refused(const Record& record, const Batch& batch, uint32_t epoch);
  Result<std::string> why_refused(const PutRecord& put, const Batch& batch, uint32_t epoch);
  Result<std::string> why_refused(const NameRecord& name);
  Result<std::string> why_refused(const MoveRecord& move, uint32_t epoch);
  Result<bool> may_have(ObjectId object, const Place& place, const Batch* batch, uint32_t epoch);
  Result<bool> is_of_replaced(const Place& place, const Batch& batch);
  Status audit(const Batch& believed);
  Status settle_epoch(const Apply& apply);

  Status leave_out(const PutRecord& record, bool impossible);
  Result<bool> leaves_out(const NameRecord& name, Batch& result);
  Result<bool> leaves_out(const UnnameRecord& name, Batch& result);
  void catch_up(ObjectId object, bool whole, Batch& batch);

  const Index& index_;
  const bool complete_;
  const Tell tell_;
  uint64_t left_out_ = 0, put_right_ = 0;
  TakenPlaces taken_;
  DirectoryAudit audit_;
  JournalPosition position_;  // behind the last batch
  Stamp stamp_;               // of the last batch

  // State of the checkpoint:
  std::vector<ObjectId> directories_;                     // ascending
  std::unordered_map<ObjectId, ObjectId> above_;          // of a directory with a name: some directory above it
  ObjectId last_put_, last_row_;
  std::string last_seen_;      // a node
  JournalPosition last_said_;  // of a statement
  std::optional<NameRecord> last_name_;
  uint64_t last_cookie_ = 0;

  // State of the batch:
  struct Put {
    uint32_t type_bits = 0;
    Place place;
  };
  std::unordered_map<ObjectId, Put> put_;                 // objects put so far
  std::optional<std::vector<Place>> replaced_;            // places of objects whose names the batch gives to others or takes away
  std::optional<Place> taken_now_;                        // taken for the record under examination

  std::unordered_set<ObjectId> absent_;  // objects of which no version is whole
  std::unordered_set<ObjectId> older_;   // the last version is not whole, an earlier one is: they keep the names of that one
  NamesLeftOut names_;                   // names held back for both; given after all when a later version is whole
  std::unordered_map<ObjectId, std::vector<UnnameRecord>> kept_;  // of `older_`: removals of their names in favour of an object that
                                                                   // is left out; held back until then
};

}  // namespace kvcachefs
