#include "store/upkeep/record_scrub.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "store/base/log.h"

namespace kvcachefs {

Result<std::string> RecordScrub::verify(const std::function<bool()>& goes_on, uint64_t& bytes) const {
  const uint64_t checkpoints = parts_.counters.checkpoints.load(std::memory_order_relaxed);
  KVC_ASSIGN(const std::string found, read_once(goes_on, bytes));
  if (found.empty()) return found;
  KVC_ASSIGN(const std::string again, read_once(goes_on, bytes));
  const bool anew = parts_.counters.checkpoints.load(std::memory_order_relaxed) != checkpoints;
  return anew || again != found ? std::string() : found;
}

RecordScrub::Read RecordScrub::run(const std::function<bool()>& goes_on) const {
  Read read;
  const auto problem = verify(goes_on, read.bytes);
  read.all = problem || problem.error().code != Code::kCanceled;
  if (!problem && read.all) log::warn("records could not be verified: {}", problem.error().message);
  if (!problem || problem->empty()) return read;
  parts_.counters.errors_checksum.fetch_add(1, std::memory_order_relaxed);
  log::error("{}; the index has what they said: a checkpoint takes their place", *problem);
  parts_.replace_rotted();
  return read;
}

Result<std::string> RecordScrub::read_once(const std::function<bool()>& goes_on, uint64_t& bytes) const {
  const Stamp reaches = parts_.index.stamp();  // before anything is read: the journals grow meanwhile
  constexpr uint64_t kRecordBytes = 64;        // estimate of a checkpoint's record
  const auto ask = [&goes_on]() -> Status { return goes_on() ? Status() : fail(Code::kCanceled, "not now"); };
  std::vector<std::string> problems;
  JournalPosition from;
  Stamp last;
  KVC_ASSIGN(const auto newest, find_checkpoint(parts_.volume, parts_.identity, problems));
  if (newest) {
    from = newest->header.covers;
    last = newest->header.stamp;
    const auto take = [&](Record&&) {
      bytes += kRecordBytes;
      return ask();
    };
    const Status read = read_checkpoint(parts_.volume, parts_.identity, *newest, take, problems);
    if (!read && read.error().code != Code::kCorrupt) return std::unexpected(read.error());
    if (!read) problems.push_back(read.error().message);
  }
  JournalPosition before = from;
  const auto take = [&](const Batch& batch, JournalPosition after, bool) {
    bytes += after.seq == before.seq && after.offset > before.offset ? after.offset - before.offset : after.offset;
    before = after;
    last = std::max(last, batch.stamp);
    return ask();
  };
  KVC_ASSIGN(const ReplayStatistics read, replay_journals(parts_.volume, parts_.identity, from, take));
  // A torn end is no damage if the index has nothing beyond it.
  if (!problems.empty()) return problems.front();
  if (read.damaged_files > 0 && !read.problems.empty()) return read.problems.front();
  if (last >= reaches) return std::string();
  return fmt::format("journals of node '{}': they end before what was read of them{}{}", parts_.identity.node, read.problems.empty() ? "" : ": ",
                     read.problems.empty() ? "" : read.problems.front());
}

}  // namespace kvcachefs
