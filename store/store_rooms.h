// The parts of a store: one object of each class, in the order in which they need one another, so that each is destroyed before what it
// needs. StoreImpl has them as a private base, builds them in start(), and lends them to OtherNodes and StoreThreads, to no other class.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "store/api/counters.h"
#include "store/api/gone_names.h"
#include "store/api/live_options.h"
#include "store/api/probe_counts.h"
#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/health.h"
#include "store/base/mutex.h"
#include "store/base/opener.h"
#include "store/base/work_queue.h"
#include "store/cache/body_cache.h"
#include "store/cache/file_mover.h"
#include "store/cache/file_policy.h"
#include "store/cache/page_warmer.h"
#include "store/cache/resumer.h"
#include "store/cache/waiting_bytes.h"
#include "store/chain/access_tracker.h"
#include "store/commit/commit_queue.h"
#include "store/commit/committer.h"
#include "store/commit/journal_room.h"
#include "store/commit/quarantine.h"
#include "store/commit/record_waiters.h"
#include "store/commit/unmarked_bodies.h"
#include "store/extent/extents.h"
#include "store/index/index.h"
#include "store/journal/journal.h"
#include "store/load/backing_files.h"
#include "store/load/body_reader.h"
#include "store/load/loader.h"
#include "store/load/unverified_bodies.h"
#include "store/lookups.h"
#include "store/memory/memory_file.h"
#include "store/memory/pool.h"
#include "store/object/body_changes.h"
#include "store/object/dirty_queue.h"
#include "store/readahead/read_ahead.h"
#include "store/requests/attribute_requests.h"
#include "store/requests/in_place_changes.h"
#include "store/requests/mapped_reads.h"
#include "store/requests/name_requests.h"
#include "store/requests/name_versions.h"
#include "store/requests/new_objects.h"
#include "store/requests/open_files.h"
#include "store/requests/read_requests.h"
#include "store/requests/rename_requests.h"
#include "store/requests/room_for_records.h"
#include "store/requests/write_requests.h"
#include "store/space/dead_space.h"
#include "store/space/discards.h"
#include "store/space/orphan_notes.h"
#include "store/space/raw_space.h"
#include "store/space/record_space.h"
#include "store/space/reserve.h"
#include "store/space/space.h"
#include "store/space/space_waiters.h"
#include "store/tree/stale_opens.h"
#include "store/tree/tree.h"
#include "store/upkeep/checkpointer.h"
#include "store/upkeep/compactor.h"
#include "store/upkeep/drainer.h"
#include "store/upkeep/eviction.h"
#include "store/upkeep/evictor.h"
#include "store/upkeep/index_rebuild.h"
#include "store/upkeep/keeper.h"
#include "store/upkeep/lost_names.h"
#include "store/upkeep/orphan_sweep.h"
#include "store/upkeep/peer_follower.h"
#include "store/upkeep/peer_touches.h"
#include "store/upkeep/reclaimer.h"
#include "store/upkeep/record_scrub.h"
#include "store/upkeep/scrubber.h"
#include "store/upkeep/volume_watch.h"
#include "store/volume/volume.h"
#include "store/writeback/bulk_lane.h"
#include "store/writeback/relocator.h"
#include "store/writeback/sealer.h"
#include "store/writeback/spiller.h"
#include "store/writeback/urgent_lane.h"
#include "store/writeback/volume_refusals.h"

namespace kvcachefs {

struct StoreRooms {
  StoreRooms(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock)
      : volume_(std::move(volume)), clock_(clock), stamps_(clock), options_(std::move(options)) {}

  const std::shared_ptr<Volume> volume_;
  RequestClock clock_;
  RunningClock running_clock_{clock_};  // ticked where the volume may have several nodes
  HybridClock stamps_;
  FileIdentity identity_;
  std::unique_ptr<VolumeLock> lock_;
  std::string index_directory_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<Extents> extents_;
  std::unique_ptr<JournalWriter> journal_;
  std::unique_ptr<Reserve> reserve_;
  std::optional<JournalRoom> journal_room_;
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<MemoryFiles> files_;
  std::optional<MemoryFilePolicy> file_policy_;
  StaleOpens stale_opens_{clock_};
  std::unique_ptr<Reclaimer> reclaimer_;
  std::unique_ptr<Evictor> evictor_;  // a listener of accesses_, so it comes before that
  PeerTouches touches_{clock_};       // likewise
  PeerLeases peer_leases_{clock_};    // likewise
  std::optional<LostNames> lost_names_;  // likewise; set where there may be other nodes
  std::unique_ptr<AccessTracker> accesses_;
  std::unique_ptr<IndexRebuild> index_rebuild_;

  LiveOptions options_;

  Space space_;
  DeadSpace dead_{space_};
  std::unique_ptr<RawSpace> raw_space_;
  std::unique_ptr<RecordSpace> record_space_;
  std::unique_ptr<WaitingBytes> waiting_bytes_;  // before objects and queues: they may hold waiting writes, whose bytes are given back to it
  Counters counters_;
  std::atomic<uint64_t> next_number_{1};

  GoneNames gone_names_;
  DirtyQueue dirty_;
  std::optional<BodyChanges> changes_;
  std::unique_ptr<Tree> tree_;
  std::optional<FileMover> file_mover_;
  std::optional<PageWarmer> page_warmer_;
  std::optional<BodyCache> cache_;

  VolumeRefusals refusals_{clock_, space_};
  CommitQueue commits_;
  UnsavedReadTimes unsaved_reads_;
  UnmarkedBodies unmarked_;
  std::optional<Quarantine> quarantine_;
  std::optional<RecordWaiters> record_waiters_;
  std::optional<Committer> committer_;

  std::optional<BodyReader> reader_;
  std::optional<UnverifiedBodies> unverified_;
  std::optional<Loader> loader_;
  std::optional<BackingFiles> backing_;
  std::optional<ReadAhead> read_ahead_;  // before the queues that may hold its reads: opener_, keeper_work_

  std::optional<Sealer> sealer_;
  std::optional<Scrubber> scrubber_;
  std::optional<Spiller> spiller_;
  std::optional<Relocator> relocator_;
  std::optional<BulkLane> bulk_;
  std::optional<UrgentLane> urgent_;

  Resumer resumer_{{clock_, [this] { dirty_.wake(/*hurry=*/true); }}};
  // Before the queues that may hold their requests: opener_, keeper_work_, space_waiters_.
  std::optional<ReadRequests> reads_;
  std::optional<MappedReads> mapped_;
  std::optional<InPlaceChanges> in_place_;
  std::optional<WriteRequests> writes_;
  std::optional<NewObjects> new_objects_;
  std::optional<RoomForRecords> room_for_records_;
  std::optional<NameVersions> versions_;
  std::optional<OpenFiles> open_files_;
  std::optional<AttributeRequests> attributes_;
  std::optional<NameRequests> names_;
  std::optional<RenameRequests> renames_;
  std::optional<Lookups> lookups_;

  Opener opener_;

  ProbeCounts probes_{clock_.monotonic_ns()};
  Health health_{clock_};
  Wakeup keeper_wakeup_;                     // makes the keeper's next step begin at once
  WorkQueue keeper_work_{keeper_wakeup_};
  std::optional<Discards> discards_;
  // Behind everything that a waiting call may hold and gives back when it is destroyed: memory, turns, bytes put aside.
  SpaceWaiters space_waiters_{space_, counters_.errors_no_space, running_clock_, [this] { keeper_->want_reclaim(); }};
  Backoff upkeep_backoff_{100'000'000, 5'000'000'000};
  OrphanNotes orphans_{dead_, space_};  // space that earlier lives left dead
  std::optional<Drainer> drainer_;
  std::optional<SharedCapacity> shared_capacity_;  // where the volume may have several nodes
  std::optional<Eviction> eviction_;
  std::optional<Compactor> compactor_;  // where the volume cannot punch holes
  std::optional<OrphanSweep> sweep_;
  std::optional<Checkpointer> checkpointer_;
  std::optional<VolumeWatch> watch_;
  std::optional<Keeper> keeper_;

  std::unique_ptr<NodeFence> fence_;     // null: there are no other nodes
  std::unique_ptr<PeerFollower> peers_;  // null: this volume has one node
};

}  // namespace kvcachefs
