// The current view of names: what clients see, which runs ahead of what is journaled. It holds only names that differ from
// the journals ("dirty"); all others are read through to the view of all nodes (peers/view.h), which is this node's index where it is alone.
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
  ObjectId child;              // what the name is now; invalid = nothing. A peer's object only until the change that made it dirty
  bool left_to_peers = false;  // nothing of this node, and no client took it away: what peers have under the name is seen, whatever that is by then
  uint32_t type_bits = 0;
  ObjectId durable;            // what this node's journal says; invalid = nothing
  bool erase_durable = false;  // the journaled binding was taken away on purpose (not just replaced): it must not
                               // come back, even while `child` is not sealed yet
  ObjectId hidden;  // `durable`, which nobody saw any more when the name was edit()ed, for a peer's hides it: it has its link still
  bool evicted = false;  // taken away to make room; void with the next edit()
  std::vector<ObjectId> overridden;  // what peers had under the name when a client removed or replaced it here: it goes, too
  std::vector<ObjectId> older_versions;  // of a temporary name with several writers; newest last
  ObjectId taken_later;  // the one of them, or `child`, that a peer took: it goes when its writer will not rename it any more
  bool pending = false;        // listed for the next commit
  ObjectId on_its_way;         // given the name by a batch that is being journaled, whatever the name is by now
  ObjectId parked;             // Namespace's own: listed as soon as this object's body is journaled
  std::vector<ObjectId> mentioned;  // Namespace's own: the objects this name was counted for

  bool is_older_version(ObjectId id) const { return std::ranges::find(older_versions, id) != older_versions.end(); }
  bool has_versions() const { return !older_versions.empty() || taken_later.valid(); }  // sweep_versions() has to look at it
  // All that this node has goes, and not because a client said so: a peer took it, or it is evicted.
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
  // The same of what this node has under it, whatever peers have.
  Result<ObjectId> own_child(ObjectId parent, std::string_view name) const;
  // The state of a dirty name; null if the name is as the index says.
  const NameState* dirty(ObjectId parent, std::string_view name) const;
  // A name being changed; what it is then is taken note of when this goes.
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
      if (names_ != nullptr) names_->note_mentions(*state_);
    }
    NameState* operator->() const { return state_; }
    NameState& operator*() const { return *state_; }

   private:
    Namespace* names_ = nullptr;
    NameState* state_ = nullptr;
  };
  // Makes the name dirty (loading what the journals say) and returns its state to be changed. Valid until the name is
  // settled. For what a client does see Tree::Write::edit(), which takes what was hidden along.
  Result<Edit> edit(ObjectId parent, std::string_view name);
  // The same of what this node has, whatever peers have or hide.
  Result<Edit> edit_own(ObjectId parent, std::string_view name);
  // Whether a dirty name speaks of the object, now or in the journal, or lies in it. Until then the index may count other
  // names of it than clients see.
  bool mentions(ObjectId id) const { return mentions_.contains(id) || directories_.contains(id); }
  // Merged listing: names with cookie > after, ascending; cookies are never split.
  Result<std::vector<NameEntry>> list(ObjectId parent, uint64_t after, size_t limit) const;
  // Under which name with this cookie this node has the object in the directory; nothing: it does not.
  std::optional<std::string> own_name(ObjectId parent, uint64_t cookie, ObjectId child) const;
  // The same listing of what this node has.
  Result<std::vector<NameEntry>> list_own(ObjectId parent, uint64_t after, size_t limit) const;

  // Names changed since the last call; states stay dirty until settle().
  std::vector<DirtyName> take_pending();
  void put_back_pending(DirtyName name);
  // A name that only peers have is this node's `child` as well, from here on, and no commit looks at it before unpark(child). False, and nothing
  // is done: it is being changed, or this node has it, too.
  Result<bool> adopt(ObjectId parent, std::string_view name, ObjectId child, uint32_t type_bits);
  // The parked name of such a child; nothing: it has none.
  std::optional<DirtyName> parked_name(ObjectId child) const;
  // A name that cannot be journaled before the body of `child` is: no commit looks at it until the name changes or unpark().
  void park(DirtyName name, ObjectId child);
  void unpark(ObjectId child);
  NameState* state(const DirtyName& name);
  // A batch is under way that gives the name to `child`: the journal may tell of it, and the index does not yet.
  bool may_be_journaled(ObjectId parent, std::string_view name, ObjectId child) const;
  // After the journal took (parent, name) -> durable (invalid: nothing): forgets the state if it is no longer dirty.
  void settle(const DirtyName& name, ObjectId durable);
  bool has_pending() const { return !pending_.empty(); }
  // The name has several versions now; for_each_with_versions() looks at such names only, until it finds one left.
  void note_several(ObjectId parent, std::string_view name) { several_.insert({parent, {name_cookie(name), std::string(name)}}); }
  // What clients here took of peers, with the name: that goes with the batches that journal those names.
  using Overridden = std::set<std::pair<ObjectId, std::string>>;
  Overridden overridden() const;
  void for_each_dirty_in(ObjectId parent, const std::function<void(const NameState&)>& visit) const;
  // For housekeeping of temporary versions.
  void for_each_with_versions(const std::function<void(const DirtyName&, NameState&)>& visit);

 private:
  using Directory = std::map<LocalName, NameState>;
  using JournaledFrom = std::function<Result<std::vector<NameEntry>>(uint64_t after)>;
  using LeftToPeers = std::function<Result<std::optional<Found>>(std::string_view name)>;
  Result<std::vector<NameEntry>> merge(ObjectId parent, uint64_t after, size_t limit, const JournaledFrom& journaled_from,
                                       const LeftToPeers& left_to_peers) const;
  Result<Edit> edit_name(ObjectId parent, std::string_view name, bool own);
  Result<std::optional<Found>> found_of_peers(ObjectId parent, std::string_view name) const;
  void note_mentions(NameState& state);
  void forget_mentions(NameState& state);
  void list_pending(NameState& state, DirtyName name);
  const Index& index_;  // this node's
  const NameView& view_;
  std::unordered_map<ObjectId, Directory> directories_;
  std::vector<DirtyName> pending_;
  std::set<DirtyName> several_;
  std::set<std::pair<ObjectId, DirtyName>> parked_;  // with the child
  std::unordered_map<ObjectId, uint32_t> mentions_;  // by how many dirty names
};

}  // namespace kvcachefs
