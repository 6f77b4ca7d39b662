#include "store/peers/removal.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "store/peers/tree_walk.h"

namespace kvcachefs {
namespace {

constexpr size_t kNamesLookedAt = 256;  // in one page of a listing

// The statements of one node about another's names.
class Removals {
 public:
  Removals(const Part& by, const Part& owner) : by_(by), owner_(owner), answered_(owner.statements->seen(by.node)) {}

  bool any() const { return by_.statements->speaks_of(owner_.node, answered_); }
  // A directory goes with the first statement about it that comes after all statements about names in it. Each directory that is looked into
  // has a statement, so there are no more of them than statements.
  Result<bool> take(ObjectId directory, const NameEntry& entry) const {
    struct Level {
      ObjectId directory;
      std::vector<StatementKey> said;  // statements about it
      StatementKey emptied;            // the latest statement needed so far to empty it
    };
    auto said = removals(directory, entry);
    if (said.empty() || !S_ISDIR(entry.type_bits)) return !said.empty();
    TreeWalk walk(*owner_.index);
    walk.enter(entry.child);
    std::vector<Level> levels;
    levels.push_back({entry.child, std::move(said), {}});
    while (true) {
      KVC_ASSIGN(const auto each, walk.next());
      Level& level = levels.back();
      if (!each) {
        const auto taken = std::ranges::lower_bound(level.said, level.emptied);
        if (taken == level.said.end()) return false;
        const StatementKey key = *taken;
        levels.pop_back();
        if (levels.empty()) return true;
        levels.back().emptied = std::max(levels.back().emptied, key);
        continue;
      }
      auto of_name = removals(level.directory, *each);
      if (of_name.empty()) return false;
      if (!S_ISDIR(each->type_bits)) {
        level.emptied = std::max(level.emptied, of_name.front());
      } else {
        if (!walk.enter(each->child)) return false;
        levels.push_back({each->child, std::move(of_name), {}});
      }
    }
  }

 private:
  std::vector<StatementKey> removals(ObjectId directory, const NameEntry& entry) const {
    return by_.statements->removals(owner_.node, answered_, directory, entry.name, entry.child);
  }

  const Part& by_;
  const Part& owner_;
  const JournalPosition answered_;
};

class Answer {
 public:
  Answer(const Part& own, const Part& peer) : own_(own), peer_(peer) {}

  Status on(const UnnameRecord& removed) {
    KVC_ASSIGN(const auto entry, own_.index->find_name(removed.parent, removed.name));
    if (!entry || entry->child != removed.child) return {};
    if (S_ISDIR(entry->type_bits)) {
      KVC_ASSIGN(const bool left, has_names_left(entry->child));
      if (left) return {};
    }
    if (taken_.emplace(removed.parent, removed.name).second) records_.emplace_back(removed);
    return {};
  }

  Status on(const AttributesRecord& changed) {
    attributes_[changed.id] = &changed.attributes;
    return {};
  }

  Result<PeerAnswer> finish(std::optional<JournalPosition> until, bool waits) {
    for (const auto& [id, given] : attributes_) {
      KVC_ASSIGN(const auto object, own_.index->find_object_summary(id));
      if (!object || ((object->attributes.mode ^ given->mode) & S_IFMT) != 0) continue;
      if (counts_more(*given, peer_.node, object->attributes, own_.node)) records_.emplace_back(AttributesRecord{id, *given});
    }
    if (until) records_.emplace_back(SeenRecord{peer_.node, *until});
    return PeerAnswer{std::move(records_), waits};
  }

 private:
  Result<bool> has_names_left(ObjectId directory) const {
    for (uint64_t after = 0;;) {
      KVC_ASSIGN(const auto names, own_.index->list(directory, after, kNamesLookedAt));
      for (const NameEntry& entry : names)
        if (!taken_.contains({directory, entry.name})) return true;
      if (names.size() < kNamesLookedAt) return false;
      after = names.back().cookie;
    }
  }

  const Part& own_;
  const Part& peer_;
  std::vector<Record> records_;
  std::set<std::pair<ObjectId, std::string>> taken_;
  std::map<ObjectId, const Attributes*> attributes_;  // the last ones given
};

}  // namespace

Result<bool> is_removed(const Part& by, const Part& owner, ObjectId directory, const NameEntry& entry) {
  const Removals removals(by, owner);
  if (!removals.any()) return false;
  return removals.take(directory, entry);
}

Result<PeerAnswer> answer(const Part& own, const Part& peer, JournalPosition until, const NameOnItsWay& on_its_way) {
  const JournalPosition answered = own.statements->seen(peer.node);
  if (until <= answered || !peer.statements->speaks_of(own.node, answered)) return PeerAnswer{};
  Answer answer(own, peer);
  Status status;
  std::optional<JournalPosition> last, before_last;  // of batches with statements: the statements of one batch are answered together
  bool waits = false;
  peer.statements->for_each(own.node, answered, [&](const StatementKey& key, const Statements::What& what) {
    if (key.said > until) return false;
    if (last != key.said) before_last = std::exchange(last, key.said);
    const auto* const removed = std::get_if<UnnameRecord>(&what);
    waits = removed != nullptr && on_its_way && on_its_way(*removed);
    if (waits) return false;
    status = std::visit([&answer](const auto& typed) { return answer.on(typed); }, what);
    return status.has_value();
  });
  KVC_TRY(status);
  if (!last) return PeerAnswer{};
  return answer.finish(waits ? before_last : until, waits);
}

// A node that changes an object sets its ctime beyond what it has read, so a change made in knowledge of another one counts more.
bool counts_more(const Attributes& given, std::string_view by, const Attributes& other, std::string_view than) {
  return std::tie(given.ctime_ns, by) > std::tie(other.ctime_ns, than);
}

}  // namespace kvcachefs
