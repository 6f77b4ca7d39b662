// What the open control files tell: of each the text of the moment when it was opened. Any user may open many of them, so all texts together
// are bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "fs/kept_by_open.h"
#include "store/base/mutex.h"
#include "store/base/units.h"

namespace kvcachefs {

// Texts by open file. Thread-safe, one leaf mutex. To stay within the bound the oldest texts are dropped, never the newest.
class ControlTexts {
 public:
  explicit ControlTexts(size_t most_bytes = 16 * kMiB) : most_bytes_(most_bytes) {}

  // A number for a file that is opened; never used again.
  uint64_t open(std::string text);
  // Its text in place of the one that was dropped. Not for one that was closed.
  void renew(uint64_t opened, std::string text);
  void close(uint64_t opened);
  // A part of it; empty behind its end. None: it was dropped.
  std::optional<std::string> read(uint64_t opened, size_t offset, size_t size) const;
  size_t bytes() const;

 private:
  using Texts = KeptByOpen<std::string>;

  const size_t most_bytes_;
  mutable LeafMutex mutex_;  // guards:
  uint64_t opened_ = 0;
  Texts texts_;
};

}  // namespace kvcachefs
