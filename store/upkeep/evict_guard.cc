#include "store/upkeep/evict_guard.h"

#include <fmt/format.h>

#include "store/tree/temporary_names.h"

namespace kvcachefs {

namespace {
// A temporary name that was not renamed for so long is evicted like any other old file; after kAboutToRenameNs, when nothing else is left to evict.
constexpr int64_t kLeftBehindNs = 600'000'000'000;
}  // namespace

std::optional<EvictGuard::Kept> EvictGuard::keeps(const Tree::Write& tree, const ObjectPtr& object, ObjectId parent,
                                                  std::string_view name, Evictor::Leases leases) const {
  if (tree.has_versions(parent, name)) return Kept{Evictor::Refused::kForNow, "several writers"};
  if (const auto kept = keeps_object(tree, object, leases)) return kept;
  const auto lock = object->lock();
  if (is_about_to_be_renamed(*object, parent, name, leases == Evictor::Leases::kBreak ? kAboutToRenameNs : kLeftBehindNs))
    return Kept{Evictor::Refused::kForNow, "not renamed"};
  if (object->size_bytes <= kBlockBytes && TemporaryNames::is_lock(name)) return Kept{Evictor::Refused::kForLong, "lock file"};
  return std::nullopt;
}

std::optional<EvictGuard::Kept> EvictGuard::keeps_object(const Tree::View&, const ObjectPtr& object, Evictor::Leases leases) {
  using enum Evictor::Refused;
  if (!object->is_regular()) return Kept{kForLong, "not a file"};
  if (object->locked) return Kept{kForLong, "locked"};
  if (object->in_place && object->changed_in_part) return Kept{kForLong, "changed in place"};
  if (object->nlink > 1) return Kept{kForLong, "several names"};  // all names of an object are removed, or none
  const auto lock = object->lock();
  if (object->raw || object->base.place.kind == PlaceKind::kRaw) return Kept{kForLong, "raw"};
  if (object->base.quarantined) return Kept{kForLong, "quarantined"};
  // What keeps it for long comes first: such an object is put aside, and other nodes are not told that it could go.
  if (object->patched && leases != Evictor::Leases::kBreak) return Kept{kForNow, "changed in part"};
  if (object->nlink == 0) return Kept{kForNow, "no name"};
  if (!object->durable) return Kept{kForNow, "not settled"};
  if (object->handles > 0) return Kept{kForNow, "open"};
  if (object->content_dirty() || object->sealing || object->lingering || object->kept_for_repeat > 0 || object->awaiting_open ||
      object->replaces || object->spill || object->lacks_a_write())
    return Kept{kForNow, "not settled"};
  if (!object->loading.empty() || !object->wanted.empty()) return Kept{kForNow, "being read"};
  if (object->base.place.kind == PlaceKind::kNone || object->size_bytes == 0) return Kept{kForLong, "empty"};  // its removal would give nothing back
  return std::nullopt;
}

// Caller holds the object's lock. If the object was out of RAM meanwhile, only its name and its times tell.
bool EvictGuard::is_about_to_be_renamed(const Object& object, ObjectId parent, std::string_view name, int64_t within_ns) const {
  const bool looks_so = learned_ != nullptr ? learned_->is_expected_to_be_renamed(parent, name) : TemporaryNames::may_be_renamed(name);
  if (!object.published) {
    const bool says_so = looks_so || (object.temporary && (learned_ == nullptr || !TemporaryNames::may_be_renamed(name)));
    if (!says_so && !name.starts_with('.')) return false;  // a hidden file may be renamed, as rsync does it
    return clock_.monotonic_ns() - object.last_write_ns < (says_so ? within_ns : kAboutToRenameNs);
  }
  if (!looks_so) return false;
  const int64_t age_ns = clock_.realtime_ns() - object.attributes.ctime_ns;
  return age_ns >= 0 && age_ns < within_ns;
}

namespace {
std::string duration_text(int64_t ms) {
  constexpr int64_t kSecond = 1'000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (ms < 2 * kMinute) return fmt::format("{} s", ms / kSecond);
  if (ms < 2 * kHour) return fmt::format("{} min", ms / kMinute);
  if (ms < 2 * kDay) return fmt::format("{} h", ms / kHour);
  return fmt::format("{} days", ms / kDay);
}
}  // namespace

void EvictGuard::describe(const Evictor& evictor, const Tree::View& tree, const ObjectPtr& object, uint32_t thread_id,
                          std::vector<std::pair<std::string, std::string>>& facts) {
  if (!object->is_regular()) return;
  if (!evictor.on()) return facts.emplace_back("kept_by", "evict=off"), void();
  const auto known = evictor.known(object->id, thread_id);
  const auto kept = keeps_object(tree, object, Evictor::Leases::kKeep);
  const char* by = "nothing";
  if (known && known->hold == evict::Hold::kPinned) by = "pinned";
  else if (kept) by = kept->why;
  else if (known && known->hold == evict::Hold::kLeased) by = "leased";
  else if (known && known->young) by = "just created";
  else if (!known || known->hold == evict::Hold::kOther) by = "not settled";
  facts.emplace_back("kept_by", by);
  if (!known) return;
  facts.emplace_back("last_used", fmt::format("{} ago; {:.0f} % of all files were used since", duration_text(known->unused_ms),
                                              100 * known->used_since));
}

}  // namespace kvcachefs
