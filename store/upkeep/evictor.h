// Chooses the chunks to evict when the volume is full. Owns the policy, the table of units, the leases and the pins. AccessTracker tells it
// of accesses. Its answers are advice: the caller that removes a victim's objects checks each once more and reports the outcome.
//
// Thread-safe: one leaf mutex, held for a bounded time (filling and building work in pieces; pinning a directory, or moving a non-empty one
// into or out of a pinned one, passes over all entries). Under it only the policy and the clock are called.
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
  // How long the kernel relies on a lookup's answer.
  static constexpr int64_t kKernelKnowsMs = 1'000;

  explicit Evictor(Clock& clock);
  // After eviction is switched on, or the policy is changed, the evictor has to be filled.
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

  // A client is about to be told that this name exists. Call under the lock that keeps the name: it is leased from here on. True: many
  // requests begin with this chunk, so the kernel must not answer the next probes itself: links are learned from them.
  bool will_be_told(ObjectId id, uint32_t thread_id);
  // The same by a listing, which counts as no use: a walk over all names lists every object, so these leases are the first to be broken.
  void will_be_listed(std::span<const ObjectId> ids);

  // --- filling, by one thread: when filling() returns a number, the caller reports all existing directories (parents first) and files
  // under that number, then calls build() until it is done. When the number changes, it starts from the beginning.
  uint64_t filling() const;  // 0: nothing is to be filled, nor searched for
  void found_directory(ObjectId parent, std::string_view name, ObjectId id, bool pinned);
  void found(const Found& file);
  bool build(uint64_t number);  // one piece; true: done, or to be started again

  // --- choosing, by one thread
  // Returns units of at least `bytes` in total, if there are that many, and at most `most` units; within one chain the last come first. The
  // caller reports each afterwards by evicted() or refused().
  std::vector<Victim> choose(uint64_t bytes, size_t most, Leases leases);
  // Chooses the unit of this object if it ends a chain, nothing holds it, and it is worth at most `factor` times the usual victims.
  std::optional<Victim> choose_cheap(ObjectId id, double factor);
  void evicted(const Victim& victim, uint64_t objects, uint64_t bytes);
  void refused(const Victim& victim, Refused how);
  // Sidecars that arrived just after their bodies were evicted: a client that finds one believes the body is there. They are evicted
  // whatever is free. The caller reports each as above; a refused one is chosen again.
  std::vector<Victim> choose_stranded(size_t most);
  void sized(ObjectId id, uint64_t size_bytes);  // its body is on the volume; no access reports the size of a body written under its final name
  // True if it was probed or opened since it was chosen, or if `leases` does not allow its lease to be broken.
  bool wanted_again(const Victim& victim, Leases leases) const;
  void forgive();             // units refused for now may be chosen again
  void nameless(ObjectId id, bool lives);  // it no longer has the name that was known; lives: it has another one
  // If objects that live were lost so, has the filling thread look for their names, at most once a minute. Returns true if it is to look now.
  bool search_for_lost();
  // Nothing could be chosen: do not try again before something changes, or a second has passed.
  void note_hopeless() { hopeless_until_ms_.store(now_ms() + kHopelessMs, std::memory_order_relaxed); }
  bool may_evict() const { return on() && !hopeless(); }  // a call without room may get some by eviction
  bool hopeless() const { return hopeless_until_ms_.load(std::memory_order_relaxed) > now_ms(); }
  // --- pins
  // Returns kNoSpace, with the reason, if a new pin would exceed the allowed bytes. `id` may be a file or a directory. What is pinned stays
  // pinned when fewer bytes are allowed; after a filling that holds for pins of the files themselves. `size_bytes` counts while eviction is off.
  Status pin(ObjectId id, bool directory, bool pinned, uint64_t size_bytes = 0);
  bool is_pinned(ObjectId id) const;
  Pinned pinned() const;

  EvictionCounts counts() const;
  // Estimate of evictable bytes last used 2^(i-1) to 2^i seconds ago (last: all older); a part of promised and young ones, and while filling 1: worth a wait.
  std::array<uint64_t, 24> bytes_by_age() const;
  EvictionSurvey survey() const;  // of all objects, or a sample of some thousands where there are more
  // True if the name belonged to an evicted unit that is remembered: about as many are remembered as units are present.
  bool was_evicted(ObjectId parent, std::string_view name) const;
  // What is known of an object, ignoring a probe by `thread_id` a moment ago: asking by a path looks the name up.
  std::optional<EvictionOutlook> known(ObjectId id, uint32_t thread_id) const;
  std::string check() const;  // for tests; empty: all adds up

 private:
  static constexpr uint8_t kYoung = 1;   // created and not renamed yet: not known to the policy
  static constexpr uint8_t kAside = 32;  // not a chunk when last checked: kept from the policy for a while
  static constexpr uint8_t kLooked = 2;  // its last use was a probe or an open
  static constexpr uint8_t kPinned = 4, kOwnPin = 8;  // pinned and counted; pinned itself
  static constexpr uint8_t kStranded = 64;  // a sidecar that had no body when it arrived
  static constexpr uint8_t kBuilt = 16;  // (while filling) published to the policy
  static constexpr int64_t kTickMs = 16, kHopelessMs = 1'000, kLookMs = 2'000;
  static constexpr size_t kLooks = 256, kPassed = 256;
  using Entry = evict::UnitTable::Entry;
  enum class State : uint8_t { kOff, kFilling, kReady };
  struct Young { ObjectId id; uint32_t since = 0; evict::UnitName of{}; };  // of: by its name; not valid: its entry has it
  struct Building {  // state of the filling thread
    uint64_t number = 0;
    std::vector<std::pair<int32_t, uint32_t>> order;  // last use, slot
    uint32_t listed = 0, checked = 0;
    size_t published = 0;
    bool sorted = false;
  };
  struct Gone { evict::UnitKey key; };
  struct Usual { uint32_t blocks = 0, smaller = 0; };  // usual size of the bodies of a stem; how many smaller ones came in a row

  void used(ObjectId id, uint64_t size_bytes, bool looked);
  int64_t now_ms() const { return clock_.monotonic_ns() / 1'000'000; }
  // mutex_ is held, here and below
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
  // `as`: this entry is used in place of the table's entry of the same object.
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
  std::atomic<bool> on_{false}, leases_{false}, pinned_while_off_{false};
  std::atomic<int64_t> hopeless_until_ms_{INT64_MIN}, listed_ms_{INT64_MIN / 2};
  mutable LeafMutex mutex_;  // a leaf. Guards everything below except building_
  Settings settings_;
  State state_ = State::kOff;
  bool searching_ = false;  // (ready) names are looked for
  uint64_t lost_ = 0;       // objects that live under names not known, since the last search; at least
  int64_t next_search_ms_ = INT64_MIN;
  uint64_t number_ = 0;  // of the filling
  int64_t origin_ms_ = 0;
  evict::UnitTable table_;
  std::unique_ptr<evict::Policy> policy_;
  evict::PrefixLinks links_;
  std::deque<Young> young_;  // oldest first; some are no longer young
  struct Stranded { ObjectId id; uint64_t cookie = 0, body_cookie = 0; };
  std::deque<Stranded> stranded_;  // some are no longer stranded
  std::deque<Young> aside_;  // not chunks when last checked
  std::unordered_map<uint16_t, Usual> usual_;  // by stem
  std::unordered_map<evict::UnitKey, int64_t> refused_;  // until when
  std::unordered_map<evict::UnitKey, bool> going_;       // chosen and not reported yet; true: by breaking a lease
  std::vector<evict::UnitKey> chosen_;
  evict::RecentKeys<Gone> gone_;  // units evicted lately
  std::array<Look, kLooks> looks_{};
  std::array<Passed, kPassed> passed_{};
  std::vector<ObjectId> follows_;  // (while filling) by slot
  size_t pins_ = 0;  // number of pinned entries and directories
  PinsWhileOff pins_while_off_;
  EvictionCounts counted_;
  Building building_;
};

}  // namespace kvcachefs
