// The fixture for tests of the lanes: the committer with its journal, bodies in RAM, and extents on a volume in memory. No store.
#pragma once

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "store/commit/testing/commit_fixture.h"
#include "store/load/body_reader.h"
#include "store/writeback/bulk_lane.h"
#include "store/writeback/urgent_lane.h"

namespace kvcachefs {

class WritebackFixture : public CommitFixture {
 protected:
  static constexpr uint64_t kPackBelow = kMiB, kExtentBytes = 2 * kMiB;

  WritebackFixture() : CommitFixture(given()) {
    EXPECT_TRUE(options.resolve({.backing_bytes = kGiB, .memory_bytes = kGiB, .network_volume = false}, "/index"));
    dirty.set_seal_ended([this] { urgent.requeue_deferred(); });
  }

  static StoreOptions given() {
    StoreOptions options;
    options.pack_below_bytes = kPackBelow;
    options.inline_below_bytes = 1024;
    return options;
  }

  // --- what clients do ---
  static std::vector<std::byte> bytes_of(uint64_t size_bytes, uint64_t seed) {
    std::vector<std::byte> bytes(size_bytes);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 4096 + seed * 7 + 1) % 251);
    return bytes;
  }
  void write_at(const ObjectPtr& object, uint64_t offset, std::span<const std::byte> bytes) {
    const uint64_t end = offset + bytes.size();
    const auto lock = object->lock();
    ASSERT_TRUE(changes.reserve_space(*object, std::max(object->size_bytes, end)));
    for (size_t unit = unit_of(offset); unit <= unit_of(end - 1); ++unit) {
      const uint64_t start = unit * kUnitBytes, begin = std::max(offset, start) - start, stop = std::min(end - start, kUnitBytes);
      Reservation memory = pool.try_reserve(std::max<uint64_t>(object->memory_for_piece(unit, begin, stop), 1));
      ASSERT_GT(memory.bytes(), 0u);
      object->place_piece(unit, begin, stop, bytes.data() + (start + begin - offset), memory);
    }
    object->size_bytes = std::max(object->size_bytes, end);
    changes.content_changed(object);
  }
  ObjectPtr write_new(const std::string& name, uint64_t size_bytes, uint64_t seed = 0) {
    const ObjectPtr object = make(name);
    write_at(object, 0, bytes_of(size_bytes, seed));
    return object;
  }

  // --- what the lanes do ---
  Snapshot snapshot_of(const ObjectPtr& object) {
    Snapshot snapshot;
    EXPECT_TRUE(sealer.begin_seal(object, Sealer::Promise::kKept, snapshot));
    return snapshot;
  }
  std::vector<SealedBody> seal_all(const std::vector<ObjectPtr>& objects, Status& status) {
    std::vector<Snapshot> snapshots;
    for (const ObjectPtr& object : objects) snapshots.push_back(snapshot_of(object));
    return sealer.seal(std::move(snapshots), target, status);
  }
  StatusCompletion into(Answer& answer) {
    return [&answer](Status status) {
      ++answer.count;
      answer.status = std::move(status);
    };
  }
  // Runs steps of the lanes and the committer until none has anything to do.
  void run() {
    for (int round = 0; round < 100; ++round) {
      const bool bulk_did = bulk.step(false), urgent_did = urgent.step();
      if (!bulk_did && !urgent_did && !committer->step()) return;
    }
    FAIL() << "it goes on for ever";
  }

  // --- what is true then ---
  const Body& journaled(const ObjectPtr& object) { return index.objects.at(object->id).body; }
  // The journaled body is on the volume, with these bytes.
  bool holds(const ObjectPtr& object, const std::vector<std::byte>& expected) {
    const ObjectRecord& row = index.objects.at(object->id);
    if (row.body.size_bytes != expected.size()) return false;
    if (row.body.place.kind == PlaceKind::kInline)
      return row.body.inline_bytes.size() == expected.size() && std::memcmp(row.body.inline_bytes.data(), expected.data(), expected.size()) == 0;
    Snapshot stored;
    stored.size_bytes = row.body.size_bytes;
    stored.base = row.body;
    stored.base_valid_bytes = row.body.size_bytes;
    for (size_t unit = 0; unit < div_ceil(expected.size(), kUnitBytes); ++unit) {
      auto block = reader.fetch(stored, unit, [this](uint64_t bytes) { return pool.reserve_to_seal(bytes); });
      if (!block || std::memcmp((*block)->data(), expected.data() + unit * kUnitBytes, unit_length(expected.size(), unit)) != 0) return false;
    }
    return true;
  }

  BodyReader reader{extents, counters};
  Sealer sealer{{*volume, extents, reader, cache, tree, index, quarantine, queue, changes, space, dead, options, counters, kExtentBytes}};
  VolumeRefusals refusals{clock, space};
  Spiller spiller{{dirty, tree, changes, extents, pool, refusals, health, counters}};
  Relocator relocator{{extents, unmarked, tree, quarantine, changes, space, clock}};
  BulkLane bulk{{dirty, tree, changes, accesses, sealer, spiller, relocator, queue, refusals, pool, cache, health, options, clock, false}};
  UrgentLane urgent{{sealer, relocator, extents, queue, refusals, health}};
  PackTarget target;  // of calls of the sealer without a lane
};

}  // namespace kvcachefs
