// find_checkpoint, read_checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <ranges>
#include <span>
#include <utility>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/journal/checkpoint_format.h"
#include "store/journal/epoch_ends.h"
#include "store/journal/file_header.h"
#include "store/journal/frame_reader.h"
#include "store/journal/journal_file.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {
namespace {

using ApplyPayload = std::function<Status(ByteSpan records)>;

// An open checkpoint file: its header is good, the rest is not read yet.
class OpenCheckpoint {
 public:
  static Result<OpenCheckpoint> open(Volume& volume, const FileIdentity& identity, uint64_t seq);
  const CheckpointHeader& header() const { return header_.header.header; }
  // Reads the file to the end and passes every payload of records to `apply`. An error if anything differs from what was written.
  Result<CheckpointFooter> read(const ApplyPayload& apply);

 private:
  OpenCheckpoint(FrameReader reader, DecodedCheckpointHeader header)
      : reader_(std::move(reader)), header_(std::move(header)) {}
  FrameReader reader_;
  DecodedCheckpointHeader header_;
};

Result<OpenCheckpoint> OpenCheckpoint::open(Volume& volume, const FileIdentity& identity, uint64_t seq) {
  KVC_ASSIGN(FilePtr file, volume.open(checkpoint_path(identity.node, identity.epoch, seq), {}));
  KVC_ASSIGN(const FileInfo info, file->info());
  FrameReader reader(
      [file = std::move(file)](std::span<std::byte> into, uint64_t offset) { return file->read(into, offset); },
      info.size_bytes, FrameKey(FileKind::kCheckpoint, identity, seq));
  KVC_ASSIGN(const ByteSpan start, reader.head(kMaxHeaderBytes));
  KVC_ASSIGN(DecodedCheckpointHeader header, decode_checkpoint_header(start));
  KVC_TRY(check_identity(header.header.identity, identity));
  if (header.header.seq != seq) {
    return fail(Code::kCorrupt, fmt::format("is checkpoint {}, in the wrong place", header.header.seq));
  }
  return OpenCheckpoint(std::move(reader), std::move(header));
}

Result<CheckpointFooter> OpenCheckpoint::read(const ApplyPayload& apply) {
  uint64_t offset = header_.size_bytes;
  uint64_t frames = 0;
  Hasher digest;
  while (true) {
    KVC_ASSIGN(const auto frame, reader_.at(offset));
    if (!frame) return fail(Code::kCorrupt, fmt::format("damaged or cut at {}", offset));
    if (frame->payload[0] != static_cast<std::byte>(CheckpointFrame::kRecords)) {
      KVC_ASSIGN(const CheckpointFooter footer, decode_checkpoint_footer(frame->payload));
      if (frame->end() != reader_.size_bytes() || footer.frames != frames || footer.digest != digest.digest()) {
        return fail(Code::kCorrupt,
                    fmt::format("its footer at {} does not fit what comes before it, or bytes follow", offset));
      }
      return footer;
    }
    offset = frame->end();
    ++frames;
    digest.update(frame->payload);
    KVC_TRY(apply(frame->payload.subspan(1)));
  }
}

Result<CheckpointInfo> verify(Volume& volume, const FileIdentity& identity, uint64_t seq) {
  KVC_ASSIGN(OpenCheckpoint checkpoint, OpenCheckpoint::open(volume, identity, seq));
  if (const JournalPosition covers = checkpoint.header().covers; covers.epoch > identity.epoch)
    return fail(Code::kCorrupt, fmt::format("covers journals of epoch {}, which comes after its own", covers.epoch));
  KVC_ASSIGN(const CheckpointFooter footer, checkpoint.read([](ByteSpan) -> Status { return {}; }));
  return CheckpointInfo{identity.epoch, seq, checkpoint.header(), footer.records};
}

FileIdentity of_epoch(FileIdentity identity, uint32_t epoch) {
  identity.epoch = epoch;
  return identity;
}

}  // namespace

Result<std::optional<CheckpointInfo>> find_checkpoint(Volume& volume, const FileIdentity& identity,
                                                      std::vector<std::string>& problems) {
  KVC_ASSIGN(const auto epochs, list_epochs(volume, identity.node));
  for (const uint32_t epoch : epochs | std::views::reverse) {
    KVC_ASSIGN(const auto seqs, list_seqs(volume, checkpoint_directory(identity.node, epoch), ""));
    for (const uint64_t seq : seqs | std::views::reverse) {
      auto found = verify(volume, of_epoch(identity, epoch), seq);
      if (found) {
        KVC_ASSIGN(const EpochEnds ends, EpochEnds::read(volume, identity, epochs, found->header.covers.epoch));
        if (!ends.counts(found->header.covers)) continue;
        return *found;
      }
      Error error = std::move(found).error().at(checkpoint_path(identity.node, epoch, seq));
      // Falls back to an older checkpoint only after damage: another version or a failing disk needs an administrator.
      if (error.code != Code::kCorrupt) return std::unexpected(std::move(error));
      problems.push_back(std::move(error.message));
    }
  }
  return std::nullopt;
}

Status read_checkpoint(Volume& volume, const FileIdentity& identity, const CheckpointInfo& which,
                       const std::function<Status(Record&&)>& apply, std::vector<std::string>& problems) {
  const std::string path = checkpoint_path(identity.node, which.epoch, which.seq);
  auto checkpoint = OpenCheckpoint::open(volume, of_epoch(identity, which.epoch), which.seq);
  if (!checkpoint) return std::unexpected(std::move(checkpoint).error().at(path));
  uint64_t records = 0;
  auto footer = checkpoint->read([&](ByteSpan payload) -> Status {
    ByteReader in(payload);
    RecordContext context;
    while (!in.at_end()) {
      auto record = decode_record(in, context);
      if (!record && record.error().code == Code::kVersion) return std::unexpected(std::move(record).error());
      if (!record) {  // frames are independent: the next one can be read
        problems.push_back(fmt::format("{}: behind {} records: {}; the rest of its frame is left out", path, records, record.error().message));
        return {};
      }
      ++records;
      if (!*record) continue;
      KVC_TRY(apply(std::move(**record)));
      kill_point("checkpoint-half-loaded");
    }
    return {};
  });
  if (!footer) return std::unexpected(std::move(footer).error().at(path));
  if (footer->records != records) {
    problems.push_back(fmt::format("{}: has {} records, its footer says {}", path, records, footer->records));
  }
  return {};
}

}  // namespace kvcachefs
