#include "tests/nodes/planted.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/units.h"
#include "store/journal/block_buffer.h"
#include "store/journal/frame.h"
#include "store/journal/journal_file.h"
#include "store/journal/record_codec.h"
#include "store/peers/head_file.h"

namespace kvcachefs::testing {

namespace {

bool is_acks(const std::string& path) { return path.ends_with("/ACKS"); }
bool is_journal(const std::string& path) { return path.ends_with(".log"); }

// The slot of ACKS that `slots` hold, as if all had been read and nothing were open.
std::optional<std::pair<uint64_t, Bytes>> all_followed(ByteSpan slots) {
  for (size_t at = 0; at < slots.size(); at += kAcksSlotBytes) {
    const auto header = decode_header(FileKind::kAcks, slots.subspan(at, std::min(kMaxHeaderBytes, slots.size() - at)));
    if (!header) continue;
    ByteReader in(header->body);
    auto acks = decode_acks(decode_identity(in), slots);
    if (!acks) continue;
    for (Acks::Peer& peer : acks->peers) {
      peer.applied = {1'000'000, 0, 0};
      peer.pinned.clear();
    }
    return std::pair(acks_slot_offset(acks->counter), encode_acks(*acks).value());
  }
  return std::nullopt;
}

class PlantedFile final : public File {
 public:
  PlantedFile(Planted planted, std::string path, FilePtr inner, std::shared_ptr<uint64_t> hits)
      : planted_(planted), path_(std::move(path)), inner_(std::move(inner)), hits_(std::move(hits)) {}

  const std::string& path() const override { return inner_->path(); }
  Result<size_t> read(std::span<std::byte> into, uint64_t offset) override;
  Status write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) override;
  Status sync_data() override { return inner_->sync_data(); }
  Status truncate(uint64_t size_bytes) override { return inner_->truncate(size_bytes); }
  Status allocate(uint64_t offset, uint64_t length) override { return inner_->allocate(offset, length); }
  Status punch(uint64_t offset, uint64_t length) override { return inner_->punch(offset, length); }
  Result<FileInfo> info() override { return inner_->info(); }
  void will_need(uint64_t offset, uint64_t length) override { inner_->will_need(offset, length); }
  Result<uint64_t> next_data(uint64_t offset) override { return inner_->next_data(offset); }
  Result<uint64_t> next_hole(uint64_t offset) override { return inner_->next_hole(offset); }
  Result<uint64_t> allocated_in(uint64_t offset, uint64_t length) override { return inner_->allocated_in(offset, length); }
  bool is_direct() const override { return inner_->is_direct(); }
  int descriptor() const override { return inner_->descriptor(); }

 private:
  bool drops(const Record& record) const;
  void change_frame(Bytes& data, uint64_t offset);

  const Planted planted_;
  const std::string path_;
  const FilePtr inner_;
  const std::shared_ptr<uint64_t> hits_;
  std::optional<FrameKey> key_;  // of a journal that is written
};

Result<size_t> PlantedFile::read(std::span<std::byte> into, uint64_t offset) {
  KVC_ASSIGN(const size_t bytes, inner_->read(into, offset));
  if (planted_ != Planted::kReclaimsUnacknowledged || !is_acks(path_) || offset != 0 || bytes < 2 * kAcksSlotBytes) return bytes;
  if (const auto slot = all_followed(into.first(2 * kAcksSlotBytes))) {
    std::ranges::fill(into, std::byte{0});
    std::ranges::copy(slot->second, into.begin() + static_cast<ptrdiff_t>(slot->first));
    ++*hits_;
  }
  return bytes;
}

bool PlantedFile::drops(const Record& record) const {
  if (planted_ == Planted::kForgetsRemovals) return std::holds_alternative<UnnameRecord>(record);
  const auto* const said = std::get_if<StatementRecord>(&record);
  return planted_ == Planted::kForgetsStatements && said != nullptr && std::holds_alternative<UnnameRecord>(said->what);
}

// Without the records that are dropped it is shorter, in the same blocks.
void PlantedFile::change_frame(Bytes& data, uint64_t offset) {
  const auto length = data.size() < kFrameHeaderBytes ? std::nullopt : FrameKey::claimed_length(ByteSpan(data).first(kFrameHeaderBytes));
  if (!length || kFrameHeaderBytes + *length > data.size()) return;
  auto batch = decode_batch(ByteSpan(data).subspan(kFrameHeaderBytes, *length));
  if (!batch) return;
  const auto dropped = std::erase_if(batch->records, [this](const Record& record) { return drops(record); });
  if (dropped == 0) return;
  Bytes payload, frame;
  encode_batch(*batch, payload);
  key_->append(payload, offset, frame);
  if (align_up(frame.size(), kBlockBytes) != data.size()) return;
  frame.resize(data.size());
  data = std::move(frame);
  ++*hits_;
}

Status PlantedFile::write(std::span<const std::span<const std::byte>> pieces, uint64_t offset) {
  const bool is_body = path_.find("/extents/") != std::string::npos && offset > 0;
  if (planted_ == Planted::kPublishesUnwritten && is_body && ++*hits_ % 5 == 0) return {};
  const bool acks = planted_ == Planted::kAcknowledgesUnread && is_acks(path_);
  if (!acks && !is_journal(path_)) return inner_->write(pieces, offset);
  Bytes data;
  for (const auto piece : pieces) data.insert(data.end(), piece.begin(), piece.end());
  if (acks) {
    Bytes slots(2 * kAcksSlotBytes);
    std::ranges::copy(data, slots.begin() + static_cast<ptrdiff_t>(offset));
    if (const auto slot = all_followed(slots)) {
      std::ranges::copy(slot->second, data.begin());
      ++*hits_;
    }
  } else if (offset == 0) {
    if (const auto header = decode_journal_header(data)) key_.emplace(FileKind::kJournal, header->header.identity, header->header.seq);
  } else if (key_) {
    change_frame(data, offset);
  }
  BlockBuffer buffer;  // direct files want aligned memory
  return buffer.write(*inner_, data, offset);
}

class PlantedVolume final : public Volume {
 public:
  PlantedVolume(Planted planted, std::shared_ptr<Volume> inner, std::shared_ptr<uint64_t> hits)
      : planted_(planted), inner_(std::move(inner)), hits_(std::move(hits)) {}

  const VolumeFeatures& features() const override { return inner_->features(); }
  const std::string& root() const override { return inner_->root(); }
  Result<FilePtr> open(const std::string& path, OpenOptions options) override {
    KVC_ASSIGN(FilePtr file, inner_->open(path, options));
    return std::make_shared<PlantedFile>(planted_, path, std::move(file), hits_);
  }
  Status make_directory(const std::string& path) override { return inner_->make_directory(path); }
  Status make_directories(const std::string& path) override { return inner_->make_directories(path); }
  Status remove_file(const std::string& path) override { return inner_->remove_file(path); }
  Status remove_directory(const std::string& path) override { return inner_->remove_directory(path); }
  Status rename(const std::string& from, const std::string& to) override { return inner_->rename(from, to); }
  Status publish(const std::string& from, const std::string& to) override { return inner_->publish(from, to); }
  Result<std::vector<DirectoryEntry>> list(const std::string& path) override {
    if (planted_ != Planted::kListsOnce || std::ranges::count(path, '/') != 1) return inner_->list(path);  // nodes/<node>
    if (const auto found = lists_.find(path); found != lists_.end()) {
      ++*hits_;
      return found->second;
    }
    KVC_ASSIGN(auto entries, inner_->list(path));
    return lists_[path] = std::move(entries);
  }
  Result<FileInfo> info(const std::string& path) override { return inner_->info(path); }
  Status sync_directory(const std::string& path) override { return inner_->sync_directory(path); }
  Status sync_everything() override { return inner_->sync_everything(); }
  Result<SpaceInfo> space() override { return inner_->space(); }
  Result<std::unique_ptr<VolumeLock>> lock(const std::string& path) override { return inner_->lock(path); }
  void submit(std::vector<IoRequest> requests) override { inner_->submit(std::move(requests)); }
  void drain() override { inner_->drain(); }

 private:
  const Planted planted_;
  const std::shared_ptr<Volume> inner_;
  const std::shared_ptr<uint64_t> hits_;
  std::map<std::string, std::vector<DirectoryEntry>> lists_;
};

}  // namespace

std::string name_of(Planted planted) {
  switch (planted) {
    case Planted::kReclaimsUnacknowledged: return "ReclaimsUnacknowledged";
    case Planted::kAcknowledgesUnread: return "AcknowledgesUnread";
    case Planted::kForgetsStatements: return "ForgetsStatements";
    case Planted::kForgetsRemovals: return "ForgetsRemovals";
    case Planted::kListsOnce: return "ListsOnce";
    case Planted::kPublishesUnwritten: return "PublishesUnwritten";
  }
  return "?";
}

std::shared_ptr<Volume> plant(Planted planted, std::shared_ptr<Volume> inner, std::shared_ptr<uint64_t> hits) {
  return std::make_shared<PlantedVolume>(planted, std::move(inner), std::move(hits));
}

}  // namespace kvcachefs::testing
