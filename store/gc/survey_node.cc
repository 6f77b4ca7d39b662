#include "store/gc/survey_node.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/check/body_check.h"
#include "store/check/recovered_index.h"
#include "store/index/index.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kMostDirectoryPaths = 1000;

// Directories that cannot be read are left out.
std::vector<std::string> paths_of_directories(const Index& index) {
  constexpr size_t kPage = 256;
  std::vector<std::string> paths;
  std::vector<std::pair<ObjectId, std::string>> found{{kRootId, {}}};
  for (size_t at = 0; at < found.size() && at <= kMostDirectoryPaths; ++at) {
    const auto [directory, path] = found[at];
    if (at > 0) paths.push_back(path);
    for (uint64_t after = 0;;) {
      const auto page = index.list(directory, after, kPage);
      if (!page || page->empty()) break;
      for (const NameEntry& entry : *page)
        if (entry.type_bits == S_IFDIR) found.emplace_back(entry.child, path.empty() ? entry.name : path + "/" + entry.name);
      after = page->back().cookie;
    }
  }
  return paths;
}

}  // namespace

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
    if (totals.objects == 0 && totals.directories <= kMostDirectoryPaths) report.directory_paths = paths_of_directories(*found->index);
    found->index.reset();
  }
  Status removed = remove_index(scratch);
  std::filesystem::remove(scratch, error);
  if (!found) return std::unexpected(std::move(found).error());
  return removed;
}

}  // namespace kvcachefs
