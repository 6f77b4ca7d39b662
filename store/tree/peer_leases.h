// Which objects of other nodes clients here were told of, opened, or are expected to read, and when last. What was told of within `lease_ms` is
// answered here for as long, though its node takes it away to make room meanwhile: that is a promise to who asked, who is about to load it.
//
// Thread-safe; one leaf mutex. Bounded: what comes beyond the bound is not promised anything.
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
  static constexpr size_t kMost = 1 << 16;                    // in lasts_ns(), of which listings take half at most
  static constexpr int64_t kKernelKnowsNs = 1'000'000'000;    // so long the kernel goes by what it was told of a name

  explicit PeerLeases(const Clock& clock) : clock_(clock) {}

  void set_lease_ms(uint64_t lease_ms);
  int64_t lasts_ns() const { return lasts_ns_.load(std::memory_order_relaxed); }  // from the last use; 0: there are none

  // Under the lock that keeps the name there until then: it is about to be told to be there, in the directory that clients know by this id.
  // Of objects of this node, and of what is absent, nothing is noted.
  void told(ObjectId directory, ObjectId id) { note(directory, id, How::kSought); }
  void listed(ObjectId directory, ObjectId id) { note(directory, id, How::kListed); }
  // A client here removed or replaced it: nobody is told of it any more.
  void forget(ObjectId id);

  struct Lease {
    int64_t until_ns = 0;
    std::optional<int64_t> asked_until_ns;  // that of the last time a client asked for it; none: it was only read ahead
    bool is_only_listed = false;            // nothing but a listing told of it: it gives way to others
    ObjectId directory;                     // invalid: it was opened by its id, or is read ahead
  };
  std::optional<Lease> find(ObjectId id) const;  // none if it is over

  // --- told by AccessTracker; a probe was told of before
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
  std::array<std::unordered_map<ObjectId, Use>, 2> uses_;  // since begun_ns_, and before that for lasts_ns() at least
  int64_t begun_ns_ = 0;
};

}  // namespace kvcachefs
