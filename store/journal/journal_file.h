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

// "17" -> 17; nothing else than a decimal number without leading zeros.
std::optional<uint64_t> parse_seq(std::string_view text);
// The seqs of the files "<seq><suffix>" in `directory`, ascending; empty if the directory is not there. Other names
// are passed over.
Result<std::vector<uint64_t>> list_seqs(Volume& volume, const std::string& directory, std::string_view suffix);

// Where the file before this one ends: frames there from `end` on were given up after a failed write. The chain of
// these tells lost frames and files from a plain end.
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
  bool blocks = false;                  // the header and each frame begin at multiples of a block, zeros between
};

// Where the next frame begins behind one that ends at `end`.
uint64_t behind_frame(uint64_t end, bool blocks);
// Whether all that a batch says is that the epoch goes on in another file: it counts for nothing, whether it was written or not.
bool says_only_next(const Batch& batch);

Bytes encode_journal_header(const JournalFileHeader& header);
struct DecodedJournalHeader {
  JournalFileHeader header;
  size_t size_bytes = 0;
};
Result<DecodedJournalHeader> decode_journal_header(ByteSpan start);

}  // namespace kvcachefs
