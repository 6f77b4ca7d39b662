#include "store/peers/replica.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "store/base/log.h"
#include "store/base/units.h"
#include "store/index/record_check.h"
#include "store/index/replay_filter.h"
#include "store/journal/epoch_ends.h"
#include "store/journal/journal_file.h"
#include "store/peers/part_size.h"
#include "store/peers/peers_directory.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kRecordsBetween = 1000;                 // records of a checkpoint between two calls of Loading::meanwhile
constexpr int64_t kPatienceForAnswerNs = 2'000'000'000;    // how long an answer waits for the statement it answers to be read
constexpr int64_t kImpatientNs = 10'000'000'000;           // after that: a node that is followed badly has many statements answered
constexpr std::string_view kHeldBack = "the peer left out something that it had written: waiting for its next checkpoint";

// The record with which an epoch begins if it says how far the epochs before it count.
const EndsRecord* ends_of(const Batch& batch) { return batch.records.empty() ? nullptr : std::get_if<EndsRecord>(&batch.records.front()); }

// The node whose journal is not read up to the statement that the batch answers; empty: none.
std::string answers_unread(const Batch& batch, const Replica::HasRead& has_read) {
  for (const Record& record : batch.records)
    if (const auto* seen = std::get_if<SeenRecord>(&record); seen != nullptr && !has_read(seen->node, seen->position)) return seen->node;
  return {};
}

std::string generation_path(const std::string& directory, uint64_t generation) { return fmt::format("{}/{}", directory, generation); }

// Something else has that name.
bool is_not_ours(const Error& error) { return error.code == Code::kExists; }

Status remove_generation(const std::string& path) {
  KVC_TRY(remove_index(path));
  if (Status removed = remove_index(path + ".damaged"); !removed && !is_not_ours(removed.error())) return removed;
  return {};
}

}  // namespace

Replica::Replica(Setup setup) : setup_(std::move(setup)) {}
Replica::~Replica() = default;

// --- the directory: an index for each load, numbered; the highest complete one counts ---

std::string Replica::path_of(uint64_t generation) const { return generation_path(setup_.directory, generation); }

Status Replica::remove(const std::string& directory) {
  KVC_ASSIGN(const auto there, generations_in(directory));
  for (const uint64_t generation : there)
    if (Status removed = remove_generation(generation_path(directory, generation)); !removed && !is_not_ours(removed.error())) return removed;
  std::error_code error;
  std::filesystem::remove(directory, error);
  if (error) return fail_errno(error.value(), directory);
  return {};
}

Result<Replica::IndexPtr> Replica::open_index(uint64_t generation, Index::Found& found) const {
  std::string why;
  KVC_ASSIGN(auto index, Index::open(path_of(generation), {setup_.identity.volume_uuid, setup_.identity.node}, &found, &why));
  if (!why.empty()) log::warn("peer {}: {}", setup_.identity.node, why);
  index->set_let_go_wanted(setup_.let_go_wanted);
  return IndexPtr(std::move(index));
}

void Replica::remove_retired() {
  std::erase_if(retired_, [this](const auto& each) {
    if (!each.first.expired()) return false;
    if (Status removed = remove_generation(path_of(each.second)); !removed) log::warn("peer {}: {}", setup_.identity.node, removed.error().message);
    return true;
  });
}

// --- loading ---

Status Replica::load(const LookOut& look_out, Loading loading) {
  loading_ = std::move(loading);
  Status loaded = load_anew(look_out);
  loading_ = {};
  if (!loaded && loaded.error().code != Code::kCanceled) {
    state_ = State::kUnreadable;
    reason_ = loaded.error().message;
  }
  return loaded;
}

Status Replica::load_anew(const LookOut& look_out) {
  Outlook outlook = look_out();
  KVC_ASSIGN(Filled filled, find_or_fill(outlook.epoch));
  KVC_ASSIGN(filled.quarantined, quarantined_in(*filled.index, loading_.meanwhile));
  // That may have taken minutes. The next poll enters a newer epoch, from the end of this one.
  if (const Outlook now = look_out(); now.epoch == outlook.epoch) outlook = now;
  auto statements = std::make_shared<Statements>();
  KVC_TRY(statements->load(*filled.index));
  const bool enters = !filled.waits && filled.position.epoch < outlook.epoch;
  JournalTail tail = tail_from(enters ? JournalPosition{outlook.epoch, 0, 0} : filled.position);
  bool applied = false;
  if (!filled.waits) {
    KVC_ASSIGN(applied, follow_unshown(tail, filled, *statements, outlook));
  }
  if (index_ != nullptr) retired_.emplace_back(index_, generation_);
  index_ = std::move(filled.index);
  quarantined_ = std::move(filled.quarantined);
  generation_ = filled.generation;
  statements_ = std::move(statements);
  checkpoint_ = filled.checkpoint;
  before_epoch_ = filled.position.epoch == outlook.epoch ? JournalPosition{} : filled.position;
  applied_since_ns_ = applied ? std::optional<int64_t>(0) : std::nullopt;  // 0: the next commit writes it
  growth_bytes_.reset();
  early_since_ns_.reset();
  wants_load_ = false;
  state_ = State::kLive;
  reason_.clear();
  waits_ = filled.waits;
  follow_with(tail_from(tail.position()));  // with a fresh tail, which has not waited for anything yet
  if (waits_) hold(std::string(kHeldBack));
  return {};
}

// Returns whether anything was applied. Only an error of meanwhile() is returned: what else stops it poll() meets next, and reports.
Result<bool> Replica::follow_unshown(JournalTail& tail, const Filled& filled, Statements& statements, const Outlook& outlook) {
  bool applied = false;
  const auto written = outlook.written && outlook.written->epoch == tail.position().epoch ? outlook.written : std::nullopt;
  if (tail.position().offset == 0 && !is_begun(tail.position().epoch).value_or(false)) return applied;
  const JournalPosition before = filled.position.epoch < tail.position().epoch ? filled.position : JournalPosition{};
  Status goes_on;
  const auto apply = [&](const Batch& batch, JournalPosition after) -> Status {
    goes_on = loading_.meanwhile();
    const EndsRecord* const ends = ends_of(batch);
    const bool plain = ends == nullptr || (ends->end >= before && (!ends->left_out || filled.has_checkpoint_of(after.epoch)));
    if (!goes_on || !plain || !answers_unread(batch, loading_.has_read).empty()) return fail(Code::kCanceled, "not to be applied here");
    const Batch believed = possible(batch, after.epoch);
    KVC_TRY(filled.index->apply(believed, after));
    statements.apply(believed, after);
    filled.quarantined->add(believed);
    applied = true;
    if (loading_.applied) loading_.applied(believed);
    return {};
  };
  for (bool more = true; more;) {
    const auto read = tail.poll(written, 0, apply);
    more = read && read->state == JournalTail::State::kMore;
    if (filled.index->overlay_rows() >= kMostRows) static_cast<void>(filled.index->commit());  // on an error the next commit() reports why
  }
  KVC_TRY(goes_on);
  return applied;
}

Result<Replica::Filled> Replica::find_or_fill(uint32_t epoch) {
  KVC_ASSIGN(const auto there, generations_in(setup_.directory));
  const ApplyTo apply_to = [this](Index& index) {
    return [this, &index](const Batch& batch, JournalPosition after) -> Status {
      KVC_TRY(loading_.meanwhile());
      KVC_TRY(index.apply(possible(batch, after.epoch), after));
      return index.overlay_rows() >= kMostRows ? index.commit() : Status();
    };
  };
  for (size_t at = there.size(); index_ == nullptr && at-- > 0;) {
    auto opened = open_left(there[at]);
    if (!opened && is_not_ours(opened.error())) {  // not an index of ours, or no longer recognizable as one: it stays, and another one is made
      log::warn("peer {}: {}", setup_.identity.node, opened.error().message);
      continue;
    }
    KVC_TRY(opened);
    std::optional<Filled> left = std::move(*opened);
    if (!left) {
      KVC_TRY(remove_generation(path_of(there[at])));
      continue;
    }
    for (size_t older = 0; older < at; ++older)
      if (Status removed = remove_generation(path_of(there[older])); !removed && !is_not_ours(removed.error())) return std::unexpected(removed.error());
    auto waits = catch_up(left->position, epoch, apply_to(*left->index));
    if (waits)
      if (Status committed = left->index->commit(); !committed) waits = std::unexpected(std::move(committed).error());
    if (!waits && left->index->damaged()) {
      log::warn("peer {}: {}", setup_.identity.node, waits.error().message);
      left.reset();
      KVC_TRY(remove_generation(path_of(there[at])));
      continue;
    }
    KVC_TRY(waits);
    left->waits = *waits;
    return std::move(*left);
  }
  const uint64_t generation = (there.empty() ? 0 : there.back()) + 1;
  auto filled = fill(generation, apply_to, epoch);
  if (!filled) {  // else each try would leave one behind
    if (Status removed = remove_generation(path_of(generation)); !removed) log::warn("peer {}: {}", setup_.identity.node, removed.error().message);
  }
  return filled;
}

// Opens an index of an earlier life, if the journals go on from its position.
Result<std::optional<Replica::Filled>> Replica::open_left(uint64_t generation) {
  Index::Found found{};
  KVC_ASSIGN(IndexPtr index, open_index(generation, found));
  if (found != Index::Found::kOpened) return std::nullopt;
  const JournalPosition position = index->position();
  KVC_ASSIGN(const bool fits, goes_on_from(position));
  if (!fits) return std::nullopt;
  return Filled{generation, std::move(index), position, std::nullopt, false};
}

Result<bool> Replica::goes_on_from(JournalPosition position) const {
  if (position.epoch == 0) return false;
  const auto file = setup_.volume->info(journal_path(setup_.identity.node, position.epoch, position.seq));
  if (!file && file.error().code == Code::kNotFound) return false;
  KVC_TRY(file);
  if (file->size_bytes < position.offset) return false;
  KVC_ASSIGN(const auto epochs, list_epochs(*setup_.volume, setup_.identity.node));
  KVC_ASSIGN(const EpochEnds ends, EpochEnds::read(*setup_.volume, setup_.identity, epochs, position.epoch));
  return ends.counts(position);
}

Result<Replica::Filled> Replica::fill(uint64_t generation, const ApplyTo& apply_to, uint32_t epoch) {
  Filled filled;
  filled.generation = generation;
  Index::Found found{};
  KVC_ASSIGN(filled.index, open_index(generation, found));
  KVC_TRY(load_checkpoint(filled));
  checkpoint_ = filled.checkpoint;
  KVC_ASSIGN(filled.waits, catch_up(filled.position, epoch, apply_to(*filled.index)));
  KVC_TRY(filled.index->commit());
  return filled;
}

Status Replica::load_checkpoint(Filled& filled) {
  std::vector<std::string> problems;
  KVC_ASSIGN(const auto newest, find_checkpoint(*setup_.volume, setup_.identity, problems));
  if (newest) {
    ReplayFilter filter(*filled.index, true, [this](ReplayFilter::Told, const std::string& line) {
      ++records_left_out_;
      log::error("peer {}: checkpoint: {}", setup_.identity.node, line);
    });
    KVC_TRY(filled.index->begin_load());
    uint64_t records = 0;
    KVC_TRY(read_checkpoint(*setup_.volume, setup_.identity, *newest, [&](Record&& record) -> Status {
      if (++records % kRecordsBetween == 0)
        if (Status goes_on = loading_.meanwhile(); !goes_on) return goes_on;
      return filter.believes(record, newest->header.covers.epoch) ? filled.index->load(std::move(record)) : Status();
    }, problems));
    KVC_TRY(filled.index->finish_load(newest->header.covers, ReplayFilter::believed(newest->header.stamp)));
    filled.position = newest->header.covers;
    filled.checkpoint = HeadCheckpoint{newest->epoch, newest->seq};
  }
  for (const std::string& problem : problems) log::error("peer {}: checkpoint: {}", setup_.identity.node, problem);
  return {};
}

Result<bool> Replica::catch_up(JournalPosition& position, uint32_t before_epoch, const ApplyBatch& apply) {
  bool waits = false;
  if (position.epoch >= before_epoch) return waits;
  auto read = replay_journals(*setup_.volume, setup_.identity, position, [&](const Batch& batch, JournalPosition after, bool) -> Status {
    const EndsRecord* const ends = ends_of(batch);
    waits |= ends != nullptr && ends->left_out && !knows_checkpoint_of(after.epoch);
    if (waits) return {};
    KVC_TRY(apply(batch, after));
    position = after;
    return {};
  }, before_epoch);
  KVC_TRY(read);
  for (const std::string& problem : read->problems) log::warn("peer {}: journal: {}", setup_.identity.node, problem);
  return waits;
}

// --- following ---

JournalTail Replica::tail_from(JournalPosition position) const {
  FileIdentity identity = setup_.identity;
  identity.epoch = position.epoch;
  return {identity, position, [volume = setup_.volume, identity](uint64_t seq) {
    return volume->open(journal_path(identity.node, identity.epoch, seq), {.direct = volume->features().direct_io});
  }};
}

void Replica::follow_with(JournalTail tail) {
  position_ = tail.position();
  begun_ = position_.seq > 0 || position_.offset > 0;
  tail_ = std::move(tail);
}

void Replica::reload(std::string why) {
  log::info("peer {}: {}; loading it anew", setup_.identity.node, why);
  wants_load_ = true;
  load_bytes_ = index_ == nullptr || setup_.volume->features().network ? 0 : bytes_to_load();
  ++reloads_;
}

uint64_t Replica::measure_load() {
  if (load_bytes_ > 0) load_bytes_ = bytes_to_load();
  return load_bytes();
}

void Replica::let_go() {
  if (index_ == nullptr) return;
  retired_.emplace_back(std::exchange(index_, nullptr), generation_);
  statements_.reset();
  applied_since_ns_.reset();
  growth_bytes_.reset();
  state_ = State::kLoading;
}

bool Replica::is_let_go() {
  if (index_ != nullptr) return false;
  remove_retired();
  return !retired_.empty();
}

// The larger of the index that is there and of what is to be read: the peer may have stored much since.
uint64_t Replica::bytes_to_load() const {
  const std::string epoch = setup_.volume->root() + "/" + epoch_directory(setup_.identity.node, position_.epoch);
  const uint64_t read_bytes = allocated_below(epoch + "/checkpoint") + allocated_below(epoch + "/journal");
  return std::max(index_ == nullptr ? 0 : allocated_below(setup_.directory), read_bytes + read_bytes / 4);
}

void Replica::hold(std::string why) {
  if (state_ != State::kHeld) log::warn("peer {}: {}", setup_.identity.node, why);
  state_ = State::kHeld;
  reason_ = std::move(why);
}

Result<Replica::Polled> Replica::poll(const Outlook& outlook, int64_t now_ns, const Change& change, const HasRead& has_read) {
  remove_retired();
  if (!wants_load_ && index_->damaged()) reload("its index on this machine is damaged");
  if (wants_load_) return Polled{};
  auto polled = follow(outlook, now_ns, change, has_read);
  if (!polled) {
    state_ = State::kUnreadable;
    reason_ = polled.error().message;
    return polled;
  }
  if (polled->batches > 0 && !applied_since_ns_) applied_since_ns_ = now_ns;
  return polled;
}

Result<Replica::Polled> Replica::follow(const Outlook& outlook, int64_t now_ns, const Change& change, const HasRead& has_read) {
  // A later checkpoint goes beyond what cannot be read.
  if (state_ == State::kHeld && outlook.checkpoint &&
      (!checkpoint_ || std::pair(outlook.checkpoint->epoch, outlook.checkpoint->seq) > std::pair(checkpoint_->epoch, checkpoint_->seq))) {
    reload(reason_);
    return Polled{};
  }
  if (waits_) return Polled{};
  Polled polled;
  const Change counting = [&](const PeerBatch& batch, const std::function<Status()>& work) {
    ++polled.batches;
    return change(batch, work);
  };
  if (outlook.epoch > position_.epoch) KVC_TRY(enter_epoch(outlook.epoch, counting));
  if (wants_load_ || waits_) return polled;
  if (!begun_) {
    KVC_ASSIGN(begun_, is_begun(position_.epoch));
    if (!begun_) {
      state_ = State::kLive;
      reason_.clear();
      return polled;
    }
  }
  auto written = outlook.written;
  if (written && written->epoch != position_.epoch) written.reset();
  auto read = tail_->poll(written, now_ns, [&](const Batch& batch, JournalPosition after) -> Status {
    polled.waits_for = comes_too_early_for(batch, now_ns, has_read);
    return polled.waits_for.empty() ? apply(batch, after, counting) : fail(Code::kCanceled, "not to be applied yet");
  });
  position_ = tail_->position();  // this may be the beginning of a file: others' positions may name it, and an answer that waits for it must count it as read
  if (!polled.waits_for.empty() || wants_load_ || waits_) return polled;  // apply() refused the batch
  KVC_TRY(read);
  switch (read->state) {
    case JournalTail::State::kMore: polled.more = true; [[fallthrough]];
    case JournalTail::State::kUpToDate:
      state_ = State::kLive;
      reason_.clear();
      break;
    case JournalTail::State::kReload: reload(std::move(read->why)); break;
    case JournalTail::State::kDamaged: hold(std::move(read->why)); break;
  }
  return polled;
}

// Whether the epoch has a journal. An epoch is made before its journal: a starting daemon first reads the volume, which may take long. Uses listings,
// as for all names that may not be there.
Result<bool> Replica::is_begun(uint32_t epoch) const {
  const std::string journals = journal_directory(setup_.identity.node, epoch);
  KVC_ASSIGN(const auto there, setup_.volume->list(epoch_directory(setup_.identity.node, epoch)));
  if (std::ranges::none_of(there, [&journals](const DirectoryEntry& entry) { return journals.ends_with("/" + entry.name); })) return false;
  KVC_ASSIGN(const auto seqs, list_seqs(*setup_.volume, journals, ".log"));
  return !seqs.empty();
}

// Call when the peer's daemon has started again. Reads the rest of the earlier epochs by the rules of a start, for nobody writes there
// any more.
Status Replica::enter_epoch(uint32_t epoch, const Change& change) {
  JournalPosition position = position_;
  if (position.epoch > 0 && (position.seq > 0 || position.offset > 0)) {
    KVC_ASSIGN(const bool fits, goes_on_from(position));
    if (!fits) {
      reload(fmt::format("epoch {} does not go on from where epoch {} was read", epoch, position.epoch));
      return {};
    }
  }
  KVC_ASSIGN(waits_, catch_up(position, epoch, [&](const Batch& batch, JournalPosition after) { return apply(batch, after, change); }));
  if (waits_) hold(std::string(kHeldBack));
  if (waits_ || wants_load_) return {};
  before_epoch_ = position;
  follow_with(tail_from({epoch, 0, 0}));
  return {};
}

std::string Replica::comes_too_early_for(const Batch& batch, int64_t now_ns, const HasRead& has_read) {
  std::string node = answers_unread(batch, has_read);
  if (node.empty() || (impatient_ns_ && now_ns - *impatient_ns_ < kImpatientNs)) {
    early_since_ns_.reset();
    return {};
  }
  if (!early_since_ns_) early_since_ns_ = now_ns;
  if (now_ns - *early_since_ns_ < kPatienceForAnswerNs) return node;
  early_since_ns_.reset();
  impatient_ns_ = now_ns;
  return {};
}

Status Replica::apply(const Batch& batch, JournalPosition after, const Change& change) {
  if (const EndsRecord* const ends = ends_of(batch)) {
    if (ends->end < before_epoch_) {
      reload(fmt::format("epoch {} takes back what was read", after.epoch));
    } else if (ends->left_out && !knows_checkpoint_of(after.epoch)) {
      waits_ = true;
      hold(std::string(kHeldBack));
    }
    if (wants_load_ || waits_) return fail(Code::kCanceled, "not to be applied");
  }
  const Batch believed = possible(batch, after.epoch);
  const auto work = [&]() -> Status {
    KVC_TRY(index_->apply(believed, after));
    statements_->apply(believed, after);
    quarantined_->add(believed);
    return {};
  };
  KVC_ASSIGN(const PeerBatch described, compared(believed, after));
  KVC_TRY(change(described, work));
  growth_bytes_.reset();
  position_ = after;
  return {};
}

// The batch, and the objects that it replaces or changes, by what the index has before it.
Result<PeerBatch> Replica::compared(const Batch& batch, JournalPosition after) const {
  PeerBatch described{batch, after, {}};
  for (const Record& record : batch.records) {
    if (const auto* const named = std::get_if<NameRecord>(&record)) {
      KVC_ASSIGN(const auto before, index_->find_name(named->parent, named->name));
      if (before && before->child != named->child) described.replaced.push_back(before->child);
    } else if (const auto* const put = std::get_if<PutRecord>(&record); put != nullptr && put->object.body.version > 1) {
      KVC_ASSIGN(const auto before, index_->find_object(put->object.id));
      if (!before || !has_same_bytes(before->body, put->object.body)) described.changed.push_back(put->object.id);
    }
  }
  return described;
}

// The batch without records that no daemon writes.
Batch Replica::possible(const Batch& batch, uint32_t epoch) {
  Batch believed{ReplayFilter::believed(batch.stamp), {}};
  for (const Record& record : batch.records) {
    if (const std::string why = why_impossible(record, epoch); !why.empty()) {
      if (records_left_out_++ < 50) log::error("peer {}: journal: {}: {}; left out", setup_.identity.node, subject_of(record), why);
      continue;
    }
    believed.records.push_back(record);
    Record& taken = believed.records.back();
    if (auto* put = std::get_if<PutRecord>(&taken)) trim_attributes(put->object.attributes);
    if (auto* changed = std::get_if<AttributesRecord>(&taken)) trim_attributes(changed->attributes);
    if (auto* said = std::get_if<StatementRecord>(&taken))
      if (auto* changed = std::get_if<AttributesRecord>(&said->what)) trim_attributes(changed->attributes);
  }
  return believed;
}

uint64_t Replica::bytes_behind(const Outlook& outlook) const {
  if (!outlook.written || *outlook.written <= position_) return 0;
  const bool same_file = outlook.written->epoch == position_.epoch && outlook.written->seq == position_.seq;
  return same_file ? outlook.written->offset - position_.offset : outlook.written->offset;
}

}  // namespace kvcachefs
