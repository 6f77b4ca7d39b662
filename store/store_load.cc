// Volume -> RAM, every byte verified before anybody sees it (invariant 2).
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/log.h"
#include "store/store_impl.h"
#include "store/store_load.h"

namespace kvcachefs {

namespace {
constexpr size_t kUnitsPerRequest = 4;  // 1 MiB reads: several in flight beat one large one
}  // namespace

constinit thread_local int MustNotBlock::depth_ = 0;

// What was read is not what is there now: the body was replaced, or its spilled unit written anew.
bool StoreImpl::LoadJob::is_superseded(size_t i) const {
  const Unit* unit = object->unit_or_null(first + i);
  if (unit != nullptr && unit->block) return true;  // perhaps newer, and on its way to the same place
  const bool now_spilled = unit != nullptr && unit->spilled;
  if (now_spilled != spilled) return true;
  if (!spilled) return object->base.version != base_version;
  return unit->spill_checksum != checksums[i] || unit->spill_bytes != lengths[i];
}

// The jobs that read the missing ones among units [first, last); `waiter` also counts those in [first, wanted) that are
// on their way already. False: `memory` does not suffice for what is not, and says what is lacking; nothing is done.
bool StoreImpl::make_jobs(const ObjectPtr& object, size_t first, size_t wanted, size_t last, LoadMemory& memory,
                          const std::shared_ptr<LoadWaiter>& waiter, bool urgent, std::vector<std::shared_ptr<LoadJob>>& jobs) {
  const auto lock = object->lock();
  if (object->forgotten) {  // since the caller got it: readers would not find what is loaded here
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
  for (size_t index = first; index < last && !lacks_some; ++index) lacks_some = fresh(index);
  // A body that is read from its start on will probably come as a whole.
  if (lacks_some && first == 0 && file_policy_->loads_into_files() && file_policy_->takes(object->size_bytes) && none_here())
    object->expected_bytes = object->size_bytes;
  if (lacks_some && object->lacks_file_memory(first, last, memory.file)) return false;
  auto in_file = [&](size_t index) { return object->memory_file && object->memory_file->offers(index); };
  memory.needed = 0;
  for (size_t index = first; index < last; ++index)
    if (fresh(index) && !in_file(index)) memory.needed += block_for(index);
  if (memory.needed > memory.blocks.bytes()) return false;
  if (memory.pin != nullptr) memory.pin->hold(object, first, wanted);
  const size_t jobs_before = jobs.size();
  for (size_t index = first; index < last; ++index) {
    if (fresh(index)) {
      const Unit* unit = spilled_unit(index);
      const bool spilled = unit != nullptr;
      const bool extend = jobs.size() > jobs_before && jobs.back()->spilled == spilled &&
                          jobs.back()->first + jobs.back()->blocks.size() == index &&
                          jobs.back()->lengths.back() == kUnitBytes &&  // of a spilled unit only the beginning may lie there
                          jobs.back()->blocks.size() < kUnitsPerRequest && index != wanted;
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
      object->loading[index];
    }
    if (index < wanted)
      if (auto loading = object->loading.find(index); loading != object->loading.end()) {
        waiter->open.fetch_add(1);
        loading->second.push_back([waiter](Status status) { waiter->finish_one(std::move(status)); });
      }
  }
  for (size_t i = jobs_before; i < jobs.size(); ++i) jobs[i]->loading = LoadingBytes(loading_bytes_, jobs[i]->memory_bytes());
  return true;
}

bool StoreImpl::get_load_memory(LoadMemory& memory) {
  if (memory.who == MemoryFor::kReadAhead && !resumer_.waiters().nobody_waits()) return false;
  memory.blocks = Reservation();  // or its bytes would count twice
  if (memory.file.wanted) return get_file_memory(memory.file, memory.who);
  memory.blocks = reserve_memory(memory.needed, memory.who);
  return memory.blocks.bytes() > 0;
}

// False: there is no memory for [first, wanted) now, or this try may not take any; nothing is held then.
bool StoreImpl::start_loads(const ObjectPtr& object, size_t first, size_t wanted, size_t last, MemoryFor who,
                            const std::shared_ptr<LoadWaiter>& waiter, WantedUnits* pin, MemoryWaiters::Try& attempt) {
  std::vector<std::shared_ptr<LoadJob>> jobs;
  LoadMemory memory;
  memory.who = who;
  memory.pin = pin;
  if (!attempt.may_take || !resumer_.waiters().nobody_waits()) last = wanted;
  while (!make_jobs(object, first, wanted, last, memory, waiter, true, jobs)) {
    if (!attempt.may_take) return false;
    if (get_load_memory(memory)) continue;
    const bool refused_before = std::exchange(memory.file.refused, true);
    if (last > wanted || !refused_before) {
      last = wanted;  // without reading ahead, and from blocks
      continue;
    }
    drop_unused_file(object);
    attempt.lacks_bytes = memory.needed;
    return false;
  }
  submit_loads(std::move(jobs));
  return true;
}

void StoreImpl::load_units(const ObjectPtr& object, size_t first, size_t wanted, size_t last, MemoryFor who,
                           std::shared_ptr<WantedUnits> pin, StatusCompletion done) {
  promote_ahead(object->id);
  resume_read_ahead();  // the answer comes later: nothing is gained by holding it
  auto waiter = std::make_shared<LoadWaiter>();
  waiter->done = std::move(done);
  MemoryWaiters::Try now{.may_take = may_take_memory(who)};
  if (start_loads(object, first, wanted, last, who, waiter, pin.get(), now)) return waiter->finish_one({});
  // Somebody has to give memory back first. Until there is enough it keeps its turn.
  wait_for_memory(who, object->id, now.lacks_bytes, [this, object, first, wanted, who, waiter, pin](MemoryWaiters::Try& attempt) {
    if (!start_loads(object, first, wanted, wanted, who, waiter, pin.get(), attempt)) return false;
    waiter->finish_one({});
    return true;
  });
}

namespace {
// Bodies of several readers come mixed: each file's are put in the order in which they lie, where its first one was.
template <typename Jobs>
void bring_neighbours_together(Jobs& jobs) {
  if (jobs.size() < 2) return;  // most demand reads
  std::unordered_map<const File*, size_t> first;  // where the file first comes
  for (const auto& job : jobs) first.try_emplace(job->file.get(), first.size());
  std::stable_sort(jobs.begin(), jobs.end(), [&](const auto& a, const auto& b) {
    return std::pair(first.at(a->file.get()), a->offset()) < std::pair(first.at(b->file.get()), b->offset());
  });
}
}  // namespace

// Jobs that lie next to each other in one file become one read: small bodies of one prefix lie so.
void StoreImpl::submit_loads(std::vector<std::shared_ptr<LoadJob>> jobs) {
  constexpr uint64_t kReadBytes = kUnitsPerRequest * kUnitBytes;
  std::vector<std::shared_ptr<LoadJob>> ready, to_open;
  for (auto& job : jobs) {
    if (job->place.kind == PlaceKind::kInline) {
      read_inline(std::move(job));
      continue;
    }
    if (!job->file && MustNotBlock::here() && opener_runs_.load(std::memory_order_relaxed)) {
      job->file = extents_->cached(job->place.extent);
      if (!job->file) {
        to_open.push_back(std::move(job));
        continue;
      }
    }
    if (!job->file) {
      auto file = extents_->open(job->place.extent, job->place.kind);
      if (!file) {
        finish_load(std::move(job), std::unexpected(std::move(file).error()));
        continue;
      }
      job->file = *file;
    }
    ready.push_back(std::move(job));
  }
  if (!to_open.empty()) may_block_elsewhere([this, to_open = std::move(to_open)]() mutable { submit_loads(std::move(to_open)); });
  bring_neighbours_together(ready);
  std::vector<IoRequest> requests;
  for (size_t i = 0; i < ready.size();) {
    IoRequest request;
    request.file = ready[i]->file;
    request.offset = ready[i]->offset();
    request.urgent = ready[i]->urgent;
    std::vector<std::shared_ptr<LoadJob>> together;
    uint64_t bytes = 0;
    do {
      const LoadJob& job = *ready[i];
      for (size_t unit = 0; unit < job.blocks.size(); ++unit)
        request.pieces.push_back(job.blocks[unit]->bytes().first(align_up(job.lengths[unit], kBlockBytes)));
      bytes += job.padded_bytes();
      together.push_back(std::move(ready[i]));
      ++i;
    } while (i < ready.size() && ready[i]->file == request.file && ready[i]->offset() == request.offset + bytes &&
             bytes + ready[i]->padded_bytes() <= kReadBytes);
    request.done = [this, together = std::move(together)](Result<size_t> result) mutable {
      const MustNotBlock completing;
      // One bad place spoils the read of its neighbours: each by itself. A dead descriptor is no better for that.
      if (!result && together.size() > 1 && result.error().code != Code::kStale) {
        for (auto& job : together) submit_loads({std::move(job)});
        return;
      }
      auto read = std::make_unique<ArrivedRead>(std::move(together), std::move(result), clock_.monotonic_ns());
      if (leave_to_helper(read)) return;
      Arrivals arrivals(*this, read->arrived_ns);  // of all these bodies
      while (read->next < read->jobs.size()) take_in_next(*read);
    };
    requests.push_back(std::move(request));
  }
  if (!requests.empty()) volume_->submit(std::move(requests));
}

void StoreImpl::take_in_next(ArrivedRead& read) {
  const MustNotBlock completing;  // or the thread that polls helps
  std::shared_ptr<LoadJob> job = std::move(read.jobs[read.next++]);
  const uint64_t before = read.before_bytes, padded = job->padded_bytes();
  read.before_bytes += padded;
  if (!read.result) return finish_load(std::move(job), std::unexpected(read.result.error()));
  const uint64_t got = *read.result > before ? std::min<uint64_t>(*read.result - before, padded) : 0;
  finish_load(std::move(job), static_cast<size_t>(got));
}

void StoreImpl::read_inline(std::shared_ptr<LoadJob> job) {
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
  finish_load(std::move(job), total);
}

Status StoreImpl::LoadJob::check(size_t bytes_read, const File* from) const {
  const auto unit = [&](size_t i) {
    return fmt::format("{}: unit {}", from != nullptr ? from->path() : "inline body", first + i);
  };
  size_t before = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const uint32_t length = lengths[i];
    if (bytes_read < before + length)
      return fail(Code::kCorrupt,
                  fmt::format("{} ends after {} of {} bytes", unit(i), bytes_read > before ? bytes_read - before : 0, length));
    if (checksum(blocks[i]->bytes().first(length)) != checksums[i])
      return fail(Code::kCorrupt, unit(i) + " does not match its checksum");
    before += align_up(length, kBlockBytes);
  }
  return {};
}

void StoreImpl::finish_load(std::shared_ptr<LoadJob> job, Result<size_t> result) {
  Status status;
  bool look_again = false;
  if (result) {
    if (job->place.kind != PlaceKind::kInline) counters_.read_bytes_from_volume.fetch_add(*result, std::memory_order_relaxed);
    status = job->check(*result, job->file.get());
    look_again = !status && job->place.kind != PlaceKind::kInline;  // perhaps the cache lied
  } else {
    status = std::unexpected(std::move(result).error());
    // On a network volume a descriptor can die while the file lives: whoever reads next opens it anew.
    if (!job->spilled && job->place.kind != PlaceKind::kInline) {
      extents_->close_cached(job->place.extent);
      look_again = status.error().code == Code::kStale;
    }
  }
  if (look_again) {  // through a fresh descriptor, off this thread
    keeper_work_.add([this, job] { second_look(job); });
    return;
  }
  job->ahead.release();
  job->loading.release();
  std::vector<std::move_only_function<void(Status)>> waiters;
  bool superseded = false, goes = false;
  {
    const auto lock = job->object->lock();
    Object& object = *job->object;
    if (!status) object.memory_file.reset();
    for (size_t i = 0; i < job->blocks.size(); ++i) {
      const size_t index = job->first + i;
      auto loading = object.loading.find(index);
      if (loading != object.loading.end()) {
        for (auto& waiting : loading->second) waiters.push_back(std::move(waiting));
        object.loading.erase(loading);
      }
      if (job->is_superseded(i))
        superseded = true;
      else if (status && object.needs_load(index))
        object.place_loaded(index, std::move(job->blocks[i]), job->lengths[i], job->spilled);
    }
    goes = object.loading.empty() && std::exchange(object.goes_when_loaded, false);
  }
  if (!status && !superseded) {
    counters_.errors_volume_read.fetch_add(1, std::memory_order_relaxed);
    log::error("object {}: {}", job->object->id.value, status.error().message);
  }
  clean_bodies_.add(job->object);  // also without bytes: so that it is forgotten in its turn
  if (goes) forget_later(job->object);
  resumer_.waiters().note_arrival();
  for (auto& waiting : waiters) waiting(superseded ? Status{} : status);  // superseded: they look at what is there now
}

void StoreImpl::second_look(std::shared_ptr<LoadJob> job) {
  const auto is_superseded = [&] {
    const auto lock = job->object->lock();
    for (size_t i = 0; i < job->blocks.size(); ++i)
      if (job->is_superseded(i)) return true;
    return false;
  };
  bool superseded = is_superseded();
  Status status;
  if (!superseded) {
    auto file = job->spilled ? Result<FilePtr>(job->file) : extents_->open_fresh(job->place.extent, job->place.kind);
    if (file) {
      size_t total = 0;
      uint64_t offset = job->place.offset + job->first * kUnitBytes;
      for (size_t i = 0; i < job->blocks.size() && status; ++i) {
        auto piece = job->blocks[i]->bytes().first(std::min<size_t>(align_up(job->lengths[i], kBlockBytes),
                                                                    job->blocks[i]->capacity_bytes()));
        auto got = (*file)->read(piece, offset);
        if (!got) {
          status = std::unexpected(std::move(got).error());
          break;
        }
        total += *got;
        offset += piece.size();
      }
      if (status) status = job->check(total, file->get());
    } else {
      status = std::unexpected(std::move(file).error());
    }
  }
  if (!status && !superseded) superseded = is_superseded();  // meanwhile
  if (status && !superseded) {
    size_t total = 0;
    for (uint32_t length : job->lengths) total += align_up(length, kBlockBytes);
    return finish_load(job, total);
  }
  if (!superseded && status.error().code == Code::kCorrupt) {
    counters_.errors_checksum.fetch_add(1, std::memory_order_relaxed);
    if (!job->spilled) quarantine(job->object, job->base_version, status.error().message);
  } else if (!superseded) {
    counters_.errors_volume_read.fetch_add(1, std::memory_order_relaxed);
    log::error("object {}: {}", job->object->id.value, status.error().message);
  }
  // Superseded: those who wait look at the new base. Bad: they get the error.
  std::vector<std::move_only_function<void(Status)>> waiters;
  bool goes = false;
  {
    const auto lock = job->object->lock();
    for (size_t i = 0; i < job->blocks.size(); ++i) {
      auto loading = job->object->loading.find(job->first + i);
      if (loading == job->object->loading.end()) continue;
      for (auto& waiting : loading->second) waiters.push_back(std::move(waiting));
      job->object->loading.erase(loading);
    }
    goes = job->object->loading.empty() && std::exchange(job->object->goes_when_loaded, false);
  }
  clean_bodies_.add(job->object);
  if (goes) forget_later(job->object);
  for (auto& waiting : waiters) waiting(superseded ? Status{} : status);
}

// A seal that ends when the record is journaled.
SealedBody StoreImpl::quarantine_record(const ObjectPtr& object) {
  object->sealing = true;
  SealedBody record;
  record.snapshot.object = object;
  record.snapshot.size_bytes = object->size_bytes;
  record.snapshot.content_version = object->content_version;
  record.body = object->base;
  return record;
}

// `again`: it is, but the journal did not take that.
void StoreImpl::quarantine(const ObjectPtr& object, uint32_t base_version, const std::string& why, bool again) {
  SealedBody record;
  {
    Tree::Write tree = tree_->write();
    const auto lock = object->lock();
    if (object->base.quarantined != again || object->base.version != base_version) return;
    tree.mark_quarantined(object);
    if (object->sealing || object->content_dirty()) return;  // a new body is on its way and replaces it
    record = quarantine_record(object);
  }
  log::error("object {} is quarantined: {}. It reads as absent from now on; `kvcachefs fsck` tells more", object->id.value,
             why);
  CommitRequest request;
  request.bodies.push_back(std::move(record));
  commits_.add(std::move(request));
}

Result<BlockPtr> StoreImpl::fetch_unit(const Snapshot& snapshot, size_t index, BodyWriter* writer) {
  const uint64_t wanted = unit_length(snapshot.size_bytes, index);
  const Unit* unit = index < snapshot.units.size() ? &snapshot.units[index] : nullptr;
  const bool spilled = unit != nullptr && unit->spilled && !unit->block;
  const uint64_t length = spilled ? unit->spill_bytes : unit_length(snapshot.base.size_bytes, index);
  const uint64_t base_left = snapshot.base_valid_bytes - std::min(snapshot.base_valid_bytes, index * kUnitBytes);
  const uint64_t valid = std::min({spilled ? uint64_t{unit->spill_valid_bytes} : base_left, length, wanted});
  const uint64_t most = std::max(length, wanted);  // the stored unit may be longer than what is left of it
  BlockPtr block = memory_to_seal(MemoryPool::block_bytes(most), writer).make_block(most);
  if (!spilled && snapshot.base.place.kind == PlaceKind::kInline) {
    std::memcpy(block->data(), snapshot.base.inline_bytes.data() + index * kUnitBytes, length);
  } else if (length > 0) {
    FilePtr file = snapshot.spill;
    const Place place = spilled ? Place{PlaceKind::kSolo, snapshot.spill_extent, 0, 0} : snapshot.base.place;
    if (!spilled) {
      KVC_ASSIGN(file, extents_->open(place.extent, place.kind));
    }
    if (!spilled && index >= snapshot.base.checksums.size()) return fail(Code::kCorrupt, "its record has no checksum for these bytes");
    const uint64_t expected = spilled ? unit->spill_checksum : snapshot.base.checksums[index];
    const auto piece = block->bytes().first(align_up(length, kBlockBytes));
    auto got = file->read(piece, place.offset + index * kUnitBytes);
    if (got) counters_.read_bytes_from_volume.fetch_add(*got, std::memory_order_relaxed);
    const auto is_right = [&] { return got && *got >= length && checksum(block->bytes().first(length)) == expected; };
    if (!is_right() && !spilled) {  // perhaps the cache lied, or the descriptor is dead
      if (!got) extents_->close_cached(place.extent);
      KVC_ASSIGN(const FilePtr fresh, extents_->open_fresh(place.extent, place.kind));
      got = fresh->read(piece, place.offset + index * kUnitBytes);
    }
    if (!got) return std::unexpected(std::move(got).error());
    if (!is_right())
      return fail(Code::kCorrupt, fmt::format("{}: unit {} of object {} does not match its checksum", file->path(), index,
                                              snapshot.object ? snapshot.object->id.value : 0));
  }
  std::memset(block->data() + valid, 0, block->capacity_bytes() - valid);
  return block;
}

}  // namespace kvcachefs
