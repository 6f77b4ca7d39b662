// Which chunks go when the volume is full. Owns the policy, the table of units, the leases and the pins, and is told of accesses by
// AccessTracker. All it says is advice: whoever removes the objects of a victim looks at each once more, and tells what came of it.
//
// Thread-safe: one leaf mutex, held for a bounded time (filling and building: in pieces; a pin of a directory, or a move of one that is
// not empty into or out of a pinned one: a pass over all entries). Nothing of another class is called under it, but for the policy and the clock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/chain/access_listener.h"
#include "store/evict/policy.h"
#include "store/evict/prefix_links.h"
#include "store/evict/recent_keys.h"
#include "store/evict/unit_table.h"
#include "store/upkeep/evictor_types.h"
#include "store/upkeep/eviction_counts.h"

namespace kvcachefs {

class Evictor final : public AccessListener, public EvictorTypes {
 public:
  using Why = EvictionCounts::Why;
  using Age = EvictionCounts::Age;
  // How long the kernel goes by what it was told of a name.
  static constexpr int64_t kKernelKnowsMs = 1'000;

  explicit Evictor(Clock& clock);
  // What is switched on, or gets another policy, has to be filled.
  void configure(const Settings& settings);
  bool on() const { return on_.load(std::memory_order_relaxed); }
  bool gives_leases() const { return leases_.load(std::memory_order_relaxed); }

  // --- told by AccessTracker
  void probed(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, uint64_t size_bytes) override;
  void directory_named(ObjectId parent, std::string_view name, ObjectId id) override;
  void opened(ObjectId id, uint64_t size_bytes) override { used(id, size_bytes, true); }
  void written(ObjectId id, uint64_t size_bytes) override { used(id, size_bytes, false); }
  void created(ObjectId parent, std::string_view name, ObjectId id) override;
  void published(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, uint64_t size_bytes) override;
  void loaded_ahead(ObjectId id) override { opened(id, 0); }
  void used_elsewhere(ObjectId id) override { opened(id, 0); }
  void deleted(ObjectId id) override;

  // Its name is about to be told to be there, under the lock that keeps it there until then: it is leased from here on.
  // True: many requests begin with it, so the kernel is not to answer the next probes itself: what follows in them is learned from that.
  bool will_be_told(ObjectId id, uint32_t thread_id);
  // The same by a listing, which is no use: as a walk over all names tells of all objects, this lease is the first to be broken.
  void will_be_listed(std::span<const ObjectId> ids);

  // --- filling, by one thread: from when filling() tells of a number, all directories (parents first) and files that are there
  // are told of under that number, and then build() is called until it is done. Another number: from the beginning.
  uint64_t filling() const;  // 0: nothing is to be filled
  void found_directory(ObjectId parent, std::string_view name, ObjectId id, bool pinned);
  void found(const Found& file);
  bool build(uint64_t number);  // a piece of it; true: done, or to be begun anew

  // --- choosing, by one thread
  // Units of at least so many bytes, as far as they are there, at most `most`; of one chain those behind first. Each is told of
  // afterwards by evicted() or refused().
  std::vector<Victim> choose(uint64_t bytes, size_t most, Leases leases);
  // The unit of this object, chosen as well, where it ends a chain, nothing holds it, and it is worth at most `factor` times what goes anyway.
  std::optional<Victim> choose_cheap(ObjectId id, double factor);
  void evicted(const Victim& victim, uint64_t objects, uint64_t bytes);
  void refused(const Victim& victim, Refused how);
  // Sidecars that came when their bodies had just gone: a client that finds one takes the body for there. They go whatever is free.
  // Each is told of as above; a refused one is chosen again.
  std::vector<Victim> choose_stranded(size_t most);
  void sized(ObjectId id, uint64_t size_bytes);  // its body is on the volume: of what was written under its name no access tells
  // It was probed or opened since it was chosen; or its lease is not one that may be broken.
  bool wanted_again(const Victim& victim, Leases leases) const;
  void forgive();             // what was refused for now may be chosen again
  void nameless(ObjectId id);  // it has not the name that was known of it
  // Nothing could be chosen: it is not worth another try before something changes, or a second has passed.
  void note_hopeless() { hopeless_until_ms_.store(now_ms() + kHopelessMs, std::memory_order_relaxed); }
  bool may_evict() const { return on() && !hopeless(); }  // a call that finds no room may get some
  bool hopeless() const { return hopeless_until_ms_.load(std::memory_order_relaxed) > now_ms(); }
  // --- pins
  // kNoSpace, with the reason, if more than may be pinned would be. `id` may be a file or a directory.
  Status pin(ObjectId id, bool directory, bool pinned);
  bool is_pinned(ObjectId id) const;
  uint64_t pinned_bytes() const;

  EvictionCounts counts() const;
  // That may go, about: last used 2^(i-1) to 2^i seconds ago; the last: all older. Of what was opened within its lease a part, for it is worth a wait.
  std::array<uint64_t, 24> bytes_by_age() const;
  EvictionSurvey survey() const;  // of all objects, or some thousands of them where there are more
  // The name was of a unit that was evicted, and that is remembered: about as many as are there.
  bool was_evicted(ObjectId parent, std::string_view name) const;
  // What is known of an object, but for a probe by the thread that asks, a moment ago: to ask by a path is to look the name up.
  std::optional<EvictionOutlook> known(ObjectId id, uint32_t thread_id) const;
  std::string check() const;  // for tests; empty: all adds up

 private:
  static constexpr uint8_t kYoung = 1;   // created, and not renamed: not known to the policy yet
  static constexpr uint8_t kAside = 32;  // no chunk when it was looked at last: not known to the policy for a while
  static constexpr uint8_t kLooked = 2;  // its last use was a probe or an open
  static constexpr uint8_t kPinned = 4, kOwnPin = 8;  // and counted; by itself
  static constexpr uint8_t kStranded = 64;  // a sidecar without a body when it came
  static constexpr uint8_t kBuilt = 16;  // (while filling) published to the policy
  static constexpr int64_t kTickMs = 16, kHopelessMs = 1'000, kLookMs = 2'000;
  static constexpr size_t kLooks = 256, kPassed = 256;
  using Entry = evict::UnitTable::Entry;
  enum class State : uint8_t { kOff, kFilling, kReady };
  struct Young {
    ObjectId id;
    uint32_t since = 0;
  };
  struct Building {  // of the thread that fills
    uint64_t number = 0;
    std::vector<std::pair<int32_t, uint32_t>> order;  // last use, slot
    uint32_t listed = 0, checked = 0;
    size_t published = 0;
    bool sorted = false;
  };
  struct Look {  // the last use before the probes of a thread
    ObjectId id;
    uint32_t thread_id = 0, at = 0, used = 0, looked = 0;
  };
  struct Passed {  // a name of which the object went a moment ago, perhaps for another
    uint64_t cookie = 0;
    uint32_t directory = evict::kNoSlot, used = 0;
  };
  struct Gone { evict::UnitKey key; };
  struct Usual { uint32_t blocks = 0, smaller = 0; };  // size of the bodies of a stem; how many smaller ones came in a row

  void used(ObjectId id, uint64_t size_bytes, bool looked);
  int64_t now_ms() const { return clock_.monotonic_ns() / 1'000'000; }
  // mutex_ held, here and below
  uint32_t tick(int64_t ms) const { return static_cast<uint32_t>((ms - origin_ms_) / kTickMs); }
  int64_t ms_since(uint32_t then, int64_t now) const { return int64_t{static_cast<int32_t>(tick(now) - then)} * kTickMs; }
  void restart();
  void note_look(const Entry& entry, uint32_t thread_id, int64_t now);
  template <class See>
  void see_some(const See& see) const;
  uint32_t enter(uint32_t directory, std::string_view name, const evict::UnitName& of, ObjectId id, uint64_t size_bytes);
  void note_use(Entry& entry, int64_t now, bool looked);
  void set_size(Entry& entry, uint64_t size_bytes);
  void publish(uint32_t slot, evict::UnitKey follows, bool full, int64_t now);
  void publish_chain(uint32_t slot, std::vector<uint32_t>& stack);
  bool let_grow_up(bool all, int64_t now);
  void inherit_lease(Entry& entry, int64_t now);
  bool is_stranded(const Entry& entry, std::string_view name) const;
  bool has_body(const Entry& sidecar, uint64_t body_cookie) const;
  void unit_left(evict::UnitKey unit);
  void put_aside(evict::UnitKey unit, int64_t now);
  // `as`: the entry of the same object is taken for this.
  evict::Hold hold_of(evict::UnitKey unit, int64_t now, Leases leases, const Entry* as = nullptr) const;
  int64_t lease_ms() const { return settings_.lease_ms > 0 ? settings_.lease_ms + kKernelKnowsMs : 0; }
  int64_t stays_ms(bool looked, Leases leases) const;
  bool is_used_lately(const Entry& entry, int64_t now, Leases leases) const;
  bool is_leased(const Entry& entry, int64_t now, Leases leases) const;
  bool is_promised(evict::UnitKey unit, int64_t now, const Entry* as = nullptr) const;
  Victim victim_of(evict::UnitKey unit, int64_t now) const;
  bool is_full(const Entry& entry, std::string_view name);
  void settle_pin(Entry& entry);
  void count_pin(Entry& entry, bool pinned);
  void settle_all_pins();

  Clock& clock_;
  std::atomic<bool> on_{false}, leases_{false};
  std::atomic<int64_t> hopeless_until_ms_{INT64_MIN}, listed_ms_{INT64_MIN / 2};
  mutable LeafMutex mutex_;  // a leaf. Guards all that follows but for building_
  Settings settings_;
  State state_ = State::kOff;
  uint64_t number_ = 0;  // of the filling
  int64_t origin_ms_ = 0;
  evict::UnitTable table_;
  std::unique_ptr<evict::Policy> policy_;
  evict::PrefixLinks links_;
  std::deque<Young> young_;  // oldest first; some are not young any more
  struct Stranded { ObjectId id; uint64_t cookie = 0, body_cookie = 0; };
  std::deque<Stranded> stranded_;  // some are not any more
  std::deque<Young> aside_;  // no chunks when they were looked at last
  std::unordered_map<uint16_t, Usual> usual_;  // by stem
  std::unordered_map<evict::UnitKey, int64_t> refused_;  // until when
  std::unordered_map<evict::UnitKey, bool> going_;       // chosen, and not told of yet; by breaking a lease
  std::vector<evict::UnitKey> chosen_;
  evict::RecentKeys<Gone> gone_;  // units evicted lately
  std::array<Look, kLooks> looks_{};
  std::array<Passed, kPassed> passed_{};
  std::vector<ObjectId> follows_;  // (while filling) by slot
  size_t pins_ = 0;  // entries and directories that somebody pinned
  EvictionCounts counted_;
  Building building_;
};

}  // namespace kvcachefs
