#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

#include "store/base/bytes.h"
#include "store/base/checksum.h"
#include "store/base/clock.h"
#include "store/base/kill_point.h"
#include "store/base/mountinfo.h"
#include "store/base/types.h"
#include "store/base/units.h"

namespace kvcachefs {
namespace base_test {

TEST(Mountinfo, OctalDigitsAreWhatTheyStandFor) {
  EXPECT_EQ(unescape_mountinfo("/mnt/a\\040b\\134c\\043"), "/mnt/a b\\c#");
  EXPECT_EQ(unescape_mountinfo("\\303\\274"), "\303\274");
  for (const char* text : {"", "\\", "\\04", "a\\", "\\048", "\\x40"}) EXPECT_EQ(unescape_mountinfo(text), text);
}

TEST(Units, ParsesWhatUsersWrite) {
  EXPECT_EQ(parse_size("4096").value(), 4096u);
  EXPECT_EQ(parse_size("64K").value(), 64 * kKiB);
  EXPECT_EQ(parse_size("1.5G").value(), kGiB + kGiB / 2);
  EXPECT_EQ(parse_size("2TiB").value(), 2 * kTiB);
  EXPECT_EQ(parse_size("9m").value(), 9 * kMiB);
  for (const uint64_t bytes : {243'521'875'968ULL, 1'234'567ULL, 1'300ULL, 3ULL << 40}) {  // what is told of an option can be set again
    const std::string told = format_size(bytes);
    ASSERT_TRUE(parse_size(told)) << told;
    EXPECT_EQ(format_size(parse_size(told).value()), told);
  }
  EXPECT_EQ(parse_size("64Mi").value(), 64 * kMiB);
}

TEST(Units, RefusesTheRest) {
  for (const char* text : {"", "K", "-1", "4X", "4KK", "1e400", "99999999999T", "nan", "0.3", " 4", "4 "})
    EXPECT_FALSE(parse_size(text).has_value()) << text;
}

TEST(Units, RefusesWhatMayMeanPowersOfThousand) {
  for (const char* text : {"64MB", "64Mb", "1.5gB", "8kb", "2TB"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_NE(size.error().message.find("powers of 1000"), std::string::npos) << size.error().message;
  }
  EXPECT_NE(parse_size("64MB").error().message.find("write 64M or 64MiB"), std::string::npos);
  for (const char* text : {"64iB", "64B", "64Mib", "64MiBB", "64M i"}) EXPECT_FALSE(parse_size(text)) << text;
}

TEST(Units, PrintsWhatItParses) {
  for (uint64_t bytes : {uint64_t{0}, uint64_t{1}, kKiB, 64 * kKiB, 3 * kGiB, 7 * kTiB})
    EXPECT_EQ(parse_size(format_size(bytes)).value(), bytes);
}

TEST(Units, BodiesEndInTheirLastUnit) {
  EXPECT_EQ(unit_of(kUnitBytes - 1), 0U);
  EXPECT_EQ(unit_of(kUnitBytes), 1U);
  EXPECT_EQ(unit_length(kUnitBytes + 7, 0), kUnitBytes);
  EXPECT_EQ(unit_length(kUnitBytes + 7, 1), 7U);
  EXPECT_EQ(unit_length(kUnitBytes, 1), 0U);
  EXPECT_EQ(unit_length(7, 5), 0U);
  EXPECT_EQ(unit_length(0, 0), 0U);
}

TEST(Bytes, RoundTrip) {
  Bytes buffer;
  ByteWriter out(buffer);
  const std::array<uint64_t, 6> values = {0, 1, 127, 128, 1u << 20, std::numeric_limits<uint64_t>::max()};
  for (uint64_t value : values) out.varint(value);
  const std::array<int64_t, 4> signed_values = {0, -1, 63, std::numeric_limits<int64_t>::min()};
  for (int64_t value : signed_values) out.svarint(value);
  out.u16(0x1234);
  out.u64(0x0102030405060708);
  out.text("name\n");
  ByteReader in(buffer);
  for (uint64_t value : values) EXPECT_EQ(in.varint(), value);
  for (int64_t value : signed_values) EXPECT_EQ(in.svarint(), value);
  EXPECT_EQ(in.u16(), 0x1234);
  EXPECT_EQ(in.u64(), 0x0102030405060708u);
  EXPECT_EQ(in.text(), "name\n");
  EXPECT_TRUE(in.ok() && in.at_end());
}

TEST(Bytes, EveryTruncationTurnsBad) {
  Bytes buffer;
  ByteWriter out(buffer);
  out.u32(7);
  out.varint(1u << 30);
  out.text("0123456789");
  for (size_t length = 0; length < buffer.size(); ++length) {
    ByteReader in(ByteSpan(buffer).first(length));
    in.u32();
    in.varint();
    in.text();
    EXPECT_FALSE(in.ok()) << length;
  }
}

TEST(Bytes, OverlongVarintIsRefused) {
  Bytes buffer(11, std::byte{0xff});
  ByteReader in(buffer);
  in.varint();
  EXPECT_FALSE(in.ok());
}

TEST(KillPointDeathTest, TheLastPassingIsTheOneThatCounts) {
  auto pass = [] {
    if (!arm_kill_point("batch-torn:2")) return;
    kill_point("batch-made");
    kill_point("batch-torn");
    std::fprintf(stderr, "still there\n");
    kill_point("batch-torn");
    std::fprintf(stderr, "never\n");
  };
  EXPECT_EXIT(pass(), testing::KilledBySignal(SIGKILL), "^still there\n$");
}

TEST(KillPoint, OnlyWhatIsListedIsArmed) {
  for (const char* text : {"batch-mad", "batch-made:", "batch-made:0", "batch-made:-1", "batch-made:2x", ":1"})
    EXPECT_FALSE(arm_kill_point(text)) << text;
  EXPECT_NE(arm_kill_point("x").error().message.find("range-punched"), std::string::npos);  // tells what there is
  EXPECT_TRUE(arm_kill_point(""));
  for (const std::string_view name : kKillPoints)
    EXPECT_EQ(std::count(kKillPoints.begin(), kKillPoints.end(), name), 1) << name;
  kill_point("batch-made");  // nothing is armed
}

TEST(Checksum, PiecesAndZerosAgree) {
  Bytes data(100'000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31);
  Hasher hasher;
  hasher.update(ByteSpan(data).first(777));
  hasher.update(ByteSpan(data).subspan(777));
  EXPECT_EQ(hasher.digest(), checksum(data));
  EXPECT_NE(checksum(data, 1), checksum(data, 2));
  EXPECT_EQ(checksum_of_zeros(5000), checksum(Bytes(5000)));
}

TEST(Types, ObjectIdPacks) {
  const ObjectId id = ObjectId::make(3, 70'000, 123'456'789'012 % (uint64_t{1} << 36));
  EXPECT_EQ(id.node_ordinal(), 3u);
  EXPECT_EQ(id.epoch(), 70'000u);
  EXPECT_EQ(id.number(), 123'456'789'012 % (uint64_t{1} << 36));
}

TEST(Clock, ARequestIsOfOneMomentAndTheWallClockIsASecondBehindAtMost) {
  // Two clocks that go by themselves: each look is later than the one before.
  struct Running final : Clock {
    int64_t realtime_ns() const override { return wall_ns + ++looks; }
    int64_t monotonic_ns() const override { return monotonic + ++looks; }
    mutable int64_t looks = 0;
    int64_t wall_ns = 5'000'000'000'000, monotonic = 7'000;
  } machine;
  RequestClock clock(machine);
  const int64_t before = clock.monotonic_ns();
  EXPECT_GT(clock.monotonic_ns(), before);
  clock.hold();
  const int64_t now = clock.monotonic_ns(), wall = clock.realtime_ns(), looks = machine.looks;
  EXPECT_NEAR(static_cast<double>(wall - machine.wall_ns), 0, 100);
  EXPECT_EQ(clock.monotonic_ns(), now);
  EXPECT_EQ(clock.realtime_ns(), wall);
  EXPECT_EQ(machine.looks, looks);
  std::thread([&] { EXPECT_GT(clock.monotonic_ns(), now); }).join();  // others are not held
  clock.release();
  EXPECT_GT(clock.monotonic_ns(), now);

  machine.wall_ns += 3'600'000'000'000;  // set by an hour
  clock.hold();
  EXPECT_LT(clock.realtime_ns(), machine.wall_ns);
  clock.hold();
  machine.monotonic += 2'000'000'000;
  EXPECT_GT(clock.realtime_ns(), machine.wall_ns);
  clock.release();
}

TEST(Clock, StampsRiseAlsoAcrossThreadsAndBackwardTime) {
  ManualClock clock(1000);
  HybridClock stamps(clock);
  const Stamp first = stamps.next();
  clock.advance_ns(-500);
  EXPECT_GT(stamps.next(), first);
  stamps.observe(Stamp{1'000'000});
  EXPECT_GT(stamps.next().value, 1'000'000u);
  std::array<Stamp, 2> last{};
  std::array<std::thread, 2> threads;
  for (size_t t = 0; t < threads.size(); ++t)
    threads[t] = std::thread([&, t] {
      for (int i = 0; i < 10'000; ++i) last[t] = stamps.next();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_NE(last[0], last[1]);
  EXPECT_GE(std::max(last[0], last[1]).value, 1'000'000u + 20'000);
}

}  // namespace base_test
}  // namespace kvcachefs
