// What fails at the moment, for the status: the last error of each kind of work, until the same work succeeds again.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/result.h"

namespace kvcachefs {

// Thread-safe; mutex_ is a leaf.
class Health {
 public:
  explicit Health(const Clock& clock) : clock_(clock) {}

  // kVolume: it is not there any more, which is why all the rest fails.
  enum class Of : uint8_t { kVolume, kData, kJournal, kIndex, kUpkeep };

  // The outcome of one piece of work. A success takes no lock while no failure of that kind stands.
  void report(Of of, const Status& status);
  // The error that stands, if one does.
  std::optional<Error> error(Of of) const;

  struct State {
    std::string reason;    // the first that fails; empty: nothing does
    int64_t since_ns = 0;  // when it began to fail, or to work again; wall clock
  };
  State state() const;
  // It has worked from now on.
  void start();

 private:
  const Clock& clock_;
  mutable LeafMutex mutex_;
  std::array<std::optional<Error>, 5> errors_;
  std::atomic<uint8_t> failing_{0};  // a bit of each; written with mutex_ held, read without
  State state_;
};

}  // namespace kvcachefs
