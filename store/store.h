// The public interface of the chunk store: everything fs/, tools/ and tests/ may call.
//
// Ids: an ObjectId is an inode number and, as it stands, a FUSE nodeid. Handles are owned by the store and live from
// create()/open() until release().
//
// Threads: every call may come from any thread at any time. No call blocks on the backing volume: a call that may have to wait
// takes a completion. The completion runs exactly once, inside the call or later on a thread of the store, and must not block.
// Namespace calls work in RAM and on the memory-mapped index. open_store() and Store::close() do block.
//
// An error names the object; fs/ maps error codes to errnos in one place.
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
  // The attributes that a listing may give for `name`. kNotFound: `name` does not mean `id` (any more), or the store has to see each probe.
  virtual Result<Stat> stat_entry(ObjectId parent, std::string_view name, ObjectId id) = 0;
  virtual Result<Stat> lookup(ObjectId parent, std::string_view name, const Caller& caller) = 0;
  virtual Result<Stat> stat(ObjectId id) = 0;
  virtual Result<Stat> make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller) = 0;
  // Regular files, fifos, sockets, devices.
  virtual Result<Stat> make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev, const Caller& caller) = 0;
  virtual Result<Stat> make_symlink(ObjectId parent, std::string_view name, std::string_view target, const Caller& caller) = 0;
  virtual Result<std::string> read_symlink(ObjectId id) = 0;
  // kExists if the name exists (O_EXCL or not: the driver looks up first). The handle is open for `request`.
  virtual Result<std::pair<Stat, Handle*>> create(ObjectId parent, std::string_view name, uint32_t mode, const OpenRequest& request, const Caller& caller) = 0;
  virtual void link(ObjectId id, ObjectId parent, std::string_view name, const Caller& caller, Completion<Stat> done) = 0;
  virtual void unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done) = 0;
  virtual void remove_directory(ObjectId parent, std::string_view name, StatusCompletion done) = 0;
  virtual void rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name, RenameMode mode, const Caller& caller, StatusCompletion done) = 0;
  // Names with cookie > `after` (0: from the start), ascending; at most about `limit`; names of equal cookie come together. Without "." and "..".
  virtual Result<std::vector<DirectoryItem>> list(ObjectId directory, uint64_t after, size_t limit) = 0;

  // --- attributes ---
  // Size changes may wait for memory or a read; everything else completes inside the call. `handle` may be null.
  virtual void set_attributes(ObjectId id, Handle* handle, const SetAttributes& change, const Caller& caller, Completion<Stat> done) = 0;
  // Drops the set-user-id and set-group-id bits: a caller that may not keep them is about to write, or has opened with `truncate`.
  // The set-group-id bit of a file that its group may not execute stays if the caller is in that group. True if any bit was dropped.
  virtual bool drop_privileges(Handle* handle, const std::function<bool(uint32_t gid)>& in_group = {}) = 0;
  // Any namespace prefix the driver lets through. kNoAttribute if absent.
  virtual Result<std::string> get_xattr(ObjectId id, std::string_view name) = 0;
  using XattrMode = kvcachefs::XattrMode;
  virtual Status set_xattr(ObjectId id, std::string_view name, std::string_view value, XattrMode mode) = 0;
  virtual Status remove_xattr(ObjectId id, std::string_view name) = 0;
  virtual Result<std::vector<std::string>> list_xattrs(ObjectId id) = 0;
  // The facts that `getfattr -m user.kvcachefs` shows: (name without prefix, value). The caller's own lookup just before is not counted as a use.
  virtual Result<std::vector<std::pair<std::string, std::string>>> describe(ObjectId id, const Caller& caller) = 0;

  // --- bytes ---
  // Call before an open of another node's file: runs `then` on a thread of the store once it is known whether that node has it still; at once as a rule.
  virtual void await_catching_up(ObjectId id, std::move_only_function<void()> then) = 0;
  // kStale: the name must be looked up again; the lookup answers another object (several writers of one name).
  virtual Result<Handle*> open(ObjectId id, const OpenRequest& request, const Caller& caller) = 0;
  // fs/ is about to answer an open kStale by itself. The store then does not answer the repetition kStale: the kernel repeats an open once. False: this is
  // the repetition, without a lookup in between (/proc/self/fd/3), or after one that found `object`; fs/ must give another answer.
  virtual bool told_stale(const OpenRequest& request, const Caller& caller, ObjectId object = {}) = 0;
  // The same for another call (to create a file: with flags `open`) whose object (or name, `by_name`) is gone. What the caller then looks up is kept for it.
  virtual bool may_look_again(const Caller& caller, bool by_name, const std::optional<OpenRequest>& open = {}) = 0;
  // Opens a directory to list it. As open(), but a repetition that has no name to look up can open a removed directory (`nlink` is 0).
  virtual Result<Stat> open_directory(ObjectId id, const Caller& caller) = 0;
  virtual ObjectId object_of(const Handle* handle) const = 0;
  virtual PeerState peer_state(const Handle* handle) const = 0;
  virtual bool changed_lately(const Handle* handle) const = 0;  // another node's file: the kernel may still have attributes of before
  virtual uint32_t generation_of(ObjectId id) const = 0;  // of the inode: a later mount may give the id to an object of another node or volume
  // The object under which locks of this open are kept: the same for all opens of an object, and for all versions of one temporary name.
  virtual ObjectId lock_identity(const Handle* handle) const = 0;
  // A client takes a lock on the file, so it is no chunk: it is not passed through any more, and gets no versions.
  virtual void note_locked(Handle* handle) = 0;
  virtual void note_page_written(Handle* handle) = 0;  // the next write() writes pages of a mapping
  virtual void note_writer(Handle* handle, uint64_t writer) = 0;  // of the next write(): a table of descriptors; 0: the kernel does not tell
  // True: the closing process is not the last writer but, say, a child forked meanwhile. The writer's own close is still to come: this is no flush().
  virtual bool is_left_to_writer(Handle* handle, uint64_t closer) = 0;
  // For an open that only reads: true if the store need not be told when a descriptor of it is closed.
  virtual bool closes_quietly(Handle* handle) = 0;
  virtual void read(Handle* handle, uint64_t offset, size_t length, Completion<ReadReply> done) = 0;
  // `bytes` is copied before the call returns, also when the completion comes later.
  virtual void write(Handle* handle, uint64_t offset, std::span<const std::byte> bytes, Completion<size_t> done, WriteOf of = WriteOf::kCall) = 0;
  // close(2) of one descriptor: reports errors of earlier writes; makes durable what the option `durability` promises.
  virtual void flush(Handle* handle, StatusCompletion done) = 0;
  virtual void fsync(Handle* handle, StatusCompletion done) = 0;
  // Does what `durability` promises for a new name. Called between make_directory(), make_node() or make_symlink() and the answer.
  virtual void keep_new(ObjectId id, StatusCompletion done) = 0;
  // Completes once the names made, moved and removed in the directory so far survive power loss, with the bodies of those that were finished or renamed.
  virtual void sync_directory(ObjectId directory, StatusCompletion done) = 0;
  virtual void release(Handle* handle) = 0;
  using AllocateMode = kvcachefs::AllocateMode;
  virtual void allocate(Handle* handle, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done) = 0;
  // The first data, or hole, at `offset` or behind it. Pages of 4 KiB that are all zeros are holes. kNoData past the last.
  // seek() may read units that are not in RAM; seek_data() and seek_hole() count them as data, except units of zeros.
  using SeekFor = kvcachefs::SeekFor;
  virtual void seek(Handle* handle, SeekFor what, uint64_t offset, Completion<uint64_t> done) = 0;
  virtual Result<uint64_t> seek_data(Handle* handle, uint64_t offset) = 0;
  virtual Result<uint64_t> seek_hole(Handle* handle, uint64_t offset) = 0;
  // The body as one whole, known-good, immutable file, for passthrough; descriptor -1 if there is none. Later writes to the
  // object go elsewhere.
  virtual BackingFile backing_file(ObjectId id) = 0;
  // The kernel takes backing files on this mount: bodies that have one are not read ahead into RAM, and big bodies in RAM lie
  // in files of their own. Called before use. An error: this machine has no such files in RAM; everything else works.
  virtual Status expect_passthrough() = 0;
  // The kernel has refused a backing file: one in RAM, or one on the volume.
  virtual void backing_refused(bool in_memory) = 0;
  // `direct`: with O_DIRECT. `in_memory`: as in BackingFile.
  virtual void count_passthrough_open(ObjectId id, bool direct, bool in_memory) = 0;
  // A client read a mapped body through the daemon, not by passthrough: for a while, big bodies are loaded into memory files.
  virtual void note_mapped_read(Handle* handle) = 0;
  // Runs `then` once the loads under way of the body have ended, if they make it one file in RAM, or once the page cache has been filled with its extent, if that
  // is under way (then on a thread of the store); at once if there is nothing to wait for. So clients that map whole bodies get them by passthrough.
  virtual void await_loads(Handle* handle, std::move_only_function<void()> then) = 0;

  // From hold to release the clock stands still for the calling thread, it wakes no thread to read ahead, and its lookups, opens and reads teach
  // nothing yet: no client waits for that. resume_read_ahead(), by the same thread before it waits, makes up for it, and ends a hold.
  virtual void hold_read_ahead() = 0;
  virtual void release_read_ahead() = 0;
  virtual void resume_read_ahead() = 0;

  // For a thread that polls for requests: does one piece of reading ahead (begins reads of small bodies, takes in those that came),
  // some microseconds of work, in place of a thread that would take the processor away from the caller. False: nothing to do.
  // From the first help() on this work is left to the caller. It must call leave_off() before it sleeps or does something long. One thread at a
  // time helps; any thread may call leave_off(), also if none helps.
  virtual bool help() = 0;
  virtual void leave_off() = 0;

  // --- the whole ---
  // May a change of names or attributes of about `bytes` go on now? If not, await_room_for_records() runs `then` once it may, or with the
  // error why it cannot; it holds no thread. A change with Growth::kNone is never refused for want of room.
  virtual bool has_room_for_records(uint64_t bytes, Growth growth) = 0;
  virtual void await_room_for_records(uint64_t bytes, Growth growth, StatusCompletion then) = 0;
  virtual bool has_room_for_xattr(uint64_t bytes) = 0;  // the same for an extended attribute, its name included
  virtual void await_room_for_xattr(uint64_t bytes, StatusCompletion then) = 0;
  virtual std::shared_ptr<void> keep(ObjectId id) = 0;  // while the result is held, a file that such a call is about is not evicted

  virtual FileSystemSpace space() = 0;
  // Completes once everything accepted so far is on the volume and journaled; synced if `sync`.
  virtual void drain(bool sync, StatusCompletion done) = 0;
  // Completes once this node sees everything that other nodes of the volume published before the call.
  virtual void refresh(StatusCompletion done) = 0;
  // True: other nodes change names too, and the kernel is not told. Any thread, however often.
  virtual bool has_peers() const = 0;
  virtual void drop_caches() = 0;  // clean bodies in RAM
  // Begins to verify all bodies on the volume once, beside the clients' requests. Does not wait for the end.
  virtual Status begin_scrub() = 0;
  virtual StoreStatus status() = 0;
  // Have all live nodes read this node's journals, answered its statements about their files, and closed the files it removed? Blocks on the volume.
  virtual FollowedByPeers followed_by_peers() = 0;
  // `then` runs once, on any thread, if another daemon or command has taken over this node: the volume accepts nothing from then on.
  virtual void set_node_lost(std::function<void()> then) = 0;
  virtual std::string chains_text() = 0;  // the state of reading ahead, for people (fs/STATUS.md)
  // Below a pinned file or directory nothing is evicted. kNoSpace: more than half of the capacity would be pinned.
  virtual Status set_pinned(ObjectId id, bool pinned) = 0;
  // `told` runs with the names that were evicted, on a thread of the store that holds no lock; it must not wait for the store.
  using NamesGone = GoneNames::Told;
  virtual void set_names_gone(NamesGone told) = 0;
  virtual StoreOptions options() const = 0;
  virtual Status set_option(std::string_view name, std::string_view value) = 0;
  // Answers the calls in progress, drains and syncs, and ends the store's threads: afterwards no call is answered. No other
  // call may be running, and only close() may follow.
  virtual void stop() = 0;
  // stop(), then commits the index, writes a checkpoint if due, gives the lock up. No other call may be running or follow.
  // An error tells what could not be written; the journals still hold what was acknowledged.
  virtual Status close() = 0;
  // For stores opened with background = false: pump() runs one round of all background work; false if there was none.
  // pump_claim(), called before each call, works only on the claim on a shared capacity.
  virtual bool pump() = 0;
  virtual void pump_claim() = 0;
};

// Fails, naming the first, if there are options with which no volume could be opened. Creates nothing.
Status check_options(const StoreOptions& options);
// kBusy if another process holds the volume's lock; the message names the holder.
// An empty or missing-but-creatable root is initialised; anything else must be a kvcachefs volume.
Result<std::unique_ptr<Store>> open_store(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock, std::string_view holder);
// The same for a volume in a directory of this machine.
Result<std::unique_ptr<Store>> open_store_at(const std::string& volume_root, StoreOptions options, Clock& clock, std::string_view holder);

}  // namespace kvcachefs
