// The names of a volume as its clients see them: the parts of all nodes put together (store/FORMAT.md, "Several nodes"). A function of
// how far each part was read, and of nothing else; except for leased names, which are seen where no part has anything under them. On a volume with
// one node it is that node's index.
//
// Ids are those of this mount. A directory goes by the id of its class (directory_classes.h). Does no I/O but reads of indexes, which are in
// memory. Const members may be called from any thread at once. The others, and changes of the parts (batches applied to their indexes and
// statements), need exclusive access: the caller has a lock for that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/peers/directory_classes.h"
#include "store/peers/leased_names.h"
#include "store/peers/part.h"

namespace kvcachefs {

// How statements_of_removal() is to state what a client here took of peers' names.
struct PeersRemoval {
  // What was found out about directories of peers. Each is searched once for all names that go at the same time.
  struct SpokenOf {
    std::unordered_set<ObjectId> said, kept;
  };
  const std::vector<ObjectId>* children = nullptr;  // children of the name that statements are made about. Null: all of them
  std::function<bool(ObjectId child, std::string_view name)> is_taken = {};  // other names that clients here took, and about which no statement was made yet
  size_t most = SIZE_MAX;         // about so many records; the rest is stated the next time
  SpokenOf* spoken_of = nullptr;  // null: nothing is remembered between calls
};

class NameView {
 public:
  // `shared`: there may be peers. If false nothing is remembered of directories.
  NameView(Part own, DirectoryClasses& classes, bool shared = true);

  // Tells whether this node still has a journaled name of its own, after all that was done since. With it, statements of peers about own names are
  // carried out when they are read, and only that hides the names: a directory that holds a name not journaled yet stays, whatever the statements say.
  // Without it statements hide own names as they hide those of peers.
  using OwnHas = std::function<Result<bool>(ObjectId directory, const NameEntry& entry)>;
  void tell_own_names(OwnHas own_has) { own_has_ = std::move(own_has); }

  // Sets the parts of all others. The classes of directories are worked out anew.
  void set_peers(std::vector<Part> peers);
  // Runs `work`, which applies the batch to the part with this ordinal.
  Status change(uint32_t ordinal, const Batch& batch, const std::function<Status()>& work);
  bool is_alone() const { return parts_.size() == 1; }
  size_t nodes() const { return parts_.size(); }
  const Part& own() const { return parts_.front(); }
  std::optional<uint32_t> ordinal_of(std::string_view node) const;
  const Part* peer(uint32_t ordinal) const { return part_of(ObjectId::make(ordinal, 0, 0)); }  // null: not known

  // If the view does not know `directory` (dropped for want of room, and not looked up since): a directory of this node has the names that this
  // node gave in it, one of a peer is kStale; kNotFound if it is gone.
  Result<std::optional<NameEntry>> find_name(ObjectId directory, std::string_view name) const;
  // The same, as if this node had nothing under the name.
  Result<std::optional<NameEntry>> find_name_of_peers(ObjectId directory, std::string_view name) const;
  // Names with cookie > `after`, ascending, about `limit` of them; names of equal cookie are never split. Directories have the ids
  // that a lookup would give.
  Result<std::vector<NameEntry>> list(ObjectId directory, uint64_t after, size_t limit) const;
  Result<bool> is_empty(ObjectId directory) const;
  // With the attributes that other nodes gave the object. The extent of the place has its node's ordinal.
  Result<std::optional<ObjectRecord>> find_object(ObjectId id) const;
  Result<std::optional<ObjectRecord>> find_object_summary(ObjectId id) const;
  Result<std::optional<SuccessorsRecord>> find_successors(ObjectId id) const;
  // Whether that peer has an object in quarantine; whether a peer's object is, as its node said last.
  bool has_quarantined(uint32_t ordinal) const;
  bool is_quarantined_there(ObjectId id) const;

  // Call when this node made the directory there, or moved it there, and its index does not tell that yet; holds until DirectoryClasses::release().
  // What peers have under the path is gone for clients; the next batch states that.
  void hold_new(ObjectId parent, std::string_view name, ObjectId id);

  // The directories, one for each node that has it, of which this one consists.
  Result<std::vector<ObjectId>> members(ObjectId directory) const;
  // Whether a node other than this one has a member in it.
  Result<bool> has_foreign_member(ObjectId directory) const;
  Result<std::optional<ObjectId>> own_member(ObjectId directory) const;

  // One node's child of a name.
  struct Binding {
    ObjectId directory;  // in that node's part
    NameEntry entry;
    bool hidden = false;  // a statement removed it, and its node has not answered yet
  };
  Result<std::vector<Binding>> bindings(ObjectId directory, std::string_view name) const;

  LeasedNames& leased() { return leased_; }
  const LeasedNames& leased() const { return leased_; }
  // Whether the peer still has this name, and no statement removed it. In the peer's ids.
  Result<bool> has_name(uint32_t ordinal, const UnnameRecord& name) const;
  // Children of leased names, by every directory of any node that is in one class with theirs, and by name. A lease whose class is not known is
  // also under the invalid id. Costs as much as there are leases.
  using LeasedPlaces = std::unordered_map<ObjectId, std::unordered_multimap<std::string, ObjectId>>;
  LeasedPlaces leased_places() const;

  // The records that this node journals when it removes or replaces a name: for every peer's child of it, first one for each of the names left in the
  // child, even if others have stated the same. None for a directory that holds a name clients see: that was made after the removal, and the
  // directory stays with it.
  Result<std::vector<Record>> statements_of_removal(ObjectId directory, std::string_view name, const PeersRemoval& removal = {}) const;
  // Directories that this node has to make before it gives a name below `directory`, upper ones first; none if it has that directory.
  struct Level {
    ObjectId directory, parent;
    std::string name;
    Attributes attributes;
  };
  Result<std::vector<Level>> levels_to_make(ObjectId directory) const;

 private:
  struct Live {
    const Part* part;
    ObjectId directory;  // in the ids of that part, like `entry`
    NameEntry entry;
  };
  using Read = Result<std::optional<ObjectRecord>> (Index::*)(ObjectId) const;
  const Part* part_of(ObjectId id) const;
  Result<bool> changes_directories(const Batch& batch, const Part& part) const;
  std::vector<ObjectId> roots() const;
  Result<std::vector<ObjectId>> resolve(ObjectId directory, const DirectoryClasses::Directory& known, const std::vector<ObjectId>& above) const;
  void leave_out_what_lies_in_itself(ObjectId parent, std::vector<ObjectId>& directories) const;
  Result<bool> is_hidden(const Part& part, ObjectId directory, const NameEntry& entry) const;
  Result<std::vector<Live>> live(const std::vector<ObjectId>& members, std::string_view name) const;
  Result<std::vector<ObjectId>> directories_at(const std::vector<ObjectId>& members, std::string_view name) const;
  Result<std::optional<NameEntry>> choose(ObjectId directory, const std::vector<Live>& live, bool note) const;
  Result<const Live*> last_born(const std::vector<Live>& live) const;
  Result<std::optional<ObjectRecord>> read(ObjectId id, Read how) const;
  Result<std::optional<ObjectRecord>> read_directory(ObjectId id, const std::vector<ObjectId>& members, Read how) const;
  void show_attributes(const Part& part, ObjectRecord& object, std::string& given_by) const;
  Status state_removal(const Part& part, ObjectId directory, const NameEntry& entry, const PeersRemoval& removal, std::vector<Record>& records) const;

  const bool shared_;
  std::vector<Part> parts_;  // this node's first, then by ordinal
  DirectoryClasses& classes_;
  LeasedNames leased_;
  OwnHas own_has_;
  uint64_t as_of_ = 1;
};

}  // namespace kvcachefs
