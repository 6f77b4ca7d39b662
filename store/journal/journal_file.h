// Inside the journal room: paths, directory listings and the header of one journal file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/journal/journal.h"

namespace kvcachefs {

std::string journal_directory(std::string_view node, uint32_t epoch);
std::string checkpoint_directory(std::string_view node, uint32_t epoch);
std::string checkpoint_temp_path(std::string_view node, uint32_t epoch, uint64_t seq);

// "17" -> 17; accepts only decimal numbers without leading zeros.
std::optional<uint64_t> parse_seq(std::string_view text);
// Seqs of the files "<seq><suffix>" in `directory`, ascending; empty if the directory does not exist. Other names
// are ignored.
Result<std::vector<uint64_t>> list_seqs(Volume& volume, const std::string& directory, std::string_view suffix);

// End of the previous file: its frames from `end` on were given up after a failed write. The chain of
// these links distinguishes lost frames and files from a regular end.
struct JournalLink {
  uint64_t seq = 0;
  uint64_t end = 0;
  bool operator==(const JournalLink&) const = default;
};

struct JournalFileHeader {
  FileIdentity identity;
  uint64_t seq = 0;
  std::string boot_id;
  std::optional<JournalLink> previous;  // none in the first file of an epoch
  bool blocks = false;                  // the header and each frame begin at multiples of a block, padded with zeros
};

// Offset of the frame that follows one which ends at `end`.
uint64_t behind_frame(uint64_t end, bool blocks);
// Whether a batch holds nothing but the record that the epoch goes on in another file: losing such a batch loses nothing.
bool says_only_next(const Batch& batch);

Bytes encode_journal_header(const JournalFileHeader& header);
struct DecodedJournalHeader {
  JournalFileHeader header;
  size_t size_bytes = 0;
};
Result<DecodedJournalHeader> decode_journal_header(ByteSpan start);

}  // namespace kvcachefs
