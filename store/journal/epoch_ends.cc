#include "store/journal/epoch_ends.h"

#include <ranges>
#include <utility>

#include "store/journal/record_codec.h"

namespace kvcachefs {
namespace {

// The EndsRecord at the beginning of an epoch; nullopt if there is none or it is unreadable (then the earlier epochs count in full).
Result<std::optional<EndsRecord>> first_record(const EpochWalk& walk) {
  if (walk.files().empty() || walk.files().front().seq != 0) return std::nullopt;  // a checkpoint covers the first file
  std::optional<EndsRecord> found;
  const WalkVisitor visitor{.frame = [&](const WalkedFile&, const Frame& frame, uint64_t) -> Result<bool> {
                              if (auto ends = batch_ends(frame.payload)) found = *ends;
                              return false;
                            },
                            .gap = [](const Gap&) { return false; },
                            .given_up_tail = [](const WalkedFile&) {}};
  KVC_TRY(walk.walk({}, std::nullopt, visitor));
  return found;
}

}  // namespace

Result<EpochEnds> EpochEnds::read(Volume& volume, const FileIdentity& identity, const std::vector<uint32_t>& epochs, uint32_t after) {
  EpochEnds ends;
  FileIdentity its = identity;
  for (const uint32_t epoch : epochs | std::views::reverse) {
    if (epoch <= after) break;
    its.epoch = epoch;
    KVC_ASSIGN(const EpochWalk walk, EpochWalk::open(volume, its));
    KVC_TRY(ends.look_at(epoch, walk));
  }
  return ends;
}

Status EpochEnds::look_at(uint32_t epoch, const EpochWalk& walk) {
  // An epoch that a later one takes back entirely cannot take back others.
  if (!fences_.empty() && fences_.back().end.epoch < epoch) return {};
  KVC_ASSIGN(const auto first, first_record(walk));
  if (first && first->left_out) from_checkpoint_.insert(epoch);
  if (first && first->end.epoch < epoch) fences_.push_back({epoch, first->end});
  return {};
}

std::optional<JournalLink> EpochEnds::limit(uint32_t epoch) const {
  std::optional<JournalLink> least;
  for (const Fence& fence : fences_) {
    if (epoch >= fence.from_epoch || fence.end.epoch > epoch) continue;
    const JournalLink end = fence.end.epoch == epoch ? JournalLink{fence.end.seq, fence.end.offset} : JournalLink{};
    if (!least || std::pair(end.seq, end.end) < std::pair(least->seq, least->end)) least = end;
  }
  return least;
}

bool EpochEnds::counts(JournalPosition position) const {
  const auto end = limit(position.epoch);
  return !end || std::pair(position.seq, position.offset) <= std::pair(end->seq, end->end);
}

}  // namespace kvcachefs
