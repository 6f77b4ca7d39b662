// Buffers for the bytes read, so that they can be checked after the clock has stopped. If possible, a pool holds one slot for every
// chunk of a pass; else slots are reused in turn, and `whole()` tells that only samples were checked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "store/base/result.h"
#include "tools/load/access_style.h"
#include "tools/load/arena.h"

namespace kvcachefs {

// Not thread-safe: one thread uses a slot at a time.
class Slot {
 public:
  Slot() = default;
  explicit Slot(std::span<std::byte> buffer) : buffer_(buffer) {}
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&&) = delete;
  ~Slot() { clear(); }

  std::span<std::byte> buffer() { return buffer_; }
  // The first `bytes` of the buffer are now the content of `name`.
  void hold(const ChunkName& name, size_t bytes);
  // Takes over a mapping that holds the content of `name`; it is unmapped when the slot is cleared or used again.
  void hold_mapping(const ChunkName& name, void* memory, size_t bytes);
  void clear();

  std::span<const std::byte> content() const { return content_; }
  bool sample_matches() const;
  // Checks every byte; the error names the chunk and the first wrong offset.
  Status verify() const;

 private:
  std::span<std::byte> buffer_;
  std::span<const std::byte> content_;
  const ChunkName* name_ = nullptr;  // not owned: names outlive the pass that reads them
  void* mapping_ = nullptr;
};

class SlotPool {
 public:
  // `slots` buffers of `slot_bytes`, but at most `max_bytes` of them and at least `min_slots`.
  static Result<SlotPool> create(size_t slot_bytes, size_t slots, size_t min_slots, size_t max_bytes);

  size_t size() const { return slots_.size(); }
  Slot& at(size_t index) { return slots_[index % slots_.size()]; }
  // Whether a pass over `chunks` chunks keeps all of them until it is verified.
  bool whole(size_t chunks) const { return slots_.size() >= chunks; }
  // Checks every byte held and clears the slots, on `threads` threads.
  Status verify_and_clear(unsigned threads);
  void clear();

 private:
  Arena arena_;
  std::vector<Slot> slots_;
};

}  // namespace kvcachefs
