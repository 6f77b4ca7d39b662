// Notes left by a failed sync; behaviour when descriptors run short.
#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/extent/extents.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {
namespace extents_test {

class FailedSyncs : public ::testing::Test {
 protected:
  Extents::Made make(PlaceKind kind) {
    auto made = extents_.make(kind);
    EXPECT_TRUE(made) << made.error().message;
    return *made;
  }
  int syncs_ = 0;
  bool fail_ = false;
  std::function<void()> on_sync_;
  Extents extents_{make_fault_volume(make_sim_volume(),
                                     [this](const VolumeCall& call) {
                                       if (call.kind != VolumeCall::Kind::kSync) return Fault{};
                                       ++syncs_;
                                       if (on_sync_) on_sync_();
                                       return Fault{.sys_errno = fail_ ? EIO : 0};
                                     }),
                   FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
};

TEST_F(FailedSyncs, AreNotTriedAgain) {
  for (const bool ahead : {false, true}) {
    const Extents::Made lost = make(PlaceKind::kPacked);
    fail_ = true;
    EXPECT_FALSE(ahead ? extents_.sync_ahead() : extents_.sync_all());
    fail_ = false;
    syncs_ = 0;
    const Extents::Made good = make(PlaceKind::kPacked);
    extents_.note_unsynced(lost.id, PlaceKind::kPacked, lost.file);
    EXPECT_TRUE(extents_.sync_all()) << "it was told, and is no reason to keep others back";
    EXPECT_EQ(syncs_, 1) << "of the good one";
    EXPECT_TRUE(extents_.is_lost(lost.id));
    EXPECT_FALSE(extents_.is_lost(good.id));
    EXPECT_FALSE(extents_.sync({good.id, lost.id})) << "who asks for it";
    EXPECT_FALSE(extents_.sync({lost.id})) << "every time";
    EXPECT_TRUE(extents_.sync({good.id}));
    EXPECT_EQ(extents_.lost().size(), 1u);
    ASSERT_TRUE(extents_.remove(lost.id, PlaceKind::kPacked));
    EXPECT_TRUE(extents_.lost().empty());
  }
}

TEST_F(FailedSyncs, OfRawFilesAreToldToWhoAsksForThem) {
  const Extents::Made raw = make(PlaceKind::kRaw);
  fail_ = true;
  EXPECT_TRUE(extents_.sync_all());
  EXPECT_FALSE(extents_.told_of_raw({raw.id}));
  EXPECT_FALSE(extents_.is_lost(raw.id));
}

TEST_F(FailedSyncs, AreNoProofThatTheBytesAreOnTheMedium) {
  const Extents::Made made = make(PlaceKind::kPacked);
  extents_.note_unsynced(made.id, PlaceKind::kPacked, made.file, 100);
  extents_.note_unsynced(made.id, PlaceKind::kPacked, made.file, 20);
  EXPECT_EQ(extents_.synced_bytes(), 0u);
  ASSERT_TRUE(extents_.sync_all());
  EXPECT_EQ(extents_.synced_bytes(), 120u);
  extents_.note_unsynced(made.id, PlaceKind::kPacked, made.file, 3);
  fail_ = true;
  EXPECT_FALSE(extents_.sync_all());
  fail_ = false;
  EXPECT_TRUE(extents_.sync_all());
  EXPECT_EQ(extents_.synced_bytes(), 120u) << "the file is lost, and not synced again";
}

TEST_F(FailedSyncs, OfWhatIsRemovedMeanwhileSayNothing) {
  for (const PlaceKind kind : {PlaceKind::kRaw, PlaceKind::kPacked}) {
    const Extents::Made made = make(kind);
    fail_ = true;
    on_sync_ = [&] { ASSERT_TRUE(extents_.remove(made.id, kind)); };
    EXPECT_TRUE(extents_.sync({made.id}));
    fail_ = false;
    on_sync_ = nullptr;
    EXPECT_TRUE(extents_.told_of_raw({made.id}));
    EXPECT_TRUE(extents_.lost().empty());
  }
}

// As others do it below the store.
Status take_name(Volume& volume, const std::string& path, const std::string& how) {
  const bool of_directory = how.starts_with("its directory");
  const std::string name = of_directory ? path.substr(0, path.rfind('/')) : path;
  const bool is_removed = how == "removed" || how == "replaced";
  KVC_TRY(is_removed ? volume.remove_file(name) : volume.rename(name, "elsewhere"));
  if (how == "a directory") return volume.make_directory(name);
  if (!how.ends_with("renamed") && how != "removed") KVC_TRY(volume.open(name, {.create_exclusive = true}));
  return {};
}

// The file's bytes cannot be found by its name any more, or other bytes are there.
TEST(TakenNames, FailTheNextSyncOfThatFile) {
  for (const PlaceKind kind : {PlaceKind::kPacked, PlaceKind::kSolo, PlaceKind::kRaw})
    for (const char* how : {"removed", "renamed", "replaced", "replaced and kept", "a directory", "its directory renamed", "its directory replaced"}) {
      const std::shared_ptr<SimVolume> volume = make_sim_volume();
      Extents extents{volume, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
      const auto good = extents.make(kind), taken = extents.make(kind);
      ASSERT_TRUE(good && taken);
      extents.note_unsynced(good->id, kind, good->file);
      ASSERT_TRUE(extents.sync_all());
      ASSERT_TRUE(take_name(*volume, extents.path(taken->id, kind), how)) << how;
      extents.note_unsynced(taken->id, kind, taken->file);
      const bool raw = kind == PlaceKind::kRaw;
      EXPECT_EQ(extents.sync({taken->id}).has_value(), raw) << how;
      EXPECT_NE(extents.told_of_raw({taken->id}).has_value(), raw) << how;
      EXPECT_NE(extents.is_lost(taken->id), raw) << how;
      EXPECT_TRUE(extents.sync({good->id}) && extents.told_of_raw({good->id})) << how;
    }
}

// A directory that others remove while extents are made in it.
class LostDirectory : public ::testing::Test {
 protected:
  const std::string epoch_ = epoch_directory("test", 1);
  const std::shared_ptr<SimVolume> volume_ = make_sim_volume();
  Extents extents_{volume_, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
};

TEST_F(LostDirectory, IsMadeAnewForTheNextExtent) {
  const auto first = extents_.make(PlaceKind::kSolo);
  ASSERT_TRUE(first);
  uint64_t seq = first->id.seq;
  for (const char* which : {"/extents/0", "/extents"}) {
    ASSERT_TRUE(volume_->rename(epoch_ + which, fmt::format("elsewhere{}", seq)));
    const auto next = extents_.make(PlaceKind::kPacked);
    ASSERT_TRUE(next) << which << next.error().message;
    EXPECT_EQ(next->id.seq, ++seq) << "no number is used up";
    EXPECT_TRUE(volume_->info(extents_.path(next->id, PlaceKind::kPacked)));
    EXPECT_TRUE(extents_.sync({next->id}));
  }
  EXPECT_FALSE(extents_.sync({first->id}));
}

TEST_F(LostDirectory, IsToldOnlyIfItWasAbsent) {
  const auto told = [] { return std::ranges::count_if(log::recent(), [](const std::string& line) { return line.contains("was removed by others while"); }); };
  int stale = 1;
  Extents extents{make_fault_volume(volume_, [&](const VolumeCall& call) {
                    return Fault{.sys_errno = call.kind == VolumeCall::Kind::kCreate && stale-- > 0 ? ESTALE : 0};
                  }),
                  FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
  const auto before = told();
  ASSERT_TRUE(extents.make(PlaceKind::kSolo));
  EXPECT_EQ(stale, -1) << "it was tried again";
  EXPECT_EQ(told(), before) << "an ESTALE that passes";
  ASSERT_TRUE(volume_->rename(epoch_ + "/extents/0", "elsewhere"));
  ASSERT_TRUE(extents.make(PlaceKind::kSolo));
  EXPECT_EQ(told(), before + 1);
}

TEST_F(LostDirectory, OfTheEpochIsNotMadeAnew) {
  const auto first = extents_.make(PlaceKind::kSolo);
  ASSERT_TRUE(first);
  ASSERT_TRUE(volume_->rename(epoch_, "elsewhere"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(extents_.make(PlaceKind::kPacked).error().code, Code::kIo);
  EXPECT_FALSE(volume_->info(epoch_)) << "the volume is gone";
  ASSERT_TRUE(volume_->rename("elsewhere", epoch_));
  const auto next = extents_.make(PlaceKind::kPacked);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->id.seq, first->id.seq + 1) << "failed attempts used up no numbers";
}

TEST_F(LostDirectory, LeavesTheOpenFileForReadingWhatHasToMove) {
  auto made = extents_.make(PlaceKind::kSolo);
  ASSERT_TRUE(made);
  alignas(kBlockBytes) std::byte block[kBlockBytes] = {std::byte{7}};
  const std::span<const std::byte> piece(block);
  ASSERT_TRUE(made->file->write({&piece, 1}, 0));
  made->file.reset();
  ASSERT_TRUE(volume_->remove_file(extents_.path(made->id, PlaceKind::kSolo)));
  EXPECT_FALSE(extents_.sync_all());
  const auto file = extents_.open(made->id, PlaceKind::kSolo);
  ASSERT_TRUE(file) << file.error().message;
  block[0] = {};
  ASSERT_TRUE((*file)->read(block, 0));
  EXPECT_EQ(block[0], std::byte{7});
}

class FewDescriptors : public ::testing::Test {
 protected:
  Result<Extents::Made> make_solo() { return extents_.make_if_few_open(PlaceKind::kSolo); }
  bool lacks_ = false;
  VolumeCall::Kind called_ = VolumeCall::Kind::kOpen, gives_back_ = VolumeCall::Kind::kSync;  // called_ lacks a descriptor until a call of kind gives_back_
  std::weak_ptr<File> open_;  // while this file is open, called_ lacks one too
  int syncs_ = 0, asked_ = 0;
  Extents extents_{make_fault_volume(make_sim_volume(),
                                     [this](const VolumeCall& call) {
                                       syncs_ += call.kind == VolumeCall::Kind::kSync;
                                       if (call.kind == gives_back_) lacks_ = false;
                                       return Fault{.sys_errno = call.kind == called_ && (lacks_ || !open_.expired()) ? EMFILE : 0};
                                     }),
                   FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8};
};

TEST_F(FewDescriptors, NoMoreAreMadeThanTheirShareUntilSomeAreSynced) {
  extents_.limit_made(4, [this] { ++asked_; });
  std::vector<Extents::Made> made;
  while (auto one = make_solo()) made.push_back(*std::move(one));
  EXPECT_EQ(made.size(), 4u);
  EXPECT_TRUE(lacks_files(make_solo().error()));
  EXPECT_EQ(asked_, 1) << "nobody has answered yet";
  EXPECT_TRUE(extents_.take_asked_for_syncs());
  ASSERT_TRUE(extents_.sync_ahead());
  EXPECT_FALSE(make_solo()) << "they are being written still";
  EXPECT_TRUE(extents_.make(PlaceKind::kPacked)) << "for what has no other place";
  EXPECT_EQ(asked_, 2);
  made.clear();
  EXPECT_TRUE(make_solo());
}

TEST_F(FewDescriptors, WhatIsOpenForItsSyncIsRead) {
  const ExtentId id = make_solo()->id;
  lacks_ = true;
  EXPECT_TRUE(extents_.open(id, PlaceKind::kSolo));
  EXPECT_EQ(syncs_, 0);
}

TEST_F(FewDescriptors, OneIsSyncedAndClosedForARead) {
  const ExtentId id = make_solo()->id;
  ASSERT_TRUE(extents_.sync_all());
  const Extents::Made written = *make_solo();
  ASSERT_TRUE(make_solo() && make_solo());
  syncs_ = 0;
  lacks_ = true;
  EXPECT_TRUE(extents_.open(id, PlaceKind::kSolo));
  EXPECT_EQ(syncs_, 1) << "not that which is being written, nor more than are needed";
}

TEST_F(FewDescriptors, DirectoriesAreSyncedWhenTheirFilesAreClosed) {
  called_ = VolumeCall::Kind::kSyncDirectory;
  open_ = make_solo()->file;
  EXPECT_TRUE(extents_.sync_all());
  ASSERT_TRUE(extents_.keep_spares(1));
  open_.reset();
  gives_back_ = VolumeCall::Kind::kRemoveFile;
  lacks_ = true;
  EXPECT_TRUE(extents_.sync_all()) << "a spare one was given up";
  EXPECT_TRUE(extents_.give_up_spare()) << "and not the other";
  EXPECT_FALSE(extents_.give_up_spare());
}

}  // namespace extents_test
}  // namespace kvcachefs
