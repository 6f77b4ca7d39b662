#include "store/journal/file_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "store/base/checksum.h"

namespace kvcachefs {
namespace {

constexpr size_t kMagicBytes = 8;
constexpr size_t kSummedPreludeBytes = kHeaderPreludeBytes - sizeof(uint64_t);

// The kinds differ in one letter, and the high bit of the first byte is set: no text file begins like this.
std::string_view magic_of(FileKind kind) {
  switch (kind) {
    case FileKind::kVolume: return {"\xabKVCvol\n", kMagicBytes};
    case FileKind::kJournal: return {"\xabKVCjrn\n", kMagicBytes};
    case FileKind::kCheckpoint: return {"\xabKVCchk\n", kMagicBytes};
    case FileKind::kPackExtent: return {"\xabKVCpak\n", kMagicBytes};
    case FileKind::kHead: return {"\xabKVChed\n", kMagicBytes};
    case FileKind::kAcks: return {"\xabKVCack\n", kMagicBytes};
  }
  std::unreachable();
}

// Also says what the user can do.
std::string other_version(const char* what, uint32_t version) {
  const auto found = fmt::format("{} has format version {}, this program reads versions {} to {}: ", what, version, kOldestVersion, kFormatVersion);
  if (version > kFormatVersion) return found + "use the kvcachefs that wrote it, or a newer one";
  return found + "mount it with the kvcachefs that wrote it and copy its files to a new volume";
}

}  // namespace

const char* file_kind_name(FileKind kind) {
  switch (kind) {
    case FileKind::kVolume: return "VOLUME file";
    case FileKind::kJournal: return "journal file";
    case FileKind::kCheckpoint: return "checkpoint";
    case FileKind::kPackExtent: return "pack extent";
    case FileKind::kHead: return "HEAD file";
    case FileKind::kAcks: return "ACKS file";
  }
  std::unreachable();
}

Bytes encode_header(FileKind kind, ByteSpan body, size_t padded_bytes) {
  const size_t total = std::max(kHeaderPreludeBytes + body.size() + sizeof(uint64_t), padded_bytes);
  Bytes bytes;
  bytes.reserve(total);
  ByteWriter out(bytes);
  out.raw(as_bytes(magic_of(kind)));
  out.u32(kFormatVersion);
  out.u32(static_cast<uint32_t>(total));
  out.u64(checksum(ByteSpan(bytes)));
  out.raw(body);
  bytes.resize(total - sizeof(uint64_t));
  out.u64(checksum(ByteSpan(bytes)));
  return bytes;
}

Result<HeaderView> decode_header(FileKind kind, ByteSpan start) {
  const char* what = file_kind_name(kind);
  if (start.size() < kHeaderPreludeBytes) {
    return fail(Code::kCorrupt, fmt::format("{} bytes are too few for the header of a {}", start.size(), what));
  }
  ByteReader in(start);
  if (as_text(in.raw(kMagicBytes)) != magic_of(kind)) {
    return fail(Code::kCorrupt, fmt::format("does not begin like a {}", what));
  }
  const uint32_t version = in.u32();
  const uint32_t total = in.u32();
  if (in.u64() != checksum(start.first(kSummedPreludeBytes))) {
    return fail(Code::kCorrupt, fmt::format("header of the {} is damaged (first checksum)", what));
  }
  if (version < kOldestVersion || version > kFormatVersion) return fail(Code::kVersion, other_version(what, version));
  if (total < kHeaderPreludeBytes + sizeof(uint64_t) || total > std::min(start.size(), kMaxHeaderBytes)) {
    return fail(Code::kCorrupt, fmt::format("header of the {} claims {} bytes of {}", what, total, start.size()));
  }
  const size_t summed = total - sizeof(uint64_t);
  ByteReader tail(start.subspan(summed, sizeof(uint64_t)));
  if (tail.u64() != checksum(start.first(summed))) {
    return fail(Code::kCorrupt, fmt::format("header of the {} is damaged (second checksum)", what));
  }
  return HeaderView{version, start.subspan(kHeaderPreludeBytes, summed - kHeaderPreludeBytes), total};
}

Status check_flags(std::string_view what, uint8_t flags, uint8_t known) {
  if ((flags & static_cast<uint8_t>(~known)) == 0) return {};
  return fail(Code::kVersion, fmt::format("{} has flags {:#x} not known to this program", what, flags));
}

void encode_identity(const FileIdentity& identity, ByteWriter& out) {
  out.raw(identity.volume_uuid);
  out.text(identity.node);
  out.u32(identity.epoch);
}

FileIdentity decode_identity(ByteReader& in) {
  FileIdentity identity;
  const ByteSpan uuid = in.raw(identity.volume_uuid.size());
  std::copy(uuid.begin(), uuid.end(), identity.volume_uuid.begin());
  identity.node = in.text();
  identity.epoch = in.u32();
  return identity;
}

Status check_identity(const FileIdentity& found, const FileIdentity& expected) {
  if (found.volume_uuid != expected.volume_uuid) {
    return fail(Code::kCorrupt, fmt::format("belongs to volume {}, not to {}", format_uuid(found.volume_uuid),
                                            format_uuid(expected.volume_uuid)));
  }
  if (found.node != expected.node) {
    return fail(Code::kCorrupt, fmt::format("belongs to node '{}', not to '{}'", found.node, expected.node));
  }
  if (found.epoch != expected.epoch) {
    return fail(Code::kCorrupt, fmt::format("belongs to epoch {}, not to {}", found.epoch, expected.epoch));
  }
  return {};
}

std::string uuid_digits(ByteSpan uuid) {
  std::string text;
  for (const std::byte byte : uuid) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::string format_uuid(const std::array<std::byte, 16>& uuid) {
  std::string text = uuid_digits(uuid);
  for (const size_t dash : {8U, 13U, 18U, 23U}) text.insert(dash, 1, '-');
  return text;
}

}  // namespace kvcachefs
