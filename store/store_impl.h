// The store behind store.h: it puts the rooms together, hands each call on to the class that does it, and begins and ends their
// threads. README.md lists the files, the threads and the locks with their order. Each thread has a step function: with
// background = false Store::pump() runs them in turn.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/object/handle.h"
#include "store/other_nodes.h"
#include "store/store.h"
#include "store/store_rooms.h"
#include "store/store_threads.h"

namespace kvcachefs {

class NodeStart;
struct Recovered;

class StoreImpl final : public Store, private StoreRooms {
 public:
  StoreImpl(std::shared_ptr<Volume> volume, StoreOptions options, Clock& clock);
  ~StoreImpl() override;
  Status start(std::string_view holder);

  Result<Stat> stat_entry(ObjectId parent, std::string_view name, ObjectId id) override { return lookups_->stat_entry(parent, name, id); }
  Result<Stat> lookup(ObjectId parent, std::string_view name, const Caller& caller) override { return lookups_->lookup(parent, name, caller); }
  Result<Stat> stat(ObjectId id) override { return versions_->stat_or_stand_in(id, attributes_->stat(id)); }
  Result<Stat> make_directory(ObjectId parent, std::string_view name, uint32_t mode, const Caller& caller) override {
    return names_->make_directory(parent, name, mode, caller);
  }
  Result<Stat> make_node(ObjectId parent, std::string_view name, uint32_t mode, uint32_t rdev, const Caller& caller) override {
    return names_->make_node(parent, name, mode, rdev, caller);
  }
  Result<Stat> make_symlink(ObjectId parent, std::string_view name, std::string_view target, const Caller& caller) override {
    return names_->make_symlink(parent, name, target, caller);
  }
  Result<std::string> read_symlink(ObjectId id) override { return names_->read_symlink(id); }
  Result<std::pair<Stat, Handle*>> create(ObjectId parent, std::string_view name, uint32_t mode, const OpenRequest& request,
                                          const Caller& caller) override {
    return names_->create(parent, name, mode, request, caller);
  }
  void link(ObjectId id, ObjectId parent, std::string_view name, const Caller& caller, Completion<Stat> done) override {
    names_->link(id, parent, name, caller, std::move(done));
  }
  void unlink(ObjectId parent, std::string_view name, const Caller& caller, StatusCompletion done) override {
    names_->unlink(parent, name, caller, std::move(done));
  }
  void remove_directory(ObjectId parent, std::string_view name, StatusCompletion done) override {
    names_->remove_directory(parent, name, std::move(done));
  }
  void rename(ObjectId parent, std::string_view name, ObjectId new_parent, std::string_view new_name, RenameMode mode,
              const Caller& caller, StatusCompletion done) override {
    renames_->rename(parent, name, new_parent, new_name, mode, caller, std::move(done));
  }
  Result<std::vector<DirectoryItem>> list(ObjectId directory, uint64_t after, size_t limit) override {
    return lookups_->list(directory, after, limit);
  }

  void set_attributes(ObjectId id, Handle* handle, const SetAttributes& change, const Caller& caller,
                      Completion<Stat> done) override {
    attributes_->set_attributes(id, handle, change, caller, std::move(done));
  }
  bool drop_privileges(Handle* handle, const std::function<bool(uint32_t)>& in_group) override {
    return attributes_->drop_privileges(handle, in_group);
  }
  Result<std::string> get_xattr(ObjectId id, std::string_view name) override { return attributes_->get_xattr(id, name); }
  Status set_xattr(ObjectId id, std::string_view name, std::string_view value, XattrMode mode) override {
    return attributes_->set_xattr(id, name, value, mode);
  }
  Status remove_xattr(ObjectId id, std::string_view name) override { return attributes_->remove_xattr(id, name); }
  Result<std::vector<std::string>> list_xattrs(ObjectId id) override { return attributes_->list_xattrs(id); }
  Result<AttributeRequests::Facts> describe(ObjectId id, const Caller& caller) override { return attributes_->describe(id, caller); }

  Result<Handle*> open(ObjectId id, const OpenRequest& request, const Caller& caller) override { return open_files_->open(id, request, caller); }
  bool told_stale(const OpenRequest& request, const Caller& caller, ObjectId object) override { return versions_->told_stale(request, caller, object); }
  bool may_look_again(const Caller& caller, bool by_name, const std::optional<OpenRequest>& open) override {
    return versions_->may_look_again(caller, by_name, open);
  }
  Result<Stat> open_directory(ObjectId id, const Caller& caller) override { return versions_->open_directory(id, caller); }
  ObjectId object_of(const Handle* handle) const override { return handle->object->id; }
  PeerState peer_state(const Handle* handle) const override {
    return handle->object->id.is_foreign() ? PeerState(handle->object, &handle->object->outdated) : nullptr;
  }
  bool changed_lately(const Handle* handle) const override { return tree_->read().changed_lately(handle->object->id); }
  uint32_t generation_of(ObjectId id) const override { return other_nodes_.generation_of(id); }
  ObjectId lock_identity(const Handle* handle) const override { return handle->object->lock_identity; }
  void note_locked(Handle* handle) override { in_place_->note_locked(handle); }
  void note_page_written(Handle* handle) override { in_place_->note_page_written(handle); }
  bool closes_quietly(Handle* handle) override { return in_place_->closes_quietly(handle); }
  void read(Handle* handle, uint64_t offset, size_t length, Completion<ReadReply> done) override {
    reads_->read(handle, offset, length, std::move(done));
  }
  void write(Handle* handle, uint64_t offset, std::span<const std::byte> bytes, Completion<size_t> done, WriteOf of) override {
    writes_->write(handle, offset, bytes, std::move(done), of);
  }
  void note_writer(Handle* handle, uint64_t writer) override { handle->writer = writer; }
  bool is_left_to_writer(Handle* handle, uint64_t closer) override { return OpenFiles::is_left_to_writer(handle, closer); }
  void flush(Handle* handle, StatusCompletion done) override { open_files_->flush(handle, std::move(done)); }
  void fsync(Handle* handle, StatusCompletion done) override { open_files_->fsync(handle, std::move(done)); }
  void keep_new(ObjectId id, StatusCompletion done) override { open_files_->keep_new(id, std::move(done)); }
  void sync_directory(ObjectId directory, StatusCompletion done) override { open_files_->sync_directory(directory, std::move(done)); }
  void release(Handle* handle) override { open_files_->release(handle); }
  void allocate(Handle* handle, AllocateMode mode, uint64_t offset, uint64_t length, StatusCompletion done) override {
    writes_->allocate(handle, mode, offset, length, std::move(done));
  }
  void seek(Handle* handle, SeekFor what, uint64_t offset, Completion<uint64_t> done) override {
    reads_->seek(handle, what, offset, std::move(done));
  }
  Result<uint64_t> seek_data(Handle* handle, uint64_t offset) override { return reads_->seek_now(handle, SeekFor::kData, offset); }
  Result<uint64_t> seek_hole(Handle* handle, uint64_t offset) override { return reads_->seek_now(handle, SeekFor::kHole, offset); }
  BackingFile backing_file(ObjectId id) override { return backing_->find(id); }
  Status expect_passthrough() override { return backing_->expect_passthrough(); }
  void backing_refused(bool in_memory) override { backing_->refuse(in_memory); }
  void count_passthrough_open(ObjectId id, bool direct, bool in_memory) override { backing_->count_open(id, direct, in_memory); }
  void note_mapped_read(Handle* handle) override { mapped_->note_read(handle); }
  void await_catching_up(ObjectId id, std::move_only_function<void()> then) override { other_nodes_.await_catching_up(id, std::move(then)); }
  void await_loads(Handle* handle, std::move_only_function<void()> then) override { mapped_->await_loads(handle, std::move(then)); }

  bool has_room_for_records(uint64_t bytes, Growth growth) override { return record_waiters_->has_room(bytes, growth); }
  void await_room_for_records(uint64_t bytes, Growth growth, StatusCompletion then) override { record_waiters_->await_room(bytes, growth, std::move(then)); }
  bool has_room_for_xattr(uint64_t bytes) override { return record_waiters_->has_room_for_xattr(bytes); }
  void await_room_for_xattr(uint64_t bytes, StatusCompletion then) override { record_waiters_->await_room_for_xattr(bytes, std::move(then)); }
  std::shared_ptr<void> keep(ObjectId id) override { return tree_->keep_for_call(id); }

  void hold_read_ahead() override { read_ahead_->hold(); }
  void release_read_ahead() override { read_ahead_->release(); }
  void resume_read_ahead() override { read_ahead_->resume(); }
  bool help() override { return read_ahead_->help(); }
  void leave_off() override { read_ahead_->leave_off(); }
  FileSystemSpace space() override;
  void refresh(StatusCompletion done) override;
  bool has_peers() const override { return other_nodes_.are_known(); }
  void drain(bool sync, StatusCompletion done) override { bulk_->drain(sync, std::move(done)); }
  void drop_caches() override { cache_->drop_all(); }
  Status begin_scrub() override;
  StoreStatus status() override;
  FollowedByPeers followed_by_peers() override;
  void set_node_lost(std::function<void()> then) override;
  std::string chains_text() override { return to_text(accesses_->summary(clock_.monotonic_ns())); }
  StoreOptions options() const override { return options_.current(); }
  Status set_option(std::string_view name, std::string_view value) override;
  void set_names_gone(NamesGone told) override { gone_names_.set(std::move(told)); }
  Status set_pinned(ObjectId id, bool pinned) override { return attributes_->set_pinned(id, pinned); }
  void stop() override;
  Status close() override;
  bool pump() override { return threads_.pump(); }
  void pump_claim() override { if (peers_ && !threads_.stopped()) peers_->step_if_wanted(); }

 private:
  bool may_get_room() const { return eviction_->may_make_room() || (shared_capacity_ && shared_capacity_->may_get_room()); }

  // --- status and options (store_status.cc) ---
  void tell_probes(StoreStatus& status);
  void tell_evictions(StoreStatus& status);
  OptionDefaults option_defaults(const SpaceInfo& backing) const;

  // --- start and end (store_impl.cc) ---
  // The steps of start(), in its order; the rooms are built in store_build.cc.
  Status take_node(NodeStart& node, std::string_view holder);
  void find_room_to_begin(std::string_view holder);
  Result<SpaceInfo> fill_in_options();  // returns the size of the file system
  Status build_memory();
  Result<Recovered> recover_node(NodeStart& node);
  Status begin_epoch(NodeStart& node, const Recovered& found);
  void build_extents(uint32_t kept_epoch);  // `kept_epoch`: of extents up to it, records may be lost
  void build_accesses();
  void build_tree();
  void build_reads(Recovered& found);
  void build_writeback();
  void build_requests();
  void build_name_requests();
  void build_upkeep(const Recovered& found, uint32_t kept_epoch, const SpaceInfo& backing_seen);
  Status write_first_records(const Recovered& found);
  void forget_reclaimed();
  void begin_upkeep(const Recovered& found);
  void remove_unjournaled();
  void give_back_reserve();
  void give_back_to_others();

  StoreRooms& rooms() { return *this; }
  OtherNodes other_nodes_{rooms()};
  StoreThreads threads_{rooms()};
  // Fixed after start(), except drained_.
  bool background_ = true;
  bool read_only_ = false;
  bool shared_ = false;  // other_nodes_.are_possible(), at the start
  Care care_ = Care::kNone;
  Verify verify_ = Verify::kAuto;
  bool checkpoint_at_close_ = false;  // even if the journal is short
  bool index_rebuilt_ = false, unclean_start_ = false;
  std::optional<Status> drained_;  // result of the drain of stop()
};

}  // namespace kvcachefs
