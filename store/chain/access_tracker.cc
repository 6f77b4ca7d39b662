#include "store/chain/access_tracker.h"

#include <algorithm>
#include <utility>

#include "store/base/units.h"
#include "store/chain/sidecar.h"

namespace kvcachefs {

namespace {
constexpr size_t kRowsAtOnce = 512;  // per lock, because clients wait for it
constexpr size_t kLinksAtOnce = 256;
constexpr size_t kMostAnnouncedDirectories = 16384;
constexpr size_t kMostNotes = 256;  // a request makes one or two

// The tracker that this thread holds: between hold() and release().
constinit thread_local const void* held = nullptr;
// This thread has noted something since its last settle(). Another call may have worked it off since, and told nobody that plan() has work.
constinit thread_local bool noted = false;

ChainsOptions chains_options(uint64_t ahead_bytes, uint64_t total_bytes) {
  ChainsOptions options;
  options.planner.ahead_max_bytes = ahead_bytes;
  options.planner.total_max_bytes = total_bytes;
  options.planner.max_loads_per_plan = 8;  // the lock is held during a plan
  // With little memory for bodies the table is small as well (invariant 10 bounds the whole process); rows that it drops are read from the index.
  options.successor_memory_bytes = std::clamp<size_t>(total_bytes / 2, 8 * kMiB, options.successor_memory_bytes);
  return options;
}
}  // namespace

AccessTracker::AccessTracker(FindRow find_row, uint64_t ahead_bytes, uint64_t total_bytes)
    : chains_(chains_options(ahead_bytes, total_bytes),
              [find_row = std::move(find_row)](ObjectId id) -> std::optional<SuccessorRow> {
                const std::optional<SuccessorsRecord> row = find_row(id);
                if (!row) return std::nullopt;
                return from_record(*row);
              }) {
  chains_.set_ahead_max_bytes(ahead_bytes);
}

void AccessTracker::set_ahead_bytes(uint64_t bytes, uint64_t total_bytes) {
  std::lock_guard lock(mutex_);
  chains_.set_total_max_bytes(total_bytes);
  chains_.set_ahead_max_bytes(bytes);
}

// --- notes ---

void AccessTracker::hold() { held = this; }
void AccessTracker::release() { held = nullptr; }

void AccessTracker::settle() {
  release();
  if (!std::exchange(noted, false) && notes_count_.load(std::memory_order_relaxed) == 0) return;
  Lock lock = lock_up_to_date();
  kick_if_wanted(lock);
}

void AccessTracker::take(const Report& report) {
  if (note(report)) return;
  Lock lock = lock_up_to_date();
  learn(report);
  kick_if_wanted(lock);
}

// Returns false if this thread does not hold, or there are too many notes: then the report is to be worked off at once.
bool AccessTracker::note(const Report& report) {
  if (held != this) return false;
  std::lock_guard lock(notes_mutex_);
  const size_t count = notes_count_.load(std::memory_order_relaxed);
  if (count == kMostNotes) return false;
  if (count == notes_.size()) notes_.emplace_back();
  notes_[count].report = report;
  notes_[count].name = report.name;
  notes_count_.store(count + 1, std::memory_order_relaxed);
  noted = true;
  return true;
}

AccessTracker::Lock AccessTracker::lock_up_to_date() {
  Lock lock(mutex_);
  work_off();
  return lock;
}

void AccessTracker::catch_up() { lock_up_to_date(); }

void AccessTracker::work_off() {
  while (notes_count_.load(std::memory_order_relaxed) > 0) {
    size_t count = 0;
    {
      std::lock_guard lock(notes_mutex_);
      notes_.swap(working_off_);
      count = notes_count_.exchange(0, std::memory_order_relaxed);
    }
    for (Note& note : std::span(working_off_).first(count)) {
      note.report.name = note.name;
      learn(note.report);
    }
  }
}

// Listeners are told under mutex_ here, so that they learn in the order of the reports.
void AccessTracker::learn(const Report& report) {
  const auto handle = reinterpret_cast<uint64_t>(report.handle);
  switch (report.of) {
    case Report::Of::kProbe: {
      for (AccessListener* listener : listeners_) {
        if (report.directory) listener->directory_named(report.parent, report.name, report.id);
        else listener->probed(report.thread_id, report.parent, report.name, report.id, report.bytes);
      }
      if (report.directory) return remember_directory(report.parent, report.name, report.id);
      const ChainKey key = chain_key(report.parent, report.name);
      const NameStem stem = stem_of(report.parent, report.name, key);
      if (report.id.valid()) file_stems_.remember(report.id, stem);
      return chains_.on_probe(report.thread_id, stem, key, report.id, report.bytes, report.now_ns);
    }
    case Report::Of::kOpen: {
      for (AccessListener* listener : listeners_) listener->opened(report.id, report.bytes);
      const NameStem stem = file_stems_.find(report.id).value_or(kRootStem);
      return chains_.on_open(report.thread_id, stem, handle, report.id, report.bytes, report.now_ns);
    }
    case Report::Of::kRead: return chains_.on_read(handle, report.id, report.offset, report.bytes, report.now_ns);
    case Report::Of::kPublish:
      for (AccessListener* listener : listeners_)
        listener->published(report.thread_id, report.parent, report.name, report.id, report.bytes);
  }
}

void AccessTracker::kick_if_wanted(Lock& lock) {
  const bool wanted = chains_.wants_plan();
  lock.unlock();
  if (wanted && kick_) kick_();
}

NameStem AccessTracker::stem_of(ObjectId parent, std::string_view name, ChainKey key) {
  const NameStem directory = directory_stems_.find(parent).value_or(kRootStem);
  Stemmed& known = stemmed_[key.value % kStemmed];
  if (known.key != key || known.directory != directory) known = {key, directory, file_stem(directory, name)};
  return known.stem;
}

void AccessTracker::remember_directory(ObjectId parent, std::string_view name, ObjectId id) {
  directory_stems_.remember(id, directory_stem(directory_stems_.find(parent).value_or(kRootStem), name));
}

void AccessTracker::directory_named(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id) {
  const Lock lock = lock_up_to_date();
  for (AccessListener* listener : listeners_) listener->directory_named(parent, name, id);
  const ChainKey key = chain_key(parent, name);
  chains_.on_made(thread_id, stem_of(parent, name, key), key);
  remember_directory(parent, name, id);
  pass_on_announcement(parent, key, id);
}

// A directory's announced position passes to the first file in it, or to the first directory in it.
void AccessTracker::pass_on_announcement(ObjectId parent, ChainKey key, ObjectId id) {
  if (!chains_.announced(key)) {
    const auto of_parent = announced_directories_.extract(parent);
    if (of_parent.empty()) return;
    key = of_parent.mapped();
  }
  if (announced_directories_.size() >= kMostAnnouncedDirectories) announced_directories_.clear();
  announced_directories_.insert_or_assign(id, key);
}

void AccessTracker::probed(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, bool directory,
                           uint64_t size_bytes, int64_t now_ns) {
  Report report{Report::Of::kProbe, id, now_ns};
  report.thread_id = thread_id;
  report.parent = parent;
  report.name = name;
  report.directory = directory;
  report.bytes = size_bytes;
  take(report);
}

void AccessTracker::opened(uint32_t thread_id, const void* handle, ObjectId id, uint64_t size_bytes, int64_t now_ns) {
  Report report{Report::Of::kOpen, id, now_ns};
  report.thread_id = thread_id;
  report.handle = handle;
  report.bytes = size_bytes;
  take(report);
}

void AccessTracker::read(const void* handle, ObjectId id, uint64_t offset, uint64_t length, int64_t now_ns) {
  Report report{Report::Of::kRead, id, now_ns};
  report.handle = handle;
  report.offset = offset;
  report.bytes = length;
  take(report);
}

void AccessTracker::closed(const void* handle, ObjectId id, int64_t now_ns) {
  Lock lock = lock_up_to_date();
  chains_.on_close(reinterpret_cast<uint64_t>(handle), id, now_ns);
  kick_if_wanted(lock);
}

ChainOrigin AccessTracker::created(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, int64_t now_ns) {
  const Lock lock = lock_up_to_date();
  for (AccessListener* listener : listeners_) listener->created(parent, name, id);
  ChainOrigin origin;
  origin.key = chain_key(parent, name);
  const NameStem stem = stem_of(parent, name, origin.key);
  file_stems_.remember(id, stem);
  origin.stem = stem.stem;
  chains_.on_made(thread_id, stem, origin.key);
  origin.sequence = chains_.on_create(thread_id, stem, now_ns);
  origin.arrival = ++arrivals_;
  origin.announced = chains_.announced(origin.key);
  return origin;
}

void AccessTracker::published(uint32_t thread_id, ObjectId parent, std::string_view name, ObjectId id, ChainOrigin& origin,
                              uint64_t size_bytes) {
  {
    const Lock lock = lock_up_to_date();
    origin.key = chain_key(parent, name);
    const NameStem stem = stem_of(parent, name, origin.key);
    file_stems_.remember(id, stem);
    origin.stem = stem.stem;
    chains_.on_made(thread_id, stem, origin.key);
    if (!chains_.announced(origin.key) && body_of_sidecar(name).empty()) {
      if (const auto of_parent = announced_directories_.extract(parent); !of_parent.empty()) origin.key = of_parent.mapped();
    }
    chains_.on_publish(origin.key, stem, id);
  }
  Report report{Report::Of::kPublish, id};
  report.thread_id = thread_id;
  report.parent = parent;
  report.name = name;
  report.bytes = size_bytes;
  if (note(report)) return;
  const Lock lock = lock_up_to_date();
  learn(report);
}

std::vector<ObjectId> AccessTracker::lay_out(const std::vector<LayoutItem>& items) {
  Lock lock = lock_up_to_date();
  LayoutOrder laid = chains_.order_of(items);
  lock.unlock();
  for (std::span<const std::pair<ObjectId, ObjectId>> links = laid.write_links; !links.empty();) {
    const size_t count = std::min(kLinksAtOnce, links.size());
    lock.lock();
    chains_.learn(links.first(count));
    lock.unlock();
    links = links.subspan(count);
  }
  return std::move(laid.order);
}

void AccessTracker::loaded(std::span<const Loaded> bodies, int64_t now_ns) {
  Lock lock = lock_up_to_date();
  for (AccessListener* listener : listeners_)
    for (const Loaded& body : bodies) listener->loaded_ahead(body.id);
  for (const Loaded& body : bodies) chains_.on_loaded(body.id, body.bytes, now_ns - body.begun_ns, now_ns);
  kick_if_wanted(lock);
}

void AccessTracker::skipped(ObjectId id, SkipReason reason) {
  const Lock lock = lock_up_to_date();
  chains_.on_skipped(id, reason);
}

void AccessTracker::left_ram(ObjectId id) {
  const Lock lock = lock_up_to_date();
  chains_.on_removed(id);
}

void AccessTracker::deleted(ObjectId id) {
  const Lock lock = lock_up_to_date();
  for (AccessListener* listener : listeners_) listener->deleted(id);
  chains_.on_deleted(id);
  file_stems_.erase(id);
  announced_directories_.erase(id);
}

bool AccessTracker::about_to_be_used(ObjectId id) {
  const Lock lock = lock_up_to_date();
  return chains_.about_to_be_used(id);
}

Plan AccessTracker::plan(int64_t now_ns, uint64_t free_bytes) {
  const Lock lock = lock_up_to_date();
  return chains_.plan(now_ns, free_bytes);
}

std::optional<int64_t> AccessTracker::deadline() {
  const Lock lock = lock_up_to_date();
  return chains_.deadline();
}

std::vector<SuccessorsRecord> AccessTracker::changed_rows_of(std::span<const ObjectId> ids) {
  std::vector<SuccessorsRecord> records;
  for (; !ids.empty(); ids = ids.subspan(std::min(kRowsAtOnce, ids.size()))) {
    Lock lock = lock_up_to_date();
    const auto rows = chains_.drain_dirty_of(ids.first(std::min(kRowsAtOnce, ids.size())));
    lock.unlock();
    for (const auto& [id, row] : rows) records.push_back(to_record(id, row));
  }
  return records;
}

void AccessTracker::not_kept(std::span<const SuccessorsRecord> rows) {
  for (; !rows.empty(); rows = rows.subspan(std::min(kRowsAtOnce, rows.size()))) {
    const Lock lock = lock_up_to_date();
    for (const SuccessorsRecord& row : rows.first(std::min(kRowsAtOnce, rows.size())))
      chains_.keep_dirty(row.id, from_record(row));
  }
}

std::vector<SuccessorsRecord> AccessTracker::changed_rows(size_t most) {
  std::vector<SuccessorsRecord> records;
  while (records.size() < most) {
    const size_t wanted = std::min(kRowsAtOnce, most - records.size());
    Lock lock = lock_up_to_date();
    const auto rows = chains_.drain_dirty(wanted);
    lock.unlock();
    for (const auto& [id, row] : rows) records.push_back(to_record(id, row));
    if (rows.size() < wanted) break;
  }
  return records;
}

PrefetchTotals AccessTracker::totals() {
  const Lock lock = lock_up_to_date();
  return chains_.totals();
}

ChainsSummary AccessTracker::summary(int64_t now_ns) {
  const Lock lock = lock_up_to_date();
  return chains_.summary(now_ns);
}

std::optional<SuccessorsRecord> AccessTracker::neighbours(ObjectId id) {
  const Lock lock = lock_up_to_date();
  auto row = chains_.row(id);
  if (!row) return std::nullopt;
  return to_record(id, *row);
}

}  // namespace kvcachefs
