// Of the BatchBuilder: where the names of a commit hang together in chains, as those of files that are rotated do. One name decides about the
// next, so each is looked at again only where that on which it depends changed: all of it is done under the lock of the Tree.
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

// Numbers of pending names, by the objects that they may be given to.
using NamesOfObjects = std::unordered_multimap<ObjectId, size_t>;
void note_versions(NamesOfObjects& names, const NameState& state, size_t number) {
  names.emplace(state.child, number);
  for (const ObjectId version : state.older_versions) names.emplace(version, number);
}

}  // namespace

// Another object takes the name of one whose new name waits: neither is to be lost, and nobody else is to wait.
// So that one has its new name with the body that is journaled, and before the other has the old one.
void BatchBuilder::take_dispossessed(Tree::Write& tree, Commit& commit) {
  const auto was_journaled = [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    return state != nullptr && state->durable.valid();
  };
  if (std::none_of(commit.pending.begin(), commit.pending.end(), was_journaled)) return;  // nothing but new names: as usual
  for (const SealedBody& sealed : commit.bodies)  // as it will be when names are given
    if (sealed.snapshot.object->nlink > 0) commit.put.emplace(sealed.snapshot.object->id, sealed.snapshot.content_version);
  const auto dispossesses = [&](const DirtyName& name) {
    const NameState* state = tree.names().state(name);
    ObjectId named;
    return state != nullptr && state->durable.valid() &&
           change_of(tree, commit, name.parent, *state, &named) == NameChange::kGiven && named != state->durable &&
           would_be_nameless(tree, commit, state->durable);
  };
  // One that is named so may take the name of the next: only its own new names are looked at again.
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
  // Each goes before the name that is taken from its object, which led to it: a batch may end in between.
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

// A place may change hands only within one batch: the one that has it must lose its last journaled name in the batch that
// gives it to the other. Bodies for which that is not so are dropped, and written after all.
void BatchBuilder::choose_shares(Tree::Write& tree, Commit& commit) {
  auto shares = [](const SealedBody& sealed) { return sealed.shared_with.valid(); };
  if (std::none_of(commit.bodies.begin(), commit.bodies.end(), shares)) return;
  for (const SealedBody& sealed : commit.bodies)
    if (sealed.snapshot.object->nlink > 0) commit.put.emplace(sealed.snapshot.object->id, sealed.snapshot.content_version);
  std::unordered_map<ObjectId, uint32_t> losing;
  const auto loses = [&](const DirtyName& name) {  // its journaled object does
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
    uint32_t nlink = 0;  // that the other has to lose
  };
  std::unordered_map<ObjectId, Taker> takers;  // by what they share with
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
  while (!dropped.empty()) {  // a body that is dropped keeps its name from being given, and its old one from being taken
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
