// When a replica makes durable what it has applied, and how much its files on this machine grow by that; what it forgets.
#include "store/base/units.h"
#include "store/peers/replica.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kMostGrowthBytes = 8 * kMiB;  // growth of the files by one commit: so much of the capacity is set aside meanwhile
constexpr int64_t kMostAgeNs = 60'000'000'000;   // of uncommitted rows
}  // namespace

bool Replica::is_commit_due(int64_t now_ns) {
  if (index_ == nullptr || !applied_since_ns_) return false;
  return index_->overlay_rows() >= kMostRows || growth_bytes() >= kMostGrowthBytes || now_ns - *applied_since_ns_ >= kMostAgeNs;
}

uint64_t Replica::growth_bytes() {
  if (index_ == nullptr || !applied_since_ns_) return 0;
  if (!growth_bytes_) growth_bytes_ = index_->growth_bytes();
  return *growth_bytes_;
}

bool Replica::give_back_unused() {
  growth_bytes_.reset();
  return index_ != nullptr && index_->give_back_unused();
}

Status Replica::commit() {
  if (index_ == nullptr || !applied_since_ns_) return {};
  KVC_TRY(index_->commit());
  applied_since_ns_.reset();
  growth_bytes_.reset();
  return {};
}

// The index is scanned first, while the part is read: that may read the disk.
Status Replica::forget(std::string_view node, JournalPosition answered, const Alone& alone) {
  if (index_ == nullptr || !statements_->has_answered(node, answered)) return {};
  KVC_TRY(index_->forget_statements(node, answered));
  if (!applied_since_ns_) applied_since_ns_ = 0;  // the next commit writes it
  growth_bytes_.reset();
  return alone([&]() -> Status {
    statements_->forget(node, answered);
    return {};
  });
}

}  // namespace kvcachefs
