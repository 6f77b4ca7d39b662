// The fixture of the tests of promises: a rig that is killed, loses its power, or whose volume fails, and comes back.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/object/handle.h"
#include "tests/fault/rig.h"

namespace kvcachefs::testing {

inline constexpr int64_t kUpkeepNs = 6'000'000'000;
inline constexpr size_t kPackedBytes = 50'000, kSoloBytes = 600'000;
inline constexpr SimVolume::PowerLoss kNothingKept{.seed = 1, .keep_probability = 0.0};
inline constexpr SimVolume::PowerLoss kAllKept{.seed = 1, .keep_probability = 1.0};

inline bool ends_with(const VolumeCall& call, std::string_view suffix) { return call.path.ends_with(suffix); }

class Promises : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { log::set_level(tracing() ? log::Level::kInfo : log::Level::kOff); }

  void start(Durability durability = Durability::kNone) {
    StoreOptions options = small_options(durability);
    options.raw_above_bytes = kMiB;
    rig_ = std::make_unique<Rig>(std::move(options));
    mount();
  }
  void mount() {
    rig_->set_hook([this](const VolumeCall& call) { return fault_ ? fault_(call) : Fault{}; });
    const Status mounted = rig_->mount();
    ASSERT_TRUE(mounted) << mounted.error().message;
  }
  // The daemon is killed; the next life finds the volume as it was seen, and the index.
  void kill_and_mount() { next_life(rig_->disk().crash_process(), /*keep_index=*/true); }
  void cut_power_and_mount(const SimVolume::PowerLoss& loss) {
    auto disk = rig_->disk().cut_power(loss);
    reboot(*disk);
    next_life(std::move(disk), /*keep_index=*/false);
  }
  void next_life(std::shared_ptr<SimVolume> disk, bool keep_index) {
    rig_->die();
    auto next = std::make_unique<Rig>(rig_->options(), std::move(disk));
    next->clock().advance_ns(rig_->clock().realtime_ns() - next->clock().realtime_ns() + 1'000'000'000);
    if (keep_index) next->set_index_from(rig_->index_directory());
    rig_ = std::move(next);
    mount();
  }

  static std::string content(char letter, size_t bytes) { return std::string(bytes, letter); }
  void put(const std::string& path, const std::string& bytes) {
    auto handle = rig_->create(path);
    ASSERT_TRUE(handle) << handle.error().message;
    ASSERT_TRUE(rig_->write(*handle, 0, bytes));
    ASSERT_TRUE(rig_->flush(*handle));
  }
  Rig::HandlePtr open(const std::string& path, bool write) {
    auto handle = rig_->open(path, {.write = write});
    EXPECT_TRUE(handle) << path;
    return handle ? std::move(*handle) : nullptr;
  }
  // A version of "f.tmp", written and closed by `writer`.
  void put_version(const Caller& writer, const std::string& bytes, ObjectId& id) {
    auto made = rig_->store().create(kRootId, "f.tmp", 0644, {.write = true}, writer);
    ASSERT_TRUE(made);
    id = made->first.id;
    Rig::HandlePtr handle(made->second, Rig::Release{rig_.get()});
    ASSERT_TRUE(rig_->write(handle, 0, bytes));
    ASSERT_TRUE(rig_->flush(handle));
  }
  // Another one, for `writer`, who is told that `before` is stale and looks "f.tmp" up again.
  void open_version(const Caller& writer, ObjectId before, Rig::HandlePtr& handle) {
    Store& store = rig_->store();
    ASSERT_FALSE(store.open(before, kRewrite, writer));
    auto opened = store.open(store.lookup(kRootId, "f.tmp", writer)->id, kRewrite, writer);
    ASSERT_TRUE(opened);
    handle = Rig::HandlePtr(*opened, Rig::Release{rig_.get()});
  }
  static constexpr OpenRequest kRewrite{.read = false, .write = true, .truncate = true};

  // A raw file of zeros, on the medium.
  void put_raw(const std::string& path) {
    put(path, "");
    ASSERT_TRUE(rig_->truncate(path, 2 * kMiB));
    ASSERT_TRUE(rig_->drain());
  }
  // The daemon ends before the client closes it.
  static void keep_open(Rig::HandlePtr& handle) { delete handle.release(); }
  void expect(const std::string& path, const std::string& bytes) {
    rig_->store().drop_caches();
    auto found = rig_->read(path);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(describe(*found), describe(Content(bytes))) << path;
  }
  void rot(const std::string& suffix, uint64_t offset) {
    for (const std::string& path : rig_->disk().all_files())
      if (path.ends_with(suffix)) {
        ASSERT_TRUE(rig_->disk().corrupt(path, offset, std::byte{0x40}));
      }
    rig_->store().drop_caches();
  }

  FaultHook fault_;
  std::unique_ptr<Rig> rig_;
};

}  // namespace kvcachefs::testing
