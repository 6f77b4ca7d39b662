#include "store/tree/journaled_version.h"

namespace kvcachefs {

ObjectId version_to_journal(const Tree::View& tree, const NameState& state) {
  const ObjectId kept = tree.version_to_keep(state);
  return kept.is_foreign() || kept == state.taken_later ? ObjectId{} : kept;
}

void journal_former_version(const Tree::View& tree, const NameState& state, const BodyChanges& changes) {
  const auto look_at = [&](ObjectId id) {
    const ObjectPtr version = id.valid() && id != state.taken_later ? tree.live(id) : nullptr;
    if (!version || version->durable) return;
    const auto lock = version->lock();
    changes.journal_again(version);
  };
  const ObjectId journaled = version_to_journal(tree, state);
  look_at(journaled);
  if (state.child != journaled) look_at(state.child);
}

}  // namespace kvcachefs
