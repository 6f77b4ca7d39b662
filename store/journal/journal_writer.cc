// JournalWriter. Locks: `commit_mutex` serialises append() and rotate() and is held over their I/O; `sync_mutex` does the
// same for sync() (if two syncs of one descriptor ran at once, only one would get an error); `mutex` guards the numbers
// that both use and is never held over I/O. Order: commit_mutex or sync_mutex, then mutex.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "store/base/kill_point.h"
#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/journal/block_buffer.h"
#include "store/journal/frame.h"
#include "store/journal/frame_reader.h"
#include "store/journal/journal.h"
#include "store/journal/journal_file.h"
#include "store/journal/record_codec.h"
#include "store/volume/volume_path.h"

namespace kvcachefs {
namespace {

constexpr size_t kMaxHeaderTextBytes = 255;    // node and boot id: the header stays far below its limit
constexpr uint64_t kTriesPerFile = 8;          // attempts to make the next file, spread over the length of one, while that fails
constexpr size_t kScratchBytes = 1024 * 1024;  // kept between appends

// A journal file that is open: the current one, or one that no successful sync covers yet.
struct OpenJournal {
  FilePtr file;
  uint64_t seq = 0;
  uint64_t file_id = 0;  // 0: the volume does not tell it
  Bytes header;
  uint64_t start = 0;   // behind the header
  uint64_t end = 0;     // behind the last good frame
  uint64_t synced = 0;  // everything below is on the medium
  bool sync_failed = false;
};

Status write_one(File& file, ByteSpan bytes, uint64_t offset) {
  const ByteSpan pieces[] = {bytes};
  return file.write(pieces, offset);
}

// Whether others removed the file: this process removes only files that it has left. NFS answers ESTALE if another client removed it.
bool is_removed(const OpenJournal& journal) {
  const auto info = journal.file->info();
  return info ? info->is_removed : info.error().sys_errno == ESTALE;
}

}  // namespace

struct JournalWriter::State {
  std::shared_ptr<Volume> volume;
  FileIdentity identity;
  std::string boot_id;
  uint64_t max_file_bytes = 0;
  JournalForm form = JournalForm::kPacked;

  Mutex<LockRank::kJournal> commit_mutex;
  bool abandoned = false;  // the current file takes no more frames: a write to it failed
  uint64_t next_try_at = 0;  // length of the current file at which to try again to make the next one
  uint64_t next_seq = 0;   // of the next file; never used before, even by a file without a header
  Bytes payload;           // scratch of append(): the encoded batch
  Bytes frame;             // scratch of append() and go_on_in_next()
  BlockBuffer blocks;      // scratch of append()
  Stamp stamp;             // of the last batch

  Mutex<LockRank::kJournal> sync_mutex;
  BlockBuffer rewritten;  // scratch of sync()

  mutable LeafMutex mutex;
  std::shared_ptr<OpenJournal> current;                // its numbers change under `mutex` only
  std::vector<std::shared_ptr<OpenJournal>> unsynced;  // earlier files that sync() still has to sync
  uint64_t names_made = 0, names_synced = 0;
  Appended appended;
  bool lost_file = false;  // since take_lost_file(), this writer left a file that others had removed
  bool is_nowhere = false;  // others removed the current file, and no new one could be made yet

  bool in_blocks() const { return form == JournalForm::kBlocks; }
  Status write_at(BlockBuffer& buffer, File& file, ByteSpan bytes, uint64_t offset) const;
  Status open_next();
  Status go_on_in_next();
  void make_frame(ByteSpan content, const OpenJournal& journal);
  Status write_frame();
  Status sync_file(OpenJournal& journal);
  Status rewrite(const OpenJournal& journal, uint64_t from, uint64_t to);
  JournalPosition position_locked() const { return {identity.epoch, current->seq, current->end}; }
};

Status JournalWriter::State::write_at(BlockBuffer& buffer, File& file, ByteSpan bytes, uint64_t offset) const {
  return in_blocks() ? buffer.write(file, bytes, offset) : write_one(file, bytes, offset);
}

// Makes the file after `current` (or the first file) and switches to it. On failure `current` stays.
Status JournalWriter::State::open_next() {
  const uint64_t seq = next_seq;
  const std::string path = journal_path(identity.node, identity.epoch, seq);
  JournalFileHeader header{identity, seq, boot_id, std::nullopt, in_blocks()};
  if (current) header.previous = JournalLink{current->seq, current->end};
  const Bytes bytes = encode_journal_header(header);
  const OpenOptions options{.writable = true, .create_exclusive = true, .direct = in_blocks()};
  Result<FilePtr> made = volume->open(path, options);
  if (!made && made.error().code == Code::kNotFound) {  // others removed just the directory
    const std::string directory(parent_path(path));
    KVC_TRY(volume->make_directory(directory));
    KVC_TRY(volume->sync_directory(std::string(parent_path(directory))));
    made = volume->open(path, options);
  }
  // A file that was not made leaves its number free: nothing of it can be read, and no link names it. If it was made all the same (a network file
  // system may lose the answer), the next attempt finds it (kExists), and the attempt after that uses the next number.
  if (made || made.error().code == Code::kExists) ++next_seq;
  KVC_ASSIGN(FilePtr file, std::move(made));
  // The id is useless if Volume::info() of the path tells another one, as on some network file systems.
  const auto about = file->info(), by_path = volume->info(path);
  const uint64_t file_id = about && by_path && about->file_id == by_path->file_id ? about->file_id : 0;
  kill_point("journal-made");
  auto written = write_at(blocks, *file, bytes, 0);
  // A header block could be lost while a later frame survives, and that frame may say that everything before it is synced.
  if (written && in_blocks()) written = file->sync_data();
  if (!written) {
    // If the remainder cannot be removed it does no harm: no later header links to it.
    (void)volume->remove_file(path);
    return written;
  }
  kill_point("journal-header");
  const uint64_t start = bytes.size();
  auto opened = std::make_shared<OpenJournal>(OpenJournal{std::move(file), seq, file_id, bytes, start, start, 0, false});
  const bool removed = current && is_removed(*current);
  const std::lock_guard lock(mutex);
  lost_file |= removed;
  if (current && (current->synced < current->end || current->sync_failed)) unsynced.push_back(current);
  current = std::move(opened);
  abandoned = is_nowhere = false;
  ++names_made;
  return {};
}

// open_next() from a file that is whole; then writes into that file which file comes next. If that fails, for want of space perhaps,
// followers of the journal only notice later: the next file's header tells where the previous one ends.
Status JournalWriter::State::go_on_in_next() {
  const std::shared_ptr<OpenJournal> before = current;
  KVC_TRY(open_next());
  if (!in_blocks()) return {};
  kill_point("journal-next");
  Bytes next;  // not `payload`: append() has the batch in it that goes into the new file
  encode_batch({stamp, {NextRecord{current->seq}}}, next);
  make_frame(next, *before);
  (void)write_at(blocks, *before->file, frame, before->end);
  return {};
}

// Fills `frame`, which is to lie at the end of `journal`: an encoded batch with the checksum that holds for that place only.
void JournalWriter::State::make_frame(ByteSpan content, const OpenJournal& journal) {
  frame.clear();
  FrameKey(FileKind::kJournal, identity, journal.seq).append(content, journal.end, frame);
}

// Writes `frame` at the end of the current file.
Status JournalWriter::State::write_frame() {
  if (kill_point_due("batch-torn")) {
    const size_t half = in_blocks() ? frame.size() / 2 / kBlockBytes * kBlockBytes : frame.size() / 2;
    if (half > 0) (void)write_at(blocks, *current->file, ByteSpan(frame).first(half), current->end);
    die_at_kill_point();
  }
  if (auto written = write_at(blocks, *current->file, frame, current->end); !written) {
    // The bytes that reached the file must not count. The next file's header tells where this one ends; until there is one,
    // truncation is the only way, and it may fail as well: then a reader may still see the batch.
    abandoned = true;
    (void)current->file->truncate(current->end);
    return written;
  }
  const std::lock_guard lock(mutex);
  const uint64_t end = behind_frame(current->end + frame.size(), in_blocks());
  appended.bytes_in_all += end - current->end;
  appended.bytes_since_rotate += end - current->end;
  current->end = end;
  return {};
}

Result<std::unique_ptr<JournalWriter>> JournalWriter::create(std::shared_ptr<Volume> volume, FileIdentity identity,
                                                             std::string boot_id, uint64_t max_file_bytes,
                                                             JournalForm form) {
  if (identity.node.empty() || identity.node.size() > kMaxHeaderTextBytes || boot_id.size() > kMaxHeaderTextBytes) {
    return fail(Code::kInvalid,
                fmt::format("journal of node '{}': node must have 1 to {} bytes and boot id '{}' at most "
                            "as many",
                            identity.node, kMaxHeaderTextBytes, boot_id));
  }
  if (identity.epoch == 0 || identity.epoch > kMaxEpoch) {
    return fail(Code::kInvalid, fmt::format("journal of node '{}': epoch {} is outside 1..{}", identity.node,
                                            identity.epoch, kMaxEpoch));
  }
  auto state = std::make_shared<State>();
  state->volume = std::move(volume);
  state->identity = std::move(identity);
  state->boot_id = std::move(boot_id);
  state->max_file_bytes = max_file_bytes;
  state->form = form;
  const std::string directory = journal_directory(state->identity.node, state->identity.epoch);
  KVC_TRY(state->volume->make_directories(directory));
  KVC_TRY(state->volume->sync_directory(epoch_directory(state->identity.node, state->identity.epoch)));
  kill_point("epoch-made");
  KVC_TRY(state->open_next());
  std::unique_ptr<JournalWriter> writer(new JournalWriter);
  writer->state_ = std::move(state);
  KVC_TRY(writer->sync());
  return writer;
}

Result<JournalPosition> JournalWriter::append(const Batch& batch) {
  State& state = *state_;
  const std::lock_guard commit(state.commit_mutex);
  state.payload.clear();
  encode_batch(batch, state.payload);
  if (state.payload.size() > kMaxFramePayloadBytes || 2 * batch.records.size() > kMaxBatchRecords) {  // an `about` record may precede each record
    return fail(Code::kTooBig, fmt::format("journal of epoch {}: a batch of {} records in {} bytes is over the limits of {} and {}: split it",
                                           state.identity.epoch, batch.records.size(), state.payload.size(), kMaxBatchRecords / 2,
                                           kMaxFramePayloadBytes));
  }
  const uint64_t end = state.current->end;
  const bool full = end > state.current->start && end + kFrameHeaderBytes + state.payload.size() > state.max_file_bytes;
  if (state.abandoned) KVC_TRY(state.open_next());
  // If no file can be made, for want of inodes perhaps, the current one goes on.
  if (full && end >= state.next_try_at) {
    state.next_try_at = state.go_on_in_next() ? 0 : end + state.max_file_bytes / kTriesPerFile;
  }
  state.make_frame(state.payload, *state.current);
  KVC_TRY(state.write_frame());
  state.stamp = batch.stamp;
  if (state.frame.capacity() > kScratchBytes) {
    state.payload = Bytes();
    state.frame = Bytes();
    state.blocks.shrink(kScratchBytes);
  }
  return position();
}

Status JournalWriter::sync() {
  State& state = *state_;
  const std::lock_guard one_sync(state.sync_mutex);
  std::vector<std::shared_ptr<OpenJournal>> owed;
  std::shared_ptr<OpenJournal> current;
  uint64_t names_made = 0;
  bool name_owed = false;
  {
    const std::lock_guard lock(state.mutex);
    if (state.is_nowhere) return fail(Code::kIo, fmt::format("{}: is what others have put there, and no other journal could be made", state.current->file->path()));
    owed = state.unsynced;
    current = state.current;
    names_made = state.names_made;
    name_owed = state.names_synced < names_made;
  }
  for (const auto& journal : owed) KVC_TRY(state.sync_file(*journal));
  KVC_TRY(state.sync_file(*current));
  if (name_owed) {
    KVC_TRY(state.volume->sync_directory(journal_directory(state.identity.node, state.identity.epoch)));
  }
  const std::lock_guard lock(state.mutex);
  // Files before the current one take no more frames, so they are now synced completely.
  std::erase_if(state.unsynced, [&](const auto& journal) {
    return !journal->sync_failed && std::find(owed.begin(), owed.end(), journal) != owed.end();
  });
  state.names_synced = std::max(state.names_synced, names_made);
  return {};
}

Status JournalWriter::State::sync_file(OpenJournal& journal) {
  uint64_t from = 0, to = 0;
  bool failed_before = false;
  {
    const std::lock_guard lock(mutex);
    from = journal.synced;
    to = journal.end;
    failed_before = journal.sync_failed;
  }
  if (from == to && !failed_before) return {};
  Status status = failed_before ? rewrite(journal, from, to) : Status{};
  if (status) status = journal.file->sync_data();
  const std::lock_guard lock(mutex);
  journal.sync_failed = !status;
  if (status) journal.synced = std::max(journal.synced, to);
  return status;
}

// After a failed sync the kernel may have dropped the pages or marked them clean, so a later sync may succeed without
// having written them. So reads the frames back, checks that they are those that were appended, and writes them again.
Status JournalWriter::State::rewrite(const OpenJournal& journal, uint64_t from, uint64_t to) {
  if (from < journal.start) {
    KVC_TRY(write_at(rewritten, *journal.file, journal.header, 0));
    from = journal.start;
  }
  const FrameKey key(FileKind::kJournal, identity, journal.seq);
  FrameReader reader([&](std::span<std::byte> into, uint64_t offset) { return rewritten.read(*journal.file, into, offset); },
                     to, key);
  while (from < to) {
    KVC_ASSIGN(const auto found, reader.at(from));
    if (!found) {
      return fail(Code::kIo, fmt::format("{}: syncing it failed and bytes from {} on are lost since: unmount and mount "
                                         "again",
                                         journal.file->path(), from));
    }
    Bytes bytes;
    key.append(found->payload, from, bytes);
    KVC_TRY(write_at(rewritten, *journal.file, bytes, from));
    from = behind_frame(found->end(), in_blocks());
  }
  return {};
}

Result<JournalPosition> JournalWriter::rotate(bool lost) {
  State& state = *state_;
  const std::lock_guard commit(state.commit_mutex);
  const bool anew = state.abandoned;
  if (anew) KVC_TRY(state.open_next());
  lost &= !anew;  // open_next() has just replaced the lost file
  if (lost) {  // until there is a new file, append() takes nothing: no reader would find it
    state.abandoned = true;
    const std::lock_guard lock(state.mutex);
    state.lost_file = state.is_nowhere = true;
  }
  if (state.current->end > state.current->start || lost || is_removed(*state.current)) KVC_TRY(state.go_on_in_next());
  const std::lock_guard lock(state.mutex);
  state.appended.bytes_since_rotate = 0;
  return state.position_locked();
}

JournalPosition JournalWriter::position() const {
  const std::lock_guard lock(state_->mutex);
  return state_->position_locked();
}

JournalWriter::Current JournalWriter::current() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->position_locked(), state_->current->file_id, state_->is_nowhere};
}

bool JournalWriter::take_lost_file() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->lost_file, false);
}

JournalWriter::Appended JournalWriter::appended() const {
  const std::lock_guard lock(state_->mutex);
  return state_->appended;
}

}  // namespace kvcachefs
