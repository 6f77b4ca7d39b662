// `kvcachefs rebuild`: rebuilds the index of a volume from its checkpoint and journals.
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/check/check.h"
#include "store/check/offline_node.h"
#include "store/store.h"
#include "tools/commands.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kMemoryBytes = 256 * kMiB;  // nothing is cached

// Removes the index while the lock is held; the store takes the lock itself afterwards. Returns the volume's root.
Result<std::string> remove_old_index(const OfflineRequest& request, StoreOptions& options) {
  KVC_ASSIGN(OfflineNode node, open_offline_node(request));
  KVC_TRY(check_is_not_in_use(node));
  KVC_ASSIGN(const CheckReport report, check_node(node, {.repair = false, .remove_orphans = false, .journals_only = true, .progress = nullptr}));
  if (report.index_has_more)
    return fail(Code::kCorrupt, fmt::format("{}. `kvcachefs fsck --repair` writes a checkpoint of the index, or sets it aside where it is not to be believed. To do without, remove {} first",
                                            report.findings.back().text, node.index_directory));
  KVC_TRY(remove_index_of(node));
  options.node = node.identity.node;
  options.index_directory = node.index_directory;
  return node.volume->root();
}

Status rebuild(const OfflineRequest& request) {
  const int64_t started_ns = system_clock().monotonic_ns();
  StoreOptions options;
  // This command stores and evicts nothing: limits and capacity come from the options of later mounts.
  options.memory_bytes = kMemoryBytes;
  options.evict = false;
  options.prefetch = false;
  options.scrub_bytes_per_s = 0;
  options.background = false;
  options.care = Care::kCollect;
  KVC_ASSIGN(const std::string root, remove_old_index(request, options));
  KVC_ASSIGN(auto store, open_store_at(root, options, system_clock(), "command=rebuild"));
  const StoreStatus status = store->status();
  KVC_TRY(store->close());
  fmt::print(
      "rebuilt {} in {:.2f} s: {} files, {} directories, {} journal batches replayed, {} bodies verified, "
      "{} dropped\n",
      options.index_directory, static_cast<double>(system_clock().monotonic_ns() - started_ns) / 1e9,
      status.objects_total, status.directories, status.replayed_batches, status.verified_bodies, status.dropped_bodies);
  return {};
}

int run(const OfflineRequest& request) {
  Status status = rebuild(request);
  if (status) return kExitOk;
  std::fprintf(stderr, "kvcachefs rebuild: %s\n", status.error().message.c_str());
  return kExitFailed;
}

}  // namespace

Subcommand add_rebuild_command(CLI::App& parent) {
  auto request = std::make_shared<OfflineRequest>();
  request->purpose = "rebuild";
  CLI::App* app = parent.add_subcommand("rebuild", "Make the index anew from the checkpoint and the journals");
  app->add_option("VOLUME", request->volume, "A volume that is not mounted")->required();
  app->add_option("--node", request->node, "Which node's, where the volume has several");
  app->add_option("--index", request->index_directory, "Where the index lies, when mounts give the option index=");
  return {app, [request] { return run(*request); }};
}

}  // namespace kvcachefs
