// What a rename does to a file whose new bytes are not journaled yet.
#include <span>

#include "tests/fault/promises.h"

namespace kvcachefs::testing {
namespace renamed_unsealed_test {

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

}  // namespace renamed_unsealed_test
}  // namespace kvcachefs::testing
