#include "store/requests/attribute_requests.h"

#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "store/base/limits.h"
#include "store/base/log.h"
#include "store/base/units.h"
#include "store/object/in_place_mark.h"
#include "store/object/pin_mark.h"

namespace kvcachefs {

namespace {

// The bits of `mode` that a write by an ordinary user, and a change of owner, take away. If the group may not execute the file,
// the set-group-id bit stays for a caller in that group.
bool depends_on_group(uint32_t mode) { return (mode & S_ISGID) && !(mode & S_IXGRP); }
uint32_t privileges(uint32_t mode, bool in_group) {
  return mode & static_cast<uint32_t>(S_ISUID | (depends_on_group(mode) && in_group ? 0 : S_ISGID));
}
}  // namespace

namespace {
// Applies all changes but the size: to an object that exists (Attributes) or was removed (Stat).
template <class Target>
void apply_to(Target& target, const SetAttributes& change, bool in_group, int64_t now) {
  if (change.mode) target.mode = (target.mode & S_IFMT) | (*change.mode & 07777);
  if (change.uid) target.uid = *change.uid;
  if (change.gid) target.gid = *change.gid;
  if (change.kill_privileges || ((change.uid || change.gid) && !change.mode && S_ISREG(target.mode))) target.mode &= ~privileges(target.mode, in_group);
  if (change.atime_now || change.atime_ns) target.atime_ns = change.atime_now ? now : *change.atime_ns;
  if (change.mtime_now || change.mtime_ns) target.mtime_ns = change.mtime_now ? now : *change.mtime_ns;
  target.ctime_ns = change.ctime_ns.value_or(now);
}
}  // namespace

Result<Stat> AttributeRequests::stat(ObjectId id) {
  ObjectPtr raw_object;
  FilePtr raw;
  {
    const Tree::Read tree = parts_.tree.read();
    raw_object = tree.live(id);
    if (raw_object) {
      const auto lock = raw_object->lock();
      raw = raw_object->raw;
    }
    if (!raw) return tree.stat(id);
  }
  Result<FileInfo> info = raw->info();
  const Tree::Read tree = parts_.tree.read();
  const auto lock = raw_object->lock();
  Stat stat = tree.stat_of(*raw_object);
  if (info) stat.blocks_512 = info->allocated_bytes / 512;
  return stat;
}

// Applies all changes but the size. Times set on a peer's object last as long as it is in RAM: clients set them to note a use; they are not refused.
Result<Stat> AttributeRequests::apply_attributes(ObjectId id, const SetAttributes& change) {
  const int64_t now = parts_.clock.realtime_ns();
  Stat stat;
  bool in_group = true;
  if (change.kill_privileges) {
    KVC_ASSIGN(const Stat before, this->stat(id));
    in_group = depends_on_group(before.mode) && change.in_group && change.in_group(before.gid);
  }
  Tree::ForgetAfter forget(parts_.tree);
  {
    const auto kept = parts_.tree.get_kept(id);
    if (!kept) {
      if (kept.error().code == Code::kNotFound)  // fchmod() of a directory that is removed while it is open
        if (auto left = parts_.tree.change_removed(id, [&](Stat& removed) { apply_to(removed, change, in_group, now); })) return *std::move(left);
      return std::unexpected(kept.error());
    }
    const ObjectPtr& object = kept->object;
    forget.take(object);
    const auto lock = object->lock();
    if (change.mode || change.uid || change.gid) KVC_TRY(parts_.check_may_change(*object));
    if (change.atime_now || change.atime_ns) parts_.unsaved_reads.drop(id);
    apply_to(object->attributes, change, in_group, now);
    parts_.changes.mark_attributes_dirty(object);
    stat = kept->names.stat_of(*object);
  }
  if (!id.is_foreign()) forget.keep();
  parts_.dirty.wake();
  return stat;
}

void AttributeRequests::set_attributes(ObjectId id, Handle* handle, const SetAttributes& change, const Caller& caller,
                                       Completion<Stat> done) {
  if (parts_.read_only) return done(fail(Code::kReadOnly, "the mount is read-only"));
  if (!change.size_bytes) return done(apply_attributes(id, change));
  auto got = handle != nullptr ? Result<ObjectPtr>(handle->object) : parts_.tree.get(id);
  if (!got) return done(std::unexpected(std::move(got).error()));
  ObjectPtr object = *got;
  Tree::ForgetAfter forget(parts_.tree, handle == nullptr ? object : nullptr);
  if (object->is_directory()) return done(fail(Code::kIsDirectory, fmt::format("object {} is a directory", id.value)));
  if (object->id.is_foreign()) {
    const auto size_bytes = std::invoke([&] {
      const auto lock = object->lock();
      return object->size_bytes;
    });
    if (Status may = parts_.check_may_change(*object); !may && *change.size_bytes != size_bytes) return done(std::unexpected(may.error()));
    SetAttributes rest = change;  // the object has that size already
    rest.size_bytes.reset();
    return done(apply_attributes(id, rest));
  }
  if (!object->is_regular()) return done(fail(Code::kInvalid, fmt::format("object {} is not a regular file", id.value)));
  forget.keep();  // open() below forgets the object when idle, and so does the code that takes a handle
  const auto raw_and_closed = [&] {
    const auto lock = object->lock();
    return object->base.place.kind == PlaceKind::kRaw && !object->raw;
  };
  if (handle == nullptr && raw_and_closed()) {
    // truncate(2) by path, of a raw file that is not open
    auto opened = parts_.open_files.open(id, {.read = false, .write = true}, caller);
    if (!opened) return done(std::unexpected(std::move(opened).error()));
    return set_attributes(id, *opened, change, caller, [this, opened = *opened, done = std::move(done)](Result<Stat> result) mutable {
      parts_.open_files.release(opened);
      done(std::move(result));
    });
  }
  if (handle == nullptr) {  // so that the table keeps the object while the change waits for room, memory or a read
    {
      const Tree::Read tree = parts_.tree.read();
      if (tree.live(id) == object) {
        const auto lock = object->lock();
        object->add_handle();
      } else {
        object.reset();
      }
    }
    if (!object) return set_attributes(id, handle, change, caller, std::move(done));
    done = [this, object, done = std::move(done)](Result<Stat> result) mutable {
      {
        const auto lock = object->lock();
        object->drop_handle();
      }
      parts_.tree.forget_when_idle(object);
      done(std::move(result));
    };
  }
  auto rest = [this, id, change, done = std::move(done)](Status status) mutable {
    if (!status) return done(std::unexpected(std::move(status).error()));
    done(apply_attributes(id, change));
  };
  if (handle == nullptr) {
    parts_.in_place.note_change_by_path(object, *change.size_bytes);
  } else {
    const auto lock = object->lock();
    parts_.in_place.note_change(object, handle);
  }
  parts_.writes.resize(object, *change.size_bytes, WriteRequests::kind_of_truncation(handle), std::move(rest));
}

bool AttributeRequests::drop_privileges(Handle* handle, const std::function<bool(uint32_t)>& in_group) {
  const ObjectPtr& object = handle->object;
  bool is_in_group = false;
  {
    auto lock = object->lock();
    const uint32_t mode = object->attributes.mode;
    if ((mode & (S_ISUID | S_ISGID)) == 0) return false;
    if (depends_on_group(mode) && in_group) {
      const uint32_t gid = object->attributes.gid;
      lock.unlock();  // in_group() reads /proc
      is_in_group = in_group(gid);
      lock.lock();
    }
    const uint32_t dropped = privileges(object->attributes.mode, is_in_group);
    if (dropped == 0) return false;
    object->attributes.mode &= ~dropped;
    object->attributes.ctime_ns = parts_.clock.realtime_ns();
    parts_.changes.mark_attributes_dirty(object);
  }
  parts_.dirty.wake();
  return true;
}

Result<std::string> AttributeRequests::get_xattr(ObjectId id, std::string_view name) {
  auto pick = [&](const std::vector<Xattr>& xattrs) -> Result<std::string> {
    for (const Xattr& xattr : xattrs)
      if (xattr.name == name) return xattr.value;
    return fail(Code::kNoAttribute, fmt::format("object {} has no attribute '{}'", id.value, name));
  };
  if (ObjectPtr object = parts_.tree.find(id)) {
    const auto lock = object->lock();
    return pick(object->attributes.xattrs);
  }
  KVC_ASSIGN(auto record, parts_.tree.read().record_summary(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  return pick(record->attributes.xattrs);
}

Status AttributeRequests::set_xattr(ObjectId id, std::string_view name, std::string_view value, XattrMode mode) {
  if (parts_.read_only) return fail(Code::kReadOnly, "the mount is read-only");
  if (name.empty() || name.size() > kMaxXattrNameBytes) return fail(Code::kRange, fmt::format("attribute name of {} bytes", name.size()));
  if (value.size() > kMaxXattrBytes)
    return fail(Code::kTooBig, fmt::format("attribute '{}': {} bytes, at most {}", name, value.size(), kMaxXattrBytes));
  return change_xattrs(id, [&](const ObjectPtr& object) { return set_xattr_of(object, name, value, mode); });
}

Status AttributeRequests::change_xattrs(ObjectId id, const std::function<Status(const ObjectPtr&)>& change) {
  Tree::ForgetAfter forget(parts_.tree);
  {
    KVC_ASSIGN(const Tree::Kept kept, parts_.tree.get_kept(id));
    const ObjectPtr& object = kept.object;
    forget.take(object);
    const auto lock = object->lock();
    KVC_TRY(parts_.check_may_change(*object));
    const uint64_t before = bytes_of(object->attributes.xattrs);
    KVC_TRY(change(object));
    object->attributes.ctime_ns = parts_.clock.realtime_ns();
    parts_.changes.mark_attributes_dirty(object);
    if (bytes_of(object->attributes.xattrs) < before) parts_.records.note_shrunk();
  }
  forget.keep();
  parts_.dirty.wake();
  return {};
}

// The object is locked.
Status AttributeRequests::set_xattr_of(const ObjectPtr& object, std::string_view name, std::string_view value, XattrMode mode) {
  const ObjectId id = object->id;
  auto& xattrs = object->attributes.xattrs;
  auto where = std::lower_bound(xattrs.begin(), xattrs.end(), name, [](const Xattr& x, std::string_view n) { return x.name < n; });
  const bool there = where != xattrs.end() && where->name == name;
  if (there && mode == XattrMode::kCreate) return fail(Code::kExists, fmt::format("attribute '{}' of object {}", name, id.value));
  if (!there && mode == XattrMode::kReplace)
    return fail(Code::kNoAttribute, fmt::format("object {} has no attribute '{}'", id.value, name));
  size_t total = bytes_of(xattrs) + name.size() + value.size();
  if (there) total -= where->name.size() + where->value.size();
  if (total > kMaxXattrTotalBytes)
    return fail(Code::kNoSpace, fmt::format("object {}: attributes of {} bytes, at most {}", id.value, total, kMaxXattrTotalBytes));
  const bool grows = !there || value.size() > where->value.size();
  if (grows && parts_.room.is_full()) return parts_.room.refuse(fmt::format("attribute '{}' of object {}", name, id.value));
  if (grows && parts_.records.index_has_its_part())
    return fail(Code::kNoSpace, fmt::format("attribute '{}' of object {}: the index takes 1/{} of the capacity beside its files; remove attributes of directories", name, id.value, RecordSpace::kIndexPart));
  if (grows && !parts_.records.has_room_for_xattrs(name.size() + value.size()))
    return fail(Code::kNoSpace, fmt::format("attribute '{}' of object {}: {} of attributes are not in the journal, of files that are open perhaps",
                                            name, id.value, format_size(RecordSpace::kMostXattrBytes)));
  if (there)
    where->value = value;
  else
    xattrs.insert(where, Xattr{std::string(name), std::string(value)});
  parts_.records.keep_xattrs(object->unjournaled_xattrs, total);
  return {};
}

Status AttributeRequests::remove_xattr(ObjectId id, std::string_view name) {
  if (parts_.read_only) return fail(Code::kReadOnly, "the mount is read-only");
  return change_xattrs(id, [&](const ObjectPtr& object) -> Status {
    auto& xattrs = object->attributes.xattrs;
    if (std::erase_if(xattrs, [&](const Xattr& xattr) { return xattr.name == name; }) == 0)
      return fail(Code::kNoAttribute, fmt::format("object {} has no attribute '{}'", id.value, name));
    parts_.records.keep_xattrs(object->unjournaled_xattrs, bytes_of(xattrs));
    return {};
  });
}

Result<std::vector<std::string>> AttributeRequests::list_xattrs(ObjectId id) {
  auto names_of = [](const std::vector<Xattr>& xattrs) {
    std::vector<std::string> listed;
    for (const Xattr& xattr : xattrs)
      if (xattr.name != kInPlaceMark && xattr.name != kPinMark) listed.push_back(xattr.name);
    return listed;
  };
  if (ObjectPtr object = parts_.tree.find(id)) {
    const auto lock = object->lock();
    return names_of(object->attributes.xattrs);
  }
  KVC_ASSIGN(auto record, parts_.tree.read().record_summary(id));
  if (!record) return fail(Code::kNotFound, fmt::format("object {} is gone", id.value));
  return names_of(record->attributes.xattrs);
}

Status AttributeRequests::set_pinned(ObjectId id, bool pinned) {
  if (parts_.read_only) return fail(Code::kReadOnly, "the mount is read-only");
  const Status status = change_xattrs(id, [&](const ObjectPtr& object) -> Status {
    if (!object->is_regular() && !object->is_directory())
      return fail(Code::kInvalid, fmt::format("object {} is neither a file nor a directory: it is not evicted", id.value));
    auto& xattrs = object->attributes.xattrs;
    const auto at = std::lower_bound(xattrs.begin(), xattrs.end(), kPinMark, [](const Xattr& x, std::string_view n) { return x.name < n; });
    const bool there = at != xattrs.end() && at->name == kPinMark;
    if (!pinned && !there) return fail(Code::kNoAttribute, fmt::format("object {} is not pinned itself", id.value));
    KVC_TRY(parts_.known.pin(*object, pinned));
    if (!pinned) xattrs.erase(at);
    else if (!there) xattrs.insert(at, Xattr{std::string(kPinMark), {}});
    return {};
  });
  if (!status) log::warn("pin: {}", status.error().message);
  return status;
}

Result<AttributeRequests::Facts> AttributeRequests::describe(ObjectId id, const Caller& caller) {
  KVC_ASSIGN(ObjectPtr object, parts_.tree.get(id));
  id = object->id;
  Facts facts;
  {
    const auto lock = object->lock();
    const Body& body = object->base;
    const char* kind = "none";
    switch (body.place.kind) {
      case PlaceKind::kNone: break;
      case PlaceKind::kInline: kind = "inline"; break;
      case PlaceKind::kPacked: kind = "packed"; break;
      case PlaceKind::kSolo: kind = "solo"; break;
      case PlaceKind::kRaw: kind = "raw"; break;
    }
    const bool staged = object->content_dirty();
    facts.emplace_back("id", fmt::format("{}", id.value));
    if (auto owner = parts_.known.owner(id)) facts.emplace_back("owner", *std::move(owner));
    facts.emplace_back("kind", object->is_regular() ? (staged && body.version == 0 ? "staged" : kind) : "none");
    facts.emplace_back("state", body.quarantined ? "quarantined" : staged ? "staged" : "sealed");
    if (body.place.extent.valid())
      facts.emplace_back("place", fmt::format("{}:{}+{}", parts_.extents.path(body.place.extent, body.place.kind),
                                              body.place.offset, body.place.length));
    if (!body.checksums.empty()) {
      std::string list;
      for (uint64_t value : body.checksums) list += fmt::format("{}{:016x}", list.empty() ? "" : ",", value);
      facts.emplace_back("checksums", std::move(list));
    }
    facts.emplace_back("checksummed", body.place.kind == PlaceKind::kRaw ? "no" : "yes");
    facts.emplace_back("version", fmt::format("{}", body.version));
    facts.emplace_back("hits", fmt::format("{}", object->opens));
    facts.emplace_back("age_s", fmt::format("{}", (parts_.clock.realtime_ns() - object->attributes.btime_ns) / 1'000'000'000));
    uint64_t ram = 0;
    for (const Unit& unit : object->units)
      if (unit.block) ram += unit.block->capacity_bytes();
    facts.emplace_back("ram_bytes", fmt::format("{}", ram));
    if (has_pin(object->attributes)) facts.emplace_back("pin", "1");
    else if (parts_.known.is_pinned(id)) facts.emplace_back("pin", "inherited");
  }
  if (auto known = parts_.accesses.neighbours(id)) {  // its place in the chain, by inode number
    const SuccessorRow row = from_record(*known);
    std::string list;
    for (const SuccessorRow::Link& link : row.successors)
      list += fmt::format("{}{}:{}", list.empty() ? "" : ",", link.id.value, link.count);
    if (!list.empty()) facts.emplace_back("successors", std::move(list));
    if (row.predecessor.valid()) facts.emplace_back("predecessor", fmt::format("{}", row.predecessor.value));
  }
  {
    Tree::Write tree = parts_.tree.write();
    parts_.known.describe_keeping(tree, object, caller.thread_id, facts);
    tree.forget_if_idle(object);
  }
  return facts;
}

}  // namespace kvcachefs
