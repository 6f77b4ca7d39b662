// Follows the journal of an epoch that its daemon, on another host perhaps, is still writing: gives every batch once and in order,
// as soon as it is there. Reads only; pure over files: no threads, no clock of its own.
//
// A frame that is not valid was not written yet. It is damage only once the writer has said for a while that it has written further,
// and a file just opened shows the same.
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
  // Opens a journal file of the epoch, past the page cache. kNotFound if there is none of that number.
  using Open = std::function<Result<FilePtr>(uint64_t seq)>;
  using Apply = std::function<Status(const Batch&, JournalPosition after)>;

  // From a position that a checkpoint covers, or that was reached before; offset 0: the beginning of that file.
  JournalTail(FileIdentity identity, JournalPosition from, Open open);

  enum class State : uint8_t {
    kUpToDate,  // all that is there was given
    kMore,      // as much was given as one call may; there may be more
    kReload,    // what was given does not count any more, or what comes next is gone: begin anew from a checkpoint. For good
    kDamaged,   // what comes next cannot be read, though it was written. Until a later checkpoint
  };
  struct Polled {
    State state = State::kUpToDate;
    std::string why;  // of the last two
  };
  // `written`: how far the writer says that it is, if that is known. Errors are those of reading, of another version, and of
  // `apply`: nothing is lost by them, the next call tries again.
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
  std::optional<int64_t> lacking_since_ns_;  // the writer is further, and nothing is here
  bool opened_anew_ = false;                 // since then
};

}  // namespace kvcachefs
