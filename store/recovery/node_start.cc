#include "store/recovery/node_start.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "store/base/boot_id.h"
#include "store/base/node_name.h"
#include "store/base/units.h"
#include "store/journal/lost_records.h"
#include "store/journal/make_volume.h"
#include "store/journal/removed_nodes.h"
#include "store/peers/slot_reader.h"

namespace kvcachefs {

namespace {

constexpr const char* kFirstMountLock = ".kvcachefs-first-mount";
constexpr uint64_t kJournalFileBytes = 64 * kMiB;

}  // namespace

// --- volume and node ---

// If several first mounts come at once, the lock lets one make the volume with its node; the others find it made.
Result<std::unique_ptr<VolumeLock>> NodeStart::lock_first_mount() {
  constexpr int kMostTries = 1000;
  for (int i = 0;; ++i) {
    auto lock = volume_->lock(kFirstMountLock);
    if (lock || lock.error().code != Code::kBusy || i == kMostTries) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Result<FileIdentity> NodeStart::settle(const std::string& node, bool read_only, bool may_join, bool may_create) {
  if (!may_create) KVC_TRY(check_is_volume(*volume_));
  std::unique_ptr<VolumeLock> first;
  if (auto nodes = volume_->list("nodes"); !nodes || nodes->empty()) {
    KVC_TRY(check_may_be_volume(*volume_));
    KVC_ASSIGN(first, lock_first_mount());  // the lock file stays: another start that waits for it has this file open, not a new one of that name
  }
  return take_node(node, read_only, may_join);
}

Result<FileIdentity> NodeStart::take_node(const std::string& node, bool read_only, bool may_join) {
  FileIdentity identity;
  KVC_ASSIGN(const VolumeHeader header, open_or_make_volume(*volume_, stamps_.next()));
  identity.volume_uuid = header.uuid;
  identity.node = node.empty() ? node_name_of_host() : node;
  if (!may_join) KVC_TRY(check_is_only_node(identity));
  KVC_TRY(volume_->make_directories("nodes/" + identity.node));
  if (read_only) return identity;
  KVC_TRY(volume_->sync_directory(""));  // also if they exist: a first start may have been cut short before this
  KVC_TRY(volume_->sync_directory("nodes"));
  return identity;
}

Status NodeStart::check_is_only_node(const FileIdentity& identity) {
  auto nodes = volume_->list("nodes");
  if (!nodes) {
    if (nodes.error().code == Code::kNotFound) return {};
    return std::unexpected(std::move(nodes).error());
  }
  std::string others;
  for (const DirectoryEntry& entry : *nodes) {
    if (entry.name == identity.node) return {};
    others += (others.empty() ? "" : ", ") + entry.name;
  }
  if (others.empty()) return {};
  return fail(Code::kPermission,
              fmt::format("volume {} belongs to node {}, this is node '{}': mount with -o node={} to take it over, or with -o node={} to "
                          "share it",
                          volume_->root(), others, identity.node, others.substr(0, others.find(',')), identity.node));
}

// --- a new epoch ---

Result<uint32_t> NodeStart::last_epoch(const FileIdentity& identity) const {
  KVC_ASSIGN(auto epochs, list_epochs(*volume_, identity.node));
  KVC_ASSIGN(const uint32_t removed, last_removed_epoch(*volume_, identity.node));
  KVC_ASSIGN(const uint32_t read, last_epoch_read_by_others(*volume_, identity));
  KVC_ASSIGN(uint32_t lost, epochs_with_lost_records(*volume_, identity.node));
  if (lost == kMaxEpoch) lost = 0;  // the file is unreadable
  return std::max({removed, read, lost, epochs.empty() ? 0 : epochs.back()});
}

Result<NodeStart::Epoch> NodeStart::begin_epoch(FileIdentity identity, uint32_t last_epoch, const Index& index, JournalForm form,
                                                const WithRoom& with_room) {
  for (uint32_t epoch = last_epoch + 1; epoch <= kMaxEpoch; ++epoch) {
    if (index.highest_number(epoch) > 0 || index.highest_extent(epoch) > 0) continue;  // ids are never given out twice
    Status made = with_room([&] { return volume_->make_directory(epoch_directory(identity.node, epoch)); });
    if (!made && made.error().code == Code::kExists) continue;
    KVC_TRY(std::move(made));
    identity.epoch = epoch;
    KVC_TRY(volume_->sync_directory("nodes/" + identity.node));
    Epoch begun{epoch, nullptr};
    KVC_TRY(with_room([&]() -> Status {
      KVC_ASSIGN(begun.journal, JournalWriter::create(volume_, identity, boot_id(), kJournalFileBytes, form));
      return {};
    }));
    return begun;
  }
  return fail(Code::kTooBig, fmt::format("node {} of volume {} has used all {} epochs: copy its content to a new volume",
                                         identity.node, volume_->root(), kMaxEpoch));
}

}  // namespace kvcachefs
