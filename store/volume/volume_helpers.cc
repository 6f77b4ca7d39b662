#include <algorithm>
#include <limits>

#include "store/base/mutex.h"
#include "store/volume/volume.h"
#include "store/volume/volume_path.h"

namespace kvcachefs {

namespace {

// Shared with the callbacks; lives on the waiter's stack. The waiter returns only after the last callback has released it.
struct Batch {
  InnerMutex mutex;
  ConditionVariable finished;
  size_t left = 0;
  Status first_error;

  void one_done(const Result<size_t>& result) {
    const std::lock_guard lock(mutex);
    if (!result && first_error) first_error = std::unexpected(result.error());
    if (--left == 0) finished.notify_all();
  }
};

Status write_and_sync(Volume& volume, const std::string& path, std::span<const std::byte> content) {
  KVC_ASSIGN(const FilePtr file, volume.open(path, {.create_exclusive = true}));
  const std::span<const std::byte> pieces[] = {content};
  KVC_TRY(file->write(pieces, 0));
  return file->sync_data();
}

}  // namespace

Result<uint64_t> File::allocated_in(uint64_t offset, uint64_t length) {
  const uint64_t end = offset + length;
  uint64_t bytes = 0;
  for (uint64_t at = offset; at < end;) {
    auto data = next_data(at);
    if (!data && data.error().code == Code::kNoData) break;
    KVC_TRY(data);
    if (*data >= end) break;
    KVC_ASSIGN(const uint64_t hole, next_hole(*data));
    bytes += std::min(hole, end) - *data;
    at = std::max(hole, *data + 1);
  }
  return bytes;
}

Status run_all(Volume& volume, std::vector<IoRequest> requests) {
  if (requests.empty()) return {};
  Batch batch;
  batch.left = requests.size();
  for (auto& request : requests) request.done = [&batch](Result<size_t> result) { batch.one_done(result); };
  volume.submit(std::move(requests));
  std::unique_lock lock(batch.mutex);
  batch.finished.wait(lock, [&] { return batch.left == 0; });
  return std::move(batch.first_error);
}

Result<std::vector<std::byte>> read_file(Volume& volume, const std::string& path, uint64_t max_bytes) {
  KVC_ASSIGN(const FilePtr file, volume.open(path, {}));
  KVC_ASSIGN(const FileInfo info, file->info());
  const auto too_big = [&] {
    return fail(Code::kTooBig, volume.root() + "/" + path + ": over " + std::to_string(max_bytes) + " bytes");
  };
  max_bytes = std::min(max_bytes, std::numeric_limits<uint64_t>::max() / 2);  // room for one byte more, and for doubling
  std::vector<std::byte> content;
  // Reads one byte more than the size, to see whether the file grew meanwhile.
  uint64_t want = info.size_bytes + 1;
  while (true) {
    if (want - 1 > max_bytes) return too_big();
    const size_t have = content.size();
    content.resize(static_cast<size_t>(want));
    KVC_ASSIGN(const size_t got, file->read(std::span(content).subspan(have), have));
    content.resize(have + got);
    if (content.size() < want) return content;
    if (content.size() > max_bytes) return too_big();
    want = std::min(want * 2, max_bytes + 1);
  }
}

Status check_plain(Volume& volume, const std::string& directory) {
  auto entries = volume.list(directory);
  if (!entries && entries.error().code == Code::kNotFound) return {};
  if (!entries) return std::unexpected(std::move(entries).error());
  for (const DirectoryEntry& entry : *entries) {
    const std::string path = directory + "/" + entry.name;
    if (entry.is_directory) {
      KVC_TRY(check_plain(volume, path));
    } else if (auto file = volume.open(path, {}); !file && file.error().code != Code::kNotFound) {
      return std::unexpected(std::move(file).error());
    }
  }
  return {};
}

Status publish_file(Volume& volume, const std::string& draft, const std::string& path, std::span<const std::byte> content) {
  auto published = write_and_sync(volume, draft, content);
  if (published) published = volume.publish(draft, path);
  if (!published) {
    (void)volume.remove_file(draft);
    return published;
  }
  return volume.sync_directory(std::string(parent_path(path)));
}

}  // namespace kvcachefs
