// What a name means after a removal that failed, and while several writers have versions of it.
#include <cerrno>
#include <optional>
#include <unistd.h>

#include "tests/fault/promises.h"

namespace kvcachefs::testing {
namespace name_promises_test {

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

}  // namespace name_promises_test
}  // namespace kvcachefs::testing
