// Every pair of changes of one file of which the first has to wait: for memory, for room on the volume, or for bytes that are
// read. While it waits the second comes and may do what it likes with the file: empty it, make it raw, cut it. Both are
// answered, and the bytes are then what one of the two orders leaves. One thread; the waiting ends when the test says so.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/clock.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/store.h"
#include "store/volume/test_directory.h"
#include "tests/model/await.h"
#include "tests/model/holding_volume.h"

// Some thousand stores are made here, and nothing is asked of the medium.
extern "C" int fsync(int) { return 0; }
extern "C" int fdatasync(int) { return 0; }

namespace kvcachefs {
namespace waiting_pairs_test {

using testing::HoldingVolume;

constexpr uint64_t kRawAbove = 3 * kMiB, kRawBytes = 4 * kMiB, kCapacityBytes = 24 * kMiB;

// What a step does to a file in RAM, and how it is asked of the store.
struct Step {
  std::function<void(std::string&)> model;
  std::function<void(Store&, ObjectId, Handle*, StatusCompletion)> ask;
};

// One system call, or several one after the other.
struct Change {
  std::string name;
  std::vector<Step> steps;
};

template <class T>
Completion<T> status_of(StatusCompletion done) {
  return [done = std::move(done)](Result<T> result) mutable { done(result ? Status() : std::unexpected(result.error())); };
}

Change write_of(const char* name, uint64_t offset, uint64_t length) {
  auto bytes = std::make_shared<std::string>(length, 'w');
  return {name,
          {{[=](std::string& file) {
              if (file.size() < offset + length) file.resize(offset + length);
              file.replace(offset, length, *bytes);
            },
            [=](Store& store, ObjectId, Handle* handle, StatusCompletion done) {
              store.write(handle, offset, std::as_bytes(std::span(*bytes)), status_of<size_t>(std::move(done)));
            }}}};
}

Change truncate_to(const char* name, uint64_t size) {
  return {name,
          {{[=](std::string& file) { file.resize(size); },
            [=](Store& store, ObjectId id, Handle*, StatusCompletion done) {
              SetAttributes change;
              change.size_bytes = size;
              store.set_attributes(id, nullptr, change, {.thread_id = 1}, status_of<Stat>(std::move(done)));
            }}}};
}

Change allocate(const char* name, Store::AllocateMode mode, uint64_t offset, uint64_t length) {
  return {name,
          {{[=](std::string& file) {
              using enum Store::AllocateMode;
              const uint64_t end = offset + length;
              if ((mode == kExtend || mode == kZeroRange) && file.size() < end) file.resize(end);
              if (mode == kExtend || mode == kKeepSize || offset >= file.size()) return;
              const auto at = file.begin() + static_cast<long>(offset);
              std::fill(at, file.begin() + static_cast<long>(std::min<uint64_t>(end, file.size())), '\0');
            },
            [=](Store& store, ObjectId, Handle* handle, StatusCompletion done) {
              store.allocate(handle, mode, offset, length, std::move(done));
            }}}};
}

Change emptied_by_open(const char* name) {
  return {name,
          {{[](std::string& file) { file.clear(); },
            [](Store& store, ObjectId id, Handle*, StatusCompletion done) {
              auto opened = store.open(id, {.write = true, .truncate = true}, {.thread_id = 1});
              if (!opened) return done(std::unexpected(opened.error()));
              store.release(*opened);
              done({});
            }}}};
}

Change in_turn(const char* name, std::vector<Change> changes) {
  Change all{name, {}};
  for (const Change& change : changes) all.steps.insert(all.steps.end(), change.steps.begin(), change.steps.end());
  return all;
}

// The steps from `from` on, each after the answer of the one before.
void ask_in_turn(Store& store, ObjectId id, Handle* handle, const Change& change, size_t from, StatusCompletion done) {
  if (from == change.steps.size()) return done({});
  change.steps[from].ask(store, id, handle, [=, &store, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::move(status));
    ask_in_turn(store, id, handle, change, from + 1, std::move(done));
  });
}

// Whether `found` is what some order of both leaves.
bool is_of_some_order(const std::string& found, const std::string& file, std::span<const Step> one, std::span<const Step> other) {
  if (one.empty() && other.empty()) return found == file;
  const auto then = [&](std::span<const Step>& next) {
    std::string after = file;
    next.front().model(after);
    next = next.subspan(1);
    return is_of_some_order(found, after, one, other);
  };
  const auto rest_of_one = one;
  if (!one.empty() && then(one)) return true;
  one = rest_of_one;
  return !other.empty() && then(other);
}

class File {
 public:
  File() {
    auto volume = open_posix_volume(directory_.path(), {.io_uring = false, .threads = 1});
    EXPECT_TRUE(volume) << volume.error().message;
    volume_ = std::make_shared<HoldingVolume>(*volume);
    log::set_level(log::Level::kError);
    StoreOptions options;
    options.background = false;
    options.node = "test";
    options.memory_bytes = 16 * kMiB;
    options.evict = false;
    options.capacity_bytes = kCapacityBytes;
    options.keep_free_bytes = kMiB;
    options.raw_above_bytes = kRawAbove;
    options.pack_below_bytes = 1 * kMiB;
    options.extent_bytes = 8 * kMiB;
    options.prefetch = false;
    auto store = open_store(volume_, options, system_clock(), "test");
    EXPECT_TRUE(store) << store.error().message;
    store_ = std::move(*store);
    auto made = store_->create(kRootId, "file", 0644, {.read = true, .write = true}, {.thread_id = 1});
    EXPECT_TRUE(made) << made.error().message;
    id_ = made->first.id;
    handle_ = made->second;
  }
  ~File() {
    volume_->let_go();
    store_->release(handle_);
    for (Handle* handle : others_) store_->release(handle);
    const Status closed = store_->close();
    EXPECT_TRUE(closed) << closed.error().message;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Store& store() { return *store_; }
  HoldingVolume& volume() { return *volume_; }
  ObjectId id() const { return id_; }
  Handle* handle() { return handle_; }
  Handle* make(const std::string& name) {
    auto made = store_->create(kRootId, name, 0644, {.read = true, .write = true}, {.thread_id = 2});
    EXPECT_TRUE(made) << made.error().message;
    others_.push_back(made->second);
    return made->second;
  }
  template <class T, class Call>
  Result<T> wait(Call call) {
    return testing::await<T>(*store_, std::move(call), [] {});
  }
  void ask(const Change& change) {
    const Status status = wait<void>([&](StatusCompletion done) { ask_in_turn(*store_, id_, handle_, change, 0, std::move(done)); });
    EXPECT_TRUE(status) << status.error().message;
  }
  Status write(Handle* handle, uint64_t offset, const std::string& bytes) {
    const auto written = wait<size_t>([&](auto done) { store_->write(handle, offset, std::as_bytes(std::span(bytes)), std::move(done)); });
    return written ? Status() : std::unexpected(written.error());
  }
  void drain() {
    const Status drained = wait<void>([&](StatusCompletion done) { store_->drain(true, std::move(done)); });
    EXPECT_TRUE(drained) << drained.error().message;
    for (int quiet = 0; quiet < 3;) quiet = store_->pump() ? 0 : quiet + 1;
  }
  // A reply keeps the blocks that it is made of.
  ReadReply read(uint64_t offset, size_t length) {
    auto reply = wait<ReadReply>([&](auto done) { store_->read(handle_, offset, length, std::move(done)); });
    EXPECT_TRUE(reply) << reply.error().message;
    return reply ? std::move(*reply) : ReadReply{};
  }
  std::string content() {
    std::string bytes;
    while (true) {
      const ReadReply reply = read(bytes.size(), kMiB);
      for (const iovec& piece : reply.pieces) bytes.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
      if (reply.bytes == 0) return bytes;
    }
  }

 private:
  test::TestDirectory directory_;
  std::shared_ptr<HoldingVolume> volume_;
  std::unique_ptr<Store> store_;
  ObjectId id_;
  Handle* handle_ = nullptr;
  std::vector<Handle*> others_;
};

std::vector<Change> changes() {
  using enum Store::AllocateMode;
  return {write_of("write", 100, 700 * kKiB),
          write_of("write behind the end", kMiB + 5, 200 * kKiB),
          truncate_to("cut", 10'000),
          truncate_to("grow", 2 * kMiB),
          truncate_to("empty", 0),
          emptied_by_open("O_TRUNC"),
          allocate("punch", kPunchHole, 5000, 300 * kKiB),
          allocate("zero range", kZeroRange, 5000, 2 * kMiB),
          allocate("fallocate", kExtend, 0, 2 * kMiB),
          allocate("fallocate and keep the size", kKeepSize, 0, 2 * kMiB),
          in_turn("become raw", {truncate_to("", 0), truncate_to("", kRawBytes)}),
          in_turn("become raw by fallocate", {emptied_by_open(""), allocate("", kExtend, 0, kRawBytes)}),
          in_turn("raw and back", {truncate_to("", 0), truncate_to("", kRawBytes), emptied_by_open("")}),
          in_turn("raw, back and raw", {emptied_by_open(""), truncate_to("", kRawBytes), emptied_by_open(""), truncate_to("", kRawBytes)})};
}

enum class WaitsFor : uint8_t { kMemory, kRoom, kLoad };

// Sets all up so that what needs this cannot be done at once. The answer ends that.
std::function<void()> make_wait(File& file, WaitsFor what) {
  Store& store = file.store();
  store.flush(file.handle(), [](Status) {});
  if (what == WaitsFor::kLoad) {
    file.drain();
    store.drop_caches();
    file.volume().hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
    return [&file] { file.volume().let_go(); };
  }
  if (what == WaitsFor::kMemory) {
    // A reply holds the blocks that are there, so that a change of them needs others; and another file has those.
    auto reply = std::make_shared<ReadReply>(file.read(0, kMiB));
    Handle* hog = file.make("hog");
    const std::string some(256 * kKiB, 'h');
    auto accepted = std::make_shared<bool>(true);  // the last one is answered later
    for (uint64_t at = 0; *accepted; at += some.size()) {
      *accepted = false;
      store.write(hog, at, std::as_bytes(std::span(some)), [accepted](Result<size_t> result) { *accepted = result.has_value(); });
    }
    return [&store, hog, reply] {
      *reply = {};
      store.unlink(kRootId, "hog", {.thread_id = 2}, [](Status) {});
      store.flush(hog, [](Status) {});
    };
  }
  // Files until nothing fits any more; many are then removed: their room comes with the next round of giving back.
  const std::string some(kMiB, 'h');
  std::vector<std::string> names;
  while (true) {
    names.push_back("fill" + std::to_string(names.size()));
    auto made = store.create(kRootId, names.back(), 0644, {.write = true}, {.thread_id = 2});
    if (!made) break;
    const Status written = file.write(made->second, 0, some);
    store.flush(made->second, [](Status) {});
    store.release(made->second);
    if (!written) break;
    file.drain();
  }
  for (size_t i = 0; i < 12 && i < names.size(); ++i) store.unlink(kRootId, names[i], {.thread_id = 2}, [](Status) {});
  return [] {};
}

void try_pair(WaitsFor what, bool raw, uint64_t initial_bytes, const Change& first, const Change& second, int& waited) {
  SCOPED_TRACE("'" + first.name + "' waits, then '" + second.name + "'");
  std::string initial(initial_bytes, 'i');
  File file;
  if (raw) {
    file.ask(truncate_to("", kRawBytes));
    initial.resize(kRawBytes);
  }
  if (initial_bytes > 0) {
    EXPECT_TRUE(file.write(file.handle(), 0, initial.substr(0, initial_bytes)));
  }
  const auto release = make_wait(file, what);
  struct Answer {
    std::atomic<bool> there{false};  // some come on a thread of the volume
    Status status;
  };
  Answer one, other;
  const auto into = [](Answer& answer) -> StatusCompletion {
    return [&answer](Status status) {
      answer.status = std::move(status);
      answer.there = true;
    };
  };
  ask_in_turn(file.store(), file.id(), file.handle(), first, 0, into(one));
  waited += !one.there;
  ask_in_turn(file.store(), file.id(), file.handle(), second, 0, into(other));
  release();
  for (int idle = 0; idle < 600'000 && !(one.there && other.there);) {
    if (file.store().pump()) continue;
    ++idle;
    usleep(100);
  }
  ASSERT_TRUE(one.there) << "the first was never answered";
  ASSERT_TRUE(other.there) << "the second was never answered";
  EXPECT_TRUE(one.status) << one.status.error().message;
  EXPECT_TRUE(other.status) << other.status.error().message;
  const std::string found = file.content();
  EXPECT_TRUE(is_of_some_order(found, initial, first.steps, second.steps))
      << found.size() << " bytes that no order of the two leaves, first " << static_cast<int>(found.empty() ? 0 : found[0]);
  file.store().flush(file.handle(), [](Status) {});
  file.drain();
  file.store().drop_caches();
  EXPECT_TRUE(file.content() == found) << "other bytes on the volume";
}

void try_all(WaitsFor what, bool raw, uint64_t initial_bytes) {
  int waited = 0;
  for (const Change& first : changes())
    for (const Change& second : changes()) {
      if (first.steps.size() > 1) continue;
      try_pair(what, raw, initial_bytes, first, second, waited);
      if (::testing::Test::HasFatalFailure()) return;
    }
  EXPECT_GE(waited, 2 * static_cast<int>(changes().size())) << "or this tests nothing";
}

TEST(WaitingPairs, ForMemoryInAnEmptyFile) { try_all(WaitsFor::kMemory, false, 0); }
TEST(WaitingPairs, ForMemoryInAFileThatIsBeingRead) { try_all(WaitsFor::kMemory, false, 900 * kKiB); }
TEST(WaitingPairs, ForRoom) { try_all(WaitsFor::kRoom, false, 20'000); }
TEST(WaitingPairs, ForRoomInARawFile) { try_all(WaitsFor::kRoom, true, 20'000); }
TEST(WaitingPairs, ForALoad) { try_all(WaitsFor::kLoad, false, 900 * kKiB); }

}  // namespace waiting_pairs_test
}  // namespace kvcachefs
