// What was promised, or said to have failed, stays so across whatever comes between: a kill and then a power loss, a medium that
// does not answer for a while, a sync that fails once, bytes that rot under a body that is written to.
#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>

#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/object/handle.h"
#include "tests/fault/rig.h"

namespace kvcachefs::testing {
namespace {

constexpr int64_t kUpkeepNs = 6'000'000'000;
constexpr size_t kPackedBytes = 50'000, kSoloBytes = 600'000;
constexpr SimVolume::PowerLoss kNothingKept{.seed = 1, .keep_probability = 0.0};
constexpr SimVolume::PowerLoss kAllKept{.seed = 1, .keep_probability = 1.0};

bool ends_with(const VolumeCall& call, std::string_view suffix) { return call.path.ends_with(suffix); }

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

TEST_F(Promises, WhatAKilledDaemonLeftIsSyncedWhenSomebodyAsks) {
  for (const bool raw : {false, true}) {
    SCOPED_TRACE(raw);
    start();
    if (raw) put_raw("f");
    const std::string bytes = content('a', raw ? 2 * kMiB : kPackedBytes);
    if (raw) {
      ASSERT_TRUE(rig_->write(open("f", true), 0, bytes));
    } else {
      put("f", bytes);
    }
    rig_->settle();  // on the volume and in the journal, nothing synced
    kill_and_mount();
    ASSERT_TRUE(rig_->fsync(open("f", false)));
    cut_power_and_mount(kNothingKept);
    expect("f", bytes);
  }
}

TEST_F(Promises, ABodyThatCannotBeReadAtTheStartIsKept) {
  start(Durability::kClose);
  put("f", content('a', kPackedBytes));
  put("g", content('g', kPackedBytes));  // will turn out not to be whole
  fault_ = [](const VolumeCall& call) {
    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kRead && ends_with(call, ".pack") ? EIO : 0};
  };
  cut_power_and_mount(kAllKept);
  rig_->settle();
  rig_->pass_time(kUpkeepNs);  // what nothing names is given back by now
  rot(".pack", 0x1000 + align_up(kPackedBytes, kBlockBytes) + 10);
  fault_ = nullptr;
  rig_->pass_time(kUpkeepNs);
  ASSERT_TRUE(rig_->drain());
  EXPECT_EQ(rig_->store().status().objects_quarantined, 1u) << "looked at again before anybody reads it";
  expect("f", content('a', kPackedBytes));
}

TEST_F(Promises, AFailedSyncOfRawBytesIsToldEveryTime) {
  for (const bool by_the_keeper : {false, true}) {
    SCOPED_TRACE(by_the_keeper);
    start();
    put_raw("f");
    put_raw("g");
    auto handle = open("f", true);
    ASSERT_TRUE(rig_->write(handle, 0, content('a', kPackedBytes)));
    int failures = 0;
    fault_ = [&](const VolumeCall& call) {
      const bool hit = call.kind == VolumeCall::Kind::kSync && ends_with(call, ".raw") && failures == 0;
      failures += hit ? 1 : 0;
      return Fault{.sys_errno = hit ? EIO : 0};
    };
    if (by_the_keeper) {
      rig_->settle();
      rig_->pass_time(kUpkeepNs);
      ASSERT_EQ(failures, 1);
    }
    EXPECT_FALSE(rig_->fsync(handle));
    EXPECT_FALSE(rig_->fsync(handle)) << "the kernel tells it once";
    EXPECT_TRUE(rig_->fsync(open("g", false))) << "another file";
    EXPECT_TRUE(rig_->drain());
    handle.reset();
    ASSERT_TRUE(rig_->truncate("f", 0));
    put("f2", content('b', kPackedBytes));
    EXPECT_TRUE(rig_->unmount());
  }
}

TEST_F(Promises, ACloseWithSyncIsOnTheMediumThoughNothingIsLeftToJournal) {
  start(Durability::kSync);
  put_raw("f");
  auto handle = open("f", true);
  ASSERT_TRUE(rig_->write(handle, 0, content('a', 2 * kMiB)));
  rig_->settle();  // somebody else's commit takes the new times along
  ASSERT_TRUE(rig_->flush(handle));
  handle.reset();
  cut_power_and_mount(kNothingKept);
  expect("f", content('a', 2 * kMiB));
}

// A pool of chunks that an engine sizes once and has open for days.
TEST_F(Promises, ARawFileThatIsNeverClosedIsThereHoweverTheDaemonEnds) {
  enum class End { kKill, kFlushAndPowerLoss, kUnmount };
  for (const End end : {End::kKill, End::kFlushAndPowerLoss, End::kUnmount}) {
    SCOPED_TRACE(static_cast<int>(end));
    start();
    auto handle = rig_->create("pool");
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig_->truncate("pool", 2 * kMiB));
    ASSERT_TRUE(rig_->write(*handle, 0, content('a', 2 * kMiB)));
    if (end == End::kKill) rig_->settle();
    if (end == End::kFlushAndPowerLoss) {
      ASSERT_TRUE(rig_->drain());
    }
    const uint64_t recorded = rig_->store().status().sealed_bodies;
    ASSERT_TRUE(rig_->write(*handle, 0, content('b', kMiB)));
    if (end == End::kFlushAndPowerLoss) {
      ASSERT_TRUE(rig_->drain());
    }
    if (end != End::kUnmount) {
      EXPECT_EQ(rig_->store().status().sealed_bodies, recorded) << "its record says nothing of its bytes";
    }
    keep_open(*handle);
    if (end == End::kKill) kill_and_mount();
    if (end == End::kFlushAndPowerLoss) cut_power_and_mount(kNothingKept);
    if (end == End::kUnmount) {
      ASSERT_TRUE(rig_->unmount());
      mount();
    }
    rig_->pass_time(kUpkeepNs);  // what nothing names is removed by now
    expect("pool", content('b', kMiB) + content('a', kMiB));
  }
}

TEST_F(Promises, WhatIsStillBeingWrittenIsLostAsAWhole) {
  for (const bool unmounted : {false, true}) {
    SCOPED_TRACE(unmounted);
    start();
    put("old", content('a', kPackedBytes));
    auto fresh = rig_->create("new");
    ASSERT_TRUE(fresh);
    ASSERT_TRUE(rig_->write(*fresh, 0, content('n', kPackedBytes)));
    auto changed = open("old", true);
    ASSERT_TRUE(rig_->drain());
    ASSERT_TRUE(rig_->write(changed, 0, content('b', kPackedBytes)));
    ASSERT_TRUE(rig_->drain()) << "does not wait for them";
    rig_->pass_time(kUpkeepNs);
    keep_open(*fresh);
    keep_open(changed);
    if (unmounted) {
      ASSERT_TRUE(rig_->unmount());
      mount();
    } else {
      kill_and_mount();
    }
    EXPECT_FALSE(*rig_->read("new")) << "absent";
    expect("old", content('a', kPackedBytes));
  }
}

TEST_F(Promises, AFailedWriteOfRawBytesMakesTheRenameFailUntilTheyAreWritten) {
  for (const bool emptied : {false, true}) {
    SCOPED_TRACE(emptied);
    start();
    put_raw("f");
    fault_ = [](const VolumeCall& call) {
      return Fault{.sys_errno = call.kind == VolumeCall::Kind::kWrite && ends_with(call, ".raw") ? EIO : 0};
    };
    EXPECT_FALSE(rig_->write(open("f", true), 2 * kMiB, content('a', kPackedBytes)));
    fault_ = nullptr;
    EXPECT_FALSE(rig_->rename("f", "final"));
    if (emptied) {
      ASSERT_TRUE(rig_->truncate("f", 0));
    } else {
      ASSERT_TRUE(rig_->write(open("f", true), 0, content('b', kPackedBytes)));
      EXPECT_FALSE(rig_->rename("f", "final")) << "other bytes";
      ASSERT_TRUE(rig_->write(open("f", true), 2 * kMiB, content('c', kPackedBytes)));
    }
    EXPECT_TRUE(rig_->rename("f", "final"));
    EXPECT_TRUE(rig_->unmount());
  }
}

// A body is written anew as a whole: one unit that rotted is enough to make that impossible.
TEST_F(Promises, ABodyThatCannotBeMadeAnewIsItsOwnersErrorAndNobodyElses) {
  start();
  put("f", content('a', kSoloBytes));
  ASSERT_TRUE(rig_->drain());
  rot(".solo", kSoloBytes - 10);
  auto handle = open("f", true);
  ASSERT_TRUE(rig_->write(handle, 0, "new"));
  put("g", content('g', kPackedBytes));
  EXPECT_TRUE(rig_->drain());
  EXPECT_FALSE(rig_->fsync(handle));
  handle.reset();
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
  mount();
  expect("g", content('g', kPackedBytes));
}

TEST_F(Promises, ANameInQuarantineThatIsWrittenAnewHasTheNewBytes) {
  constexpr size_t kBytes = 5 * kMiB / 2;  // loaded by several requests
  start();
  put("f", content('a', kBytes));
  ASSERT_TRUE(rig_->drain());
  rot(".solo", kBytes - 10);
  auto reader = open("f", false);
  EXPECT_FALSE(rig_->read(reader));  // and its good units stay in RAM
  rig_->settle();
  EXPECT_FALSE(*rig_->read("f")) << "absent";
  put("f", content('b', kBytes));
  reader.reset();
  EXPECT_TRUE(rig_->drain());
  rig_->pass_time(kUpkeepNs);
  EXPECT_EQ(rig_->store().status().errors_volume_write, 0u) << "the old body is written anew";
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
  mount();
  expect("f", content('b', kBytes));
}

// Removed, though the answer was an error: the kernel goes on knowing it for a while.
TEST_F(Promises, NothingIsMovedIntoADirectoryWhoseRemovalWasNotJournaled) {
  start(Durability::kClose);
  ASSERT_TRUE(rig_->make_directory("d"));
  put("f", content('a', kPackedBytes));
  ASSERT_TRUE(rig_->drain());
  Store& store = rig_->store();
  const ObjectId directory = store.lookup(kRootId, "d", {})->id, file = store.lookup(kRootId, "f", {})->id;
  std::optional<Status> removed, renamed;
  std::optional<Result<Stat>> linked;
  int failures = 0;
  fault_ = [&](const VolumeCall& call) {
    const bool hit = call.kind == VolumeCall::Kind::kWrite && ends_with(call, ".log") && failures == 0;
    failures += hit ? 1 : 0;
    return Fault{.sys_errno = hit ? EIO : 0};
  };
  store.remove_directory(kRootId, "d", [&](Status status) { removed = std::move(status); });
  rig_->settle();
  ASSERT_TRUE(removed);
  ASSERT_FALSE(*removed);
  ASSERT_EQ(failures, 1);
  store.rename(kRootId, "f", directory, "final", RenameMode::kReplace, {}, [&](Status status) { renamed = std::move(status); });
  store.link(file, directory, "other", {}, [&](Result<Stat> stat) { linked = std::move(stat); });
  rig_->settle();
  ASSERT_TRUE(renamed && linked);
  ASSERT_FALSE(*renamed);
  EXPECT_EQ(renamed->error().code, Code::kNotFound);
  ASSERT_FALSE(*linked);
  EXPECT_EQ(linked->error().code, Code::kNotFound);
  EXPECT_TRUE(rig_->drain());
  ASSERT_TRUE(rig_->unmount());
  mount();
  EXPECT_EQ(rig_->tree()->size(), 1u);
  EXPECT_FALSE(rig_->store().lookup(kRootId, "d", {}));
  expect("f", content('a', kPackedBytes));
}

// Killed between its two steps: the name goes on meaning what was finished.
TEST_F(Promises, AVersionThatIsNeverOpenedReplacesNothing) {
  start();
  const Caller writer{.thread_id = static_cast<uint32_t>(getpid())}, killed{.thread_id = 1};
  Store& store = rig_->store();
  ObjectId made;
  put_version(writer, content('a', kPackedBytes), made);
  if (HasFatalFailure()) return;
  rig_->clock().advance_ns(3'000'000'000);
  auto opened = store.open(made, kRewrite, killed);
  ASSERT_FALSE(opened);
  ASSERT_EQ(opened.error().code, Code::kStale);
  ASSERT_NE(store.lookup(kRootId, "f.tmp", killed)->id, made);
  for (int i = 0; i < 7; ++i) rig_->pass_time(10'000'000'000);
  EXPECT_EQ(store.lookup(kRootId, "f.tmp", {})->id, made);
  expect("f.tmp", content('a', kPackedBytes));
  ASSERT_TRUE(rig_->unmount());
  mount();
  expect("f.tmp", content('a', kPackedBytes));
}

// A writer that takes its time: until it is done the name means what was finished before.
TEST_F(Promises, AnUnfinishedVersionOutlivesNoFinishedOne) {
  start();
  const Caller writer{.thread_id = static_cast<uint32_t>(getpid())}, slow{.thread_id = 2};
  ObjectId made;
  put_version(writer, content('a', kPackedBytes), made);
  if (HasFatalFailure()) return;
  Rig::HandlePtr second;
  open_version(slow, made, second);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(rig_->write(second, 0, content('b', 10)));
  for (int i = 0; i < 7; ++i) rig_->pass_time(10'000'000'000);
  expect("f.tmp", content('a', kPackedBytes));
  ASSERT_TRUE(rig_->write(second, 10, content('b', 10)));
  ASSERT_TRUE(rig_->flush(second));
  second.reset();
  for (int i = 0; i < 7; ++i) rig_->pass_time(10'000'000'000);
  expect("f.tmp", content('b', 20));
}

// Each of two writers of one name clears up its own version. What the journal knew of is gone, too.
TEST_F(Promises, AVersionThatWasUnlinkedDoesNotComeBack) {
  for (const bool other_finishes : {false, true}) {
    SCOPED_TRACE(other_finishes);
    start();
    const Caller writer{.thread_id = static_cast<uint32_t>(getpid())}, other{.thread_id = 1};
    Store& store = rig_->store();
    ObjectId made;
    put_version(writer, content('a', kPackedBytes), made);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(rig_->drain());
    Rig::HandlePtr second;
    open_version(other, made, second);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(rig_->write(second, 0, content('b', kPackedBytes)));
    std::optional<Status> removed;
    store.unlink(kRootId, "f.tmp", writer, [&](Status status) { removed = std::move(status); });
    rig_->pass_time(kUpkeepNs);
    ASSERT_TRUE(removed && *removed);
    EXPECT_EQ(store.status().live_bytes, 0u) << "it is given back while the other writes";
    if (other_finishes) {
      ASSERT_TRUE(rig_->flush(second));
      ASSERT_TRUE(rig_->drain());
      second.reset();
    } else {
      keep_open(second);
    }
    kill_and_mount();
    if (other_finishes)
      expect("f.tmp", content('b', kPackedBytes));
    else
      EXPECT_FALSE(*rig_->read("f.tmp"));
  }
}

// A file that is journaled, written to and then renamed: nobody ever saw its older bytes under the new name.
class RenamedWhileItWaits : public Promises {
 protected:
  static constexpr size_t kBytes = 5'000;
  void SetUp() override {
    start();
    put("old", content('A', kBytes));
    put("new", content('o', kBytes));
    put("third", content('3', kBytes));
    ASSERT_TRUE(rig_->drain());
    writer_ = open("old", /*write=*/true);  // it stays open: what is written is not sealed by itself for a while
    ASSERT_TRUE(rig_->write(writer_, 0, content('B', kBytes)));
    ASSERT_TRUE(rig_->flush(writer_));
  }
  // Takes with it whatever name can be journaled now, but no body of others.
  void sync_something_else(const std::string& name = "else") {
    auto handle = rig_->create(name);
    ASSERT_TRUE(handle);
    ASSERT_TRUE(rig_->write(*handle, 0, content('e', kBytes)));
    ASSERT_TRUE(rig_->flush(*handle));
    ASSERT_TRUE(rig_->fsync(*handle));
  }
  std::string found(const std::string& name) {
    auto bytes = rig_->read(name);
    if (!bytes) return bytes.error().message;
    return *bytes ? (**bytes == content((**bytes)[0], kBytes) ? (*bytes)->substr(0, 1) : "a mixture") : "absent";
  }
  // Bodies of `bytes` times `letter`, wherever they lie: their number.
  static int lose(SimVolume& disk, char letter, size_t bytes) {
    int lost = 0;
    for (const std::string& path : disk.all_files()) {
      if (!path.ends_with(".pack")) continue;
      auto file = disk.open(path, {.writable = true});
      std::string all((*file)->info()->size_bytes, 0);
      EXPECT_TRUE((*file)->read(std::as_writable_bytes(std::span(all)), 0));
      for (size_t at = 0; (at = all.find(std::string(bytes, letter), at)) != std::string::npos; at += bytes, ++lost)
        EXPECT_TRUE(disk.corrupt(path, at, std::byte{0x40}));
    }
    return lost;
  }
  void finish_and_look() {
    writer_.reset();
    ASSERT_TRUE(rig_->drain());
    kill_and_mount();
  }

  Rig::HandlePtr writer_;
};

TEST_F(RenamedWhileItWaits, NoNameShowsWhatItNeverWas) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  sync_something_else();
  keep_open(writer_);
  kill_and_mount();
  EXPECT_EQ(found("else"), "e");
  EXPECT_EQ(found("new"), "o");
  EXPECT_EQ(found("old"), "A") << "it was journaled, and is called nothing else yet";
}

TEST_F(RenamedWhileItWaits, TheNameIsGivenWithTheBody) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  sync_something_else();
  finish_and_look();
  EXPECT_EQ(found("new"), "B");
  EXPECT_EQ(found("old"), "absent");
}

TEST_F(RenamedWhileItWaits, WhoSyncsItHasTheNewName) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  ASSERT_TRUE(rig_->fsync(writer_));
  keep_open(writer_);
  kill_and_mount();
  EXPECT_EQ(found("new"), "B");
  EXPECT_EQ(found("old"), "absent");
}

TEST_F(RenamedWhileItWaits, AndIsLostWithTheMachineIsNotLostToWhatTookItsName) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  put("old", content('x', kBytes));
  writer_.reset();
  rig_->settle();  // journaled, not synced
  auto disk = rig_->disk().cut_power(kAllKept);
  reboot(*disk);
  ASSERT_GT(lose(*disk, 'B', kBytes), 0);
  next_life(std::move(disk), /*keep_index=*/false);
  EXPECT_EQ(found("old"), "x");
  EXPECT_EQ(found("new"), "A");
}

TEST_F(RenamedWhileItWaits, ItsOldNameIsTakenByAnotherThatIsSynced) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  sync_something_else("old");
  finish_and_look();
  EXPECT_EQ(found("new"), "B");
  EXPECT_EQ(found("old"), "e");
}

TEST_F(RenamedWhileItWaits, ItIsRemovedWithAllItsNames) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  sync_something_else();
  ASSERT_TRUE(rig_->unlink("new"));
  finish_and_look();
  EXPECT_EQ(found("new"), "absent");
  EXPECT_EQ(found("old"), "absent");
}

// The same of a body that the journal names and the medium has not.
TEST_F(RenamedWhileItWaits, AndIsLostWithTheMachineIsWhatItWasBefore) {
  for (const bool removed : {false, true}) {
    SCOPED_TRACE(removed);
    if (removed) SetUp();
    if (HasFatalFailure()) return;
    ASSERT_TRUE(rig_->rename("old", "new"));
    writer_.reset();
    rig_->settle();  // journaled, not synced
    ASSERT_EQ(found("new"), "B");
    if (removed) {
      ASSERT_TRUE(rig_->unlink("new"));
    }
    rig_->settle();
    auto disk = rig_->disk().cut_power(kAllKept);
    reboot(*disk);
    ASSERT_GT(lose(*disk, 'B', kBytes), 0);
    next_life(std::move(disk), /*keep_index=*/false);
    EXPECT_EQ(found("new"), removed ? "absent" : "o");
    EXPECT_EQ(found("old"), removed ? "absent" : "A");
  }
}

// What it waited for does not come: there is no room for more, and its writer goes.
TEST_F(RenamedWhileItWaits, AndIsCutShortKeepsAName) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  sync_something_else();
  ASSERT_TRUE(rig_->store().set_option("capacity", "16M"));
  EXPECT_EQ(rig_->write(writer_, 0, content('C', 20 * kMiB)).error().code, Code::kNoSpace);
  fault_ = [](const VolumeCall& call) {  // no body can be written, for whatever reason
    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kWrite && ends_with(call, ".pack") ? EIO : 0};
  };
  writer_.reset();
  rig_->settle();
  fault_ = nullptr;
  kill_and_mount();
  EXPECT_TRUE(found("old") == "A" || found("new") == "A" || found("new") == "B") << found("old") << ", " << found("new");
}

// Nobody waits for it: what takes its old name is not held up, and it is not lost.
TEST_F(RenamedWhileItWaits, ItsOldNameIsTakenByAnyOther) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  put("old", content('x', kBytes));
  rig_->settle();
  sync_something_else();
  keep_open(writer_);
  kill_and_mount();
  EXPECT_EQ(found("old"), "x");
  EXPECT_EQ(found("new"), "A");
}

TEST_F(RenamedWhileItWaits, ASyncedFileIsRenamedToItsOldName) {
  ASSERT_TRUE(rig_->rename("old", "new"));
  sync_something_else("temporary");
  ASSERT_TRUE(rig_->rename("temporary", "old"));
  ASSERT_TRUE(rig_->sync_directory());
  sync_something_else("more");
  keep_open(writer_);
  kill_and_mount();
  EXPECT_EQ(found("old"), "e");
  EXPECT_EQ(found("temporary"), "absent");
  EXPECT_EQ(found("new"), "B") << "a sync of the directory keeps the rename, and what it gave the name to";
}

// Each takes the name of the one before.
TEST_F(RenamedWhileItWaits, AChainOfNamesLosesNone) {
  auto third = open("third", /*write=*/true);
  ASSERT_TRUE(rig_->write(third, 0, content('4', kBytes)));
  ASSERT_TRUE(rig_->flush(third));
  ASSERT_TRUE(rig_->rename("third", "fourth"));
  ASSERT_TRUE(rig_->rename("old", "third"));
  sync_something_else();
  sync_something_else("old");
  keep_open(writer_);
  keep_open(third);
  kill_and_mount();
  EXPECT_EQ(found("old"), "e");
  EXPECT_TRUE(found("third") == "A" || found("third") == "B") << found("third");
  EXPECT_TRUE(found("fourth") == "3" || found("fourth") == "4") << found("fourth");
}

TEST_F(RenamedWhileItWaits, TwoAreExchanged) {
  ASSERT_TRUE(rig_->rename("old", "third", RenameMode::kExchange));
  sync_something_else();
  EXPECT_EQ(found("third"), "B");
  EXPECT_EQ(found("old"), "3");
  keep_open(writer_);
  kill_and_mount();
  EXPECT_EQ(found("third"), "A");
  EXPECT_EQ(found("old"), "3");
}

TEST_F(Promises, ACheckpointThatFailedAtTheLastStepIsMadeAnew) {
  start();
  put("f", content('a', kPackedBytes));
  rig_->settle();
  int failures = 0;
  fault_ = [&](const VolumeCall& call) {
    const bool hit = call.kind == VolumeCall::Kind::kSyncDirectory && ends_with(call, "/checkpoint") && failures == 0;
    failures += hit ? 1 : 0;
    return Fault{.sys_errno = hit ? EIO : 0};
  };
  kill_and_mount();  // its first upkeep writes one
  rig_->settle();
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures, 1);
  rig_->pass_time(kUpkeepNs);
  EXPECT_GT(rig_->store().status().checkpoints, 0u);
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
}

// A network volume after a failover: what was open is dead, the files live.
TEST_F(Promises, WhatIsReadThroughADescriptorThatDiedIsReadThroughAnother) {
  constexpr size_t kTwoUnits = 400'000;
  start();
  put("f", content('a', kTwoUnits));
  ASSERT_TRUE(rig_->drain());
  rig_->store().drop_caches();
  bool dead = false;
  int refused = 0;
  fault_ = [&](const VolumeCall& call) {
    if (!ends_with(call, ".pack")) return Fault{};
    if (call.kind == VolumeCall::Kind::kOpen) dead = false;
    const bool hit = call.kind == VolumeCall::Kind::kRead && dead;
    refused += hit ? 1 : 0;
    return Fault{.sys_errno = hit ? ESTALE : 0};
  };
  expect("f", content('a', kTwoUnits));
  dead = true;
  expect("f", content('a', kTwoUnits));
  EXPECT_GT(refused, 0);
  rig_->store().drop_caches();
  auto handle = open("f", true);
  ASSERT_TRUE(rig_->write(handle, 0, "b"));  // loads the first unit only
  dead = true;
  refused = 0;
  EXPECT_TRUE(rig_->fsync(handle));
  EXPECT_GT(refused, 0);
  handle.reset();
  expect("f", "b" + content('a', kTwoUnits - 1));
}

TEST_F(Promises, NoDescriptorOfAnExtentIsOpenWhenItIsRemoved) {
  start();
  int removed = 0;
  fault_ = [&](const VolumeCall& call) {
    if (call.kind != VolumeCall::Kind::kRemoveFile || call.path.find("/extents/") == std::string::npos) return Fault{};
    ++removed;
    EXPECT_EQ(rig_->disk().open_files(call.path), 0u) << call.path;
    return Fault{};
  };
  for (const size_t bytes : {kPackedBytes, kSoloBytes}) {
    for (int round = 0; round < 2; ++round) {  // a pack is removed once another one is begun
      for (int i = 0; i < (bytes == kPackedBytes ? 400 : 2); ++i) put(fmt::format("f{}", i), content('a', bytes));
      ASSERT_TRUE(rig_->drain());
      expect("f0", content('a', bytes));
      for (int i = 0; i < (bytes == kPackedBytes ? 400 : 2); ++i) ASSERT_TRUE(rig_->unlink(fmt::format("f{}", i)));
      rig_->pass_time(kUpkeepNs);
      rig_->pass_time(kUpkeepNs);
    }
  }
  EXPECT_GT(removed, 4);
}

// --- a sync that fails: the kernel tells it once, and what was to be synced may be lost ---

class FailedSync : public Promises {
 protected:
  // The next sync of such a file fails, and what it was to write is lost; or all syncs of that file from then on.
  void fail_sync(const std::string& suffix, bool for_good = false, bool bytes_are_lost = true) {
    failures_ = 0;
    failed_.clear();
    fault_ = [=, this](const VolumeCall& call) {
      if (call.kind != VolumeCall::Kind::kSync || !ends_with(call, suffix)) return Fault{};
      if (failures_ > 0 && !(for_good && call.path == failed_)) return Fault{};
      ++failures_;
      failed_ = call.path;
      if (bytes_are_lost) static_cast<void>(rig_->disk().lose_unsynced(call.path));
      return Fault{.sys_errno = EIO};
    };
  }
  void put_renamed(const std::string& path, const std::string& bytes) {
    put("t", bytes);
    ASSERT_TRUE(rig_->rename("t", path));
  }
  bool is_there(const std::string& path) {
    const auto files = rig_->disk().all_files();
    return std::find(files.begin(), files.end(), path) != files.end();
  }
  int failures_ = 0;
  std::string failed_;
};

TEST_F(FailedSync, OfJournaledBodiesMovesThem) {
  for (const bool packed : {true, false}) {
    SCOPED_TRACE(packed);
    start();
    const std::string bytes = content('a', packed ? kPackedBytes : kSoloBytes);
    put_renamed("f", bytes);
    rig_->settle();  // journaled, not synced
    fail_sync(packed ? ".pack" : ".solo");
    rig_->pass_time(kUpkeepNs);
    rig_->pass_time(kUpkeepNs);
    EXPECT_EQ(failures_, 1);
    EXPECT_GT(rig_->errors(), 0u);
    EXPECT_TRUE(rig_->fsync(open("f", false)));
    cut_power_and_mount(kNothingKept);
    expect("f", bytes);
  }
}

// Before upkeep had its turn.
TEST_F(FailedSync, IsMadeUpForByTheNextFsync) {
  start();
  put_renamed("f", content('f', kPackedBytes));
  rig_->settle();
  put_renamed("g", content('g', kPackedBytes));
  fail_sync(".pack");
  auto f = open("f", false), g = open("g", false);
  EXPECT_FALSE(rig_->fsync(g) && rig_->fsync(f)) << "who asked hears of it";
  ASSERT_EQ(failures_, 1);
  EXPECT_TRUE(rig_->fsync(f));
  EXPECT_TRUE(rig_->fsync(g));
  f.reset();
  g.reset();
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', kPackedBytes));
  expect("g", content('g', kPackedBytes));
}

TEST_F(FailedSync, OfWhatIsNotInMemoryAnyMoreMakesItAbsent) {
  for (const bool packed : {true, false}) {
    SCOPED_TRACE(packed);
    start();
    put_renamed("f", content('a', packed ? kPackedBytes : kSoloBytes));
    rig_->settle();
    rig_->store().drop_caches();
    auto handle = open("f", false);
    fail_sync(packed ? ".pack" : ".solo");
    rig_->pass_time(kUpkeepNs);
    ASSERT_EQ(failures_, 1);
    EXPECT_FALSE(rig_->fsync(handle));
    handle.reset();
    put("g", content('g', kPackedBytes));
    EXPECT_TRUE(rig_->drain()) << "no concern of others";
    EXPECT_FALSE(*rig_->read("f"));
    EXPECT_EQ(rig_->store().status().objects_quarantined, 1u);
    EXPECT_EQ(rig_->store().status().staged_bytes, 0u);
    cut_power_and_mount(kNothingKept);
    EXPECT_FALSE(*rig_->read("f"));
    expect("g", content('g', kPackedBytes));
  }
}

// The kernel has the bytes yet, as written: only they are not on the medium.
TEST_F(FailedSync, OfWhatCanStillBeReadLosesNothing) {
  start();
  put_renamed("f", content('a', kSoloBytes));
  rig_->settle();
  rig_->store().drop_caches();
  fail_sync(".solo", /*for_good=*/true, /*bytes_are_lost=*/false);
  rig_->pass_time(kUpkeepNs);
  ASSERT_GT(failures_, 0);
  EXPECT_TRUE(rig_->drain());
  cut_power_and_mount(kNothingKept);
  expect("f", content('a', kSoloBytes));
}

TEST_F(FailedSync, ForGoodKeepsNothingElseBack) {
  for (const bool packed : {true, false}) {
    SCOPED_TRACE(packed);
    start();
    put_renamed("f", content('f', packed ? kPackedBytes : kSoloBytes));
    put_renamed("old", content('o', packed ? kPackedBytes : kSoloBytes));
    ASSERT_TRUE(rig_->drain());
    put_renamed("g", content('g', packed ? kPackedBytes : kSoloBytes));
    rig_->settle();
    fail_sync(packed ? ".pack" : ".solo", /*for_good=*/true);
    rig_->pass_time(kUpkeepNs);
    put_renamed("h", content('h', kPackedBytes));
    ASSERT_TRUE(rig_->unlink("old"));
    EXPECT_TRUE(rig_->drain());
    const uint64_t commits = rig_->store().status().index_commits;
    ASSERT_TRUE(rig_->unlink("f"));
    for (int i = 0; i < 3; ++i) rig_->pass_time(kUpkeepNs);
    EXPECT_EQ(failures_, 1) << "it is not tried again";
    EXPECT_GT(rig_->store().status().index_commits, commits);
    EXPECT_EQ(rig_->store().status().reclaimable_bytes, 0u);
    EXPECT_FALSE(is_there(failed_)) << "all that was in it is elsewhere, or gone";
    EXPECT_EQ(rig_->store().status().state, "ok");
    cut_power_and_mount(kNothingKept);
    EXPECT_FALSE(*rig_->read("f"));
    expect("g", content('g', packed ? kPackedBytes : kSoloBytes));
    expect("h", content('h', kPackedBytes));
  }
}

TEST_F(FailedSync, OfEverythingDoesNotWriteForEver) {
  constexpr int kBodies = 8;
  start();
  for (int i = 0; i < kBodies; ++i) put_renamed("f" + std::to_string(i), content(static_cast<char>('a' + i), kSoloBytes));
  rig_->settle();
  const uint64_t once = rig_->store().status().write_volume_bytes;
  fault_ = [&](const VolumeCall& call) {
    const bool hit = call.kind == VolumeCall::Kind::kSync && (ends_with(call, ".pack") || ends_with(call, ".solo"));
    return hit ? Fault{.sys_errno = EIO} : Fault{};
  };
  for (int i = 0; i < 40; ++i) rig_->pass_time(kUpkeepNs);
  EXPECT_FALSE(rig_->drain());
  EXPECT_LE(rig_->store().status().write_volume_bytes, 4 * once);
  fault_ = [](const VolumeCall&) { return Fault{}; };
  constexpr int64_t kLongestPauseNs = 600'000'000'000;
  for (int i = 0; i < 3; ++i) rig_->pass_time(kLongestPauseNs);
  EXPECT_TRUE(rig_->drain()) << "a body that was tried by itself went well: all follow";
  cut_power_and_mount(kNothingKept);
  for (int i = 0; i < kBodies; ++i) expect("f" + std::to_string(i), content(static_cast<char>('a' + i), kSoloBytes));
}

TEST_F(FailedSync, OnAFullVolumeMovesAllTheSame) {
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = 17 * kMiB;
  options.keep_free_bytes = 1;
  rig_ = std::make_unique<Rig>(options);
  mount();
  put_renamed("f", content('f', 10 * kMiB));
  rig_->settle();
  fail_sync(".solo");
  rig_->pass_time(kUpkeepNs);
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  EXPECT_FALSE(is_there(failed_));
  put("g", content('g', 5 * kMiB));
  EXPECT_TRUE(rig_->drain());
  EXPECT_LE(rig_->store().status().physical_bytes, options.capacity_bytes);
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', 10 * kMiB));
  expect("g", content('g', 5 * kMiB));
}

// Renamed before it is closed, as engines do: the body is journaled, and goes on being open.
TEST_F(FailedSync, OfABodyThatIsStillOpenMovesIt) {
  start(Durability::kClose);
  auto handle = rig_->create("t");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(rig_->write(*handle, 0, content('f', kPackedBytes)));
  ASSERT_TRUE(rig_->rename("t", "f"));
  fail_sync(".pack");
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  const int64_t before = rig_->store().stat(rig_->store().lookup(kRootId, "f", {})->id)->mtime_ns;
  EXPECT_TRUE(rig_->drain());
  EXPECT_EQ(rig_->store().stat(rig_->store().lookup(kRootId, "f", {})->id)->mtime_ns, before);
  keep_open(*handle);
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', kPackedBytes));
}

TEST_F(FailedSync, OfASpillFileMovesWhatItTook) {
  StoreOptions options = small_options(Durability::kNone);
  options.memory_bytes = 16 * kMiB;
  rig_ = std::make_unique<Rig>(options);
  mount();
  auto handle = rig_->create("f");
  ASSERT_TRUE(handle);
  const std::string bytes = content('f', 24 * kMiB);
  for (size_t at = 0; at < bytes.size(); at += kMiB) ASSERT_TRUE(rig_->write(*handle, at, bytes.substr(at, kMiB)));
  put("other", content('o', kPackedBytes));
  fail_sync(".solo", /*for_good=*/true, /*bytes_are_lost=*/false);
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  ASSERT_TRUE(rig_->flush(*handle));
  handle->reset();
  EXPECT_TRUE(rig_->drain());
  rig_->pass_time(kUpkeepNs);
  EXPECT_FALSE(is_there(failed_));
  EXPECT_EQ(rig_->store().status().staged_bytes, 0u);
  cut_power_and_mount(kNothingKept);
  expect("f", bytes);
}

// A writer has it open, with changes that may not be published yet: the journal knows the body in the old place only.
TEST_F(FailedSync, OfABodyThatCannotMoveLetsNothingBeMarkedAsSafe) {
  for (const bool closed : {false, true}) {
    SCOPED_TRACE(closed);
    start();
    put_renamed("f", content('f', kSoloBytes));
    rig_->settle();
    auto handle = open("f", true);
    ASSERT_TRUE(rig_->write(handle, 0, "new"));
    fail_sync(".solo");
    rig_->pass_time(kUpkeepNs);
    rig_->pass_time(kUpkeepNs);
    ASSERT_EQ(failures_, 1);
    EXPECT_FALSE(rig_->drain());
    put_renamed("g", content('g', kPackedBytes));
    EXPECT_TRUE(rig_->fsync(open("g", false)));
    if (closed) {
      rig_->store().drop_caches();
      EXPECT_FALSE(rig_->flush(handle) && rig_->fsync(handle)) << "a part of it is gone";
      handle.reset();
      rig_->pass_time(kUpkeepNs);
      rig_->pass_time(kUpkeepNs);
      EXPECT_TRUE(rig_->drain()) << "nobody can complete it: it is given up";
    } else {
      keep_open(handle);
    }
    cut_power_and_mount(kNothingKept);
    auto found = rig_->read("f");
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_FALSE(*found) << "absent";
    expect("g", content('g', kPackedBytes));
  }
}

// Neither eviction nor the end of a change that was refused takes what is in memory only.
TEST_F(FailedSync, OfBodiesThatCannotBeWrittenYetKeepsThemInMemory) {
  StoreOptions options = small_options(Durability::kNone);
  options.capacity_bytes = 16 * kMiB;
  options.keep_free_bytes = 1;
  rig_ = std::make_unique<Rig>(options);
  mount();
  put_renamed("f", content('f', kSoloBytes));
  rig_->settle();
  bool refuses = true;
  fail_sync(".solo");
  fault_ = [&, fail = fault_](const VolumeCall& call) {
    const bool hit = refuses && failures_ > 0 && call.kind == VolumeCall::Kind::kWrite && ends_with(call, ".solo");
    return hit ? Fault{.sys_errno = EIO} : fail(call);
  };
  rig_->pass_time(kUpkeepNs);
  ASSERT_EQ(failures_, 1);
  rig_->store().drop_caches();
  auto handle = open("f", true);
  EXPECT_FALSE(rig_->write(handle, 20 * kMiB, "x"));
  EXPECT_FALSE(rig_->flush(handle));
  handle.reset();
  refuses = false;
  rig_->pass_time(kUpkeepNs);
  EXPECT_TRUE(rig_->drain());
  cut_power_and_mount(kNothingKept);
  expect("f", content('f', kSoloBytes));
}

TEST_F(FailedSync, AtTheEndIsMadeUpFor) {
  start();
  put_renamed("f", content('f', kPackedBytes));
  rig_->settle();
  put_renamed("g", content('g', kPackedBytes));
  fail_sync(".pack");
  const Status closed = rig_->unmount();
  EXPECT_TRUE(closed) << closed.error().message;
  ASSERT_EQ(failures_, 1);
  rig_ = std::make_unique<Rig>(rig_->options(), rig_->disk().cut_power(kNothingKept));
  reboot(rig_->disk());
  mount();
  expect("f", content('f', kPackedBytes));
  expect("g", content('g', kPackedBytes));
}

}  // namespace
}  // namespace kvcachefs::testing
