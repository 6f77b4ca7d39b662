#include "store/journal/make_volume.h"

#include <sys/random.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/journal/checkpoint_format.h"
#include "store/journal/extent_header.h"
#include "store/journal/journal.h"
#include "store/journal/journal_file.h"

namespace kvcachefs {
namespace {

constexpr int kMostTries = 10;  // retries while others are faster

// Drafts of the file VOLUME, left by or in use by a first start.
bool is_draft(std::string_view name) { return name.starts_with(std::string(kVolumeFileName) + ".") && name.ends_with(".tmp"); }

Result<VolumeHeader> read_header(Volume& volume) {
  KVC_ASSIGN(const auto content, read_file(volume, kVolumeFileName, kVolumeFileBytes));
  auto header = decode_volume_file(content);
  if (!header) return std::unexpected(std::move(header).error().at("volume " + volume.root()));
  return header;
}

// Once there is a VOLUME, drafts are useless; a draft may even be a second name of it, and a file with two names cannot be opened.
Status remove_drafts(Volume& volume) {
  KVC_ASSIGN(const auto entries, volume.list(""));
  if (std::ranges::find(entries, std::string(kVolumeFileName), &DirectoryEntry::name) == entries.end()) return {};
  for (const DirectoryEntry& entry : entries)
    if (!entry.is_directory && is_draft(entry.name))
      if (Status removed = volume.remove_file(entry.name); !removed && removed.error().code != Code::kNotFound) return removed;
  return {};
}

Result<std::string> draft_name() {
  uint64_t draft = 0;
  if (getrandom(&draft, sizeof draft, 0) != sizeof draft) return fail(Code::kIo, "no random bytes for the name of a file");
  return fmt::format("{}.{:016x}.tmp", kVolumeFileName, draft);
}

Result<VolumeHeader> make_header(Volume& volume, Stamp created) {
  VolumeHeader header;
  if (getrandom(header.uuid.data(), header.uuid.size(), 0) != static_cast<ssize_t>(header.uuid.size()))
    return fail(Code::kIo, "no random bytes for the id of a new volume");
  header.created_stamp = created;
  KVC_TRY(write_volume_file(volume, encode_volume_file(header), /*replaces=*/false));
  log::info("initialised a new volume in {}", volume.root());
  return header;
}

bool has_nodes(Volume& volume) {
  const auto nodes = volume.list("nodes");
  return nodes && !nodes->empty();
}

Error with_advice(Volume& volume, Error error) {
  if (!lacks_volume_file(error)) return error;
  if (error.code == Code::kIsDirectory) {
    error.message += fmt::format("; if it is gone, `kvcachefs fsck --repair {}` makes {} anew", volume.root(), kVolumeFileName);
  } else if (has_nodes(volume)) {
    if (error.code == Code::kNotFound)
      error.message = fmt::format("{} holds 'nodes' but no file {}. If it is a kvcachefs volume, what it stores is not lost", volume.root(), kVolumeFileName);
    error.message += fmt::format("; `kvcachefs fsck --repair {}` makes {} anew from the volume's other files", volume.root(), kVolumeFileName);
  } else if (error.code != Code::kNotFound) {
    error.message += "; the volume has no nodes, so nothing is lost if you remove that file";
  }
  return error;
}

// --- what other files tell ---

// The volume id that the files of nodes name, and one file for each id.
struct NamedIds {
  std::map<std::array<std::byte, 16>, std::string> by_id;

  // `decode` returns the identity in the header.
  template <class Decode>
  Status read(Volume& volume, const std::string& node, uint32_t epoch, const std::string& path, Decode decode) {
    const auto file = volume.open(path, {});
    if (!file && is_not_there(file.error())) return {};
    if (!file) return std::unexpected(file.error());  // a file that cannot be read now may name another id than those that can
    Bytes start(kMaxHeaderBytes);
    KVC_ASSIGN(const size_t got, (*file)->read(start, 0));
    const Result<FileIdentity> identity = decode(ByteSpan(start).first(got));
    if (!identity && identity.error().code == Code::kVersion) return std::unexpected(Error(identity.error()).at(path));
    if (identity && identity->node == node && identity->epoch == epoch) by_id.try_emplace(identity->volume_uuid, path);
    return {};
  }
};

Result<FileIdentity> identity_of_journal(ByteSpan start) {
  KVC_ASSIGN(auto decoded, decode_journal_header(start));
  return std::move(decoded.header.identity);
}
Result<FileIdentity> identity_of_checkpoint(ByteSpan start) {
  KVC_ASSIGN(auto decoded, decode_checkpoint_header(start));
  return std::move(decoded.header.identity);
}
Result<FileIdentity> identity_of_pack(ByteSpan start) {
  KVC_ASSIGN(auto decoded, decode_pack_header(start));
  return std::move(decoded.identity);
}

Status read_records(Volume& volume, const std::string& node, uint32_t epoch, NamedIds& named) {
  KVC_ASSIGN(const auto journals, list_seqs(volume, journal_directory(node, epoch), ".log"));
  for (const uint64_t seq : journals) KVC_TRY(named.read(volume, node, epoch, journal_path(node, epoch, seq), identity_of_journal));
  KVC_ASSIGN(const auto checkpoints, list_seqs(volume, checkpoint_directory(node, epoch), ""));
  for (const uint64_t seq : checkpoints) KVC_TRY(named.read(volume, node, epoch, checkpoint_path(node, epoch, seq), identity_of_checkpoint));
  return {};
}

Status read_packs(Volume& volume, const std::string& node, uint32_t epoch, NamedIds& named) {
  const std::string extents = epoch_directory(node, epoch) + "/extents";
  for (const DirectoryEntry& part : volume.list(extents).value_or(std::vector<DirectoryEntry>())) {
    const std::string directory = extents + "/" + part.name;
    for (const DirectoryEntry& file : volume.list(directory).value_or(std::vector<DirectoryEntry>()))
      if (!file.is_directory && file.name.ends_with(".pack")) KVC_TRY(named.read(volume, node, epoch, directory + "/" + file.name, identity_of_pack));
  }
  return {};
}

}  // namespace

Status check_may_be_volume(Volume& volume) {
  KVC_ASSIGN(const auto entries, volume.list(""));
  if (std::ranges::find(entries, std::string(kVolumeFileName), &DirectoryEntry::name) != entries.end()) return {};
  for (const DirectoryEntry& entry : entries)
    if (entry.name != "lost+found" && !entry.name.starts_with(".kvcachefs") && !is_draft(entry.name))
      return fail(Code::kExists, fmt::format("{} is not a kvcachefs volume and not empty (it holds '{}'): give an empty or new directory",
                                             volume.root(), entry.name));
  return {};
}

Status check_is_volume(Volume& volume) {
  KVC_TRY(check_may_be_volume(volume));
  KVC_ASSIGN(const auto entries, volume.list(""));
  const auto is_of_volume = [](const DirectoryEntry& entry) { return entry.name == kVolumeFileName || entry.name == "nodes"; };
  if (std::ranges::any_of(entries, is_of_volume)) return {};
  return fail(Code::kNotFound,
              fmt::format("{} (on {}) holds no volume, and create=off: if the volume's file system is not mounted there, mount it; to make a new volume, mount once without create=off",
                          volume.root(), volume.features().filesystem));
}

Result<VolumeHeader> open_or_make_volume(Volume& volume, Stamp created) {
  const auto nodes = volume.list("nodes");
  const bool first = !nodes || nodes->empty();
  for (int i = 0;; ++i) {
    if (first || i > 0) KVC_TRY(remove_drafts(volume));
    auto header = read_header(volume);
    // The file has two names for a moment while another node makes it, and until now if a daemon died then: retry.
    if (!header && header.error().code == Code::kIo && i < kMostTries) continue;
    if (header) return header;
    if (!first) return std::unexpected(with_advice(volume, std::move(header).error()));
    if (header.error().code != Code::kNotFound) return std::unexpected(with_advice(volume, std::move(header).error()));
    KVC_TRY(check_may_be_volume(volume));
    header = make_header(volume, created);
    if (header || i == kMostTries) return header;
    // Another node was first, and may have removed this one's draft.
    if (const Code code = header.error().code; code != Code::kExists && code != Code::kNotFound) return header;
  }
}

Result<VolumeHeader> read_volume_file(Volume& volume) {
  auto header = read_header(volume);
  if (!header && header.error().code == Code::kIo) {  // it has two names if a daemon died while it made the file
    KVC_TRY(remove_drafts(volume));
    header = read_header(volume);
  }
  if (!header) return std::unexpected(with_advice(volume, std::move(header).error()));
  return header;
}

bool lacks_volume_file(const Error& error) {
  return error.code == Code::kNotFound || error.code == Code::kCorrupt || error.code == Code::kTooBig || is_no_file(error);
}

Result<VolumeHeader> header_of_other_files(Volume& volume, Stamp created) {
  NamedIds named;
  for (const auto read : {read_records, read_packs}) {
    if (!named.by_id.empty()) break;
    KVC_ASSIGN(const auto nodes, volume.list("nodes"));
    for (const DirectoryEntry& node : nodes) {
      if (!node.is_directory) continue;
      KVC_ASSIGN(const auto epochs, list_epochs(volume, node.name));
      for (const uint32_t epoch : epochs) KVC_TRY(read(volume, node.name, epoch, named));
    }
  }
  if (named.by_id.empty())
    return fail(Code::kNotFound, fmt::format("volume {}: no journal, checkpoint or pack tells its id: {} cannot be made anew", volume.root(), kVolumeFileName));
  if (named.by_id.size() > 1)
    return fail(Code::kCorrupt, fmt::format("volume {}: its files are of several volumes ({} and {}): move those that do not belong here away, then {} can be made anew",
                                            volume.root(), named.by_id.begin()->second, std::next(named.by_id.begin())->second, kVolumeFileName));
  VolumeHeader header;
  header.uuid = named.by_id.begin()->first;
  header.created_stamp = created;
  return header;
}

Status write_volume_file(Volume& volume, ByteSpan content, bool replaces) {
  KVC_ASSIGN(const std::string draft, draft_name());
  if (!replaces) return publish_file(volume, draft, kVolumeFileName, content);
  const auto write = [&]() -> Status {
    KVC_ASSIGN(const FilePtr file, volume.open(draft, {.create_exclusive = true}));
    KVC_TRY(file->write({&content, 1}, 0));
    KVC_TRY(file->sync_data());
    return volume.rename(draft, kVolumeFileName);
  };
  if (Status written = write(); !written) {
    (void)volume.remove_file(draft);
    return written;
  }
  return volume.sync_directory("");
}

}  // namespace kvcachefs
