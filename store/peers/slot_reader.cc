#include "store/peers/slot_reader.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/boot_id.h"
#include "store/base/log.h"
#include "store/journal/file_header.h"
#include "store/peers/discovery.h"

namespace kvcachefs {
namespace {

template <class T>
Result<T> read_slots(File& file, const FileIdentity& identity, BlockBuffer& buffer, size_t slot_bytes,
                     Result<T> (*decode)(const FileIdentity& identity, ByteSpan file)) {
  Bytes slots(2 * slot_bytes);
  KVC_ASSIGN(const size_t bytes, buffer.read(file, slots, 0));
  auto decoded = decode(identity, ByteSpan(slots).first(bytes));
  if (!decoded) return std::unexpected(std::move(decoded).error().at(file.path()));
  return decoded;
}

// The epoch that the ACKS of `node` tell; 0: they do not name this node.
Result<uint32_t> last_epoch_read_by(Volume& volume, const FileIdentity& own, const std::string& node, BlockBuffer& buffer) {
  constexpr size_t kMostRead = 8;  // if nobody has read this node all of them are read for nothing
  FileIdentity identity = own;
  identity.node = node;
  KVC_ASSIGN(const auto epochs, list_epochs(volume, node));
  for (size_t at = epochs.size(), read = 0; at-- > 0 && read < kMostRead;) {
    identity.epoch = epochs[at];
    KVC_ASSIGN(const FilePtr file, open_slots(volume, identity, kAcksFileName));
    if (!file) continue;
    ++read;
    const auto acks = read_acks(*file, identity, buffer);
    if (!acks && acks.error().code == Code::kCorrupt) continue;  // its writing was cut short when it was made
    KVC_TRY(acks);
    const auto here = std::ranges::find(acks->peers, own.node, &Acks::Peer::node);
    if (here != acks->peers.end() && here->applied.epoch <= kMaxEpoch) return here->applied.epoch;
  }
  return 0;
}

// The HEAD of the last epoch that has one.
Result<FilePtr> open_newest_head(Volume& volume, FileIdentity& identity) {
  auto epochs = list_epochs(volume, identity.node);
  if (!epochs && epochs.error().code == Code::kNotFound) return FilePtr();
  KVC_TRY(epochs);
  for (size_t at = epochs->size(); at-- > 0;) {
    identity.epoch = (*epochs)[at];
    KVC_ASSIGN(FilePtr file, open_slots(volume, identity, kHeadFileName));
    if (file) return file;
  }
  return FilePtr();
}

}  // namespace

Result<FilePtr> open_slots(Volume& volume, const FileIdentity& identity, const char* name) {
  const std::string directory = epoch_directory(identity.node, identity.epoch);
  KVC_ASSIGN(const auto files, volume.list(directory));
  if (std::ranges::none_of(files, [name](const DirectoryEntry& entry) { return entry.name == name; })) return FilePtr();
  return volume.open(directory + "/" + name, {.direct = volume.features().direct_io});
}

Result<Head> read_head(File& file, const FileIdentity& identity, BlockBuffer& buffer) {
  return read_slots<Head>(file, identity, buffer, kHeadSlotBytes, decode_head);
}

Result<Acks> read_acks(File& file, const FileIdentity& identity, BlockBuffer& buffer) {
  return read_slots<Acks>(file, identity, buffer, kAcksSlotBytes, decode_acks);
}

Result<uint32_t> last_epoch_read_by_others(Volume& volume, const FileIdentity& own) {
  KVC_ASSIGN(const auto others, list_other_nodes(volume, own));
  uint32_t last = 0;
  BlockBuffer buffer;
  for (const std::string& node : others) {
    auto read = last_epoch_read_by(volume, own, node, buffer);
    if (!read) log::warn("what node {} has read of this node is not known: {}", node, read.error().message);
    last = std::max(last, read.value_or(0));
  }
  return last;
}

Result<std::optional<std::string>> lives_elsewhere(Volume& volume, const FileIdentity& own, const Clock& clock, const Sleep& sleep,
                                                   int64_t most_ns) {
  constexpr int64_t kStepNs = 500'000'000;
  constexpr int64_t kOldNs = 10'000'000'000;  // a living daemon has written HEAD within this time
  FileIdentity identity = own;
  BlockBuffer buffer;
  KVC_ASSIGN(const FilePtr file, open_newest_head(volume, identity));
  if (!file) return std::nullopt;
  auto first = read_head(*file, identity, buffer);
  if (!first && first.error().code == Code::kCorrupt) return std::nullopt;  // its writing was cut short when it was made: its daemon does not live
  KVC_TRY(first);
  if (!first->boot_id.empty() && first->boot_id == boot_id()) return std::nullopt;
  KVC_ASSIGN(const FileInfo info, file->info());
  if (!volume.features().network && clock.realtime_ns() - info.mtime_ns > kOldNs) return std::nullopt;
  for (int64_t slept_ns = 0; slept_ns < most_ns; slept_ns += kStepNs) {
    sleep(kStepNs);
    KVC_ASSIGN(const Head again, read_head(*file, identity, buffer));
    if (again.counter != first->counter || again.instance != first->instance) return again.host;
  }
  return std::nullopt;
}

Status check_lives_nowhere_else(Volume& volume, const FileIdentity& own, const Clock& clock) {
  const auto sleep = [](int64_t for_ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(for_ns)); };
  KVC_ASSIGN(const auto host, lives_elsewhere(volume, own, clock, sleep));
  if (!host) return {};
  return fail(Code::kBusy, fmt::format("volume {} is in use: node '{}' runs on host {}, although its lock could be taken here (locks of a mount "
                                       "with nolock or local_lock end at the machine). Unmount it there, or give another mount another name with -o node=",
                                       volume.root(), own.node, *host));
}

}  // namespace kvcachefs
