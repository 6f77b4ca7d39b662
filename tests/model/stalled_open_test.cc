// The server of the volume stalls while a file is opened. What is open already is read meanwhile: completions, which all come on
// one thread, open nothing.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/base/units.h"
#include "store/store.h"
#include "store/volume/volume.h"
#include "tests/model/holding_volume.h"
#include "tests/model/threaded_store.h"

namespace kvcachefs::testing {
namespace stalled_open_test {

constexpr std::chrono::seconds kLong{20};

class StalledOpen : public ::testing::Test {
 protected:
  static StoreOptions options() {
    StoreOptions options;
    options.memory_bytes = 8 * kMiB;
    options.pack_below_bytes = 4 * kBlockBytes;  // larger ones have a file of their own
    options.prefetch = false;
    options.passthrough = false;
    return options;
  }
  // One thread for all completions.
  std::shared_ptr<Volume> wrap(const std::shared_ptr<Volume>& volume) {
    auto inner = open_posix_volume(volume->root(), {.io_uring = false, .threads = 1});
    if (!inner) std::abort();
    return volume_ = std::make_shared<HoldingVolume>(*inner);
  }
  void put(const std::string& name, char content) {
    auto made = store_->create(kRootId, name, 0644, {.read = false, .write = true}, client_.caller());
    ASSERT_TRUE(made) << made.error().message;
    write_and_close(made->second, content);
  }
  void overwrite(const std::string& name, char content) {
    write_and_close(client_.open(kRootId, name, {.read = false, .write = true, .truncate = true}), content);
  }
  void write_and_close(Handle* handle, char content) {
    ASSERT_NE(handle, nullptr);
    ASSERT_EQ(client_.write_at(handle, 0, std::string(kBodyBytes, content)), Code::kNoData);
    ASSERT_EQ(client_.close(handle), Code::kNoData);
  }
  void leave_ram() {
    EXPECT_TRUE(await<void>([&](auto done) { store_->drain(true, std::move(done)); }));
    store_->drop_caches();
  }
  std::future<Result<std::string>> begin_read(Handle* handle) {
    auto promise = std::make_shared<std::promise<Result<std::string>>>();
    store_->read(handle, 0, kBodyBytes, [promise](Result<ReadReply> reply) {
      if (!reply) return promise->set_value(std::unexpected(reply.error()));
      std::string text;
      for (const iovec& piece : reply->pieces) text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
      promise->set_value(std::move(text));
    });
    return promise->get_future();
  }
  static void expect_bytes(std::future<Result<std::string>>& answer, char content) {
    ASSERT_EQ(answer.wait_for(kLong), std::future_status::ready);
    auto text = answer.get();
    ASSERT_TRUE(text) << text.error().message;
    EXPECT_TRUE(*text == std::string(kBodyBytes, content));
  }

  static constexpr size_t kBodyBytes = 15 * kMiB / 2;  // read piece by piece
  std::shared_ptr<HoldingVolume> volume_;
  ThreadedStore store_{options(), [this](std::shared_ptr<Volume> volume) { return wrap(volume); }};
  Client client_{*store_.operator->(), 1};
};

// A body is replaced while it is read, piece by piece, and its reader goes on in the new one, of which the file is not open.
TEST_F(StalledOpen, OtherReadsGoOnWhileACompletionNeedsAFile) {
  put("other", 'x');
  put("f", 'o');
  leave_ram();
  Handle* other = client_.open(kRootId, "other", {});
  auto before = begin_read(other);  // its file is open from now on
  expect_bytes(before, 'x');
  store_->drop_caches();
  Handle* reader = client_.open(kRootId, "f", {});
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  auto answer = begin_read(reader);
  volume_->wait_until_held([](const auto& held) { return !held.empty(); });
  overwrite("f", 'n');
  leave_ram();
  volume_->hold_opens("/extents/");
  volume_->let_go();
  ASSERT_TRUE(volume_->wait_until_an_open_is_held(kLong));
  auto meanwhile = begin_read(other);
  const bool answered = meanwhile.wait_for(kLong) == std::future_status::ready;
  EXPECT_TRUE(answered) << "the one that opens a file holds the only thread of completions";
  EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  volume_->let_opens_go();
  expect_bytes(meanwhile, 'x');
  expect_bytes(answer, 'n');
  store_->release(reader);
  store_->release(other);
}

// The same at the end: what waits for a file is answered.
TEST_F(StalledOpen, WhatWaitsForAFileIsAnsweredAtTheEnd) {
  put("f", 'o');
  leave_ram();
  Handle* reader = client_.open(kRootId, "f", {});
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  auto answer = begin_read(reader);
  volume_->wait_until_held([](const auto& held) { return !held.empty(); });
  overwrite("f", 'n');
  leave_ram();
  volume_->hold_opens("/extents/");
  volume_->let_go();
  ASSERT_TRUE(volume_->wait_until_an_open_is_held(kLong));
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    volume_->let_opens_go();
  });
  store_->release(reader);
  store_.close();
  later.join();
  expect_bytes(answer, 'n');
}

// What waits for memory until the end is read then, and is damaged: that is looked at again before it is answered.
TEST_F(StalledOpen, WhatIsReadAtTheEndAndDamagedIsAnswered) {
  constexpr int kOthers = 12;
  for (int i = 0; i < kOthers; ++i) put("other" + std::to_string(i), 'o');
  put("damaged", 'd');
  leave_ram();
  std::string path;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(volume_->root())) {
    if (!entry.is_regular_file() || entry.file_size() < kBodyBytes) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes(entry.file_size(), '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    const size_t at = bytes.find(std::string(kBlockBytes, 'd'));
    if (at == std::string::npos) continue;
    path = entry.path();
    file.seekp(static_cast<std::streamoff>(at + 100));
    file.put('x');
  }
  ASSERT_FALSE(path.empty());
  volume_->hold([](const IoRequest& request) { return request.kind == IoRequest::Kind::kRead; });
  std::vector<Handle*> handles;
  std::vector<std::future<Result<std::string>>> answers;
  const auto begin = [&](const std::string& name) {
    handles.push_back(client_.open(kRootId, name, {}));
    return begin_read(handles.back());
  };
  for (int i = 0; i < kOthers; ++i) answers.push_back(begin("other" + std::to_string(i)));
  auto damaged = begin("damaged");
  volume_->wait_until_held([](const auto& held) { return !held.empty(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto is_damaged = [&path](const IoRequest& request) { return path.ends_with(request.file->path()); };
  ASSERT_TRUE(volume_->holds([&](const auto& held) { return !held.empty() && std::ranges::none_of(held, is_damaged); })) << "it waits for memory";
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the threads of the store have ended then
    volume_->let_go();
  });
  for (Handle* handle : handles) store_->release(handle);
  store_->stop();  // nobody is there to be answered behind it
  later.join();
  for (auto& answer : answers) expect_bytes(answer, 'o');
  ASSERT_EQ(damaged.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_FALSE(damaged.get());
  store_.close();
}

}  // namespace stalled_open_test
}  // namespace kvcachefs::testing
