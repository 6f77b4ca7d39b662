#include "store/load/loader.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/volume_error.h"

namespace kvcachefs {

namespace {
constexpr size_t kUnitsPerRequest = 4;  // 1 MiB reads: several in flight are faster than one large one

// Marks the units of jobs as coming, under the lock of the object; the destructor takes the marks back unless `stay` is set.
struct LoadingMarks {
  Object& object;
  std::span<const LoadJobPtr> jobs;
  bool stay = false;
  template <class Each>
  void for_each(Each each) {
    for (const LoadJobPtr& job : jobs)
      for (size_t unit = 0; unit < job->blocks.size(); ++unit) each(job->first + unit);
  }
  ~LoadingMarks() {
    if (!stay) for_each([this](size_t index) { object.loading.erase(index); });
  }
};
}  // namespace

// --- planning a load ---

bool Loader::plan(const ObjectPtr& object, LoadRange range, LoadMemory& memory, const std::shared_ptr<LoadWaiter>& waiter, bool urgent,
                  LoadJobs& jobs) {
  const auto lock = object->lock();
  if (object->forgotten) {  // since the caller got it: readers would not find units that are loaded into it
    waiter->open.fetch_add(1);
    waiter->finish_one(fail(Code::kStale, fmt::format("object {} was forgotten as idle", object->id.value)));
    return true;
  }
  auto fresh = [&](size_t index) { return object->needs_load(index) && !object->loading.contains(index); };
  auto spilled_unit = [&](size_t index) {
    Unit* unit = object->unit_or_null(index);
    return unit != nullptr && unit->spilled ? unit : nullptr;
  };
  auto stored_bytes = [&](size_t index) {
    const Unit* unit = spilled_unit(index);
    return unit != nullptr ? unit->spill_bytes : static_cast<uint32_t>(unit_length(object->base.size_bytes, index));
  };
  auto block_for = [&](size_t index) {
    return MemoryPool::block_bytes(std::max<uint64_t>(stored_bytes(index), unit_length(object->size_bytes, index)));
  };
  auto none_here = [&] {
    return object->loading.empty() && !object->memory_file && !object->spill &&
           !object->any_in_ram();
  };
  bool lacks_some = false;
  for (size_t index = range.first; index < range.last && !lacks_some; ++index) lacks_some = fresh(index);
  // A body that is read from its start will probably be read as a whole.
  if (lacks_some && range.first == 0 && parts_.files.loads_into_files() && parts_.files.takes(object->size_bytes) && none_here())
    object->expected_bytes = object->size_bytes;
  if (lacks_some && object->lacks_file_memory(range.first, range.last, memory.file)) return false;
  auto in_file = [&](size_t index) { return object->memory_file && object->memory_file->offers(index); };
  memory.needed = 0;
  for (size_t index = range.first; index < range.last; ++index)
    if (fresh(index) && !in_file(index)) memory.needed += block_for(index);
  if (memory.needed > memory.blocks.bytes()) return false;
  if (memory.pin != nullptr) memory.pin->hold(object, range.first, range.wanted);
  const size_t jobs_before = jobs.size();
  for (size_t index = range.first; index < range.last; ++index) {
    if (fresh(index)) {
      const Unit* unit = spilled_unit(index);
      const bool spilled = unit != nullptr;
      const bool extend = jobs.size() > jobs_before && jobs.back()->spilled == spilled &&
                          jobs.back()->first + jobs.back()->blocks.size() == index &&
                          jobs.back()->lengths.back() == kUnitBytes &&  // of a spilled unit only the beginning may lie there
                          jobs.back()->blocks.size() < kUnitsPerRequest && index != range.wanted;
      if (!extend) {
        auto job = std::make_shared<LoadJob>();
        job->object = object;
        job->base_version = object->base.version;
        job->spilled = spilled;
        job->urgent = urgent;
        job->place = spilled ? Place{PlaceKind::kSolo, object->spill_extent, 0, 0} : object->base.place;
        job->file = spilled ? object->spill : nullptr;
        job->first = index;
        jobs.push_back(std::move(job));
      }
      LoadJob& job = *jobs.back();
      job.lengths.push_back(stored_bytes(index));
      job.checksums.push_back(spilled ? unit->spill_checksum
                                      : index < object->base.checksums.size() ? object->base.checksums[index] : 0);
      BlockPtr block = object->memory_file ? MemoryFile::make_block(object->memory_file, index) : nullptr;
      job.blocks.push_back(block ? std::move(block) : memory.blocks.make_block(block_for(index)));
    }
  }
  // The units are marked as coming only now that everything is allocated. If something throws all the same, no mark is left: no read would
  // come for it.
  LoadingMarks marks{*object, std::span<const LoadJobPtr>(jobs).subspan(jobs_before)};
  marks.for_each([&](size_t index) { object->loading[index]; });
  for (size_t index = range.first; index < std::min(range.last, range.wanted); ++index)
    if (auto loading = object->loading.find(index); loading != object->loading.end()) {
      waiter->open.fetch_add(1);
      loading->second.push_back([waiter](Status status) { waiter->finish_one(std::move(status)); });
    }
  for (size_t i = jobs_before; i < jobs.size(); ++i) jobs[i]->loading = LoadingBytes(loading_bytes_, jobs[i]->memory_bytes());
  marks.stay = true;
  return true;
}

bool Loader::get_memory(LoadMemory& memory) {
  if (memory.who == MemoryFor::kReadAhead && !parts_.cache.nobody_waits()) return false;
  memory.blocks = Reservation();  // released first, or its bytes would count twice
  if (memory.file.wanted) return parts_.cache.get_file(memory.file, memory.who);
  memory.blocks = parts_.cache.reserve(memory.needed, memory.who);
  return memory.blocks.bytes() > 0;
}

bool Loader::start(const ObjectPtr& object, LoadRange range, MemoryFor who, const std::shared_ptr<LoadWaiter>& waiter, WantedUnits* pin,
                   MemoryWaiters::Try& attempt) {
  LoadJobs jobs;
  LoadMemory memory;
  memory.who = who;
  memory.pin = pin;
  if (!attempt.may_take || !parts_.cache.nobody_waits()) range.last = range.wanted;
  while (!plan(object, range, memory, waiter, true, jobs)) {
    if (!attempt.may_take) return false;
    if (get_memory(memory)) continue;
    const bool refused_before = std::exchange(memory.file.refused, true);
    if (range.reads_ahead() || !refused_before) {
      range.last = range.wanted;  // without reading ahead, and from blocks
      continue;
    }
    drop_unused_file(*object);
    attempt.lacks_bytes = memory.needed;
    return false;
  }
  submit(std::move(jobs));
  return true;
}

void Loader::load(const ObjectPtr& object, LoadRange range, MemoryFor who, std::shared_ptr<WantedUnits> pin, StatusCompletion done) {
  auto waiter = std::make_shared<LoadWaiter>();
  waiter->done = std::move(done);
  MemoryWaiters::Try now{.may_take = parts_.cache.may_take(who)};
  if (start(object, range, who, waiter, pin.get(), now)) return waiter->finish_one({});
  // Memory has to come back first. The request keeps its turn until there is enough.
  range.last = range.wanted;
  parts_.cache.wait(who, object->id, now.lacks_bytes, [this, object, range, who, waiter, pin](MemoryWaiters::Try& attempt) {
    if (!start(object, range, who, waiter, pin.get(), attempt)) return false;
    waiter->finish_one({});
    return true;
  }, [waiter, who](Error why) {
    if (who != MemoryFor::kWriter) why.code = Code::kIo;  // a reader must not get an error about room
    waiter->finish_one(std::unexpected(std::move(why)));
  });
}

// --- the reads ---

namespace {
// Bodies of several readers come mixed: puts the jobs of each file together, in the order of their offsets, where its first job was.
void bring_neighbours_together(LoadJobs& jobs) {
  if (jobs.size() < 2) return;  // most demand reads
  std::unordered_map<const File*, size_t> first;  // where the file first comes
  for (const auto& job : jobs) first.try_emplace(job->file.get(), first.size());
  std::stable_sort(jobs.begin(), jobs.end(), [&](const auto& a, const auto& b) {
    return std::pair(first.at(a->file.get()), a->offset()) < std::pair(first.at(b->file.get()), b->offset());
  });
}
}  // namespace

// Leaves in `jobs` those whose file is open. The others have ended, or are in `to_open` because this thread must not block.
void Loader::open_files(LoadJobs& jobs, LoadJobs& to_open) {
  LoadJobs ready;
  for (LoadJobPtr& job : jobs) {
    if (job->place.kind == PlaceKind::kInline) {
      read_inline(std::move(job));
      continue;
    }
    if (!job->file && parts_.opener.is_needed_here()) {
      job->file = parts_.extents.cached(job->place.extent);
      if (!job->file) {
        to_open.push_back(std::move(job));
        continue;
      }
    }
    if (!job->file) {
      auto file = parts_.extents.open(job->place.extent, job->place.kind);
      if (!file) {
        finish(std::move(job), std::unexpected(std::move(file).error()));
        continue;
      }
      job->file = *file;
    }
    ready.push_back(std::move(job));
  }
  jobs = std::move(ready);
}

void Loader::submit(LoadJobs jobs) {
  constexpr uint64_t kReadBytes = kUnitsPerRequest * kUnitBytes;
  LoadJobs to_open;
  open_files(jobs, to_open);
  if (!to_open.empty()) parts_.opener.run([this, to_open = std::move(to_open)]() mutable { submit(std::move(to_open)); });
  bring_neighbours_together(jobs);
  std::vector<IoRequest> requests;
  for (size_t i = 0; i < jobs.size();) {
    IoRequest request;
    request.file = jobs[i]->file;
    request.offset = jobs[i]->offset();
    request.urgent = jobs[i]->urgent;
    LoadJobs together;
    uint64_t bytes = 0;
    do {
      const LoadJob& job = *jobs[i];
      for (size_t unit = 0; unit < job.blocks.size(); ++unit)
        request.pieces.push_back(job.blocks[unit]->bytes().first(align_up(job.lengths[unit], kBlockBytes)));
      bytes += job.padded_bytes();
      together.push_back(std::move(jobs[i]));
      ++i;
    } while (i < jobs.size() && jobs[i]->file == request.file && jobs[i]->offset() == request.offset + bytes &&
             bytes + jobs[i]->padded_bytes() <= kReadBytes);
    request.done = [this, together = std::move(together)](Result<size_t> result) mutable {
      const MustNotBlock completing;
      // One bad place fails the read of its neighbours too, so each is read by itself. That does not help if the descriptor is dead.
      if (!result && together.size() > 1 && result.error().code != Code::kStale) {
        for (auto& job : together) submit({std::move(job)});
        return;
      }
      auto read = std::make_unique<ArrivedRead>(std::move(together), std::move(result), parts_.clock.monotonic_ns());
      if (arrivals_ != nullptr) return arrivals_->arrived(std::move(read));
      while (!read->all_taken_in()) take_in_next(*read);
    };
    requests.push_back(std::move(request));
  }
  if (!requests.empty()) parts_.volume.submit(std::move(requests));
}

void Loader::take_in_next(ArrivedRead& read) {
  const MustNotBlock completing;  // a thread of the volume, or one that helps
  LoadJobPtr job = std::move(read.jobs[read.next++]);
  const uint64_t before = read.before_bytes, padded = job->padded_bytes();
  read.before_bytes += padded;
  if (!read.result) return finish(std::move(job), std::unexpected(read.result.error()));
  const uint64_t got = *read.result > before ? std::min<uint64_t>(*read.result - before, padded) : 0;
  finish(std::move(job), static_cast<size_t>(got));
}

void Loader::read_inline(LoadJobPtr job) {
  auto lock = job->object->lock();
  const Bytes bytes = job->object->base.inline_bytes;
  lock.unlock();
  size_t total = 0;
  for (size_t i = 0; i < job->blocks.size(); ++i) {
    const size_t start = std::min<size_t>((job->first + i) * kUnitBytes, bytes.size());
    const size_t length = std::min<size_t>(job->lengths[i], bytes.size() - start);
    if (length > 0) std::memcpy(job->blocks[i]->data(), bytes.data() + start, length);  // the body may be another by now
    total += align_up(length, kBlockBytes);
  }
  finish(std::move(job), total);
}

// --- taking reads in ---

// Takes the callers that wait for the units of the job; the units are not marked as coming any more. The object is locked.
Loader::Waiting Loader::take_waiting(const LoadJob& job) {
  Waiting waiting;
  auto& loading = job.object->loading;
  for (size_t i = 0; i < job.blocks.size(); ++i) {
    const auto at = loading.find(job.first + i);
    if (at == loading.end()) continue;
    std::move(at->second.begin(), at->second.end(), std::back_inserter(waiting));
    loading.erase(at);
  }
  return waiting;
}

void Loader::note_failed(const LoadJob& job, const Status& status) {
  parts_.counters.errors_volume_read.fetch_add(1, std::memory_order_relaxed);
  log::error("object {}: {}", job.object->id.value, status.error().message);
}

// `goes`: the object was removed while reads of it were under way, and this was the last one.
void Loader::settle(const LoadJobPtr& job, bool goes, Waiting waiting, const Status& status) {
  parts_.cache.note_clean(job->object);  // even if it has no bytes, so that it is forgotten in its turn
  // On a thread that may wait for the lock of the Tree.
  if (parts_.cache.has_too_many_xattrs()) parts_.later.add([this] { parts_.cache.trim_xattrs(); });
  if (goes) parts_.later.add([this, object = job->object] { parts_.tree.forget_when_idle(object); });
  parts_.cache.note_arrival();
  for (auto& each : waiting) each(status);
}

void Loader::finish(LoadJobPtr job, Result<size_t> result) {
  Status status;
  bool look_again = false;
  if (result) {
    if (job->place.kind != PlaceKind::kInline) parts_.counters.read_bytes_from_volume.fetch_add(*result, std::memory_order_relaxed);
    status = job->check(*result, job->file.get());
    look_again = !status && job->place.kind != PlaceKind::kInline;  // a cache may have been wrong
  } else {
    status = std::unexpected(std::move(result).error());
    // On a network volume a descriptor can die while the file lives: the next read opens it anew.
    if (!job->spilled && job->place.kind != PlaceKind::kInline) {
      parts_.extents.close_cached(job->place.extent);
      look_again = status.error().code == Code::kStale || status.error().code == Code::kNotFound;
    }
  }
  if (look_again) return parts_.later.add([this, job] { second_look(job); });  // through a fresh descriptor, off this thread
  job->ahead.release();
  job->loading.release();
  Waiting waiting;
  bool superseded = false, goes = false;
  {
    const auto lock = job->object->lock();
    Object& object = *job->object;
    if (!status) object.memory_file.reset();
    waiting = take_waiting(*job);
    for (size_t i = 0; i < job->blocks.size(); ++i) {
      const size_t index = job->first + i;
      if (job->is_superseded(i))
        superseded = true;
      else if (status && object.needs_load(index))
        object.place_loaded(index, std::move(job->blocks[i]), job->lengths[i], job->spilled);
    }
    goes = object.loading.empty() && std::exchange(object.goes_when_loaded, false);
  }
  if (!status && !superseded) note_failed(*job, status);
  settle(job, goes, std::move(waiting), superseded ? Status{} : status_of_volume(std::move(status)));  // superseded: the callers try again with the present body
}

// Reads the job's bytes again, through a descriptor that no cache knows. Returns how many bytes came.
Result<size_t> Loader::read_again(LoadJob& job, FilePtr& file) {
  file = job.file;
  if (!job.spilled) {
    KVC_ASSIGN(file, parts_.extents.open_fresh(job.place.extent, job.place.kind));
  }
  size_t total = 0;
  uint64_t offset = job.offset();
  for (size_t i = 0; i < job.blocks.size(); ++i) {
    const auto piece = job.blocks[i]->bytes().first(std::min<size_t>(align_up(job.lengths[i], kBlockBytes), job.blocks[i]->capacity_bytes()));
    KVC_ASSIGN(const size_t got, file->read(piece, offset));
    total += got;
    offset += piece.size();
  }
  return total;
}

namespace {
// Its node may have given the space back: no damage.
bool is_given_up(const Object& object) {
  const auto lock = object.lock();
  return object.id.is_foreign() && (object.outdated.load().valid() || object.nlink == 0);
}

bool is_gone_or_bad(const Status& status) { return !status && (status.error().code == Code::kCorrupt || status.error().code == Code::kNotFound); }
}  // namespace

// Reads once more bytes that did not match or failed, or were not found. If that does not help, the callers get an error, or the body goes into quarantine.
// Of another node's body, what that node wrote is read before it is judged: usually that node gave the place back a moment ago.
// Blocks on the volume.
void Loader::second_look(const LoadJobPtr& job) {
  const auto is_superseded = [&] {
    const auto lock = job->object->lock();
    for (size_t i = 0; i < job->blocks.size(); ++i)
      if (job->is_superseded(i)) return true;
    return false;
  };
  bool superseded = is_superseded();
  Status status;
  if (!superseded) {
    FilePtr file;
    const auto got = read_again(*job, file);
    status = got ? job->check(*got, file.get()) : Status(std::unexpected(got.error()));
  }
  if (!status && !superseded) superseded = is_superseded();  // meanwhile
  if (status && !superseded) return finish(job, job->padded_bytes());
  const bool may_be_given_up = !superseded && is_gone_or_bad(status) && job->object->id.is_foreign() && !is_given_up(*job->object);
  if (may_be_given_up && parts_.read_peers && !std::exchange(job->peers_were_read, true))
    return parts_.read_peers([this, job] { parts_.later.add([this, job] { second_look(job); }); });
  if (!superseded && is_gone_or_bad(status) && is_given_up(*job->object)) {
    log::debug("object {}, which its node has replaced or removed, cannot be read any more: {}", job->object->id.value, status.error().message);
    status = fail(Code::kIo, fmt::format("object {} was replaced or removed by its node, and its bytes are gone", job->object->id.value));
  } else if (!superseded && status.error().code == Code::kCorrupt) {
    parts_.counters.errors_checksum.fetch_add(1, std::memory_order_relaxed);
    if (!job->spilled) parts_.quarantine.put(job->object, job->base_version, status.error().message);
  } else if (!superseded) {
    note_failed(*job, status);
    const bool is_gone = status.error().code == Code::kNotFound && !job->spilled && parts_.extents.was_removed(job->place.extent, job->place.kind);
    if (is_gone) parts_.quarantine.put_missing(job->object, job->base_version, status.error().message);
  }
  // Superseded: the waiting callers try again with the new base. Bad: they get the error.
  Waiting waiting;
  bool goes = false;
  {
    const auto lock = job->object->lock();
    waiting = take_waiting(*job);
    goes = job->object->loading.empty() && std::exchange(job->object->goes_when_loaded, false);
  }
  settle(job, goes, std::move(waiting), superseded ? Status{} : status_of_volume(std::move(status)));
}

}  // namespace kvcachefs
