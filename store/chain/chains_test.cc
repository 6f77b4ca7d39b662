#include "store/chain/chains.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

namespace kvcachefs {
namespace chains_test {

constexpr uint64_t kChunk = 1 << 20;
constexpr int64_t kMillisecond = 1'000'000;
constexpr uint64_t kRankStride = 1'000'000;
constexpr ObjectId kDirectory{3};

// A mount with one model: chunk `n` of rank `r` is object r * kRankStride + n + 1.
class Mount {
 public:
  explicit Mount(ChainsOptions options = {}) : chains(options, [this](ObjectId id) { return load_row(id); }) {}

  static ObjectId id(uint64_t n, uint64_t rank = 0) { return ObjectId{rank * kRankStride + n + 1}; }
  static std::string name(uint64_t n, uint64_t rank = 0) {
    char text[64];
    std::snprintf(text, sizeof text, "%032llx_r%llu.bin", static_cast<unsigned long long>(n + 0x1234567890),
                  static_cast<unsigned long long>(rank));
    return text;
  }
  static ChainKey key(uint64_t n, uint64_t rank = 0) { return chain_key(kDirectory, name(n, rank)); }
  static NameStem stem(uint64_t n, uint64_t rank = 0) { return file_stem(kRootStem, name(n, rank)); }

  void write(uint64_t thread, std::vector<uint64_t> chunks, uint64_t rank = 0) {
    std::vector<LayoutItem> items;
    for (uint64_t n : chunks) {
      now += kMillisecond / 2;
      items.push_back({id(n, rank), key(n, rank), stem(n, rank).stem,
                       chains.on_create(thread, file_stem(kRootStem, "temporary.tmp"), now), ++arrivals});
      chains.on_publish(key(n, rank), stem(n, rank), id(n, rank));
    }
    laid_out = chains.lay_out(items);
    now += 3'000 * kMillisecond;  // the next events are another burst
  }
  void write_chain(uint64_t first, uint64_t end, uint64_t rank = 0) { write(50 + rank, range(first, end), rank); }
  static std::vector<uint64_t> range(uint64_t first, uint64_t end) {
    std::vector<uint64_t> out;
    for (; first < end; ++first) out.push_back(first);
    return out;
  }

  void probe(uint64_t thread, uint64_t n, bool present, uint64_t rank = 0) {
    now += 20'000;
    chains.on_probe(thread, stem(n, rank), key(n, rank), present ? id(n, rank) : ObjectId{},
                    present ? probed_bytes : 0, now);
    pump();
  }
  // Opens and reads the whole chunk; true if it was in RAM.
  bool read(uint64_t thread, uint64_t n, uint64_t rank = 0, int64_t pause_ns = kMillisecond) {
    const ObjectId object = id(n, rank);
    now += pause_ns;
    chains.on_open(thread, stem(n, rank), ++handles, object, chunk_bytes, now);
    const bool hit = in_ram.contains(object);
    if (!hit) {
      std::erase(loading, object);
      in_ram.insert(object);
      chains.on_loaded(object, chunk_bytes, demand_latency_ns, now);
    }
    chains.on_read(handles, object, 0, chunk_bytes, now);
    chains.on_close(handles, object, now);
    pump();
    return hit;
  }
  void pump() {
    if (auto due = chains.deadline(); !chains.wants_plan() && (!due || now < *due)) return;
    Plan plan = chains.plan(now, free_bytes);
    for (ObjectId object : plan.cancels) {
      ++cancelled;
      EXPECT_EQ(std::erase(loading, object), 1u) << object.value;
      chains.on_skipped(object, SkipReason::kCancelled);
    }
    for (const PlannedLoad& load : plan.loads) {
      EXPECT_EQ(std::count(loading.begin(), loading.end(), load.id), 0) << load.id.value;
      planned.push_back(load);
      if (in_ram.contains(load.id)) {
        chains.on_skipped(load.id, SkipReason::kResident);
      } else {
        loading.push_back(load.id);
      }
    }
    if (instant) finish_loads();
  }
  void finish_loads(int64_t latency_ns = kMillisecond) {
    for (ObjectId object : std::exchange(loading, {})) {
      in_ram.insert(object);
      chains.on_loaded(object, chunk_bytes, latency_ns, now);
    }
  }
  void drop_ram() {
    for (ObjectId object : std::exchange(in_ram, {})) chains.on_removed(object);
  }
  void persist() {
    for (auto& [object, row] : chains.drain_dirty(SIZE_MAX)) disk[object] = to_record(object, row);
  }
  std::optional<SuccessorRow> load_row(ObjectId object) {
    auto found = disk.find(object);
    return found == disk.end() ? std::nullopt : std::optional(from_record(found->second));
  }
  void wait(int64_t ns) {
    now += ns;
    pump();
  }
  std::set<uint64_t> planned_ids() const {
    std::set<uint64_t> out;
    for (const auto& load : planned) out.insert(load.id.value);
    return out;
  }

  Chains chains;
  int64_t now = 1'000 * kMillisecond;
  uint64_t chunk_bytes = kChunk;
  uint64_t probed_bytes = 0;  // the size that a probe reports
  uint64_t arrivals = 0;
  uint64_t handles = 0;
  uint64_t free_bytes = uint64_t{1} << 30;
  bool instant = true;
  int64_t demand_latency_ns = kMillisecond;
  std::set<ObjectId> in_ram;
  std::vector<ObjectId> loading;
  std::vector<PlannedLoad> planned;
  std::vector<ObjectId> laid_out;
  size_t cancelled = 0;
  std::map<ObjectId, SuccessorsRecord> disk;
};

TEST(Chains, NothingIsReadAheadForOpensWithoutHistory) {
  Mount mount;
  mount.read(1, 5);
  mount.read(1, 900);
  mount.read(1, 17);
  EXPECT_TRUE(mount.planned.empty());
}

TEST(Chains, TheFirstOpenAloneIsEnough) {
  Mount mount;
  mount.write_chain(0, 100);
  EXPECT_FALSE(mount.read(7, 0));
  EXPECT_GE(mount.planned.size(), 4u);
  for (uint64_t n = 1; n < 100; ++n) EXPECT_TRUE(mount.read(7, n)) << n;
  EXPECT_EQ(mount.chains.totals().used_bytes, 99 * kChunk);
  EXPECT_EQ(mount.planned.size(), 99u);  // each once, nothing past the end
  for (size_t i = 0; i < 99; ++i) EXPECT_EQ(mount.planned[i].id, Mount::id(i + 1)) << i;
}

TEST(Chains, TheChainIsKnownAfterARestart) {
  Mount before;
  before.write_chain(0, 50);
  before.persist();
  Mount after;
  after.disk = before.disk;
  after.read(7, 10);
  for (uint64_t n = 11; n < 50; ++n) EXPECT_TRUE(after.read(7, n)) << n;
}

TEST(Chains, ReadOrderAloneTeaches) {
  Mount mount;  // as if written by another node
  for (uint64_t n = 0; n < 30; ++n) EXPECT_FALSE(mount.read(7, n));
  mount.drop_ram();
  mount.wait(60'000 * kMillisecond);
  mount.read(8, 0);
  for (uint64_t n = 1; n < 30; ++n) EXPECT_TRUE(mount.read(8, n)) << n;
}

TEST(Chains, AProbeBurstStartsTheReadsBeforeTheFirstOpen) {
  Mount mount;
  mount.probe(3, 0, true);
  EXPECT_TRUE(mount.planned.empty());  // one probe is no burst
  for (uint64_t n = 1; n < 20; ++n) mount.probe(3, n, true);
  mount.probe(3, 20, false);
  EXPECT_GE(mount.planned.size(), 6u);
  EXPECT_EQ(mount.planned.front().id, Mount::id(0));
  EXPECT_EQ(mount.planned.front().reason, LoadReason::kProbe);
  mount.wait(20 * kMillisecond);
  for (uint64_t n = 0; n < 20; ++n) EXPECT_TRUE(mount.read(7, n)) << n;  // by another thread
  EXPECT_EQ(mount.planned.size(), 20u);
}

// Lookups that belong to a client's create or rename announce nothing: otherwise each pause of a writer would break its chain.
// A client opens names right after it probed them: the end of the list must not lead to its beginning.
TEST(Chains, AListThatIsGoneOverOnceMoreIsNoOrderOfItsOwn) {
  Mount mount;
  for (uint64_t n = 0; n < 16; ++n) mount.probe(1, n, true);
  mount.pump();
  for (uint64_t n = 0; n < 16; ++n) {
    mount.probe(1, n, true);
    mount.read(1, n);
  }
  const auto last = mount.chains.row(Mount::id(15));
  EXPECT_TRUE(!last || last->successors.empty());
  EXPECT_FALSE(mount.chains.row(Mount::id(0))->predecessor.valid());
  EXPECT_EQ(mount.chains.row(Mount::id(8))->predecessor, Mount::id(7));
}

TEST(Chains, TheSummaryTellsWhatIsReadyAndIsBounded) {
  Mount mount;
  mount.instant = false;
  mount.probed_bytes = kChunk;
  for (uint64_t thread = 0; thread < 50; ++thread)
    for (uint64_t n = 0; n < 3; ++n) mount.probe(thread, 10 * thread + n, true);
  mount.wait(3 * kMillisecond);
  ChainsSummary summary = mount.chains.summary(mount.now);
  EXPECT_EQ(summary.live_runs, 50u);
  ASSERT_EQ(summary.runs.size(), ChainsSummary::kMostRuns);
  EXPECT_EQ(summary.runs[0].next, Mount::id(490)) << "the last one first";
  EXPECT_EQ(summary.runs[0].expected_bytes, 3 * kChunk);
  EXPECT_EQ(summary.runs[0].in_flight_bytes, 3 * kChunk);
  EXPECT_EQ(summary.runs[0].ready_bytes, 0u);
  EXPECT_EQ(summary.runs[0].readers, 0u);
  EXPECT_GT(summary.rows, 0u);
  mount.finish_loads();
  mount.read(49, 490);
  summary = mount.chains.summary(mount.now);
  EXPECT_EQ(summary.runs[0].next, Mount::id(491));
  EXPECT_EQ(summary.runs[0].ready_bytes, 2 * kChunk);
  EXPECT_EQ(summary.runs[0].in_flight_bytes, 0u);
  EXPECT_EQ(summary.runs[0].readers, 1u);
  EXPECT_EQ(summary.runs[0].arrivals, 1u);
  const std::string text = to_text(summary);
  EXPECT_NE(text.find("run by=probe readers=1 arrivals=1 next=492 "), std::string::npos) << text;
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(text, '\n')), 3 + ChainsSummary::kMostRuns);
}

TEST(Chains, AWriterThatIsHeldUpStillWritesOneChain) {
  Mount mount;
  const auto temporary = [](uint64_t n) { return Mount::name(n) + ".tmp"; };
  std::vector<LayoutItem> items;
  for (uint64_t n = 0; n < 60; ++n) {
    mount.now += n % 7 == 3 ? 40 * kMillisecond : kMillisecond;
    const ChainKey temporary_key = chain_key(kDirectory, temporary(n));
    const NameStem temporary_stem = file_stem(kRootStem, temporary(n));
    mount.chains.on_probe(5, temporary_stem, temporary_key, ObjectId{}, 0, mount.now);
    mount.chains.on_made(5, temporary_stem, temporary_key);
    const uint64_t sequence = mount.chains.on_create(5, temporary_stem, mount.now);
    mount.probe(5, n, false);
    mount.chains.on_made(5, Mount::stem(n), Mount::key(n));
    mount.chains.on_publish(Mount::key(n), Mount::stem(n), Mount::id(n));
    items.push_back({Mount::id(n), Mount::key(n), Mount::stem(n).stem, sequence, n + 1});
    if (n % 25 == 24) (void)mount.chains.lay_out(std::exchange(items, {}));
  }
  (void)mount.chains.lay_out(items);
  EXPECT_FALSE(mount.read(1, 0));
  for (uint64_t n = 1; n < 60; ++n) EXPECT_TRUE(mount.read(1, n)) << n;
}

TEST(Chains, AListThatWasAnnouncedStaysSoWhenItsWritesLookItUpAgain) {
  Mount mount;
  for (uint64_t n = 0; n < 20; ++n) mount.probe(5, n, false);
  for (uint64_t n : {3, 1, 0, 2, 7, 19, 18, 17, 4, 5, 6, 8, 9, 12, 11, 10, 13, 15, 14, 16}) {
    mount.probe(5, n, false);
    mount.chains.on_made(5, Mount::stem(n), Mount::key(n));
    mount.write(5, {n});
  }
  EXPECT_FALSE(mount.read(1, 0));
  for (uint64_t n = 1; n < 20; ++n) EXPECT_TRUE(mount.read(1, n)) << n;
}

TEST(Chains, AListThatIsWrittenLongAfterItWasAnnouncedKeepsItsOrder) {
  Mount mount;
  for (uint64_t n = 1; n <= 40; ++n) mount.probe(5, n, false);
  mount.now += 61'000 * kMillisecond;
  std::vector<uint64_t> written = Mount::range(1, 41);
  std::shuffle(written.begin(), written.end(), std::mt19937_64(11));
  for (uint64_t n : written) {
    mount.probe(5, n, false);
    mount.chains.on_made(5, Mount::stem(n), Mount::key(n));
    mount.write(5, {n});
  }
  for (uint64_t n = 1; n <= 40; ++n) {
    const auto row = mount.chains.row(Mount::id(n));
    ASSERT_TRUE(row) << n;
    EXPECT_EQ(row->successors.size(), n < 40 ? 1u : 0u) << n;
    for (const SuccessorRow::Link& link : row->successors) EXPECT_EQ(link.id, Mount::id(n + 1)) << n;
    EXPECT_EQ(row->predecessor, n == 1 ? ObjectId{} : Mount::id(n - 1)) << n;
  }
}

constexpr uint64_t kSmall = 64 << 10;
void read_small_chunks(Mount& mount) {
  mount.chunk_bytes = kSmall;
  for (uint64_t n = 1000; n < 1100; ++n)
    mount.chains.on_open(9, Mount::stem(n), 0, Mount::id(n), kSmall, mount.now += 3'000 * kMillisecond);
  mount.pump();
  mount.planned.clear();
}

TEST(Chains, SmallChunksOfAProbedListAreReadAheadInLargeReads) {
  Mount mount;
  read_small_chunks(mount);
  std::vector<size_t> steps;
  for (uint64_t n = 0; n < 40; ++n) {
    const size_t before = mount.planned.size();
    mount.probe(1, n, true);
    if (mount.planned.size() > before) steps.push_back(mount.planned.size() - before);
  }
  ASSERT_GE(steps.size(), 1u);
  for (size_t step : steps) EXPECT_GE(step * kSmall, uint64_t{15} << 16);
  EXPECT_LT(mount.planned.size(), 40u);
  mount.wait(3 * kMillisecond);  // the rest, once no probe has come for a while
  EXPECT_EQ(mount.planned.size(), 40u);
}

// One prompt is requested again and again, with and without probes: each pass is prefetched, the probed ones in large reads.
TEST(Chains, APromptAskedAgainAndAgainIsReadAheadEachTime) {
  constexpr uint64_t kChunks = 1000;
  Mount mount;
  mount.chunk_bytes = kSmall;
  mount.write_chain(0, kChunks);
  for (bool probed : {false, true, false, true, false, false, true, true, false, false, false}) {
    mount.drop_ram();
    mount.wait(500 * kMillisecond);
    for (uint64_t n = 0; probed && n < kChunks; ++n) {
      const size_t before = mount.planned.size();
      mount.probe(1, n, true);
      const uint64_t step_bytes = (mount.planned.size() - before) * kSmall;
      EXPECT_TRUE(step_bytes == 0 || step_bytes >= uint64_t{15} << 16) << n;
    }
    uint64_t hits = 0;
    for (uint64_t n = 0; n < kChunks; ++n) hits += mount.read(1, n, 0, 100'000);
    EXPECT_GE(hits, kChunks - 2) << "probed " << probed;
  }
}

TEST(Chains, TheRestOfAProbedListIsReadAheadAtItsFirstAbsentName) {
  Mount mount;
  read_small_chunks(mount);
  mount.probe(1, 0, true);
  mount.probe(1, 1, true);
  EXPECT_EQ(mount.planned.size(), 0u);
  mount.probe(1, 2, false);
  EXPECT_EQ(mount.planned.size(), 2u);
}

// The window counts bytes: the size from a probe takes precedence over sizes seen for other names.
TEST(Chains, AProbedListCountsWithTheSizesThatTheProbesSaw) {
  constexpr uint64_t kWindow = 8 << 20;
  const auto planned = [](uint64_t seen_bytes, uint64_t probed_bytes) {
    Mount mount;
    mount.instant = false;
    mount.probed_bytes = probed_bytes;
    for (uint64_t n = 1000; n < 1100; ++n)
      mount.chains.on_open(9, file_stem(kRootStem, "1234567890abcdef.meta"), 0, Mount::id(n), seen_bytes,
                           mount.now += 3'000 * kMillisecond);
    mount.pump();
    mount.planned.clear();
    for (uint64_t n = 0; n < 400; ++n) mount.probe(1, n, true);
    mount.probe(1, 400, false);
    return mount.planned.size() * probed_bytes;
  };
  EXPECT_EQ(planned(kChunk, kSmall), kWindow);
  EXPECT_LE(planned(4 << 10, uint64_t{9} << 20), uint64_t{18} << 20);  // two chunks at least
}

TEST(Chains, EachObjectOfAProbedListCountsWithItsOwnSize) {
  Mount mount;
  mount.instant = false;
  for (uint64_t n = 0; n < 400; ++n) {
    mount.probed_bytes = n == 8 ? 7 * kChunk : kSmall;
    mount.probe(1, n, true);
  }
  mount.probe(1, 400, false);
  EXPECT_EQ(mount.planned.size(), 9 + (kChunk - 8 * kSmall) / kSmall);
}

// An object expected only through a chain counts with the size of its own kind, not with that of other objects read meanwhile.
TEST(Chains, SizesAreLearnedForEachKindOfName) {
  Mount mount;
  mount.chunk_bytes = kSmall;
  mount.write_chain(0, 400);
  mount.write_chain(0, 400, 1);
  for (uint64_t n = 0; n < 20; ++n) mount.read(1, n);
  for (uint64_t n = 1000; n < 1100; ++n)
    mount.chains.on_open(9, file_stem(kRootStem, "1234567890abcdef.big"), 0, Mount::id(n), uint64_t{64} << 20,
                         mount.now += 3'000 * kMillisecond);
  mount.drop_ram();
  mount.pump();
  mount.planned.clear();
  mount.instant = false;
  mount.read(1, 200);
  const auto siblings = std::count_if(mount.planned.begin(), mount.planned.end(),
                                      [](const PlannedLoad& load) { return load.reason == LoadReason::kSibling; });
  EXPECT_GE(siblings, 16);  // two, if each counted 64 MiB
}

TEST(Chains, WhatWasLoadedCountsWithItsTrueSize) {
  Mount mount;
  mount.instant = false;
  mount.write_chain(0, 400);
  for (uint64_t n = 0; n < 100; ++n) mount.probe(1, n, true);
  mount.probe(1, 400, false);
  const size_t first = mount.planned.size();
  mount.chunk_bytes = kSmall;  // it was assumed to have 1 MiB
  mount.finish_loads();
  mount.pump();
  EXPECT_GT(mount.planned.size(), first);
}

TEST(Chains, WhatIsLargerThanAllThatMayBeReadAheadHoldsNothingUp) {
  Mount mount;
  mount.probed_bytes = uint64_t{1} << 40;
  mount.probe(1, 0, true);
  mount.probed_bytes = kChunk;
  for (uint64_t n = 1; n < 10; ++n) mount.probe(1, n, true);
  mount.probe(1, 10, false);
  EXPECT_TRUE(mount.planned_ids().contains(Mount::id(0).value));
}

TEST(Chains, AProbedListEndsWhereTheProbesEnd) {
  Mount mount;
  mount.write_chain(0, 40);
  for (uint64_t n = 0; n < 10; ++n) mount.probe(3, n, true);
  for (uint64_t n = 0; n < 10; ++n) mount.read(7, n);
  EXPECT_EQ(mount.planned_ids().size(), 10u);
  // A reader that continues all the same is followed again after one miss.
  EXPECT_FALSE(mount.read(7, 10));
  for (uint64_t n = 11; n < 20; ++n) EXPECT_TRUE(mount.read(7, n)) << n;
}

TEST(Chains, BlocksWrittenInNoOrderAreReadBackInAnnouncedOrder) {
  Mount mount;
  for (uint64_t n = 0; n < 64; ++n) mount.probe(3, n, false);
  std::vector<uint64_t> chunks = Mount::range(0, 64);
  std::shuffle(chunks.begin(), chunks.end(), std::mt19937_64(3));
  for (uint64_t n : chunks) mount.probe(4, n, false);  // asked again when written, in that order
  mount.write(4, chunks);
  for (uint64_t n = 0; n < 64; ++n) EXPECT_EQ(mount.laid_out[n], Mount::id(n));
  mount.read(7, 0);
  for (uint64_t n = 1; n < 64; ++n) EXPECT_TRUE(mount.read(7, n)) << n;
  for (size_t i = 0; i < mount.planned.size(); ++i) EXPECT_EQ(mount.planned[i].id, Mount::id(i + 1));
}

TEST(Chains, ANewTurnIsLinkedToTheOldPrefix) {
  Mount mount;
  mount.write_chain(0, 10);
  for (uint64_t n = 0; n < 16; ++n) mount.probe(3, n, n < 10);
  mount.write(4, {13, 11, 10, 15, 12, 14});
  mount.drop_ram();
  mount.wait(60'000 * kMillisecond);
  mount.read(7, 8);
  for (uint64_t n = 9; n < 16; ++n) EXPECT_TRUE(mount.read(7, n)) << n;
}

TEST(Chains, TheOtherBranchIsFollowedWhenTheReaderTakesIt) {
  Mount mount;
  mount.instant = false;
  for (uint64_t n = 0; n < 40; ++n) mount.probe(3, n, false);
  mount.write(4, Mount::range(0, 40));
  for (uint64_t n = 0; n < 10; ++n) mount.probe(3, n, true);
  for (uint64_t n = 110; n < 140; ++n) mount.probe(3, n, false);
  mount.write(4, Mount::range(110, 140));
  mount.finish_loads();
  mount.wait(60'000 * kMillisecond);  // the probes' run has ended
  mount.drop_ram();
  mount.planned.clear();

  mount.read(7, 8);  // last seen: 9 -> 110
  EXPECT_TRUE(mount.planned_ids().contains(Mount::id(110).value));
  EXPECT_FALSE(mount.planned_ids().contains(Mount::id(10).value));
  mount.read(7, 9);
  mount.planned.clear();
  EXPECT_FALSE(mount.read(7, 10));
  EXPECT_GT(mount.cancelled, 0u);  // the loads in flight on the wrong branch
  EXPECT_TRUE(mount.planned_ids().contains(Mount::id(11).value));
  for (uint64_t n = 11; n < 30; ++n) {
    mount.finish_loads();
    EXPECT_TRUE(mount.read(7, n)) << n;
  }
}

TEST(Chains, AtAnOpenBranchNothingIsGuessed) {
  Mount mount;
  for (uint64_t prompt = 0; prompt < 8; ++prompt) {
    const uint64_t first = 100 * (prompt + 1);
    mount.probe(3, 0, prompt > 0);
    mount.probe(3, 1, prompt > 0);
    for (uint64_t n = first; n < first + 10; ++n) mount.probe(3, n, false);
    if (prompt == 0) mount.write(4, {0, 1});
    mount.write(4, Mount::range(first, first + 10));
  }
  mount.wait(60'000 * kMillisecond);
  mount.drop_ram();
  mount.planned.clear();
  mount.read(7, 0);
  EXPECT_EQ(mount.planned_ids(), std::set<uint64_t>{Mount::id(1).value});
  mount.read(7, 1);
  mount.read(7, 300);  // now it is known which prompt is read
  for (uint64_t n = 301; n < 309; ++n) EXPECT_TRUE(mount.read(7, n)) << n;
}

class Readers : public ::testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, Readers, ::testing::Values(2, 4, 8, 16, 32));

TEST_P(Readers, APoolSharesOneRun) {
  const uint64_t threads = GetParam();
  Mount mount;
  mount.write_chain(0, 400);
  std::mt19937_64 random(threads);
  size_t misses = 0;
  for (uint64_t n = 0; n < 400; n += threads) {  // each thread takes the next chunk, in almost that order
    std::vector<uint64_t> round = Mount::range(n, std::min<uint64_t>(n + threads, 400));
    for (size_t i = 0; i + 1 < round.size(); i += 2) {
      if (random() % 2) std::swap(round[i], round[i + 1]);
    }
    for (uint64_t chunk : round) misses += !mount.read(100 + random() % threads, chunk, 0, 50'000);
  }
  EXPECT_LE(misses, 2u);
  EXPECT_EQ(mount.planned_ids().size(), mount.planned.size());  // nothing twice
  EXPECT_EQ(mount.chains.totals().used_bytes, mount.chains.totals().read_bytes);
}

TEST_P(Readers, EachThreadItsContiguousPart) {
  const uint64_t threads = GetParam();
  constexpr uint64_t kPart = 40;
  Mount mount;
  mount.write_chain(0, threads * kPart);
  size_t misses = 0;
  for (uint64_t i = 0; i < kPart; ++i) {
    for (uint64_t t = 0; t < threads; ++t) misses += !mount.read(100 + t, t * kPart + i, 0, 30'000);
  }
  EXPECT_LE(misses, threads);  // the first of each part
  EXPECT_EQ(mount.planned_ids().size(), mount.planned.size());
  EXPECT_EQ(mount.chains.totals().used_bytes, mount.chains.totals().read_bytes);
}

TEST_P(Readers, IndependentPrefixesAtOnce) {
  const uint64_t threads = GetParam();
  Mount mount;
  for (uint64_t t = 0; t < threads; ++t) mount.write_chain(1000 * t, 1000 * t + 60);
  size_t misses = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    for (uint64_t t = 0; t < threads; ++t) misses += !mount.read(100 + t, 1000 * t + i, 0, 30'000);
  }
  EXPECT_EQ(misses, threads);
  EXPECT_EQ(mount.chains.totals().used_bytes, mount.chains.totals().read_bytes);
}

TEST(Chains, ASecondEngineBehindTheFirstIsReadAheadToo) {
  Mount mount;
  mount.write_chain(0, 200);
  for (uint64_t n = 0; n < 100; ++n) mount.read(1, n);
  mount.drop_ram();  // little RAM: the chunks read by the first reader are gone
  EXPECT_FALSE(mount.read(2, 0));
  for (uint64_t n = 1; n < 60; ++n) EXPECT_TRUE(mount.read(2, n)) << n;
}

TEST(Chains, TheOtherRankIsReadAheadToo) {
  Mount mount;
  mount.write_chain(0, 40, 0);
  mount.write_chain(0, 40, 1);
  EXPECT_FALSE(mount.read(1, 0, 0));
  EXPECT_TRUE(mount.planned_ids().contains(Mount::id(0, 1).value));  // the same position
  EXPECT_TRUE(mount.planned_ids().contains(Mount::id(1, 1).value));  // and the next
  EXPECT_TRUE(mount.read(2, 0, 1));
  for (uint64_t n = 1; n < 40; ++n) {
    EXPECT_TRUE(mount.read(1, n, 0)) << n;
    EXPECT_TRUE(mount.read(2, n, 1)) << n;
  }
  EXPECT_EQ(mount.chains.totals().used_bytes, mount.chains.totals().read_bytes);
}

TEST(Chains, ARankThatReadsElsewhereIsNotReadAheadForEver) {
  Mount mount;
  constexpr uint64_t kPrompts = 30;
  for (uint64_t p = 0; p < kPrompts; ++p) {
    mount.write_chain(100 * p, 100 * p + 20, 0);
    mount.write_chain(100 * p, 100 * p + 20, 1);
  }
  size_t late_siblings = 0;
  for (uint64_t p = 0; p < kPrompts; ++p) {
    mount.planned.clear();
    for (uint64_t n = 0; n < 20; ++n) mount.read(1, 100 * p + n, 0);
    mount.wait(10'000 * kMillisecond);
    const auto siblings = std::count_if(mount.planned.begin(), mount.planned.end(),
                                        [](const PlannedLoad& load) { return load.reason == LoadReason::kSibling; });
    if (p >= 8) late_siblings += static_cast<size_t>(siblings);
  }
  EXPECT_LE(late_siblings, 10u);  // 22 prompts; tried again now and then
}

TEST(Chains, AReaderThatStopsStopsThePrefetch) {
  Mount mount;
  mount.instant = false;
  mount.write_chain(0, 500);
  for (uint64_t n = 0; n < 5 || (mount.loading.empty() && n < 100); ++n) {
    mount.finish_loads();
    mount.read(7, n);
  }
  const size_t planned = mount.planned.size();
  const size_t under_way = mount.loading.size();
  ASSERT_GT(under_way, 0u);
  mount.wait(kMillisecond);
  EXPECT_EQ(mount.planned.size(), planned);
  ASSERT_TRUE(mount.chains.deadline().has_value());
  mount.wait(30'000 * kMillisecond);
  EXPECT_EQ(mount.planned.size(), planned);
  EXPECT_EQ(mount.cancelled, under_way);
  EXPECT_EQ(mount.chains.live_runs(), 0u);
  EXPECT_FALSE(mount.chains.deadline().has_value());  // and nothing wakes up any more
  EXPECT_EQ(mount.chains.totals().cancelled_objects, under_way);
}

// Returns the next chunk that the reader opens: the first one that the volume does not deliver.
uint64_t read_until_the_volume_stalls(Mount& mount) {
  mount.write_chain(0, 500);
  uint64_t n = 0;
  for (; n < 20; ++n) mount.read(7, n);
  mount.instant = false;
  for (; mount.in_ram.contains(Mount::id(n)); ++n) mount.read(7, n);
  return n;
}

TEST(Chains, AReaderBehindAVolumeThatStallsHasNotStopped) {
  Mount mount;
  uint64_t n = read_until_the_volume_stalls(mount);
  ASSERT_GT(mount.loading.size(), 1u);
  mount.chains.on_open(7, Mount::stem(n), ++mount.handles, Mount::id(n), kChunk, mount.now += kMillisecond);
  for (int i = 0; i < 4; ++i) {
    mount.wait(2'000 * kMillisecond);
    EXPECT_EQ(mount.cancelled, 0u);
    ASSERT_TRUE(mount.chains.deadline().has_value());
    EXPECT_GT(*mount.chains.deadline(), mount.now) << "a store would call plan() again and again";
  }
  mount.finish_loads();
  mount.wait(400 * kMillisecond);  // the reader copies what it got
  EXPECT_EQ(mount.cancelled, 0u);
  for (const uint64_t end = n + 8; n < end; ++n) EXPECT_TRUE(mount.in_ram.contains(Mount::id(n))) << n;
  EXPECT_TRUE(mount.read(7, n - 7));
  EXPECT_EQ(mount.chains.live_runs(), 1u);
  mount.finish_loads();
  mount.wait(30'000 * kMillisecond);  // now the reader has stopped
  EXPECT_EQ(mount.chains.live_runs(), 0u);
}

TEST(Chains, AReaderBehindAVolumeThatGivesNothingAtAllIsGivenUp) {
  Mount mount;
  read_until_the_volume_stalls(mount);
  const size_t under_way = mount.loading.size();
  ASSERT_GT(under_way, 1u);
  for (int i = 0; i < 31; ++i) mount.wait(1'000 * kMillisecond);
  EXPECT_EQ(mount.cancelled, under_way);
  EXPECT_EQ(mount.chains.live_runs(), 0u);
}

TEST(Chains, AReaderThatLeavesTheChainCancelsItsRest) {
  Mount mount;
  mount.instant = false;
  mount.write_chain(0, 100);
  mount.write_chain(1000, 1100);
  mount.read(7, 0);
  ASSERT_GT(mount.loading.size(), 0u);
  const auto old = mount.loading;
  mount.read(7, 1000);
  mount.wait(100 * kMillisecond);
  for (ObjectId object : old) EXPECT_EQ(std::count(mount.loading.begin(), mount.loading.end(), object), 0);
  EXPECT_EQ(mount.cancelled, old.size());
  EXPECT_TRUE(mount.chains.about_to_be_used(Mount::id(1001)));
  EXPECT_FALSE(mount.chains.about_to_be_used(Mount::id(1)));
}

TEST(Chains, RandomOpensOfChainedObjectsAreSoonLeftAlone) {
  Mount mount;
  mount.write_chain(0, 5000);
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    mount.read(7, random() % 5000, 0, 300 * kMillisecond);
    mount.drop_ram();
  }
  const size_t early = mount.planned.size();
  for (int i = 0; i < 300; ++i) {
    mount.read(7, random() % 5000, 0, 300 * kMillisecond);
    mount.drop_ram();
  }
  EXPECT_LT(mount.planned.size() - early, 100u);  // of a possible 2,400
}

TEST(Chains, TheWindowGrowsWithBandwidthTimesLatency) {
  const auto outstanding = [](int64_t latency_ns, uint64_t per_round) {
    Mount mount;
    mount.instant = false;
    mount.demand_latency_ns = latency_ns;
    mount.write_chain(0, 4000);
    for (int i = 0; i < 40; ++i) {  // demand loads elsewhere feed the estimator: 1 MiB each, `per_round` at once
      mount.now += latency_ns;
      for (uint64_t k = 0; k < per_round; ++k) {
        mount.chains.on_loaded(ObjectId{900'000 + k}, kChunk, latency_ns, mount.now);
      }
    }
    size_t most = 0;
    for (uint64_t n = 0; n < 200; ++n) {
      mount.read(7, n, 0, 10 * kMillisecond);
      most = std::max(most, mount.loading.size());
      mount.finish_loads(latency_ns);
    }
    return most;
  };
  const size_t near = outstanding(kMillisecond, 2);       // 2 GiB/s at 1 ms
  const size_t far = outstanding(20 * kMillisecond, 40);  // 2 GiB/s at 20 ms
  EXPECT_LE(near, 16u);
  EXPECT_GE(far, 40u);
}

// Four threads that share a run hold four chunks: with two ahead they would overtake the read-ahead.
TEST(Chains, TheWindowHoldsAChunkMoreThanThoseWhoReadTogether) {
  for (const uint64_t threads : {1, 2, 4, 12}) {  // with the last, each chunk has a thread of its own
    Mount mount;
    mount.instant = false;
    mount.chunk_bytes = 9 * kChunk;
    mount.write_chain(0, 40);
    for (uint64_t n = 0; n < 12; ++n) {
      mount.read(100 + n % threads, n, 0, 100 * kMillisecond);  // slower than the volume by far
      for (ObjectId object : std::exchange(mount.loading, {})) {  // which delivers one after the other
        mount.now += 10 * kMillisecond;
        mount.in_ram.insert(object);
        mount.chains.on_loaded(object, mount.chunk_bytes, kMillisecond, mount.now);
      }
    }
    const auto runs = mount.chains.summary(mount.now).runs;
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].readers, threads);
    EXPECT_EQ(runs[0].window_bytes, (std::min<uint64_t>(threads, 8) + 1) * mount.chunk_bytes);
  }
}

// The mean size of earlier chunks tells little about the next two: they are read ahead together all the same.
TEST(Chains, TwoAtLeastAreReadAheadThoughTheyAreLargerThanTheMean) {
  Mount mount;
  mount.instant = false;
  mount.chunk_bytes = 3 * kChunk * 9;  // a shorter one of the kind, some time ago
  mount.write_chain(0, 20);
  mount.read(1, 500);
  mount.chunk_bytes = mount.probed_bytes = 9 * kChunk * 9;
  mount.read(1, 501);
  mount.wait(60'000 * kMillisecond);
  for (uint64_t n = 0; n < 8; ++n) mount.probe(7, n, true);
  mount.wait(3 * kMillisecond);
  EXPECT_EQ(mount.loading.size(), 2u);
  for (uint64_t n = 0; n < 6; ++n) {
    mount.finish_loads(100 * kMillisecond);
    mount.probed_bytes = mount.chunk_bytes += mount.chunk_bytes / 16;
    mount.read(7, n, 0, 200 * kMillisecond);
    EXPECT_GE(mount.planned.size(), n + 3) << n;
  }
}

TEST(Chains, TheWindowGrowsWhileReadersHaveToWaitAndShrinksAgain) {
  Mount mount;
  mount.write_chain(0, 600);
  mount.instant = false;
  size_t most = 0;
  const auto read_on = [&](uint64_t first, uint64_t end, bool late) {
    most = 0;
    for (uint64_t n = first; n < end; ++n) {
      if (!late || n % 40 >= 12) mount.finish_loads();
      mount.read(1, n);
      most = std::max(most, mount.loading.size());
    }
  };
  read_on(0, 100, false);
  const size_t usual = most;
  read_on(100, 300, true);
  read_on(300, 400, false);
  EXPECT_GE(most, 2 * usual - 2);
  mount.now += 60'000 * kMillisecond;
  for (uint64_t n = 1000; n < 1010; ++n) mount.read(1, n, 0, 11'000 * kMillisecond);
  read_on(401, 600, false);
  EXPECT_LE(most, usual + 2);
}

TEST(Chains, TheCapAndTheFreeMemoryHold) {
  ChainsOptions options;
  options.planner.ahead_max_bytes = 3 * kChunk;
  Mount mount(options);
  mount.instant = false;
  mount.write_chain(0, 100);
  mount.free_bytes = 2 * kChunk;
  mount.read(7, 0);
  EXPECT_EQ(mount.loading.size(), 2u);
  mount.free_bytes = 0;
  mount.read(7, 1);
  mount.read(7, 2);
  EXPECT_EQ(mount.planned.size(), 2u);
  mount.free_bytes = 1 << 30;
  for (uint64_t n = 3; n < 50; ++n) {
    mount.read(7, n);
    EXPECT_LE(mount.loading.size(), 3u);
    mount.finish_loads();
  }
  mount.chains.set_ahead_max_bytes(0);  // prefetch off
  mount.planned.clear();
  mount.read(7, 50);
  mount.read(7, 51);
  EXPECT_TRUE(mount.planned.empty());
}

// A plan has only a few loads: those that a reader waits for come first.
TEST(Chains, RunsWithReadersGoBeforeGuesses) {
  ChainsOptions options;
  options.planner.max_loads_per_plan = 8;
  Mount mount(options);
  mount.instant = false;
  mount.write_chain(5000, 5100);
  mount.free_bytes = 0;
  mount.read(50, 5000);
  for (uint64_t list = 0; list < 12; ++list)
    for (uint64_t n = 0; n < 4; ++n) mount.probe(100 + list, 100 * list + n, n < 3);
  EXPECT_TRUE(mount.planned.empty());
  const Plan plan = mount.chains.plan(mount.now, uint64_t{1} << 30);
  ASSERT_EQ(plan.loads.size(), 8u);
  for (const PlannedLoad& load : plan.loads) EXPECT_GT(load.id, Mount::id(5000)) << "nobody reads it yet";
  const Plan more = mount.chains.plan(mount.now, uint64_t{1} << 30);
  ASSERT_EQ(more.loads.size(), 8u);
  for (const PlannedLoad& load : more.loads) EXPECT_LT(load.id, Mount::id(5000)) << "all for the reader is under way";
}

TEST(Chains, NoReaderStarvesBehindOthers) {
  ChainsOptions options;
  options.planner.max_loads_per_plan = 8;
  Mount mount(options);
  mount.instant = false;
  for (uint64_t chain = 0; chain < 12; ++chain) mount.write_chain(1000 * chain, 1000 * chain + 40);
  mount.free_bytes = 0;
  for (uint64_t chain = 0; chain < 12; ++chain) mount.read(50 + chain, 1000 * chain);
  std::set<uint64_t> served;
  for (int i = 0; i < 2; ++i)
    for (const PlannedLoad& load : mount.chains.plan(mount.now, uint64_t{1} << 30).loads) served.insert(load.id.value / 1000);
  EXPECT_EQ(served.size(), 12u);
}

TEST(Chains, AListKnownInFullIsReadAheadFurtherOnceReadersCameForSuch) {
  Mount mount;
  const auto planned = [&](uint64_t first) {
    mount.planned.clear();
    for (uint64_t n = 0; n < 65; ++n) mount.probe(1, first + n, n < 64);
    return mount.planned.size();
  };
  EXPECT_EQ(planned(0), 8u);
  for (uint64_t n = 0; n < 64; ++n) mount.read(1, n);
  mount.wait(60'000 * kMillisecond);
  EXPECT_EQ(planned(1000), 32u);
  for (uint64_t n = 0; n < 64; ++n) mount.read(1, 1000 + n);
  EXPECT_EQ(mount.chains.totals().used_bytes, 128 * kChunk);
}

TEST(Chains, WhatIsExpectedIsNotForgottenForWhatOthersOpen) {
  ChainsOptions options;
  options.planner.max_notes = 40;
  Mount mount(options);
  mount.write_chain(0, 33);
  mount.read(7, 0);
  for (uint64_t n = 0; n < 100; ++n) mount.read(100 + n, 1000 + 10 * n);
  size_t expected = 0;
  for (uint64_t n = 1; n < 33; ++n) expected += mount.chains.about_to_be_used(Mount::id(n));
  EXPECT_EQ(expected, 32u);
}

TEST(Chains, WhereAllOfAChainIsPlannedNothingIsAskedForAgain) {
  Mount mount;
  read_small_chunks(mount);
  mount.write_chain(0, 100);
  uint64_t n = 0;
  for (; n < 50; ++n) mount.read(1, n);  // more than half of the window is empty, and many chunks are still ahead
  ASSERT_EQ(mount.planned_ids().size(), 99u);
  for (const uint64_t end = n + 10; n < end; ++n) {
    mount.chains.on_open(1, Mount::stem(n), ++mount.handles, Mount::id(n), kSmall, mount.now += kMillisecond);
    EXPECT_FALSE(mount.chains.wants_plan()) << n;
  }
  mount.write(50, {99, 100, 101});  // the list continues
  mount.now -= 3'000 * kMillisecond;  // without the pause after it
  mount.read(1, n);
  EXPECT_TRUE(mount.planned_ids().contains(Mount::id(100).value));
}

TEST(Chains, LateBytesAreCounted) {
  Mount mount;
  mount.instant = false;
  mount.write_chain(0, 10);
  mount.read(7, 0);
  mount.chains.on_open(7, Mount::stem(1), 900, Mount::id(1), kChunk, mount.now);
  EXPECT_EQ(mount.chains.state(Mount::id(1)), PrefetchState::kAwaited);
  mount.finish_loads();
  EXPECT_EQ(mount.chains.totals().late_bytes, kChunk);
  EXPECT_EQ(mount.chains.totals().used_bytes, kChunk);
  EXPECT_EQ(mount.chains.state(Mount::id(2)), PrefetchState::kLoaded);
  const uint64_t read_bytes = mount.chains.totals().read_bytes;
  mount.drop_ram();
  EXPECT_EQ(mount.chains.totals().wasted_bytes, read_bytes - kChunk);
  EXPECT_EQ(mount.chains.state(Mount::id(2)), PrefetchState::kNone);
}

// A reader that reads big bodies directly from the volume: the loads planned for it end with `reason(n)` while it is at body n.
constexpr int kBigBodies = 64;
template <class Reason, class Planned>
void read_past_the_daemon(Mount& mount, Reason reason, Planned planned) {
  constexpr uint64_t kBig = 9 << 20;
  mount.chunk_bytes = kBig;
  mount.write_chain(0, kBigBodies);
  for (int n = 0; n < kBigBodies; ++n) {
    mount.chains.on_open(7, Mount::stem(n), 900 + n, Mount::id(n), kBig, mount.now += 6 * kMillisecond);
    mount.chains.on_read(900 + n, Mount::id(n), 0, kBig, mount.now);
    mount.chains.on_close(900 + n, Mount::id(n), mount.now);
    if (!mount.chains.wants_plan()) continue;
    const Plan plan = mount.chains.plan(mount.now, mount.free_bytes);
    for (const PlannedLoad& load : plan.loads) {
      mount.planned.push_back(load);
      mount.chains.on_skipped(load.id, reason(n));
    }
    planned(n, plan);
  }
  EXPECT_GE(mount.planned_ids().size(), kBigBodies - 2U);  // the first is read, the last of a chain may be left out
}

// The readers read the volume directly: no RAM is taken, so each plan may go further, and fewer plans are needed.
TEST(Chains, WhatIsOnlyOpenedIsPlannedManyAtATime) {
  Mount mount;
  int plans = 0;
  read_past_the_daemon(mount, [](int) { return SkipReason::kOnlyOpened; }, [&](int, const Plan& plan) { plans += !plan.loads.empty(); });
  EXPECT_LE(plans, kBigBodies / 4);
}

// Once readers go through the page cache, later objects count in full again.
TEST(Chains, WhatIsNoLongerOnlyOpenedCountsInFull) {
  Mount mount;
  uint64_t most_ahead = 0;
  read_past_the_daemon(
      mount, [](int n) { return n < 8 ? SkipReason::kOnlyOpened : SkipReason::kLeftToKernel; },
      [&](int n, const Plan&) {
        if (n >= 32) most_ahead = std::max<uint64_t>(most_ahead, mount.planned_ids().size() - static_cast<uint64_t>(n));
      });
  EXPECT_LE(most_ahead, 4U);
}

TEST(Chains, GoneAndFailedLoadsAreNotAskedForAgain) {
  Mount mount;
  mount.instant = false;
  mount.write_chain(0, 10);
  mount.read(7, 0);
  ASSERT_GE(mount.loading.size(), 3u);
  mount.chains.on_skipped(Mount::id(1), SkipReason::kFailed);
  mount.chains.on_skipped(Mount::id(2), SkipReason::kGone);
  std::erase(mount.loading, Mount::id(1));
  std::erase(mount.loading, Mount::id(2));
  EXPECT_FALSE(mount.chains.row(Mount::id(2)).has_value());
  mount.planned.clear();
  mount.finish_loads();
  EXPECT_FALSE(mount.read(7, 1));
  EXPECT_TRUE(mount.read(7, 3));
  EXPECT_FALSE(mount.planned_ids().contains(Mount::id(1).value));
  EXPECT_FALSE(mount.planned_ids().contains(Mount::id(2).value));
  EXPECT_EQ(mount.chains.totals().skipped_objects, 2u);
}

TEST(Chains, ADeletedObjectIsNotReadAhead) {
  Mount mount;
  mount.write_chain(0, 10);
  mount.chains.on_deleted(Mount::id(5));
  mount.read(7, 0);
  EXPECT_FALSE(mount.planned_ids().contains(Mount::id(5).value));
  EXPECT_TRUE(mount.planned_ids().contains(Mount::id(4).value));
}

TEST(Chains, OpeningTheSameFileTwiceDoesNotDisturb) {
  Mount mount;
  mount.write_chain(0, 60);
  mount.read(7, 0);
  for (uint64_t n = 1; n < 60; ++n) {  // header, then body
    EXPECT_TRUE(mount.read(7, n)) << n;
    EXPECT_TRUE(mount.read(7, n)) << n;
  }
  EXPECT_EQ(mount.planned.size(), 59u);
}

TEST(Accounting, StatesAndTotals) {
  PrefetchAccounting accounting;
  EXPECT_TRUE(accounting.planned(ObjectId{1}));
  EXPECT_FALSE(accounting.planned(ObjectId{1}));
  EXPECT_TRUE(accounting.loaded(ObjectId{1}, 10));
  EXPECT_FALSE(accounting.loaded(ObjectId{1}, 10));
  EXPECT_FALSE(accounting.loaded(ObjectId{2}, 10));  // a demand load
  accounting.cancelled(ObjectId{1});                 // too late
  EXPECT_EQ(accounting.state(ObjectId{1}), PrefetchState::kLoaded);
  accounting.read(ObjectId{1});
  accounting.read(ObjectId{1});
  accounting.removed(ObjectId{1});
  accounting.removed(ObjectId{1});
  EXPECT_EQ(accounting.totals().read_bytes, 10u);
  EXPECT_EQ(accounting.totals().used_bytes, 10u);
  EXPECT_EQ(accounting.totals().wasted_bytes, 0u);
  EXPECT_EQ(accounting.size(), 0u);
  EXPECT_TRUE(accounting.planned(ObjectId{3}));
  accounting.removed(ObjectId{3});  // an earlier copy: its load is still to come
  EXPECT_EQ(accounting.state(ObjectId{3}), PrefetchState::kPlanned);
  EXPECT_TRUE(accounting.loaded(ObjectId{3}, 5));
  accounting.removed(ObjectId{3});
  EXPECT_EQ(accounting.totals().read_bytes, 15u);
  EXPECT_EQ(accounting.totals().wasted_bytes, 5u);
  EXPECT_EQ(accounting.size(), 0u);
}

TEST(VolumeEstimator, FindsBandwidthAndUnloadedLatency) {
  VolumeEstimator volume;
  EXPECT_EQ(volume.base_latency_ns(), VolumeEstimator::kDefaultLatencyNs);
  volume.on_load(kChunk, 2 * kMillisecond, 2 * kMillisecond);
  EXPECT_EQ(volume.base_latency_ns(), 2 * kMillisecond);
  EXPECT_NEAR(volume.bandwidth_bytes_per_s(), kChunk * 500.0, 1);
  // Sixteen at once, queueing: the rate goes up, the unloaded latency does not.
  for (int i = 1; i <= 16; ++i) volume.on_load(kChunk, (2 + i) * kMillisecond, (10 + i) * kMillisecond);
  EXPECT_EQ(volume.base_latency_ns(), 2 * kMillisecond);
  EXPECT_NEAR(volume.bandwidth_bytes_per_s(), 16.0 * kChunk * 1000 / 18, kChunk * 10.0);
  EXPECT_GT(volume.mean_latency_ns(), 2 * kMillisecond);
}

TEST(VolumeEstimator, FollowsAVolumeThatGetsSlower) {
  VolumeEstimator volume(1'000 * kMillisecond);
  int64_t now = 0;
  for (int i = 0; i < 1000; ++i) volume.on_load(kChunk, kMillisecond, now += kMillisecond);
  const double fast = volume.bandwidth_bytes_per_s();
  for (int i = 0; i < 300; ++i) volume.on_load(kChunk, 10 * kMillisecond, now += 10 * kMillisecond);
  EXPECT_LT(volume.bandwidth_bytes_per_s(), fast / 5);
  EXPECT_EQ(volume.base_latency_ns(), 10 * kMillisecond);
  volume.on_load(0, 5, now);  // tells nothing
  volume.on_load(5, 0, now);
  EXPECT_EQ(volume.base_latency_ns(), 10 * kMillisecond);
}

// Whatever happens: no object is planned twice while in flight, every byte is accounted for, memory stays bounded.
TEST(Chains, AnyEventsInAnyOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    ChainsOptions options;
    options.planner.max_runs = 4;
    options.planner.max_notes = 200;
    options.max_streams = 6;
    options.max_sibling_names = 50;
    options.successor_memory_bytes = 16 * 1024;
    Mount mount(options);
    mount.instant = false;
    for (int step = 0; step < 4000; ++step) {
      const uint64_t n = random() % 300;
      const uint64_t thread = random() % 9;
      const uint64_t rank = random() % 2;
      switch (random() % 9) {
        case 0: mount.write(thread, Mount::range(n, n + random() % 12), rank); break;
        case 1:
          for (uint64_t i = 0; i < random() % 20; ++i) mount.probe(thread, n + i, random() % 4 != 0, rank);
          break;
        case 2: mount.finish_loads(static_cast<int64_t>(random() % 30) * kMillisecond); break;
        case 3: mount.drop_ram(); break;
        case 4: mount.wait(static_cast<int64_t>(random() % 9'000) * kMillisecond); break;
        case 5:
          mount.chains.on_deleted(Mount::id(n, rank));
          mount.in_ram.erase(Mount::id(n, rank));
          if (std::erase(mount.loading, Mount::id(n, rank)) > 0)
            mount.chains.on_skipped(Mount::id(n, rank), SkipReason::kGone);
          break;
        case 6: mount.persist(); break;
        case 7: mount.free_bytes = random() % (64 * kChunk); break;
        default:
          for (uint64_t i = 0; i < random() % 40; ++i) mount.read(thread, n + i, rank, 100'000);
          break;
      }
      ASSERT_LE(mount.chains.live_runs(), 4u);
    }
    mount.finish_loads();
    mount.drop_ram();
    const PrefetchTotals& totals = mount.chains.totals();
    EXPECT_EQ(totals.read_bytes, totals.used_bytes + totals.wasted_bytes) << seed;
    EXPECT_GT(totals.used_bytes, 0u);
  }
}

}  // namespace chains_test
}  // namespace kvcachefs
