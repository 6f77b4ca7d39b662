#include "store/upkeep/record_scrub.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "store/base/log.h"

namespace kvcachefs {

Result<RecordScrub::Verified> RecordScrub::verify(const std::function<bool()>& goes_on) const {
  const uint64_t checkpoints = parts_.counters.checkpoints.load(std::memory_order_relaxed);
  KVC_ASSIGN(Verified found, read_once(goes_on));
  if (found.problem.empty()) return found;
  KVC_ASSIGN(Verified again, read_once(goes_on));
  again.bytes += found.bytes;
  const bool anew = parts_.counters.checkpoints.load(std::memory_order_relaxed) != checkpoints;
  if (anew || again.problem != found.problem) again.problem.clear();
  return again;
}

std::optional<uint64_t> RecordScrub::run(const std::function<bool()>& goes_on) const {
  const auto verified = verify(goes_on);
  if (!verified && verified.error().code == Code::kCanceled) return std::nullopt;
  if (!verified) {
    log::warn("records could not be verified: {}", verified.error().message);
    return 0;
  }
  if (verified->problem.empty()) return verified->bytes;
  parts_.counters.errors_checksum.fetch_add(1, std::memory_order_relaxed);
  log::error("{}; the index has what they said: a checkpoint takes their place", verified->problem);
  parts_.want_checkpoint();
  return verified->bytes;
}

Result<RecordScrub::Verified> RecordScrub::read_once(const std::function<bool()>& goes_on) const {
  const Stamp reaches = parts_.index.stamp();  // before anything is read: the journals go on
  const auto ask = [&goes_on]() -> Status { return goes_on() ? Status() : fail(Code::kCanceled, "not now"); };
  Verified verified;
  std::vector<std::string> problems;
  JournalPosition from;
  Stamp last;
  KVC_ASSIGN(const auto newest, find_checkpoint(parts_.volume, parts_.identity, problems));
  if (newest) {
    from = newest->header.covers;
    last = newest->header.stamp;
    const Status read = read_checkpoint(parts_.volume, parts_.identity, *newest, [&](Record&&) { return ask(); }, problems);
    if (!read && read.error().code != Code::kCorrupt) return std::unexpected(read.error());
    if (!read) problems.push_back(read.error().message);
    if (const auto file = parts_.volume.info(checkpoint_path(parts_.identity.node, newest->epoch, newest->seq))) verified.bytes += file->size_bytes;
  }
  KVC_ASSIGN(const ReplayStatistics read, replay_journals(parts_.volume, parts_.identity, from, [&](const Batch& batch, JournalPosition, bool) -> Status {
    last = std::max(last, batch.stamp);
    return ask();
  }));
  verified.bytes += read.bytes;
  // A torn end is no damage where nothing is behind it that the index has.
  if (!problems.empty()) verified.problem = problems.front();
  else if (read.damaged_files > 0 && !read.problems.empty()) verified.problem = read.problems.front();
  else if (last < reaches) verified.problem = fmt::format("journals of node '{}': they end before what was read of them{}{}", parts_.identity.node,
                                                          read.problems.empty() ? "" : ": ", read.problems.empty() ? "" : read.problems.front());
  return verified;
}

}  // namespace kvcachefs
