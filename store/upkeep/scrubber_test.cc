#include "store/upkeep/scrubber.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "store/load/testing/load_fixture.h"

namespace kvcachefs {
namespace scrubber_test {

constexpr int64_t kSecond = 1'000'000'000, kDay = 24 * 3600 * kSecond;

class ScrubberTest : public LoadFixture {
 protected:
  ScrubberTest() { clock.advance_ns(100 * kDay); }

  Scrubber::Parts parts() {
    return {index, tree, reader, quarantine, counters, clock, sealing_memory, [this] { return requests; }};
  }
  void pass_seconds(Scrubber& scrubber, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock.advance_ns(kSecond);
      scrubber.tick();
    }
  }
  // As a mount does: the first tick only reads the clock.
  void begin(Scrubber& scrubber, uint64_t rate = 64 * kMiB) {
    scrubber.set_rate(rate);
    scrubber.tick();
  }
  std::set<ObjectId> in_quarantine() {
    std::set<ObjectId> ids;
    for (const SealedBody& body : quarantined()) ids.insert(body.snapshot.object->id);
    return ids;
  }

  uint64_t requests = 0;
};

TEST_F(ScrubberTest, AllBodiesAreReadOnceInAPass) {
  put_bodies(PlaceKind::kPacked, {5'000, 300'000, kUnitBytes});
  put_body(2 * kUnitBytes + 1, PlaceKind::kSolo);
  Scrubber scrubber(parts());
  begin(scrubber);
  EXPECT_EQ(scrubber.counts().bodies, 0u) << "no time has passed";
  pass_seconds(scrubber, 1);
  const Scrubber::Counts counts = scrubber.counts();
  EXPECT_EQ(counts.bodies, 4u);
  EXPECT_EQ(counts.bytes, 5'000 + 300'000 + 3 * kUnitBytes + 1);
  EXPECT_EQ(counts.passes, 1u);
  EXPECT_FALSE(counts.running);
  EXPECT_EQ(counts.damaged + counts.unreadable, 0u);
  const size_t read = reads.size();
  pass_seconds(scrubber, 100);
  EXPECT_EQ(reads.size(), read) << "a week has not passed";
  clock.advance_ns(7 * kDay);
  pass_seconds(scrubber, 2);
  EXPECT_EQ(reads.size(), 2 * read);
  EXPECT_EQ(scrubber.counts().passes, 2u);
}

TEST_F(ScrubberTest, WhatDoesNotMatchGoesIntoQuarantine) {
  const std::vector<ObjectId> ids = put_bodies(PlaceKind::kPacked, {300'000, 300'000, 300'000});
  flip(ids[1], 299'999);
  Scrubber scrubber(parts());
  begin(scrubber);
  pass_seconds(scrubber, 1);
  EXPECT_EQ(in_quarantine(), std::set<ObjectId>{ids[1]});
  EXPECT_EQ(scrubber.counts().damaged, 1u);
  EXPECT_EQ(scrubber.counts().bodies, 2u);
  EXPECT_EQ(counters.errors_checksum.load(), 1u);
}

// Another node says so of it. It is not believed: only what this node reads counts.
TEST_F(ScrubberTest, WhatIsSuspectedIsVerifiedBesideRequestsAndWithoutAPass) {
  const std::vector<ObjectId> ids = put_bodies(PlaceKind::kPacked, {300'000, 300'000, 300'000});
  flip(ids[1], 299'999);
  flip(ids[2], 1);
  Scrubber scrubber(parts());
  begin(scrubber, 0);
  EXPECT_FALSE(scrubber.look_at_suspected());
  const size_t before = reads.size();
  for (const ObjectId id : {ids[0], ids[1], ObjectId::make(0, 1, 999), ObjectId::make(7, 1, 1)}) scrubber.suspect(id);
  ++requests;
  EXPECT_TRUE(scrubber.look_at_suspected());
  EXPECT_EQ(in_quarantine(), std::set<ObjectId>{ids[1]}) << "nobody has read the last one";
  EXPECT_EQ(scrubber.counts().damaged, 1u);
  EXPECT_GT(reads.size(), before);
  const size_t read = reads.size();
  EXPECT_FALSE(scrubber.look_at_suspected());
  index.objects.at(ids[1]).body.quarantined = true;  // journaled
  scrubber.suspect(ids[1]);
  EXPECT_FALSE(scrubber.look_at_suspected()) << "it is in quarantine";
  EXPECT_EQ(reads.size(), read);
}

TEST_F(ScrubberTest, WhatIsSuspectedIsReadInSteps) {
  const ObjectId id = put_body(100 * kMiB, PlaceKind::kSolo);
  flip(id, 100 * kMiB - 1);
  Scrubber scrubber(parts());
  scrubber.suspect(id);
  EXPECT_TRUE(scrubber.look_at_suspected());
  EXPECT_LT(scrubber.counts().bytes, 80 * kMiB);
  EXPECT_TRUE(in_quarantine().empty());
  EXPECT_TRUE(scrubber.look_at_suspected());
  EXPECT_EQ(in_quarantine(), std::set<ObjectId>{id});
}

TEST_F(ScrubberTest, AVolumeThatDoesNotAnswerCondemnsNothing) {
  put_bodies(PlaceKind::kPacked, {300'000, 300'000});
  on_read = [](const VolumeCall&) { return Fault{.sys_errno = EIO}; };
  Scrubber scrubber(parts());
  begin(scrubber);
  pass_seconds(scrubber, 1);
  EXPECT_EQ(scrubber.counts().unreadable, 2u);
  EXPECT_TRUE(in_quarantine().empty());
}

TEST_F(ScrubberTest, WhatWasRemovedIsAbsentAndWhatIsAwayForAMomentIsKept) {
  for (const bool with_directory : {false, true}) {
    const std::vector<ObjectId> ids = put_bodies(PlaceKind::kSolo, {300'000});
    const std::string path = extents.path(index.objects.at(ids[0]).body.place.extent, PlaceKind::kSolo);
    ASSERT_TRUE(volume->remove_file(path));
    if (with_directory) {
      ASSERT_TRUE(volume->remove_directory(path.substr(0, path.rfind('/'))));
    }
    Scrubber scrubber(parts());
    begin(scrubber);
    pass_seconds(scrubber, 1);
    EXPECT_EQ(tree.read().is_quarantined(ids[0]), !with_directory);
    EXPECT_EQ(scrubber.counts().damaged, with_directory ? 0u : 1u);
    EXPECT_TRUE(commits.take().empty()) << "nothing is journaled: it may be put back";
    index.objects.erase(ids[0]);
  }
}

// Its place may have been given back since its record was read.
TEST_F(ScrubberTest, WhatIsReplacedMeanwhileIsNotDamaged) {
  const ObjectId id = put_body(300'000);
  flip(id, 1);
  on_read = [&](const VolumeCall&) {
    ++index.objects.at(id).body.version;
    return Fault{};
  };
  Scrubber scrubber(parts());
  begin(scrubber);
  pass_seconds(scrubber, 1);
  EXPECT_EQ(scrubber.counts().damaged, 0u);
  EXPECT_TRUE(in_quarantine().empty());
}

TEST_F(ScrubberTest, RecordsAreVerifiedOnceInAPassAndWhatThatTookIsMadeUpFor) {
  put_body(300'000);
  int calls = 0;
  RecordScrub::Read answer{kMiB / 2, false};
  Scrubber::Parts with_records = parts();
  with_records.verify_records = [&](const std::function<bool()>& goes_on) {
    ++calls;
    EXPECT_TRUE(goes_on());
    ++requests;
    EXPECT_FALSE(goes_on()) << "clients come first";
    --requests;
    return answer;
  };
  Scrubber scrubber(std::move(with_records));
  begin(scrubber, kMiB);
  pass_seconds(scrubber, 1);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(scrubber.counts().bytes, 300'000u) << "what they took is made up for, and they do not keep bodies back";
  EXPECT_EQ(scrubber.counts().passes, 1u);
  clock.advance_ns(7 * kDay);
  answer = {3 * kMiB, true};
  pass_seconds(scrubber, 3);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(scrubber.counts().bytes, 300'000u);
  pass_seconds(scrubber, 6);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(scrubber.counts().bytes, 600'000u);
  EXPECT_EQ(scrubber.counts().passes, 2u);
}

// Otherwise it would block the other work, and read the volume for nothing.
TEST_F(ScrubberTest, RecordsThatCannotBeReadInOneGoAreTriedMoreAndMoreSeldom) {
  put_body(64 * kMiB, PlaceKind::kSolo);
  int calls = 0;
  Scrubber::Parts with_records = parts();
  with_records.verify_records = [&](const std::function<bool()>&) {
    ++calls;
    return RecordScrub::Read{kMiB / 4, false};
  };
  Scrubber scrubber(std::move(with_records));
  begin(scrubber, kMiB);
  pass_seconds(scrubber, 60);
  EXPECT_GT(calls, 3);
  EXPECT_LT(calls, 8);
  EXPECT_GT(scrubber.counts().bytes, 50 * kMiB);
}

TEST_F(ScrubberTest, TheRateHoldsAndARequestStopsIt) {
  put_body(8 * kMiB, PlaceKind::kSolo);
  Scrubber scrubber(parts());
  begin(scrubber, kMiB);
  for (uint64_t second = 1; second <= 3; ++second) {
    pass_seconds(scrubber, 1);
    EXPECT_GE(scrubber.counts().bytes, second * kMiB - kUnitBytes);
    EXPECT_LE(scrubber.counts().bytes, second * kMiB + kUnitBytes);
  }
  const uint64_t before = scrubber.counts().bytes;
  for (int i = 0; i < 10; ++i) {
    ++requests;
    pass_seconds(scrubber, 1);
  }
  EXPECT_EQ(scrubber.counts().bytes, before) << "clients were at it";
  pass_seconds(scrubber, 1);
  EXPECT_LE(scrubber.counts().bytes, before + kMiB + kUnitBytes) << "what was not read in time is not made up for";
  EXPECT_GT(scrubber.counts().bytes, before);
  scrubber.begin_now();
  requests += 1;
  const uint64_t bytes = scrubber.counts().bytes;
  pass_seconds(scrubber, 1);
  EXPECT_GT(scrubber.counts().bytes, bytes) << "who asks for it gets it";
}

TEST_F(ScrubberTest, WhatIsYoungIsReadOnlyWhereAPassIsAskedFor) {
  const std::vector<ObjectId> ids = put_bodies(PlaceKind::kPacked, {5'000, 6'000});
  index.objects.at(ids[0]).attributes.mtime_ns = clock.realtime_ns() - kSecond;
  Scrubber scrubber(parts());
  begin(scrubber);
  pass_seconds(scrubber, 1);
  EXPECT_EQ(scrubber.counts().bytes, 6'000u);
  scrubber.set_rate(0);
  pass_seconds(scrubber, 5);
  EXPECT_EQ(scrubber.counts().passes, 1u);
  scrubber.begin_now();
  EXPECT_TRUE(scrubber.counts().running);
  pass_seconds(scrubber, 2);
  EXPECT_EQ(scrubber.counts().bytes, 6'000u + 11'000u);
  EXPECT_EQ(scrubber.counts().passes, 2u);
}

TEST_F(ScrubberTest, GoesOnWhereTheLastLifeStopped) {
  const std::vector<ObjectId> ids = put_bodies(PlaceKind::kPacked, std::vector<uint64_t>(600, 4096));
  uint64_t before = 0;
  {
    Scrubber scrubber(parts());
    begin(scrubber, kMiB);
    pass_seconds(scrubber, 3);
    before = scrubber.counts().bodies;
    EXPECT_GT(before, 300u);
    EXPECT_LT(before, 600u);
  }
  Scrubber scrubber(parts());
  EXPECT_TRUE(scrubber.counts().running);
  begin(scrubber, kMiB);
  pass_seconds(scrubber, 5);
  EXPECT_EQ(scrubber.counts().passes, 1u);
  EXPECT_GE(before + scrubber.counts().bodies, 600u);
  EXPECT_LE(before + scrubber.counts().bodies, 600u + 256u) << "a page of ids at most is read again";
  EXPECT_GT(index.scrub_told.ended_ns, 0);
  EXPECT_EQ(Scrubber(parts()).counts().last_ended_ns, index.scrub_told.ended_ns);
}

TEST(ScrubPace, AClockThatWentBackMakesAPassDue) {
  ScrubPace pace;
  EXPECT_FALSE(pace.is_due(50 * kDay, 0)) << "switched off";
  pace.set_rate(1);
  EXPECT_TRUE(pace.is_due(50 * kDay, 0));
  EXPECT_FALSE(pace.is_due(50 * kDay, 44 * kDay));
  EXPECT_TRUE(pace.is_due(50 * kDay, 43 * kDay));
  EXPECT_TRUE(pace.is_due(50 * kDay, 51 * kDay));
}

}  // namespace scrubber_test
}  // namespace kvcachefs
