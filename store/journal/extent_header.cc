#include "store/journal/extent_header.h"

#include <fmt/format.h>

#include "store/journal/file_header.h"

namespace kvcachefs {

Bytes encode_pack_header(const PackHeader& header) {
  Bytes body;
  ByteWriter out(body);
  encode_identity(header.identity, out);
  out.u64(header.seq);
  out.u8(0);  // flags
  return encode_header(FileKind::kPackExtent, body, kPackHeaderBytes);
}

Result<PackHeader> decode_pack_header(ByteSpan block) {
  KVC_ASSIGN(const HeaderView view, decode_header(FileKind::kPackExtent, block));
  ByteReader in(view.body);
  PackHeader header;
  header.identity = decode_identity(in);
  header.seq = in.u64();
  if (view.version >= kVersionOfFlags) KVC_TRY(check_flags("header of the pack extent", in.u8(), 0));
  if (!in.ok() || view.size_bytes != kPackHeaderBytes) {
    return fail(Code::kCorrupt,
                fmt::format("header of the pack extent has {} bytes and a bad identity or size", view.size_bytes));
  }
  return header;
}

Status check_pack_header(ByteSpan block, const FileIdentity& identity, uint64_t seq) {
  KVC_ASSIGN(const PackHeader header, decode_pack_header(block));
  KVC_TRY(check_identity(header.identity, identity));
  if (header.seq != seq) {
    return fail(Code::kCorrupt, fmt::format("is pack extent {}, not {}", header.seq, seq));
  }
  return {};
}

}  // namespace kvcachefs
