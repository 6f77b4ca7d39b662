#include "store/peers/head_file.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "store/base/checksum.h"
#include "store/base/node_name.h"
#include "store/journal/file_header.h"

namespace kvcachefs {
namespace {

constexpr uint8_t kHasCheckpoint = 1;
constexpr size_t kMaxTextBytes = 255;
// Bytes of a header before and after its body.
constexpr size_t kHeaderFrameBytes = kHeaderPreludeBytes + sizeof(uint64_t);

auto fields(const FileIdentity& identity) { return std::tie(identity.volume_uuid, identity.node, identity.epoch); }

Status check_text(const char* what, std::string_view text) {
  if (text.size() <= kMaxTextBytes) return {};
  return fail(Code::kTooBig, fmt::format("{} of {} bytes", what, text.size()));
}

std::unexpected<Error> broken(const char* what) { return fail(Code::kCorrupt, fmt::format("{} breaks its grammar", what)); }

// The header at the beginning of the slot; it has to be whole.
Result<HeaderView> slot_header(FileKind kind, ByteSpan slot) {
  KVC_ASSIGN(const HeaderView view, decode_header(kind, slot.first(std::min(slot.size(), kMaxHeaderBytes))));
  if (view.size_bytes != kBlockBytes) return broken(file_kind_name(kind));
  return view;
}

Result<Head> decode_slot(ByteSpan slot) {
  KVC_ASSIGN(const HeaderView view, slot_header(FileKind::kHead, slot));
  ByteReader in(view.body);
  Head head;
  head.identity = decode_identity(in);
  head.counter = in.u64();
  const uint8_t flags = in.u8();
  KVC_TRY(check_flags("HEAD file", flags, kHasCheckpoint));
  const ByteSpan instance = in.raw(head.instance.size());
  std::ranges::copy(instance, head.instance.begin());
  head.host = in.text();
  head.boot_id = in.text();
  head.journal_end = {head.identity.epoch, 0, 0};
  head.journal_end.seq = in.u64();
  head.journal_end.offset = in.u64();
  head.oldest_journal.epoch = in.u32();
  head.oldest_journal.seq = in.u64();
  if (flags & kHasCheckpoint) {
    HeadCheckpoint& checkpoint = head.checkpoint.emplace();
    checkpoint.epoch = in.u32();
    checkpoint.seq = in.u64();
  }
  for (uint64_t* value : {&head.physical_bytes, &head.claim_bytes, &head.wish_bytes, &head.capacity_bytes}) *value = in.u64();
  for (uint64_t& bytes : head.bytes_by_age) bytes = in.u64();
  head.address = in.text();
  for (const std::string* text : {&head.host, &head.boot_id, &head.address})
    if (text->size() > kMaxTextBytes) return broken("HEAD file");
  if (!in.ok()) return broken("HEAD file");
  return head;
}

Result<Acks::Peer> decode_peer(ByteReader& in) {
  Acks::Peer peer;
  peer.node = in.text();
  const uint64_t epoch = in.varint();
  peer.applied.epoch = static_cast<uint32_t>(epoch);
  peer.applied.seq = in.varint();
  peer.applied.offset = in.varint();
  const uint64_t pinned = in.varint();
  ObjectId last;
  for (uint64_t i = 0; i < pinned && in.ok(); ++i) {
    const uint64_t step = in.varint();
    if (step == 0 || last.value + step < last.value) return broken("ACKS file");
    last.value += step;
    peer.pinned.push_back(last);
  }
  if (!in.ok() || !is_node_name(peer.node) || epoch > kMaxEpoch) return broken("ACKS file");
  return peer;
}

Result<Acks> decode_acks_slot(ByteSpan slot) {
  KVC_ASSIGN(const HeaderView view, slot_header(FileKind::kAcks, slot));
  ByteReader in(view.body);
  Acks acks;
  acks.identity = decode_identity(in);
  acks.counter = in.u64();
  KVC_TRY(check_flags("ACKS file", in.u8(), 0));
  const uint32_t length = in.u32();
  const uint64_t sum = in.u64();
  if (!in.ok() || length > slot.size() - kBlockBytes) return broken("ACKS file");
  const ByteSpan payload = slot.subspan(kBlockBytes, length);
  if (checksum(payload, acks.counter) != sum) return fail(Code::kCorrupt, "ACKS file is damaged, or was being written");
  ByteReader peers(payload);
  while (!peers.at_end()) {
    KVC_ASSIGN(Acks::Peer peer, decode_peer(peers));
    if (!acks.peers.empty() && peer.node <= acks.peers.back().node) return broken("ACKS file");
    acks.peers.push_back(std::move(peer));
  }
  return acks;
}

template <class T, class Decode>
Result<T> newer_of(const FileIdentity& identity, ByteSpan file, size_t slot_bytes, const Decode& decode) {
  std::optional<T> newest;
  std::optional<Error> why;
  for (uint64_t offset = 0; offset < 2 * slot_bytes; offset += slot_bytes) {
    if (file.size() < offset + slot_bytes) {
      why = Error{Code::kCorrupt, 0, fmt::format("has {} bytes instead of {}", file.size(), 2 * slot_bytes)};
      break;
    }
    Result<T> slot = decode(file.subspan(offset, slot_bytes));
    if (slot)
      if (Status same = check_identity(slot->identity, identity); !same) slot = std::unexpected(std::move(same).error());
    if (!slot && slot.error().code == Code::kVersion) return slot;
    if (!slot) why = std::move(slot).error();
    else if (!newest || slot->counter > newest->counter) newest = std::move(*slot);
  }
  if (!newest) return std::unexpected(std::move(*why));
  return std::move(*newest);
}

}  // namespace

bool Head::operator==(const Head& other) const {
  const auto all = [](const Head& head) {
    return std::tuple(fields(head.identity), std::tie(head.counter, head.instance, head.host, head.boot_id, head.journal_end, head.oldest_journal,
                                                      head.checkpoint, head.physical_bytes, head.claim_bytes, head.wish_bytes,
                                                      head.capacity_bytes, head.bytes_by_age, head.address));
  };
  return all(*this) == all(other);
}

bool Acks::operator==(const Acks& other) const {
  return fields(identity) == fields(other.identity) && counter == other.counter && peers == other.peers;
}

uint64_t head_slot_offset(uint64_t counter) { return counter % 2 * kHeadSlotBytes; }
uint64_t acks_slot_offset(uint64_t counter) { return counter % 2 * kAcksSlotBytes; }

Result<Bytes> encode_head(const Head& head) {
  KVC_TRY(check_text("HEAD: a host name", head.host));
  KVC_TRY(check_text("HEAD: a boot id", head.boot_id));
  KVC_TRY(check_text("HEAD: an address", head.address));
  KVC_TRY(check_text("HEAD: a node", head.identity.node));
  Bytes body;
  ByteWriter out(body);
  encode_identity(head.identity, out);
  out.u64(head.counter);
  out.u8(head.checkpoint ? kHasCheckpoint : 0);
  out.raw(head.instance);
  out.text(head.host);
  out.text(head.boot_id);
  out.u64(head.journal_end.seq);
  out.u64(head.journal_end.offset);
  out.u32(head.oldest_journal.epoch);
  out.u64(head.oldest_journal.seq);
  if (head.checkpoint) {
    out.u32(head.checkpoint->epoch);
    out.u64(head.checkpoint->seq);
  }
  for (const uint64_t value : {head.physical_bytes, head.claim_bytes, head.wish_bytes, head.capacity_bytes}) out.u64(value);
  for (const uint64_t bytes : head.bytes_by_age) out.u64(bytes);
  out.text(head.address);
  static_assert(4 * (kMaxTextBytes + 2) + 8 * kAgeClasses + 200 + kHeaderFrameBytes < kHeadSlotBytes);
  return encode_header(FileKind::kHead, body, kHeadSlotBytes);
}

Result<Bytes> encode_acks(const Acks& acks) {
  Bytes payload;
  ByteWriter peers(payload);
  for (const Acks::Peer& peer : acks.peers) {
    peers.text(peer.node);
    peers.varint(peer.applied.epoch);
    peers.varint(peer.applied.seq);
    peers.varint(peer.applied.offset);
    peers.varint(peer.pinned.size());
    ObjectId last;
    for (const ObjectId id : peer.pinned) {
      peers.varint(id.value - last.value);
      last = id;
    }
  }
  if (payload.size() > kAcksSlotBytes - kBlockBytes)
    return fail(Code::kTooBig, fmt::format("ACKS: {} bytes of {} peers are over the limit of {}", payload.size(), acks.peers.size(),
                                           kAcksSlotBytes - kBlockBytes));
  KVC_TRY(check_text("ACKS: a node", acks.identity.node));
  Bytes body;
  ByteWriter out(body);
  encode_identity(acks.identity, out);
  out.u64(acks.counter);
  out.u8(0);  // flags
  out.u32(static_cast<uint32_t>(payload.size()));
  out.u64(checksum(ByteSpan(payload), acks.counter));
  Bytes slot = encode_header(FileKind::kAcks, body, kBlockBytes);
  slot.insert(slot.end(), payload.begin(), payload.end());
  slot.resize(kAcksSlotBytes);
  return slot;
}

Result<Head> decode_head(const FileIdentity& identity, ByteSpan file) {
  return newer_of<Head>(identity, file, kHeadSlotBytes, decode_slot);
}

Result<Acks> decode_acks(const FileIdentity& identity, ByteSpan file) {
  return newer_of<Acks>(identity, file, kAcksSlotBytes, decode_acks_slot);
}

}  // namespace kvcachefs
