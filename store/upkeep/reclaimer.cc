#include "store/upkeep/reclaimer.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "store/base/kill_point.h"
#include "store/base/log.h"
#include "store/base/units.h"

namespace kvcachefs {

namespace {
uint64_t end_of(const Place& place) { return place.offset + align_up(place.length, kBlockBytes); }
bool has_blocks(const Place& place) { return place.kind != PlaceKind::kNone && place.kind != PlaceKind::kInline; }
}  // namespace

Reclaimer::Reclaimer(DeadSpace& dead, Extents& extents, const Index& index, Counters& counters, Clock& clock, Users users,
                     bool can_punch, unsigned threads)
    : dead_(dead), extents_(extents), index_(index), counters_(counters), clock_(clock), users_(std::move(users)),
      can_punch_(can_punch), runner_("kvc-reclaimer", threads) {}

Reclaimer::Outcome Reclaimer::reclaim(std::vector<FreedPlace> dead, const Amount& amount) {
  Outcome outcome;
  std::sort(dead.begin(), dead.end(), [](const FreedPlace& a, const FreedPlace& b) {
    return std::tie(a.place.extent, a.place.offset) < std::tie(b.place.extent, b.place.offset);
  });
  std::vector<FreedPlace> kept;
  std::vector<File> files = group(dead, kept, outcome);
  if (can_punch_) outcome.left_bytes = leave_short_ones(files, amount.enough_bytes);
  // The files that give most back come first: there may be no time for all.
  std::stable_partition(files.begin(), files.end(), [](const File& file) { return file.how == File::How::kRemove; });
  const int64_t now_ns = clock_.monotonic_ns();
  const int64_t until_ns = amount.most_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + amount.most_ns;
  runner_.run(files.size(), [&](size_t index) {
    // The first file is worked on in any case, so each call gives something back.
    if (index == 0 || clock_.monotonic_ns() < until_ns) work_on(files[index], until_ns);
  });
  for (const File& file : files)
    for (const Range& range : file.ranges) {
      if (range.gone && file.how == File::How::kPunch && range.bytes() > 0) {
        ++outcome.punched;
        outcome.punched_bytes += range.bytes();
      }
      if (range.gone) continue;
      const auto first = dead.begin() + static_cast<long>(range.first);
      kept.insert(kept.end(), first, first + static_cast<long>(range.count));
    }
  outcome.cut_short = clock_.monotonic_ns() >= until_ns;
  counters_.reclaimed_bytes.fetch_add(dead_.settle(std::move(kept)), std::memory_order_relaxed);
  return outcome;
}

// Groups dead places that are not needed by file; needed ones go to `kept`.
std::vector<Reclaimer::File> Reclaimer::group(const std::vector<FreedPlace>& dead, std::vector<FreedPlace>& kept,
                                              Outcome& outcome) const {
  std::vector<File> files;
  std::unordered_set<ExtentId> in_use;  // not to be removed as a whole
  for (size_t i = 0; i < dead.size(); ++i) {
    const Place& place = dead[i].place;
    if (!has_blocks(place)) continue;
    if (dead[i].object.valid() && users_.needs(dead[i])) {
      kept.push_back(dead[i]);
      outcome.needed_bytes += align_up(place.length, kBlockBytes);
      in_use.insert(place.extent);
      continue;
    }
    if (dead[i].object.valid() && users_.held && users_.held(dead[i])) {
      kept.push_back(dead[i]);
      outcome.held_bytes += align_up(place.length, kBlockBytes);
      ++outcome.held_places;
      in_use.insert(place.extent);
      continue;
    }
    if (files.empty() || files.back().id != place.extent) files.push_back({.id = place.extent, .kind = place.kind, .ranges = {}});
    std::vector<Range>& ranges = files.back().ranges;
    const bool goes_on = !ranges.empty() && ranges.back().first + ranges.back().count == i && ranges.back().end == place.offset;
    if (!goes_on) ranges.push_back({.first = i, .begin = place.offset});
    ranges.back().end = end_of(place);
    ++ranges.back().count;
  }
  for (File& file : files) choose_how(file, in_use.contains(file.id));
  return files;
}

void Reclaimer::choose_how(File& file, bool in_use) const {
  file.how = File::How::kRemove;
  if (file.kind != PlaceKind::kPacked) return;
  const bool is_open = dead_.is_open(file.id);
  const auto usage = index_.find_extent(file.id);
  if (!usage) return void(file.how = File::How::kNotNow);
  const bool kept = can_punch_ && users_.keeps && users_.keeps(file.id);  // otherwise nothing of it would ever come back
  if (!is_open && !kept && (!*usage || (*usage)->live_bytes == 0)) {
    // A place that died in it later may still be read or not be synced: then check again later. The order of the calls matters: a commit
    // reports the places it freed before it counts as ended.
    const bool committing = users_.commits();
    const bool read = users_.may_be_read && users_.may_be_read(file.id);
    if (!in_use && !committing && !read && !dead_.mentions(file.id)) return;
    dead_.look_again(file.id);
  }
  file.how = File::How::kPunch;
  for (Range& range : file.ranges) range.gone = range.bytes() == 0;  // it was there only to ask for this check
}

// Leaves the shortest ranges unpunched as long as the others and the removed files give back enough. Returns the bytes left.
uint64_t Reclaimer::leave_short_ones(std::vector<File>& files, uint64_t enough_bytes) {
  std::vector<Range*> punched;
  uint64_t got = 0, left = 0;
  for (File& file : files)
    for (Range& range : file.ranges) {
      if (file.how == File::How::kPunch) punched.push_back(&range);
      if (file.how == File::How::kRemove) got += range.bytes();
    }
  std::sort(punched.begin(), punched.end(), [](const Range* a, const Range* b) { return a->bytes() > b->bytes(); });
  for (Range* range : punched) {
    range->left = got >= enough_bytes;
    (range->left ? left : got) += range->bytes();
  }
  return left;
}

// Runs on any thread of the runner; each works on its own files.
void Reclaimer::work_on(File& file, int64_t until_ns) const {
  Status status;
  if (file.how == File::How::kRemove) status = remove(file);
  if (file.how == File::How::kPunch) status = can_punch_ ? punch(file, until_ns) : keep_unpunched(file);
  if (!status) log::warn("space could not be given back yet: {}", status.error().message);
}

Status Reclaimer::remove(File& file) const {
  Status status = extents_.remove(file.id, file.kind);
  if (status) {
    kill_point("extent-removed");
    counters_.removed_extents.fetch_add(1, std::memory_order_relaxed);
  } else if (status.error().code != Code::kNotFound) {
    return status;
  }
  dead_.removed(file.id);
  return mark_gone(file);
}

Status Reclaimer::mark_gone(File& file) {
  for (Range& range : file.ranges) range.gone = true;
  return {};
}

Status Reclaimer::punch(File& file, int64_t until_ns) const {
  FilePtr opened;
  for (Range& range : file.ranges) {
    if (range.gone || range.left) continue;
    if (opened && clock_.monotonic_ns() >= until_ns) break;
    if (!opened) {
      auto pack = extents_.open_for_punch(file.id);
      if (!pack && pack.error().code == Code::kNotFound) return mark_gone(file);
      if (!pack) return std::unexpected(std::move(pack).error());
      opened = std::move(*pack);
    }
    KVC_TRY(opened->punch(range.begin, range.bytes()));
    kill_point("range-punched");
    counters_.punched_ranges.fetch_add(1, std::memory_order_relaxed);
    range.gone = true;
  }
  return {};
}

Status Reclaimer::keep_unpunched(File& file) const {
  for (Range& range : file.ranges) {
    if (!std::exchange(range.gone, true)) dead_.keep_unpunched(file.id, range.bytes());
  }
  return {};
}

}  // namespace kvcachefs
