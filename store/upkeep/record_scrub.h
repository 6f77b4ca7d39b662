// Reads this node's records on the volume again, the newest checkpoint and the journals behind it, as a start without an index would. What has
// rotted there nobody here misses while the index is whole; but another node that reads this one's part from the beginning does, and so would a
// start whose index is lost. While the index has it all, a new checkpoint mends that.
//
// No state. By any thread, no lock held; blocks on the volume.
#pragma once

#include <cstdint>
#include <functional>
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
    std::function<void()> replace_rotted;
  };
  explicit RecordScrub(Parts parts) : parts_(std::move(parts)) {}

  // A problem, with file and offset; empty: none. `goes_on` is asked often; false ends it with kCanceled. Other errors: the volume did not answer, and
  // nothing is known. What is written meanwhile is not taken for damage: what is found has to be found twice, with no checkpoint written in between.
  // `bytes`: that were read are added.
  Result<std::string> verify(const std::function<bool()>& goes_on, uint64_t& bytes) const;
  struct Read {
    uint64_t bytes = 0;
    bool all = true;  // false: it is to be tried another time
  };
  // The same; what is found is told, counted and mended.
  Read run(const std::function<bool()>& goes_on) const;

 private:
  Result<std::string> read_once(const std::function<bool()>& goes_on, uint64_t& bytes) const;

  const Parts parts_;
};

}  // namespace kvcachefs
