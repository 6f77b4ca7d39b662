// The current view of names: what clients see, which runs ahead of the journals. It holds only names that differ from the
// journals ("dirty"); it reads all others from the view of all nodes (peers/view.h), which is this node's index where the node is alone.
// No I/O but index reads; no lock of its own: the Tree guards it (shared for const members, exclusive for the others).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/records.h"
#include "store/index/index.h"
#include "store/peers/view.h"

namespace kvcachefs {

// One dirty name.
struct NameState {
  ObjectId child;              // what the name is now; invalid = nothing. A peer's object only until the change that made the name dirty
  bool left_to_peers = false;  // nothing of this node, and no client took it away: clients see what peers have under the name at each lookup
  uint32_t type_bits = 0;
  ObjectId durable;            // what this node's journal says the name is; invalid = nothing
  bool erase_durable = false;  // the journaled binding was removed on purpose (not just replaced): it must not
                               // come back, even while `child` is not sealed yet
  ObjectId hidden;  // `durable`, where a peer's file hid it when the name was edit()ed; it still has its link
  bool evicted = false;  // removed to make room; void with the next edit()
  std::vector<ObjectId> overridden;  // what peers had under the name when a client removed or replaced it here: removed with it
  std::vector<ObjectId> older_versions;  // of a temporary name with several writers; newest last
  ObjectId written;      // `child`, if it is journaled and open for writing under a temporary name: a peer's file that is born later does not hide it
  ObjectId taken_later;  // the version (or `child`) that a peer removed: removed here once its writer will not rename it any more
  bool pending = false;        // listed for the next commit
  ObjectId on_its_way;         // the child that a batch being journaled gives the name, whatever the name is by now
  ObjectId parked;             // Namespace's own: the name is listed for a commit once this object's body is journaled
  std::vector<ObjectId> mentioned;  // Namespace's own: the objects that count this name in mentions_

  bool is_older_version(ObjectId id) const { return std::ranges::find(older_versions, id) != older_versions.end(); }
  bool has_versions() const { return !older_versions.empty() || taken_later.valid() || written.valid(); }  // sweep_versions() has to look at it
  // Removes all that this node has under the name, not on a client's request: a peer removed it, or it is evicted.
  void leave_to_peers() {
    child = {};
    erase_durable = left_to_peers = true;
  }
};

struct LocalName {
  uint64_t cookie = 0;
  std::string name;
  auto operator<=>(const LocalName&) const = default;
};

struct DirtyName {
  ObjectId parent;
  LocalName key;
  auto operator<=>(const DirtyName&) const = default;
};

inline constexpr uint64_t kNameRecordBytes = 64;  // about, beside the name

std::string entry_text(ObjectId parent, std::string_view name);  // for messages

class Namespace {
 public:
  Namespace(const Index& index, const NameView& view) : index_(index), view_(view) {}

  struct Found {
    ObjectId child;
    uint32_t type_bits = 0;
  };
  // What the name is now.
  Result<std::optional<Found>> find(ObjectId parent, std::string_view name) const;
  // The same for this node's own child, whatever peers have.
  Result<ObjectId> own_child(ObjectId parent, std::string_view name) const;
  // The state of a dirty name; null if the name is as the index says.
  const NameState* dirty(ObjectId parent, std::string_view name) const;
  // A name being changed; its destructor updates the mentions, and ends what is to be done later with an object that lost the name.
  class Edit {
   public:
    Edit() = default;
    Edit(Namespace* names, NameState* state) : names_(names), state_(state) {}
    Edit(Edit&& other) noexcept : names_(std::exchange(other.names_, nullptr)), state_(other.state_) {}
    Edit& operator=(Edit&& other) noexcept {
      std::swap(names_, other.names_);
      std::swap(state_, other.state_);
      return *this;
    }
    ~Edit() {
      if (names_ != nullptr) names_->end_edit(*state_);
    }
    NameState* operator->() const { return state_; }
    NameState& operator*() const { return *state_; }

   private:
    Namespace* names_ = nullptr;
    NameState* state_ = nullptr;
  };
  // Makes the name dirty (loading what the journals say) and returns its state for changes. Valid until the name is
  // settled. For a client's change use Tree::Write::edit(), which unlinks a hidden file as well.
  Result<Edit> edit(ObjectId parent, std::string_view name);
  // The same for this node's own binding, whatever peers have or hide.
  Result<Edit> edit_own(ObjectId parent, std::string_view name);
  // Whether a dirty name refers to the object, now or in the journal, or lies in it. While it does the index may count other
  // names of the object than clients see.
  bool mentions(ObjectId id) const { return mentions_.contains(id) || directories_.contains(id); }
  // Merged listing: names with cookie > after, ascending; cookies are never split.
  Result<std::vector<NameEntry>> list(ObjectId parent, uint64_t after, size_t limit) const;
  // The name with this cookie under which this node has `child` in the directory; nullopt: there is none.
  std::optional<std::string> own_name(ObjectId parent, uint64_t cookie, ObjectId child) const;
  // The same listing of this node's own names.
  Result<std::vector<NameEntry>> list_own(ObjectId parent, uint64_t after, size_t limit) const;

  // Names changed since the last call; states stay dirty until settle().
  std::vector<DirtyName> take_pending();
  void put_back_pending(DirtyName name);
  // Makes a name that only peers have this node's `child` as well; no commit looks at it before unpark(child). Returns false and does nothing if the
  // name is dirty, or this node has it, too.
  Result<bool> adopt(ObjectId parent, std::string_view name, ObjectId child, uint32_t type_bits);
  // The parked name of an adopted child; nullopt: it has none.
  std::optional<DirtyName> parked_name(ObjectId child) const;
  // Puts aside a name that cannot be journaled before the body of `child` is: no commit looks at it until the name changes or unpark().
  void park(DirtyName name, ObjectId child);
  void unpark(ObjectId child);
  NameState* state(const DirtyName& name);
  // Whether a batch under way gives the name to `child`, so that the journal may have it and the index does not yet.
  bool may_be_journaled(ObjectId parent, std::string_view name, ObjectId child) const;
  // After the journal took (parent, name) -> durable (invalid: nothing): forgets the state if it is no longer dirty.
  void settle(const DirtyName& name, ObjectId durable);
  bool has_pending() const { return !pending_.empty(); }
  // Call when the name gets several versions; for_each_with_versions() visits only such names, until they have none.
  void note_several(ObjectId parent, std::string_view name) { several_.insert({parent, {name_cookie(name), std::string(name)}}); }
  // Peers' children that clients here removed with a name; the batches that journal those names remove them.
  using Overridden = std::set<std::pair<ObjectId, std::string>>;
  Overridden overridden() const;
  void for_each_dirty(const std::function<void(const NameState&)>& visit) const;
  void for_each_dirty_in(ObjectId parent, const std::function<void(const NameState&)>& visit) const;
  // Dirty names under which this node's journal has the object. Looks at all dirty names, if any mentions it.
  void for_each_dirty_of(ObjectId durable, const std::function<void(const NameState&)>& visit) const;
  // Dirty names of which the object is a version. Looks at all dirty names, if any mentions it.
  void for_each_dirty_with(ObjectId version, const std::function<void(const NameState&)>& visit) const;
  // For the sweep of temporary versions.
  void for_each_with_versions(const std::function<void(const DirtyName&, NameState&)>& visit);

 private:
  using Directory = std::map<LocalName, NameState>;
  using JournaledFrom = std::function<Result<std::vector<NameEntry>>(uint64_t after)>;
  using LeftToPeers = std::function<Result<std::optional<Found>>(std::string_view name)>;
  Result<std::vector<NameEntry>> merge(ObjectId parent, uint64_t after, size_t limit, const JournaledFrom& journaled_from,
                                       const LeftToPeers& left_to_peers) const;
  Result<Edit> edit_name(ObjectId parent, std::string_view name, bool own);
  Result<std::optional<Found>> found_of_peers(ObjectId parent, std::string_view name) const;
  void end_edit(NameState& state);
  void note_mentions(NameState& state);
  void forget_mentions(NameState& state);
  void list_pending(NameState& state, DirtyName name);
  const Index& index_;  // this node's
  const NameView& view_;
  std::unordered_map<ObjectId, Directory> directories_;
  std::vector<DirtyName> pending_;
  std::set<DirtyName> several_;
  std::set<std::pair<ObjectId, DirtyName>> parked_;  // by child
  std::unordered_map<ObjectId, uint32_t> mentions_;  // number of dirty names that mention the object
};

}  // namespace kvcachefs
