#include "store/space/record_space.h"

#include <algorithm>
#include <utility>

#include "store/base/units.h"

namespace kvcachefs {

namespace {
constexpr uint64_t kPageBytes = 8 * kKiB;  // of the index, written anew for one changed row: its leaf, and a share of the path to it
constexpr uint64_t kRowTimes = 2;          // a row in half-filled pages takes so many times its bytes
constexpr uint64_t kLeastJournalBytes = kMiB, kUsualJournalBytes = 64 * kMiB;
constexpr uint64_t kLimitPart = 64;        // the part of the capacity that journals may take before a checkpoint
constexpr uint64_t kLeastUnwrittenBytes = 2 * kMiB, kUnwrittenPart = 32;  // of the capacity: what waits for the journal takes four times its bytes
constexpr uint64_t kLeastIndexBytes = 2 * kMiB;  // in which attributes and names without a body can grow
}  // namespace

RecordSpace::RecordSpace(Space& space, uint64_t memory_bytes)
    : space_(space),
      most_accepted_bytes_(std::clamp(memory_bytes / 4, 2 * kMiB, 32 * kMiB)),
      most_overlay_bytes_(std::clamp(memory_bytes, 16 * kMiB, 64 * kMiB)) {}

uint64_t RecordSpace::most_journal() const {
  const uint64_t checkpoint = measured_.checkpoint_bytes;
  const uint64_t usual = std::max(kUsualJournalBytes, 2 * checkpoint);
  return std::min(usual, std::max({kLeastJournalBytes, checkpoint / 2, space_.limit_bytes() / kLimitPart}));
}

uint64_t RecordSpace::most_accepted() const {
  return std::min(most_accepted_bytes_, std::max(kLeastUnwrittenBytes, space_.limit_bytes() / kUnwrittenPart));
}

uint64_t RecordSpace::most_overlay() const {
  return std::min(most_overlay_bytes_, 2 * std::max(kLeastUnwrittenBytes, space_.limit_bytes() / kUnwrittenPart));
}

bool RecordSpace::is_crowded(uint64_t times) const {
  return accepted_bytes_ + taken_bytes_ > times * most_accepted() || overlay_bytes_ > times * most_overlay() ||
         measured_.journal_bytes > 2 * times * most_journal();
}

uint64_t RecordSpace::index_part() const { return std::max(kLeastIndexBytes, space_.limit_bytes() / kIndexPart) + measured_.files_bytes; }

uint64_t RecordSpace::used_index_bytes() const {
  return measured_.index_bytes - std::min(measured_.index_bytes, measured_.index_unused_bytes);
}

void RecordSpace::tell() {
  const Measured& m = measured_;
  const uint64_t accepted = accepted_bytes_ + taken_bytes_ + awaiting_body_bytes_;
  const uint64_t journals = std::max(m.journal_bytes + accepted, most_journal());
  // The next checkpoint is no larger than the last one plus the journals since, and no larger than the index.
  const uint64_t checkpoint = std::min(m.index_bytes + overlay_bytes_ + accepted, m.checkpoint_bytes + m.journal_bytes + accepted);
  const uint64_t growth = std::min(overlay_records_ * kPageBytes, m.index_bytes) + kRowTimes * (overlay_bytes_ + accepted) + notes_bytes_;
  space_.set_overhead(m.journal_bytes + m.checkpoint_bytes + (m.index_is_elsewhere ? 0 : m.index_bytes) + m.reserve_bytes + peers_bytes_,
                      journals - m.journal_bytes + checkpoint + (m.index_is_elsewhere ? 0 : growth), peers_ahead_bytes_,
                      peers_ahead_is_kept_);
  crowded_.store(is_crowded(1), std::memory_order_relaxed);
  index_has_its_part_.store(!m.index_is_elsewhere && used_index_bytes() + overlay_bytes_ + accepted > index_part(), std::memory_order_relaxed);
  bodiless_have_their_part_.store(!m.index_is_elsewhere && m.bodiless_bytes > index_part() - m.files_bytes, std::memory_order_relaxed);
}

bool RecordSpace::is_to_be_measured(Growth growth) const {
  const bool bodiless = (growth == Growth::kBodiless || growth == Growth::kLinks) && bodiless_have_their_part();
  const bool index = (growth == Growth::kLinks || growth == Growth::kXattrs) && index_has_its_part();
  if (!bodiless && !index) return false;
  std::lock_guard lock(mutex_);
  if (shrunk_ != measured_shrunk_) return true;
  return !bodiless && (index_is_estimated_ || used_index_bytes() + awaiting_body_bytes_ <= index_part());
}

uint64_t RecordSpace::want_measured() {
  std::lock_guard lock(mutex_);
  return wanted_after_ = commits_begun_ + 1;
}

bool RecordSpace::is_wanted_measured() const {
  std::lock_guard lock(mutex_);
  return wanted_after_ > commits_begun_;
}

uint64_t RecordSpace::measurings() const {
  std::lock_guard lock(mutex_);
  return measured_after_;
}

void RecordSpace::measured(const Measured& measured) {
  std::lock_guard lock(mutex_);
  const uint64_t appended_bytes = std::max(measured_.appended_bytes, measured.appended_bytes);
  measured_ = measured;
  measured_.journal_bytes += appended_bytes - measured.appended_bytes;
  measured_.appended_bytes = appended_bytes;
  measured_after_ = committed_;
  measured_shrunk_ = committed_shrunk_;
  index_is_estimated_ = false;
  written_ = true;
  tell();
}

void RecordSpace::set_peers(uint64_t bytes, uint64_t ahead_bytes, bool kept) {
  std::lock_guard lock(mutex_);
  peers_bytes_ = bytes;
  peers_ahead_bytes_ = ahead_bytes;
  peers_ahead_is_kept_ = kept;
  tell();
}

void RecordSpace::set_notes(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  notes_bytes_ = bytes;
  tell();
}

void RecordSpace::accept(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  accepted_bytes_ += bytes;
  tell();
}

uint64_t RecordSpace::take() {
  std::lock_guard lock(mutex_);
  taken_bytes_ += accepted_bytes_;
  return std::exchange(accepted_bytes_, 0);
}

void RecordSpace::settle(uint64_t taken, bool journaled) {
  std::lock_guard lock(mutex_);
  taken_bytes_ -= taken;
  if (!journaled) accepted_bytes_ += taken;
  written_ = true;  // also on failure: waiting calls have to notice it
  tell();
}

void RecordSpace::await_body(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  awaiting_body_bytes_ += bytes;
  tell();
}

void RecordSpace::body_came(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  awaiting_body_bytes_ -= bytes;
  tell();
}

void RecordSpace::appended(uint64_t appended_bytes, uint64_t bytes, uint64_t records) {
  std::lock_guard lock(mutex_);
  if (appended_bytes > measured_.appended_bytes) {  // else measured() has counted it already
    measured_.journal_bytes += appended_bytes - measured_.appended_bytes;
    measured_.appended_bytes = appended_bytes;
  }
  overlay_bytes_ += bytes;
  overlay_records_ += records;
  tell();
}

void RecordSpace::keep_xattrs(UnjournaledXattrs& of, uint64_t bytes) {
  of.journaled();
  of.sum_ = xattr_bytes_;
  of.bytes_ = bytes;
  xattr_bytes_->fetch_add(bytes, std::memory_order_relaxed);
}

void RecordSpace::retry_soon(std::move_only_function<void()> retry) {
  std::lock_guard lock(mutex_);
  retries_.push_back(std::move(retry));
}

std::vector<std::move_only_function<void()>> RecordSpace::take_retries() {
  std::lock_guard lock(mutex_);
  return std::exchange(retries_, {});
}

void RecordSpace::index_commit_begins() {
  std::lock_guard lock(mutex_);
  committing_bytes_ = overlay_bytes_;
  committing_records_ = overlay_records_;
  ++commits_begun_;
  begun_shrunk_ = shrunk_;
}

void RecordSpace::index_committed() {
  std::lock_guard lock(mutex_);
  measured_.index_bytes += kRowTimes * committing_bytes_;  // until it is measured again
  index_is_estimated_ = true;
  committed_ = commits_begun_;
  committed_shrunk_ = begun_shrunk_;
  overlay_bytes_ -= std::exchange(committing_bytes_, 0);
  overlay_records_ -= std::exchange(committing_records_, 0);
  written_ = true;
  tell();
}

uint64_t RecordSpace::most_journal_bytes() const {
  std::lock_guard lock(mutex_);
  return most_journal();
}

bool RecordSpace::wants_checkpoint() const {
  std::lock_guard lock(mutex_);
  return measured_.journal_bytes > most_journal();
}

bool RecordSpace::wants_index_commit() const {
  std::lock_guard lock(mutex_);
  return overlay_bytes_ > most_overlay() / 2;
}

bool RecordSpace::overcrowded() const {
  std::lock_guard lock(mutex_);
  return is_crowded(2);
}

uint64_t RecordSpace::accepted_bytes() const {
  std::lock_guard lock(mutex_);
  return accepted_bytes_ + taken_bytes_;
}

void RecordSpace::wait(std::move_only_function<void()> retry) {
  std::lock_guard lock(mutex_);
  if (waiting_.empty()) written_ = !is_crowded(1);  // something was written since the caller looked
  waiting_.push_back(std::move(retry));
}

std::vector<std::move_only_function<void()>> RecordSpace::take_waiting(bool all) {
  std::lock_guard lock(mutex_);
  if (waiting_.empty() || (!written_ && !all)) return {};
  return std::exchange(waiting_, {});
}

}  // namespace kvcachefs
