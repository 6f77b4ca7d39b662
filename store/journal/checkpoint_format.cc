#include "store/journal/checkpoint_format.h"

#include <fmt/format.h>

#include "store/journal/file_header.h"

namespace kvcachefs {

Bytes encode_checkpoint_header(const CheckpointFileHeader& header) {
  Bytes body;
  ByteWriter out(body);
  encode_identity(header.identity, out);
  out.u64(header.seq);
  out.u32(header.header.covers.epoch);
  out.u64(header.header.covers.seq);
  out.u64(header.header.covers.offset);
  out.u64(header.header.stamp.value);
  out.u64(header.header.next_number);
  out.u8(0);  // flags
  return encode_header(FileKind::kCheckpoint, body);
}

Result<DecodedCheckpointHeader> decode_checkpoint_header(ByteSpan start) {
  KVC_ASSIGN(const HeaderView view, decode_header(FileKind::kCheckpoint, start));
  ByteReader in(view.body);
  DecodedCheckpointHeader decoded{{}, view.size_bytes};
  CheckpointFileHeader& file = decoded.header;
  file.identity = decode_identity(in);
  file.seq = in.u64();
  file.header.covers.epoch = in.u32();
  file.header.covers.seq = in.u64();
  file.header.covers.offset = in.u64();
  file.header.stamp.value = in.u64();
  file.header.next_number = in.u64();
  if (view.version >= kVersionOfFlags) KVC_TRY(check_flags("header of the checkpoint", in.u8(), 0));
  if (!in.ok() || !in.at_end()) return fail(Code::kCorrupt, "header of the checkpoint breaks its grammar");
  return decoded;
}

Bytes encode_checkpoint_footer(const CheckpointFooter& footer) {
  Bytes payload;
  ByteWriter out(payload);
  out.u8(static_cast<uint8_t>(CheckpointFrame::kFooter));
  out.u64(footer.records);
  out.u64(footer.frames);
  out.u64(footer.digest);
  return payload;
}

Result<CheckpointFooter> decode_checkpoint_footer(ByteSpan payload) {
  ByteReader in(payload);
  const uint8_t type = in.u8();
  CheckpointFooter footer;
  footer.records = in.u64();
  footer.frames = in.u64();
  footer.digest = in.u64();
  if (!in.ok() || !in.at_end() || type != static_cast<uint8_t>(CheckpointFrame::kFooter)) {
    return fail(Code::kCorrupt, "has no footer at its end");
  }
  return footer;
}

}  // namespace kvcachefs
