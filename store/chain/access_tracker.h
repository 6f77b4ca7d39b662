// Learns from the accesses of clients, reported from any thread, and derives from them which bodies to read ahead, in which order
// to lay out bodies that are sealed together, and which rows of successors changed. Reads nothing itself. Wraps the pure logic of
// this room with its one lock, and keeps the stems of recently used names.
//
// A thread that answers a client may have its reports only noted until the answer is out (hold(), release(), settle()).
//
// Lock: mutex_ (rank kAccesses). The given row loader runs under it: it may look up one row of the index. The notes have a leaf of their own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/base/mutex.h"
#include "store/base/records.h"
#include "store/base/types.h"
#include "store/chain/access_listener.h"
#include "store/chain/chains.h"
#include "store/chain/origin.h"
#include "store/chain/stem_memory.h"

namespace kvcachefs {

class AccessTracker {
 public:
  // Returns the stored row of successors of a body, if any. Called with mutex_ held.
  using FindRow = std::function<std::optional<SuccessorsRecord>(ObjectId)>;
  AccessTracker(FindRow find_row, uint64_t ahead_bytes, uint64_t total_bytes);

  // `kick` is called, without the lock, when plan() has work. It must not block. Call before use.
  void set_kick(std::function<void()> kick) { kick_ = std::move(kick); }
  // Listeners get every report first. Call before use; the listeners must outlive this object.
  void set_listeners(std::vector<AccessListener*> listeners) { listeners_ = std::move(listeners); }
  void set_ahead_bytes(uint64_t bytes, uint64_t total_bytes);  // limits for one reader (0: no read-ahead) and for all

  // From hold() to release() probes, opens and reads reported by the calling thread are only noted, and renames for the listeners. settle() ends that, too, and works off the notes
  // of all threads, in their order, as does each other call: so what is learned, and in which order, is the same. Call settle() with no lock held.
  void hold();
  void release();
  void settle();

  // Tells the listeners of all that is noted.
  void catch_up();

  // `id` invalid: the name is absent. `directory`: the name is one of a directory. `size_bytes`: 0 if unknown.
  void probed(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, bool directory, uint64_t size_bytes,
              int64_t now_ns);
  // `name` is a name of directory `id` from now on: made, or renamed to. Clients need not look it up to use it.
  void directory_named(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id);
  void opened(uint32_t thread_id, const void* handle, ObjectId id, uint64_t size_bytes, int64_t now_ns);
  void read(const void* handle, ObjectId id, uint64_t offset, uint64_t length, int64_t now_ns);
  void closed(const void* handle, ObjectId id, int64_t now_ns);
  // An open that changed the object ends. Takes the lock only where a rename may be noted, for the listeners are to have that first.
  void written(ObjectId id, uint64_t size_bytes) {
    if (notes_count_.load(std::memory_order_relaxed) > 0) catch_up();
    for (AccessListener* listener : listeners_) listener->written(id, size_bytes);
  }
  ChainOrigin created(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, int64_t now_ns);
  // Between hold() and release() the listeners are told later: the caller has the lock of the names.
  void published(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, ChainOrigin& origin, uint64_t size_bytes);
  // Returns the order in which to lay out bodies that are sealed together, and learns it as write order.
  std::vector<ObjectId> lay_out(const std::vector<LayoutItem>& items);

  struct Loaded {
    ObjectId id;
    uint64_t bytes = 0;
    int64_t begun_ns = 0;  // when its read began
  };
  void loaded(std::span<const Loaded> bodies, int64_t now_ns);
  void skipped(ObjectId id, SkipReason reason);
  void left_ram(ObjectId id);
  void deleted(ObjectId id);
  bool about_to_be_used(ObjectId id);
  Plan plan(int64_t now_ns, uint64_t free_bytes);
  std::optional<int64_t> deadline();  // when to call plan() although nothing happens
  std::vector<SuccessorsRecord> changed_rows(size_t most);
  std::vector<SuccessorsRecord> changed_rows_of(std::span<const ObjectId> ids);
  void not_kept(std::span<const SuccessorsRecord> rows);  // these rows were not persisted: they count as changed again
  PrefetchTotals totals();
  ChainsSummary summary(int64_t now_ns);
  std::optional<SuccessorsRecord> neighbours(ObjectId id);

 private:
  struct Report {
    enum class Of : uint8_t { kProbe, kOpen, kRead, kPublish } of = Of::kProbe;
    ObjectId id;
    int64_t now_ns = 0;
    uint32_t thread_id = 0;
    bool directory = false;
    ObjectId parent{};
    std::string_view name{};
    const void* handle = nullptr;
    uint64_t offset = 0, bytes = 0;  // bytes: of the body, or of the read
  };
  struct Note {  // a report that is to be worked off
    Report report;
    std::string name;
  };
  using Lock = std::unique_lock<Mutex<LockRank::kAccesses>>;
  void take(const Report& report);
  bool note(const Report& report);
  Lock lock_up_to_date();

  // Caller holds mutex_.
  void work_off();
  void learn(const Report& report);
  NameStem stem_of(ObjectId parent, std::string_view name, ChainKey key);
  void remember_directory(ObjectId parent, std::string_view name, ObjectId id);
  void pass_on_announcement(ObjectId parent, ChainKey key, ObjectId id);
  void kick_if_wanted(Lock& lock);

  std::function<void()> kick_;
  std::vector<AccessListener*> listeners_;
  Mutex<LockRank::kAccesses> mutex_;
  Chains chains_;
  StemMemory directory_stems_;
  StemMemory file_stems_;  // of files probed, created or opened lately
  // The stems of the last names: a chunk's name is probed, found absent and stored within a moment.
  struct Stemmed {
    ChainKey key;
    NameStem directory, stem;
  };
  static constexpr size_t kStemmed = 64;
  std::array<Stemmed, kStemmed> stemmed_{};
  // Directories whose names were announced, until a file is published in them: a client that asks for a path stops at the first
  // absent directory, and never asks for the file's name.
  std::unordered_map<ObjectId, ChainKey> announced_directories_;
  uint64_t arrivals_ = 0;
  std::vector<Note> working_off_;

  LeafMutex notes_mutex_;  // guards:
  std::vector<Note> notes_;  // the first notes_count_; the others are kept for their memory
  std::atomic<size_t> notes_count_{0};  // written with notes_mutex_ held
};

}  // namespace kvcachefs
