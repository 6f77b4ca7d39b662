// When a replica makes durable what it has applied, and what its files on this machine grow by then.
#include <algorithm>

#include "store/base/units.h"
#include "store/peers/part_size.h"
#include "store/peers/replica.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kMostGrowthBytes = 8 * kMiB;  // of the files by one commit: so much is set aside of the capacity meanwhile
constexpr int64_t kMostAgeNs = 60'000'000'000;   // of what is not committed
}  // namespace

Status Replica::commit(int64_t now_ns) {
  if (index_ == nullptr || !applied_since_ns_) return {};
  if (index_->overlay_rows() < kMostRows && growth_bytes() < kMostGrowthBytes && now_ns - *applied_since_ns_ < kMostAgeNs) return {};
  return commit_all();
}

// Each row writes a page anew, and a part of the way to it; pages that earlier commits gave up are used first. Large rows have pages of their own.
uint64_t Replica::growth_bytes() const {
  constexpr uint64_t kPageBytes = 8 * kKiB, kRowTimes = 2;  // as RecordSpace counts those of this node
  if (index_ == nullptr || !applied_since_ns_) return 0;
  const uint64_t pages = std::min(index_->overlay_rows() * kPageBytes, committed_bytes_);
  return kRowTimes * applied_bytes_ + pages - std::min(pages, unused_bytes_);
}

void Replica::measure() {
  committed_bytes_ = allocated_below(setup_.directory);
  unused_bytes_ = index_ == nullptr ? 0 : index_->unused_bytes();
}

Status Replica::commit_all() {
  if (index_ == nullptr || !applied_since_ns_) return {};
  KVC_TRY(index_->commit());
  applied_since_ns_.reset();
  applied_bytes_ = 0;
  measure();
  return {};
}

}  // namespace kvcachefs
