// What this node has to journal of a change to names in which peers have a part.
#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "store/peers/removal.h"
#include "store/peers/tree_walk.h"
#include "store/peers/view.h"

namespace kvcachefs {

Result<std::vector<Record>> NameView::statements_of_removal(ObjectId directory, std::string_view name,
                                                            const PeersRemoval& removal) const {
  PeersRemoval::SpokenOf as_of_now;
  PeersRemoval with = removal;
  if (with.spoken_of == nullptr) with.spoken_of = &as_of_now;
  std::vector<Record> records;
  KVC_ASSIGN(const auto ids, members(directory));
  for (const ObjectId member : ids) {
    const Part* const part = part_of(member);
    if (part == nullptr || part == &own()) continue;
    KVC_ASSIGN(const auto entry, part->index->find_name(id_there(member), name));
    if (!entry) continue;
    const ObjectId child = id_here(part->ordinal, entry->child);
    if (removal.children != nullptr && std::ranges::find(*removal.children, child) == removal.children->end()) continue;
    KVC_TRY(state_removal(*part, id_there(member), *entry, with, records));
  }
  return records;
}

// Statements of other nodes may be answered differently from this node's, so this node makes its own even where others have made the same. A name
// that no other node has removed, and no client here took, stays.
Status NameView::state_removal(const Part& part, ObjectId directory, const NameEntry& entry, const PeersRemoval& removal,
                               std::vector<Record>& records) const {
  struct Entered {
    ObjectId parent;
    NameEntry entry;
    bool hidden = false;  // hidden from everybody, and so is all in it
    bool kept = false;    // a name in it stays
  };
  const auto state = [&](ObjectId parent, const NameEntry& each) {
    records.emplace_back(StatementRecord{part.node, {}, UnnameRecord{parent, each.name, each.child, false}});
    if (is_directory(each)) removal.spoken_of->said.insert(id_here(part.ordinal, each.child));
  };
  const auto was_said = [&](ObjectId parent, const NameEntry& each) -> Result<bool> {
    if (is_directory(each) && removal.spoken_of->said.contains(id_here(part.ordinal, each.child))) return true;
    return is_removed(own(), part, parent, each);
  };
  const auto is_kept = [&](const NameEntry& each) { return is_directory(each) && removal.spoken_of->kept.contains(id_here(part.ordinal, each.child)); };
  if (is_kept(entry)) return {};
  KVC_ASSIGN(const bool said, was_said(directory, entry));
  if (said) return {};
  if (!is_directory(entry)) {
    state(directory, entry);
    return {};
  }
  TreeWalk walk(*part.index);
  walk.enter(entry.child);
  std::vector<Entered> levels;
  KVC_ASSIGN(const bool hidden, is_hidden(part, directory, entry));
  levels.push_back({directory, entry, hidden});
  while (!levels.empty() && records.size() < removal.most) {
    KVC_ASSIGN(auto each, walk.next());
    if (!each) {
      const Entered left = std::move(levels.back());
      levels.pop_back();
      if (!left.kept) {
        state(left.parent, left.entry);
        continue;
      }
      removal.spoken_of->kept.insert(id_here(part.ordinal, left.entry.child));
      if (!levels.empty()) levels.back().kept = true;
      continue;
    }
    const ObjectId parent = levels.back().entry.child;
    KVC_ASSIGN(const bool before, was_said(parent, *each));
    if (before) continue;
    bool gone = !is_kept(*each), is_hidden_here = levels.back().hidden;
    if (gone && !is_hidden_here && !(removal.is_taken && removal.is_taken(id_here(part.ordinal, each->child), each->name))) {
      KVC_ASSIGN(is_hidden_here, is_hidden(part, parent, *each));
      gone = is_hidden_here;
    }
    if (gone && !is_directory(*each)) {
      state(parent, *each);
    } else if (gone && walk.enter(each->child)) {
      levels.push_back({parent, std::move(*each), is_hidden_here});
    } else {
      levels.back().kept = true;  // it stays; names that clients took in it are stated here, for later it is not found by its own name
    }
  }
  return {};
}

Result<std::vector<NameView::Level>> NameView::levels_to_make(ObjectId directory) const {
  std::vector<Level> levels;
  for (ObjectId at = directory; at != kRootId;) {
    KVC_ASSIGN(const auto has, own_member(at));
    if (has) break;
    KVC_ASSIGN(const auto object, find_object_summary(at));
    const auto known = classes_.find(at);
    if (!object || !known) return fail(Code::kStale, fmt::format("directory {} is to be looked up again", at.value));
    levels.push_back({at, known->parent, known->name, object->attributes});
    at = known->parent;
  }
  std::ranges::reverse(levels);
  return levels;
}

}  // namespace kvcachefs
