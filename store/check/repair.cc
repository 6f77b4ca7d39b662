#include "store/check/repair.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "store/base/clock.h"
#include "store/base/units.h"
#include "store/index/checkpoint_rows.h"
#include "store/journal/journal.h"

namespace kvcachefs {

namespace {

constexpr uint64_t kJournalFileBytes = 64 * kMiB;
constexpr size_t kObjectsPerBatch = 1000;

Status take_new_epoch(OfflineNode& node) {
  for (uint32_t epoch = node.identity.epoch + 1; epoch <= kMaxEpoch; ++epoch) {
    Status made = node.volume->make_directory(epoch_directory(node.identity.node, epoch));
    if (!made && made.error().code == Code::kExists) continue;
    KVC_TRY(std::move(made));
    node.identity.epoch = epoch;
    return node.volume->sync_directory("nodes/" + node.identity.node);
  }
  return fail(Code::kTooBig, fmt::format("node {} has used all {} epochs", node.identity.node, kMaxEpoch));
}

// Writes the journal of a new epoch, ended by a mark and synced.
Status journal_all(OfflineNode& node, const Index& index, const std::string& boot_id, const std::function<Status(JournalWriter&, HybridClock&)>& add) {
  KVC_TRY(take_new_epoch(node));
  KVC_ASSIGN(auto journal, JournalWriter::create(node.volume, node.identity, boot_id, kJournalFileBytes, journal_form(node.volume->features())));
  HybridClock stamps(system_clock());
  stamps.observe(index.stamp());
  KVC_TRY(add(*journal, stamps));
  KVC_TRY(journal->sync());
  Batch mark;
  mark.stamp = stamps.next();
  mark.records.emplace_back(SyncedRecord{});
  if (auto after = journal->append(mark); !after) return std::unexpected(std::move(after).error());
  return journal->sync();
}

}  // namespace

Status quarantine_bodies(OfflineNode& node, const Index& index, const std::vector<ObjectId>& objects,
                         const std::string& boot_id) {
  return journal_all(node, index, boot_id, [&](JournalWriter& journal, HybridClock& stamps) -> Status {
    for (size_t start = 0; start < objects.size(); start += kObjectsPerBatch) {
      Batch batch;
      batch.stamp = stamps.next();
      for (size_t at = start; at < std::min(objects.size(), start + kObjectsPerBatch); ++at) {
        KVC_ASSIGN(auto object, index.find_object(objects[at]));
        if (!object) continue;
        object->body.quarantined = true;
        batch.records.emplace_back(PutRecord{std::move(*object)});
      }
      if (auto after = journal.append(batch); !after) return std::unexpected(std::move(after).error());
    }
    return {};
  });
}

Status write_checkpoint_of(OfflineNode& node, const Index& index, const std::string& boot_id) {
  KVC_TRY(node.volume->sync_everything());  // bodies that the checkpoint names count as synced, even if the last daemon had not synced them
  CheckpointInfo info;
  info.header.stamp = index.stamp();
  const Status written = journal_all(node, index, boot_id, [&](JournalWriter&, HybridClock&) -> Status {
    info.epoch = node.identity.epoch;
    info.header.covers = {info.epoch, 0, 0};  // not the position of the index: damage and torn ends behind it are settled with it
    KVC_ASSIGN(auto writer, CheckpointWriter::create(node.volume, node.identity, info.seq, info.header));
    KVC_TRY(for_each_checkpoint_record(index, [&](Record record) { return writer->add(std::move(record)); }));
    return writer->finish();
  });
  if (!written || node.has_others) return written;
  return remove_covered(*node.volume, node.identity, info.header.covers, info);
}

}  // namespace kvcachefs
