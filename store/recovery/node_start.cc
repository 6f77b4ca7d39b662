#include "store/recovery/node_start.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <fstream>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/journal/volume_file.h"

namespace kvcachefs {

namespace {

constexpr const char* kFirstMountLock = ".kvcachefs-first-mount";
constexpr uint64_t kJournalFileBytes = 64 * kMiB;

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  std::string clean;
  for (const char* c = name; *c != 0; ++c)
    clean += std::isalnum(static_cast<unsigned char>(*c)) || *c == '-' || *c == '_' || *c == '.' ? *c : '-';
  return clean.empty() || clean[0] == '.' ? "localhost" : clean;
}

}  // namespace

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

// --- volume and node ---

// Whose first mounts come at once make one volume between them, with one node: the others find it made.
Result<std::unique_ptr<VolumeLock>> NodeStart::lock_first_mount() {
  constexpr int kMostTries = 1000;
  for (int i = 0;; ++i) {
    auto lock = volume_->lock(kFirstMountLock);
    if (lock || lock.error().code != Code::kBusy || i == kMostTries) return lock;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

Result<FileIdentity> NodeStart::settle(const std::string& node, bool read_only) {
  std::unique_ptr<VolumeLock> first;
  if (auto nodes = volume_->list("nodes"); !nodes || nodes->empty()) {
    KVC_TRY(check_may_be_volume());
    KVC_ASSIGN(first, lock_first_mount());
  }
  auto settled = take_node(node, read_only);
  // Not needed any more: whoever waits for it finds a volume with a node.
  if (first)
    if (Status status = volume_->remove_file(kFirstMountLock); !status && status.error().code != Code::kNotFound)
      log::warn("{}", status.error().message);
  return settled;
}

Result<FileIdentity> NodeStart::take_node(const std::string& node, bool read_only) {
  FileIdentity identity;
  KVC_TRY(open_volume_file(identity));
  identity.node = node.empty() ? host_name() : node;
  KVC_TRY(check_is_only_node(identity));
  KVC_TRY(volume_->make_directories("nodes/" + identity.node));
  if (read_only) return identity;
  KVC_TRY(volume_->sync_directory(""));  // also when they were there: a first start may have been cut short before this
  KVC_TRY(volume_->sync_directory("nodes"));
  return identity;
}

// Nothing is left in a directory that is another's.
Status NodeStart::check_may_be_volume() {
  KVC_ASSIGN(auto entries, volume_->list(""));
  const auto is_header = [](const DirectoryEntry& entry) { return entry.name == kVolumeFileName; };
  if (std::any_of(entries.begin(), entries.end(), is_header)) return {};
  for (const DirectoryEntry& entry : entries)
    if (entry.name != "lost+found" && !entry.name.starts_with(".kvcachefs") &&
        entry.name != std::string(kVolumeFileName) + ".tmp")  // a first start that was cut short
      return fail(Code::kExists,
                  fmt::format("{} is not a kvcachefs volume and not empty (it holds '{}'): give an empty or new directory",
                              volume_->root(), entry.name));
  return {};
}

Status NodeStart::open_volume_file(FileIdentity& identity) {
  auto content = read_file(*volume_, kVolumeFileName, kVolumeFileBytes);
  if (content) {
    auto header = decode_volume_file(*content);
    if (!header) return std::unexpected(std::move(header).error().at("volume " + volume_->root()));
    identity.volume_uuid = header->uuid;
    return {};
  }
  if (content.error().code != Code::kNotFound) return std::unexpected(std::move(content).error());
  KVC_TRY(check_may_be_volume());  // nodes without a header: what it was is lost
  VolumeHeader header;
  if (getrandom(header.uuid.data(), header.uuid.size(), 0) != static_cast<ssize_t>(header.uuid.size()))
    return fail(Code::kIo, "no random bytes for the id of a new volume");
  header.created_stamp = stamps_.next();
  KVC_TRY(write_file_atomically(*volume_, kVolumeFileName, encode_volume_file(header)));
  identity.volume_uuid = header.uuid;
  log::info("initialised a new volume in {}", volume_->root());
  return {};
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
              fmt::format("volume {} belongs to node {}, this is node '{}': mount with -o node={} to take it over",
                          volume_->root(), others, identity.node, others.substr(0, others.find(','))));
}

// --- a new epoch ---

Result<uint32_t> NodeStart::last_epoch(const FileIdentity& identity) const {
  KVC_ASSIGN(auto epochs, list_epochs(*volume_, identity.node));
  return epochs.empty() ? 0 : epochs.back();
}

Result<NodeStart::Epoch> NodeStart::begin_epoch(FileIdentity identity, uint32_t last_epoch, const Index& index, const WithRoom& with_room) {
  for (uint32_t epoch = last_epoch + 1; epoch <= kMaxEpoch; ++epoch) {
    if (index.highest_number(epoch) > 0 || index.highest_extent(epoch) > 0) continue;  // ids are never given out twice
    Status made = with_room([&] { return volume_->make_directory(epoch_directory(identity.node, epoch)); });
    if (!made && made.error().code == Code::kExists) continue;
    KVC_TRY(std::move(made));
    identity.epoch = epoch;
    KVC_TRY(volume_->sync_directory("nodes/" + identity.node));
    Epoch begun{epoch, nullptr};
    KVC_TRY(with_room([&]() -> Status {
      KVC_ASSIGN(begun.journal, JournalWriter::create(volume_, identity, boot_id(), kJournalFileBytes));
      return {};
    }));
    return begun;
  }
  return fail(Code::kTooBig, fmt::format("node {} of volume {} has used all {} epochs: copy its content to a new volume",
                                         identity.node, volume_->root(), kMaxEpoch));
}

}  // namespace kvcachefs
