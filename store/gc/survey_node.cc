#include "store/gc/survey_node.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "store/check/body_check.h"
#include "store/check/recovered_index.h"
#include "store/index/index.h"

namespace kvcachefs {

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
