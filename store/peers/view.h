// The names of a volume as its clients see them: the parts of all nodes put together (store/FORMAT.md, "Several nodes"). A function of
// how far each part was read, and of nothing else; but for leased names, which are seen where no part has anything under them. On a volume with
// one node it is that node's index.
//
// Ids are those of this mount. A directory goes by the id of its class (directory_classes.h). Reads of indexes, which are in memory, and
// no other I/O. Const members may be called from any thread, beside each other; the others, and changes of the parts (batches that are
// applied to their indexes and statements), not beside anything: the caller has a lock for that.
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

// What a client here took of peers.
struct PeersRemoval {
  // What was found out of directories of peers. Each is looked through once for all names that go at once.
  struct SpokenOf {
    std::unordered_set<ObjectId> said, kept;
  };
  const std::vector<ObjectId>* children = nullptr;  // of the name: of no other is anything said. Null: of each
  std::function<bool(ObjectId child, std::string_view name)> is_taken = {};  // other names that clients here took, and of which nothing was said yet
  size_t most = SIZE_MAX;         // records, about; what is left over is said the next time
  SpokenOf* spoken_of = nullptr;  // null: as of now
};

class NameView {
 public:
  // `shared`: there may be peers. Else nothing is remembered of directories.
  NameView(Part own, DirectoryClasses& classes, bool shared = true);

  // Whether this node has a journaled name of its own still, by what was done since. What peers say of its names is done when it is read, and they
  // are hidden by that alone: a directory in which there is a name that its journal does not tell yet stays, whatever was said of it. Where nothing
  // is told here they are hidden by what was said, as those of peers.
  using OwnHas = std::function<Result<bool>(ObjectId directory, const NameEntry& entry)>;
  void tell_own_names(OwnHas own_has) { own_has_ = std::move(own_has); }

  // The parts of all others. Which directories are one is worked out anew.
  void set_peers(std::vector<Part> peers);
  // `work` applies the batch to the part of this ordinal.
  Status change(uint32_t ordinal, const Batch& batch, const std::function<Status()>& work);
  bool is_alone() const { return parts_.size() == 1; }
  size_t nodes() const { return parts_.size(); }
  const Part& own() const { return parts_.front(); }
  std::optional<uint32_t> ordinal_of(std::string_view node) const;
  const Part* peer(uint32_t ordinal) const { return part_of(ObjectId::make(ordinal, 0, 0)); }  // null: it is not known

  // `directory`: where it is not known (it was not looked up since it was dropped for want of room) one of this node has what this node
  // gave it, and one of a peer is kStale; kNotFound if it is gone.
  Result<std::optional<NameEntry>> find_name(ObjectId directory, std::string_view name) const;
  // The same as if this node had nothing under the name.
  Result<std::optional<NameEntry>> find_name_of_peers(ObjectId directory, std::string_view name) const;
  // Names with cookie > `after`, ascending, about `limit` of them; names of equal cookie are never split. The ids of directories are
  // those that a lookup would give.
  Result<std::vector<NameEntry>> list(ObjectId directory, uint64_t after, size_t limit) const;
  Result<bool> is_empty(ObjectId directory) const;
  // With the attributes that others gave it. The place's extent has the ordinal of its node.
  Result<std::optional<ObjectRecord>> find_object(ObjectId id) const;
  Result<std::optional<ObjectRecord>> find_object_summary(ObjectId id) const;
  Result<std::optional<SuccessorsRecord>> find_successors(ObjectId id) const;

  // This node made the directory there, or moved it there, which its index does not tell yet; until DirectoryClasses::release(). What peers have
  // under the path is gone for clients, and is said to be with the next batch.
  void hold_new(ObjectId parent, std::string_view name, ObjectId id);

  // Which directories of the nodes it consists of.
  Result<std::vector<ObjectId>> members(ObjectId directory) const;
  // Whether nodes other than this one have a part in it.
  Result<bool> has_foreign_member(ObjectId directory) const;
  Result<std::optional<ObjectId>> own_member(ObjectId directory) const;

  // One node's child of a name.
  struct Binding {
    ObjectId directory;  // that node's
    NameEntry entry;
    bool hidden = false;  // somebody removed it, and its node has not answered yet
  };
  Result<std::vector<Binding>> bindings(ObjectId directory, std::string_view name) const;

  LeasedNames& leased() { return leased_; }
  const LeasedNames& leased() const { return leased_; }
  // Whether the peer has this name still, and nobody removed it. In its ids.
  Result<bool> has_name(uint32_t ordinal, const UnnameRecord& name) const;
  // Children of leased names, by the directories of all nodes that are one with theirs, and by name. Of leases of which that is not known under
  // no directory. Costs as much as there are leases.
  using LeasedPlaces = std::unordered_map<ObjectId, std::unordered_multimap<std::string, ObjectId>>;
  LeasedPlaces leased_places() const;

  // What this node says when it removes or replaces a name: for every peer's child of it what is left of its names first, be it that others
  // said so before. Nothing of a directory in which there is a name that clients see: it was made there after they removed the directory,
  // and that stays with it.
  Result<std::vector<Record>> statements_of_removal(ObjectId directory, std::string_view name, const PeersRemoval& removal = {}) const;
  // Directories that this node has to make before it gives a name below `directory`: the upper ones first; none if it has it.
  struct Level {
    ObjectId directory, parent;
    std::string name;
    Attributes attributes;
  };
  Result<std::vector<Level>> levels_to_make(ObjectId directory) const;

 private:
  struct Live {
    const Part* part;
    ObjectId directory;  // in its own ids, as `entry`
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
