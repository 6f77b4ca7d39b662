// What peers do, as clients of this node see it: their batches, their directories, and names that they took from this node.
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <ranges>
#include <utility>
#include <variant>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/peers/removal.h"
#include "store/tree/tree.h"

namespace kvcachefs {

namespace {

constexpr size_t kMostUnjournaled = 32'768;  // a kilobyte or more each

GivenUpObjects::IsRead is_read_in(const Tree::View& tree) {
  return [&tree](ObjectId id) { return tree.is_given_up_and_read(id); };
}

// Sorted by the end of the lease, latest first.
std::vector<ObjectId> merely_listed(const LeasedNames& leased, const PeerLeases& leases) {
  std::vector<std::pair<int64_t, ObjectId>> found;
  leased.for_each([&](const std::string&, const LeasedNames::Lease& each) {
    const auto used = leases.find(each.child);
    if (!used || used->is_only_listed) found.emplace_back(each.until_ns, each.child);
  });
  std::ranges::sort(found, std::greater<>(), [](const auto& each) { return each.first; });
  std::vector<ObjectId> ids;
  ids.reserve(found.size());
  for (const auto& [until_ns, id] : found) ids.push_back(id);
  return ids;
}

// Clients were told of it once, and of another file of that name since. The directory in which they were told of it may not be known.
bool is_hidden_by_another(const Tree::View& tree, ObjectId id, ObjectId directory, std::string_view name) {
  if (!directory.valid()) return false;
  const auto seen = tree.names().find(directory, name);
  return !seen || !*seen || (*seen)->child != id;
}

}  // namespace

// --- calls that take the lock ---

Status Tree::load_statements() {
  const Write names = write();
  return statements_->load(parts_.index);
}

Status Tree::change_own(const Batch& batch, JournalPosition after, const std::function<Status()>& work) {
  const Write names = write();
  return view_.change(0, batch, [&]() -> Status {
    KVC_TRY(work());
    statements_->apply(batch, after);
    return {};
  });
}

// The index is scanned before the lock is taken: that may read the disk.
Status Tree::forget_statements(const std::string& peer, JournalPosition answered) {
  KVC_TRY(parts_.index.forget_statements(peer, answered));
  const Write names = write();
  statements_->forget(peer, answered);
  return {};
}

// --- directories ---

// Clients know each directory by an id of this node, so their changes in it are journaled as usual. A directory that only peers have
// named gets such an id here at its first lookup; it goes when it is removed, on any node. A lookup writes nothing: the journal gets the
// directory once something of this node is in it. The oldest are journaled earlier where there are very many, for until then they are all in RAM.
Result<ObjectPtr> Tree::Write::adopt_directory(ObjectId parent, std::string_view name, ObjectId id) {
  KVC_ASSIGN(const auto found, names().find(parent, name));
  if (!found || found->type_bits != S_IFDIR) return fail(Code::kNotFound, entry_text(parent, name));
  if (!found->child.is_foreign()) return get(found->child);
  KVC_ASSIGN(ObjectPtr above, directory_for_entry(parent));
  const ForgetAfter forget(*this, above);
  KVC_ASSIGN(auto record, view().find_object_summary(found->child));
  if (!record) return fail(Code::kNotFound, entry_text(parent, name));
  KVC_ASSIGN(const bool parked, names().adopt(parent, name, id, S_IFDIR));
  if (!parked) {  // the name is dirty: journal the directory at once
    KVC_ASSIGN(Namespace::Edit state, edit(parent, name));
    state->child = id;
    state->type_bits = S_IFDIR;
  }
  auto object = std::make_shared<Object>(id, std::move(record->attributes));
  object->published = true;
  {
    const auto lock = object->lock();
    object->nlink = 2;
  }
  {
    const auto lock = above->lock();
    ++above->nlink;
  }
  add(object);
  tree().adopted_.insert(id);
  tree().unjournaled_.insert(id);
  tree().classes_.hold(parent, name, id, id);  // beside those of peers
  if (!parked) {
    journal_adopted(parent);
    journal_adopted(id);
  }
  if (tree().unjournaled_.size() > kMostUnjournaled) journal_adopted(*tree().unjournaled_.begin());
  return object;
}

// Journals the levels from the top, as they are replayed.
void Tree::Write::journal_adopted(ObjectId id) {
  if (!is_only_adopted(id)) return;
  const Parts& parts = tree().parts_;
  std::vector<std::pair<ObjectId, std::optional<DirtyName>>> levels;
  for (ObjectId each = id; is_only_adopted(each);) {
    auto name = names().parked_name(each);
    const ObjectId above = name ? name->parent : ObjectId{};
    levels.emplace_back(each, std::move(name));
    each = above;
  }
  for (const auto& [each, name] : levels | std::views::reverse) {
    const ObjectPtr object = live(each);
    if (object) tree().refresh_adopted(*this, *object);
    tree().unjournaled_.erase(each);
    parts.records.accept(kNameRecordBytes + (name ? name->key.name.size() : 0));
    names().unpark(each);
    if (object) {
      const auto lock = object->lock();
      mark_attributes_dirty(object, parts.records, parts.dirty);
    }
  }
  parts.dirty.wake();
}

void Tree::refresh_adopted(const View& names, Object& object) const {
  if (!object.is_directory() || !names.is_only_adopted(object.id)) return;
  auto record = names.view().find_object_summary(object.id);
  if (!record || !*record) return;
  const auto lock = object.lock();
  if (object.attributes_version == object.attributes_durable) object.attributes = std::move((*record)->attributes);
}

// Drops a directory of this node, in which it has nothing, as that of a peer was dropped. States nothing about what peers have there by now, and writes
// nothing for a directory that the journal does not know.
Status Tree::Write::leave_directory(ObjectId parent, const std::string& name, const ObjectPtr& directory) {
  const ForgetAfter forget(*this, directory);
  const bool only_adopted = is_only_adopted(directory->id);
  KVC_ASSIGN(Namespace::Edit state, names().edit_own(parent, name));
  state->leave_to_peers();
  tree().parts_.records.accept(kNameRecordBytes + name.size());
  drop_directory(directory);
  const auto above = get(parent);
  if (!above) return {};
  const ForgetAfter forget_above(*this, *above);
  if (!only_adopted) {
    change_links(*above, -1);
    return {};
  }
  const auto lock = (*above)->lock();
  --(*above)->nlink;
  return {};
}

// Drops the directories in it that are only adopted: only this node knows of them. Returns false and drops none if there is anything else in it.
Result<bool> Tree::Write::leave_adopted_in(ObjectId directory) {
  constexpr size_t kPageNames = 64;
  struct Adopted {
    ObjectId parent;
    std::string name;
    ObjectId id;
  };
  std::vector<Adopted> found;
  for (size_t looked = 0; looked <= found.size(); ++looked) {
    const ObjectId at = looked == 0 ? directory : found[looked - 1].id;
    for (uint64_t after = 0;;) {
      KVC_ASSIGN(auto page, names().list_own(at, after, kPageNames));
      if (page.empty()) break;
      for (NameEntry& entry : page) {
        if (!is_only_adopted(entry.child)) return false;
        after = entry.cookie;
        found.push_back({at, std::move(entry.name), entry.child});
      }
    }
  }
  for (const Adopted& each : found | std::views::reverse) {
    KVC_ASSIGN(const ObjectPtr object, get(each.id));
    KVC_TRY(leave_directory(each.parent, each.name, object));
  }
  return true;
}

bool Tree::Write::drop_left_directories(size_t most, bool names_went) {
  const auto& adopted = tree().adopted_;
  tree().adopted_again_ |= names_went && tree().adopted_looked_at_.valid();
  std::vector<ObjectId> looked_at;
  for (auto each = adopted.upper_bound(tree().adopted_looked_at_); each != adopted.end() && looked_at.size() < most; ++each) looked_at.push_back(*each);
  const bool is_last = looked_at.size() < most;
  tree().adopted_looked_at_ = is_last ? ObjectId{} : looked_at.back();
  for (const ObjectId id : looked_at) {
    const auto path = tree().classes_.find(id);
    const auto shared = view().has_foreign_member(id);
    if (!path || !shared || *shared) continue;
    const auto object = get(id);
    if (!object || (*object)->handles > 0) continue;
    const ForgetAfter forget(*this, *object);
    const auto own = names().own_child(path->parent, path->name);
    const auto left = names().list_own(id, 0, 1);
    if (!own || *own != id || !left || !left->empty()) continue;
    if (Status gone = leave_directory(path->parent, path->name, *object); !gone) {
      log::debug("directory {}: {}", id.value, gone.error().message);
      continue;
    }
    tree().parts_.dirty.wake();
    tree().adopted_again_ = true;  // the one above it may be empty now
  }
  return is_last && !std::exchange(tree().adopted_again_, false);
}

// The batch that journals the name will state that these are gone; names that peers give there meanwhile stay.
void Tree::Write::override_peers(Namespace::Edit& state, ObjectId parent, std::string_view name) {
  if (view().is_alone()) return;
  end_leases_under(parent, name);
  const auto there = view().bindings(parent, name);
  if (!there) return;  // it is gone with its directory
  for (const NameView::Binding& binding : *there) {
    const ObjectId id = binding.entry.child;
    if (!id.is_foreign()) continue;
    if (tree().parts_.leases != nullptr) tree().parts_.leases->forget(id);
    if (std::ranges::find(state->overridden, id) == state->overridden.end()) state->overridden.push_back(id);
  }
}

// States nothing about the leased name: its node has no such name. The caller has counted the link, or is about to.
void Tree::Write::end_leases_under(ObjectId parent, std::string_view name) {
  const auto members = view().leased().empty() ? std::vector<ObjectId>() : view().members(parent).value_or(std::vector<ObjectId>());
  while (const auto leased = view().leased().find(members, name)) {
    view().leased().remove(leased->child);
    if (tree().parts_.leases != nullptr) tree().parts_.leases->forget(leased->child);
    const ObjectPtr object = live(leased->child);
    if (!object) continue;
    {
      const auto lock = object->lock();
      object->leased = false;
    }
    if (object->nlink == 0) forget_if_idle(object);
  }
}

// --- what peers did ---

void Tree::Write::follow(uint32_t ordinal, const PeerBatch& batch) {
  if (view().has_quarantined(ordinal)) tree().peers_quarantine_.store(true);
  const auto spoken_of = [&](const Record& record) -> ObjectId {
    if (const auto* put = std::get_if<PutRecord>(&record)) return put->object.id;
    if (const auto* changed = std::get_if<AttributesRecord>(&record)) return changed->id;
    if (const auto* named = std::get_if<NameRecord>(&record)) return named->child;
    if (const auto* unnamed = std::get_if<UnnameRecord>(&record)) return unnamed->child;
    if (const auto* moved = std::get_if<MoveRecord>(&record)) return moved->id;
    return {};
  };
  for (const Record& record : batch.batch.records)
    if (const ObjectId id = id_here(ordinal, spoken_of(record)); id.is_foreign()) look_again(id);  // not the root, which is this node's here
  for (const ObjectId replaced : batch.replaced) look_again(id_here(ordinal, replaced));
  auto& given_up = tree().given_up_by_peers_;
  for (const Record& record : batch.batch.records) {
    const auto* const put = std::get_if<PutRecord>(&record);
    if (put != nullptr) given_up.has_place(id_here(ordinal, put->object.id), place_here(ordinal, put->object.body.place));
  }
  for (const ObjectId changed : batch.changed) {
    // The kernel may have the former size for a second, and a client that maps what it can read would be killed.
    const ObjectId id = id_here(ordinal, changed);
    tree().recent_bodies_.note(id, tree().parts_.clock.monotonic_ns());
    if (const ObjectPtr object = live(id)) object->relookup_until_ns = tree().recent_bodies_.until_ns(id);
  }
  given_up.drop_read(is_read_in(*this));
  end_leases_on_names_of(ordinal, batch.batch);
  take_lost_versions(&batch.batch);
}

void Tree::Write::follow_all(uint32_t ordinal) {
  if (view().has_quarantined(ordinal)) tree().peers_quarantine_.store(true);
  std::erase_if(tree().quarantined_, [&](ObjectId id) { return id.node_ordinal() == ordinal; });
  tree().quarantined_count_.store(tree().quarantined_.size());
  tree().given_up_by_peers_.forget_node(ordinal);
  for (const ObjectId id : view().leased().of_node(ordinal)) end_lease(id);
  std::vector<ObjectId> ids;
  for (const auto& [id, object] : tree().table_)
    if (id.node_ordinal() == ordinal) ids.push_back(id);
  for (const ObjectId id : ids) look_again(id);
  for (const auto& [id, as] : tree().outdated_)
    if (const ObjectPtr object = id.node_ordinal() == ordinal ? live(as) : nullptr) tree().given_up_by_peers_.add(id, object->base.place);
  take_lost_versions(nullptr);
}

std::vector<ObjectId> Tree::Write::still_read(uint32_t ordinal) {
  constexpr size_t kMost = 200;  // ACKS of 32 KiB hold that for a dozen nodes, and some 4,000 ids with leases
  return tree().given_up_by_peers_.still_read(ordinal, kMost + view().leased().of_node(ordinal).size(), is_read_in(*this));
}

// --- leases ---

void Tree::Write::keep_leased(uint32_t ordinal, const Batch& batch) {
  constexpr size_t kMostLeased = 4096, kMostOfAllNodes = 1 << 16;  // ACKS name them, for each node
  constexpr int64_t kMostLeasedNs = 60'000'000'000;  // a chunk that is used all the time then becomes a miss, and is stored anew
  constexpr uint64_t kPartOfCapacity = 8;  // for all nodes together: their writers cannot have that space meanwhile
  const Parts& parts = tree().parts_;
  if (parts.leases == nullptr || parts.leases->lasts_ns() == 0) return;
  const uint64_t most_bytes = parts.space.limit_bytes() / kPartOfCapacity / view().nodes();
  const size_t most = std::min(kMostLeased, kMostOfAllNodes / view().nodes());
  const int64_t now_ns = parts.clock.monotonic_ns(), lasts_ns = parts.leases->lasts_ns();
  LeasedNames& leased = view().leased();
  bool broken = false;  // leases that were renewed end before any that has not lasted its first time
  std::optional<std::vector<ObjectId>> listed;  // ... then, for others, those that were merely listed
  const auto has_room = [&](uint64_t bytes, bool is_only_listed) {
    const auto fits = [&] { return leased.size() < most && leased.bytes() + bytes <= most_bytes; };
    if (fits()) return true;
    if (!std::exchange(broken, true))
      for (const ObjectId renewed : leased.went_before(now_ns - lasts_ns)) end_lease(renewed);
    if (is_only_listed) return fits();
    if (!listed) listed = merely_listed(leased, *parts.leases);
    for (; !fits() && !listed->empty(); listed->pop_back()) end_lease(listed->back());
    return fits();
  };
  for (const Record& record : batch.records) {
    const auto* const gone = std::get_if<UnnameRecord>(&record);
    if (gone == nullptr || !gone->evicted) continue;
    const ObjectId id = id_here(ordinal, gone->child);
    const auto lease = parts.leases->find(id);
    if (!lease || leased.has(id) || is_quarantined(id)) continue;
    const auto is_there = view().has_name(ordinal, *gone);
    if (!is_there || !*is_there || is_hidden_by_another(*this, id, lease->directory, gone->name)) continue;
    const auto object = get(id);
    if (!object) continue;
    uint64_t bytes = 0;
    bool may = (*object)->is_regular();
    {
      const auto lock = (*object)->lock();
      bytes = align_up((*object)->base.place.length, kBlockBytes);
      may &= !(*object)->base.quarantined && (*object)->nlink > 0;
    }
    if (may && has_room(bytes, lease->is_only_listed)) {
      const auto lock = (*object)->lock();
      (*object)->leased = leased.add(gone->name, {.child = id,
                                                  .member = ObjectId::make(ordinal, gone->parent.epoch(), gone->parent.number()),
                                                  .directory = lease->directory,
                                                  .bytes = bytes,
                                                  .went_ns = now_ns,
                                                  .until_ns = lease->until_ns,
                                                  .most_ns = now_ns + std::max(kMostLeasedNs, 2 * lasts_ns)});
    }
    forget_if_idle(*object);
  }
}

// Ends leases on names in the batch: a removed name is gone at once, and a new file of the name is seen at once, also if it goes in its turn. A batch
// is searched once, for there may be many directories with the same names.
void Tree::Write::end_leases_on_names_of(uint32_t ordinal, const Batch& batch) {
  std::optional<NameView::LeasedPlaces> places;
  const auto end_under = [&](uint32_t node, ObjectId parent, const std::string& name) {
    if (!view().leased().has_name(name)) return;
    if (!places) places = view().leased_places();
    for (const ObjectId directory : {ObjectId::make(node, parent.epoch(), parent.number()), ObjectId{}}) {
      const auto there = places->find(directory);
      if (there == places->end()) continue;
      const auto [first, last] = there->second.equal_range(name);
      for (auto each = first; each != last; ++each)
        if (view().leased().has(each->second)) end_lease(each->second);
    }
  };
  for (const Record& record : batch.records) {
    if (view().leased().empty()) return;
    if (const auto* named = std::get_if<NameRecord>(&record)) {
      end_under(ordinal, named->parent, named->name);
    } else if (const auto* gone = std::get_if<UnnameRecord>(&record)) {
      if (!gone->evicted) end_under(ordinal, gone->parent, gone->name);
    } else if (const auto* said = std::get_if<StatementRecord>(&record)) {
      const auto* const taken = std::get_if<UnnameRecord>(&said->what);
      if (const auto node = taken == nullptr ? std::nullopt : view().ordinal_of(said->node)) end_under(*node, taken->parent, taken->name);
    }
  }
}

// The object is then as its node has it.
void Tree::Write::end_lease(ObjectId id) {
  view().leased().remove(id);
  if (const ObjectPtr object = live(id)) {
    const auto lock = object->lock();
    object->leased = false;
  }
  look_again(id);
}

void Tree::Write::end_leases() {
  const auto renew = [this](const LeasedNames::Lease& lease) {
    const auto used = tree().parts_.leases->find(lease.child);
    return used && used->asked_until_ns ? *used->asked_until_ns : INT64_MIN;
  };
  // Where leases were switched off, those given before end, too.
  const bool none = tree().parts_.leases->lasts_ns() == 0;
  for (const ObjectId id : none ? view().leased().went_before(INT64_MAX) : view().leased().over(tree().parts_.clock.monotonic_ns(), renew)) end_lease(id);
}

// --- what peers took ---

Result<PeerAnswer> Tree::Write::answer(const Part& peer, JournalPosition until) {
  std::vector<UnnameRecord> versions;  // that the journal does not have any more, and that could get the name again
  const NameOnItsWay on_its_way = [&](const UnnameRecord& removed) {
    if (names().may_be_journaled(removed.parent, removed.name, removed.child)) return true;
    const NameState* const state = names().dirty(removed.parent, removed.name);
    if (state != nullptr && state->durable != removed.child && state->is_older_version(removed.child)) versions.push_back(removed);
    return false;
  };
  KVC_ASSIGN(PeerAnswer said, kvcachefs::answer(view().own(), peer, until, on_its_way));
  PeerAnswer answered{{}, said.waits};
  for (const UnnameRecord& gone : versions) KVC_TRY(take_name(gone));
  for (Record& record : said.records) {
    if (const auto* gone = std::get_if<UnnameRecord>(&record)) {
      KVC_TRY(take_name(*gone));
    } else if (auto* given = std::get_if<AttributesRecord>(&record)) {
      KVC_ASSIGN(const ObjectPtr object, get(given->id));
      const auto lock = object->lock();
      object->attributes = std::move(given->attributes);
      mark_attributes_dirty(object, tree().parts_.records, tree().parts_.dirty);
    } else {
      answered.records.push_back(std::move(record));
    }
  }
  return answered;
}

// Like an unlink, of the child that this node's journal has there, and of versions written before it: a program that has it open for writing goes on
// without the name. It was hidden since the peer's batch was applied.
Status Tree::Write::take_name(const UnnameRecord& gone) {
  const NameState* const before = names().dirty(gone.parent, gone.name);
  if (before != nullptr && before->child != gone.child && !before->is_older_version(gone.child)) {  // replaced or removed here since; that may wait to be journaled
    if (before->durable != gone.child) return {};
    KVC_ASSIGN(Namespace::Edit state, names().edit_own(gone.parent, gone.name));
    state->erase_durable = true;
    tree().parts_.dirty.wake();
    return {};
  }
  KVC_ASSIGN(const ObjectPtr object, get(gone.child));
  const ForgetAfter forget(*this, object);
  if (object->is_directory()) {
    KVC_ASSIGN(const bool is_empty, leave_adopted_in(gone.child));
    if (!is_empty) {  // it has a name that this node's journal does not have: a file that is being written, or one that it got since
      KVC_ASSIGN(const bool goes, has_only_taken(gone.child));
      if (goes) tree().adopted_.insert(gone.child);
      return {};
    }
    KVC_TRY(leave_directory(gone.parent, gone.name, object));
    tree().parts_.dirty.wake();
    return {};
  }
  // Peers' names there are looked up when a client asks: which directories of theirs belong to this one need not be known yet, and more may come.
  KVC_ASSIGN(Namespace::Edit state, names().edit_own(gone.parent, gone.name));
  const std::vector<ObjectId> taken = take_versions(*state, gone.child);
  if (state->taken_later.valid()) {
    tree().has_versions_ = true;
    names().note_several(gone.parent, gone.name);
  }
  tree().parts_.records.accept(kNameRecordBytes + gone.name.size());
  for (const ObjectId id : taken) {
    if (const ObjectPtr version = live(id)) lose_name(version, gone.parent, gone.name);
    forget_removed(id);
  }
  tree().parts_.dirty.wake();
  return {};
}

}  // namespace kvcachefs
