// What the daemon of a node tells the others of itself, beside its journal: two files of each epoch, written by its daemon alone,
// read by everybody. Each is two slots, which are written in turn, in place and by direct I/O, so that one is always whole; both are
// written when the file is made, so that a full volume silences nobody. Pure functions over bytes (store/FORMAT.md, "HEAD and ACKS").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/records.h"
#include "store/base/result.h"
#include "store/base/units.h"
#include "store/journal/journal.h"

namespace kvcachefs {

inline constexpr size_t kHeadSlotBytes = kBlockBytes;
inline constexpr size_t kAcksSlotBytes = 8 * kBlockBytes;
inline constexpr size_t kAgeClasses = 24;

struct HeadCheckpoint {
  uint32_t epoch = 0;
  uint64_t seq = 0;
  bool operator==(const HeadCheckpoint&) const = default;
};

// How a node is doing.
struct Head {
  FileIdentity identity;
  uint64_t counter = 0;                 // rises with each writing; a reader takes the newer slot, and a node whose counter stands is silent
  std::array<std::byte, 16> instance{};  // random, of this life of the daemon
  std::string host, boot_id;            // where it runs
  JournalPosition journal_end;          // of the identity's epoch
  JournalPosition oldest_journal;       // the first file that is kept (its offset is 0)
  std::optional<HeadCheckpoint> checkpoint;  // the newest
  uint64_t physical_bytes = 0;           // that it has on the volume
  uint64_t claim_bytes = 0;              // that it may have
  uint64_t wish_bytes = 0;               // that it would have
  uint64_t capacity_bytes = 0;           // of the whole volume, as its options say
  std::array<uint64_t, kAgeClasses> bytes_by_age{};  // last used less than 2^i seconds ago, and not less than half of that; the last: all older
  std::string address;                   // for hints by datagram; empty: none
  bool operator==(const Head&) const;
};

// How far it has followed the others. What it has not passed, or still has open, the others do not give back.
struct Acks {
  FileIdentity identity;
  uint64_t counter = 0;
  struct Peer {
    std::string node;
    JournalPosition applied;         // everything before it
    std::vector<ObjectId> pinned;    // removed before that, and still open or being read here; ascending
    bool operator==(const Peer&) const = default;
  };
  std::vector<Peer> peers;  // by node
  bool operator==(const Acks&) const;
};

// Where in its file the slot of this counter lies.
uint64_t head_slot_offset(uint64_t counter);
uint64_t acks_slot_offset(uint64_t counter);

// One slot. kTooBig if it does not fit: the caller tells less.
Result<Bytes> encode_head(const Head& head);
Result<Bytes> encode_acks(const Acks& acks);
// Of the two slots of a file the newer one that is whole and of this identity. kCorrupt: neither is; kVersion: of a newer program.
Result<Head> decode_head(const FileIdentity& identity, ByteSpan file);
Result<Acks> decode_acks(const FileIdentity& identity, ByteSpan file);

}  // namespace kvcachefs
