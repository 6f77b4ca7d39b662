// What machines that share a simulated NFS server see of each other's changes, and what each machine and the server lose.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "store/base/bytes.h"
#include "store/volume/lock_probe.h"
#include "store/volume/test_directory.h"
#include "store/volume/testing/sim_client.h"

namespace kvcachefs {
namespace sim_client_test {

using test::AlignedBuffer;

constexpr int64_t kSecondNs = 1'000'000'000;

Status write(File& file, std::string_view text, uint64_t offset = 0) {
  const std::span<const std::byte> pieces[] = {as_bytes(text)};
  return file.write(pieces, offset);
}
Status write_block(File& file, char letter, uint64_t offset = 0) {
  const AlignedBuffer block(kBlockBytes);
  std::ranges::fill(block.span(), static_cast<std::byte>(letter));
  const std::span<const std::byte> pieces[] = {block.span()};
  return file.write(pieces, offset);
}
std::string read(File& file, size_t most = 100) {
  std::string text(most, 0);
  const auto bytes = file.read(std::as_writable_bytes(std::span(text)), 0);
  return bytes ? text.substr(0, *bytes) : fmt::format("<{}>", bytes.error().sys_errno);
}
// The first letter.
std::string read_block(File& file, uint64_t offset = 0) {
  const AlignedBuffer block(kBlockBytes);
  const auto bytes = file.read(block.span(), offset);
  if (!bytes) return fmt::format("<{}>", bytes.error().sys_errno);
  return *bytes == 0 ? "" : std::string(1, static_cast<char>(block.span()[0]));
}

class SimClientTest : public ::testing::Test {
 protected:
  explicit SimClientTest(SimServerOptions options = {}) : server(std::make_shared<SimServer>(options)) {}
  static FilePtr create(Volume& volume, const std::string& path, bool direct = false) {
    auto file = volume.open(path, {.create_exclusive = true, .direct = direct});
    EXPECT_TRUE(file) << file.error().message;
    return file.value_or(nullptr);
  }
  static Code open_error(Volume& volume, const std::string& path) {
    const auto file = volume.open(path, {});
    return file ? Code::kNoData : file.error().code;
  }

  const std::shared_ptr<SimServer> server;
  const std::shared_ptr<SimClient> a = std::make_shared<SimClient>(server, "a"), b = std::make_shared<SimClient>(server, "b");
};
class SimClientV3Test : public SimClientTest {
 protected:
  SimClientV3Test() : SimClientTest({.nfs_version = 3}) {}
};
class SimClientAsyncTest : public SimClientTest {
 protected:
  SimClientAsyncTest() : SimClientTest({.async = true}) {}
};

TEST_F(SimClientTest, AnAbsentNameIsRememberedUntilItIsListed) {
  EXPECT_EQ(open_error(*b, "d/f"), Code::kNotFound);
  ASSERT_TRUE(a->make_directory("d"));
  create(*a, "d/f");
  EXPECT_EQ(open_error(*b, "d/f"), Code::kNotFound) << "of the directory";
  EXPECT_EQ(b->list("d").error().code, Code::kNotFound);
  EXPECT_EQ(b->list("")->size(), 1u);
  EXPECT_EQ(open_error(*b, "d/f"), Code::kNoData);
  EXPECT_EQ(b->open("g", {}).error().code, Code::kNotFound);
  create(*a, "g");
  server->advance_ns(59 * kSecondNs);
  EXPECT_EQ(open_error(*b, "g"), Code::kNotFound);
  server->advance_ns(2 * kSecondNs);
  EXPECT_EQ(open_error(*b, "g"), Code::kNoData);
  EXPECT_EQ(open_error(*a, "h"), Code::kNotFound);
  create(*a, "h");
  EXPECT_EQ(open_error(*a, "h"), Code::kNoData) << "its own";
  EXPECT_EQ(b->open("h", {.create_exclusive = true}).error().code, Code::kExists) << "asks the server";
}

TEST_F(SimClientTest, DirectReadsGoToTheServerOthersToPages) {
  const FilePtr written = create(*a, "f", true);
  ASSERT_TRUE(write_block(*written, '1'));
  const FilePtr direct = b->open("f", {.direct = true}).value(), buffered = b->open("f", {}).value();
  EXPECT_EQ(read(*buffered, 1), "1");
  ASSERT_TRUE(write_block(*written, '2'));
  ASSERT_TRUE(write_block(*written, '3', kBlockBytes));
  EXPECT_EQ(read_block(*direct), "2");
  EXPECT_EQ(read_block(*direct, kBlockBytes), "3");
  EXPECT_EQ(read(*buffered, 1), "1");
  EXPECT_EQ(buffered->info()->size_bytes, kBlockBytes) << "as it was opened";
  EXPECT_EQ(read(**b->open("f", {}), 1), "2") << "close to open";
  EXPECT_EQ(read(*buffered, 1), "2");
  ASSERT_TRUE(write_block(*written, '4'));
  server->advance_ns(61 * kSecondNs);
  EXPECT_EQ(read(*buffered, 1), "4");
}

TEST_F(SimClientTest, WhatIsNotDirectStaysUntilASyncOrTheLastClose) {
  FilePtr file = create(*a, "f");
  ASSERT_TRUE(write(*file, "one"));
  EXPECT_EQ(read(*file), "one");
  EXPECT_EQ(read(**b->open("f", {})), "");
  ASSERT_TRUE(file->sync_data());
  EXPECT_EQ(read(**b->open("f", {})), "one");
  ASSERT_TRUE(write(*file, "two", 3));
  file.reset();
  EXPECT_EQ(read(**b->open("f", {})), "onetwo");
  ASSERT_TRUE(write(**a->open("f", {.writable = true}), "x"));
  EXPECT_EQ(read(**b->open("f", {})), "xnetwo");
}

TEST_F(SimClientTest, AMachineWithoutPowerLosesSomeOfIt) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string name = std::to_string(seed);
    const FilePtr file = create(*a, name);
    ASSERT_TRUE(write(*file, std::string(2 * kBlockBytes, 'x')));
    a->lose_power(seed * 1000003);
    EXPECT_EQ(write(*file, "y").error().sys_errno, EIO);
    EXPECT_EQ(a->list("").error().sys_errno, EIO);
    a->restart();
    EXPECT_EQ(write(*file, "y").error().sys_errno, EIO) << "of the life before";
    const std::string left = read(**a->open(name, {}), 2 * kBlockBytes);
    seen.insert(left.empty() ? "" : fmt::format("{}{}", left.size() / kBlockBytes, left[0] == 'x' ? "x" : "0"));
  }
  EXPECT_EQ(seen, (std::set<std::string>{"", "1x", "2x", "20"}));
}

TEST_F(SimClientTest, ARemovedFileIsKeptForThoseWhoHaveItOpen) {
  FilePtr mine = create(*a, "f", true);
  ASSERT_TRUE(write_block(*mine, '1'));
  FilePtr other = b->open("f", {.direct = true}).value();
  ASSERT_TRUE(a->remove_file("f"));
  EXPECT_EQ(open_error(*b, "f"), Code::kNotFound);
  EXPECT_EQ(read_block(*other), "1");
  server->advance_ns(61 * kSecondNs);
  EXPECT_TRUE(other->info()->is_removed);
  mine.reset();
  EXPECT_EQ(read_block(*other), "1");
  EXPECT_EQ(server->used_bytes(), kBlockBytes);
  server->crash(1);
  EXPECT_EQ(read_block(*other), fmt::format("<{}>", ESTALE));
  other.reset();
  EXPECT_EQ(server->used_bytes(), 0u);
}

TEST_F(SimClientTest, ItsSpaceComesBackWithTheLastClose) {
  FilePtr file = create(*a, "f", true);
  ASSERT_TRUE(write_block(*file, '1'));
  FilePtr other = b->open("f", {.direct = true}).value();
  ASSERT_TRUE(a->remove_file("f"));
  file.reset();
  EXPECT_EQ(server->used_bytes(), kBlockBytes);
  other.reset();
  EXPECT_EQ(server->used_bytes(), 0u);
}

TEST_F(SimClientV3Test, ARemovedFileIsKeptOnTheMachineThatRemovesItAlone) {
  FilePtr mine = create(*a, "f", true);
  ASSERT_TRUE(write_block(*mine, '1'));
  const FilePtr other = b->open("f", {.direct = true}).value();
  ASSERT_TRUE(a->remove_file("f"));
  EXPECT_EQ(read_block(*other), "1") << "it has another name";
  EXPECT_EQ(server->all_files().size(), 1u);
  EXPECT_TRUE(mine->info()->is_removed);
  mine.reset();
  EXPECT_TRUE(server->all_files().empty());
  EXPECT_EQ(read_block(*other), fmt::format("<{}>", ESTALE));
  create(*a, "g");
  const FilePtr of_other = b->open("g", {.direct = true}).value();
  ASSERT_TRUE(a->remove_file("g"));
  EXPECT_EQ(read_block(*of_other), fmt::format("<{}>", ESTALE));
  EXPECT_EQ(create(*a, "h")->punch(0, kBlockBytes).error().code, Code::kUnsupported);
}

TEST_F(SimClientTest, WhoIsCutOffLosesHisLocksToWhoAsksBehindTheLease) {
  auto lock = a->lock("LOCK");
  ASSERT_TRUE(lock);
  ASSERT_TRUE((*lock)->describe("me"));
  EXPECT_NE(b->lock("LOCK").error().message.find("locked by me"), std::string::npos);
  EXPECT_TRUE(is_locked(*b, "LOCK").value());
  a->cut();
  EXPECT_EQ(a->list("").error().sys_errno, ETIMEDOUT);
  server->advance_ns(80 * kSecondNs);
  EXPECT_EQ(b->lock("LOCK").error().code, Code::kBusy);
  a->heal();
  EXPECT_TRUE((*lock)->describe("still me"));
  a->cut();
  server->advance_ns(100 * kSecondNs);
  a->heal();
  EXPECT_TRUE((*lock)->describe("nobody asked"));
  a->cut();
  server->advance_ns(100 * kSecondNs);
  auto taken = b->lock("LOCK");
  EXPECT_TRUE(taken);
  a->heal();
  EXPECT_EQ((*lock)->describe("me").error().sys_errno, EIO);
  lock->reset();
  EXPECT_EQ(a->lock("LOCK").error().code, Code::kBusy) << "it is not given up with the one that was lost";
  taken->reset();
  EXPECT_TRUE(a->lock("LOCK"));
}

TEST_F(SimClientTest, LocksGoWithTheProcess) {
  auto lock = a->lock("LOCK");
  ASSERT_TRUE(lock);
  a->kill();
  EXPECT_TRUE(b->lock("LOCK"));
  a->restart();
  auto again = a->lock("LOCK");
  ASSERT_TRUE(again);
  lock->reset();
  EXPECT_TRUE(is_locked(*b, "LOCK").value()) << "that was of the life before";
}

TEST_F(SimClientTest, TheLocksOfAMachineWithoutPowerAreFreeWhenItIsBackOrItsLeaseIsOver) {
  auto lock = a->lock("LOCK");
  ASSERT_TRUE(lock);
  a->lose_power(1);
  EXPECT_EQ(b->lock("LOCK").error().code, Code::kBusy);
  a->restart();
  EXPECT_TRUE(b->lock("LOCK"));
  auto again = a->lock("LOCK");
  ASSERT_TRUE(again);
  a->lose_power(1);
  server->advance_ns(100 * kSecondNs);
  EXPECT_TRUE(b->lock("LOCK"));
}

TEST_F(SimClientV3Test, TheLockOfAMachineThatIsGoneStaysUntilItIsBack) {
  auto lock = a->lock("LOCK");
  ASSERT_TRUE(lock);
  a->cut();
  server->advance_ns(1'000'000 * kSecondNs);
  EXPECT_EQ(b->lock("LOCK").error().code, Code::kBusy);
  a->kill();
  EXPECT_EQ(b->lock("LOCK").error().code, Code::kBusy) << "nobody could tell";
  a->heal();
  EXPECT_TRUE(b->lock("LOCK"));
}

TEST_F(SimClientTest, WhoIsCutOffWaitsWhileOthersGoOn) {
  const FilePtr file = create(*a, "f", true);
  a->cut();
  int waited = 0;
  a->set_before([&](const VolumeCall& call) {
    if (!a->is_cut()) return;
    EXPECT_EQ(call.path, "f");
    create(*b, "g");
    ++waited;
    a->heal();
  });
  EXPECT_TRUE(write_block(*file, '1'));
  EXPECT_EQ(waited, 1);
  EXPECT_EQ(open_error(*a, "g"), Code::kNoData);
}

TEST_F(SimClientTest, AKilledProcessHasMadeItsLastRequestOrPartOfItOrNot) {
  using Last = SimClient::LastRequest;
  for (const auto& [last, expected] : {std::pair{Last::kNotMade, std::string()}, {Last::kInPart, std::string("1")}, {Last::kUnanswered, std::string("12")}}) {
    const std::string name = std::to_string(static_cast<int>(last));
    const FilePtr file = create(*a, name, true);
    const AlignedBuffer blocks(2 * kBlockBytes);
    std::ranges::fill(blocks.span(0, kBlockBytes), std::byte{'1'});
    std::ranges::fill(blocks.span(kBlockBytes, kBlockBytes), std::byte{'2'});
    a->set_before([&, last = last](const VolumeCall&) { a->kill(last); });
    const std::span<const std::byte> pieces[] = {blocks.span()};
    EXPECT_EQ(file->write(pieces, 0).error().sys_errno, EIO);
    a->set_before({});
    EXPECT_EQ(a->list("").error().sys_errno, EIO);
    const FilePtr left = b->open(name, {.direct = true}).value();
    EXPECT_EQ(read_block(*left) + read_block(*left, kBlockBytes), expected);
    a->restart();
    EXPECT_TRUE(a->list(""));
  }
}

TEST_F(SimClientTest, AServerThatStartsAgainHasAllThatWasAnswered) {
  const FilePtr file = create(*a, "f", true);
  ASSERT_TRUE(write_block(*file, '1'));
  auto lock = a->lock("LOCK");
  ASSERT_TRUE(lock);
  server->crash(7);
  EXPECT_EQ(read_block(*file), "1");
  ASSERT_TRUE(write_block(*file, '2'));
  EXPECT_EQ(read_block(**b->open("f", {.direct = true})), "2");
  EXPECT_EQ(b->lock("LOCK").error().code, Code::kBusy) << "it was reclaimed";
}

TEST_F(SimClientAsyncTest, AnAsyncServerForgetsWhatIsYoung) {
  const FilePtr old = create(*a, "old", true);
  ASSERT_TRUE(write_block(*old, '1'));
  ASSERT_TRUE(old->sync_data());
  server->advance_ns(6 * kSecondNs);
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string name = fmt::format("young{}", seed);
    {
      const FilePtr young = create(*a, name, true);
      ASSERT_TRUE(write_block(*young, '2'));
      ASSERT_TRUE(young->sync_data());
      ASSERT_TRUE(a->sync_directory(""));
    }
    server->crash(seed);
    EXPECT_EQ(read_block(*old), "1");
    const auto left = a->open(name, {.direct = true});
    seen.insert(left ? read_block(**left) : "none");
  }
  EXPECT_EQ(seen.count("none"), 1u);
  EXPECT_EQ(seen.count("2"), 1u);
}

TEST_F(SimClientTest, AFullVolumeTakesWhatWasGivenBack) {
  const FilePtr file = create(*a, "f", true);
  ASSERT_TRUE(write_block(*file, '1'));
  server->set_full(true);
  EXPECT_EQ(write_block(*file, '2', kBlockBytes).error().code, Code::kNoSpace);
  EXPECT_EQ(b->space()->available_bytes, 0u);
  EXPECT_TRUE(write_block(*file, '2'));
  const FilePtr late = create(*b, "late");
  EXPECT_TRUE(write(*late, "x")) << "it is in memory";
  EXPECT_EQ(late->sync_data().error().code, Code::kNoSpace);
  ASSERT_TRUE(file->punch(0, kBlockBytes));
  EXPECT_TRUE(write_block(*file, '3', kBlockBytes));
  server->set_full(false);
  EXPECT_TRUE(write_block(*file, '4', 2 * kBlockBytes));
}

TEST_F(SimClientTest, AnAnswerThatWasLostIsGivenToTheSecondRequest) {
  a->repeat_next();
  EXPECT_EQ(a->make_directory("d").error().code, Code::kExists);
  a->repeat_next();
  EXPECT_EQ(a->remove_directory("d").error().code, Code::kNotFound);
  EXPECT_TRUE(b->list("")->empty());
  create(*a, "draft");
  a->repeat_next();
  EXPECT_TRUE(a->publish("draft", "f")) << "the number of links tells";
  create(*b, "draft");
  EXPECT_EQ(b->publish("draft", "f").error().code, Code::kExists);
}

}  // namespace sim_client_test
}  // namespace kvcachefs
