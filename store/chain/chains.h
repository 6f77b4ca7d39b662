// The logic behind the room's face: takes all reports of probes, creations, publications, opens, reads and loads, and returns
// plans, layout orders and rows to persist. Single-threaded: the caller holds one lock around each call. No call blocks, except
// in the loader of successor rows (one index lookup).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/types.h"
#include "store/chain/accounting.h"
#include "store/chain/announcements.h"
#include "store/chain/layout_order.h"
#include "store/chain/planner.h"
#include "store/chain/stream.h"
#include "store/chain/successors.h"

namespace kvcachefs {

struct ChainsOptions {
  PlannerOptions planner;
  size_t successor_memory_bytes = size_t{64} << 20;  // a million rows; untouched pages cost nothing
  size_t max_streams = 4096;
  size_t max_sibling_names = 65536;
};

class Chains {
 public:
  Chains(ChainsOptions options, SuccessorTable::Loader loader);

  // `thread_id`: the client's thread; `name`: the stem of the name it uses (file_stem). An absent name has an invalid id.
  // `size_bytes`: of the object, 0 if unknown.
  void on_probe(uint64_t thread_id, NameStem name, ChainKey key, ObjectId id, uint64_t size_bytes, int64_t now);

  // `handle` = 0: this kind of open has no handle. Later reads through the handle count for this stream.
  void on_open(uint64_t thread_id, NameStem name, uint64_t handle, ObjectId id, uint64_t size_bytes, int64_t now);
  void on_read(uint64_t handle, ObjectId id, uint64_t offset, uint64_t length, int64_t now);
  void on_close(uint64_t handle, ObjectId id, int64_t now);

  // The thread creates the name `key`, or renames to it. Call before on_create and on_publish.
  void on_made(uint64_t thread_id, NameStem name, ChainKey key);
  // Call at create, with the stem of the created name (usually a temporary one). The result goes into LayoutItem.
  uint64_t on_create(uint64_t thread_id, NameStem name, int64_t now);
  // `key` names `id` from now on.
  void on_publish(ChainKey key, NameStem name, ObjectId id);
  // True if clients asked for the name before: it has a position, which on_publish() uses.
  bool announced(ChainKey key) const { return announcements_.announced(key); }
  // The order of one flush, learned as write order. In two steps: order_of(), then learn(), which may look up rows and take its
  // time.
  std::vector<ObjectId> lay_out(std::span<const LayoutItem> items);
  LayoutOrder order_of(std::span<const LayoutItem> items) { return layout_order(items, announcements_, write_tails_); }
  void learn(std::span<const std::pair<ObjectId, ObjectId>> write_links);

  // See PrefetchPlanner for these.
  void on_loaded(ObjectId id, uint64_t bytes, int64_t latency_ns, int64_t now);
  void on_skipped(ObjectId id, SkipReason reason) { planner_.on_skipped(id, reason); }
  void on_removed(ObjectId id) { planner_.on_removed(id); }
  void on_deleted(ObjectId id) { planner_.on_deleted(id); }
  bool wants_plan() const { return planner_.wants_plan(); }
  Plan plan(int64_t now, uint64_t free_bytes) { return planner_.plan(now, free_bytes); }
  std::optional<int64_t> deadline() const { return planner_.deadline(); }
  bool about_to_be_used(ObjectId id) const { return planner_.about_to_be_used(id); }
  void set_ahead_max_bytes(uint64_t bytes) { planner_.set_ahead_max_bytes(bytes); }  // 0 = no prefetch
  void set_total_max_bytes(uint64_t bytes) { planner_.set_total_max_bytes(bytes); }

  std::vector<std::pair<ObjectId, SuccessorRow>> drain_dirty(size_t max) { return successors_.drain_dirty(max); }
  std::vector<std::pair<ObjectId, SuccessorRow>> drain_dirty_of(std::span<const ObjectId> ids) {
    return successors_.drain_dirty_of(ids);
  }
  void keep_dirty(ObjectId id, const SuccessorRow& row) { successors_.keep_dirty(id, row); }
  size_t dirty_count() const { return successors_.dirty_count(); }
  std::optional<SuccessorRow> row(ObjectId id) { return successors_.row(id); }
  const PrefetchTotals& totals() const { return accounting_.totals(); }
  PrefetchState state(ObjectId id) const { return accounting_.state(id); }
  const VolumeEstimator& volume() const { return planner_.volume(); }
  size_t live_runs() const { return planner_.live_runs(); }
  ChainsSummary summary(int64_t now) const;

 private:
  ChainsOptions options_;
  StreamTable streams_;
  SuccessorTable successors_;
  Announcements announcements_;
  PrefetchAccounting accounting_;
  PrefetchPlanner planner_;
  WriteSequences write_sequences_;
  WriteTails write_tails_;
  std::unordered_map<uint64_t, ObjectId> sibling_names_;  // NameStem::sibling -> one object of the ring
  std::deque<uint64_t> sibling_order_;
};

}  // namespace kvcachefs
