// Which bodies the kernel may read by itself: on a directory, for files in memory have no descriptors.
#include "store/load/backing_files.h"

#include <gtest/gtest.h>

#include <functional>

#include "store/load/testing/load_fixture.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace backing_files_test {

class BackingFilesTest : public LoadFixture {
 protected:
  void SetUp() override {
    auto opened = open_posix_volume(directory.path(), {});
    ASSERT_TRUE(opened) << opened.error().message;
    posix = *opened;
    on_disk.emplace(posix, FileIdentity{.volume_uuid = {}, .node = "test", .epoch = 1}, 8);
    backing.emplace(parts(false));
  }
  BackingFiles::Parts parts(bool always_verify) {
    return {*posix, *on_disk, tree, files, policy, accesses, unverified, counters, clock, always_verify};
  }
  // A journaled body with an extent of its own.
  ObjectPtr put_solo(uint64_t size_bytes) {
    auto made = on_disk->make(PlaceKind::kSolo);
    EXPECT_TRUE(made) << made.error().message;
    EXPECT_TRUE(made->file->truncate(size_bytes));
    ObjectRecord row = record(ObjectId{next_id++}, S_IFREG | 0644);
    row.body.size_bytes = size_bytes;
    row.body.place = {PlaceKind::kSolo, made->id, 0, size_bytes};
    const ObjectId id = row.id;
    index.put_object(std::move(row));
    return object(id);
  }
  bool passes(const ObjectPtr& body) { return backing->find(body->id).descriptor >= 0; }
  void change(const ObjectPtr& body, const std::function<void(Object&)>& how) {
    const auto lock = body->lock();
    how(*body);
  }

  test::TestDirectory directory;
  std::shared_ptr<Volume> posix;
  std::optional<Extents> on_disk;
  UnverifiedBodies unverified{{index, tree, reader, quarantine}, {ObjectId{7777}}};
  std::optional<BackingFiles> backing;
};

TEST_F(BackingFilesTest, AWholeBodyWithAnExtentOfItsOwnIsReadByTheKernel) {
  const ObjectPtr body = put_solo(9000);
  const BackingFile file = backing->find(body->id);
  EXPECT_GE(file.descriptor, 0);
  EXPECT_FALSE(file.in_memory);
  EXPECT_NE(file.keep, nullptr);
}

TEST_F(BackingFilesTest, NothingIsPassedThroughThatIsNotKnownToBeGoodOrMayChange) {
  const std::vector<std::pair<const char*, std::function<void(Object&)>>> cases = {
      {"changed", [](Object& body) { ++body.content_version; }},
      {"being sealed", [](Object& body) { body.sealing = true; }},
      {"in quarantine", [](Object& body) { body.base.quarantined = true; }},
      {"cut", [](Object& body) { body.base_valid_bytes = 1; }},
      {"changed in place", [](Object& body) { body.in_place = true; }},
      {"in a pack", [](Object& body) { body.base.place.kind = PlaceKind::kPacked; }},
  };
  for (const auto& [what, how] : cases) {
    const ObjectPtr body = put_solo(9000);
    EXPECT_TRUE(passes(body));
    change(body, how);
    EXPECT_FALSE(passes(body)) << what;
    change(body, [](Object& object) {
      object.content_version = object.sealed_version;
      object.sealing = false;
    });
  }
  next_id = 7777;
  EXPECT_FALSE(passes(put_solo(9000))) << "its bytes could not be verified";
  EXPECT_EQ(backing->find(ObjectId{4242}).descriptor, -1) << "it is not there";
  backing.emplace(parts(true));
  EXPECT_FALSE(passes(put_solo(9000))) << "every read is to be verified";
}

// The kernel would answer short; the daemon finds that the rest does not match.
TEST_F(BackingFilesTest, AnExtentThatIsTooShortIsNotOffered) {
  const ObjectPtr body = put_solo(100'000);
  const std::string path = on_disk->path(body->base.place.extent, PlaceKind::kSolo);
  ASSERT_TRUE((*posix->open(path, {.writable = true}))->truncate(99'999));
  EXPECT_FALSE(passes(body));
  ASSERT_TRUE((*posix->open(path, {.writable = true}))->truncate(100'000));
  EXPECT_TRUE(passes(body));
}

TEST_F(BackingFilesTest, WhatTheKernelRefusedOnceIsNotOfferedAgain) {
  const ObjectPtr body = put_solo(9000);
  backing->refuse(/*in_memory=*/true);
  EXPECT_TRUE(passes(body));
  backing->refuse(/*in_memory=*/false);
  EXPECT_FALSE(passes(body));
  EXPECT_FALSE(backing->passes_extents());
}

TEST_F(BackingFilesTest, KindsOfReadersAreRememberedForAWhile) {
  const ObjectPtr body = put_solo(9000);
  EXPECT_FALSE(backing->read_here_lately());
  EXPECT_FALSE(backing->passed_direct_lately());
  backing->note_read_here();
  backing->count_open(body->id, /*direct=*/true, /*in_memory=*/false);
  EXPECT_TRUE(backing->read_here_lately());
  EXPECT_TRUE(backing->passed_direct_lately());
  EXPECT_EQ(counters.passthrough_opens, 1u);
  clock.advance_ns(11'000'000'000);
  EXPECT_FALSE(backing->read_here_lately());
  EXPECT_FALSE(backing->passed_direct_lately());
}

}  // namespace backing_files_test
}  // namespace kvcachefs
