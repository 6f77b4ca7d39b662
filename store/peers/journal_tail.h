// Follows the journal of an epoch that its daemon, perhaps on another host, is still writing: gives every batch once and in order,
// as soon as it is there. Reads only; pure over files: no threads, no clock of its own.
//
// A frame that is not valid counts as not written yet. It counts as damage only once the writer has said for a while that it has written further,
// and a file just opened shows the same invalid frame.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "store/base/bytes.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/journal/block_buffer.h"
#include "store/journal/journal.h"

namespace kvcachefs {

class JournalTail {
 public:
  // Opens a journal file of the epoch, past the page cache. kNotFound if there is none with that number.
  using Open = std::function<Result<FilePtr>(uint64_t seq)>;
  using Apply = std::function<Status(const Batch&, JournalPosition after)>;

  // `from`: a position that a checkpoint covers, or that was reached before; offset 0: the beginning of that file.
  JournalTail(FileIdentity identity, JournalPosition from, Open open);

  enum class State : uint8_t {
    kUpToDate,  // everything there was given
    kMore,      // this call gave as much as one call may; there may be more
    kReload,    // permanent: batches given no longer count, or the next ones are gone: begin anew from a checkpoint
    kDamaged,   // until a later checkpoint: the next frame was written and cannot be read
  };
  struct Polled {
    State state = State::kUpToDate;
    std::string why;  // for the last two states
  };
  // `written`: how far the writer says that it has written, if known. Errors are those of reading, of another version, and of
  // `apply`. Nothing is lost by an error: the next call tries again.
  Result<Polled> poll(std::optional<JournalPosition> written, int64_t now_ns, const Apply& apply);

  JournalPosition position() const { return position_; }

 private:
  struct Step {
    enum class What : uint8_t { kGiven, kAgain, kNothing, kReload, kDamaged } what = What::kNothing;
    std::string why;
  };
  Result<Step> step(std::optional<JournalPosition> written, int64_t now_ns, const Apply& apply);
  Result<Step> open_current();
  Result<Step> go_on_in(uint64_t seq);
  Result<Step> look_for_next(uint64_t last_seq);
  Result<Step> missing(std::optional<JournalPosition> written, int64_t now_ns);
  Result<std::optional<Bytes>> read_frame();
  Result<ByteSpan> view(uint64_t offset, size_t length);
  void leave_file();

  FileIdentity identity_;
  JournalPosition position_;
  Open open_;
  FilePtr file_;
  bool blocks_ = false;
  BlockBuffer buffer_;
  Bytes window_;
  uint64_t window_offset_ = 0;
  std::optional<int64_t> lacking_since_ns_;  // since when the writer is further and nothing is here
  bool opened_anew_ = false;                 // since lacking_since_ns_
};

}  // namespace kvcachefs
