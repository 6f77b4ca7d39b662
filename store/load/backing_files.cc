#include "store/load/backing_files.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "store/base/units.h"

namespace kvcachefs {

Status BackingFiles::expect_passthrough() {
  passes_through_ = true;
  return parts_.files.start();
}

void BackingFiles::refuse(bool in_memory) {
  if (in_memory)
    parts_.policy.refuse();
  else
    passes_extents_ = false;
}

FilePtr BackingFiles::extent_of(ObjectId id) {
  if (!passes_extents_ || id.is_foreign()) return {};  // a mapping would end in SIGBUS when the other node removes the file
  auto object = parts_.tree.get(id);
  if (!object || parts_.unverified.contains(id)) return {};
  ExtentId extent;
  uint64_t unseen_bytes = 0;  // > 0: the length that its file must have, which has not been checked yet
  {
    const auto lock = (*object)->lock();
    Object& each = **object;
    if (each.in_place || each.content_dirty() || each.sealing || each.base.place.kind != PlaceKind::kSolo || each.base.quarantined ||
        each.base_valid_bytes != each.size_bytes || parts_.always_verify || parts_.extents.is_lost(each.base.place))
      return {};
    if (each.in_ram()) return {};  // it was written a moment ago: no need to read the volume
    extent = each.base.place.extent;
    if (!each.extent_is_long_enough) unseen_bytes = each.size_bytes;
  }
  auto file = parts_.extents.open_buffered(extent, PlaceKind::kSolo);
  if (!file || (*file)->descriptor() < 0) return {};
  if (unseen_bytes > 0) {
    // From a file that was cut the kernel would answer a short read; the daemon finds that the bytes do not match.
    const auto info = (*file)->info();
    if (!info || info->size_bytes < unseen_bytes) return {};
    const auto lock = (*object)->lock();
    (*object)->extent_is_long_enough = (*object)->base.place.extent == extent;
  }
  return *file;
}

// The memory file of the body, frozen by this call. Null: the body cannot be passed through from RAM as it is now.
MemoryFilePtr BackingFiles::memory_file_of(ObjectId id) {
  if (!parts_.files.started() || parts_.policy.refused() || parts_.always_verify) return nullptr;
  const ObjectPtr found = parts_.tree.find(id);  // the table has every body that is in RAM
  if (!found) return nullptr;
  Object& object = *found;
  MemoryFilePtr file;
  {
    const auto lock = object.lock();
    // Not if it is open for writing: later writes would not show in the frozen file that readers see.
    if (!object.is_regular() || object.in_place || object.raw || object.write_handles > 0 || !object.finished() || object.lacks_a_write() ||
        object.base.quarantined)
      return nullptr;
    file = object.whole_in_file();
    if (!file) return nullptr;
    if (file->frozen()) {
      if (file->frozen_bytes() != object.size_bytes) return nullptr;
    } else {
      if (!parts_.files.freeze(*file, object.size_bytes)) return nullptr;
      const uint64_t in_last = object.size_bytes - (object.units.size() - 1) * kUnitBytes;
      object.units.back().block->shorten(static_cast<uint32_t>(align_up(in_last, kBlockBytes)));
      object.memory_file.reset();
      object.may_be_frozen = true;
      object.pin_frozen();
    }
  }
  if (!parts_.files.cut(*file)) return nullptr;
  return file;
}

BackingFile BackingFiles::find(ObjectId id) {
  if (MemoryFilePtr in_memory = memory_file_of(id)) {
    const int descriptor = in_memory->descriptor();
    return {descriptor, std::move(in_memory), true};
  }
  FilePtr file = extent_of(id);
  if (!file) return {};
  const int descriptor = file->descriptor();
  return {descriptor, std::move(file), false};
}

void BackingFiles::count_open(ObjectId id, bool direct, bool in_memory) {
  if (in_memory) parts_.counters.memory_file_opens.fetch_add(1, std::memory_order_relaxed);
  if (direct && !in_memory) passed_direct_ns_.store(parts_.clock.monotonic_ns(), std::memory_order_relaxed);
  parts_.counters.passthrough_opens.fetch_add(1, std::memory_order_relaxed);
  uint64_t size_bytes = 0;
  {
    const Tree::Read tree = parts_.tree.read();
    ObjectPtr object = tree.live(id);
    if (!object) return;
    const auto object_lock = object->lock();
    size_bytes = object->size_bytes;
  }
  // With no lock held: a plan holds the tracker's lock while it looks up rows.
  parts_.accesses.read(nullptr, id, 0, size_bytes, parts_.clock.monotonic_ns());
  if (!in_memory) expect_kernel_reads(size_bytes);
}

bool BackingFiles::came_lately(const std::atomic<int64_t>& at_ns) const {
  constexpr int64_t kRememberedNs = 10'000'000'000;
  const int64_t came_ns = at_ns.load(std::memory_order_relaxed);
  return came_ns != 0 && parts_.clock.monotonic_ns() - came_ns <= kRememberedNs;
}

// The time: about as long as the reads take beside writes, and until the client comes with its next request.
void BackingFiles::expect_kernel_reads(uint64_t bytes) {
  constexpr uint64_t kBytesPerSecond = 256 * kMiB;
  constexpr std::chrono::milliseconds kBetween{20}, kMost{1000};
  const std::chrono::nanoseconds reading(static_cast<int64_t>(std::min(bytes, kBytesPerSecond) * 1'000'000'000 / kBytesPerSecond));
  parts_.volume.expect_reads_for(std::min<std::chrono::nanoseconds>(reading + kBetween, kMost));
}

}  // namespace kvcachefs
