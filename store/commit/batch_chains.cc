// Part of BatchBuilder: names of a commit that depend on one another in chains, as those of rotated files do. Each name decides about the
// next, so a name is checked again only if one it depends on changed: all this runs under the Tree's lock.
#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/commit/batch_builder.h"

namespace kvcachefs {

namespace {

// Positions of pending names, by the objects that they may be given to.
using NamesOfObjects = std::unordered_multimap<ObjectId, size_t>;
void note_versions(NamesOfObjects& names, const NameState& state, size_t number) {
  names.emplace(state.child, number);
  for (const ObjectId version : state.older_versions) names.emplace(version, number);
}

}  // namespace

// Another object takes the name of an object whose new name still waits: neither may be lost, and no other name should have to wait. So the
// dispossessed object gets its new name with its journaled body, before the other object gets the old name.
void BatchBuilder::take_dispossessed(Tree::Write& tree, Commit& commit) {
  const auto was_journaled = [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    return state != nullptr && state->durable.valid();
  };
  if (std::none_of(commit.pending.begin(), commit.pending.end(), was_journaled)) return;  // only new names: the usual case
  for (const SealedBody& sealed : commit.bodies)  // the state in which names are given
    if (sealed.snapshot.object->nlink > 0) commit.put.emplace(sealed.snapshot.object->id, sealed.snapshot.content_version);
  const auto dispossesses = [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    ObjectId named;
    return state != nullptr && state->durable.valid() &&
           change_of(tree, commit, name.parent, *state, &named) == NameChange::kGiven && named != state->durable &&
           would_be_nameless(tree, commit, state->durable);
  };
  // An object named this way may take the name of the next one: only its own new names are checked again.
  std::vector<ObjectId> found;
  const auto look = [&](size_t number) {
    if (!dispossesses(commit.pending[number])) return;
    const ObjectId object = tree.names().state(commit.pending[number])->durable;
    commit.named_as_is.emplace(object, commit.named_as_is.size());
    found.push_back(object);
    tree.names().unpark(object);
    for (DirtyName& name : tree.names().take_pending()) commit.pending.push_back(std::move(name));
  };
  NamesOfObjects names;
  for (size_t looked = 0, noted = 0; looked < commit.pending.size() || !found.empty();) {
    if (looked < commit.pending.size()) {
      look(looked++);
      continue;
    }
    for (; noted < commit.pending.size(); ++noted)
      if (was_journaled(commit.pending[noted])) note_versions(names, *tree.names().state(commit.pending[noted]), noted);
    const auto [first, last] = names.equal_range(found.back());
    found.pop_back();
    for (auto each = first; each != last; ++each) look(each->second);
  }
  commit.put.clear();
  if (commit.named_as_is.empty()) return;
  // Each of these names goes before the name taken from its object, because a batch may end in between.
  std::vector<std::pair<size_t, DirtyName>> first;
  std::deque<DirtyName> rest;
  for (DirtyName& name : commit.pending) {
    const NameState* state = tree.names().state(name);
    const auto as_is = state == nullptr ? commit.named_as_is.end() : commit.named_as_is.find(state->child);
    if (as_is != commit.named_as_is.end()) first.emplace_back(as_is->second, std::move(name));
    else rest.push_back(std::move(name));
  }
  std::ranges::stable_sort(first, std::greater{}, [](const auto& each) { return each.first; });
  commit.pending.clear();
  for (auto& [place, name] : first) commit.pending.push_back(std::move(name));
  std::ranges::move(rest, std::back_inserter(commit.pending));
}

// A place may change hands only within one batch: its old object must lose its last journaled name in the batch that gives the place to the
// new one. Bodies for which this does not hold are dropped here, and written after all.
void BatchBuilder::choose_shares(Tree::Write& tree, Commit& commit) {
  auto shares = [](const SealedBody& sealed) { return sealed.shared_with.valid(); };
  if (std::none_of(commit.bodies.begin(), commit.bodies.end(), shares)) return;
  for (const SealedBody& sealed : commit.bodies)
    if (sealed.snapshot.object->nlink > 0) commit.put.emplace(sealed.snapshot.object->id, sealed.snapshot.content_version);
  std::unordered_map<ObjectId, uint32_t> losing;
  const auto loses = [&](const DirtyName& name) {  // whether the journaled object of this name loses it
    const NameState* state = tree.names().state(name);
    if (state == nullptr || !state->durable.valid()) return false;
    ObjectId named;
    const NameChange change = change_of(tree, commit, name.parent, *state, &named);
    return change == NameChange::kTaken || (change == NameChange::kGiven && named != state->durable);
  };
  std::vector<bool> lost(commit.pending.size());
  for (size_t number = 0; number < lost.size(); ++number) {
    lost[number] = loses(commit.pending[number]);
    if (lost[number]) ++losing[tree.names().state(commit.pending[number])->durable];
  }
  struct Taker {
    SealedBody* body = nullptr;
    uint32_t nlink = 0;  // names that the other object has to lose
  };
  std::unordered_map<ObjectId, Taker> takers;  // by the object they share with
  std::vector<ObjectId> dropped;
  const auto drop = [&](SealedBody& sealed) {
    dropped.push_back(sealed.snapshot.object->id);
    commit.put.erase(dropped.back());
    drop_body(tree, sealed);
  };
  for (SealedBody& sealed : commit.bodies) {
    if (!shares(sealed)) continue;
    auto other = parts_.index.find_object(sealed.shared_with);
    const ObjectPtr alive = tree.live(sealed.shared_with);
    const bool fits = !commit.split && sealed.snapshot.object->nlink > 0 && other && *other && (*other)->nlink > 0 &&
                      (*other)->body.place == sealed.body.place && (!alive || alive->nlink == 0) &&
                      losing[sealed.shared_with] == (*other)->nlink && takers.emplace(sealed.shared_with, Taker{&sealed, (*other)->nlink}).second;
    if (!fits) drop(sealed);
  }
  NamesOfObjects names;
  if (!dropped.empty())
    for (size_t number = 0; number < lost.size(); ++number) {
      const NameState* state = tree.names().state(commit.pending[number]);
      if (state == nullptr || !state->durable.valid()) continue;
      note_versions(names, *state, number);
      names.emplace(state->durable, number);
    }
  while (!dropped.empty()) {  // a dropped body keeps its name from being given, and the old one from being taken
    const auto [first, last] = names.equal_range(dropped.back());
    dropped.pop_back();
    for (auto each = first; each != last; ++each) {
      const size_t number = each->second;
      if (!lost[number] || loses(commit.pending[number])) continue;
      lost[number] = false;
      const ObjectId other = tree.names().state(commit.pending[number])->durable;
      --losing[other];
      const auto taker = takers.find(other);
      if (taker == takers.end()) continue;
      drop(*taker->second.body);
      takers.erase(taker);
    }
  }
  std::erase_if(commit.bodies, [](const SealedBody& sealed) { return sealed.snapshot.object == nullptr; });
  commit.put.clear();
}

}  // namespace kvcachefs
