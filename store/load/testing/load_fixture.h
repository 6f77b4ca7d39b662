// The fixture for tests of reading bodies: a volume in memory with bodies on it, a fake index that names them, the tree and the
// cache. Nothing is journaled, and there are no threads.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/base/checksum.h"
#include "store/base/mutex.h"
#include "store/base/units.h"
#include "store/cache/body_cache.h"
#include "store/commit/quarantine.h"
#include "store/extent/extents.h"
#include "store/index/testing/fake_index.h"
#include "store/load/body_reader.h"
#include "store/load/loader.h"
#include "store/load/unverified_bodies.h"
#include "store/tree/tree.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {

class LoadFixture : public ::testing::Test {
 protected:
  LoadFixture() {
    space.configure(kGiB, 0);
    index.put_object(record(kRootId, S_IFDIR | 0755));
  }
  ~LoadFixture() override { tree.clear(); }

  static ObjectRecord record(ObjectId id, uint32_t mode) {
    ObjectRecord made;
    made.id = id;
    made.attributes.mode = mode;
    made.nlink = 1;
    return made;
  }
  static std::vector<std::byte> bytes_of(uint64_t size_bytes, uint64_t seed) {
    std::vector<std::byte> bytes(size_bytes);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 31 + i / 4096 + seed * 7 + 1) % 251);
    return bytes;
  }
  // Journaled bodies, one behind the other in one extent.
  std::vector<ObjectId> put_bodies(PlaceKind kind, const std::vector<uint64_t>& sizes) {
    auto made = extents.make(kind);
    EXPECT_TRUE(made) << made.error().message;
    uint64_t offset = kind == PlaceKind::kPacked ? kBlockBytes : 0;
    std::vector<ObjectId> ids;
    for (uint64_t size_bytes : sizes) {
      const ObjectId id{next_id++};
      std::vector<std::byte> bytes = bytes_of(size_bytes, id.value);
      ObjectRecord row = record(id, S_IFREG | 0644);
      row.body.size_bytes = size_bytes;
      row.body.version = 1;
      row.body.place = {kind, made->id, offset, size_bytes};
      for (uint64_t at = 0; at < size_bytes; at += kUnitBytes)
        row.body.checksums.push_back(checksum(std::span(bytes).subspan(at, std::min(kUnitBytes, size_bytes - at))));
      const std::span<const std::byte> piece(bytes);
      EXPECT_TRUE(made->file->write({&piece, 1}, offset));
      offset += align_up(size_bytes, kBlockBytes);
      index.put_name(kRootId, "body-" + std::to_string(id.value), id, S_IFREG);
      index.put_object(std::move(row));
      ids.push_back(id);
    }
    return ids;
  }
  ObjectId put_body(uint64_t size_bytes, PlaceKind kind = PlaceKind::kPacked) { return put_bodies(kind, {size_bytes}).front(); }
  ObjectPtr object(ObjectId id) {
    auto found = tree.get(id);
    EXPECT_TRUE(found) << found.error().message;
    return *found;
  }
  std::string path_of(ObjectId id) {
    const Place& place = index.objects.at(id).body.place;
    return extents.path(place.extent, place.kind);
  }
  // Flips bits of the body's byte on the volume; once more: it is right again.
  void flip(ObjectId id, uint64_t at) {
    ASSERT_TRUE(sim->corrupt(path_of(id), index.objects.at(id).body.place.offset + at, std::byte{0x40}));
  }
  // All of it is in RAM, with the bytes that were written.
  bool is_right_in_ram(const ObjectPtr& body) {
    const std::vector<std::byte> expected = bytes_of(body->size_bytes, body->id.value);
    const auto lock = body->lock();
    const ReadPlan plan = body->plan_read(0, expected.size());
    if (plan.lacks_units) return false;
    size_t at = 0;
    for (const iovec& piece : plan.reply.pieces) {
      if (at + piece.iov_len > expected.size() || std::memcmp(piece.iov_base, expected.data() + at, piece.iov_len) != 0) return false;
      at += piece.iov_len;
    }
    return at == expected.size();
  }
  static size_t units_of(const ObjectPtr& body) { return div_ceil(body->size_bytes, kUnitBytes); }
  LoadRange all_of(const ObjectPtr& body) { return {0, units_of(body), units_of(body)}; }
  // The answer of a load; count 0: it has not ended.
  struct Answer {
    int count = 0;
    Status status;
    bool is_good() const { return count == 1 && status.has_value(); }
    bool is_error(Code code) const { return count == 1 && !status && status.error().code == code; }
  };
  StatusCompletion into(Answer& answer) {
    return [&answer](Status status) {
      ++answer.count;
      answer.status = std::move(status);
    };
  }
  void load(const ObjectPtr& body, Answer& answer) {
    loader.load(body, all_of(body), MemoryFor::kReader, std::make_shared<WantedUnits>(), into(answer));
  }
  std::vector<SealedBody> quarantined() {
    std::vector<SealedBody> bodies;
    for (CommitRequest& request : commits.take())
      for (SealedBody& body : request.bodies)
        if (body.body.quarantined || body.snapshot.object->base.quarantined) bodies.push_back(std::move(body));
    return bodies;
  }

  uint64_t next_id = 100;
  InnerMutex reads_mutex;  // while several threads read
  std::vector<VolumeCall> reads;
  std::function<Fault(const VolumeCall&)> on_read, on_write, on_sync;
  std::function<void()> on_open;
  std::shared_ptr<SimVolume> sim = make_sim_volume({.direct_io = false});
  std::shared_ptr<Volume> volume = make_fault_volume(sim, [this](const VolumeCall& call) {
    if (call.kind == VolumeCall::Kind::kOpen && on_open) on_open();
    if (call.kind == VolumeCall::Kind::kWrite && on_write) return on_write(call);
    if (call.kind == VolumeCall::Kind::kSync && on_sync) return on_sync(call);
    if (call.kind != VolumeCall::Kind::kRead) return Fault{};
    {
      const std::lock_guard lock(reads_mutex);
      reads.push_back(call);
    }
    return on_read ? on_read(call) : Fault{};
  });

  ManualClock clock{1'000'000'000'000};
  FakeIndex index;
  Space space;
  DeadSpace dead{space};
  RecordSpace records{space, 64 * kMiB};
  AccessTracker accesses{[](ObjectId) { return std::nullopt; }, 0, 0};
  Wakeup wakeup;
  WorkQueue work{wakeup};
  Extents extents{volume, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
  Discards discards{{space, dead, work, extents}};
  DirtyQueue dirty;
  MemoryPool pool{16 * kMiB, kSealingBytes};
  MemoryFiles files{pool};
  LiveOptions options{StoreOptions{}};
  MemoryFilePolicy policy{{files, options, clock}};
  Tree tree{{index, clock, accesses, space, records, discards, dirty, pool, true}};
  Counters counters;
  Resumer resumer{{clock, [] {}}};
  PageWarmer warmer{{pool, files, [] {}}};
  BodyCache cache{{pool, files, tree, accesses, resumer, warmer, counters, false}};
  CommitQueue commits;
  Quarantine quarantine{{tree, commits, extents, space, counters}};
  Opener opener;
  Loader loader{{*volume, extents, tree, cache, policy, quarantine, opener, work, counters, clock}};
  BodyReader reader{extents, counters};
  BodyReader::Memory sealing_memory = [this](uint64_t bytes) { return pool.reserve_to_seal(bytes); };
};

}  // namespace kvcachefs
