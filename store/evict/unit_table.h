// The objects of each unit, where each has its name, and what was last known of it. A name is stored as its directory and the cookie by
// which the directory lists it, so that the names of 10 million objects are not in RAM twice. Pure data, not thread-safe, not even name_of().
//
// 48 bytes an object, and twice 6 to 9 in the indexes; 24, and 6 to 9, a directory.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "store/base/types.h"
#include "store/evict/key_index.h"
#include "store/evict/paged_vector.h"
#include "store/evict/unit_name.h"

namespace kvcachefs::evict {

class UnitTable {
 public:
  struct Entry {
    ObjectId id;        // invalid: free
    UnitKey unit;
    uint64_t cookie = 0;
    uint32_t directory = kNoSlot;
    uint32_t next = kNoSlot;  // the next entry of its unit; of a free one: the next free one
    uint32_t used = 0;        // ticks of the caller
    uint32_t blocks = 0;      // of 4 KiB, if known
    uint16_t stem = 0;        // see stem()
    uint16_t members = 0;     // of its unit; kept in its first entry
    uint8_t flags = 0;
    uint16_t listed = 0;      // coarse ticks of the caller; 0: never

    bool is(uint8_t flag) const { return (flags & flag) != 0; }
    void set(uint8_t flag, bool on) { flags = static_cast<uint8_t>(on ? flags | flag : flags & ~flag); }
  };
  static_assert(sizeof(Entry) == 48);
  struct Directory {
    ObjectId id;        // invalid: free
    StemKey stem;
    uint32_t up = kNoSlot;    // of a free one: the next free one
    uint32_t users = 0;       // entries and directories below it, plus one for itself while it exists
    bool pinned = false;
    bool removed = false;
  };

  // Returns the directory; adds it without a parent if it was unknown.
  uint32_t directory(ObjectId id);
  uint32_t find_directory(ObjectId id) const { return directory_index_.find({id.value}, directory_key()); }
  // The directory has this name in `parent`. Returns true if that moves known entries below it to another parent.
  bool name_directory(ObjectId parent, std::string_view name, ObjectId id);
  Directory& directory_at(uint32_t slot) { return directories_[slot]; }
  const Directory& directory_at(uint32_t slot) const { return directories_[slot]; }
  void remove_directory(ObjectId id);
  bool below_pinned(uint32_t directory) const;

  uint32_t find(ObjectId id) const { return index_.find({id.value}, id_key()); }
  uint32_t first_of(UnitKey unit) const { return units_.find(unit, unit_key()); }
  template <class Is>
  bool any_of(UnitKey unit, const Is& is) const {
    for (uint32_t slot = first_of(unit); slot != kNoSlot; slot = entries_[slot].next)
      if (is(entries_[slot])) return true;
    return false;
  }
  Entry& at(uint32_t slot) { return entries_[slot]; }
  const Entry& at(uint32_t slot) const { return entries_[slot]; }
  uint32_t slots() const { return static_cast<uint32_t>(entries_.size()); }
  size_t objects() const { return objects_; }
  size_t directories() const { return directory_count_; }
  size_t memory_bytes() const;

  // If more names than this share an apparent content hash, it does not identify them: each further name is a unit of its own.
  static constexpr uint16_t kMostMembers = 2048;
  static UnitKey own_unit(ObjectId id) { return {mix_key(id.value) | 1}; }
  // The unit and stem of a name in a directory. Remembers the last names: a chunk's name is asked for when it is probed, found absent and stored.
  UnitName name_of(uint32_t directory, std::string_view name) const;
  // The object must not be in the table yet.
  uint32_t add(ObjectId id, uint32_t directory, uint64_t cookie, const UnitName& name);
  void move(uint32_t slot, uint32_t directory, uint64_t cookie, const UnitName& name);
  void remove(uint32_t slot);
  StemKey stem(const Entry& entry) const { return stems_[entry.stem]; }
  void clear() { *this = UnitTable(); }

 private:
  static constexpr size_t kMostStems = 4096;  // stems beyond that share the last one
  struct IdKey {
    const PagedVector<Entry>* entries;
    UnitKey operator()(uint32_t slot) const { return {(*entries)[slot].id.value}; }
  };
  struct UnitOf {
    const PagedVector<Entry>* entries;
    UnitKey operator()(uint32_t slot) const { return (*entries)[slot].unit; }
  };
  struct DirectoryKey {
    const PagedVector<Directory>* directories;
    UnitKey operator()(uint32_t slot) const { return {(*directories)[slot].id.value}; }
  };
  struct StemOf {
    const PagedVector<StemKey>* stems;
    UnitKey operator()(uint32_t number) const { return {(*stems)[number].value}; }
  };
  IdKey id_key() const { return {&entries_}; }
  UnitOf unit_key() const { return {&entries_}; }
  DirectoryKey directory_key() const { return {&directories_}; }
  StemOf stem_key() const { return {&stems_}; }
  struct Named {
    uint64_t key = 0;  // hash of the directory's stem and the name
    UnitName of;
  };
  uint16_t stem_number(StemKey stem);
  UnitKey unit_for(ObjectId id, UnitKey wanted) const;
  void link(uint32_t slot);
  void unlink(uint32_t slot);
  void let_go(uint32_t directory);

  PagedVector<Entry> entries_;
  PagedVector<Directory> directories_;
  KeyIndex index_, units_, directory_index_;  // units_: the first entry of each unit
  PagedVector<StemKey> stems_;
  KeyIndex stem_index_;
  static constexpr size_t kNamed = 64;  // the stores under way at a time
  mutable std::array<Named, kNamed> named_{};
  uint32_t free_entry_ = kNoSlot, free_directory_ = kNoSlot;
  size_t objects_ = 0, directory_count_ = 0;
};

}  // namespace kvcachefs::evict
