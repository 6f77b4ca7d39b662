// The header of every file of a volume (store/FORMAT.md, "File header"). Its first 24 bytes keep their
// meaning in every format version, so that a file of a newer program is not taken for a damaged one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/result.h"
#include "store/journal/journal.h"

namespace kvcachefs {

// The version that is written to every file; the oldest version that is read.
inline constexpr uint32_t kFormatVersion = 3;
inline constexpr uint32_t kOldestVersion = 2;
// From this version on VOLUME has features, and checkpoints and pack extents have flags.
inline constexpr uint32_t kVersionOfFlags = 3;
inline constexpr size_t kHeaderPreludeBytes = 24;
inline constexpr size_t kMaxHeaderBytes = 4096;

enum class FileKind : uint8_t { kVolume = 1, kJournal = 2, kCheckpoint = 3, kPackExtent = 4, kHead = 5, kAcks = 6 };
const char* file_kind_name(FileKind kind);
// Files in the directory of an epoch: what its daemon tells other nodes (store/peers/head_file.h).
inline constexpr const char* kHeadFileName = "HEAD";
inline constexpr const char* kAcksFileName = "ACKS";

// The whole header around `body`, zero-padded to `padded_bytes` if that is not 0. `body` must fit kMaxHeaderBytes.
Bytes encode_header(FileKind kind, ByteSpan body, size_t padded_bytes = 0);

struct HeaderView {
  uint32_t version = kFormatVersion;
  ByteSpan body;          // a part of the input, padding included
  size_t size_bytes = 0;  // of the whole header: the content begins here
};
// `start`: the first kMaxHeaderBytes of a file, or the whole file if it is shorter. kVersion: intact, but of a version that
// this program does not read.
Result<HeaderView> decode_header(FileKind kind, ByteSpan start);

// kVersion if `flags` has bits outside `known`: a newer program wrote them. `what` names the header or file in the error.
Status check_flags(std::string_view what, uint8_t flags, uint8_t known);

void encode_identity(const FileIdentity& identity, ByteWriter& out);
// After malformed bytes `in` is not ok().
FileIdentity decode_identity(ByteReader& in);
// kCorrupt, with the difference, unless `found` equals `expected`.
Status check_identity(const FileIdentity& found, const FileIdentity& expected);

std::string format_uuid(const std::array<std::byte, 16>& uuid);
// Without dashes: in the status, and as the name of a directory.
std::string uuid_digits(ByteSpan uuid);

}  // namespace kvcachefs
