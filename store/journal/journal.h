// The journal of a node: one directory of append-only files per epoch, and checkpoints.
//   nodes/<node>/<epoch>/journal/<seq>.log        nodes/<node>/<epoch>/checkpoint/<seq>
// Numbers are decimal without leading zeros. The grammar is store/FORMAT.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/records.h"
#include "store/base/result.h"
#include "store/volume/volume.h"

namespace kvcachefs {

// Who a file belongs to; in the header of every journal, checkpoint and pack extent, so that a file in the wrong place
// is found out.
struct FileIdentity {
  std::array<std::byte, 16> volume_uuid{};
  std::string node;
  uint32_t epoch = 0;
};

std::string epoch_directory(std::string_view node, uint32_t epoch);  // "nodes/<node>/<epoch>"
std::string journal_path(std::string_view node, uint32_t epoch, uint64_t seq);
std::string checkpoint_path(std::string_view node, uint32_t epoch, uint64_t seq);

// How a journal's files are written. Both are read alike.
enum class JournalForm : uint8_t {
  kPacked,  // frames one behind the other, through the page cache
  kBlocks,  // each batch in blocks of its own, one direct write: on a network volume it is on the server then, where others see it,
            // or an error; before the writer goes on to another file the last frame says so
};
inline JournalForm journal_form(const VolumeFeatures& features) { return features.network ? JournalForm::kBlocks : JournalForm::kPacked; }

// Appends batches to this epoch's journal. append() calls are serialised by the caller's commit order: it is called
// from one thread at a time (the writer's own mutex guards only the file switch against sync()).
class JournalWriter {
 public:
  // The epoch directory exists. Makes journal/ and the first file (seq 0) with its header, synced, names synced.
  static Result<std::unique_ptr<JournalWriter>> create(std::shared_ptr<Volume> volume, FileIdentity identity,
                                                       std::string boot_id, uint64_t max_file_bytes,
                                                       JournalForm form = JournalForm::kPacked);
  // Writes one batch at the end (no sync). On failure nothing of the batch counts: the file is
  // abandoned at its last good end, and the next append starts a new file. Returns the position after the batch.
  Result<JournalPosition> append(const Batch& batch);
  // Everything appended before this call is on the medium when it returns. May run beside append().
  Status sync();
  // Starts a new file; returns its start. For checkpoints: files before it can go once the checkpoint is durable.
  // `lost`: others removed the current one or put something in its place, see take_lost_file(). Where no other can be made, append() tries again, and
  // it and sync() fail until then.
  Result<JournalPosition> rotate(bool lost = false);
  JournalPosition position() const;
  struct Current {
    JournalPosition end;
    uint64_t file_id = 0;  // of the file in which that is, as Volume::info() tells it; 0: not known
    bool is_nowhere = false;  // others took it, and no other could be made: rotate() tries again
  };
  Current current() const;
  // Of frames, without the headers of files. Does not block.
  struct Appended {
    uint64_t bytes_in_all = 0;        // since create()
    uint64_t bytes_since_rotate = 0;  // since the last rotate(), or create()
  };
  Appended appended() const;
  // True if others had removed a file that this writer has left since the last call: what was appended to that file is in no journal.
  bool take_lost_file();

 private:
  JournalWriter() = default;
  struct State;
  std::shared_ptr<State> state_;
};

struct ReplayStatistics {
  uint64_t files = 0;
  uint64_t batches = 0;
  uint64_t records = 0;
  uint64_t bytes = 0;
  uint64_t damaged_files = 0;   // unreadable header or a bad frame that valid frames follow
  uint64_t torn_tails = 0;      // a file that ends in a broken frame: what a crash leaves
  // Where the first epoch that a torn tail ends does so: nothing that lies behind it in that epoch was given. Not where a writer said so itself.
  std::optional<JournalPosition> first_cut;
  std::vector<std::string> problems;  // one line each, file and offset named
};

// Reads the journals of `node` from `from` on (epoch, then seq order), verifies and decodes every batch, and calls
// `apply(batch, position after it, synced)`; `synced` says that a later SyncedRecord of that epoch covers the batch.
// A broken frame before the last SyncedRecord of its epoch is damage: reported and skipped. One behind it is what a power
// cut leaves (pages are written back in any order) and ends that epoch there, counted in torn_tails: later batches may
// build on the lost one.
// Nothing is read of what a later epoch says came after the end (EndsRecord).
// A file of another version, volume or node is an error. Positions before the first existing file are fine only if
// nothing is missing in between; a gap (missing seq) is reported as damage.
// `before_epoch`: this epoch and those after it are not read, for somebody writes there.
Result<ReplayStatistics> replay_journals(Volume& volume, const FileIdentity& identity, JournalPosition from,
                                         const std::function<Status(const Batch&, JournalPosition after, bool synced)>& apply,
                                         uint32_t before_epoch = UINT32_MAX);

struct JournalFileInfo {
  uint32_t epoch = 0;
  uint64_t seq = 0;
  std::string boot_id;  // of the machine when the file was started; empty if the header is unreadable
  uint64_t size_bytes = 0;
  uint64_t held_bytes = 0;      // at most, of the volume: less where most of the file is a hole
  uint64_t header_bytes = 0;    // 0 if it is unreadable
  uint64_t counting_bytes = 0;  // less where a later epoch says that this one ended before that
  bool wants_checkpoint = false;  // its epoch begins with a record which says that peers go on from a checkpoint of that epoch, or a later one
};
// Every journal file of the node, in order.
Result<std::vector<JournalFileInfo>> list_journals(Volume& volume, const FileIdentity& identity);
// Every epoch directory of the node, ascending.
Result<std::vector<uint32_t>> list_epochs(Volume& volume, std::string_view node);

struct CheckpointHeader {
  JournalPosition covers;   // complete up to here
  Stamp stamp;              // ... and to this stamp
  uint64_t next_number = 0; // object numbers of epoch `covers.epoch` below this are taken
};
struct CheckpointInfo {
  uint32_t epoch = 0;
  uint64_t seq = 0;
  CheckpointHeader header;
  uint64_t records = 0;
};

// Writes one checkpoint: records in the order given (objects by id, then names by key, then successors), footer with
// counts and checksum, synced, then renamed to its name (temp "<seq>.tmp"), directory synced.
class CheckpointWriter {
 public:
  static Result<std::unique_ptr<CheckpointWriter>> create(std::shared_ptr<Volume> volume, FileIdentity identity,
                                                          uint64_t seq, CheckpointHeader header);
  ~CheckpointWriter();  // an unfinished one leaves only its temp file, removed
  Status add(Record record);
  Status finish();

 private:
  CheckpointWriter() = default;
  struct State;
  std::unique_ptr<State> state_;
};

// Newest complete and valid checkpoint of the node over all its epochs; nullopt if there is none. A damaged one is
// reported in `problems` and the one before it is used. One that covers what does not count is passed over.
Result<std::optional<CheckpointInfo>> find_checkpoint(Volume& volume, const FileIdentity& identity,
                                                      std::vector<std::string>& problems);
// Streams it, verified frame by frame. An error means it must not be trusted. Frames that hold no records, behind their good
// checksum, are passed over and reported in `problems`.
Status read_checkpoint(Volume& volume, const FileIdentity& identity, const CheckpointInfo& which,
                       const std::function<Status(Record&&)>& apply, std::vector<std::string>& problems);

// Removes journal files wholly before `covered` (the one it is in, too, if it ends there and a later one was begun) and
// checkpoints older than `keep`; also empty journal/ and checkpoint/ directories of older epochs. Order: oldest first, so
// that a crash leaves no gap.
Status remove_covered(Volume& volume, const FileIdentity& identity, JournalPosition covered, const CheckpointInfo& keep);

}  // namespace kvcachefs
