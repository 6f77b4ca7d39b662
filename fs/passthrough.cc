#include "fs/passthrough.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

namespace kvcachefs {

ObjectId Passthrough::object_of(ObjectId node) const {
  if (node.node_ordinal() != kAliasOrdinal) return node;
  std::lock_guard lock(mutex_);
  auto found = object_of_alias_.find(node);
  return found == object_of_alias_.end() ? node : found->second;
}

ObjectId Passthrough::node_of(ObjectId object) const {
  if (!enabled_) return object;
  std::lock_guard lock(mutex_);
  auto found = alias_of_object_.find(object);
  return found == alias_of_object_.end() ? object : found->second;
}

ObjectId Passthrough::node_to_write(ObjectId object) {
  if (!enabled_) return object;
  std::lock_guard lock(mutex_);
  auto alias = alias_of_object_.find(object);
  const ObjectId node = alias == alias_of_object_.end() ? object : alias->second;
  auto found = nodes_.find(node);
  return found != nodes_.end() && (found->second.passed > 0 || found->second.opening) ? give_alias(node) : node;
}

// mutex_ held.
ObjectId Passthrough::give_alias(ObjectId node) {
  const ObjectId object = node.node_ordinal() == kAliasOrdinal ? object_of_alias_[node] : node;
  const ObjectId alias = ObjectId::make(kAliasOrdinal, 0, next_alias_++);
  object_of_alias_[alias] = object;
  alias_of_object_[object] = alias;
  return alias;
}

bool Passthrough::blocks_truncate(ObjectId node) {
  if (!enabled_) return false;
  std::lock_guard lock(mutex_);
  auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.passed == 0) return false;
  give_alias(node);
  return true;
}

Passthrough::Decision Passthrough::open(fuse_req* request, ObjectId node, bool write, Store& store) {
  if (!enabled_) return {};
  const ObjectId object = object_of(node);
  {
    std::unique_lock lock(mutex_);
    registered_.wait(lock, [&] {
      auto found = nodes_.find(node);
      return found == nodes_.end() || !found->second.opening;
    });
    Node& state = nodes_[node];
    if (write && state.passed > 0) {
      give_alias(node);
      return {.stale = true};
    }
    if (state.passed > 0) {
      ++state.passed;
      return {.backing_id = state.backing_id, .in_memory = state.in_memory};
    }
    // The kernel refuses to mix: while a cached or direct open lives, this one goes through the daemon as well.
    if (write || state.others > 0) {
      ++state.others;
      return {};
    }
    state.opening = true;
  }
  int32_t id = 0;
  bool in_memory = false;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 16)
  BackingFile file = store.backing_file(object);
  in_memory = file.in_memory;
  if (file.descriptor >= 0) id = fuse_passthrough_open(request, file.descriptor);
  if (id < 0) id = 0;
#else
  (void)request;
  (void)store;
#endif
  std::lock_guard lock(mutex_);
  Node& state = nodes_[node];
  state.opening = false;
  registered_.notify_all();
  if (id <= 0) {
    ++state.others;
    return {};
  }
  state.backing_id = id;
  state.in_memory = in_memory;
  state.passed = 1;
  return {.backing_id = id, .in_memory = in_memory};
}

void Passthrough::release(fuse_req* request, ObjectId node, bool passed_through) {
  if (!enabled_) return;
  int32_t closed = 0;
  {
    std::lock_guard lock(mutex_);
    auto found = nodes_.find(node);
    if (found == nodes_.end()) return;
    Node& state = found->second;
    if (passed_through && --state.passed == 0) closed = std::exchange(state.backing_id, 0);
    if (!passed_through) --state.others;
    if (state.passed == 0 && state.others == 0 && !state.opening) nodes_.erase(found);
  }
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 16)
  if (closed > 0) fuse_passthrough_close(request, closed);
#else
  (void)request;
#endif
}

}  // namespace kvcachefs
