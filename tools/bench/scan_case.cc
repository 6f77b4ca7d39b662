// scan: the start of LMCache's GDS backend: lists every leaf directory, opens every sidecar, reads its 4 KiB.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <unordered_map>

#include <fmt/format.h>

#include "store/base/unique_fd.h"
#include "tools/bench/presets.h"
#include "tools/bench/restore_pass.h"
#include "tools/load/arena.h"
#include "tools/load/cold_start.h"
#include "tools/load/interrupt.h"
#include "tools/load/payload.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kScannedChunkBytes = 64 * kKiB;
constexpr std::string_view kSidecarSuffix = ".metadata";

struct Scanned {
  std::vector<std::string> paths;  // of the sidecars, relative to the root, in the order found
  Arena contents;                  // 4 KiB each, the same order
};

using Directory = std::unique_ptr<DIR, decltype([](DIR* dir) { ::closedir(dir); })>;

Status read_sidecar(const std::string& path, std::span<std::byte> into) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOATIME));
  if (!fd.valid() && errno == EPERM) fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return fail_errno(errno, path + ": open");
  const ssize_t got = ::pread(fd.get(), into.data(), into.size(), 0);
  if (got < 0) return fail_errno(errno, path + ": read");
  if (static_cast<size_t>(got) != into.size()) return fail(Code::kCorrupt, path + ": a short sidecar");
  return {};
}

// For file systems that do not report the type with the name.
bool is_directory(DIR* dir, const dirent& entry) {
  if (entry.d_type != DT_UNKNOWN) return entry.d_type == DT_DIR;
  struct stat info;
  return ::fstatat(::dirfd(dir), entry.d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
}

Status scan_directory(const std::string& root, const std::string& below, Scanned& scanned) {
  const std::string path = root + below;
  const Directory dir(::opendir(path.c_str()));
  if (!dir) return fail_errno(errno, path + ": opendir");
  std::vector<std::string> directories;
  errno = 0;
  while (const dirent* entry = ::readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (is_directory(dir.get(), *entry)) directories.push_back(below + entry->d_name + "/");
    errno = 0;
    if (!name.ends_with(kSidecarSuffix)) continue;
    const size_t at = scanned.paths.size() * kSidecarBytes;
    if (at + kSidecarBytes > scanned.contents.span().size()) {
      return fail(Code::kCorrupt, path + ": more sidecars are listed than were stored");
    }
    KVC_TRY(read_sidecar(path + entry->d_name, scanned.contents.span().subspan(at, kSidecarBytes)));
    scanned.paths.push_back(below + entry->d_name);
    errno = 0;
  }
  if (errno != 0) return fail_errno(errno, path + ": readdir");
  for (const std::string& directory : directories) KVC_TRY(scan_directory(root, directory, scanned));
  return check_interrupt();
}

class ScanCase final : public BenchCase {
 public:
  explicit ScanCase(const BenchSettings& settings)
      : chains_{
            chunk_chain(spec_.style, settings.seed, 0, std::max<size_t>(1, settings.pass_bytes / kScannedChunkBytes))} {
    for (const ChunkName& name : chains_[0]) expected_[name.sidecar] = name.payload_seed;
  }

  std::string workload() const override { return "scan"; }
  std::string scenario() const override { return fmt::format("{}sidecars", chains_[0].size()); }
  uint64_t bytes_needed() const override {
    return chains_[0].size() * (file_bytes(spec_.style, spec_.chunk_bytes) + kSidecarBytes);
  }

  Status prepare(BenchContext&, const CaseDir& dir) override { return store_chains(dir.root, spec_, chains_); }

  Status round(BenchContext& context, const CaseDir& dir, unsigned) override {
    KVC_TRY(cold_start(dir.root, context.settings.keep_caches, context.report));
    KVC_TRY(phase(context.report, dir, "cold"));
    return phase(context.report, dir, "warm");
  }

 private:
  Status phase(Report& report, const CaseDir& dir, const std::string& name) const {
    Scanned scanned;
    KVC_ASSIGN(scanned.contents, Arena::create(chains_[0].size() * kSidecarBytes));
    auto scan = [&](unsigned) { return scan_directory(dir.root, "", scanned); };
    KVC_ASSIGN(const PhaseCost cost, run_phase(dir.root, 1, scan));
    KVC_TRY(verify(scanned));
    const double count = static_cast<double>(scanned.paths.size());
    report.add(metric(name + "_rate", "sidecars/s"), dir.target.index(), count / cost.wall_s);
    report.add(metric(name + "_time", "ms"), dir.target.index(), cost.wall_s * 1e3);
    add_costs(report, metric("", ""), dir.target.index(), name + "_", cost, count * kSidecarBytes);
    return {};
  }

  // Checks that every sidecar was read once, with its own bytes.
  Status verify(const Scanned& scanned) const {
    auto left = expected_;
    for (size_t i = 0; i < scanned.paths.size(); ++i) {
      const auto found = left.find(scanned.paths[i]);
      if (found == left.end()) return fail(Code::kCorrupt, scanned.paths[i] + ": listed twice or never stored");
      const auto wrong =
          Payload(found->second).first_mismatch(scanned.contents.span().subspan(i * kSidecarBytes, kSidecarBytes));
      if (wrong) return fail(Code::kCorrupt, fmt::format("{}: wrong byte at offset {}", scanned.paths[i], *wrong));
      left.erase(found);
    }
    if (left.empty()) return {};
    return fail(Code::kCorrupt,
                fmt::format("{} and {} more: stored and not listed", left.begin()->first, left.size() - 1));
  }

  PassSpec spec_{AccessStyle::kLmcacheGds, kScannedChunkBytes, 1};
  std::vector<Chain> chains_;                           // one chain
  std::unordered_map<std::string, uint64_t> expected_;  // payload seed by sidecar
};

}  // namespace

BenchCases scan_cases(const BenchSettings& settings) {
  BenchCases cases;
  cases.push_back(std::make_unique<ScanCase>(settings));
  return cases;
}

}  // namespace kvcachefs
