// CheckpointWriter: used by one thread. Gathers records into frames, frames into writes of about a MiB.
#include <fmt/format.h>

#include <span>
#include <utility>

#include "store/base/checksum.h"
#include "store/base/kill_point.h"
#include "store/journal/checkpoint_format.h"
#include "store/journal/journal_file.h"
#include "store/journal/record_codec.h"

namespace kvcachefs {
namespace {

// Small enough that damage costs little and a reader needs little memory; large enough that 16 bytes a frame do not
// matter.
constexpr size_t kFrameBytes = 64 * 1024;
constexpr size_t kWriteBytes = 1024 * 1024;

}  // namespace

struct CheckpointWriter::State {
  State(std::shared_ptr<Volume> on, FileIdentity whose, uint64_t which)
      : volume(std::move(on)), identity(std::move(whose)), seq(which), key(FileKind::kCheckpoint, identity, seq) {}

  std::shared_ptr<Volume> volume;
  FileIdentity identity;
  uint64_t seq;
  FrameKey key;
  std::string temp_path;
  FilePtr file;
  uint64_t written_bytes = 0;
  Bytes frames;   // not written yet
  Bytes payload;  // of the frame being filled; empty or the type byte and records
  RecordContext context;  // of that frame
  CheckpointFooter footer;
  Hasher digest;
  bool failed = false;  // after an error the writer can only be destroyed
  bool finished = false;

  uint64_t end() const { return written_bytes + frames.size(); }
  Status flush() {
    if (kill_point_due("checkpoint-torn")) {
      const ByteSpan half[] = {ByteSpan(frames).first(frames.size() / 2)};
      (void)file->write(half, written_bytes);
      die_at_kill_point();
    }
    const ByteSpan pieces[] = {frames};
    KVC_TRY(file->write(pieces, written_bytes));
    written_bytes += frames.size();
    frames.clear();
    return {};
  }
  Status end_frame() {
    if (payload.empty()) return {};
    if (payload.size() > kMaxFramePayloadBytes) {
      return fail(Code::kTooBig, fmt::format("{}: a record of {} bytes is over the limit of {}", temp_path,
                                             payload.size(), kMaxFramePayloadBytes));
    }
    key.append(payload, end(), frames);
    digest.update(payload);
    ++footer.frames;
    payload.clear();
    context = {};
    return frames.size() >= kWriteBytes ? flush() : Status{};
  }
  Status complete();
};

Result<std::unique_ptr<CheckpointWriter>> CheckpointWriter::create(std::shared_ptr<Volume> volume,
                                                                   FileIdentity identity, uint64_t seq,
                                                                   CheckpointHeader header) {
  const std::string directory = checkpoint_directory(identity.node, identity.epoch);
  const std::string path = checkpoint_path(identity.node, identity.epoch, seq);
  KVC_TRY(volume->make_directories(directory));
  KVC_TRY(volume->sync_directory(epoch_directory(identity.node, identity.epoch)));
  if (volume->info(path)) return fail(Code::kExists, path + ": there is such a checkpoint: use a higher number");
  auto state = std::make_unique<State>(std::move(volume), std::move(identity), seq);
  state->temp_path = checkpoint_temp_path(state->identity.node, state->identity.epoch, seq);
  if (auto removed = state->volume->remove_file(state->temp_path);
      !removed && removed.error().code != Code::kNotFound) {
    return std::unexpected(std::move(removed).error());
  }
  KVC_ASSIGN(state->file, state->volume->open(state->temp_path, {.writable = true, .create_exclusive = true}));
  state->frames = encode_checkpoint_header({state->identity, seq, header});
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter);
  writer->state_ = std::move(state);
  return writer;
}

CheckpointWriter::~CheckpointWriter() {
  if (!state_ || state_->finished) return;
  state_->file.reset();
  (void)state_->volume->remove_file(state_->temp_path);  // if this fails, the next checkpoint of that number removes the file
}

Status CheckpointWriter::add(Record record) {
  State& state = *state_;
  if (state.failed) return fail(Code::kInvalid, state.temp_path + ": an earlier write of this checkpoint failed");
  if (state.payload.empty()) state.payload.push_back(static_cast<std::byte>(CheckpointFrame::kRecords));
  ByteWriter out(state.payload);
  state.footer.records += encode_record(record, state.context, out);
  if (state.payload.size() < kFrameBytes) return {};
  Status status = state.end_frame();
  state.failed = !status;
  return status;
}

Status CheckpointWriter::finish() {
  State& state = *state_;
  if (state.failed || state.finished) {
    return fail(Code::kInvalid, state.temp_path + ": is finished, or an earlier write of it failed");
  }
  Status status = state.complete();
  state.failed = !status;
  return status;
}

Status CheckpointWriter::State::complete() {
  KVC_TRY(end_frame());
  footer.digest = digest.digest();
  key.append(encode_checkpoint_footer(footer), end(), frames);
  KVC_TRY(flush());
  KVC_TRY(file->sync_data());
  file.reset();
  kill_point("checkpoint-written");
  KVC_TRY(volume->rename(temp_path, checkpoint_path(identity.node, identity.epoch, seq)));
  finished = true;  // the temp name is gone, even if the sync fails
  kill_point("checkpoint-named");
  return volume->sync_directory(checkpoint_directory(identity.node, identity.epoch));
}

}  // namespace kvcachefs
