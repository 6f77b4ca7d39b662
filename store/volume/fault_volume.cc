// Wraps a volume and calls a hook before each call. The hook gets paths as the store passed them.
//  - A torn write to a file open for direct I/O is rounded down to a block: a device tears no finer there.
//  - make_directories counts as one call, publish too; a rename carries the path it is from; VolumeLock::describe, info, space and the
//    SEEK calls do not ask the hook.
//  - An injected failure of a submitted request completes on the engine's thread, like a real one: the wrapped volume
//    gets an empty request in its place.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "store/base/units.h"
#include "store/volume/delay_line.h"
#include "store/volume/fault_volume.h"

namespace kvcachefs {

namespace {

using Kind = VolumeCall::Kind;

// Numbers the calls and asks the hook. Shared by the volume and its files.
class FaultSource {
 public:
  explicit FaultSource(FaultHook hook) : hook_(std::move(hook)) {}

  Fault ask(Kind kind, const std::string& path, uint64_t offset = 0, uint64_t length = 0) {
    VolumeCall call{.kind = kind, .number = 0, .path = path, .offset = offset, .length = length};
    if (call.mutates()) call.number = ++calls_;
    return hook_(call);
  }

  // For calls that either happen or do not: sleeps for the delay, then fails or returns success.
  Status pass(Kind kind, const std::string& path, uint64_t offset = 0, uint64_t length = 0) {
    const Fault fault = ask(kind, path, offset, length);
    sleep(fault);
    if (fault.sys_errno != 0) return injected(kind, path, fault);
    return {};
  }

  static void sleep(const Fault& fault) {
    if (fault.delay_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(fault.delay_ns));
  }
  static std::unexpected<Error> injected(Kind kind, const std::string& path, const Fault& fault) {
    const int sys_errno = fault.sys_errno != 0 ? fault.sys_errno : EIO;
    return fail_errno(sys_errno, path + ": injected failure of " + call_kind_name(kind));
  }

 private:
  FaultHook hook_;
  std::atomic<uint64_t> calls_{0};
};
using FaultSourcePtr = std::shared_ptr<FaultSource>;

uint64_t torn_length(const File& file, const Fault& fault) {
  const auto wanted = static_cast<uint64_t>(fault.write_only_bytes);
  return file.is_direct() ? align_down(wanted, kBlockBytes) : wanted;
}

// The first `length` bytes of the pieces.
template <class Piece>
std::vector<Piece> first_bytes(std::span<const Piece> pieces, uint64_t length) {
  std::vector<Piece> first;
  for (const Piece piece : pieces) {
    const auto take = static_cast<size_t>(std::min<uint64_t>(length, piece.size()));
    if (take > 0) first.push_back(piece.first(take));
    length -= take;
  }
  return first;
}

template <class Piece>
uint64_t total_bytes(std::span<const Piece> pieces) {
  uint64_t total = 0;
  for (const Piece piece : pieces) total += piece.size();
  return total;
}

class FaultFile final : public File {
 public:
  FaultFile(FaultSourcePtr source, FilePtr inner, std::string volume_path)
      : source_(std::move(source)), inner_(std::move(inner)), volume_path_(std::move(volume_path)) {}

  const FilePtr& inner() const { return inner_; }
  const std::string& volume_path() const { return volume_path_; }

  const std::string& path() const override { return inner_->path(); }
  Result<size_t> read(std::span<std::byte> into, uint64_t offset) override {
    KVC_TRY(source_->pass(Kind::kRead, volume_path_, offset, into.size()));
    return inner_->read(into, offset);
  }
  Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) override {
    const Fault fault = source_->ask(Kind::kWrite, volume_path_, offset, total_bytes(pieces));
    FaultSource::sleep(fault);
    if (fault.write_only_bytes >= 0) {
      KVC_TRY(inner_->write(first_bytes(pieces, torn_length(*inner_, fault)), offset));
      return FaultSource::injected(Kind::kWrite, volume_path_, fault);
    }
    if (fault.sys_errno != 0) return FaultSource::injected(Kind::kWrite, volume_path_, fault);
    return inner_->write(pieces, offset);
  }
  Status sync_data() override {
    KVC_TRY(source_->pass(Kind::kSync, volume_path_));
    return inner_->sync_data();
  }
  Status truncate(uint64_t size_bytes) override {
    KVC_TRY(source_->pass(Kind::kTruncate, volume_path_, size_bytes));
    return inner_->truncate(size_bytes);
  }
  Status allocate(uint64_t offset, uint64_t length) override {
    KVC_TRY(source_->pass(Kind::kAllocate, volume_path_, offset, length));
    return inner_->allocate(offset, length);
  }
  void will_need(uint64_t offset, uint64_t length) override { inner_->will_need(offset, length); }
  Status punch(uint64_t offset, uint64_t length) override {
    KVC_TRY(source_->pass(Kind::kPunch, volume_path_, offset, length));
    return inner_->punch(offset, length);
  }
  Result<FileInfo> info() override { return inner_->info(); }
  Result<uint64_t> next_data(uint64_t offset) override { return inner_->next_data(offset); }
  Result<uint64_t> next_hole(uint64_t offset) override { return inner_->next_hole(offset); }
  Result<uint64_t> allocated_in(uint64_t offset, uint64_t length) override { return inner_->allocated_in(offset, length); }
  bool is_direct() const override { return inner_->is_direct(); }
  int descriptor() const override { return inner_->descriptor(); }

 private:
  FaultSourcePtr source_;
  FilePtr inner_;
  std::string volume_path_;
};

class FaultVolume final : public Volume {
 public:
  FaultVolume(std::shared_ptr<Volume> inner, FaultHook hook)
      : inner_(std::move(inner)),
        source_(std::make_shared<FaultSource>(std::move(hook))),
        delays_([this](IoRequest request) { pass_on(std::move(request)); }) {}

  const VolumeFeatures& features() const override { return inner_->features(); }
  const std::string& root() const override { return inner_->root(); }

  Result<FilePtr> open(const std::string& path, OpenOptions options) override {
    KVC_TRY(source_->pass(options.create_exclusive ? Kind::kCreate : Kind::kOpen, path));
    KVC_ASSIGN(FilePtr file, inner_->open(path, options));
    return std::make_shared<FaultFile>(source_, std::move(file), path);
  }
  Status make_directory(const std::string& path) override {
    KVC_TRY(source_->pass(Kind::kMakeDirectory, path));
    return inner_->make_directory(path);
  }
  Status make_directories(const std::string& path) override {
    KVC_TRY(source_->pass(Kind::kMakeDirectory, path));
    return inner_->make_directories(path);
  }
  Status remove_file(const std::string& path) override {
    KVC_TRY(source_->pass(Kind::kRemoveFile, path));
    return inner_->remove_file(path);
  }
  Status remove_directory(const std::string& path) override {
    KVC_TRY(source_->pass(Kind::kRemoveDirectory, path));
    return inner_->remove_directory(path);
  }
  Status rename(const std::string& from, const std::string& to) override {
    KVC_TRY(source_->pass(Kind::kRename, from));
    return inner_->rename(from, to);
  }
  Status publish(const std::string& from, const std::string& to) override {
    KVC_TRY(source_->pass(Kind::kRename, from));
    return inner_->publish(from, to);
  }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    KVC_TRY(source_->pass(Kind::kList, path));
    return inner_->list(path);
  }
  Result<FileInfo> info(const std::string& path) override { return inner_->info(path); }
  Status sync_directory(const std::string& path) override {
    KVC_TRY(source_->pass(Kind::kSyncDirectory, path));
    return inner_->sync_directory(path);
  }
  Status sync_everything() override {
    KVC_TRY(source_->pass(Kind::kSyncEverything, ""));
    return inner_->sync_everything();
  }
  Result<SpaceInfo> space() override { return inner_->space(); }
  Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) override {
    KVC_TRY(source_->pass(Kind::kLock, path));
    return inner_->lock(path);
  }

  void submit(std::vector<IoRequest> requests) override;
  void drain() override {
    delays_.wait();
    inner_->drain();
  }
  void expect_reads_for(std::chrono::nanoseconds time) override { inner_->expect_reads_for(time); }

 private:
  int64_t prepare(IoRequest& request);
  void pass_on(IoRequest request) {
    std::vector<IoRequest> one;
    one.push_back(std::move(request));
    inner_->submit(std::move(one));
  }

  std::shared_ptr<Volume> inner_;
  FaultSourcePtr source_;
  DelayLine delays_;  // last member: its thread uses the others
};

void FaultVolume::submit(std::vector<IoRequest> requests) {
  std::vector<IoRequest> at_once;
  for (auto& request : requests) {
    const int64_t delay_ns = prepare(request);
    if (delay_ns > 0)
      delays_.push(std::move(request), delay_ns);
    else
      at_once.push_back(std::move(request));
  }
  inner_->submit(std::move(at_once));
}

// Turns it into a request for the wrapped volume, with the fault built in. Returns the delay.
int64_t FaultVolume::prepare(IoRequest& request) {
  const auto file = std::dynamic_pointer_cast<FaultFile>(request.file);
  if (!file) return 0;  // not opened here
  const std::span<const std::span<std::byte>> pieces = request.pieces;
  const Kind kind = request.kind == IoRequest::Kind::kWrite ? Kind::kWrite : Kind::kRead;
  const Fault fault = source_->ask(kind, file->volume_path(), request.offset, total_bytes(pieces));
  request.file = file->inner();
  const bool torn = kind == Kind::kWrite && fault.write_only_bytes >= 0;
  if (!torn && fault.sys_errno == 0) return fault.delay_ns;
  request.pieces = first_bytes(pieces, torn ? torn_length(*request.file, fault) : 0);
  request.done = [kind, fault, path = file->volume_path(),
                  done = std::move(request.done)](Result<size_t> result) mutable {
    if (!result) return done(std::move(result));
    done(FaultSource::injected(kind, path, fault));
  };
  return fault.delay_ns;
}

}  // namespace

std::shared_ptr<Volume> make_fault_volume(std::shared_ptr<Volume> inner, FaultHook hook) {
  return std::make_shared<FaultVolume>(std::move(inner), std::move(hook));
}

}  // namespace kvcachefs
