// The status of a store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvcachefs {

// One flat set of counters and facts; fs/ and tools/ render it. fs/STATUS.md describes each field.
struct StoreStatus {
  std::string node, volume_root, volume_filesystem, index_directory, state, state_reason;
  std::string volume_uuid;
  uint32_t epoch = 0;
  int64_t state_since_ns = 0;
  bool io_uring = false, direct_io = false, punch_hole = false, network_volume = false;
  bool locks_are_local = false;  // the volume's locks do not reach beyond this machine
  uint64_t limit_bytes = 0, physical_bytes = 0, live_bytes = 0, reclaimable_bytes = 0, staged_bytes = 0,
           reserve_bytes = 0;
  uint64_t claim_bytes = 0, wish_bytes = 0, unclaimed_bytes = 0;  // parts of limit_bytes: this node's, this node's wish, no node's
  uint64_t objects_total = 0, directories = 0, objects_inline = 0, objects_packed = 0, objects_solo = 0,
           objects_raw = 0, objects_quarantined = 0, objects_in_ram = 0;
  bool memory_files = false;
  uint64_t memory_limit_bytes = 0, memory_used_bytes = 0, memory_dirty_bytes = 0, waiting_writes = 0;
  uint64_t memory_mapped_bytes = 0, waiting_bytes = 0, waiting_parked_bytes = 0;
  uint64_t memory_file_bytes = 0, memory_file_spare_bytes = 0, memory_file_passed_bytes = 0;
  uint64_t memory_files_taken = 0, memory_files_refused = 0, memory_files_moved = 0;
  uint64_t probe_hits = 0, probe_misses = 0, probe_misses_never_seen = 0, probe_misses_evicted = 0, probe_misses_quarantined = 0,
           lookups_before_store = 0;
  // Of the last minute, hour and day; no value if nothing was counted.
  std::optional<double> hit_ratio_minute, hit_ratio_hour, hit_ratio_day;
  std::optional<double> evicted_ratio_minute, evicted_ratio_hour, evicted_ratio_day;  // of the misses
  uint64_t opens = 0, passthrough_opens = 0, memory_file_opens = 0;
  uint64_t read_bytes_from_ram = 0, read_bytes_from_volume = 0, read_requests = 0;
  uint64_t prefetch_read_bytes = 0, prefetch_used_bytes = 0, prefetch_wasted_bytes = 0, prefetch_late_bytes = 0,
           prefetch_kernel_bytes = 0;
  uint64_t write_received_bytes = 0, write_volume_bytes = 0, write_requests = 0;
  uint64_t sealed_bodies = 0, deduplicated_bodies = 0, journal_bytes = 0, journal_batches = 0, syncs = 0;
  uint64_t index_commits = 0, checkpoints = 0, reclaimed_bytes = 0, punched_ranges = 0, removed_extents = 0;
  uint64_t moved_bodies = 0, moved_bytes = 0;  // out of packs that were mostly dead
  uint64_t lost_names = 0;                     // removed because clients see another node's file of the same name
  uint64_t eviction_objects = 0, eviction_bytes = 0, eviction_leases_broken = 0, eviction_refused = 0, eviction_came_back = 0;
  uint64_t eviction_known_objects = 0, eviction_known_units = 0, eviction_memory_bytes = 0;
  uint64_t eviction_remembered_units = 0;
  // The other nodes of the volume, by name.
  struct Peer {
    std::string node, host, state, reason;
    uint32_t epoch = 0;
    int64_t silent_ms = 0;  // since the peer was last seen alive
    int64_t stands_ms = 0;  // for so long its HEAD has not changed, though it could be read all the time
    bool is_unanswered = false;  // this node removed or changed files of the peer, and the peer has not answered
    uint64_t bytes_behind = 0, objects = 0, physical_bytes = 0, claim_bytes = 0, polls = 0, batches = 0, reloads = 0, records_left_out = 0;
  };
  std::vector<Peer> peers;
  bool capacity_is_short = false;  // all nodes together wish for more than there is, or the file system has less free than keep_free
  uint64_t held_for_peers_bytes = 0;  // dead, but kept until the other nodes have read that it was given up
  std::string held_for_peer;          // the node that is furthest behind, and the reason if known
  std::string peers_problem;  // why this node cannot publish its state to the others; empty: it can
  struct Evicted {
    uint64_t objects = 0, bytes = 0;
  };
  Evicted evicted_ahead, evicted_waited_for, evicted_lease_broken;                      // by reason
  Evicted evicted_below_minute, evicted_below_hour, evicted_below_day, evicted_older;  // by the time since the last use
  int64_t coldest_age_ms = -1;  // of the files that may be evicted; -1: there are none
  uint64_t pinned_objects = 0, pinned_bytes = 0, leased_objects = 0;
  uint64_t room_waits = 0, room_wait_ms = 0, room_wait_longest_ms = 0;  // calls that waited for room on the volume
  uint64_t errors_checksum = 0, errors_volume_read = 0, errors_volume_write = 0, errors_journal = 0, errors_index = 0,
           errors_no_space = 0;
  bool scrub_running = false;
  int64_t scrub_ended_ns = 0;  // realtime, of the last whole pass; 0: none yet
  uint64_t scrub_passes = 0, scrub_bodies = 0, scrub_bytes = 0, scrub_damaged = 0, scrub_unreadable = 0;
  uint64_t open_handles = 0;
  // Recovery at this mount.
  uint64_t replayed_batches = 0, dropped_bodies = 0, records_left_out = 0, verified_bodies = 0, swept_files = 0;
  bool index_rebuilt = false, unclean_start = false;
};

// Whether other nodes still need space or files that this node gave up.
struct FollowedByPeers {
  std::string waits_for;                 // a node that does, and why; empty: there is none
  std::vector<std::string> left_behind;  // absent or silent nodes that have not read all of it; they are not waited for
};

}  // namespace kvcachefs
