// Random sequences of calls have the same results on a simulated volume and on a directory.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "store/base/bytes.h"
#include "store/volume/fault_volume.h"
#include "store/volume/test_directory.h"
#include "store/volume/volume.h"

namespace kvcachefs {
namespace volume_model_test {

template <class T>
std::string outcome(const Result<T>& result) {
  return result ? "ok" : std::string(code_name(result.error().code));
}

// Both volumes, given the same calls. Each method returns false where they differ.
class Pair {
 public:
  explicit Pair(uint64_t seed) : random_(seed), sim_(make_sim_volume()) {
    auto opened = open_posix_volume(directory_.path(), {.io_uring = seed % 2 == 0, .threads = 1});
    EXPECT_TRUE(opened) << opened.error().message;
    if (opened) real_ = *opened;
    if (real_) has_holes_ = real_->features().punch_hole;
  }

  void step() {
    switch (draw(16)) {
      case 0: return create();
      case 1: return open();
      case 2: return both("mkdir", [path = path()](Volume& v) { return v.make_directory(path); });
      case 3: return both("mkdirs", [path = path()](Volume& v) { return v.make_directories(path); });
      case 4: return both("remove", [path = path()](Volume& v) { return v.remove_file(path); });
      case 5: return both("rmdir", [path = path()](Volume& v) { return v.remove_directory(path); });
      case 6: return both("rename", [from = path(), to = path()](Volume& v) { return v.rename(from, to); });
      case 7: return list(draw(8) == 0 ? std::string() : path());
      case 8: return info(path());
      case 9: return both("sync", [path = path()](Volume& v) { return v.sync_directory(path); });
      default: return on_handle();
    }
  }
  void compare_all() {
    compare_tree("");
    for (const auto& handle : handles_) compare_content(handle);
  }

 private:
  struct Handle {
    FilePtr real;
    FilePtr sim;
  };
  uint64_t draw(uint64_t below) { return random_() % below; }
  std::string path() {
    std::string made(1, static_cast<char>('a' + draw(3)));
    while (made.size() < 6 && draw(2) == 0) made += std::string("/") + static_cast<char>('a' + draw(3));
    return made;
  }
  template <class Call>
  void both(const char* what, Call call) {
    EXPECT_EQ(outcome(call(*real_)), outcome(call(*sim_))) << what;
  }
  void keep(Result<FilePtr> real, Result<FilePtr> sim) {
    ASSERT_EQ(outcome(real), outcome(sim));
    if (!real) return;
    if (handles_.size() >= 6) handles_.erase(handles_.begin() + static_cast<long>(draw(handles_.size())));
    handles_.push_back({*real, *sim});
  }
  void create() {
    const std::string at = path();
    keep(real_->open(at, {.create_exclusive = true}), sim_->open(at, {.create_exclusive = true}));
  }
  void open() {
    const std::string at = path();
    const OpenOptions options = {.writable = draw(4) != 0};
    keep(real_->open(at, options), sim_->open(at, options));
  }
  void list(const std::string& at) {
    const auto real = real_->list(at);
    const auto sim = sim_->list(at);
    ASSERT_EQ(outcome(real), outcome(sim)) << at;
    if (!real) return;
    const auto same = [](const DirectoryEntry& x, const DirectoryEntry& y) {
      return x.name == y.name && x.is_directory == y.is_directory;
    };
    EXPECT_TRUE(std::ranges::equal(*real, *sim, same)) << at;
  }
  void info(const std::string& at) {
    const auto real = real_->info(at);
    const auto sim = sim_->info(at);
    ASSERT_EQ(outcome(real), outcome(sim)) << at;
    if (!real) return;
    EXPECT_EQ(real->is_directory, sim->is_directory) << at;
    if (!real->is_directory) {
      EXPECT_EQ(real->size_bytes, sim->size_bytes) << at;
    }
  }
  void on_handle() {
    if (handles_.empty()) return;
    const Handle handle = handles_[draw(handles_.size())];
    const uint64_t offset = draw(40'000);
    const uint64_t length = draw(30'000);
    const auto both_files = [&](const char* what, auto call) {
      EXPECT_EQ(outcome(call(*handle.real)), outcome(call(*handle.sim))) << what;
    };
    switch (draw(8)) {
      case 0: return both_files("truncate", [&](File& file) { return file.truncate(offset); });
      case 1: return both_files("sync", [](File& file) { return file.sync_data(); });
      case 2:
        if (has_holes_) both_files("punch", [&](File& file) { return file.punch(offset, length); });
        return;
      case 3:
        if (has_holes_) both_files("allocate", [&](File& file) { return file.allocate(offset, length); });
        return;
      case 4: return compare_content(handle);
      case 5: return submit(handle, offset, length);
      default: {
        const Bytes data(length, static_cast<std::byte>(draw(256)));
        const size_t half = static_cast<size_t>(draw(length + 1));
        const std::span<const std::byte> pieces[] = {ByteSpan(data).first(half), ByteSpan(data).subspan(half)};
        return both_files("write", [&](File& file) { return file.write(pieces, offset); });
      }
    }
  }
  void submit(const Handle& handle, uint64_t offset, uint64_t length) {
    Bytes data(length, static_cast<std::byte>(draw(256)));
    const auto run = [&](Volume& volume, const FilePtr& file) {
      std::vector<IoRequest> requests(1);
      requests[0].kind = IoRequest::Kind::kWrite;
      requests[0].file = file;
      requests[0].offset = offset;
      requests[0].pieces = {std::span(data)};
      requests[0].urgent = draw(2) == 0;
      return run_all(volume, std::move(requests));
    };
    EXPECT_EQ(outcome(run(*real_, handle.real)), outcome(run(*sim_, handle.sim))) << "submit";
  }
  void compare_content(const Handle& handle) {
    Bytes real(80'000);
    Bytes sim(80'000);
    const uint64_t offset = draw(3) == 0 ? draw(50'000) : 0;
    const auto real_got = handle.real->read(real, offset);
    const auto sim_got = handle.sim->read(sim, offset);
    ASSERT_TRUE(real_got && sim_got);
    EXPECT_EQ(*real_got, *sim_got);
    EXPECT_TRUE(real == sim) << handle.sim->path();
    EXPECT_EQ(handle.real->info()->size_bytes, handle.sim->info()->size_bytes);
  }
  void compare_tree(const std::string& at) {
    list(at);
    const auto entries = sim_->list(at).value();
    for (const auto& entry : entries) {
      const std::string below = at.empty() ? entry.name : at + "/" + entry.name;
      if (entry.is_directory)
        compare_tree(below);
      else
        EXPECT_EQ(read_file(*real_, below, kGiB).value(), read_file(*sim_, below, kGiB).value()) << below;
    }
  }

  std::mt19937_64 random_;
  test::TestDirectory directory_;
  std::shared_ptr<SimVolume> sim_;
  std::shared_ptr<Volume> real_;
  std::vector<Handle> handles_;
  bool has_holes_ = false;
};

TEST(VolumeModel, SimulatedAndRealAgree) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Pair pair(seed);
    for (int step = 0; step < 300 && !::testing::Test::HasFailure(); ++step) pair.step();
    pair.compare_all();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
  }
}

// Data that was synced by its file and by all its directories survives any power loss, whatever else happens.
TEST(VolumeModel, SyncedStaysThroughAnyPowerLoss) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto volume = make_sim_volume();
    ASSERT_TRUE(volume->make_directories("d/safe"));
    ASSERT_TRUE(volume->make_directories("d/wild"));
    for (const char* directory : {"d", ""}) ASSERT_TRUE(volume->sync_directory(directory));
    std::map<std::string, std::string> safe;
    for (int step = 0; step < 60; ++step) {
      const std::string name = std::to_string(random() % 6);
      const std::string text(random() % 9000, static_cast<char>('a' + random() % 26));
      if (random() % 3 == 0) {
        ASSERT_TRUE(test::write_file_atomically(*volume, "d/safe/" + name, as_bytes(text)));
        safe[name] = text;
      } else if (random() % 3 == 0) {
        (void)volume->rename("d/wild/" + name, "d/wild/" + std::to_string(random() % 6));
      } else if (random() % 2 == 0) {
        (void)volume->remove_file("d/wild/" + name);
      } else if (auto file = volume->open("d/wild/" + name, {.create_exclusive = true})) {
        const std::span<const std::byte> pieces[] = {as_bytes(text)};
        ASSERT_TRUE((*file)->write(pieces, random() % 9000));
      }
    }
    const auto after = volume->cut_power({.seed = seed, .tear_bytes = seed % 2 == 0 ? 512u : 4096u});
    std::map<std::string, std::string> found;
    const auto entries = after->list("d/safe").value();
    for (const auto& entry : entries)
      found[entry.name] = as_text(read_file(*after, "d/safe/" + entry.name, kGiB).value());
    ASSERT_EQ(found, safe) << "seed " << seed;
  }
}

}  // namespace volume_model_test
}  // namespace kvcachefs
