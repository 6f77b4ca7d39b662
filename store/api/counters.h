// The counters of a running store; store_status.cc copies them into StoreStatus.
#pragma once

#include <atomic>
#include <cstdint>

namespace kvcachefs {

struct Counters {
  std::atomic<uint64_t> opens{0}, passthrough_opens{0}, memory_file_opens{0},
      memory_files_taken{0}, memory_files_refused{0}, memory_files_moved{0}, read_requests{0}, read_bytes_from_ram{0},
      read_bytes_from_volume{0}, kernel_ahead_bytes{0}, write_requests{0}, write_received_bytes{0},
      write_volume_bytes{0}, sealed_bodies{0}, deduplicated_bodies{0}, journal_batches{0}, syncs{0}, index_commits{0},
      checkpoints{0}, reclaimed_bytes{0}, punched_ranges{0}, removed_extents{0}, moved_bodies{0}, moved_bytes{0}, lost_names{0}, errors_checksum{0},
      errors_volume_read{0}, errors_volume_write{0}, errors_journal{0}, errors_index{0}, errors_no_space{0},
      open_handles{0}, replayed_batches{0}, dropped_bodies{0}, records_left_out{0}, verified_bodies{0}, swept_files{0};
  std::atomic<uint64_t> durable_bytes{0};  // of bodies that syncs put on the medium, as of the last sync of the journal that succeeded
};

}  // namespace kvcachefs
