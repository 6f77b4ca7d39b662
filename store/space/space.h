// How much of the volume may be used. Space is reserved before bytes are accepted, so that nothing accepted meets a full
// disk later (invariant 8).
// Thread-safe: one leaf mutex, held for sums only, so that bytes that move from one count to another are never seen in both or in
// neither: df falls by the size of an unlinked file, whatever is being journaled at that moment.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>

#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/base/types.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class Space {
 public:
  // `limit_bytes`: the capacity option; `keep_free_bytes` of the backing file system stay unused. Beside other nodes a lower limit allows no use beyond
  // the present one until the claim is told anew (sink_claim(), set_claim()): all claims were made under the limit before.
  void configure(uint64_t limit_bytes, uint64_t keep_free_bytes);
  // Reserves `bytes` for a body to come; false if they do not fit. Bytes being removed count as used until their blocks were
  // given back.
  bool try_reserve(uint64_t bytes);
  // Sets the function called when less than tell_below() is left free: once, until tell_below() is called again; without this object's lock,
  // but any other lock may be held. Set before use.
  void set_low_callback(std::function<void()> low) { low_ = std::move(low); }
  void tell_below(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    tell_below_bytes_ = bytes;
  }

  // --- space_claim.cc: on a volume that several nodes share the capacity is that of all, and a node uses no more of it than its claim
  void set_claim(uint64_t bytes);
  uint64_t lower_claim(uint64_t bytes);  // lowers the claim to `bytes`, or to used_bytes() if that is more; returns the claim
  // Until set_claim() no more than `bytes` of the claim is used anew: space that comes back beyond it is for other nodes.
  void sink_claim(uint64_t bytes);
  bool claim_sinks() const;
  // `unclaimed_bytes`: what no node claims, and this one could. `capacity_bytes`: of the volume, where other nodes tell less than the option.
  // `lone_bytes`: what this node can come to claim because there are no others; 0: there are others.
  void set_shared(uint64_t unclaimed_bytes, uint64_t capacity_bytes, uint64_t lone_bytes);
  // After `until_ns`, by the claim clock, nothing can be reserved until this is called with a later time. Set the clock before use.
  void hold_claim_until(int64_t until_ns);
  void set_claim_clock(std::function<int64_t()> now_ns) { claim_now_ns_ = std::move(now_ns); }
  bool claim_has_lapsed() const;
  // Like set_low_callback(), for less than tell_claim_below() left of the claim; also called where a call found no room.
  void set_claim_low_callback(std::function<void()> low) { claim_low_ = std::move(low); }
  void tell_claim_below(uint64_t bytes);
  uint64_t claim_bytes() const { return get(claim_bytes_); }
  uint64_t take_lacking_bytes();  // how much the largest failed reservation since the last call lacked; 0: none failed
  void note_lacking(uint64_t bytes);  // a call found less room than it needs, without reserving
  // Bytes on the volume, and bytes that may come there for what was accepted here: the claim has to cover these, whatever others have.
  uint64_t used_bytes() const;
  uint64_t wanted_bytes() const { return get(wanted_bytes_); }  // as given to set_overhead()
  uint64_t used_soon_bytes() const;  // both, without what comes back by itself
  uint64_t backing_free_soon_bytes() const {  // usable free bytes of the file system, with what comes back
    std::lock_guard lock(mutex_);
    return backing_free_soon();
  }

  // For callers that cannot wait for the claim to be raised: a node that is alone goes beyond its claim, and raises the claim within a second.
  bool reserve_at_once(uint64_t bytes);
  // Reserves even where the bytes do not fit.
  void reserve(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    reserved_bytes_ += bytes;
  }
  void release(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    reserved_bytes_ -= bytes;
  }
  // The file system took nothing although it reports room (no inodes, a quota): until it does, nothing can be reserved.
  void set_refused(bool refused) {
    std::lock_guard lock(mutex_);
    refused_ = refused;
  }
  uint64_t room_bytes() const {  // what could be reserved now
    std::lock_guard lock(mutex_);
    return room(usable_claim());
  }

  // Counts events that a reclaim round could turn into free space: something on the volume was removed, replaced or let go of. A call waits for
  // another round only if the count changed since a fruitless one. Released reservations are not counted: they need no reclaim.
  void hope() { hopes_.fetch_add(1); }
  uint64_t hopes() const { return hopes_; }

  // As found at a start; dead bytes also change as bytes are written that no record will name.
  void set_live(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    live_bytes_ = bytes;
  }
  void set_dead(uint64_t bytes) {
    std::lock_guard lock(mutex_);
    dead_bytes_ = bytes;
  }
  void set_dead_that_stays(uint64_t bytes);  // so many of the dead and orphaned bytes do not come back by themselves
  // Leftovers of earlier lives that no record names, until they are swept: they are on the volume, and come back by themselves.
  void set_orphaned(uint64_t bytes);
  void set_kept(uint64_t bytes);  // no record names them, and they stay
  // Bytes that journals, checkpoint and index take, and those that they may take for what was accepted (record_space.h). `wanted_bytes` can wait
  // until they are claimed and reserved: the node wishes for them and evicts for them; `kept`: nothing else may be reserved in them.
  void set_overhead(uint64_t bytes, uint64_t ahead_bytes, uint64_t wanted_bytes = 0, bool kept = false) {
    std::lock_guard lock(mutex_);
    overhead_bytes_ = bytes;
    ahead_bytes_ = ahead_bytes;
    wanted_bytes_ = wanted_bytes;
    wanted_is_kept_ = kept;
  }
  void set_backing(const SpaceInfo& backing) {
    std::lock_guard lock(mutex_);
    backing_free_bytes_ = backing.available_bytes - std::min(backing.available_bytes, keep_free_bytes_);
  }
  // An operation on a raw file ended, for which `reserved_bytes` were reserved: the file counts `counted_bytes` more.
  void raw_ended(uint64_t reserved_bytes, uint64_t counted_bytes);
  // A raw file was measured: it counted `before_bytes`, and now counts `after_bytes`.
  void raw_measured(uint64_t before_bytes, uint64_t after_bytes);

  // An object lost its last name: its bytes on the volume count as live until that is journaled; those of a body that is not
  // written yet count as reserved until nobody writes it any more.
  void add_leaving(ObjectId object, uint64_t bytes);
  void remove_leaving(ObjectId object) {
    std::lock_guard lock(mutex_);
    forget_leaving(object);
  }
  void release_leaving(ObjectId object, uint64_t reserved_bytes);  // the same, and releases its reservation
  // A batch was journaled: `consumed_bytes` reserved for its bodies are on the volume and count as live, and the places of `gave_up`
  // (which may name objects that have a newer body) count as dead.
  void journaled(uint64_t live_bytes, uint64_t dead_bytes, uint64_t consumed_bytes, std::span<const ObjectId> gave_up);
  // The dead bytes beyond `dead_bytes` were given back to the backing file system.
  void gave_back(uint64_t dead_bytes);

  // The capacity; on a shared volume, that of the volume.
  uint64_t limit_bytes() const {
    std::lock_guard lock(mutex_);
    return limit();
  }
  // The part of it that this node may use, or may come to use without asking others.
  uint64_t own_limit_bytes() const;
  uint64_t reserved_bytes() const { return get(reserved_bytes_); }
  uint64_t live_bytes() const { return get(live_bytes_); }
  uint64_t dead_bytes() const { return get(dead_bytes_); }
  uint64_t orphaned_bytes() const { return get(orphaned_bytes_); }
  // Everything on the volume: live places, raw files, places not given back yet, orphans, journals, checkpoints, index.
  uint64_t physical_bytes() const {
    std::lock_guard lock(mutex_);
    return physical();
  }
  // Free bytes as df shows them: includes space that comes back by itself, and what no node claims.
  uint64_t free_bytes() const {
    std::lock_guard lock(mutex_);
    return free(sum(own_bytes(), unclaimed_bytes_));
  }
  // The free part of own_limit_bytes().
  uint64_t own_free_bytes() const;

 private:
  uint64_t free(uint64_t claim_bytes) const;
  uint64_t coming() const { return dead_bytes_ + orphaned_bytes_ + std::min(leaving_bytes_, live_bytes_ + reserved_bytes_); }
  uint64_t backing_free_soon() const {
    const uint64_t backing = sum(backing_free_bytes_, coming());
    return backing - std::min(reserved_bytes_, backing);
  }
  uint64_t held() const { return physical() + reserved_bytes_ + ahead_bytes_; }
  uint64_t used() const { return held() + wanted_bytes_; }
  uint64_t limit() const { return std::min(limit_bytes_, shared_limit_bytes_); }
  uint64_t usable_claim() const { return std::min(claim_bytes_, sinks_to_bytes_); }
  uint64_t own_bytes() const { return std::max(usable_claim(), lone_bytes_); }
  bool lapsed() const;
  uint64_t get(const uint64_t& counter) const {
    std::lock_guard lock(mutex_);
    return counter;
  }
  // backing_free_bytes_ is "no limit" until it was measured.
  static uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
  uint64_t physical() const { return live_bytes_ + dead_bytes_ + orphaned_bytes_ + kept_bytes_ + raw_bytes_ + overhead_bytes_; }
  uint64_t room(uint64_t claim_bytes) const;
  void forget_leaving(ObjectId object);

  mutable LeafMutex mutex_;  // leaf; guards everything but hopes_
  uint64_t limit_bytes_ = UINT64_MAX, keep_free_bytes_ = 0;
  uint64_t claim_bytes_ = UINT64_MAX, sinks_to_bytes_ = UINT64_MAX, unclaimed_bytes_ = 0, shared_limit_bytes_ = UINT64_MAX, tell_claim_below_bytes_ = 0;
  int64_t claim_until_ns_ = INT64_MAX;
  std::function<int64_t()> claim_now_ns_;
  uint64_t lone_bytes_ = UINT64_MAX;
  uint64_t reserved_bytes_ = 0, live_bytes_ = 0, dead_bytes_ = 0, stays_bytes_ = 0, orphaned_bytes_ = 0, kept_bytes_ = 0, overhead_bytes_ = 0, ahead_bytes_ = 0, wanted_bytes_ = 0, raw_bytes_ = 0,
           lacking_bytes_ = 0;
  uint64_t backing_free_bytes_ = UINT64_MAX;
  bool refused_ = false, wanted_is_kept_ = false;
  uint64_t tell_below_bytes_ = 0;
  std::function<void()> low_, claim_low_;
  uint64_t leaving_bytes_ = 0;  // the sum of leaving_
  std::unordered_map<ObjectId, uint64_t> leaving_;
  std::atomic<uint64_t> hopes_{0};
};

}  // namespace kvcachefs
