// Which objects of other nodes clients here were told of, opened, or are expected to read, and when last. An object told of within `lease_ms` is
// served here for that long, even if its node evicts it meanwhile: a promise to the client that asked and is about to load it.
//
// Thread-safe; one leaf mutex. Bounded: objects beyond the bound get no promise.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/types.h"
#include "store/chain/access_listener.h"

namespace kvcachefs {

class PeerLeases final : public AccessListener {
 public:
  static constexpr size_t kMost = 1 << 16;                    // uses noted within lasts_ns(); listings take half of them at most
  static constexpr int64_t kKernelKnowsNs = 1'000'000'000;    // how long the kernel relies on the last answer about a name

  explicit PeerLeases(const Clock& clock) : clock_(clock) {}

  void set_lease_ms(uint64_t lease_ms);
  int64_t lasts_ns() const { return lasts_ns_.load(std::memory_order_relaxed); }  // how long a lease lasts from the last use; 0: there are no leases

  // Call under the lock that keeps the name there until then, before a client is told that it is there. `directory`: the id by which clients know it.
  // Nothing is noted of this node's objects or of absent names.
  void told(ObjectId directory, ObjectId id) { note(directory, id, How::kSought); }
  void listed(ObjectId directory, ObjectId id) { note(directory, id, How::kListed); }
  // A client here removed or replaced it: it is not told of any more.
  void forget(ObjectId id);

  struct Lease {
    int64_t until_ns = 0;
    std::optional<int64_t> asked_until_ns;  // by the last time that a client asked for it; none: it was only read ahead
    bool is_only_listed = false;            // only a listing told of it: it gives way to others
    ObjectId directory;                     // invalid: it was opened by its id, or is read ahead
  };
  std::optional<Lease> find(ObjectId id) const;  // none if it is over

  // called by AccessTracker; a probe was noted by told() already
  void opened(ObjectId id, uint64_t) override { note({}, id, How::kSought); }
  void loaded_ahead(ObjectId id) override { note({}, id, How::kReadAhead); }
  void probed(uint32_t, ObjectId, std::string_view, ObjectId, uint64_t) override {}
  void directory_named(ObjectId, std::string_view, ObjectId) override {}
  void written(ObjectId, uint64_t) override {}
  void created(ObjectId, std::string_view, ObjectId) override {}
  void published(uint32_t, ObjectId, std::string_view, ObjectId, uint64_t) override {}
  void deleted(ObjectId) override {}

 private:
  enum class How : uint8_t { kSought, kListed, kReadAhead };
  struct Use {
    int64_t at_ns = 0;
    std::optional<int64_t> asked_ns;   // by a client
    std::optional<int64_t> wanted_ns;  // not merely listed
    ObjectId directory;
    bool is_forgotten = false;
  };
  void note(ObjectId directory, ObjectId id, How how);

  const Clock& clock_;
  std::atomic<int64_t> lasts_ns_{0};
  mutable LeafMutex mutex_;  // guards the rest
  std::array<std::unordered_map<ObjectId, Use>, 2> uses_;  // uses since begun_ns_, and those of the period before, which covers at least lasts_ns()
  int64_t begun_ns_ = 0;
};

}  // namespace kvcachefs
