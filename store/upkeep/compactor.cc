#include "store/upkeep/compactor.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "store/base/units.h"

namespace kvcachefs {

namespace {
// Of a pack so much has to be dead: to empty it for less costs more than it brings. More where no more is dead than may be, and it is only
// for room that others lack, or will.
constexpr uint64_t kLeastDeadPart = 8, kWaitedDeadPart = 4, kAheadDeadPart = 2;
constexpr uint64_t kRoundPart = 32;           // of the limit: worth a look through all objects
constexpr uint64_t kMostResidents = 1'000'000;  // of the packs of a round: 16 MiB of RAM
constexpr size_t kRows = 512;                 // at a time
constexpr int64_t kListNs = 20'000'000, kWaitedListNs = 100'000'000;
constexpr int64_t kPauseNs = 1'000'000'000;   // after nothing was found, or a round could not go on
constexpr int64_t kTriedNs = 30'000'000'000;  // until what did not leave a pack, for it is open for writing, or cannot be read, is tried again
constexpr uint64_t kPieceBytes = 32 * kMiB, kMostPieceBytes = 256 * kMiB;
// So many times what is evicted anyway may be worth what goes instead of being moved: that saves four fifths of the rewriting for
// 0.2 points of hits (tools/simulate).
constexpr double kWorth = 4, kAnyWorth = std::numeric_limits<double>::infinity();
}  // namespace

void Compactor::keep_room() {
  constexpr uint64_t kPart = 16;  // of what packs have, at most: Sealer
  const uint64_t wanted = parts_.eviction.on() ? 0 : std::min(parts_.space.own_limit_bytes() / kPart, parts_.extent_bytes) / 8 * 7;
  if (wanted < kept_bytes_) parts_.space.release(std::exchange(kept_bytes_, wanted) - wanted);
  const uint64_t lacking = std::min(wanted - kept_bytes_, parts_.space.room_bytes());
  if (lacking > 0 && parts_.space.try_reserve(lacking)) kept_bytes_ += lacking;
}

bool Compactor::step(bool waited_for) {
  keep_room();
  if (parts_.refusals.is_failing()) {
    end_round();
    return false;
  }
  if (packs_.empty() && !begin(waited_for)) return false;
  const uint64_t most_bytes = piece_bytes(waited_for);
  if (!listed_ && !list_some(waited_for)) return false;
  return empty_some(most_bytes);
}

// No faster than twice what clients write, and a little; unless a call waits, or none writes.
uint64_t Compactor::piece_bytes(bool waited_for) {
  const uint64_t written = parts_.counters.write_received_bytes.load(std::memory_order_relaxed), since = written - written_bytes_;
  written_bytes_ = written;
  idle_ = since == 0;
  return waited_for || idle_ ? kMostPieceBytes : std::min(kPieceBytes + 2 * since, kMostPieceBytes);
}

// --- which packs ---

// Due where more is dead than may stay so, or little can be reserved.
bool Compactor::begin(bool waited_for) {
  const int64_t now_ns = parts_.clock.monotonic_ns();
  if (now_ns < look_again_ns_ || !parts_.dead.has_unpunched() || parts_.refusals.is_failing()) return false;
  const Eviction::RoomAhead wanted = parts_.eviction.room_ahead();
  std::erase_if(passed_over_until_ns_, [&](const auto& each) { return each.second <= now_ns; });
  uint64_t dead_bytes = 0, comes_back = 0;
  std::vector<Pack> candidates;
  for (const auto& [id, bytes] : parts_.dead.unpunched()) {
    const auto usage = parts_.index.find_extent(id);
    if (!usage || parts_.dead.is_open(id)) continue;
    if (!*usage || (*usage)->live_bytes == 0) {
      comes_back += bytes;
      continue;
    }
    if (passed_over_until_ns_.contains(id)) continue;
    dead_bytes += bytes;
    candidates.push_back({.id = id, .dead_bytes = bytes, .live_bytes = (*usage)->live_bytes, .bodies = (*usage)->bodies, .residents = {}});
  }
  const uint64_t room = parts_.space.room_bytes() + comes_back;
  const uint64_t excess = dead_bytes - std::min(dead_bytes, parts_.eviction.most_left_bytes());
  const uint64_t lacking = room >= wanted.least_bytes ? 0 : wanted.bytes - room;
  const uint64_t part = excess > 0 ? kLeastDeadPart : waited_for ? kWaitedDeadPart : kAheadDeadPart;
  std::erase_if(candidates, [part](const Pack& pack) { return pack.dead_bytes * part < pack.dead_bytes + pack.live_bytes; });
  if (excess > 0 || lacking > 0) packs_ = emptiest(std::max({excess, lacking, parts_.space.limit_bytes() / kRoundPart}), std::move(candidates));
  if (packs_.empty()) look_again_ns_ = now_ns + kPauseNs;
  listed_ = false;
  listed_until_ = {};
  return !packs_.empty();
}

// That give so much back, the one in which least lives last.
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

// What was journaled since the index was committed last is not seen: a pack that keeps such a body is chosen again. True: all was
// looked through.
bool Compactor::list_some(bool waited_for) {
  std::unordered_map<ExtentId, Pack*> by_id;
  for (Pack& pack : packs_) by_id.emplace(pack.id, &pack);
  const int64_t until_ns = parts_.clock.monotonic_ns() + (waited_for ? kWaitedListNs : kListNs);
  do {
    const auto page = parts_.index.objects_after(listed_until_, kRows);
    if (!page) {  // the index is mended by others
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
}

// --- where they go ---

bool Compactor::empty_some(uint64_t most_bytes) {
  uint64_t went_bytes = 0;
  while (!packs_.empty() && went_bytes < most_bytes) {
    Pack& pack = packs_.back();
    if (!pack.thinned) {
      // A pack of which a part had left would be no smaller for that, and the room for the rest would never come.
      if (!parts_.eviction.on() && pack.live_bytes > parts_.space.room_bytes() + kept_bytes_) {
        if (went_bytes == 0) end_round();  // else those before it come back first
        break;
      }
      pack.thinned = true;
      went_bytes += thin(pack, kWorth);
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
    // No room for other copies: what is left goes, where it may.
    const uint64_t evicted = thin(pack, kAnyWorth);
    went_bytes += evicted;
    if (evicted == 0) end_round();  // what follows would lack the same
  }
  return went_bytes > 0;
}

// From the back, for what ends a chain lies behind what it follows, and only the end may go.
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
