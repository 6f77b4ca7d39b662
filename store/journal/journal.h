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

// Volume, node and epoch that a file belongs to; in the header of every journal, checkpoint and pack extent, so that a file in the
// wrong place is detected.
struct FileIdentity {
  std::array<std::byte, 16> volume_uuid{};
  std::string node;
  uint32_t epoch = 0;
};

std::string epoch_directory(std::string_view node, uint32_t epoch);  // "nodes/<node>/<epoch>"
std::string journal_path(std::string_view node, uint32_t epoch, uint64_t seq);
std::string checkpoint_path(std::string_view node, uint32_t epoch, uint64_t seq);

// How a journal's files are written. One reader reads both.
enum class JournalForm : uint8_t {
  kPacked,  // frames one behind the other, through the page cache
  kBlocks,  // each batch in its own blocks, one direct write: when the write returns, the batch is on the server of a network volume, where others
            // see it, or there is an error. Before the writer goes on to another file, the last frame says so
};
inline JournalForm journal_form(const VolumeFeatures& features) { return features.network ? JournalForm::kBlocks : JournalForm::kPacked; }

// Appends batches to this epoch's journal. The caller serialises append() calls in commit order: one thread at a time
// calls it (the writer's own mutexes only order it against rotate() and sync()).
class JournalWriter {
 public:
  // The epoch directory must exist. Makes journal/ and the first file (seq 0) with its header; syncs the file and the names.
  static Result<std::unique_ptr<JournalWriter>> create(std::shared_ptr<Volume> volume, FileIdentity identity,
                                                       std::string boot_id, uint64_t max_file_bytes,
                                                       JournalForm form = JournalForm::kPacked);
  // Writes one batch at the end (no sync). Returns the position after the batch. On failure nothing of the batch counts: the file is
  // abandoned at its last good end, and the next append starts a new file.
  Result<JournalPosition> append(const Batch& batch);
  // When this returns, everything appended before the call is on the medium. May run beside append().
  Status sync();
  // Starts a new file; returns its start. For checkpoints: once the checkpoint is durable, the files before the new one can be removed.
  // `lost`: others removed or replaced the current file, see take_lost_file(). If then no new file can be made, append() tries again, and
  // it and sync() fail until one is made.
  Result<JournalPosition> rotate(bool lost = false);
  JournalPosition position() const;
  struct Current {
    JournalPosition end;
    uint64_t file_id = 0;  // of the file that holds `end`, as in Volume::info(); 0: not known
    bool is_nowhere = false;  // others took the file, and no new one could be made: rotate() tries again
  };
  Current current() const;
  // Bytes of frames, without file headers. Does not block.
  struct Appended {
    uint64_t bytes_in_all = 0;        // since create()
    uint64_t bytes_since_rotate = 0;  // since the last rotate(), or create()
  };
  Appended appended() const;
  // True if, since the last call, this writer left a file that others had removed: no journal holds what was appended to it.
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
  uint64_t damaged_files = 0;   // unreadable header, or a bad frame that valid frames follow
  uint64_t torn_tails = 0;      // files that end in a broken frame: what a crash leaves
  // The first position at which a torn tail ended an epoch: nothing behind it in that epoch was applied. Not set by a tail that its writer gave up itself.
  std::optional<JournalPosition> first_cut;
  std::vector<std::string> problems;  // one line each, with file and offset
};

// Reads the journals of `node` from `from` on (by epoch, then seq), verifies and decodes every batch, and calls
// `apply(batch, position after it, synced)`; `synced` says that a later SyncedRecord of that epoch covers the batch.
// A broken frame before the last SyncedRecord of its epoch is damage: reported and skipped. A broken frame behind it is what a power
// cut leaves (pages are written back in any order): it ends that epoch, counted in torn_tails, for later batches may
// build on the lost one.
// Records that a later epoch takes back (EndsRecord) are not read.
// A file of another version, volume or node is an error. `from` may lie before the first existing file only if
// nothing is missing in between; a gap (missing seq) is reported as damage.
// `before_epoch`: this epoch and later ones are not read, because their daemon still writes there.
Result<ReplayStatistics> replay_journals(Volume& volume, const FileIdentity& identity, JournalPosition from,
                                         const std::function<Status(const Batch&, JournalPosition after, bool synced)>& apply,
                                         uint32_t before_epoch = UINT32_MAX);

struct JournalFileInfo {
  uint32_t epoch = 0;
  uint64_t seq = 0;
  std::string boot_id;  // of the machine, when the file was begun; empty if the header is unreadable
  uint64_t size_bytes = 0;
  uint64_t held_bytes = 0;      // upper bound of the space that it takes on the volume: less than its size if most of the file is a hole
  uint64_t header_bytes = 0;    // 0 if the header is unreadable
  uint64_t counting_bytes = 0;  // less than the size if a later epoch says that this one ended before
  bool wants_checkpoint = false;  // its epoch's first record says that peers go on from a checkpoint of that epoch, or a later one
};
// Every journal file of the node, in order.
Result<std::vector<JournalFileInfo>> list_journals(Volume& volume, const FileIdentity& identity);
// Every epoch directory of the node, ascending.
Result<std::vector<uint32_t>> list_epochs(Volume& volume, std::string_view node);

struct CheckpointHeader {
  JournalPosition covers;   // all records up to here
  Stamp stamp;              // ... and up to this stamp
  uint64_t next_number = 0; // object numbers of epoch `covers.epoch` below this are taken
};
struct CheckpointInfo {
  uint32_t epoch = 0;
  uint64_t seq = 0;
  CheckpointHeader header;
  uint64_t records = 0;
};

// Writes one checkpoint: records in the order given (objects by id, then names by key, then successors), a footer with
// counts and checksum; syncs it, renames "<seq>.tmp" to "<seq>", syncs the directory.
class CheckpointWriter {
 public:
  static Result<std::unique_ptr<CheckpointWriter>> create(std::shared_ptr<Volume> volume, FileIdentity identity,
                                                          uint64_t seq, CheckpointHeader header);
  ~CheckpointWriter();  // removes the temp file of an unfinished checkpoint
  Status add(Record record);
  Status finish();

 private:
  CheckpointWriter() = default;
  struct State;
  std::unique_ptr<State> state_;
};

// Newest complete and valid checkpoint of the node over all its epochs; nullopt if there is none. A damaged checkpoint is
// reported in `problems` and the one before it is used. A checkpoint that covers records which do not count is skipped.
Result<std::optional<CheckpointInfo>> find_checkpoint(Volume& volume, const FileIdentity& identity,
                                                      std::vector<std::string>& problems);
// Streams the records, verified frame by frame. After an error the checkpoint must not be trusted. Frames with a good checksum whose records
// cannot be decoded are skipped and reported in `problems`.
Status read_checkpoint(Volume& volume, const FileIdentity& identity, const CheckpointInfo& which,
                       const std::function<Status(Record&&)>& apply, std::vector<std::string>& problems);

// Removes journal files that end before `covered` (also the file that holds `covered`, if it ends there and a later one was begun) and
// checkpoints older than `keep`; also empty journal/ and checkpoint/ directories of older epochs. Removes the oldest first, so
// that a crash leaves no gap.
Status remove_covered(Volume& volume, const FileIdentity& identity, JournalPosition covered, const CheckpointInfo& keep);

}  // namespace kvcachefs
