// The one face of the chunk store: everything fs/, tools/ and tests/ may call.
//
// Ids: an ObjectId is an inode number and, as it stands, a FUSE nodeid. Handles are owned by the store and live from
// create()/open() until release().
//
// Threads: every call may come from any thread at once. No call blocks on the backing volume: what may have to wait takes a
// completion, which runs exactly once, either inside the call or later on a thread of the store, and must not block.
// Namespace calls work in RAM and on the memory-mapped index. open_store() and Store::close() do block.
//
// Errors name the object; fs/ maps their code to an errno in one place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/api/gone_names.h"
#include "store/api/options.h"
#include "store/api/request_types.h"
#include "store/api/store_status.h"
#include "store/base/clock.h"
#include "store/base/result.h"
#include "store/base/types.h"

namespace kvcachefs {

class Volume;
class Handle;  // opaque

class Store {
 public:
  virtual ~Store() = default;

  // --- names ---
  // What a listing may tell of `name`: kNotFound if that is nothing, as it does not mean `id` (any more), or as each probe is to be heard.
  virtual Result<Stat> stat_entry(ObjectId parent, std::string_view name, ObjectId id) = 0;
  virtual Result<Stat> lookup(ObjectId parent, std::string_view name, const Caller& caller) = 0;
  virtual Result<Stat> stat(ObjectId id) = 0;
  virtual Result<Stat> make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller) = 0;
  // Regular files, fifos, sockets, devices.
  virtual Result<Stat> make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev, const Caller& caller) = 0;
  virtual Result<Stat> make_symlink(ObjectId parent, std::string_view name, std::string_view target, const Caller& caller) = 0;
  virtual Result<std::string> read_symlink(ObjectId id) = 0;
  // kExists if the name is there (`exclusive` or not: the driver looks up first). The handle is open for `request`.
  virtual Result<std::pair<Stat, Handle*>> create(ObjectId parent, std::string_view name, uint32_t mode,
                                                  const OpenRequest& request, const Caller& caller) = 0;
  virtual void link(ObjectId id, ObjectId parent, std::string_view name, const Caller& caller, Completion<Stat> done) = 0;
  virtual void unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done) = 0;
  virtual void remove_directory(ObjectId parent, std::string_view name, StatusCompletion done) = 0;
  virtual void rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name,
                      RenameMode mode, const Caller& caller, StatusCompletion done) = 0;
  // Names with cookie > `after` (0: from the start), ascending; at most about `limit`; names of equal cookie come together. Without "." and "..".
  virtual Result<std::vector<DirectoryItem>> list(ObjectId directory, uint64_t after, size_t limit) = 0;

  // --- attributes ---
  // Size changes may wait for memory or a read; everything else completes inside the call. `handle` may be null.
  virtual void set_attributes(ObjectId id, Handle* handle, const SetAttributes& change, const Caller& caller, Completion<Stat> done) = 0;
  // Who may not keep set-user-id and set-group-id bits is about to write here, or has opened this with `truncate`.
  // The set-group-id bit of a file that its group may not execute stays for a caller who is in that group. True if any went.
  virtual bool drop_privileges(Handle* handle, const std::function<bool(uint32_t gid)>& in_group = {}) = 0;
  // Any namespace prefix the driver lets through. kNoAttribute if absent.
  virtual Result<std::string> get_xattr(ObjectId id, std::string_view name) = 0;
  using XattrMode = kvcachefs::XattrMode;
  virtual Status set_xattr(ObjectId id, std::string_view name, std::string_view value, XattrMode mode) = 0;
  virtual Status remove_xattr(ObjectId id, std::string_view name) = 0;
  virtual Result<std::vector<std::string>> list_xattrs(ObjectId id) = 0;
  // What `getfattr -m user.kvcachefs` shows of an object: (name without prefix, value). A lookup of it by the caller just now is no use.
  virtual Result<std::vector<std::pair<std::string, std::string>>> describe(ObjectId id, const Caller& caller) = 0;

  // --- bytes ---
  // kStale: the name must be looked up again; the lookup answers another object (several writers of one name).
  virtual Result<Handle*> open(ObjectId id, const OpenRequest& request, const Caller& caller) = 0;
  // An open is to be answered the same by fs/ itself: its repetition is not told so again, for the kernel repeats an open once.
  // False: it is the repetition, and nothing was looked up in between (by a path like /proc/self/fd/3). Then another answer is due.
  virtual bool told_stale(const OpenRequest& request, const Caller& caller) = 0;
  // The same of any other call whose object, or (`by_name`) name, is gone. What the caller then looks up is kept until it has repeated the call.
  virtual bool may_look_again(const Caller& caller, bool by_name) = 0;
  // A directory, to list it. As open(); but a removed one (`nlink` is 0) is opened for a repetition that has no name to look up.
  virtual Result<Stat> open_directory(ObjectId id, const Caller& caller) = 0;
  virtual ObjectId object_of(const Handle* handle) const = 0;
  virtual uint32_t generation_of(ObjectId id) const = 0;  // of the inode: a later mount may give the id to an object of another node or volume
  // What locks of this open are kept for: the same for all opens of an object, and of the versions of one temporary name.
  virtual ObjectId lock_identity(const Handle* handle) const = 0;
  // Somebody takes a lock of it: it is no chunk. It is not passed through any more, and gets no versions.
  virtual void note_locked(Handle* handle) = 0;
  // The write() that follows is of pages of a mapping; by whom it is (a table of descriptors), 0 where the kernel does not tell.
  virtual void note_page_written(Handle* handle) = 0;
  virtual void note_writer(Handle* handle, uint64_t writer) = 0;
  // The descriptor that is closed is not that of who wrote last, but of a child, say, that was forked meanwhile: what is written is not
  // whole, and the writer's own close is still to come. Such a close is no flush().
  virtual bool is_left_to_writer(Handle* handle, uint64_t closer) = 0;
  // Nobody needs to hear that a descriptor of this open is closed, which only reads.
  virtual bool closes_quietly(Handle* handle) = 0;
  virtual void read(Handle* handle, uint64_t offset, size_t length, Completion<ReadReply> done) = 0;
  // `bytes` is copied before the call returns, also when the completion comes later.
  virtual void write(Handle* handle, uint64_t offset, std::span<const std::byte> bytes, Completion<size_t> done) = 0;
  // close(2) of one descriptor: errors of earlier writes surface here; durable as the option says.
  virtual void flush(Handle* handle, StatusCompletion done) = 0;
  virtual void fsync(Handle* handle, StatusCompletion done) = 0;
  // What `durability` promises for a name: called between make_directory(), make_node() or make_symlink() and the answer.
  virtual void keep_new(ObjectId id, StatusCompletion done) = 0;
  // The names made, moved and removed in it so far survive power loss when it completes, and the bodies of those that were
  // finished or renamed, for a name is not kept without its body.
  virtual void sync_directory(ObjectId directory, StatusCompletion done) = 0;
  virtual void release(Handle* handle) = 0;
  using AllocateMode = kvcachefs::AllocateMode;
  virtual void allocate(Handle* handle, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done) = 0;
  // Where data, or a hole, begins at `offset` or behind it: pages of 4 KiB that are all zeros are holes. kNoData past the last.
  // What is not in RAM may have to be read for that; seek_data() and seek_hole() take it for data, but for units of zeros.
  using SeekFor = kvcachefs::SeekFor;
  virtual void seek(Handle* handle, SeekFor what, uint64_t offset, Completion<uint64_t> done) = 0;
  virtual Result<uint64_t> seek_data(Handle* handle, uint64_t offset) = 0;
  virtual Result<uint64_t> seek_hole(Handle* handle, uint64_t offset) = 0;
  // The body as one whole, known good, immutable file, for passthrough; descriptor -1 if it is none. What is written to the
  // object afterwards goes elsewhere.
  virtual BackingFile backing_file(ObjectId id) = 0;
  // The kernel takes backing files on this mount: bodies that have one are not read ahead into RAM, and big ones in RAM lie
  // in files of their own. Called before use. An error: there are no such files in RAM here; all else goes on.
  virtual Status expect_passthrough() = 0;
  // It turned out that the kernel does not take those in RAM, or those on the volume.
  virtual void backing_refused(bool in_memory) = 0;
  // `direct`: with O_DIRECT. `in_memory`: as in BackingFile.
  virtual void count_passthrough_open(ObjectId id, bool direct, bool in_memory) = 0;
  // A client has a body mapped and touched it here, not by passthrough: big ones are loaded into memory files for a while.
  virtual void note_mapped_read(Handle* handle) = 0;
  // Calls back once what is being loaded of the body has come, if that makes it one file in RAM, or once the page cache has been
  // filled with its extent, if that is under way (from a thread of the store then); at once where there is nothing to wait for. So
  // those who map whole bodies get them passed through, instead of page by page.
  virtual void await_loads(Handle* handle, std::move_only_function<void()> then) = 0;

  // Between the two the calling thread wakes nobody to read ahead; the second does, where it is due. For a client is
  // answered in between, who need not wait until a thread is awake. A read that has to load resumes by itself. Time
  // stands still for the calling thread meanwhile. They do not nest.
  virtual void hold_read_ahead() = 0;
  virtual void resume_read_ahead() = 0;

  // For a thread that polls for requests: does a piece of what nobody waits for (reading ahead small bodies, and taking in what
  // came of that), some microseconds of work, instead of a thread that would take the processor away from it. False: there is
  // nothing to do. From the first call on such work is left to the caller, until it leaves off, before it sleeps or does something
  // that takes long. One thread at a time helps; leave_off() may be called by any, also in vain.
  virtual bool help() = 0;
  virtual void leave_off() = 0;

  // --- the whole ---
  // Before a change of names or attributes of about so many bytes: whether it may go on now. Else await_room_for_records() runs `then` once it
  // may, or with the error why it cannot; it holds no thread. `gives_back`: it gives back what it takes, and is never refused for want of room.
  virtual bool has_room_for_records(uint64_t bytes) = 0;
  virtual void await_room_for_records(uint64_t bytes, bool gives_back, StatusCompletion then) = 0;
  virtual bool has_room_for_xattr(uint64_t bytes) = 0;  // the same for an extended attribute, its name included
  virtual void await_room_for_xattr(uint64_t bytes, StatusCompletion then) = 0;

  virtual FileSystemSpace space() = 0;
  // Everything accepted so far is on the volume and journaled when it completes; synced if `sync`.
  virtual void drain(bool sync, StatusCompletion done) = 0;
  // All that other nodes of the volume published before the call is seen when it completes.
  virtual void refresh(StatusCompletion done) = 0;
  // Other nodes change names, too, which the kernel is not told of. Any thread, at any rate.
  virtual bool has_peers() const = 0;
  virtual void drop_caches() = 0;  // clean bodies in RAM
  // All bodies on the volume are verified once from now on, beside what clients do. Does not wait for that.
  virtual Status begin_scrub() = 0;
  virtual StoreStatus status() = 0;
  // Have all who live read what this node journaled, answered what it said of theirs, and closed what it removed? Blocks on the volume.
  virtual FollowedByPeers followed_by_peers() = 0;
  // `then` is called once, on any thread, if another daemon or command has taken this node: nothing is accepted by the volume any more.
  virtual void set_node_lost(std::function<void()> then) = 0;
  virtual std::string chains_text() = 0;  // what reading ahead is at, for people (fs/STATUS.md)
  // Below a pinned file or directory nothing is evicted. kNoSpace: more than half of the capacity would be pinned.
  virtual Status set_pinned(ObjectId id, bool pinned) = 0;
  // Told of names that were evicted, on a thread of the store that holds no lock; must not wait for the store.
  using NamesGone = GoneNames::Told;
  virtual void set_names_gone(NamesGone told) = 0;
  virtual StoreOptions options() const = 0;
  virtual Status set_option(std::string_view name, std::string_view value) = 0;
  // Answers what is in work, drains and syncs, ends the store's threads: afterwards nothing is answered any more. No other
  // call may be running, and only close() may follow.
  virtual void stop() = 0;
  // stop(), then commits the index, writes a checkpoint if due, gives the lock up. No other call may be running or follow. An error says what could not be written; the journals still hold what was acknowledged.
  virtual Status close() = 0;
  // One round of all background work, for stores opened with background = false. Returns whether anything was done. The second, before each call: only of the claim on a shared capacity.
  virtual bool pump() = 0;
  virtual void pump_claim() = 0;
};

// Options that no volume could be opened with, the first of them in words. Makes nothing.
Status check_options(const StoreOptions& options);
// Who holds a volume's lock is told by the message of kBusy.
// An empty or missing-but-creatable root is initialised; anything else must be a volume of ours.
Result<std::unique_ptr<Store>> open_store(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock, std::string_view holder);
// The same for a volume in a directory of this machine.
Result<std::unique_ptr<Store>> open_store_at(const std::string& volume_root, StoreOptions options, Clock& clock, std::string_view holder);

}  // namespace kvcachefs
