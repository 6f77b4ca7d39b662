#include "store/gc/node_wanted.h"

#include "store/base/node_name.h"
#include "store/volume/lock_probe.h"
#include "store/volume/volume.h"

namespace kvcachefs {

namespace {
std::string wanted_path(const std::string& node) { return "nodes/" + node + "/WANTED"; }
}  // namespace

Result<std::shared_ptr<VolumeLock>> want_node(const std::string& volume_root, const std::string& node) {
  KVC_ASSIGN(const auto volume, open_posix_volume(volume_root, {}));
  KVC_ASSIGN(auto lock, volume->lock(wanted_path(node.empty() ? node_name_of_host() : node)));
  return std::shared_ptr<VolumeLock>(std::move(lock));
}

Status prepare_wanted(Volume& volume, const std::string& node) {
  const auto made = volume.lock(wanted_path(node));
  if (!made && made.error().code != Code::kBusy) return std::unexpected(made.error());
  return {};
}

bool is_node_wanted(Volume& volume, const std::string& node) { return is_locked(volume, wanted_path(node)).value_or(false); }

}  // namespace kvcachefs
