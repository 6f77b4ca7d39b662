// Inside the journal room: walks the journal files of one epoch in order, frame by frame, and reports what is missing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "store/journal/frame_reader.h"
#include "store/journal/journal.h"
#include "store/journal/journal_file.h"

namespace kvcachefs {

struct WalkedFile {
  std::string path;
  uint64_t seq = 0;
  uint64_t size_bytes = 0, allocated_bytes = 0;
  std::optional<DecodedJournalHeader> header;  // nullopt if unreadable, see `why`
  std::string why;
  std::optional<uint64_t> good_end;  // from the next file's header; frames from there on were given up
  bool outside_chain = false;        // its creation was not finished: the next file does not link to it
};

// A range that held, or may have held, frames and is not readable.
struct Gap {
  uint64_t seq = 0;  // where it begins
  uint64_t offset = 0;
  std::string what;       // one line with file and offset
  bool at_start = false;  // it lies before everything that was read: something is missing, which a crash cannot explain
};

// Returning `true` goes on, `false` ends the walk.
struct WalkVisitor {
  std::function<Result<bool>(const WalkedFile&, const Frame&, uint64_t behind)> frame;  // `behind`: where the next frame begins
  std::function<Result<bool>(const Gap&)> gap;
  std::function<void(const WalkedFile&)> given_up_tail;  // reports bytes from good_end on, which never counted
};

class EpochWalk {
 public:
  // Lists the files of epoch `identity.epoch` and reads their headers. Errors: I/O, or a file of another format
  // version, volume or node.
  static Result<EpochWalk> open(Volume& volume, const FileIdentity& identity);

  const std::vector<WalkedFile>& files() const { return files_; }
  // Visits everything from `from` on; takes what lies before it as known. {0, 0} is the start of the epoch. What lies behind `until`
  // does not count and is not reported. May be called again.
  Status walk(JournalLink from, std::optional<JournalLink> until, const WalkVisitor& visitor) const;

 private:
  EpochWalk(Volume& volume, FileIdentity identity) : volume_(&volume), identity_(std::move(identity)) {}
  Status read_header(uint64_t seq);
  void link();
  Result<bool> walk_file(const WalkedFile& file, uint64_t from_offset, uint64_t until, const WalkVisitor& visitor) const;
  // Frames lie below `limit`; if the next file's header tells where this file ends, the frames must reach `expected`.
  Result<bool> walk_frames(const WalkedFile& file, uint64_t offset, uint64_t limit, uint64_t expected,
                           const WalkVisitor& visitor) const;
  Result<FrameReader> read(const WalkedFile& file, uint64_t limit) const;
  Result<bool> is_in_blocks(const WalkedFile& file, FrameReader& reader) const;
  Result<bool> says_where_it_goes_on(const WalkedFile& file) const;

  Volume* volume_;
  FileIdentity identity_;
  std::vector<WalkedFile> files_;
};

}  // namespace kvcachefs
