// What a node's daemon tells the others about itself, beside its journal: two files in each epoch, which only that daemon writes and
// everybody reads. Each file has two slots, written in turn, in place and by direct I/O, so that one is always whole. Both are written when the
// file is made, so that a full volume silences nobody. Pure functions over bytes (store/FORMAT.md, "HEAD and ACKS").
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
  uint64_t counter = 0;                 // rises with each write; a reader takes the newer slot; while it stands the node is silent
  std::array<std::byte, 16> instance{};  // random, one for each life of the daemon
  std::string host, boot_id;            // where it runs
  JournalPosition journal_end;          // of the identity's epoch
  JournalPosition oldest_journal;       // start of the first file that is kept (offset 0)
  std::optional<HeadCheckpoint> checkpoint;  // the newest
  uint64_t physical_bytes = 0;           // that the node has on the volume
  uint64_t claim_bytes = 0;              // that the node may use
  uint64_t wish_bytes = 0;               // that the node would use
  uint64_t capacity_bytes = 0;           // of the whole volume, as its options say
  std::array<uint64_t, kAgeClasses> bytes_by_age{};  // class i: last used 2^(i-1) to 2^i seconds ago; the last class: all older
  std::string address;                   // for hints by datagram; empty: none
  bool operator==(const Head&) const;
};

// How far a node has followed the others. Of what it has not passed, or still has open, the others give no space back.
struct Acks {
  FileIdentity identity;
  uint64_t counter = 0;
  struct Peer {
    std::string node;
    JournalPosition applied;         // everything before this was applied
    std::vector<ObjectId> pinned;    // objects removed before that, and still open or being read here; ascending
    bool operator==(const Peer&) const = default;
  };
  std::vector<Peer> peers;  // by node
  bool operator==(const Acks&) const;
};

// Where in its file the slot for this counter lies.
uint64_t head_slot_offset(uint64_t counter);
uint64_t acks_slot_offset(uint64_t counter);

// Encodes one slot. kTooBig if it does not fit: the caller has to tell less.
Result<Bytes> encode_head(const Head& head);
Result<Bytes> encode_acks(const Acks& acks);
// Decodes the newer slot that is whole and of this identity. kCorrupt: neither is; kVersion: written by a newer program.
Result<Head> decode_head(const FileIdentity& identity, ByteSpan file);
Result<Acks> decode_acks(const FileIdentity& identity, ByteSpan file);

}  // namespace kvcachefs
