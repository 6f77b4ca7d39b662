#include "store/load/load_job.h"

#include <fmt/format.h>

#include "store/base/checksum.h"

namespace kvcachefs {

bool LoadJob::is_superseded(size_t i) const {
  const Unit* unit = object->unit_or_null(first + i);
  if (unit != nullptr && unit->block) return true;  // the block may be newer, and on its way to the same place
  const bool now_spilled = unit != nullptr && unit->spilled;
  if (now_spilled != spilled) return true;
  if (!spilled) return object->base.version != base_version;
  return unit->spill_checksum != checksums[i] || unit->spill_bytes != lengths[i];
}

uint64_t LoadJob::padded_bytes() const {
  uint64_t bytes = 0;
  for (uint32_t length : lengths) bytes += align_up(length, kBlockBytes);
  return bytes;
}

uint64_t LoadJob::memory_bytes() const {
  uint64_t bytes = 0;
  for (const BlockPtr& block : blocks) bytes += block->capacity_bytes();
  return bytes;
}

Status LoadJob::check(size_t bytes_read, const File* from) const {
  const auto unit = [&](size_t i) {
    return fmt::format("{}: unit {}", from != nullptr ? from->path() : "inline body", first + i);
  };
  size_t before = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint32_t length = lengths[i];
    if (bytes_read < before + length)
      return fail(Code::kCorrupt,
                  fmt::format("{} ends after {} of {} bytes", unit(i), bytes_read > before ? bytes_read - before : 0, length));
    if (checksum(blocks[i]->bytes().first(length)) != checksums[i])
      return fail(Code::kCorrupt, unit(i) + " does not match its checksum");
    before += align_up(length, kBlockBytes);
  }
  return {};
}

}  // namespace kvcachefs
