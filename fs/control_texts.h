// The texts of open control files, each made when its file was opened. Any user may open many control files, so the total size of all texts
// is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "fs/kept_by_open.h"
#include "store/base/mutex.h"
#include "store/base/units.h"

namespace kvcachefs {

// Texts by open file. Thread-safe, one leaf mutex. When the bound is exceeded, drops the oldest texts, never the newest.
class ControlTexts {
 public:
  explicit ControlTexts(size_t most_bytes = 16 * kMiB) : most_bytes_(most_bytes) {}

  // Returns a number for the opened file; numbers are never reused.
  uint64_t open(std::string text);
  // Stores a text again for a file whose text was dropped. Must not be called after close().
  void renew(uint64_t opened, std::string text);
  void close(uint64_t opened);
  // Returns the part [offset, offset + size) of the text; empty past its end; none if the text was dropped.
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
