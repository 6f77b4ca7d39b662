// Identifies readers and writers: a stream is a (thread id, name stem), and a handle belongs to the stream that opened it, so
// that a pool thread that reads through another thread's handle is not a stream of its own.
//
// Names are parsed leniently and never by a client's naming scheme: runs that look like hashes become one wildcard, and so do
// fan-out directories ("3f", "a07"). A file name without such a run is opaque: only its directory and suffix count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/base/types.h"

namespace kvcachefs {

// Hash of (parent directory, name): identifies a probed name before an object of that name exists. RAM only.
struct ChainKey {
  uint64_t value = 0;
  bool valid() const { return value != 0; }
  auto operator<=>(const ChainKey&) const = default;
};
ChainKey chain_key(ObjectId parent, std::string_view name);

// What a name tells about its object's position among others. `stem`: equal for all chunks of one model, rank and group.
// `sibling`: equal for chunks of the same chain position in different ranks or groups, that is for names that differ only in
// small fields ("_r0" and "_r1", "@0@" and "@1@"); 0 = the name tells nothing about siblings.
struct NameStem {
  uint64_t stem = 0;
  uint64_t sibling = 0;
  bool operator==(const NameStem&) const = default;
};
inline constexpr NameStem kRootStem{0x6b76636163686566ULL, 0x726f6f74ULL};
NameStem directory_stem(NameStem parent, std::string_view name);
NameStem file_stem(NameStem parent, std::string_view name);

// A slot of the StreamTable; a reused slot gets a new generation, so that stale ids are recognised.
struct StreamId {
  uint32_t slot = 0;
  uint32_t generation = 0;  // 0 = no stream
  bool valid() const { return generation != 0; }
  auto operator<=>(const StreamId&) const = default;
};

// Bounded: a new stream takes the slot of the least recently seen one. Not thread-safe.
class StreamTable {
 public:
  explicit StreamTable(size_t max_streams = 4096, size_t max_handles = 65536);

  // The stream of this thread and stem, made on first sight.
  StreamId of(uint64_t thread_id, uint64_t stem);
  // The stream that opened `handle`; invalid if it was never bound, or was forgotten since.
  StreamId of_handle(uint64_t handle) const;
  void bind_handle(uint64_t handle, StreamId stream);
  void unbind_handle(uint64_t handle);

  bool live(StreamId stream) const;
  uint64_t stem(StreamId stream) const;
  size_t capacity() const { return slots_.size(); }
  size_t size() const { return by_key_.size(); }

 private:
  struct Key {
    uint64_t thread_id = 0;
    uint64_t stem = 0;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const noexcept;
  };
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Slot {
    Key key;
    uint32_t generation = 0;
    uint32_t newer = kNone;
    uint32_t older = kNone;
  };
  void unlink(uint32_t slot);
  void link_newest(uint32_t slot);

  std::vector<Slot> slots_;
  uint32_t used_ = 0;
  uint32_t newest_ = kNone;
  uint32_t oldest_ = kNone;
  std::unordered_map<Key, uint32_t, KeyHash> by_key_;
  std::unordered_map<uint64_t, StreamId> handles_;
  size_t max_handles_;
};

// Decides whether an event continues the burst before it. A burst ends at a pause much longer than the pauses inside it.
class BurstClock {
 public:
  // Notes an event and returns whether it continues the burst. A burst's first two events may be `first_gap_ns` apart; later ones
  // 10 mean gaps, but at least `min_gap_ns` and at most `max_gap_ns`.
  bool tick(int64_t now, int64_t min_gap_ns, int64_t first_gap_ns, int64_t max_gap_ns);
  void reset() { last_ = kNever; }

 private:
  static constexpr int64_t kNever = INT64_MIN;
  int64_t last_ = kNever;
  int64_t mean_gap_ns_ = -1;
};

// Threads of one stem that began together are one pool that works through one list: their events form one sequence. Threads that
// began apart are independent requests. Bounded, not thread-safe.
class CohortTracker {
 public:
  explicit CohortTracker(int64_t joined_start_ns = 5'000'000, int64_t idle_ns = 1'000'000'000,
                         size_t max_members = 4096);

  // Returns the cohort of `member` (a thread or stream of that stem), which is active now.
  uint64_t cohort(uint64_t stem, uint64_t member, int64_t now);

 private:
  struct Member {
    uint64_t cohort = 0;
    int64_t last_seen = 0;
  };
  struct Newest {
    uint64_t cohort = 0;
    int64_t last_start = 0;
  };
  void forget_idle(int64_t now);

  int64_t joined_start_ns_;
  int64_t idle_ns_;
  size_t max_members_;
  uint64_t next_cohort_ = 1;
  std::unordered_map<uint64_t, Member> members_;  // key: hash of (stem, member)
  std::unordered_map<uint64_t, Newest> newest_;   // by stem
};

}  // namespace kvcachefs

template <>
struct std::hash<kvcachefs::ChainKey> {
  size_t operator()(kvcachefs::ChainKey key) const noexcept { return static_cast<size_t>(key.value); }
};
