#include "tests/nodes/node.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

// The only real files here are those of the indexes, whose own syncing is tested in its room.
extern "C" int fsync(int) { return 0; }
extern "C" int fdatasync(int) { return 0; }

namespace kvcachefs::testing {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kRoundNs = 1'000'000;
constexpr int kShortRounds = 2000, kRoundsToAnswer = 8000;  // who waits for room waits for 20 s
constexpr Caller kCaller{.uid = 0, .gid = 0, .thread_id = 1};

std::string temporary_directory() {
  const char* base = std::getenv("TMPDIR");
  std::string name = std::string(base != nullptr ? base : "/tmp") + "/kvcachefs-nodes-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  return name;
}

}  // namespace

Node::Node(unsigned number_, const std::string& machine, std::shared_ptr<SimServer> server, StoreOptions options, int64_t clock_off_ns, Wrap wrap, std::function<void(int64_t)> pass)
    : number(number_),
      machine_(std::make_shared<SimClient>(server, machine)),
      options_(std::move(options)),
      clock_(server->now_ns() + clock_off_ns),
      wrap_(std::move(wrap)),
      pass_(std::move(pass)),
      directory_(temporary_directory()) {
  options_.background = false;
  options_.node = fmt::format("n{}", number);
  options_.index_directory = directory_ + "/index";
}

Node::~Node() {
  store_.reset();
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

Status Node::start() {
  machine_->restart();
  KVC_ASSIGN(store_, open_store(wrap_ ? wrap_(machine_) : machine_, options_, clock_, "simulation"));
  return {};
}

Status Node::end() {
  Status closed = store_->close();
  store_.reset();
  return closed;
}

void Node::bury() { store_.reset(); }

bool Node::pump() { return store_->pump(); }

template <class T, class Call>
Result<T> Node::wait(Call call) {
  auto answer = std::make_shared<std::optional<Result<T>>>();
  store_->pump_claim();
  call([answer](Result<T> result) { *answer = std::move(result); });
  for (int round = 0; round < kRoundsToAnswer && !*answer && !machine_->is_killed(); ++round) {
    store_->pump();
    if (!*answer) pass_(round < kShortRounds ? kRoundNs : 20 * kRoundNs);
  }
  if (machine_->is_killed()) return fail(Code::kCanceled, "killed");
  if (!*answer) return fail(Code::kRange, "a request was never answered");
  return std::move(**answer);
}

Result<ObjectId> Node::resolve(const std::string& path) {
  ObjectId at = kRootId;
  for (const auto& part : fs::path(path)) {
    KVC_ASSIGN(const Stat found, store_->lookup(at, part.string(), kCaller));
    at = found.id;
  }
  return at;
}

Result<std::pair<ObjectId, std::string>> Node::parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return std::pair{kRootId, path};
  KVC_ASSIGN(const ObjectId parent, resolve(path.substr(0, slash)));
  return std::pair{parent, path.substr(slash + 1)};
}

Result<Handle*> Node::create(const std::string& path) {
  KVC_ASSIGN(const auto place, parent_of(path));
  KVC_ASSIGN(auto made, store_->create(place.first, place.second, 0644, {.read = true, .write = true}, kCaller));
  return made.second;
}

Result<Handle*> Node::open(const std::string& path, OpenRequest request) {
  KVC_ASSIGN(ObjectId id, resolve(path));
  auto handle = store_->open(id, request, kCaller);
  if (!handle && handle.error().code == Code::kStale) {  // as the kernel does
    KVC_ASSIGN(id, resolve(path));
    handle = store_->open(id, request, kCaller);
  }
  return handle;
}

Status Node::write(Handle* handle, const std::string& bytes) {
  constexpr size_t kPiece = 128 * kKiB;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const auto piece = std::as_bytes(std::span(bytes)).subspan(at, std::min(kPiece, bytes.size() - at));
    KVC_TRY(wait<size_t>([&](auto done) { store_->write(handle, at, piece, std::move(done)); }));
  }
  return {};
}

Status Node::close(Handle* handle) {
  Status flushed = wait<void>([&](auto done) { store_->flush(handle, std::move(done)); });
  store_->release(handle);
  return flushed;
}

Result<std::string> Node::read(Handle* handle) {
  std::string content;
  while (true) {
    KVC_ASSIGN(const ReadReply reply, wait<ReadReply>([&](auto done) { store_->read(handle, content.size(), kMiB, std::move(done)); }));
    for (const iovec& piece : reply.pieces) content.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    if (reply.bytes < kMiB) return content;
  }
}

Result<std::string> Node::read(const std::string& path) {
  KVC_ASSIGN(Handle* const handle, open(path, {}));
  auto content = read(handle);
  store_->release(handle);
  return content;
}

Status Node::rename(const std::string& from, const std::string& to) {
  KVC_ASSIGN(const auto old_place, parent_of(from));
  KVC_ASSIGN(const auto new_place, parent_of(to));
  return wait<void>([&](auto done) {
    store_->rename(old_place.first, old_place.second, new_place.first, new_place.second, RenameMode::kReplace, kCaller, std::move(done));
  });
}

Status Node::unlink(const std::string& path) {
  KVC_ASSIGN(const auto place, parent_of(path));
  return wait<void>([&](auto done) { store_->unlink(place.first, place.second, kCaller, std::move(done)); });
}

Status Node::make_directory(const std::string& path) {
  KVC_ASSIGN(const auto place, parent_of(path));
  KVC_TRY(store_->make_directory(place.first, place.second, 0755, kCaller));
  return {};
}

Status Node::remove_directory(const std::string& path) {
  KVC_ASSIGN(const auto place, parent_of(path));
  return wait<void>([&](auto done) { store_->remove_directory(place.first, place.second, std::move(done)); });
}

Status Node::drain() {
  return wait<void>([&](auto done) { store_->drain(true, std::move(done)); });
}

Status Node::refresh() {
  return wait<void>([&](auto done) { store_->refresh(std::move(done)); });
}

Result<bool> Node::exists(const std::string& path) {
  auto found = resolve(path);
  if (!found && found.error().code != Code::kNotFound) return std::unexpected(std::move(found).error());
  return found.has_value();
}

Result<std::vector<DirectoryItem>> Node::list(const std::string& path) {
  KVC_ASSIGN(const ObjectId directory, resolve(path));
  std::vector<DirectoryItem> all;
  for (uint64_t after = 0;;) {
    KVC_ASSIGN(auto items, store_->list(directory, after, 16));
    if (items.empty()) return all;
    after = items.back().cookie;
    std::ranges::move(items, std::back_inserter(all));
  }
}

}  // namespace kvcachefs::testing
