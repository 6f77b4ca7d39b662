// Reads this node's records on the volume again, the newest checkpoint and the journals behind it, as a start without an index would. While
// the index is whole, nothing on this node notices rot there; but another node that reads this node's part from the beginning would, and so
// would a start whose index is lost. While the index has everything, a new checkpoint mends it.
//
// Has no state. Any thread, with no lock held; blocks on the volume.
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

  // Returns a problem with file and offset; empty: none. `goes_on` is asked often; if it returns false the call ends with kCanceled. Other
  // errors: the volume did not answer, and nothing is known. Concurrent writes are not taken for damage: a problem has to be found twice,
  // with no checkpoint written in between. Adds the bytes read to `bytes`.
  Result<std::string> verify(const std::function<bool()>& goes_on, uint64_t& bytes) const;
  struct Read {
    uint64_t bytes = 0;
    bool all = true;  // false: try again another time
  };
  // The same; a problem is logged, counted and mended.
  Read run(const std::function<bool()>& goes_on) const;

 private:
  Result<std::string> read_once(const std::function<bool()>& goes_on, uint64_t& bytes) const;

  const Parts parts_;
};

}  // namespace kvcachefs
