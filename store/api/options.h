// What a store can be told. Names and meanings are those of the mount options; fs/OPTIONS.md has the table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"
#include "store/base/units.h"

namespace kvcachefs {

enum class Durability : uint8_t {
  kNone,   // answered when safely in RAM; a crash of the daemon loses at most the last flush_interval_ms
  kClose,  // close and rename answer when written and journaled: a crash of the daemon loses nothing acknowledged
  kSync,   // ... and synced: nor does power loss
};
enum class Verify : uint8_t { kAuto, kAlways };
// When the read time of a file is set, at an open for reading.
enum class ReadTimes : uint8_t {
  kRelative,  // where it is not after the last change, or a day old (relatime)
  kNever,     // noatime
  kAlways,    // strictatime
};

// How batches of the journal are written.
enum class JournalOption : uint8_t {
  kAuto,    // in blocks on a network volume
  kPacked,  // one behind the other, through the page cache
  kBlocks,  // each in blocks of its own, by direct I/O
};

// What a store is opened for.
enum class Care : uint8_t {
  kNone,     // to be mounted
  kTend,     // by a daemon of another node, where that of this one is gone: what is due is done, also eviction, and nothing is stored
  kCollect,  // the same by a command, once: its part is put in order
  kRetire,   // ... and its names go, for the node leaves the volume
};

struct StoreOptions {
  uint64_t capacity_bytes = 0;           // 0: 90 % of the backing file system
  uint64_t keep_free_bytes = 0;          // 0: 5 % of the backing file system
  uint32_t capacity_percent = 90;        // used while capacity_bytes is 0
  uint32_t keep_free_percent = 5;        // used while keep_free_bytes is 0
  uint64_t memory_bytes = 0;             // 0: a quarter of the machine's RAM or of its cgroup's limit, at most 32 GiB
  Durability durability = Durability::kNone;
  Verify verify = Verify::kAuto;
  bool prefetch = true;                  // read ahead along the chains of what was written and read before
  uint64_t prefetch_ahead_bytes = 256 * kMiB;  // most that one reader is read ahead of
  uint64_t pack_below_bytes = 0;         // 0: 4 MiB where passthrough serves solo bodies, else, and on a network, 32 MiB
  uint64_t memory_file_min_bytes = 4 * kMiB;  // bodies in RAM from this size on are passed through from there; 0: none
  uint64_t inline_below_bytes = 0;       // bodies smaller than this live in the index; 0: none do
  uint64_t extent_bytes = 256 * kMiB;    // a pack extent is closed at this size
  uint64_t raw_above_bytes = 1 * kGiB;   // files sized beyond this are raw: 1:1 with a backing file
  uint64_t flush_interval_ms = 200;
  bool evict = true;                     // what is expected to be used least goes when the capacity is used up
  uint64_t peer_poll_ms = 250;           // how often the journals of other nodes are read
  uint64_t lease_ms = 5'000;             // what was probed or opened within it is not evicted; 0: no leases
  std::string policy = "prefix";         // of eviction, see store/evict
  bool statfs_headroom = false;          // df shows as free what eviction can give back, but for 70 % of the capacity
  uint64_t scrub_bytes_per_s = 16 * kMiB;  // at most so much is verified while no client asks for anything; 0: nothing is
  JournalOption journal = JournalOption::kAuto;
  bool read_only = false;
  ReadTimes read_times = ReadTimes::kRelative;
  std::string index_directory;           // empty: beside the node's files, or /var/lib/kvcachefs/... on a network volume
  std::string node;                      // empty: this machine's host name
  bool passthrough = true;               // whether the driver can serve solo bodies by passthrough (drives pack_below)
  uint64_t adopt_after_s = 600;          // a node whose daemon is gone for so long is tended by another where something needs it; 0: never
  Care care = Care::kNone;
  std::string tended_by;                 // with care: the node whose daemon does it, for people
  uint64_t fence_after_ms = 30'000;      // nothing was written to the volume for so long: is this still the daemon of its node?
  bool background = true;                // threads of its own; false: tests drive it by Store::pump()
};

// A command-line or setfattr option: "memory" "4G" -> StoreOptions. kNotFound if the name is not one of the store's.
// Messages name the option, the value and the allowed range.
Status set_store_option(StoreOptions& options, std::string_view name, std::string_view value);
// A whole number; what is out of range or none is refused, naming option, value and range. Also for the driver's options.
Result<uint64_t> parse_option_number(std::string_view name, std::string_view value, uint64_t least, uint64_t most);
// Can it be changed on a running store?
bool store_option_is_live(std::string_view name);
struct OptionText {
  std::string name;
  std::string value;
  bool live = false;
  std::string help;  // one line with the default and the allowed range
};
std::vector<OptionText> store_options_text(const StoreOptions& options);
// Contradictions between options.
Status check_store_options(const StoreOptions& options);

}  // namespace kvcachefs
