#include "fs/passthrough.h"

#include <sys/ioctl.h>

#include <cerrno>
#include <exception>
#include <new>
#include <utility>

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include "fs/request.h"

namespace kvcachefs {

namespace {
constexpr auto kPromised = std::chrono::seconds(1);  // longest time from the lookup to the open
constexpr size_t kMostPromised = 4096;

// As in linux/fuse.h of Linux 6.9, which may be newer than the headers here.
struct BackingMap {
  int32_t descriptor = -1;
  uint32_t flags = 0;
  uint64_t padding = 0;
};
constexpr unsigned long kOpenBackingFile = _IOW(229, 1, BackingMap);  // FUSE_DEV_IOC_BACKING_OPEN
constexpr unsigned long kCloseBackingFile = _IOW(229, 2, uint32_t);   // FUSE_DEV_IOC_BACKING_CLOSE

// With these errors the kernel refuses all files of a kind: no CAP_SYS_ADMIN where it counts (a container with its own user namespace),
// too many stacked file systems (overlayfs on overlayfs), or a file system that it cannot pass through.
bool holds_for_all(int error) { return error == EPERM || error == ELOOP || error == EOPNOTSUPP || error == ENOTTY; }
}  // namespace

ObjectId Passthrough::file_of(ObjectId node) const {
  if (!AliasTable::is_alias(node)) return node;
  std::lock_guard lock(mutex_);
  return aliases_.object_of(node);
}

ObjectId Passthrough::object_of(ObjectId node) const {
  if (!node.is_foreign()) return node;  // aliases are foreign, too
  std::lock_guard lock(mutex_);
  const ObjectId as = held_as(node);
  return as.valid() ? as : aliases_.object_of(node);
}

ObjectId Passthrough::node_of(ObjectId object) const {
  if (!enabled_ && !object.is_foreign()) return object;
  std::lock_guard lock(mutex_);
  return aliases_.current(object);
}

ObjectId Passthrough::tell_node(ObjectId object, bool to_be_written) {
  if (!enabled_ && !object.is_foreign()) return object;
  std::unique_lock lock(mutex_);
  const bool first = !aliases_.has_aliases(object);
  ObjectId node = aliases_.current(object);
  if (held_as(node).valid()) node = give_fresh(object);
  if (to_be_written && enabled_) {
    if (is_passed(node)) node = give_alias(node);
    promise(node);
  }
  aliases_.told(node);
  lock.unlock();
  if (first && node != object) drop_attributes(object);
  return node;
}

ObjectId Passthrough::tell_held_node(ObjectId object, const PeerState& state) {
  std::unique_lock lock(mutex_);
  const bool first = !aliases_.has_aliases(object);
  const ObjectId node = give_fresh(object);
  held_.emplace(node, Held{.state = state, .opens = 1});
  aliases_.told(node);
  lock.unlock();
  if (first) drop_attributes(object);
  return node;
}

// mutex_ held.
ObjectId Passthrough::give_fresh(ObjectId object) {
  has_aliases_ = true;
  return aliases_.give(object);
}

bool Passthrough::hold(ObjectId node, const PeerState& state, bool is_last) {
  std::lock_guard lock(mutex_);
  const auto found = held_.find(node);
  if (found == held_.end()) {
    if (!is_last && state->load().valid()) return false;  // the kernel may know by now what the file is since
    held_.emplace(node, Held{.state = state, .opens = 1});
    return true;
  }
  if (found->second.state != state) return false;
  ++found->second.opens;
  return true;
}

void Passthrough::let_go(ObjectId node) {
  PeerState state;  // perhaps the last reference: released without the lock
  std::lock_guard lock(mutex_);
  const auto found = held_.find(node);
  if (found == held_.end() || --found->second.opens > 0) return;
  state = std::move(found->second.state);
  held_.erase(found);
}

// mutex_ held. Invalid: `node` shows what its file is now.
ObjectId Passthrough::held_as(ObjectId node) const {
  const auto found = held_.find(node);
  return found == held_.end() ? ObjectId{} : found->second.state->load();
}

void Passthrough::tell_again(ObjectId node) {
  if (!AliasTable::is_alias(node)) return;
  std::lock_guard lock(mutex_);
  aliases_.told(node);
}

void Passthrough::forget_node(ObjectId node, uint64_t times) {
  if (!AliasTable::is_alias(node)) return;
  std::lock_guard lock(mutex_);
  aliases_.forgot(node, times, [this](ObjectId each) { return nodes_.contains(each) || held_.contains(each) || is_promised(each); });
  has_aliases_ = !aliases_.empty();
}

// mutex_ held.
void Passthrough::promise(ObjectId node) {
  if (promised_.size() >= kMostPromised) promised_.clear();  // their clients were killed before the open
  promised_[node] = std::chrono::steady_clock::now() + kPromised;
}

// mutex_ held. Returns null if `node` is not outdated.
const Passthrough::Node* Passthrough::outdated(ObjectId node) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end() || found->second.passed == 0) return nullptr;
  return aliases_.current(aliases_.object_of(node)) == node ? nullptr : &found->second;
}

bool Passthrough::is_outdated(ObjectId node) const {
  if (!has_aliases_.load(std::memory_order_relaxed) && !node.is_foreign()) return false;
  std::lock_guard lock(mutex_);
  return outdated(node) != nullptr || held_as(node).valid() || is_left(node);
}

bool Passthrough::has_aliases(ObjectId object) const {
  if (!has_aliases_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  return aliases_.has_aliases(object);
}

// Call when the file got an alias. Until it got the first, the kernel was answered attributes that it may keep for a second. `node`, if it is no
// alias, is open or being opened: the kernel does not wait until it is rid of it.
void Passthrough::drop_attributes(ObjectId node) const {
  if (session_ != nullptr && !AliasTable::is_alias(node)) fuse_lowlevel_notify_inval_inode(session_, node.value, -1, 0);
}

// mutex_ held. True if opens of the file now have another nodeid, which is open or promised to a writer. (A nodeid of another node's file shows one
// state of it: hold().)
bool Passthrough::is_left(ObjectId node) const {
  const ObjectId file = aliases_.object_of(node), now = aliases_.current(file);
  return now != node && !file.is_foreign() && (nodes_.contains(now) || is_promised(now));
}

void Passthrough::show_as_opened(ObjectId node, Stat& stat) const {
  if (!has_aliases_.load(std::memory_order_relaxed)) return;
  std::lock_guard lock(mutex_);
  const Node* state = outdated(node);
  if (state == nullptr || !state->as_opened) return;
  stat.size_bytes = state->as_opened->size_bytes;
  stat.blocks_512 = state->as_opened->blocks_512;
  stat.mtime_ns = state->as_opened->mtime_ns;
  stat.ctime_ns = state->as_opened->ctime_ns;
}

// mutex_ held. True if `node` is promised to a writer. A reader that opens it meanwhile gets no passthrough; else the writer would get ESTALE again.
bool Passthrough::is_promised(ObjectId node) const {
  auto promise = promised_.find(node);
  if (promise == promised_.end()) return false;
  if (std::chrono::steady_clock::now() < promise->second) return true;
  promised_.erase(promise);
  return false;
}

// mutex_ held.
bool Passthrough::is_passed(ObjectId node) const {
  auto found = nodes_.find(node);
  return found != nodes_.end() && (found->second.passed > 0 || found->second.opening);
}

// mutex_ held. All writers of an object share one nodeid, so that the kernel keeps one size of it: decide().
ObjectId Passthrough::give_alias(ObjectId node) {
  const ObjectId object = aliases_.object_of(node);
  const ObjectId now = aliases_.current(object);
  if (now != node && !is_passed(now)) return now;  // another alias was given since the kernel looked the name up
  const ObjectId alias = give_fresh(object);
  promise(alias);  // so that no reader that looks it up first gets it passed through
  return alias;
}

// mutex_ held. Returns none if the backing file must be registered first.
std::optional<Passthrough::Decision> Passthrough::decide(ObjectId node, Node& state, Access access) {
  const bool write = access == Access::kWrite;
  if (write) promised_.erase(node);
  if (write && (state.passed > 0 || is_left(node))) {
    give_alias(node);
    return Decision{.stale = true};
  }
  if (state.passed > 0) {
    ++state.passed;
    // The kernel takes no other kind of open of this nodeid. A passed-through O_DIRECT read would need the alignment of the volume, so the daemon reads.
    return Decision{.backing_id = state.backing_id, .in_memory = state.in_memory,
                    .by_daemon = access == Access::kReadDirect && !state.in_memory};
  }
  // The kernel does not mix opens: while a cached or direct open lives, this one must go through the daemon as well. And a nodeid from
  // before the last change in place is not passed through again.
  const ObjectId file = aliases_.object_of(node);
  const bool current = aliases_.current(file) == node;
  if (write || state.others > 0 || !current || is_promised(node)) {
    // The kernel could not look the name up again, or the nodeid is the only one in use: then lookups return it from now on.
    if (!current && !file.is_foreign() && !is_left(node)) aliases_.make_current(node);
    ++state.others;
    return Decision{};
  }
  return std::nullopt;
}

void Passthrough::open(ObjectId node, Access access, Then then) {
  if (!enabled_) return then({});
  const ObjectId object = object_of(node);
  std::optional<Decision> decision;
  {
    std::lock_guard lock(mutex_);
    Node& state = nodes_[node];
    if (state.opening) return state.waiting.emplace_back(access, std::move(then)), void();
    decision = decide(node, state, access);
    if (!decision) state.opening = true;
    if (decision && state.passed == 0 && state.others == 0) nodes_.erase(node);  // stale, and counted nowhere
  }
  if (decision && decision->stale) drop_attributes(node);
  if (decision) return then(*decision);
  if (!remote_) return register_node(node, object, access, std::move(then));
  struct Queued {  // if run() throws, ends `opening`, on which others may wait
    Passthrough& passthrough;
    ObjectId node;
    bool done = false;
    ~Queued() {
      if (done) return;
      for (Waiting& each : passthrough.end_opening(node, {})) each.then(each.decision);
      passthrough.release(node, false);  // end_opening() has counted this open, which now fails
    }
  } queued{*this, node};
  openers_.run([this, node, object, access, then = std::move(then)]() mutable { register_node(node, object, access, std::move(then)); });
  queued.done = true;
}

// Called for the open that set `opening`. That open is decided first; the opens that wait for it follow in order.
void Passthrough::register_node(ObjectId node, ObjectId object, Access access, Then then) {
  Registered registered = register_object(object, access);
  if (registered.id > 0 && node.is_foreign() && is_outdated(node)) {  // since this open: the file that was found may be of a newer state
    close_backing(registered.id);
    registered = {};
  }
  const Decision first{.backing_id = registered.id, .in_memory = registered.in_memory};
  std::vector<Waiting> waiting = end_opening(node, std::move(registered));
  then(first);
  for (Waiting& each : waiting) {
    if (each.decision.stale) drop_attributes(node);
    each.then(each.decision);
  }
}

// Ends `opening` for the open that set it, and counts that open as passed through or as another. Decides on the opens that waited. If
// an allocation fails, does without it.
std::vector<Passthrough::Waiting> Passthrough::end_opening(ObjectId node, Registered registered) {
  std::lock_guard lock(mutex_);
  Node& state = nodes_.find(node)->second;  // no call removes it while it is opening
  state.opening = false;
  std::vector<Waiting> waiting = std::exchange(state.waiting, {});
  if (registered.id > 0) {
    state.backing_id = registered.id;
    state.in_memory = registered.in_memory;
    state.passed = 1;
    state.as_opened = std::move(registered.as_opened);
  } else {
    ++state.others;
  }
  for (Waiting& each : waiting) {
    try {
      each.decision = *decide(node, state, each.access);  // it is open: decided
    } catch (const std::bad_alloc&) {
      each.decision = {.stale = true};  // no alias could be made; a stale open counts nowhere
    }
  }
  return waiting;
}

Passthrough::Registered Passthrough::register_object(ObjectId object, Access access) {
  Registered registered;
#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 16)
  try {
    const BackingFile file = source_.backing_file(object);
    registered.in_memory = file.in_memory;
    if (access != Access::kReadDirect || file.in_memory) registered.id = register_file(file);
    if (registered.id > 0)
      if (auto stat = source_.stat(object)) registered.as_opened = *stat;
  } catch (const std::exception& exception) {
    tell_of_exception(exception.what());
    if (registered.id > 0) close_backing(registered.id);
    registered = {};
  }
#else
  static_cast<void>(object), static_cast<void>(access);
#endif
  return registered;
}

// Returns 0 if the kernel refuses the file.
int32_t Passthrough::register_file(const BackingFile& file) {
  if (file.descriptor < 0 || refused_[file.in_memory]) return 0;
  const BackingMap map{.descriptor = file.descriptor};
  const int id = ioctl(fuse_session_fd(session_), kOpenBackingFile, &map);
  if (id >= 0) return id;
  const int error = errno;
  if (holds_for_all(error) && !refused_[file.in_memory].exchange(true)) on_refusal_(file.in_memory, error);
  return 0;
}

void Passthrough::release(ObjectId node, bool passed_through) {
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
  // fuse_passthrough_close() cannot be used: it needs a request, and the request may have been answered.
  if (closed > 0) close_backing(closed);
}

void Passthrough::stop() {
  openers_.stop();
  std::unordered_map<ObjectId, Held> left;  // of a connection that was aborted: no RELEASE comes
  std::lock_guard lock(mutex_);
  left.swap(held_);
}

void Passthrough::close_backing(int32_t id) {
  const auto closed = static_cast<uint32_t>(id);
  ioctl(fuse_session_fd(session_), kCloseBackingFile, &closed);
}

}  // namespace kvcachefs
