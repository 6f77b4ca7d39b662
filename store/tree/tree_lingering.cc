// Objects that stay in the table for a while though nothing needs them: those that a rename replaced, those that a repeated call is about to
// open, those just written and not renamed yet.
#include <algorithm>
#include <utility>

#include "store/base/units.h"
#include "store/tree/tree.h"
#include "store/tree/tree_times.h"

namespace kvcachefs {

namespace {

// How long a body that a rename replaced can still be opened: the kernel looks a name up, then opens the object it found, and
// repeats that only once.
constexpr int64_t kLingerNs = 1'000'000'000;
constexpr uint64_t kMaxLingerBytes = 64 * kMiB;
constexpr size_t kMaxLingering = 256;
constexpr size_t kMaxKeptForRename = 20'000;
constexpr uint64_t kMaxKeptRecordBytes = 2 * kKiB;  // for each of them: none with large attributes

}  // namespace

bool Tree::Write::linger(const ObjectPtr& replaced) {
  const Parts& parts = tree().parts_;
  if (!parts.lingers || !replaced->is_regular() || parts.pool.under_pressure()) return false;
  if (parts.space.free_bytes() < parts.space.limit_bytes() / 8) return false;
  const uint64_t most = std::min(kMaxLingerBytes, parts.pool.limit_bytes() / 4);
  uint64_t bytes = 0;
  {
    const auto lock = replaced->lock();
    bytes = replaced->size_bytes;
    if (bytes > most || std::exchange(replaced->lingering, true)) return bytes <= most;
  }
  while (tree().lingering_.size() >= kMaxLingering || tree().lingering_bytes_ + bytes > most) end_oldest_lingering();
  tree().lingering_.push_back({replaced, parts.clock.monotonic_ns() + kLingerNs, bytes});
  tree().lingering_bytes_ += bytes;
  return true;
}

void Tree::Write::linger_for_unknown(const ObjectPtr& object) {
  if (!tree().parts_.lingers) return;
  {
    const auto lock = object->lock();
    if (std::exchange(object->lingering, true)) return;
  }
  while (tree().lingering_.size() >= kMaxLingering) end_oldest_lingering();
  tree().lingering_.push_back({object, tree().parts_.clock.monotonic_ns() + kLingerNs, 0});
}

void Tree::Write::end_oldest_lingering() {
  Lingering ended = std::move(tree().lingering_.front());
  tree().lingering_.pop_front();
  tree().lingering_bytes_ -= ended.bytes;
  {
    const auto lock = ended.object->lock();
    ended.object->lingering = false;
  }
  forget_if_idle(ended.object);
}

// Keeps a file just written under a name that may be temporary: only the table knows its writer, and that it was never
// renamed.
bool Tree::Write::keep_for_rename(const ObjectPtr& object) {
  if (object->published || !object->is_regular() || object->writer_thread == 0) return false;
  const int64_t until_ns = object->last_write_ns + kAboutToRenameNs;
  if (object->last_write_ns == 0 || until_ns <= tree().parts_.clock.monotonic_ns()) return false;
  if (object->kept_for_rename) return true;
  if (record_bytes(*object) > kMaxKeptRecordBytes) return false;
  if (!tree().parts_.lingers || tree().kept_for_rename_.size() >= kMaxKeptForRename) return false;
  object->kept_for_rename = true;
  tree().kept_for_rename_.push_back({object, until_ns, 0});
  return true;
}

void Tree::Write::end_lingering(bool all) {
  const int64_t now = tree().parts_.clock.monotonic_ns();
  auto& lingering = tree().lingering_;
  while (!lingering.empty() && (all || lingering.front().until_ns <= now)) end_oldest_lingering();
  auto& kept = tree().kept_for_rename_;
  while (!kept.empty() && kept.front().until_ns <= now) {
    const ObjectPtr object = std::move(kept.front().object);
    kept.pop_front();
    {
      const auto lock = object->lock();
      object->kept_for_rename = false;
    }
    forget_if_idle(object);
  }
}

// --- for a call that is repeated, or waits ---

std::shared_ptr<void> Tree::keep_for_call(ObjectId id) {
  const auto kept = std::make_shared<StaleOpens::Released>();
  {
    Write names = write();
    const auto object = names.get(id);
    if (!object) return nullptr;
    kept->push_back(*object);
    const auto lock = (*object)->lock();
    ++(*object)->kept_for_repeat;
  }
  return {kept.get(), [this, kept](void*) { write().let_go(*kept); }};  // without the lock: if this throws, it is let go at once
}

void Tree::Write::keep_for_repeat(StaleOpens& stale, uint32_t thread_id, ObjectId id) {
  if (thread_id != 0 && !stale.knows(thread_id)) return;
  const auto object = get(id);
  if (!object) return;
  if (thread_id == 0) return linger_for_unknown(*object);
  {
    const auto lock = (*object)->lock();
    ++(*object)->kept_for_repeat;
  }
  StaleOpens::Released released;
  stale.keep(thread_id, *object, released);
  let_go(released);
}

void Tree::Write::let_go(const StaleOpens::Released& released) {
  for (const ObjectPtr& kept : released) {
    {
      const auto lock = kept->lock();
      --kept->kept_for_repeat;
    }
    forget_if_idle(kept);
  }
}

}  // namespace kvcachefs
