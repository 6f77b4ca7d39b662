// The errors that are current, for the status: the last error of each kind of work, until that work succeeds again.
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

  // kVolume: the volume is gone, which is why all other work fails. kVolumeFile: only the next mount will fail.
  enum class Of : uint8_t { kVolume, kData, kJournal, kIndex, kUpkeep, kVolumeFile };

  // Reports the outcome of one piece of work. A success takes no lock unless that kind of work has a current failure.
  void report(Of of, const Status& status);
  // The current error of that kind, if there is one.
  std::optional<Error> error(Of of) const;

  struct State {
    std::string reason;    // the first failing kind; empty: nothing fails
    int64_t since_ns = 0;  // when the failure began or ended; wall clock
  };
  State state() const;
  // Sets the beginning of healthy work to now.
  void start();

 private:
  const Clock& clock_;
  mutable LeafMutex mutex_;
  std::array<std::optional<Error>, 6> errors_;
  std::atomic<uint8_t> failing_{0};  // one bit for each kind; written with mutex_ held, read without it
  State state_;
};

}  // namespace kvcachefs
