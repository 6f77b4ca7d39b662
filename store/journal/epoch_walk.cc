#include "store/journal/epoch_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "store/base/units.h"
#include "store/journal/file_header.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kNoLimit = ~uint64_t{0};

FrameReader make_reader(const FilePtr& file, uint64_t size_bytes, const FileIdentity& identity, uint64_t seq) {
  return FrameReader(
      [file](std::span<std::byte> into, uint64_t offset) { return file->read(into, offset); }, size_bytes,
      FrameKey(FileKind::kJournal, identity, seq), [file](uint64_t offset) { return file->next_data(offset); });
}

// Whether the file walked before links to `file`; `before` is that file, null at the start of the walk.
bool leads_to(const WalkedFile& file, const WalkedFile* before, JournalLink from) {
  if (!file.header) return true;  // unknown; its header is reported anyway
  const auto& previous = file.header->header.previous;
  if (before) return previous && previous->seq == before->seq;
  if (file.seq == from.seq) return true;
  return previous ? *previous == from : from == JournalLink{};
}

}  // namespace

Result<EpochWalk> EpochWalk::open(Volume& volume, const FileIdentity& identity) {
  EpochWalk walk(volume, identity);
  KVC_ASSIGN(const auto seqs, list_seqs(volume, journal_directory(identity.node, identity.epoch), ".log"));
  for (const uint64_t seq : seqs) KVC_TRY(walk.read_header(seq));
  walk.link();
  return walk;
}

Status EpochWalk::read_header(uint64_t seq) {
  WalkedFile walked;
  walked.path = journal_path(identity_.node, identity_.epoch, seq);
  walked.seq = seq;
  KVC_ASSIGN(const FilePtr file, volume_->open(walked.path, {}));
  KVC_ASSIGN(const FileInfo info, file->info());
  walked.size_bytes = info.size_bytes;
  walked.allocated_bytes = info.allocated_bytes;
  Bytes start(static_cast<size_t>(std::min<uint64_t>(info.size_bytes, kMaxHeaderBytes)));
  KVC_ASSIGN(const size_t got, file->read(start, 0));
  start.resize(std::min(got, start.size()));
  auto decoded = decode_journal_header(start);
  if (!decoded && decoded.error().code == Code::kVersion) {
    return std::unexpected(std::move(decoded).error().at(walked.path));
  }
  if (!decoded) {
    walked.why = std::move(decoded.error().message);
    files_.push_back(std::move(walked));
    return {};
  }
  const FileIdentity& found = decoded->header.identity;
  FileIdentity same_place = identity_;
  same_place.epoch = found.epoch;
  if (auto same = check_identity(found, same_place); !same) {
    return std::unexpected(std::move(same).error().at(walked.path));
  }
  if (found.epoch != identity_.epoch || decoded->header.seq != seq) {
    walked.why = fmt::format("is journal file {} of epoch {}, in the wrong place", decoded->header.seq, found.epoch);
  } else {
    walked.header = std::move(*decoded);
  }
  files_.push_back(std::move(walked));
  return {};
}

// Goes backwards along the chain of headers: each names the previous file and the end of its good frames.
void EpochWalk::link() {
  std::optional<JournalLink> expected;
  bool first_known = false;  // a header said that its file is the first
  for (auto file = files_.rbegin(); file != files_.rend(); ++file) {
    if (first_known || (expected && file->seq > expected->seq)) {
      file->outside_chain = true;
      continue;
    }
    if (expected && file->seq == expected->seq) file->good_end = expected->end;
    expected.reset();
    if (!file->header) continue;  // it may link to any earlier file
    expected = file->header->header.previous;
    first_known = !expected;
  }
}

Status EpochWalk::walk(JournalLink from, std::optional<JournalLink> until, const WalkVisitor& visitor) const {
  const WalkedFile* before = nullptr;
  for (const WalkedFile& file : files_) {
    if (file.outside_chain || file.seq < from.seq) continue;
    if (until && (file.seq > until->seq || (file.seq == until->seq && until->end == 0))) return {};
    if (!leads_to(file, before, from)) {
      const Gap gap{file.seq, 0, fmt::format("{}: journal files before it are missing", file.path), before == nullptr};
      KVC_ASSIGN(const bool go_on, visitor.gap(gap));
      if (!go_on) return {};
    }
    const uint64_t end = until && file.seq == until->seq ? until->end : kNoLimit;
    KVC_ASSIGN(const bool go_on, walk_file(file, file.seq == from.seq ? from.end : 0, end, visitor));
    if (!go_on) return {};
    before = &file;
  }
  return {};
}

Result<bool> EpochWalk::walk_file(const WalkedFile& file, uint64_t from_offset, uint64_t until, const WalkVisitor& visitor) const {
  const uint64_t header_bytes = file.header ? file.header->size_bytes : 0;
  const uint64_t start = std::max(from_offset, header_bytes);
  const uint64_t limit = std::min({file.size_bytes, file.good_end.value_or(file.size_bytes), until});
  if (!file.header && from_offset == 0) {
    KVC_ASSIGN(const bool go_on, visitor.gap({file.seq, 0, fmt::format("{}: {}", file.path, file.why), false}));
    if (!go_on) return false;
  }
  if (start > limit) {
    return visitor.gap({file.seq, limit,
                        fmt::format("{}: ends at {}, but was read up to {} before", file.path, limit, from_offset),
                        true});
  }
  KVC_ASSIGN(const bool go_on, walk_frames(file, start, limit, std::min(file.good_end.value_or(limit), until), visitor));
  if (!go_on || !file.good_end || file.size_bytes <= *file.good_end || until <= *file.good_end) return go_on;
  KVC_ASSIGN(const bool whole, says_where_it_goes_on(file));
  if (!whole) visitor.given_up_tail(file);
  return go_on;
}

Result<FrameReader> EpochWalk::read(const WalkedFile& file, uint64_t limit) const {
  KVC_ASSIGN(const FilePtr opened, volume_->open(file.path, {}));
  return make_reader(opened, limit, identity_, file.seq);
}

// All files of an epoch have one form. If no header is left to tell it: only a file in blocks has its first frame at kBlockBytes.
Result<bool> EpochWalk::is_in_blocks(const WalkedFile& file, FrameReader& reader) const {
  if (file.header) return file.header->header.blocks;
  for (const WalkedFile& other : files_)
    if (other.header) return other.header->header.blocks;
  KVC_ASSIGN(const auto first, reader.at(kBlockBytes));
  return first.has_value();
}

// Whether the file ends with a record that names the next file, as its writer intended.
Result<bool> EpochWalk::says_where_it_goes_on(const WalkedFile& file) const {
  KVC_ASSIGN(FrameReader reader, read(file, file.size_bytes));
  KVC_ASSIGN(const bool blocks, is_in_blocks(file, reader));
  KVC_ASSIGN(const auto last, reader.at(*file.good_end));
  if (!last || behind_frame(last->end(), blocks) != file.size_bytes) return false;
  const auto batch = decode_batch(last->payload);
  return batch && says_only_next(*batch);
}

Result<bool> EpochWalk::walk_frames(const WalkedFile& file, uint64_t offset, uint64_t limit, uint64_t expected,
                                    const WalkVisitor& visitor) const {
  KVC_ASSIGN(FrameReader reader, read(file, limit));
  KVC_ASSIGN(const bool blocks, is_in_blocks(file, reader));
  while (offset < limit) {
    KVC_ASSIGN(auto frame, reader.at(offset));
    // Its padding belongs to it: without the padding the frame was not completely written.
    if (frame && behind_frame(frame->end(), blocks) > limit) frame.reset();
    if (frame) {
      offset = behind_frame(frame->end(), blocks);
      KVC_ASSIGN(const bool go_on, visitor.frame(file, *frame, offset));
      if (!go_on) return false;
      continue;
    }
    KVC_ASSIGN(const auto next, reader.find(offset + (offset == 0 ? 0 : 1)));
    if (!next) break;
    // A damaged header at offset 0 was reported already.
    if (offset != 0) {
      KVC_ASSIGN(const bool go_on,
                 visitor.gap({file.seq, offset,
                              fmt::format("{}: bytes {} to {} are damaged", file.path, offset, next->offset), false}));
      if (!go_on) return false;
    }
    offset = next->offset;
  }
  if (file.good_end && offset < expected) {
    return visitor.gap({file.seq, offset, fmt::format("{}: frames from {} to {} are lost", file.path, offset, expected), false});
  }
  if (offset < limit && (offset != 0 || file.header)) {
    return visitor.gap({file.seq, offset,
                        fmt::format("{}: ends in a broken frame at {} ({} bytes)", file.path, offset, limit - offset),
                        false});
  }
  return true;
}

}  // namespace kvcachefs
