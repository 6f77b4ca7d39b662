#include "store/testing/test_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace kvcachefs::testing {

namespace fs = std::filesystem;

uint64_t file_bytes(const std::string& path) {
  struct stat file {};
  return ::stat(path.c_str(), &file) == 0 ? static_cast<uint64_t>(file.st_blocks) * 512 : 0;
}

uint64_t tree_bytes(const std::string& directory) {
  uint64_t bytes = 0;
  std::vector<std::string> left{directory};
  while (!left.empty()) {
    std::error_code gone;
    const fs::directory_iterator files(left.back(), gone);
    left.pop_back();
    for (auto file = fs::begin(files); !gone && file != fs::end(files); file.increment(gone)) {
      const bool is_directory = file->symlink_status(gone).type() == fs::file_type::directory;
      if (is_directory) left.push_back(file->path());
      else bytes += file_bytes(file->path());
      gone.clear();
    }
  }
  return bytes;
}

TestStore::TestStore(StoreOptions options, Clock& clock) : options_(std::move(options)), clock_(clock) {
  const char* base = std::getenv("TMPDIR");
  std::string name = std::string(base != nullptr ? base : "/tmp") + "/kvcachefs-store-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  root_ = name;
  options_.background = false;
  options_.node = "test";
  options_.extent_bytes = std::min<uint64_t>(options_.extent_bytes, 64 * kMiB);
  if (options_.memory_bytes == 0) options_.memory_bytes = 256 * kMiB;
  mount();
}

TestStore::TestStore(StoreOptions options, const TestStore& first)
    : root_(first.root_), owns_root_(false), options_(std::move(options)), clock_(first.clock_) {
  options_.background = false;
  options_.extent_bytes = first.options_.extent_bytes;
  if (options_.memory_bytes == 0) options_.memory_bytes = 256 * kMiB;
  mount();
}

TestStore::~TestStore() {
  if (store_) unmount();
  if (!owns_root_) return;
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

void TestStore::mount() {
  auto volume = open_posix_volume(root_, {});
  ASSERT_TRUE(volume) << volume.error().message;
  auto store = open_store(*volume, options_, clock_, "test store");
  ASSERT_TRUE(store) << store.error().message;
  store_ = std::move(*store);
}

void TestStore::unmount() {
  Status status = store_->close();
  EXPECT_TRUE(status) << status.error().message;
  store_.reset();
}

void TestStore::die() { store_.reset(); }

void TestStore::crash() {
  die();
  mount();
}

void TestStore::settle() {
  for (int quiet = 0; quiet < 3;) quiet = store_->pump() ? 0 : quiet + 1;
}

template <class T, class Call>
Result<T> TestStore::wait(Call call) {
  std::optional<Result<T>> result;
  std::atomic<bool> answered{false};  // reads complete on a thread of the volume
  store_->pump_claim();
  call([&](Result<T> answer) {
    result = std::move(answer);
    answered = true;
  });
  for (int i = 0; i < 100'000 && !answered; ++i)
    if (!store_->pump()) usleep(100);
  if (!answered) {
    ADD_FAILURE() << "a request was never answered";
    std::abort();
  }
  return std::move(*result);
}

void TestStore::drain() {
  auto result = wait<void>([&](auto done) { store_->drain(true, std::move(done)); });
  EXPECT_TRUE(result) << result.error().message;
  settle();
}

void TestStore::refresh() {
  auto result = wait<void>([&](auto done) { store_->refresh(std::move(done)); });
  EXPECT_TRUE(result) << result.error().message;
  settle();  // answers
}

std::string TestStore::payload(int seed, size_t bytes) {
  std::string content(bytes, 0);
  std::mt19937_64 random(static_cast<uint64_t>(seed) * 7919 + 1);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t value = random();
    std::memcpy(content.data() + i, &value, std::min<size_t>(8, bytes - i));
  }
  return content;
}

ObjectId TestStore::resolve(const std::string& path) {
  ObjectId at = kRootId;
  for (const auto& part : fs::path(path)) {
    auto found = store_->lookup(at, part.string(), {});
    if (!found) return {};
    at = found->id;
  }
  return at;
}

std::pair<ObjectId, std::string> TestStore::parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {kRootId, path};
  return {resolve(path.substr(0, slash)), path.substr(slash + 1)};
}

void TestStore::mkdir(const std::string& path) {
  auto [parent, name] = parent_of(path);
  auto made = store_->make_directory(parent, name, 0755, {});
  EXPECT_TRUE(made || made.error().code == Code::kExists) << made.error().message;
}

Handle* TestStore::create(const std::string& path, uint32_t thread) {
  auto [parent, name] = parent_of(path);
  auto made = store_->create(parent, name, 0644, {.read = true, .write = true}, {.thread_id = thread});
  EXPECT_TRUE(made) << made.error().message;
  return made ? made->second : nullptr;
}

Handle* TestStore::open(const std::string& path, OpenRequest request, uint32_t thread) {
  auto opened = store_->open(resolve(path), request, {.thread_id = thread});
  if (!opened && opened.error().code == Code::kStale)  // as the kernel does
    opened = store_->open(resolve(path), request, {.thread_id = thread});
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? *opened : nullptr;
}

Handle* TestStore::open_for_rewrite(const std::string& path, uint32_t thread) {
  auto [parent, name] = parent_of(path);
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto found = store_->lookup(parent, name, {.thread_id = thread});
    if (!found) return nullptr;
    auto opened = store_->open(found->id, {.read = false, .write = true, .truncate = true}, {.thread_id = thread});
    if (opened) return *opened;
    EXPECT_EQ(opened.error().code, Code::kStale);
  }
  return nullptr;
}

Code TestStore::try_pwrite(Handle* handle, uint64_t offset, const std::string& bytes) {
  auto result = wait<size_t>([&](auto done) {
    store_->write(handle, offset, std::as_bytes(std::span(bytes)), std::move(done));
  });
  return result ? Code::kNoData : result.error().code;
}

void TestStore::pwrite(Handle* handle, uint64_t offset, const std::string& bytes) {
  EXPECT_EQ(try_pwrite(handle, offset, bytes), Code::kNoData);
}

bool TestStore::close(Handle* handle) {
  auto result = wait<void>([&](auto done) { store_->flush(handle, std::move(done)); });
  store_->release(handle);
  return result.has_value();
}

bool TestStore::write_file(const std::string& path, const std::string& content, uint32_t thread) {
  Handle* handle = create(path, thread);
  return handle != nullptr && write_and_close(handle, content);
}

bool TestStore::try_write_file(const std::string& path, const std::string& content, uint32_t thread) {
  auto [parent, name] = parent_of(path);
  auto made = store_->create(parent, name, 0644, {.read = true, .write = true}, {.thread_id = thread});
  EXPECT_TRUE(made || made.error().code == Code::kNoSpace) << made.error().message;
  return made && write_and_close(made->second, content);
}

bool TestStore::write_and_close(Handle* handle, const std::string& content) {
  bool good = true;
  for (size_t at = 0; at < content.size(); at += kMiB) {
    const std::string piece = content.substr(at, kMiB);
    good &= try_pwrite(handle, at, piece) == Code::kNoData;
  }
  return close(handle) && good;
}

Code TestStore::try_read_file(const std::string& path) {
  Handle* handle = open(path, {});
  if (handle == nullptr) return Code::kNotFound;
  auto result = wait<ReadReply>([&](auto done) { store_->read(handle, 0, 1 << 20, std::move(done)); });
  store_->release(handle);
  return result ? Code::kNoData : result.error().code;
}

std::string TestStore::read_file(const std::string& path) {
  Handle* handle = open(path, {});
  if (handle == nullptr) return "(absent)";
  std::string content = read(handle);
  store_->release(handle);
  return content;
}

std::string TestStore::read(Handle* handle) {
  std::string content;
  while (true) {
    auto reply = wait<ReadReply>([&](auto done) { store_->read(handle, content.size(), 1 << 20, std::move(done)); });
    if (!reply) {
      ADD_FAILURE() << reply.error().message;
      break;
    }
    for (const iovec& piece : reply->pieces) content.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    if (reply->bytes < (1 << 20)) break;
  }
  return content;
}

bool TestStore::exists(const std::string& path) { return resolve(path).valid(); }

bool TestStore::rename(const std::string& from, const std::string& to, uint32_t thread) {
  auto [parent, name] = parent_of(from);
  auto [new_parent, new_name] = parent_of(to);
  return wait<void>([&](auto done) {
           store_->rename(parent, name, new_parent, new_name, RenameMode::kReplace, {.thread_id = thread}, std::move(done));
         }).has_value();
}

bool TestStore::unlink(const std::string& path) {
  auto [parent, name] = parent_of(path);
  return wait<void>([&](auto done) { store_->unlink(parent, name, {}, std::move(done)); }).has_value();
}

bool TestStore::rmdir(const std::string& path) {
  auto [parent, name] = parent_of(path);
  return wait<void>([&](auto done) { store_->remove_directory(parent, name, std::move(done)); }).has_value();
}

void TestStore::truncate(const std::string& path, uint64_t size) {
  SetAttributes change;
  change.size_bytes = size;
  auto result = wait<Stat>([&](auto done) { store_->set_attributes(resolve(path), nullptr, change, {}, std::move(done)); });
  EXPECT_TRUE(result) << result.error().message;
}

void TestStore::add_to_tree(ObjectId directory, const std::string& path, std::map<std::string, std::string>& tree) {
  uint64_t after = 0;
  while (true) {
    auto items = store_->list(directory, after, 16);
    ASSERT_TRUE(items) << items.error().message;
    if (items->empty()) return;
    for (const DirectoryItem& item : *items) {
      after = item.cookie;
      auto stat = store_->stat(item.id);
      ASSERT_TRUE(stat) << stat.error().message;
      const std::string at = path.empty() ? item.name : path + "/" + item.name;
      std::string& text = tree[at];
      EXPECT_TRUE(text.empty()) << "listed twice: " << at;
      text = fmt::format("{:o} {} {} {} {} {} {} {} ", stat->mode, stat->nlink, stat->uid, stat->size_bytes, stat->mtime_ns,
                         stat->ctime_ns, stat->btime_ns, stat->blocks_512);
      if (S_ISDIR(stat->mode)) add_to_tree(item.id, at, tree);
      if (S_ISREG(stat->mode)) text += read_file(at);
    }
  }
}

std::map<std::string, std::string> TestStore::tree() {
  std::map<std::string, std::string> tree;
  add_to_tree(kRootId, "", tree);
  return tree;
}

std::map<std::string, std::string> TestStore::contents(const std::string& below) {
  std::map<std::string, std::string> found;
  const ObjectId directory = resolve(below);
  for (uint64_t after = 0;;) {
    auto items = store_->list(directory, after, 16);
    EXPECT_TRUE(items) << items.error().message;
    if (!items || items->empty()) return found;
    for (const DirectoryItem& item : *items) {
      after = item.cookie;
      const std::string path = below.empty() ? item.name : below + "/" + item.name;
      EXPECT_TRUE(found.emplace(path, S_ISDIR(item.type_bits) ? "/" : read_file(path)).second) << "listed twice: " << path;
      if (S_ISDIR(item.type_bits)) found.merge(contents(path));
    }
  }
}

uint64_t TestStore::allocated_bytes() const {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    struct stat info {};
    if (entry.path().string().find("/extents/") != std::string::npos && ::stat(entry.path().c_str(), &info) == 0 &&
        S_ISREG(info.st_mode))
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

void TestStore::flip_in_extents(const std::string& needle) {
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    if (entry.path().string().find("/extents/") == std::string::npos || !entry.is_regular_file()) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const size_t at = content.find(needle);
    if (at == std::string::npos) continue;
    file.clear();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(content[at] ^ 0x40));
    return;
  }
  ADD_FAILURE() << "no extent holds these bytes";
}

}  // namespace kvcachefs::testing
