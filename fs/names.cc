// Requests about names.
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "fs/after_answer.h"
#include "fs/driver.h"
#include "fs/file_handles.h"
#include "fs/open_guards.h"
#include "fs/record_gate.h"

namespace kvcachefs {

namespace {

void reply_entry(const Request& request, const Result<Stat>& stat) {
  if (!stat) return reply_object_error(request, stat.error(), Gone::kName);
  Driver& driver = driver_of(request);
  const fuse_entry_param entry = to_entry(driver, *stat);
  if (fuse_reply_entry(request, &entry) != 0) driver.passthrough.forget_node(ObjectId{entry.ino}, 1);
}

// Replies once the name is as durable as the option `durability` promises.
void reply_new_entry(const Request& request, Result<Stat> stat) {
  if (!stat) return reply_object_error(request, stat.error(), Gone::kName);
  const ObjectId id = stat->id;
  driver_of(request).store->keep_new(id, [request, stat = std::move(stat)](Status kept) {
    if (!kept) return reply_error(request, kept.error());
    reply_entry(request, stat);
  });
}

void lookup(const Request& request, fuse_ino_t parent, const char* name) {
  Driver& driver = driver_of(request);
  if (driver.handles->answers_lookup(request, parent, name)) return;
  const ReadAheadAfterAnswer later(*driver.store);
  auto found = driver.store->lookup(object_of(request, parent), name, caller_of(request));
  if (found || found.error().code != Code::kNotFound) return reply_entry(request, found);
  fuse_entry_param absent{};  // nodeid 0: the kernel may cache that the name is absent
  absent.entry_timeout = driver.absent_timeout_seconds();
  fuse_reply_entry(request, &absent);
}

// Only aliases need work when the kernel forgets an object: other nodeids are object ids, which the index finds again.
void forget_node(fuse_req_t request, fuse_ino_t node, uint64_t times) {
  static_cast<Driver*>(::fuse_req_userdata(request))->passthrough.forget_node(ObjectId{node}, times);
}
void forget(fuse_req_t request, fuse_ino_t node, uint64_t times) {
  forget_node(request, node, times);
  fuse_reply_none(request);
}
void forget_multi(fuse_req_t request, size_t count, fuse_forget_data* forgotten) {
  for (size_t i = 0; i < count; ++i) forget_node(request, forgotten[i].ino, forgotten[i].nlookup);
  fuse_reply_none(request);
}

void make_node(const Request& request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  Driver& driver = driver_of(request);
  reply_new_entry(request, driver.store->make_node(object_of(request, parent), name, mode, static_cast<uint32_t>(device), caller_of(request)));
}

// A regular file can be evicted once it has a body, and is not refused for the part of names without one.
void make_node_with_room(const Request& request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  S_ISREG(mode) ? grows<make_node>(request, parent, name, mode, device) : grows<make_node, Growth::kBodiless>(request, parent, name, mode, device);
}

void make_directory(const Request& request, fuse_ino_t parent, const char* name, mode_t mode) {
  Driver& driver = driver_of(request);
  reply_new_entry(request, driver.store->make_directory(object_of(request, parent), name, mode, caller_of(request)));
}

void make_symlink(const Request& request, const char* target, fuse_ino_t parent, const char* name) {
  Driver& driver = driver_of(request);
  reply_new_entry(request, driver.store->make_symlink(object_of(request, parent), name, target, caller_of(request)));
}

void read_link(const Request& request, fuse_ino_t node) {
  auto target = driver_of(request).store->read_symlink(object_of(request, node));
  if (!target) return reply_object_error(request, target.error());
  fuse_reply_readlink(request, target->c_str());
}

// Replies to a create. If the file existed and its nodeid is passed through to readers, replies another nodeid.
void answer_create(const Request& request, fuse_entry_param entry, const fuse_file_info& file, ObjectId object, Accepted accepted) {
  Driver& driver = driver_of(request);
  HeldNode held;
  if (const PeerState state = driver.store->peer_state(accepted.get())) {
    if (!driver.passthrough.hold(ObjectId{entry.ino}, state)) {
      driver.passthrough.forget_node(ObjectId{entry.ino}, 1);
      entry.ino = driver.passthrough.tell_held_node(object, state).value;
    }
    held = HeldNode(driver.passthrough, ObjectId{entry.ino});
    if (const auto shown = stat_shown(driver, ObjectId{entry.ino})) entry.attr = to_stat(*shown);  // the kernel takes these whatever it knows
  }
  driver.passthrough.open(ObjectId{entry.ino}, Passthrough::Access::kWrite,
                          [&driver, request, entry, file, object, accepted = std::move(accepted), held = std::move(held)](Passthrough::Decision decision) mutable {
    run_handler(request, [&] {
      if (decision.stale) {
        held.end();
        driver.passthrough.forget_node(ObjectId{entry.ino}, 1);
        entry.ino = driver.passthrough.tell_node(object, false).value;
        entry.attr_timeout = 0;  // it has an alias now
        return answer_create(request, entry, file, object, std::move(accepted));
      }
      Handle* const handle = accepted.take();
      if (fuse_reply_create(request, &entry, &file) == -ENOENT) {  // the caller was killed: no RELEASE will come
        held.end();
        driver.passthrough.release(ObjectId{entry.ino}, false);
        driver.passthrough.forget_node(ObjectId{entry.ino}, 1);
        driver.store->release(handle);
      }
      held.stays();
    });
  });
}

// Creates the file, or opens it if another client made it after the kernel saw it absent. If the file is removed again before the open,
// tries once more to create it (O_CREAT).
Result<std::pair<Stat, Handle*>> create_or_open(const Request& request, ObjectId directory, const char* name, mode_t mode,
                                                const fuse_file_info& file) {
  constexpr int kMostRounds = 100;
  Store& store = *driver_of(request).store;
  const Caller caller = caller_of(request);
  OpenRequest how = open_request_of(file.flags);
  const auto is_gone = [](const Error& error) { return error.code == Code::kNotFound || error.code == Code::kAbsentForNow || error.code == Code::kStale; };
  for (int round = 0;; ++round) {
    how.truncate = false;
    auto made = store.create(directory, name, mode, how, caller);
    if (made || made.error().code != Code::kExists || (file.flags & O_EXCL) || round >= kMostRounds) return made;
    auto found = store.lookup(directory, name, caller);
    if (!found && is_gone(found.error())) continue;
    if (!found) return std::unexpected(std::move(found).error());
    // Another client made a symbolic link, which must be followed, or a special file. The kernel, which could not tell us of closing it, looks it up again.
    if (!S_ISREG(found->mode)) return fail(S_ISDIR(found->mode) ? Code::kIsDirectory : Code::kStale, fmt::format("'{}' in directory {} is no file", name, directory.value));
    how.truncate = file.flags & O_TRUNC;
    auto opened = store.open(found->id, how, caller);
    if (!opened && is_gone(opened.error())) continue;
    if (!opened) return std::unexpected(std::move(opened).error());
    Accepted accepted(store, *opened);
    if (how.truncate && drops_privileges(file)) store.drop_privileges(*opened, groups_of(request));
    auto now = store.stat(found->id);  // the open may have emptied it
    if (now) now->brief = found->brief;
    return std::pair{now ? *now : *found, accepted.take()};
  }
}

void create(const Request& request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
  Driver& driver = driver_of(request);
  const ObjectId directory = object_of(request, parent);
  Result<std::pair<Stat, Handle*>> made = create_or_open(request, directory, name, mode, *file);
  if (!made) {
    if (file->flags & O_EXCL) return reply_object_error(request, made.error(), Gone::kName);  // its repetition opens no file that is there
    OpenRequest how = open_request_of(file->flags);
    how.truncate = file->flags & O_TRUNC;
    return reply_object_error(request, made.error(), Gone::kName, how);
  }
  Accepted accepted(*driver.store, made->second);
  set_open_flags(driver, *file, accepted.get());
  answer_create(request, to_entry(driver, made->first), *file, made->first.id, std::move(accepted));
}

void link(const Request& request, fuse_ino_t node, fuse_ino_t new_parent, const char* name) {
  Driver& driver = driver_of(request);
  driver.store->link(object_of(request, node), object_of(request, new_parent), name, caller_of(request),
                     [request](Result<Stat> stat) { reply_entry(request, stat); });
}

void unlink(const Request& request, fuse_ino_t parent, const char* name) {
  Driver& driver = driver_of(request);
  driver.store->unlink(object_of(request, parent), name, caller_of(request), replying(request));
}

void remove_directory(const Request& request, fuse_ino_t parent, const char* name) {
  Driver& driver = driver_of(request);
  driver.store->remove_directory(object_of(request, parent), name, replying(request));
}

void rename(const Request& request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent, const char* new_name,
            unsigned flags) {
  Driver& driver = driver_of(request);
  RenameMode mode = RenameMode::kReplace;
  if (flags == RENAME_NOREPLACE) mode = RenameMode::kNoReplace;
  else if (flags == RENAME_EXCHANGE) mode = RenameMode::kExchange;
  else if (flags != 0) return void(fuse_reply_err(request, EINVAL));
  const ReadAheadAfterAnswer later(*driver.store);
  driver.store->rename(object_of(request, parent), name, object_of(request, new_parent), new_name, mode, caller_of(request),
                       [request](Status status) { reply_object_status(request, status, Gone::kName); });
}

}  // namespace

void add_name_operations(fuse_lowlevel_ops& operations) {
  operations.lookup = guarded<lookup>;
  operations.forget = forget;
  operations.forget_multi = forget_multi;
  operations.mknod = guarded<make_node_with_room>;
  operations.mkdir = guarded<grows<make_directory, Growth::kBodiless>>;
  operations.symlink = guarded<grows<make_symlink, Growth::kLinks>>;
  operations.readlink = guarded<read_link>;
  operations.create = guarded<grows<create>>;
  operations.link = guarded<grows<link>>;
  operations.unlink = guarded<gives_back<unlink>>;
  operations.rmdir = guarded<gives_back<remove_directory>>;
  operations.rename = guarded<gives_back<rename>>;
}

}  // namespace kvcachefs
