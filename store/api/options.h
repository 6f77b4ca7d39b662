// The options of a store. Names and meanings are those of the mount options; fs/OPTIONS.md has the table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/result.h"
#include "store/base/units.h"

namespace kvcachefs {

enum class Durability : uint8_t {
  kNone,   // calls are answered from RAM; a crash of the daemon loses at most the last flush_interval_ms
  kClose,  // close and rename are answered when written and journaled: a crash of the daemon loses nothing acknowledged
  kSync,   // ... and synced: power loss loses nothing acknowledged either
};
enum class Verify : uint8_t { kAuto, kAlways };
// When an open for reading sets the read time of the file.
enum class ReadTimes : uint8_t {
  kRelative,  // if the read time is not after the last change, or is an hour old (relatime, but for the hour)
  kNever,     // noatime
  kAlways,    // strictatime
};

// How batches of the journal are written.
enum class JournalOption : uint8_t {
  kAuto,    // in blocks on a network volume
  kPacked,  // one behind the other, through the page cache
  kBlocks,  // each in blocks of its own, by direct I/O
};

// The purpose for which a store is opened.
enum class Care : uint8_t {
  kNone,     // to be mounted
  kTend,     // a daemon of another node does the work that is due, also eviction, because this node's daemon is gone; it stores nothing
  kCollect,  // the same by a command, once: puts the node's part of the volume in order
  kRetire,   // ... and removes the node's names, because the node leaves the volume
};

struct StoreOptions {
  uint64_t capacity_bytes = 0;           // 0: 90 % of the backing file system
  uint64_t keep_free_bytes = 0;          // 0: 5 % of the backing file system
  uint32_t capacity_percent = 90;        // used while capacity_bytes is 0
  uint32_t keep_free_percent = 5;        // used while keep_free_bytes is 0
  uint64_t memory_bytes = 0;             // 0: a quarter of the machine's RAM or of its cgroup's limit, at most 32 GiB
  Durability durability = Durability::kNone;
  Verify verify = Verify::kAuto;
  bool prefetch = true;                  // read ahead along the chains of bodies written and read before
  uint64_t prefetch_ahead_bytes = 256 * kMiB;  // limit of reading ahead for one reader
  uint64_t pack_below_bytes = 0;         // 0: 4 MiB where passthrough serves solo bodies; 32 MiB elsewhere and on a network
  uint64_t memory_file_min_bytes = 4 * kMiB;  // bodies in RAM of at least this size are passed through from there; 0: none
  uint64_t inline_below_bytes = 0;       // bodies smaller than this are stored in the index; 0: none are
  uint64_t extent_bytes = 256 * kMiB;    // a pack extent is closed at this size
  uint64_t raw_above_bytes = 1 * kGiB;   // files sized beyond this are raw: 1:1 with a backing file
  uint64_t flush_interval_ms = 200;
  bool evict = true;                     // when the capacity is used up, evict the chunks that are expected to be used least
  uint64_t peer_poll_ms = 250;           // how often the journals of other nodes are read
  uint64_t lease_ms = 5'000;             // a file is not evicted for so long after a probe or an open; 0: no leases
  std::string policy = "prefix";         // of eviction, see store/evict
  bool statfs_headroom = false;          // df shows as free what eviction can give back, but for 70 % of the capacity
  uint64_t scrub_bytes_per_s = 16 * kMiB;  // rate of verifying bodies while clients send no requests; 0: no scrubbing
  JournalOption journal = JournalOption::kAuto;
  bool read_only = false;
  bool create = true;                    // make a volume where there is none; false: refuse, for the volume's file system may not be mounted
  ReadTimes read_times = ReadTimes::kRelative;
  std::string index_directory;           // empty: beside the node's files, or /var/lib/kvcachefs/... on a network volume
  std::string node;                      // empty: this machine's host name
  bool passthrough = true;               // whether the driver can serve solo bodies by passthrough (drives pack_below)
  uint64_t adopt_after_s = 600;          // a node whose daemon has been gone for so long is tended by another if that is needed; 0: never
  Care care = Care::kNone;
  std::string tended_by;                 // with care: the node whose daemon does it, for people
  uint64_t fence_after_ms = 30'000;      // after so long without a write to the volume: check that this is still its node's daemon
  bool background = true;                // the store has threads of its own; false: tests drive it by Store::pump()
};

// Sets an option from text (command line or setfattr), for example "memory", "4G". kNotFound if the store has no such option.
// Messages name the option, the value and the allowed range.
Status set_store_option(StoreOptions& options, std::string_view name, std::string_view value);
// Parses a whole number. If it is none or out of range the error names option, value and range. Also for the driver's options.
Result<uint64_t> parse_option_number(std::string_view name, std::string_view value, uint64_t least, uint64_t most);
// Whether the option can be changed on a running store.
bool store_option_is_live(std::string_view name);
struct OptionText {
  std::string name;
  std::string value;
  bool live = false;
  std::string help;  // one line with the default and the allowed range
};
std::vector<OptionText> store_options_text(const StoreOptions& options);
// Fails if options contradict each other.
Status check_store_options(const StoreOptions& options);

}  // namespace kvcachefs
