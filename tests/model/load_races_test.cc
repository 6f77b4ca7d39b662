// A body is replaced while it is being loaded: what arrives is of the body that was, and must not be taken for a part of the
// one that is. One thread, a clock that stands still, reads that are held until they are let go: the same every time.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"
#include "tests/model/await.h"
#include "tests/model/holding_volume.h"

namespace kvcachefs::testing {
namespace load_races_test {

constexpr size_t kBodyBytes = 3 * kUnitBytes - 5000;
constexpr Caller kCaller{.uid = 0, .gid = 0, .thread_id = 1};

class LoadRaces : public ::testing::Test {
 protected:
  LoadRaces() {
    if (directory_.path().empty()) std::abort();
    StoreOptions options;
    options.background = false;
    options.node = "test";
    options.index_directory = directory_.path() + "/index";
    options.memory_bytes = 64 * kMiB;
    options.prefetch = false;  // what is read is what a reader asks for, and the rest of the body
    auto store = open_store(volume_, options, clock_, "test");
    if (!store) std::abort();
    store_ = std::move(*store);
  }
  ~LoadRaces() override {
    volume_->let_go();
    EXPECT_TRUE(store_->close());
    store_.reset();
  }

  template <class T, class Call>
  Result<T> wait(Call call) {
    return await<T>(*store_, call, [] {});
  }
  void write_and_close(Handle* handle, const std::string& content) {
    EXPECT_TRUE(wait<size_t>([&](auto done) { store_->write(handle, 0, std::as_bytes(std::span(content)), std::move(done)); }));
    EXPECT_TRUE(wait<void>([&](auto done) { store_->flush(handle, std::move(done)); }));
    store_->release(handle);
  }
  void put(const std::string& name, const std::string& content) {
    auto made = store_->create(kRootId, "temporary", 0644, {.read = false, .write = true}, kCaller);
    ASSERT_TRUE(made);
    write_and_close(made->second, content);
    EXPECT_TRUE(wait<void>([&](auto done) {
      store_->rename(kRootId, "temporary", kRootId, name, RenameMode::kReplace, kCaller, std::move(done));
    }));
  }
  // On the volume, and nothing of it in RAM but what a reader waits for.
  void leave_ram() {
    EXPECT_TRUE(wait<void>([&](auto done) { store_->drain(true, std::move(done)); }));
    store_->drop_caches();
  }
  void pass_time() {
    clock_.advance_ns(6'000'000'000);
    for (int i = 0; i < 100; ++i) store_->pump();
  }
  Handle* open(const std::string& name, const OpenRequest& request) {
    const auto look_and_open = [&] {
      auto found = store_->lookup(kRootId, name, kCaller);
      EXPECT_TRUE(found);
      return store_->open(found->id, request, kCaller);
    };
    auto opened = look_and_open();
    if (!opened && opened.error().code == Code::kStale) opened = look_and_open();  // as the kernel does, once
    EXPECT_TRUE(opened) << opened.error().message;
    return opened.value_or(nullptr);
  }
  // In place: the same object gets another body.
  void overwrite(const std::string& name, const std::string& content) {
    write_and_close(open(name, {.read = false, .write = true, .truncate = true}), content);
  }

  static std::string text_of(const ReadReply& reply) {
    std::string text;
    for (const iovec& piece : reply.pieces) text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    return text;
  }
  void read_begins(Handle* handle) {
    store_->read(handle, 0, kUnitBytes, [this](Result<ReadReply> reply) {
      first_unit_ = reply ? Result<std::string>(text_of(*reply)) : Result<std::string>(std::unexpected(reply.error()));
    });
  }
  void expect_read(Handle* handle, const std::string& content) {
    auto reply = wait<ReadReply>([&](auto done) { store_->read(handle, 0, kMiB, std::move(done)); });
    ASSERT_TRUE(reply) << reply.error().message;
    EXPECT_TRUE(text_of(*reply) == content) << "bytes of another body, '" << text_of(*reply)[kBodyBytes - 1] << "'";
  }

  test::TestDirectory directory_;  // for the index
  ManualClock clock_{1'700'000'000'000'000'000};
  std::shared_ptr<HoldingVolume> volume_ = std::make_shared<HoldingVolume>(make_sim_volume());
  std::unique_ptr<Store> store_;
  std::optional<Result<std::string>> first_unit_;
  const std::string old_ = std::string(kBodyBytes, 'o'), new_ = std::string(kBodyBytes, 'n');

  // A reader asks for the first unit, and the rest of the body is loaded with it; the body is replaced and leaves RAM
  // before any of that arrives.
  Handle* replace_under_a_load() {
    put("neighbour", std::string(kBodyBytes, 'x'));
    put("f", old_);
    leave_ram();
    Handle* reader = open("f", {});
    volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
    read_begins(reader);
    EXPECT_FALSE(first_unit_);
    volume_->wait_until_held([](const auto& held) { return !held.empty(); });
    overwrite("f", new_);
    leave_ram();
    EXPECT_FALSE(first_unit_);
    return reader;
  }
  void expect_the_new_body(Handle* reader) {
    volume_->let_go();
    for (int i = 0; i < 100 && !first_unit_; ++i) store_->pump();
    ASSERT_TRUE(first_unit_);
    ASSERT_TRUE(*first_unit_) << first_unit_->error().message;
    EXPECT_TRUE(**first_unit_ == new_.substr(0, kUnitBytes)) << "bytes of the body before, '" << (**first_unit_)[0] << "'";
    expect_read(reader, new_);
    store_->drop_caches();
    expect_read(reader, new_);
    store_->release(reader);
    EXPECT_EQ(store_->status().errors_checksum, 0u);
    EXPECT_EQ(store_->status().objects_quarantined, 0u);
  }
};

TEST_F(LoadRaces, WhatArrivesOfABodyThatWasReplacedIsDropped) { expect_the_new_body(replace_under_a_load()); }

// What arrives are the zeros of a hole. They are looked at once more, and found to be nobody's fault.
TEST_F(LoadRaces, ABodyThatWasReplacedAndGivenBackIsNotTakenForDamage) {
  Handle* reader = replace_under_a_load();
  pass_time();
  ASSERT_GT(store_->status().reclaimed_bytes, 0u);
  expect_the_new_body(reader);
}

// A file that is still being written is put aside for want of memory, read, begun anew and put aside again, in the same
// place, before what was read of it arrives.
TEST_F(LoadRaces, WhatArrivesOfASpilledUnitThatWasWrittenAnewIsDropped) {
  ASSERT_TRUE(store_->set_option("memory", "16M"));
  auto made = store_->create(kRootId, "f", 0644, {.read = true, .write = true}, kCaller);
  ASSERT_TRUE(made);
  Handle* const handle = made->second;
  const auto write_more_than_fits = [&](char byte) {
    const std::string piece(kMiB, byte);
    const uint64_t written = store_->status().write_volume_bytes;
    for (uint64_t at = 0; at < 14 * kMiB; at += kMiB)
      ASSERT_TRUE(wait<size_t>([&](auto done) { store_->write(handle, at, std::as_bytes(std::span(piece)), std::move(done)); }));
    for (int i = 0; i < 1000 && store_->status().write_volume_bytes == written; ++i) store_->pump();
    for (int i = 0; i < 100; ++i) store_->pump();
    ASSERT_GT(store_->status().write_volume_bytes, written) << "nothing was spilled";
  };
  write_more_than_fits('o');
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  read_begins(handle);
  ASSERT_FALSE(first_unit_) << "the unit is still in RAM";
  volume_->wait_until_held([](const auto& held) { return !held.empty(); });
  ASSERT_TRUE(wait<Stat>([&](auto done) {
    SetAttributes cut;
    cut.size_bytes = 0;
    store_->set_attributes(made->first.id, handle, cut, kCaller, std::move(done));
  }));
  write_more_than_fits('n');
  volume_->let_go();
  for (int i = 0; i < 1000 && !first_unit_; ++i) store_->pump();
  ASSERT_TRUE(first_unit_);
  ASSERT_TRUE(*first_unit_) << first_unit_->error().message;
  EXPECT_TRUE(**first_unit_ == std::string(kUnitBytes, 'n'));
  store_->release(handle);
  EXPECT_EQ(store_->status().errors_checksum, 0u);
}

// Who maps bodies opens one that is just being loaded: the answer waits for it, and it is passed through.
TEST_F(LoadRaces, AnOpenWaitsForABodyThatComesIntoAMemoryFile) {
  if (Status status = store_->expect_passthrough(); !status) GTEST_SKIP() << status.error().message;
  const std::string body(5 * kMiB, 'b');
  put("f", body);
  leave_ram();
  Handle* reader = open("f", {});
  bool answered = false;
  store_->await_loads(reader, [&] { answered = true; });
  EXPECT_TRUE(answered) << "nothing is being loaded";
  store_->note_mapped_read(reader);
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  read_begins(reader);
  volume_->wait_until_held([](const auto& held) { return !held.empty(); });
  std::atomic<bool> came{false};
  store_->await_loads(reader, [&] { came = true; });
  EXPECT_FALSE(came);
  volume_->let_go();
  for (int i = 0; i < 600'000 && !came; ++i)
    if (!store_->pump()) usleep(100);
  ASSERT_TRUE(came);
  {
    const BackingFile file = store_->backing_file(store_->object_of(reader));
    EXPECT_TRUE(file.in_memory);
  }
  store_->release(reader);
}

// The same bytes are put in place of a body that somebody has open, take over its place, and are removed.
TEST_F(LoadRaces, APlaceThatWasTakenOverIsKeptForWhoStillReadsTheFormerObject) {
  put("f", old_);
  leave_ram();
  Handle* reader = open("f", {});
  put("f", old_);
  leave_ram();
  ASSERT_EQ(store_->status().deduplicated_bodies, 1u);
  EXPECT_TRUE(wait<void>([&](auto done) { store_->unlink(kRootId, "f", kCaller, std::move(done)); }));
  leave_ram();
  pass_time();
  leave_ram();
  expect_read(reader, old_);
  EXPECT_EQ(store_->status().errors_checksum, 0u);
  store_->release(reader);
  pass_time();
  EXPECT_GE(store_->status().reclaimed_bytes, kBodyBytes);
}

// Nobody would look at it again before memory is short.
TEST_F(LoadRaces, ABodyThatIsRemovedWhileItIsLoadedLeavesRamAndVolume) {
  put("f", old_);
  leave_ram();
  Handle* reader = open("f", {});
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  read_begins(reader);
  volume_->wait_until_held([](const auto& held) { return !held.empty(); });
  EXPECT_TRUE(wait<void>([&](auto done) { store_->unlink(kRootId, "f", kCaller, std::move(done)); }));
  store_->release(reader);
  leave_ram();  // journaled: that was the last look at it
  volume_->let_go();
  for (int i = 0; i < 100 && !first_unit_; ++i) store_->pump();
  ASSERT_TRUE(first_unit_);
  EXPECT_TRUE(*first_unit_);
  pass_time();
  EXPECT_EQ(store_->status().memory_used_bytes, 0u);
  EXPECT_GE(store_->status().reclaimed_bytes, kBodyBytes);
}

// Those reads do not come through the volume, which holds writes back for them.
TEST_F(LoadRaces, ReadsOfWhatIsPassedThroughAreAnnounced) {
  put("f", old_);
  leave_ram();
  Handle* reader = open("f", {});
  const ObjectId id = store_->object_of(reader);
  store_->count_passthrough_open(id, /*direct=*/false, /*in_memory=*/true);
  EXPECT_EQ(volume_->expected_reads(), 0) << "from RAM";
  store_->count_passthrough_open(id, /*direct=*/false, /*in_memory=*/false);
  EXPECT_EQ(volume_->expected_reads(), 1);
  store_->release(reader);
}

}  // namespace load_races_test
}  // namespace kvcachefs::testing
