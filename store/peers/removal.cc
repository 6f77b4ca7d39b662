#include "store/peers/removal.h"

#include <sys/stat.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

namespace kvcachefs {
namespace {

constexpr int kMostLevels = 256;        // a tree that a damaged volume holds may have no end
constexpr size_t kNamesLookedAt = 256;  // at once

// What one node said of another's names.
class Removals {
 public:
  Removals(const Part& by, const Part& owner) : by_(by), owner_(owner), answered_(owner.statements->seen(by.node)) {}

  bool any() const { return by_.statements->speaks_of(owner_.node, answered_); }
  // By what was said no later than `limit`.
  Result<bool> take(ObjectId directory, const NameEntry& entry, const std::optional<StatementKey>& limit, int level) const {
    const auto said = by_.statements->removals(owner_.node, answered_, directory, entry.name, entry.child);
    for (const StatementKey& key : said) {
      if (limit && key > *limit) break;
      if (!S_ISDIR(entry.type_bits)) return true;
      if (level >= kMostLevels) break;
      KVC_ASSIGN(const bool emptied, take_all(entry.child, key, level + 1));
      if (emptied) return true;
    }
    return false;
  }

 private:
  Result<bool> take_all(ObjectId directory, const StatementKey& limit, int level) const {
    for (uint64_t after = 0;;) {
      KVC_ASSIGN(const auto names, owner_.index->list(directory, after, kNamesLookedAt));
      for (const NameEntry& entry : names) {
        KVC_ASSIGN(const bool taken, take(directory, entry, limit, level));
        if (!taken) return false;
      }
      if (names.size() < kNamesLookedAt) return true;
      after = names.back().cookie;
    }
  }

  const Part& by_;
  const Part& owner_;
  const JournalPosition answered_;
};

class Answer {
 public:
  Answer(const Part& own, const Part& peer, const KeepsName& keeps) : own_(own), peer_(peer), keeps_(keeps) {}

  Status on(const UnnameRecord& removed) {
    KVC_ASSIGN(const auto entry, own_.index->find_name(removed.parent, removed.name));
    if (!entry || entry->child != removed.child) return {};
    if (S_ISDIR(entry->type_bits)) {
      KVC_ASSIGN(const bool left, has_names_left(entry->child));
      if (left) return {};
    } else if (keeps_(entry->child)) {
      return {};
    }
    if (taken_.emplace(removed.parent, removed.name).second) records_.emplace_back(removed);
    return {};
  }

  Status on(const AttributesRecord& changed) {
    attributes_[changed.id] = &changed.attributes;
    return {};
  }

  Result<std::vector<Record>> finish(JournalPosition until) {
    for (const auto& [id, given] : attributes_) {
      KVC_ASSIGN(const auto object, own_.index->find_object_summary(id));
      if (!object || ((object->attributes.mode ^ given->mode) & S_IFMT) != 0) continue;
      if (counts_more(*given, peer_.node, object->attributes, own_.node)) records_.emplace_back(AttributesRecord{id, *given});
    }
    records_.emplace_back(SeenRecord{peer_.node, until});
    return std::move(records_);
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
  const KeepsName& keeps_;
  std::vector<Record> records_;
  std::set<std::pair<ObjectId, std::string>> taken_;
  std::map<ObjectId, const Attributes*> attributes_;  // the last that were given
};

}  // namespace

Result<bool> is_removed(const Part& by, const Part& owner, ObjectId directory, const NameEntry& entry) {
  const Removals removals(by, owner);
  if (!removals.any()) return false;
  return removals.take(directory, entry, std::nullopt, 0);
}

Result<std::vector<Record>> answer(const Part& own, const Part& peer, JournalPosition until, const KeepsName& keeps) {
  const JournalPosition answered = own.statements->seen(peer.node);
  if (until <= answered || !peer.statements->speaks_of(own.node, answered)) return std::vector<Record>{};
  Answer answer(own, peer, keeps);
  Status status;
  bool any = false;
  peer.statements->for_each(own.node, answered, [&](const StatementKey& key, const Statements::What& what) {
    if (key.said > until) return false;
    any = true;
    status = std::visit([&answer](const auto& typed) { return answer.on(typed); }, what);
    return status.has_value();
  });
  KVC_TRY(status);
  if (!any) return std::vector<Record>{};
  return answer.finish(until);
}

// Who changes an object sets its ctime beyond what it has read, so the last change counts where one knew of the other.
bool counts_more(const Attributes& given, std::string_view by, const Attributes& other, std::string_view than) {
  return std::tie(given.ctime_ns, by) > std::tie(other.ctime_ns, than);
}

}  // namespace kvcachefs
