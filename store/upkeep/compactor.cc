#include "store/upkeep/compactor.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "store/base/units.h"

namespace kvcachefs {

namespace {
// The fraction of a pack that has to be dead: emptying it for less writes more than it gains. Where chunks can be evicted, more are evicted
// instead, until some pack reaches its fraction.
constexpr uint64_t kLeastDeadPart = 8, kEvictingDeadPart = 3;
constexpr uint64_t kRoundPart = 32;           // of the limit: worth a scan of all objects
constexpr uint64_t kMostResidents = 1'000'000;  // in the packs of a round: 16 MiB of RAM
constexpr size_t kRows = 512;                 // at a time
constexpr int64_t kListNs = 20'000'000, kWaitedListNs = 100'000'000;
constexpr int64_t kPauseNs = 1'000'000'000;   // after a look found nothing, or a round could not go on
constexpr int64_t kTriedNs = 30'000'000'000;  // until a body that did not leave its pack (open for writing, or unreadable) is tried again
constexpr uint64_t kPieceBytes = 32 * kMiB, kMostPieceBytes = 256 * kMiB;
// A body worth at most this many times the usual victims is evicted instead of moved: that saves four fifths of the rewriting for 0.2
// points of hits (tools/simulate).
constexpr double kWorth = 4, kAnyWorth = std::numeric_limits<double>::infinity();
}  // namespace

void Compactor::keep_room() {
  const uint64_t limit_bytes = parts_.space.own_limit_bytes();
  const uint64_t wanted = std::min(unpunched_pack_bytes(limit_bytes, parts_.extent_bytes) / 8 * 7, limit_bytes / 16);
  if (wanted < kept_bytes_) parts_.space.release(std::exchange(kept_bytes_, wanted) - wanted);
  const uint64_t lacking = std::min(wanted - kept_bytes_, parts_.space.room_bytes());
  if (lacking > 0 && parts_.space.try_reserve(lacking)) kept_bytes_ += lacking;
}

bool Compactor::step(uint64_t wanted_bytes, bool waited_for) {
  keep_room();
  if (parts_.refusals.is_failing()) {
    end_round();
    return false;
  }
  if (packs_.empty() && !begin(wanted_bytes)) return false;
  const uint64_t most_bytes = piece_bytes(waited_for);
  if (!listed_ && !list_some(waited_for)) return false;
  return empty_some(most_bytes);
}

// Limits the speed to twice what clients write, plus a little, unless a call waits or no client writes.
uint64_t Compactor::piece_bytes(bool waited_for) {
  const uint64_t written = parts_.counters.write_received_bytes.load(std::memory_order_relaxed), since = written - written_bytes_;
  written_bytes_ = written;
  idle_ = since == 0;
  return waited_for || idle_ ? kMostPieceBytes : std::min(kPieceBytes + 2 * since, kMostPieceBytes);
}

// --- which packs ---

// A round is due when too little can be reserved, before anything is evicted for that.
bool Compactor::begin(uint64_t wanted_bytes) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  const bool is_looked_at = now_ns < look_again_ns_ && parts_.dead.unpunched_bytes() == looked_at_bytes_;
  if (is_looked_at || parts_.refusals.is_failing()) return false;
  if (parts_.space.room_bytes() >= wanted_bytes) {  // enough is free, whatever is dead: nothing is evicted for lack of room
    parts_.eviction.note_unpunched(0);
    return false;
  }
  std::erase_if(passed_over_until_ns_, [&](const auto& each) { return each.second <= now_ns; });
  const uint64_t part = parts_.eviction.on() ? kEvictingDeadPart : kLeastDeadPart;
  uint64_t comes_back = 0, stays_bytes = 0;
  std::vector<Pack> candidates;
  for (const auto& [id, bytes] : parts_.dead.unpunched()) {
    const auto usage = parts_.index.find_extent(id);
    const uint64_t live_bytes = usage && *usage ? (*usage)->live_bytes : 0;
    const bool may_go = usage && !parts_.dead.is_open(id);
    if (may_go && live_bytes == 0) comes_back += bytes;
    else if (may_go && bytes * part >= bytes + live_bytes && !passed_over_until_ns_.contains(id))
      candidates.push_back({.id = id, .dead_bytes = bytes, .live_bytes = live_bytes, .bodies = (*usage)->bodies, .residents = {}});
    else stays_bytes += bytes;
  }
  parts_.eviction.note_unpunched(stays_bytes);
  const uint64_t room = parts_.space.room_bytes() + comes_back;
  if (room >= wanted_bytes) return false;
  packs_ = emptiest(std::max(wanted_bytes - room, parts_.space.own_limit_bytes() / kRoundPart), std::move(candidates));
  if (packs_.empty()) end_round();
  listed_ = false;
  listed_until_ = {};
  return !packs_.empty();
}

// The packs that together give so many bytes back; the one with the smallest live part comes last.
std::vector<Compactor::Pack> Compactor::emptiest(uint64_t wanted_bytes, std::vector<Pack> candidates) const {
  const auto live_part = [](const Pack& pack) {
    return static_cast<double>(pack.live_bytes) / static_cast<double>(pack.live_bytes + pack.dead_bytes);
  };
  std::ranges::sort(candidates, [&](const Pack& a, const Pack& b) { return live_part(a) < live_part(b); });
  uint64_t dead_bytes = 0, bodies = 0;
  size_t count = 0;
  while (count < candidates.size() && dead_bytes < wanted_bytes && (count == 0 || bodies + candidates[count].bodies <= kMostResidents)) {
    dead_bytes += candidates[count].dead_bytes;
    bodies += candidates[count].bodies;
    ++count;
  }
  candidates.resize(count);
  std::ranges::reverse(candidates);
  return candidates;
}

// --- what lives in them ---

// Does not see bodies journaled since the last index commit: a pack that still has such a body is chosen again. Returns true once all
// objects were scanned.
bool Compactor::list_some(bool waited_for) {
  std::unordered_map<ExtentId, Pack*> by_id;
  for (Pack& pack : packs_) by_id.emplace(pack.id, &pack);
  const int64_t until_ns = parts_.clock.monotonic_ns() + (waited_for ? kWaitedListNs : kListNs);
  do {
    const auto page = parts_.index.objects_after(listed_until_, kRows);
    if (!page) {  // another thread repairs the index
      end_round();
      return false;
    }
    listed_ = page->empty();
    for (const ObjectId id : *page) {
      const auto row = parts_.index.find_object_summary(id);
      if (!row || !*row || (*row)->body.place.kind != PlaceKind::kPacked) continue;
      if (const auto pack = by_id.find((*row)->body.place.extent); pack != by_id.end())
        pack->second->residents.push_back({(*row)->body.place.offset, id});
    }
    if (!listed_) listed_until_ = page->back();
  } while (!listed_ && parts_.clock.monotonic_ns() < until_ns);
  if (listed_)
    for (Pack& pack : packs_) std::ranges::sort(pack.residents, {}, &Resident::offset);
  return listed_;
}

void Compactor::end_round() {
  packs_.clear();
  look_again_ns_ = parts_.clock.monotonic_ns() + kPauseNs;
  looked_at_bytes_ = parts_.dead.unpunched_bytes();
}

// --- where they go ---

bool Compactor::empty_some(uint64_t most_bytes) {
  uint64_t went_bytes = 0;
  while (!packs_.empty() && went_bytes < most_bytes) {
    Pack& pack = packs_.back();
    if (!pack.thinned) {
      // Start a pack only if all of it fits: a pack that is only partly emptied would be no smaller, and the room for the rest would never
      // come.
      const uint64_t thinned_bytes = thin(pack, kWorth), room = parts_.space.room_bytes() + kept_bytes_;
      pack.live_bytes -= std::min(pack.live_bytes, thinned_bytes);
      went_bytes += thinned_bytes;
      if (pack.live_bytes > room) {
        const uint64_t evicted = thin(pack, kAnyWorth);
        pack.live_bytes -= std::min(pack.live_bytes, evicted);
        went_bytes += evicted;
      }
      if (pack.live_bytes > room) {
        if (went_bytes == 0) end_round();  // else the evicted bytes have to come back first
        break;
      }
      pack.thinned = true;
    }
    if (pack.gone == pack.residents.size()) {
      passed_over_until_ns_[pack.id] = parts_.clock.monotonic_ns() + kTriedNs;
      packs_.pop_back();
      continue;
    }
    const Went went = move(pack.id, pack.residents[pack.gone].id);
    went_bytes += went.bytes;
    if (went.fits) {
      ++pack.gone;
      continue;
    }
    // No room for more copies: the remaining bodies are evicted, where they may be.
    const uint64_t evicted = thin(pack, kAnyWorth);
    went_bytes += evicted;
    if (evicted == 0) end_round();  // the next packs would lack the same room
  }
  return went_bytes > 0;
}

// Goes backwards: the end of a chain lies behind its predecessors, and only the end may be evicted.
uint64_t Compactor::thin(const Pack& pack, double most_worth) {
  uint64_t bytes = 0;
  for (size_t at = pack.residents.size(); at-- > pack.gone;) bytes += parts_.eviction.give_up(pack.residents[at].id, most_worth);
  return bytes;
}

Compactor::Went Compactor::move(ExtentId pack, ObjectId id) {
  auto kept = parts_.tree.get_kept(id);
  if (!kept) return {};  // removed
  const ObjectPtr object = kept->object;
  auto lock = object->lock();
  const Relocator::Moved moved = parts_.relocator.move_from(object, pack, kept_bytes_);
  const uint64_t bytes = moved == Relocator::Moved::kYes ? object->size_bytes : 0;
  lock.unlock();
  kept->names.unlock();
  if (bytes == 0) parts_.tree.forget_when_idle(object);
  parts_.counters.moved_bodies.fetch_add(bytes > 0 ? 1 : 0, std::memory_order_relaxed);
  parts_.counters.moved_bytes.fetch_add(bytes, std::memory_order_relaxed);
  return {bytes, moved != Relocator::Moved::kNoRoom};
}

}  // namespace kvcachefs
