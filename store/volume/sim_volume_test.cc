// What a simulated disk keeps and loses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <thread>

#include "store/base/bytes.h"
#include "store/volume/fault_volume.h"
#include "store/volume/sim_content.h"
#include "store/volume/test_directory.h"

namespace kvcachefs {
namespace sim_volume_test {

using test::AlignedBuffer;
using test::write_file_atomically;

FilePtr create(Volume& volume, const std::string& path, bool direct = false) {
  auto file = volume.open(path, {.create_exclusive = true, .direct = direct});
  EXPECT_TRUE(file) << file.error().message;
  return file ? *file : nullptr;
}
Status write(File& file, std::span<const std::byte> data, uint64_t offset) {
  const std::span<const std::byte> pieces[] = {data};
  return file.write(pieces, offset);
}
Status write(File& file, std::string_view text, uint64_t offset = 0) { return write(file, as_bytes(text), offset); }
std::string text_of(Volume& volume, const std::string& path) {
  auto content = read_file(volume, path, kGiB);
  return content ? std::string(as_text(*content)) : "<" + std::string(code_name(content.error().code)) + ">";
}
std::map<std::string, std::string> dump(SimVolume& volume) {
  std::map<std::string, std::string> files;
  for (const auto& path : volume.all_files()) files[path] = text_of(volume, path);
  return files;
}
constexpr SimVolume::PowerLoss kLoseAll = {.seed = 1, .keep_probability = 0, .tear_bytes = 4096};
constexpr SimVolume::PowerLoss kKeepAll = {.seed = 1, .keep_probability = 1, .tear_bytes = 4096};

TEST(SimContent, AllocationAndHoles) {
  SimContent content;
  const AlignedBuffer data(3 * kBlockBytes, 1);
  content.write(kBlockBytes, data.span(0, 2 * kBlockBytes));
  EXPECT_EQ(content.allocated_bytes(), 2 * kBlockBytes);
  EXPECT_EQ(content.next_data(0).value(), kBlockBytes);
  EXPECT_EQ(content.next_hole(0).value(), 0u);
  EXPECT_EQ(content.next_hole(kBlockBytes + 5).value(), 3 * kBlockBytes);
  EXPECT_FALSE(content.next_data(3 * kBlockBytes));
  EXPECT_FALSE(content.next_hole(3 * kBlockBytes));
  EXPECT_EQ(content.missing_bytes(0, 4 * kBlockBytes), 2 * kBlockBytes);
  content.allocate(8 * kBlockBytes, 1);
  EXPECT_EQ(content.size(), 8 * kBlockBytes + 1);
  EXPECT_EQ(content.allocated_bytes(), 3 * kBlockBytes);
  EXPECT_FALSE(content.next_data(3 * kBlockBytes));  // reserved blocks hold no data
  const SimContent copy = content;
  content.flip(kBlockBytes, std::byte{0xff});
  std::byte changed{};
  std::byte kept{};
  content.read({&changed, 1}, kBlockBytes);
  copy.read({&kept, 1}, kBlockBytes);
  EXPECT_EQ(changed, kept ^ std::byte{0xff});
}

TEST(SimVolume, UnsyncedIsLostSyncedStays) {
  const auto volume = make_sim_volume();
  const FilePtr file = create(*volume, "f");
  ASSERT_TRUE(write(*file, "safe"));
  ASSERT_TRUE(file->sync_data());
  ASSERT_TRUE(volume->sync_directory(""));
  ASSERT_TRUE(write(*file, "LOST"));
  ASSERT_TRUE(write(*file, "grown", 10));
  create(*volume, "unsynced");
  const auto after = volume->cut_power(kLoseAll);
  EXPECT_EQ(after->all_files(), std::vector<std::string>{"f"});
  EXPECT_EQ(text_of(*after, "f"), "safe");
  // The old one is dead, its handles too.
  EXPECT_EQ(file->read({}, 0).error().sys_errno, EIO);
  EXPECT_EQ(write(*file, "x").error().sys_errno, EIO);
  EXPECT_EQ(volume->list("").error().sys_errno, EIO);
  EXPECT_EQ(volume->open("f", {}).error().sys_errno, EIO);
}

TEST(SimVolume, SyncOfAFileDoesNotMakeItsNameDurable) {
  const auto volume = make_sim_volume();
  ASSERT_TRUE(volume->make_directories("a/b"));
  const FilePtr file = create(*volume, "a/b/f");
  ASSERT_TRUE(write(*file, "x"));
  ASSERT_TRUE(file->sync_data());
  ASSERT_TRUE(volume->sync_directory("a/b"));
  EXPECT_TRUE(volume->cut_power(kLoseAll)->all_files().empty());  // a/b itself has no durable name
  const auto again = make_sim_volume();
  ASSERT_TRUE(again->make_directories("a/b"));
  const FilePtr second = create(*again, "a/b/f");
  ASSERT_TRUE(write(*second, "x"));
  for (const char* directory : {"a/b", "a", ""}) ASSERT_TRUE(again->sync_directory(directory));
  const auto after = again->cut_power(kLoseAll);
  EXPECT_EQ(text_of(*after, "a/b/f"), "");  // the name is there, the data was never synced
}

TEST(SimVolume, KeepingAllIsTheProcessCrash) {
  const auto volume = make_sim_volume();
  ASSERT_TRUE(volume->make_directories("d/e"));
  const FilePtr file = create(*volume, "d/f");
  const AlignedBuffer data(100'000, 3);
  ASSERT_TRUE(write(*file, data.span(), 777));
  ASSERT_TRUE(file->punch(5000, 20'000));
  ASSERT_TRUE(file->truncate(90'000));
  ASSERT_TRUE(file->truncate(95'000));
  ASSERT_TRUE(file->allocate(100'000, 10'000));
  ASSERT_TRUE(volume->rename("d/f", "d/e/g"));
  create(*volume, "gone");
  ASSERT_TRUE(volume->remove_file("gone"));
  const auto crashed = volume->crash_process();
  const auto cut = volume->cut_power(kKeepAll);
  EXPECT_EQ(crashed->all_files(), std::vector<std::string>{"d/e/g"});
  EXPECT_EQ(dump(*crashed), dump(*cut));
  EXPECT_EQ(crashed->info("d/e/g")->allocated_bytes, cut->info("d/e/g")->allocated_bytes);
  EXPECT_EQ(crashed->space()->available_bytes, cut->space()->available_bytes);
}

TEST(SimVolume, WritesTearIntoPiecesInAnyOrder) {
  std::set<std::string> outcomes;
  bool later_without_earlier = false;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto volume = make_sim_volume();
    const FilePtr file = create(*volume, "f");
    ASSERT_TRUE(write(*file, std::string(2048, 'a')));
    ASSERT_TRUE(file->sync_data());
    ASSERT_TRUE(volume->sync_directory(""));
    ASSERT_TRUE(write(*file, std::string(1000, 'b'), 300));  // pieces 300..511, 512..1023, 1024..1299
    const auto after = volume->cut_power({.seed = seed, .keep_probability = 0.5, .tear_bytes = 512});
    const std::string text = text_of(*after, "f");
    ASSERT_EQ(text.size(), 2048u);
    const std::string marks = {text[300], text[511], text[512], text[1023], text[1024], text[1299]};
    EXPECT_EQ(marks[0], marks[1]);
    EXPECT_EQ(marks[2], marks[3]);
    EXPECT_EQ(marks[4], marks[5]);
    EXPECT_EQ(text[299], 'a');
    EXPECT_EQ(text[1300], 'a');
    outcomes.insert(marks);
    later_without_earlier |= marks == "aaaabb";
  }
  EXPECT_EQ(outcomes.size(), 8u);
  EXPECT_TRUE(later_without_earlier);
}

TEST(SimVolume, ASizeMayArriveWithoutItsData) {
  std::set<std::string> outcomes;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto volume = make_sim_volume();
    const FilePtr file = create(*volume, "f");
    ASSERT_TRUE(volume->sync_directory(""));
    ASSERT_TRUE(write(*file, "data"));
    outcomes.insert(text_of(*volume->cut_power({.seed = seed}), "f"));
  }
  EXPECT_EQ(outcomes, (std::set<std::string>{"", "data", std::string(4, '\0')}));
}

TEST(SimVolume, RenameIsAtomic) {
  std::set<std::map<std::string, std::string>> outcomes;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto volume = make_sim_volume();
    ASSERT_TRUE(write_file_atomically(*volume, "f", as_bytes("old")));
    const FilePtr next = create(*volume, "f.tmp");
    ASSERT_TRUE(write(*next, "new"));
    ASSERT_TRUE(next->sync_data());
    ASSERT_TRUE(volume->rename("f.tmp", "f"));
    outcomes.insert(dump(*volume->cut_power({.seed = seed})));
  }
  using Files = std::map<std::string, std::string>;
  EXPECT_EQ(outcomes,
            (std::set<Files>{Files{{"f", "old"}}, Files{{"f", "old"}, {"f.tmp", "new"}}, Files{{"f", "new"}}}));
}

TEST(SimVolume, ChainsOfRenamesNeitherLoseNorDoubleAFile) {
  std::set<std::map<std::string, std::string>> outcomes;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto volume = make_sim_volume();
    ASSERT_TRUE(write_file_atomically(*volume, "a", as_bytes("A")));
    ASSERT_TRUE(write_file_atomically(*volume, "b", as_bytes("B")));
    ASSERT_TRUE(volume->rename("a", "z"));
    ASSERT_TRUE(volume->rename("b", "a"));
    ASSERT_TRUE(volume->rename("a", "c"));
    const auto files = dump(*volume->cut_power({.seed = seed}));
    std::multiset<std::string> contents;
    for (const auto& [path, content] : files) contents.insert(content);
    // B replaces A where the first rename was lost and the second was not.
    const bool replaced = files.size() == 1 && contents.contains("B");
    EXPECT_TRUE(replaced || contents == (std::multiset<std::string>{"A", "B"})) << seed;
    outcomes.insert(files);
  }
  using Files = std::map<std::string, std::string>;
  EXPECT_TRUE(outcomes.contains(Files{{"a", "A"}, {"b", "B"}}));
  EXPECT_TRUE(outcomes.contains(Files{{"z", "A"}, {"c", "B"}}));
}

TEST(SimVolume, SyncingOneSideOfARenameTakesTheOtherAlong) {
  const auto volume = make_sim_volume();
  ASSERT_TRUE(volume->make_directories("a"));
  ASSERT_TRUE(volume->make_directories("b"));
  ASSERT_TRUE(volume->sync_directory(""));
  const FilePtr file = create(*volume, "a/f");
  ASSERT_TRUE(write(*file, "x"));
  ASSERT_TRUE(file->sync_data());
  ASSERT_TRUE(volume->rename("a/f", "b/g"));
  ASSERT_TRUE(volume->sync_directory("b"));
  const auto after = volume->cut_power(kLoseAll);
  EXPECT_EQ(dump(*after), (std::map<std::string, std::string>{{"b/g", "x"}}));
}

TEST(SimVolume, RemovedFilesComeBackUntilTheDirectoryIsSynced) {
  const auto volume = make_sim_volume();
  ASSERT_TRUE(write_file_atomically(*volume, "f", as_bytes("old")));
  ASSERT_TRUE(volume->remove_file("f"));
  create(*volume, "f");  // the name again, another file
  const auto after = volume->cut_power(kLoseAll);
  EXPECT_EQ(text_of(*after, "f"), "old");
  ASSERT_TRUE(after->remove_file("f"));
  ASSERT_TRUE(after->sync_directory(""));
  EXPECT_TRUE(after->cut_power(kLoseAll)->all_files().empty());
}

TEST(SimVolume, AtomicFileIsOldOrNewAtEveryCrashPoint) {
  std::set<std::string> outcomes;
  for (uint64_t point = 1;; ++point) {
    bool finished = false;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const auto volume = make_sim_volume();
      ASSERT_TRUE(write_file_atomically(*volume, "f", as_bytes("old")));
      volume->stop_at(volume->mutating_calls() + point, 2);
      const bool ok = write_file_atomically(*volume, "f", as_bytes("newer")).has_value();
      EXPECT_NE(ok, volume->stopped());
      const std::string text = text_of(*volume->cut_power({.seed = seed}), "f");
      EXPECT_TRUE(text == "newer" || (text == "old" && !ok)) << point << " " << text;
      outcomes.insert(text);
      finished = ok;
    }
    if (finished) break;
    ASSERT_LT(point, 20u);
  }
  EXPECT_EQ(outcomes.size(), 2u);
}

TEST(SimVolume, StopTearsTheWriteAndEndsEverything) {
  const auto volume = make_sim_volume();
  const FilePtr file = create(*volume, "f");  // 1
  ASSERT_TRUE(write(*file, "0123456789"));    // 2
  volume->stop_at(4, 3);
  ASSERT_TRUE(file->sync_data());  // 3
  EXPECT_FALSE(volume->stopped());
  EXPECT_EQ(write(*file, "abcdef", 20).error().sys_errno, EIO);  // 4: three bytes of it
  EXPECT_TRUE(volume->stopped());
  EXPECT_EQ(volume->mutating_calls(), 4u);
  std::byte byte{};
  EXPECT_EQ(file->read({&byte, 1}, 0).error().sys_errno, EIO);
  EXPECT_EQ(volume->info("f").error().sys_errno, EIO);
  EXPECT_EQ(volume->make_directory("d").error().sys_errno, EIO);
  EXPECT_EQ(volume->mutating_calls(), 4u);
  const auto after = volume->crash_process();
  EXPECT_EQ(text_of(*after, "f"), "0123456789" + std::string(10, '\0') + "abc");
  EXPECT_EQ(after->mutating_calls(), 0u);
}

TEST(SimVolume, StopAtACallThatIsNoWriteDoesNothingOfIt) {
  const auto volume = make_sim_volume();
  create(*volume, "f");
  volume->stop_at(2, 100);
  EXPECT_FALSE(volume->rename("f", "g"));
  EXPECT_EQ(volume->crash_process()->all_files(), std::vector<std::string>{"f"});
}

// A busy sequence in which each step is drawn by `seed`.
std::shared_ptr<SimVolume> busy_volume(uint64_t seed) {
  const auto volume = make_sim_volume();
  std::vector<FilePtr> files;
  uint64_t state = seed;
  const auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33) % below;
  };
  for (int i = 0; i < 8; ++i) files.push_back(create(*volume, "f" + std::to_string(i)));
  for (int step = 0; step < 300; ++step) {
    File& file = *files[draw(8)];
    switch (draw(6)) {
      case 0: EXPECT_TRUE(file.sync_data()); break;
      case 1: EXPECT_TRUE(file.truncate(draw(50'000))); break;
      case 2: EXPECT_TRUE(file.punch(draw(30'000), draw(30'000))); break;
      case 3:
        if (draw(10) == 0) (void)volume->rename("f" + std::to_string(draw(8)), "f" + std::to_string(draw(8)));
        break;
      case 4: EXPECT_TRUE(draw(4) == 0 ? volume->sync_directory("") : Status{}); break;
      default: {
        const std::string text(draw(20'000), static_cast<char>('a' + draw(26)));
        EXPECT_TRUE(write(file, text, draw(40'000)));
        break;
      }
    }
  }
  return volume;
}

TEST(SimVolume, SameSeedSameOutcome) {
  std::set<std::map<std::string, std::string>> outcomes;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const SimVolume::PowerLoss loss = {.seed = seed};
    const auto outcome = dump(*busy_volume(7)->cut_power(loss));
    EXPECT_EQ(outcome, dump(*busy_volume(7)->cut_power(loss)));
    outcomes.insert(outcome);
  }
  EXPECT_EQ(outcomes.size(), 10u);
}

TEST(SimVolume, OneHistoryCanBeCutManyTimes) {
  const auto volume = busy_volume(3);
  const auto first = volume->cut_power({.seed = 5});
  const auto other = volume->cut_power({.seed = 6});
  const auto second = volume->cut_power({.seed = 5});
  ASSERT_FALSE(first->all_files().empty());
  const auto before = dump(*second);
  EXPECT_EQ(dump(*first), before);
  EXPECT_NE(dump(*other), before);
  // They are independent disks.
  const FilePtr file = first->open(first->all_files()[0], {.writable = true}).value();
  ASSERT_TRUE(write(*file, "changed only here"));
  EXPECT_EQ(dump(*second), before);
  EXPECT_NE(dump(*first), before);
}

TEST(SimVolume, CapacityAndSpace) {
  const auto volume = make_sim_volume({.capacity_bytes = 10 * kBlockBytes});
  const FilePtr file = create(*volume, "f");
  ASSERT_TRUE(write(*file, std::string(8 * kBlockBytes, 'x')));
  EXPECT_EQ(volume->space()->available_bytes, 2 * kBlockBytes);
  EXPECT_EQ(write(*file, std::string(3 * kBlockBytes, 'x'), 8 * kBlockBytes).error().code, Code::kNoSpace);
  EXPECT_EQ(file->allocate(100 * kBlockBytes, 3 * kBlockBytes).error().code, Code::kNoSpace);
  ASSERT_TRUE(write(*file, std::string(8 * kBlockBytes, 'y')));  // in place
  ASSERT_TRUE(file->punch(0, 4 * kBlockBytes));
  EXPECT_EQ(volume->space()->available_bytes, 6 * kBlockBytes);
  ASSERT_TRUE(volume->remove_file("f"));
  EXPECT_EQ(volume->space()->available_bytes, 6 * kBlockBytes);  // still open
  ASSERT_TRUE(write(*file, "y"));
}

TEST(SimVolume, ClosingARemovedFileFreesIt) {
  const auto volume = make_sim_volume({.capacity_bytes = 10 * kBlockBytes});
  FilePtr file = create(*volume, "f");
  ASSERT_TRUE(write(*file, std::string(8 * kBlockBytes, 'x')));
  ASSERT_TRUE(volume->remove_file("f"));
  file.reset();
  EXPECT_EQ(volume->space()->available_bytes, 10 * kBlockBytes);
}

TEST(SimVolume, OptionsOfTheFileSystem) {
  const auto volume = make_sim_volume({.punch_hole = false, .direct_io = true, .network = true});
  EXPECT_TRUE(volume->features().network);
  EXPECT_FALSE(volume->features().punch_hole);
  const FilePtr file = create(*volume, "f", true);
  EXPECT_EQ(file->punch(0, 4096).error().code, Code::kUnsupported);
  EXPECT_EQ(file->allocate(0, 4096).error().code, Code::kUnsupported);
  ASSERT_TRUE(file->is_direct());
  EXPECT_EQ(file->descriptor(), -1);
  const AlignedBuffer data(2 * kBlockBytes, 1);
  EXPECT_TRUE(write(*file, data.span(), kBlockBytes));
  EXPECT_EQ(write(*file, data.span(), 1).error().code, Code::kInvalid);
  EXPECT_EQ(write(*file, data.span(0, 5), 0).error().code, Code::kInvalid);
  EXPECT_EQ(file->read(data.span(8, kBlockBytes), 0).error().code, Code::kInvalid);
  EXPECT_FALSE(create(*make_sim_volume({.direct_io = false}), "f", true)->is_direct());
}

TEST(SimVolume, LocksAreOfTheVolumeAndGoWithTheProcess) {
  const auto volume = make_sim_volume();
  auto lock = volume->lock("LOCK");
  ASSERT_TRUE(lock);
  ASSERT_TRUE((*lock)->describe("node a"));
  const auto second = volume->lock("LOCK");
  EXPECT_EQ(second.error().code, Code::kBusy);
  EXPECT_NE(second.error().message.find("locked by node a"), std::string::npos) << second.error().message;
  const auto after = volume->crash_process();
  EXPECT_TRUE(after->lock("LOCK"));
  EXPECT_EQ(text_of(*after, "LOCK"), "node a");
  lock->reset();
}

TEST(SimVolume, CorruptionReachesTheMedium) {
  const auto volume = make_sim_volume();
  ASSERT_TRUE(write_file_atomically(*volume, "f", as_bytes("abcdef")));
  const FilePtr file = volume->open("f", {.writable = true}).value();
  ASSERT_TRUE(write(*file, "XY", 2));  // not synced
  ASSERT_TRUE(volume->corrupt("f", 3, std::byte{1}));
  ASSERT_TRUE(volume->corrupt("f", 5, std::byte{1}));
  EXPECT_EQ(volume->corrupt("f", 6, std::byte{1}).error().code, Code::kInvalid);
  EXPECT_EQ(volume->corrupt("g", 0, std::byte{1}).error().code, Code::kNotFound);
  EXPECT_EQ(text_of(*volume, "f"), "abXXeg");
  EXPECT_EQ(text_of(*volume->cut_power(kLoseAll), "f"), "abceeg");
  EXPECT_EQ(text_of(*volume->cut_power(kKeepAll), "f"), "abXXeg");
}

TEST(SimVolume, CutShortensTheMediumToo) {
  const auto volume = make_sim_volume();
  ASSERT_TRUE(write_file_atomically(*volume, "f", as_bytes("abcdef")));
  EXPECT_EQ(volume->cut("f", 7).error().code, Code::kInvalid);
  ASSERT_TRUE(volume->cut("f", 2));
  EXPECT_EQ(text_of(*volume, "f"), "ab");
  EXPECT_EQ(text_of(*volume->cut_power(kLoseAll), "f"), "ab");
}

TEST(SimVolume, SubmittedRequestsRunInsideTheCall) {
  const auto volume = make_sim_volume();
  const FilePtr file = create(*volume, "f");
  const AlignedBuffer data(1000, 1);
  const AlignedBuffer back(2000);
  int finished = 0;
  std::vector<IoRequest> requests(2);
  requests[0].kind = IoRequest::Kind::kWrite;
  requests[0].pieces = {data.span(0, 300), data.span(300, 700)};
  requests[1].pieces = {back.span(0, 999), back.span(999, 1001)};
  for (size_t i = 0; i < 2; ++i) {
    requests[i].file = file;
    requests[i].offset = 5;
    requests[i].done = [&](Result<size_t> result) {
      EXPECT_EQ(result.value(), 1000u);
      ++finished;
    };
  }
  volume->submit(std::move(requests));
  EXPECT_EQ(finished, 2);
  EXPECT_TRUE(std::ranges::equal(back.span(0, 1000), data.span()));
  volume->drain();
}

TEST(SimVolume, ManyRemovedFilesDoNotPileUp) {
  const auto volume = make_sim_volume();
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(write(*create(*volume, "f" + std::to_string(i)), "x"));
    ASSERT_TRUE(volume->remove_file("f" + std::to_string(i)));
    if (i % 10 == 0) {
      ASSERT_TRUE(volume->sync_directory(""));
    }
  }
  EXPECT_EQ(volume->space()->available_bytes, volume->space()->total_bytes);
  EXPECT_TRUE(volume->cut_power(kKeepAll)->all_files().empty());
}

TEST(SimVolume, ThreadsMayShareIt) {
  const auto volume = make_sim_volume();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const std::string name = "f" + std::to_string(t);
      for (int round = 0; round < 50; ++round) {
        ASSERT_TRUE(write_file_atomically(*volume, name, as_bytes(std::to_string(round))));
        ASSERT_EQ(text_of(*volume, name), std::to_string(round));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(volume->all_files().size(), 4u);
}

}  // namespace sim_volume_test
}  // namespace kvcachefs
