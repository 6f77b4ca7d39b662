// What of checkpoint and journals is believed. The one way of records into an index, at a mount as in fsck, --repair and rebuild:
//   - what no daemon writes is left out, with the reason: impossible records, ids and places of epochs to come, bytes that are
//     another body's, directories that are no tree. Nothing else is lost with it.
//   - after the machine stopped, a body that did not reach the medium is left out, and so is what the journals say of names
//     because of it, so that what was there before stays.
// One replay, in the order of the journals; not thread-safe.
//
// Places are compared with what this replay has named. Of an index that was there before, extents are known in sum only: in one of
// an earlier epoch a record may name its own place, that of the object it replaces, or any if nothing is in it.
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
  // Whether the body of a record is not whole. Asked once of each.
  using NotWhole = std::function<bool(const PutRecord&)>;
  using Apply = std::function<Status(const Batch&, JournalPosition after)>;
  enum class Told : uint8_t {
    kLeftOut,   // what no daemon writes, whatever crashed
    kPutRight,  // a tree that a crash may have left so, too
  };
  // One line for each record: what of it, and why. The first of them; then one that tells how many more were left out.
  using Tell = std::function<void(Told, const std::string&)>;

  // `complete`: the index is empty, and this replay brings all that is going to be in it.
  ReplayFilter(const Index& index, bool complete, Tell tell);

  // A record of a checkpoint that covers journals up to `epoch`; in its order, before any batch. False: it is not to be loaded.
  bool believes(Record& record, uint32_t epoch);
  // Gives `apply` what is believed of the batch, after repairs that the end of an epoch asks for.
  Status apply(const Batch& batch, JournalPosition after, const NotWhole& not_whole, const Apply& apply);
  // Behind the last batch. `stamp` of the repairs, if there are any.
  Status finish(const Apply& apply);

  // Not further ahead than a clock can go, so that those that follow are still larger.
  static Stamp believed(Stamp stamp);

  uint64_t left_out() const { return left_out_; }
  // What names that were left out cost so far: for tests.
  uint64_t steps() const { return names_.steps(); }

 private:
  void tell(const Record& record, const std::string& why);
  std::string why_not(const PutRecord& put);   // of a checkpoint
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
  Stamp stamp_;               // of it

  // Of the checkpoint:
  std::vector<ObjectId> directories_;                     // ascending
  std::unordered_map<ObjectId, ObjectId> above_;          // of a directory with a name, one that it lies below
  ObjectId last_put_, last_row_;
  std::string last_seen_;      // a node
  JournalPosition last_said_;  // of a statement
  std::optional<NameRecord> last_name_;
  uint64_t last_cookie_ = 0;

  // Of the batch:
  struct Put {
    uint32_t type_bits = 0;
    Place place;
  };
  std::unordered_map<ObjectId, Put> put_;                 // what was put so far
  std::optional<std::vector<Place>> replaced_;            // places of objects whose names it gives to others or takes
  std::optional<Place> taken_now_;                        // for the record that is looked at

  std::unordered_set<ObjectId> absent_;  // no version of them is whole
  std::unordered_set<ObjectId> older_;   // the last version is not, one before it is: they have the names that one had
  NamesLeftOut names_;                   // of both: given after all when a later version is whole
  std::unordered_map<ObjectId, std::vector<UnnameRecord>> kept_;  // of `older_`: names they would have lost for one that is
                                                                   // left out, until then
};

}  // namespace kvcachefs
