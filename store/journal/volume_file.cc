#include "store/journal/volume_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/journal/file_header.h"

namespace kvcachefs {

Bytes encode_volume_file(const VolumeHeader& header) {
  Bytes body;
  ByteWriter out(body);
  out.raw(header.uuid);
  out.u64(header.created_stamp.value);
  out.u32(header.pack_alignment_bytes);
  out.u32(header.unit_bytes);
  out.u64(header.features);
  return encode_header(FileKind::kVolume, body, kVolumeFileBytes);
}

Result<VolumeHeader> decode_volume_file(ByteSpan content) {
  KVC_ASSIGN(const HeaderView view, decode_header(FileKind::kVolume, content));
  if (content.size() != kVolumeFileBytes || view.size_bytes != kVolumeFileBytes) {
    return fail(Code::kCorrupt,
                fmt::format("VOLUME file has {} bytes instead of {}", content.size(), kVolumeFileBytes));
  }
  ByteReader in(view.body);
  VolumeHeader header;
  const ByteSpan uuid = in.raw(header.uuid.size());
  std::copy(uuid.begin(), uuid.end(), header.uuid.begin());
  header.format_version = view.version;
  header.created_stamp.value = in.u64();
  header.pack_alignment_bytes = in.u32();
  header.unit_bytes = in.u32();
  if (header.pack_alignment_bytes != kBlockBytes || header.unit_bytes != kUnitBytes) {
    return fail(Code::kVersion,
                fmt::format("VOLUME file asks for a pack alignment of {} and checksum units of {} bytes; "
                            "this program knows {} and {}",
                            header.pack_alignment_bytes, header.unit_bytes, kBlockBytes, kUnitBytes));
  }
  if (view.version >= kVersionOfFlags) header.features = in.u64();
  if (header.features != 0) {
    return fail(Code::kVersion, fmt::format("VOLUME file asks for features {:#x} that this program does not know: use the "
                                            "kvcachefs that made the volume, or a newer one",
                                            header.features));
  }
  return header;
}

}  // namespace kvcachefs
