#include "store/journal/journal_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "store/base/units.h"
#include "store/journal/file_header.h"

namespace kvcachefs {
namespace {

constexpr uint8_t kHasPrevious = 1, kBlocks = 2;

}  // namespace

std::string epoch_directory(std::string_view node, uint32_t epoch) { return fmt::format("nodes/{}/{}", node, epoch); }
std::string journal_directory(std::string_view node, uint32_t epoch) {
  return epoch_directory(node, epoch) + "/journal";
}
std::string checkpoint_directory(std::string_view node, uint32_t epoch) {
  return epoch_directory(node, epoch) + "/checkpoint";
}
std::string journal_path(std::string_view node, uint32_t epoch, uint64_t seq) {
  return fmt::format("{}/{}.log", journal_directory(node, epoch), seq);
}
std::string checkpoint_path(std::string_view node, uint32_t epoch, uint64_t seq) {
  return fmt::format("{}/{}", checkpoint_directory(node, epoch), seq);
}
std::string checkpoint_temp_path(std::string_view node, uint32_t epoch, uint64_t seq) {
  return checkpoint_path(node, epoch, seq) + ".tmp";
}

std::optional<uint64_t> parse_seq(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if (text.size() > 1 && text.front() == '0') return std::nullopt;
  return value;
}

Result<std::vector<uint64_t>> list_seqs(Volume& volume, const std::string& directory, std::string_view suffix) {
  std::vector<uint64_t> seqs;
  auto entries = volume.list(directory);
  if (!entries) {
    if (entries.error().code == Code::kNotFound) return seqs;
    return std::unexpected(std::move(entries).error());
  }
  for (const DirectoryEntry& entry : *entries) {
    if (entry.is_directory || !entry.name.ends_with(suffix)) continue;
    const auto seq = parse_seq(std::string_view(entry.name).substr(0, entry.name.size() - suffix.size()));
    if (seq) seqs.push_back(*seq);
  }
  std::sort(seqs.begin(), seqs.end());
  return seqs;
}

Result<std::vector<uint32_t>> list_epochs(Volume& volume, std::string_view node) {
  std::vector<uint32_t> epochs;
  auto entries = volume.list(fmt::format("nodes/{}", node));
  if (!entries) {
    if (entries.error().code == Code::kNotFound) return epochs;
    return std::unexpected(std::move(entries).error());
  }
  for (const DirectoryEntry& entry : *entries) {
    const auto epoch = entry.is_directory ? parse_seq(entry.name) : std::nullopt;
    if (epoch && *epoch != 0 && *epoch <= kMaxEpoch) epochs.push_back(static_cast<uint32_t>(*epoch));
  }
  std::sort(epochs.begin(), epochs.end());
  return epochs;
}

uint64_t behind_frame(uint64_t end, bool blocks) { return blocks ? align_up(end, kBlockBytes) : end; }

bool says_only_next(const Batch& batch) {
  return batch.records.size() == 1 && std::holds_alternative<NextRecord>(batch.records[0]);
}

Bytes encode_journal_header(const JournalFileHeader& header) {
  Bytes body;
  ByteWriter out(body);
  encode_identity(header.identity, out);
  out.u64(header.seq);
  out.text(header.boot_id);
  out.u8(static_cast<uint8_t>((header.previous ? kHasPrevious : 0) | (header.blocks ? kBlocks : 0)));
  if (header.previous) {
    out.u64(header.previous->seq);
    out.u64(header.previous->end);
  }
  return encode_header(FileKind::kJournal, body, header.blocks ? kBlockBytes : 0);
}

Result<DecodedJournalHeader> decode_journal_header(ByteSpan start) {
  KVC_ASSIGN(const HeaderView view, decode_header(FileKind::kJournal, start));
  ByteReader in(view.body);
  DecodedJournalHeader decoded{{}, view.size_bytes};
  decoded.header.identity = decode_identity(in);
  decoded.header.seq = in.u64();
  decoded.header.boot_id = in.text();
  const uint8_t flags = in.u8();
  const uint8_t known = view.version >= kVersionOfFlags ? kHasPrevious | kBlocks : kHasPrevious;
  KVC_TRY(check_flags("header of the journal file", flags, known));
  if (flags & kHasPrevious) {
    JournalLink& previous = decoded.header.previous.emplace();
    previous.seq = in.u64();
    previous.end = in.u64();
  }
  decoded.header.blocks = flags & kBlocks;
  const bool whole = decoded.header.blocks ? view.size_bytes == kBlockBytes : in.at_end();
  if (!in.ok() || !whole) return fail(Code::kCorrupt, "header of the journal file breaks its grammar");
  return decoded;
}

}  // namespace kvcachefs
