#include "store/evict/unit_table.h"

#include <algorithm>

#include "store/base/bytes.h"
#include "store/base/checksum.h"

namespace kvcachefs::evict {

UnitName UnitTable::name_of(uint32_t directory, std::string_view name) const {
  const StemKey stem = directories_[directory].stem;
  const uint64_t key = checksum(as_bytes(name), stem.value);
  Named& named = named_[key % kNamed];
  if (named.key != key) named = {key, unit_name(stem, name)};
  return named.of;
}

uint32_t UnitTable::directory(ObjectId id) {
  if (const uint32_t slot = find_directory(id); slot != kNoSlot) return slot;
  uint32_t slot = free_directory_;
  if (slot == kNoSlot) {
    slot = static_cast<uint32_t>(directories_.size());
    directories_.push_back({});
  } else {
    free_directory_ = directories_[slot].up;
    directories_[slot] = {};
  }
  directories_[slot].id = id;
  directories_[slot].stem = kRootStem;
  directories_[slot].users = 1;
  directory_index_.insert({id.value}, slot, directory_key());
  ++directory_count_;
  return slot;
}

bool UnitTable::name_directory(ObjectId parent, std::string_view name, ObjectId id) {
  const uint32_t up = directory(parent), slot = directory(id);
  if (up == slot) return false;
  Directory& named = directories_[slot];
  named.stem = directory_stem(directories_[up].stem, name);
  if (named.up == up) return false;
  // Apparently moved below itself: a directory above it was moved, which was not reported yet.
  constexpr int kMostLevels = 4096;
  uint32_t above = named.users > 1 ? up : kNoSlot;
  for (int level = 0; above != kNoSlot && above != slot && level < kMostLevels; ++level) above = directories_[above].up;
  if (above != kNoSlot) return false;
  const uint32_t before = named.up;
  named.up = up;
  ++directories_[up].users;
  if (before != kNoSlot) let_go(before);
  return named.users > 1;
}

void UnitTable::remove_directory(ObjectId id) {
  const uint32_t slot = find_directory(id);
  if (slot == kNoSlot || directories_[slot].removed) return;
  directories_[slot].removed = true;
  let_go(slot);
}

// A removed directory goes with the last entry that refers to it, and may then have been the last that refers to its parent.
void UnitTable::let_go(uint32_t slot) {
  while (slot != kNoSlot && --directories_[slot].users == 0) {
    Directory& gone = directories_[slot];
    directory_index_.erase({gone.id.value}, directory_key());
    --directory_count_;
    const uint32_t up = gone.up;
    gone = {};
    gone.up = free_directory_;
    free_directory_ = slot;
    slot = up;
  }
}

bool UnitTable::below_pinned(uint32_t slot) const {
  for (; slot != kNoSlot; slot = directories_[slot].up)
    if (directories_[slot].pinned) return true;
  return false;
}

uint16_t UnitTable::stem_number(StemKey stem) {
  if (const uint32_t found = stem_index_.find({stem.value}, stem_key()); found != kNoSlot) return static_cast<uint16_t>(found);
  if (stems_.size() >= kMostStems) return kMostStems - 1;
  stems_.push_back(stem);
  const auto number = static_cast<uint16_t>(stems_.size() - 1);
  stem_index_.insert({stem.value}, number, stem_key());
  return number;
}

UnitKey UnitTable::unit_for(ObjectId id, UnitKey wanted) const {
  const uint32_t first = first_of(wanted);
  if (first == kNoSlot || entries_[first].members < kMostMembers) return wanted;
  return own_unit(id);
}

uint32_t UnitTable::add(ObjectId id, uint32_t directory, uint64_t cookie, const UnitName& name) {
  uint32_t slot = free_entry_;
  if (slot == kNoSlot) {
    slot = static_cast<uint32_t>(entries_.size());
    entries_.push_back({});
  } else {
    free_entry_ = entries_[slot].next;
    entries_[slot] = {};
  }
  Entry& entry = entries_[slot];
  entry.id = id;
  entry.unit = unit_for(id, name.unit);
  entry.stem = stem_number(name.stem);
  entry.cookie = cookie;
  entry.directory = directory;
  ++directories_[directory].users;
  index_.insert({id.value}, slot, id_key());
  link(slot);
  ++objects_;
  return slot;
}

void UnitTable::move(uint32_t slot, uint32_t directory, uint64_t cookie, const UnitName& name) {
  Entry& entry = entries_[slot];
  entry.cookie = cookie;
  if (entry.directory != directory) {
    ++directories_[directory].users;
    let_go(entry.directory);
    entry.directory = directory;
  }
  if (entry.unit == name.unit) return;
  unlink(slot);
  entry.unit = unit_for(entry.id, name.unit);
  entry.stem = stem_number(name.stem);
  link(slot);
}

void UnitTable::remove(uint32_t slot) {
  Entry& entry = entries_[slot];
  index_.erase({entry.id.value}, id_key());
  unlink(slot);
  let_go(entry.directory);
  entry = {};
  entry.next = free_entry_;
  free_entry_ = slot;
  --objects_;
}

void UnitTable::link(uint32_t slot) {
  Entry& entry = entries_[slot];
  const uint32_t first = first_of(entry.unit);
  if (first == kNoSlot) {
    entry.next = kNoSlot;
    entry.members = 1;
    return units_.insert(entry.unit, slot, unit_key());
  }
  entry.next = entries_[first].next;
  entries_[first].next = slot;
  ++entries_[first].members;
}

void UnitTable::unlink(uint32_t slot) {
  Entry& entry = entries_[slot];
  const uint32_t first = first_of(entry.unit);
  if (first != slot) {
    uint32_t before = first;
    while (entries_[before].next != slot) before = entries_[before].next;
    entries_[before].next = entry.next;
    --entries_[first].members;
    return;
  }
  units_.erase(entry.unit, unit_key());
  if (entry.next == kNoSlot) return;
  entries_[entry.next].members = static_cast<uint16_t>(entry.members - 1);
  units_.insert(entry.unit, entry.next, unit_key());
}

size_t UnitTable::memory_bytes() const {
  return entries_.memory_bytes() + directories_.memory_bytes() + stems_.memory_bytes() + stem_index_.memory_bytes() + index_.memory_bytes() + units_.memory_bytes() +
         directory_index_.memory_bytes();
}

}  // namespace kvcachefs::evict
