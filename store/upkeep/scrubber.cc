#include "store/upkeep/scrubber.h"

#include <chrono>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/thread.h"
#include "store/base/units.h"

namespace kvcachefs {

Scrubber::Scrubber(Parts parts) : parts_(std::move(parts)), mark_(parts_.index.scrub_mark()) {
  counts_.last_ended_ns = mark_.ended_ns;
  counts_.running = mark_.begun_ns != 0;
}

Status Scrubber::start() {
  KVC_ASSIGN(thread_, start_thread("kvc-scrubber", [this] {
               while (!stopping_) {
                 wakeup_.wait_for(std::chrono::seconds(1));
                 if (stopping_) return;
                 look_at_suspected();
                 tick();
               }
             }));
  return {};
}

void Scrubber::stop() {
  stopping_ = true;
  wakeup_.wake();
  if (thread_.joinable()) thread_.join();
}

void Scrubber::set_rate(uint64_t bytes_per_second) {
  std::lock_guard lock(mutex_);
  pace_.set_rate(bytes_per_second);
}

void Scrubber::begin_now() {
  {
    std::lock_guard lock(mutex_);
    asked_ = true;
    counts_.running = true;
  }
  wakeup_.wake();
}

void Scrubber::suspect(ObjectId id) {
  std::lock_guard lock(mutex_);
  if (suspected_.size() < kMostSuspected) suspected_.insert(id);
}

bool Scrubber::look_at_suspected() {
  uint64_t bytes = 0;
  while (bytes < kSuspectedBytes && !stopping_ && (suspect_ || next_suspected())) bytes += verify_unit(suspect_);
  return bytes > 0;
}

// Returns false if there is none, or it cannot be told now.
bool Scrubber::next_suspected() {
  while (!suspect_) {
    ObjectId id;
    {
      std::lock_guard lock(mutex_);
      if (suspected_.empty()) return false;
      id = *suspected_.begin();
    }
    auto record = parts_.index.find_object(id);
    if (!record) return false;  // another thread repairs the index
    if (*record && is_verifiable((*record)->body)) suspect_ = Current{.id = id, .stored = stored_snapshot(std::move((*record)->body))};
    std::lock_guard lock(mutex_);
    suspected_.erase(id);
  }
  return true;
}

Scrubber::Counts Scrubber::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

// Caller holds mutex_.
void Scrubber::begin(bool asked) {
  all_ = asked;
  records_due_ = true;
  page_.clear();
  page_at_ = 0;
  current_.reset();
  mark_.after = {};
  mark_.begun_ns = parts_.clock.realtime_ns();
  counts_.running = true;
}

void Scrubber::end_pass() {
  mark_ = {.after = {}, .begun_ns = 0, .ended_ns = parts_.clock.realtime_ns()};
  all_ = false;
  parts_.index.set_scrub_mark(mark_);
  Counts counts;
  {
    std::lock_guard lock(mutex_);
    counts_.running = false;
    counts_.last_ended_ns = mark_.ended_ns;
    ++counts_.passes;
    counts = counts_;
  }
  log::info("all chunks were verified: {} chunks ({} read) in this life of the mount; {} damaged, {} could not be read", counts.bodies,
            format_size(counts.bytes), counts.damaged, counts.unreadable);
}

void Scrubber::tick() {
  const uint64_t requests = parts_.requests();
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(asked_, false)) begin(/*asked=*/true);
    else if (!counts_.running && pace_.is_due(parts_.clock.realtime_ns(), mark_.ended_ns)) begin(false);
    pace_.advance(parts_.clock.monotonic_ns(), requests, all_);
    if (!counts_.running) return;
  }
  const auto may_go_on = [&] {
    std::lock_guard lock(mutex_);
    return pace_.may_read() && !stopping_;
  };
  while (may_go_on()) {
    if (records_due_ && records_pause_.may_try(parts_.clock.monotonic_ns())) {
      verify_records(requests);
      continue;
    }
    if (!current_ && !next_body()) return;
    if (current_) verify_unit(current_);
  }
}

// Runs at once, whatever the pace: later reads make up for it. `requests`: the clients' request count when they were idle.
void Scrubber::verify_records(uint64_t requests) {
  const auto goes_on = [&] { return !stopping_ && (all_ || parts_.requests() == requests); };
  const RecordScrub::Read read = parts_.verify_records ? parts_.verify_records(goes_on) : RecordScrub::Read();
  records_due_ = !read.all;
  if (read.all) records_pause_.succeeded();
  else records_pause_.failed(parts_.clock.monotonic_ns());
  std::lock_guard lock(mutex_);
  pace_.took(read.bytes);
}

// Returns false if the pass is over, or cannot go on now.
bool Scrubber::next_body() {
  constexpr size_t kPage = 256;
  if (page_at_ == page_.size()) {
    auto page = parts_.index.objects_after(mark_.after, kPage);
    if (!page) return false;  // another thread repairs the index
    page_ = std::move(*page);
    page_at_ = 0;
    if (page_.empty()) {
      end_pass();
      return false;
    }
    parts_.index.set_scrub_mark(mark_);
  }
  const ObjectId id = page_[page_at_++];
  if (auto record = parts_.index.find_object(id); record && *record && is_to_be_verified(**record))
    current_ = Current{.id = id, .stored = stored_snapshot(std::move((*record)->body))};
  mark_.after = id;
  std::lock_guard lock(mutex_);
  pace_.took(kBlockBytes);  // for its row
  return true;
}

bool Scrubber::is_verifiable(const Body& body) {
  return (body.place.kind == PlaceKind::kPacked || body.place.kind == PlaceKind::kSolo) && !body.quarantined && body.size_bytes > 0 &&
         body.checksums.size() >= div_ceil(body.size_bytes, kUnitBytes);
}

bool Scrubber::is_to_be_verified(const ObjectRecord& record) const {
  if (!is_verifiable(record.body)) return false;
  const int64_t age_ns = parts_.clock.realtime_ns() - record.attributes.mtime_ns;
  return all_ || age_ns < 0 || age_ns >= kYoungNs;
}

// Returns the number of bytes read. Resets `body` when it is verified, or found bad.
uint64_t Scrubber::verify_unit(std::optional<Current>& body) {
  Current& current = *body;
  const uint64_t size_bytes = current.stored.size_bytes, bytes = unit_length(size_bytes, current.next_unit);
  const auto block = parts_.reader.fetch(current.stored, current.next_unit, parts_.memory);
  const bool last = ++current.next_unit == div_ceil(size_bytes, kUnitBytes);
  {
    std::lock_guard lock(mutex_);
    pace_.took(bytes);
    counts_.bytes += bytes;
    if (block && last) ++counts_.bodies;
  }
  if (!block) found_bad(current, block.error());
  if (!block || last) body.reset();
  return bytes;
}

// Ignores bodies replaced, moved or removed meanwhile: their ranges may have been given back.
void Scrubber::found_bad(const Current& current, const Error& error) {
  const Body& body = current.stored.base;
  const auto now = parts_.index.find_object(current.id);
  if (!now || !*now || (*now)->body.version != body.version || (*now)->body.place != body.place) return;
  const bool is_gone = error.code == Code::kNotFound && parts_.reader.was_removed(body.place);
  const bool wrong = is_gone || error.code == Code::kCorrupt;
  {
    std::lock_guard lock(mutex_);
    ++(wrong ? counts_.damaged : counts_.unreadable);
  }
  if (!wrong) return log::warn("object {} could not be verified, and is kept: {}", current.id.value, error.message);
  (is_gone ? parts_.counters.errors_volume_read : parts_.counters.errors_checksum).fetch_add(1, std::memory_order_relaxed);
  const auto object = parts_.tree.get(current.id);
  if (!object) return;
  const Tree::ForgetAfter forget(parts_.tree, *object);
  is_gone ? parts_.quarantine.put_missing(*object, body.version, error.message) : parts_.quarantine.put(*object, body.version, error.message);
}

}  // namespace kvcachefs
