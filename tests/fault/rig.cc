#include "tests/fault/rig.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>

#include "store/journal/file_header.h"
#include "store/journal/journal_file.h"

// The only real files here are those of the index, whose own syncing is tested in its room; what a crash leaves of it is chosen
// by copying directories. Without these two a run takes minutes, nearly all of it waiting for the machine's disk.
extern "C" int fsync(int) { return 0; }
extern "C" int fdatasync(int) { return 0; }

namespace kvcachefs::testing {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kStartNs = 1'700'000'000'000'000'000;
constexpr int64_t kRoundNs = 1'000'000;
constexpr int kRoundsToAnswer = 3000;
constexpr Caller kCaller{.uid = 0, .gid = 0, .thread_id = 1};

std::string temporary_directory() {
  const char* base = std::getenv("TMPDIR");
  std::string name = std::string(base != nullptr ? base : "/tmp") + "/kvcachefs-fault-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) std::abort();
  return name;
}

}  // namespace

bool tracing() {
  static const bool on = std::getenv("KVCACHEFS_FAULT_TRACE") != nullptr;
  return on;
}

StoreOptions small_options(Durability durability) {
  StoreOptions options;
  options.durability = durability;
  options.background = false;
  options.node = "test";
  options.memory_bytes = 64 * kMiB;
  options.extent_bytes = 16 * kMiB;
  options.pack_below_bytes = 512 * kKiB;
  options.inline_below_bytes = 300;
  options.evict = false;  // what a full volume answers; store_evict_test is about the rest
  return options;
}

Rig::Rig(StoreOptions options, std::shared_ptr<SimVolume> disk)
    : options_(std::move(options)), disk_(std::move(disk)), clock_(kStartNs), directory_(temporary_directory()) {
  index_directory_ = directory_ + "/index";
  options_.index_directory = index_directory_;
}

Rig::~Rig() {
  store_.reset();
  std::error_code ignored;
  fs::remove_all(directory_, ignored);
}

Status Rig::mount() {
  std::shared_ptr<Volume> volume = disk_;
  trace("mount");
  if (hook_ || tracing()) volume = make_fault_volume(disk_, [this](const VolumeCall& call) {
      if (call.mutates() || call.kind == VolumeCall::Kind::kOpen)
        trace("      call {} {} {} at {} length {}", call.number, call_kind_name(call.kind), call.path, call.offset, call.length);
      return hook_ ? hook_(call) : Fault{};
    });
  KVC_ASSIGN(store_, open_store(std::move(volume), options_, clock_, "fault test"));
  return {};
}

Status Rig::unmount() {
  Status status = store_->close();
  store_.reset();
  return status;
}

void Rig::set_index_from(const std::string& directory) {
  fs::remove_all(index_directory_);
  if (fs::exists(directory)) fs::copy(directory, index_directory_, fs::copy_options::recursive);
}

std::string Rig::copy_index() const {
  const std::string copy = fmt::format("{}/copy{}", directory_, copies_++);
  fs::copy(index_directory_, copy, fs::copy_options::recursive);
  return copy;
}

// --- calls ---

template <class T, class Call>
Result<T> Rig::wait(Call call) {
  auto answer = std::make_shared<std::optional<Result<T>>>();
  store_->pump_claim();
  call([answer](Result<T> result) { *answer = std::move(result); });
  for (int round = 0; round < kRoundsToAnswer && !*answer; ++round) {
    store_->pump();
    clock_.advance_ns(kRoundNs);
  }
  if (!*answer) return fail(Code::kCanceled, "a request was never answered");
  return std::move(**answer);
}

void Rig::Release::operator()(Handle* handle) const { rig->store_->release(handle); }

Result<ObjectId> Rig::resolve(const std::string& path) {
  ObjectId at = kRootId;
  for (const auto& part : fs::path(path)) {
    KVC_ASSIGN(const Stat found, store_->lookup(at, part.string(), kCaller));
    at = found.id;
  }
  return at;
}

Result<std::pair<ObjectId, std::string>> Rig::parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return std::pair{kRootId, path};
  KVC_ASSIGN(const ObjectId parent, resolve(path.substr(0, slash)));
  return std::pair{parent, path.substr(slash + 1)};
}

Result<Rig::HandlePtr> Rig::create(const std::string& path) {
  KVC_ASSIGN(const auto place, parent_of(path));
  KVC_ASSIGN(auto made, store_->create(place.first, place.second, 0644, {.read = true, .write = true}, kCaller));
  return HandlePtr(made.second, Release{this});
}

Result<Rig::HandlePtr> Rig::open(const std::string& path, OpenRequest request) {
  KVC_ASSIGN(ObjectId id, resolve(path));
  auto handle = store_->open(id, request, kCaller);
  if (!handle && handle.error().code == Code::kStale) {  // as the kernel does
    KVC_ASSIGN(id, resolve(path));
    handle = store_->open(id, request, kCaller);
  }
  if (!handle) return std::unexpected(std::move(handle).error());
  return HandlePtr(*handle, Release{this});
}

Status Rig::write(const HandlePtr& handle, uint64_t offset, const std::string& bytes) {
  auto written = wait<size_t>(
      [&](auto done) { store_->write(handle.get(), offset, std::as_bytes(std::span(bytes)), std::move(done)); });
  if (!written) return std::unexpected(std::move(written).error());
  if (*written != bytes.size()) return fail(Code::kInvalid, "a short write");
  return {};
}

Status Rig::flush(const HandlePtr& handle) {
  return wait<void>([&](auto done) { store_->flush(handle.get(), std::move(done)); });
}

Status Rig::fsync(const HandlePtr& handle) {
  return wait<void>([&](auto done) { store_->fsync(handle.get(), std::move(done)); });
}

Status Rig::rename(const std::string& from, const std::string& to, RenameMode mode) {
  KVC_ASSIGN(const auto old_place, parent_of(from));
  KVC_ASSIGN(const auto new_place, parent_of(to));
  KVC_TRY(wait<void>([&](auto done) {
    store_->rename(old_place.first, old_place.second, new_place.first, new_place.second, mode, kCaller,
                   std::move(done));
  }));
  return {};
}

Status Rig::unlink(const std::string& path) {
  KVC_ASSIGN(const auto place, parent_of(path));
  return wait<void>([&](auto done) { store_->unlink(place.first, place.second, kCaller, std::move(done)); });
}

Status Rig::truncate(const std::string& path, uint64_t size_bytes) {
  KVC_ASSIGN(const ObjectId id, resolve(path));
  SetAttributes change;
  change.size_bytes = size_bytes;
  KVC_TRY(wait<Stat>([&](auto done) { store_->set_attributes(id, nullptr, change, kCaller, std::move(done)); }));
  return {};
}

Status Rig::make_directory(const std::string& path) {
  KVC_ASSIGN(const auto place, parent_of(path));
  KVC_TRY(store_->make_directory(place.first, place.second, 0755, kCaller));
  return {};
}

Status Rig::sync_directory() {
  return wait<void>([&](auto done) { store_->sync_directory(kRootId, std::move(done)); });
}

Status Rig::drain() {
  return wait<void>([&](auto done) { store_->drain(true, std::move(done)); });
}

Result<std::string> Rig::read(const HandlePtr& handle) {
  std::string content;
  while (true) {
    KVC_ASSIGN(const ReadReply reply, wait<ReadReply>([&](auto done) {
                 store_->read(handle.get(), content.size(), kMiB, std::move(done));
               }));
    for (const iovec& piece : reply.pieces) content.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    if (reply.bytes < kMiB) return content;
  }
}

Result<Content> Rig::read(const std::string& path) {
  auto handle = open(path, {});
  if (!handle && handle.error().code == Code::kNotFound) return Content();
  if (!handle) return std::unexpected(std::move(handle).error());
  KVC_ASSIGN(std::string content, read(*handle));
  return Content(std::move(content));
}

Status Rig::add_to_tree(ObjectId directory, const std::string& path, Tree& tree) {
  for (uint64_t after = 0;;) {
    KVC_ASSIGN(const auto items, store_->list(directory, after, 16));
    if (items.empty()) return {};
    for (const DirectoryItem& item : items) {
      after = item.cookie;
      const std::string at = path.empty() ? item.name : path + "/" + item.name;
      if (S_ISDIR(item.type_bits)) {
        KVC_TRY(add_to_tree(item.id, at, tree));
        continue;
      }
      auto content = read(at);
      if (!content) return std::unexpected(std::move(content).error().at(at));
      if (!*content) return fail(Code::kNotFound, at + " is listed but cannot be opened");
      tree.emplace(at, std::move(**content));
    }
  }
}

Result<Tree> Rig::tree() {
  Tree tree;
  KVC_TRY(add_to_tree(kRootId, "", tree));
  return tree;
}

void Rig::settle(int rounds) {
  for (int quiet = 0; quiet < 3 && rounds > 0; --rounds) quiet = store_->pump() ? 0 : quiet + 1;
}

void Rig::pass_time(int64_t ns) {
  clock_.advance_ns(ns);
  settle();
}

uint64_t Rig::errors() {
  const StoreStatus status = store_->status();
  return status.errors_checksum + status.errors_volume_read + status.errors_volume_write + status.errors_journal +
         status.errors_index + status.errors_no_space;
}

// --- the machine ---

void reboot(SimVolume& disk) {
  for (const std::string& path : disk.all_files()) {
    if (!path.ends_with(".log")) continue;
    auto file = disk.open(path, {});
    if (!file) continue;
    Bytes header(kMaxHeaderBytes);
    const auto got = (*file)->read(header, 0);
    header.resize(got ? *got : 0);
    auto decoded = decode_journal_header(header);
    if (!decoded) continue;  // torn by the crash
    std::string& boot_id = decoded->header.boot_id;
    for (char& letter : boot_id) letter = letter == 'z' ? 'y' : 'z';  // of the same length: the header keeps its size
    const Bytes changed = encode_journal_header(decoded->header);
    for (size_t at = 0; at < changed.size(); ++at)
      if (changed[at] != header[at] && !disk.corrupt(path, at, changed[at] ^ header[at])) std::abort();
  }
}

}  // namespace kvcachefs::testing
