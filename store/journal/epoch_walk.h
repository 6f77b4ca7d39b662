// Inside the journal room: walks the journal files of one epoch in order, frame by frame, and tells what is missing.
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
  std::optional<DecodedJournalHeader> header;  // none if unreadable: `why` tells
  std::string why;
  std::optional<uint64_t> good_end;  // what the file after it says; frames from there on were given up
  bool outside_chain = false;        // never finished: the file after it does not link to it
};

// Something that was there, or may have been, is not readable.
struct Gap {
  uint64_t seq = 0;  // where it begins
  uint64_t offset = 0;
  std::string what;       // one line with file and offset
  bool at_start = false;  // before everything that was read: something is missing, and not as the tail of a crash
};

// `true` goes on, `false` ends the walk.
struct WalkVisitor {
  std::function<Result<bool>(const WalkedFile&, const Frame&, uint64_t behind)> frame;  // where the next one begins
  std::function<Result<bool>(const Gap&)> gap;
  std::function<void(const WalkedFile&)> given_up_tail;  // bytes from good_end on, which never counted
};

class EpochWalk {
 public:
  // Lists the files of epoch `identity.epoch` and reads their headers. An error: I/O, or a file of another format
  // version, volume or node.
  static Result<EpochWalk> open(Volume& volume, const FileIdentity& identity);

  const std::vector<WalkedFile>& files() const { return files_; }
  // Everything from `from` on; what lies before it is taken as known. {0, 0} is the start of the epoch. What lies behind `until`
  // does not count, and nothing is said of it. Can be called again.
  Status walk(JournalLink from, std::optional<JournalLink> until, const WalkVisitor& visitor) const;

 private:
  EpochWalk(Volume& volume, FileIdentity identity) : volume_(&volume), identity_(std::move(identity)) {}
  Status read_header(uint64_t seq);
  void link();
  Result<bool> walk_file(const WalkedFile& file, uint64_t from_offset, uint64_t until, const WalkVisitor& visitor) const;
  // Frames lie below `limit`; where the file after it tells, they lead up to `expected`.
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
