// The requests that wait for memory, in order of arrival: reads in one line, writes in another.
//
// A waiting request holds nothing. It gets the memory for everything it lacks at once, or none, and only then are the bytes that it already
// has in RAM kept from being dropped. So any set of requests makes progress as long as there is memory for one.
//
// Memory goes to the first of a line. When something has arrived in RAM the others are tried too, because a request that lacks nothing any
// more is answered whatever its place. Readers come first: they need little, and it comes back as soon as the volume has answered. If only
// the memory of reads under way keeps an earlier writer out, readers let it go first; for a tenth of a second at a time, so that a writer
// that finds no memory after all does not block everything.
//
// If the volume takes nothing for long, dirty bodies give no memory back. A request that then finds none is refused, whatever its place: a
// writer at once, a reader after 10 s, because the memory that readers wait for mostly comes back all the same.
// its place: a writer at once, a reader once it has waited for 10 s, for what readers wait for mostly comes back all the same.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/result.h"
#include "store/base/types.h"

namespace kvcachefs {

class MemoryWaiters {
 public:
  enum class Kind : uint8_t { kReader, kWriter };
  // One attempt of a request to go on.
  struct Try {
    bool may_take = true;      // memory; false: it goes on only if it lacks none
    uint64_t lacks_bytes = 0;  // set by an attempt that was refused
  };
  // Returns true if the request goes on. Called with no lock held; must not block.
  using Retry = std::move_only_function<bool(Try&)>;
  // Called once in place of a Retry, under the same rules: the request ends with this error.
  using GiveUp = std::move_only_function<void(Error)>;
  // Questions about memory that the owner answers.
  struct Rules {
    // True if a writer that lacks so many bytes would have them after the reads under way have ended.
    std::function<bool(uint64_t lacks_bytes)> has_room_without_reads;
    // True if nothing is dirty and nothing is being read: no event will bring memory back.
    std::function<bool()> nothing_moves;
    // Why waiting is useless: the volume takes nothing for long. nullopt: it may help.
    std::function<std::optional<Error>()> no_use = [] { return std::nullopt; };
  };

  // Call once before use.
  void set_rules(Rules rules) { rules_ = std::move(rules); }

  // True if a request that comes now may take memory at once.
  bool may_take_now(Kind kind) const {
    if (count_.load(std::memory_order_relaxed) == 0) return true;
    return kind == Kind::kReader && counts_[0].load(std::memory_order_relaxed) == 0 && !readers_pause_.load(std::memory_order_relaxed);
  }
  bool nobody_waits() const { return count_.load(std::memory_order_relaxed) == 0; }
  uint64_t count() const { return count_.load(); }
  // The bytes that the first reader was refused, 0 if none waits: writers leave it that much.
  uint64_t first_reader_lacks_bytes() const { return first_reader_lacks_.load(std::memory_order_relaxed); }

  void add(Kind kind, ObjectId object, uint64_t lacks_bytes, int64_t now_ns, Retry retry, GiveUp give_up);
  // Something has arrived in RAM: requests behind the first may lack nothing any more. Never blocks, takes no lock.
  void note_arrival() {
    if (count_.load(std::memory_order_relaxed) > 0) look_at_all_.store(true, std::memory_order_relaxed);
  }
  // Tries the waiting requests; returns true if one went on. One thread at a time, with no lock held.
  bool resume(int64_t now_ns);

 private:
  struct Entry {
    uint64_t number;  // in order of arrival
    ObjectId object;
    uint64_t lacks_bytes;
    int64_t since_ns;
    bool told = false;
    int64_t first_since_ns = INT64_MIN;  // since when readers let it go first
    Retry retry;
    GiveUp give_up;
  };
  bool resume_line(Kind kind, bool look_at_all, int64_t now_ns);
  bool writer_comes_first(uint64_t before_number, int64_t now_ns);
  void look_for_stuck(std::deque<Entry>& line, Kind kind, int64_t now_ns);

  Rules rules_;
  std::atomic<uint64_t> count_{0};
  std::array<std::atomic<uint64_t>, 2> counts_{};
  std::atomic<uint64_t> first_reader_lacks_{0};
  std::atomic<bool> readers_pause_{false}, look_at_all_{false};
  LeafMutex mutex_;  // a leaf. Guards the rest:
  uint64_t next_number_ = 0;
  std::array<std::deque<Entry>, 2> lines_;
};

}  // namespace kvcachefs
