#include "store/gc/survey_node.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "store/base/clock.h"
#include "store/check/body_check.h"
#include "store/check/recovered_index.h"
#include "store/index/index.h"
#include "store/peers/slot_reader.h"

namespace kvcachefs {

Status check_lives_nowhere(const OfflineNode& node) {
  const auto sleep = [](int64_t for_ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(for_ns)); };
  KVC_ASSIGN(const auto host, lives_elsewhere(*node.volume, node.identity, system_clock(), sleep));
  if (!host) return {};
  return fail(Code::kBusy, fmt::format("volume {} is in use: node '{}' runs on host {}, although its lock could be taken here: unmount it there first",
                                       node.volume->root(), node.identity.node, *host));
}

Status survey_node(const OfflineNode& node, const std::string& scratch, GcReport& report) {
  KVC_ASSIGN(const NodeHistory history, read_history(node));
  BodyChecker bodies(node.volume, node.identity.node);
  std::error_code error;
  KVC_TRY(remove_index(scratch));
  std::filesystem::create_directories(scratch, error);
  auto found = recover_index(node, history, scratch, bodies);
  if (found) {
    const IndexTotals totals = found->index->totals();
    report.files = totals.objects;
    report.directories = totals.directories;
    report.live_bytes = totals.live_bytes;
    found->index.reset();
  }
  Status removed = remove_index(scratch);
  std::filesystem::remove(scratch, error);
  if (!found) return std::unexpected(std::move(found).error());
  return removed;
}

}  // namespace kvcachefs
