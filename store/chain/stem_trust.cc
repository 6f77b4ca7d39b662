#include "store/chain/stem_trust.h"

#include <algorithm>

#include "store/chain/planner_limits.h"

namespace kvcachefs {

namespace {

constexpr int8_t kTrustStart = 4, kTrustMax = 8;
constexpr uint64_t kRetryGated = 32;  // of so many runs of an untrusted kind, one is tried again

int8_t stepped(int8_t trust, bool right) {
  return static_cast<int8_t>(right ? std::min<int>(trust + 1, kTrustMax) : std::max<int>(trust - 1, 0));
}

}  // namespace

StemTrust::Trust& StemTrust::trust(uint64_t stem) {
  if (trust_.size() >= kMaxTables && !trust_.contains(stem)) trust_.clear();
  return trust_.try_emplace(stem, Trust{{kTrustStart, kTrustStart, kTrustStart}, kTrustStart, 1.0F}).first->second;
}

bool StemTrust::tries_again() { return ++gated_ % kRetryGated == 0; }

bool StemTrust::trusts_run(uint64_t stem, LoadReason reason) {
  return trust(stem).by_reason[static_cast<size_t>(reason)] > 0 || tries_again();
}

bool StemTrust::trusts_chain_end(uint64_t stem) { return trust(stem).chain_ends > 0 || tries_again(); }

bool StemTrust::proven(uint64_t stem, LoadReason reason) const {
  auto found = trust_.find(stem);
  return found != trust_.end() && found->second.by_reason[static_cast<size_t>(reason)] > kTrustStart;
}

double StemTrust::used_share(uint64_t stem) const {
  auto found = trust_.find(stem);
  return found == trust_.end() ? 1.0 : static_cast<double>(found->second.used_share);
}

void StemTrust::run_ended(uint64_t stem, LoadReason reason, bool right) {
  int8_t& t = trust(stem).by_reason[static_cast<size_t>(reason)];
  t = stepped(t, right);
}

void StemTrust::chain_end_decided(uint64_t stem, bool reached) {
  int8_t& t = trust(stem).chain_ends;
  t = stepped(t, reached);
}

void StemTrust::objects_judged(uint64_t stem, uint64_t planned, uint64_t unread) {
  const double used = 1.0 - static_cast<double>(std::min<uint64_t>(unread, planned)) / static_cast<double>(planned);
  float& share = trust(stem).used_share;
  // Long runs weigh more, because bytes count, not runs.
  const double weight = std::min(0.25, static_cast<double>(planned) / 256.0);
  share = static_cast<float>(share + (used - share) * weight);
}

}  // namespace kvcachefs
