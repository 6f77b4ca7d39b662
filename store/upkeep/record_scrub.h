// Reads this node's records on the volume again, the newest checkpoint and the journals behind it, as a start without an index would. What has
// rotted there nobody here misses while the index is whole; but another node that reads this one's part from the beginning does, and so would a
// start whose index is lost. While the index has it all, a new checkpoint mends that.
//
// No state. By any thread, no lock held; blocks on the volume.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "store/api/counters.h"
#include "store/base/result.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class RecordScrub {
 public:
  struct Parts {
    Volume& volume;
    const FileIdentity& identity;
    const Index& index;
    Counters& counters;
    std::function<void()> want_checkpoint;
  };
  explicit RecordScrub(Parts parts) : parts_(std::move(parts)) {}

  struct Verified {
    std::string problem;  // file and offset; empty: none
    uint64_t bytes = 0;   // that were read
  };
  // `goes_on` is asked often; false ends it with kCanceled. Other errors: the volume did not answer, and nothing is known. What is written meanwhile
  // is not taken for damage: what is found has to be found twice, with no checkpoint written in between.
  Result<Verified> verify(const std::function<bool()>& goes_on) const;
  // The same; what is found is told, counted and mended. How many bytes were read; nothing: it is to be tried another time.
  std::optional<uint64_t> run(const std::function<bool()>& goes_on) const;

 private:
  Result<Verified> read_once(const std::function<bool()>& goes_on) const;

  const Parts parts_;
};

}  // namespace kvcachefs
