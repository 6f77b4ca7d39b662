#include "store/evict/prefix_links.h"

#include <utility>

namespace kvcachefs::evict {

namespace {
constexpr int64_t kBurstMs = 1'000;    // an event that comes later than this says nothing about the stream's previous one
constexpr int64_t kHiddenMs = 1'000;   // for so long the kernel answers for a name
constexpr int64_t kMixedMs = 60'000;
constexpr size_t kCursors = 8;
constexpr uint32_t kMostWritten = 256;
constexpr uint32_t kMostGuessed = 4096;
constexpr uint8_t kMostDoubts = 1;
}  // namespace

PrefixLinks::Link* PrefixLinks::remember(UnitKey unit, UnitKey follows) {
  links_.put({unit, follows, 0});
  links_.shrink(max_units_, 2, [](const Link&) {});
  return links_.use(unit);
}

// The learned link; for a unit that was forgotten here, the link that the policy still has.
PrefixLinks::Link* PrefixLinks::find(UnitKey unit, const Policy& policy) {
  if (Link* const link = links_.use(unit)) return link;
  const UnitKey follows = policy.predecessor(unit);
  return follows.valid() ? remember(unit, follows) : nullptr;
}

PrefixLinks::Stream& PrefixLinks::stream(StreamKey key) {
  if (const auto found = streams_.find(key.value); found != streams_.end()) return found->second;
  if (streams_.size() >= max_streams_ / 2) {
    old_streams_ = std::move(streams_);
    streams_.clear();
  }
  Stream& made = streams_[key.value];
  if (const auto found = old_streams_.find(key.value); found != old_streams_.end()) {
    made = std::move(found->second);
    old_streams_.erase(found);
  }
  return made;
}

void PrefixLinks::note_seen(UnitKey unit, int64_t now_ms) { seen_[mix_key(unit.value) % kSeen] = {unit, now_ms}; }

bool PrefixLinks::may_be_hidden(UnitKey unit, int64_t now_ms) const {
  const Seen& seen = seen_[mix_key(unit.value) % kSeen];
  return seen.unit == unit && now_ms - seen.at_ms < kHiddenMs;
}

UnitKey PrefixLinks::see(const Sighting& what, TimeMs now, Policy& policy) {
  Stream& from = stream(what.stream);
  std::vector<Cursor>& cursors = from.cursors;
  Link* link = find(what.unit, policy);
  const bool recent = !cursors.empty() && now.value - cursors.back().at_ms < kBurstMs;
  if (recent && cursors.back().last == what.unit) {  // its sidecar, or another rank or layer of it
    cursors.back().at_ms = now.value;
    note_seen(what.unit, now.value);
    return link == nullptr ? UnitKey{} : link->follows;
  }

  if (link != nullptr && link->follows.valid() && recent) {
    for (size_t i = cursors.size(); i-- > 0;) {
      if (cursors[i].last != link->follows || now.value - cursors[i].at_ms >= kBurstMs) continue;
      if (i + 1 < cursors.size()) {
        if (cursors[i].left) from.mixed_until_ms = now.value + kMixedMs;
        std::swap(cursors[i], cursors.back());
        cursors[i].left = true;
      }
      cursors.back() = {what.unit, now.value};
      link->doubts = 0;
      from.guessed = 0;
      note_seen(what.unit, now.value);
      policy.link_checked(true);
      return link->follows;
    }
  }
  const bool hidden = link != nullptr && link->follows.valid() && may_be_hidden(link->follows, now.value) && !policy.forks_behind(link->follows);
  note_seen(what.unit, now.value);
  if (link != nullptr && link->follows.valid() && recent && !what.written && !what.begins && !hidden) policy.link_checked(false);
  from.written = what.written ? from.written + 1 : 0;
  from.guessed = recent && !what.begins ? from.guessed + 1 : 0;
  const bool endless = from.written >= kMostWritten || from.guessed >= kMostGuessed;
  if (endless) from.written = from.guessed = 0;
  const bool guess = recent && !what.begins && !endless && now.value >= from.mixed_until_ms && cursors.back().last != what.unit;
  if (link == nullptr) {
    if (guess) {
      const UnitKey follows = cursors.back().last;
      cursors.back() = {what.unit, now.value};
      remember(what.unit, follows);
      policy.relink(what.unit, follows);
      return follows;
    }
    if (what.begins) link = remember(what.unit, {});
  } else if (!what.written && !hidden && link->follows.valid() && guess && ++link->doubts > kMostDoubts) {
    *link = {what.unit, {}, 0};
    policy.relink(what.unit, {});
  }
  cursors.push_back({what.unit, now.value});
  if (cursors.size() > kCursors) cursors.erase(cursors.begin());
  return link == nullptr ? UnitKey{} : link->follows;
}

}  // namespace kvcachefs::evict
