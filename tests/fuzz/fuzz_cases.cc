#include "tests/fuzz/fuzz_cases.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "store/base/checksum.h"
#include "store/evict/policy.h"
#include "store/journal/checkpoint_format.h"
#include "store/journal/extent_header.h"
#include "store/journal/file_header.h"
#include "store/journal/frame.h"
#include "store/journal/journal.h"
#include "store/journal/journal_file.h"
#include "store/journal/memory_volume.h"
#include "store/journal/record_codec.h"
#include "store/journal/test_records.h"
#include "store/journal/volume_file.h"
#include "store/peers/head_file.h"

namespace kvcachefs {
namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz property broken: %s\n", what);
  std::abort();
}

// Bad bytes may only be called damaged or of another version; and say so.
void require_clean(const Error& error) {
  require(error.code == Code::kCorrupt || error.code == Code::kVersion, "error of an unexpected kind");
  require(!error.message.empty(), "error without a message");
}

// What was decoded is a value like any other: encoding it and decoding that gives it back.
void require_stable(const Batch& batch) {
  Bytes bytes;
  encode_batch(batch, bytes);
  const auto again = decode_batch(bytes);
  require(again && same_batch(*again, batch), "batch changed in a round trip");
}

void fuzz_object(ByteSpan input) {
  ByteReader in(input), summary_in(input);
  const auto object = decode_object(in);
  const auto summary = decode_object(summary_in, ObjectParts::kSummary);
  if (!object) return require_clean(object.error());
  require(summary && summary->attributes == object->attributes && summary->body.place == object->body.place,
          "summary differs from the object");
  Bytes bytes;
  ByteWriter out(bytes);
  encode_object(*object, out);
  ByteReader again_in(bytes);
  const auto again = decode_object(again_in);
  require(again && *again == *object && again_in.at_end(), "object changed in a round trip");
}

void fuzz_name(ByteSpan input) {
  Bytes bytes;
  ByteWriter out(bytes);
  encode_name(as_text(input), out);
  ByteReader in(bytes);
  const auto name = decode_name(in);
  require(name && *name == as_text(input) && in.at_end(), "name changed in a round trip");
  ByteReader hostile(input);
  const auto decoded = decode_name(hostile);
  if (!decoded) return require_clean(decoded.error());
  require(decoded->size() <= 2 * input.size(), "name longer than its bytes allow");
}

// Takes the script apart: each step is a byte (lowest bit: garbage or frame), two bytes of length and so many bytes.
void append_steps(ByteReader& script, const FrameKey& key, Bytes& file, CheckpointFooter* footer, Hasher* digest) {
  while (script.ok() && !script.at_end()) {
    const bool garbage = script.u8() & 1;
    const ByteSpan piece = script.raw(std::min<uint64_t>(script.u16(), script.left()));
    if (piece.empty()) continue;
    if (garbage) {
      file.insert(file.end(), piece.begin(), piece.end());
      continue;
    }
    key.append(piece, file.size(), file);
    if (footer) ++footer->frames;
    if (digest) digest->update(piece);
  }
}

void put_file(MemoryVolume& volume, const std::string& path, ByteReader& in) { volume.put(path, in.raw(in.left())); }

}  // namespace

void fuzz_record_codec(ByteSpan input) {
  const auto batch = decode_batch(input);
  const auto synced = batch_has_synced(input);
  const auto ends = batch_ends(input);
  if (!ends) require_clean(ends.error());
  if (batch) {
    const bool begins_so = !batch->records.empty() && std::holds_alternative<EndsRecord>(batch->records[0]);
    require(ends && (!*ends || begins_so), "a batch begins with what it does not hold");
    require_stable(*batch);
    require(synced.has_value(), "a good batch whose types cannot be walked");
  } else {
    require_clean(batch.error());
  }
  fuzz_object(input);
  fuzz_name(input);
  ByteReader in(input);
  if (const auto successors = decode_successors(in); !successors) require_clean(successors.error());
}

void fuzz_journal(ByteSpan input) {
  MemoryVolume volume;
  const std::string path = journal_path("node-a", 3, 0);
  ByteReader in(input);
  if (in.u8() & 1) {
    Bytes file = encode_journal_header({test_identity(), 0, "boot", std::nullopt});
    append_steps(in, FrameKey(FileKind::kJournal, test_identity(), 0), file, nullptr, nullptr);
    volume.put(path, file);
  } else {
    put_file(volume, path, in);
  }
  JournalPosition last;
  const auto statistics =
      replay_journals(volume, test_identity(0), {}, [&](const Batch& batch, JournalPosition after, bool) -> Status {
        require(last < after, "positions do not rise");
        last = after;
        require_stable(batch);
        return {};
      });
  if (!statistics) require_clean(statistics.error());
}

void fuzz_checkpoint(ByteSpan input) {
  MemoryVolume volume;
  const std::string path = checkpoint_path("node-a", 3, 1);
  ByteReader in(input);
  if (in.u8() & 1) {
    CheckpointFooter footer;
    footer.records = in.u8();
    Hasher digest;
    Bytes file = encode_checkpoint_header({test_identity(), 1, {{3, 0, 100}, {5}, 6}});
    const FrameKey key(FileKind::kCheckpoint, test_identity(), 1);
    append_steps(in, key, file, &footer, &digest);
    footer.digest = digest.digest();
    key.append(encode_checkpoint_footer(footer), file.size(), file);
    volume.put(path, file);
  } else {
    put_file(volume, path, in);
  }
  std::vector<std::string> problems;
  const auto found = find_checkpoint(volume, test_identity(0), problems);
  if (!found) return require_clean(found.error());
  if (!*found) return require(!problems.empty(), "a checkpoint was passed over in silence");
  uint64_t records = 0;
  const Status read = read_checkpoint(volume, test_identity(0), **found, [&](Record&&) -> Status {
    ++records;
    return {};
  }, problems);
  if (!read) return require_clean(read.error());
  require(records <= (*found)->records || !problems.empty(), "more records than were counted");
}

void fuzz_volume_file(ByteSpan input) {
  ByteReader in(input);
  const bool wrap = in.u8() & 1;
  const ByteSpan rest = in.raw(std::min<uint64_t>(in.left(), 4000));
  const auto header = decode_volume_file(wrap ? encode_header(FileKind::kVolume, rest, kVolumeFileBytes)
                                              : Bytes(input.begin() + (input.empty() ? 0 : 1), input.end()));
  if (!header) return require_clean(header.error());
  auto again = decode_volume_file(encode_volume_file(*header));
  require(again && again->format_version == kFormatVersion, "VOLUME cannot be read as it is written");
  again->format_version = header->format_version;
  require(*again == *header, "VOLUME changed in a round trip");
}

void fuzz_extent_header(ByteSpan input) {
  ByteReader in(input);
  const bool wrap = in.u8() & 1;
  const ByteSpan rest = in.raw(std::min<uint64_t>(in.left(), 4000));
  const auto header = decode_pack_header(wrap ? encode_header(FileKind::kPackExtent, rest, kPackHeaderBytes)
                                              : Bytes(input.begin() + (input.empty() ? 0 : 1), input.end()));
  if (!header) return require_clean(header.error());
  require(check_pack_header(encode_pack_header(*header), header->identity, header->seq).has_value(),
          "pack header changed in a round trip");
}

namespace {

// A slot with a payload, as encode_acks() makes it.
Bytes acks_slot(ByteSpan body, ByteSpan payload) {
  Bytes slot = encode_header(FileKind::kAcks, body, kBlockBytes);
  slot.insert(slot.end(), payload.begin(), payload.end());
  slot.resize(kAcksSlotBytes);
  return slot;
}

void fuzz_head(ByteSpan file) {
  const auto head = decode_head(test_identity(), file);
  if (!head) return require_clean(head.error());
  Bytes again(2 * kHeadSlotBytes);
  std::ranges::copy(*encode_head(*head), again.begin());
  const auto twice = decode_head(test_identity(), again);
  require(twice && *twice == *head, "HEAD changed in a round trip");
}

void fuzz_acks(ByteSpan file) {
  const auto acks = decode_acks(test_identity(), file);
  if (!acks) return require_clean(acks.error());
  Bytes again(2 * kAcksSlotBytes);
  std::ranges::copy(*encode_acks(*acks), again.begin());
  const auto twice = decode_acks(test_identity(), again);
  require(twice && *twice == *acks, "ACKS changed in a round trip");
}

}  // namespace

void fuzz_head_file(ByteSpan input) {
  ByteReader in(input);
  const uint8_t how = in.u8();
  const ByteSpan rest = in.raw(in.left());
  const bool wrap = how & 1, acks = how & 2;
  if (!wrap) return acks ? fuzz_acks(rest) : fuzz_head(rest);
  Bytes file((acks ? kAcksSlotBytes : kHeadSlotBytes) * 2);
  Bytes body;
  ByteWriter out(body);
  encode_identity(test_identity(), out);
  if (!acks) {
    out.raw(rest.first(std::min<size_t>(rest.size(), 3800)));
    std::ranges::copy(encode_header(FileKind::kHead, body, kHeadSlotBytes), file.begin());
    return fuzz_head(file);
  }
  out.u64(7);
  out.u8(0);
  const ByteSpan payload = rest.first(std::min(rest.size(), kAcksSlotBytes - kBlockBytes));
  out.u32(static_cast<uint32_t>(payload.size()));
  out.u64(checksum(payload, 7));
  std::ranges::copy(acks_slot(body, payload), file.begin());
  fuzz_acks(file);
}

void fuzz_evict_tables(ByteSpan input) {
  static auto policy = *evict::make_policy("prefix");  // as it was made, whenever a case begins
  static const Bytes untouched = policy->save();
  if (input.empty()) return;
  const bool wrap = (static_cast<unsigned>(input[0]) & 1) != 0;
  Bytes bytes(input.begin() + 1, input.end());
  if (wrap) {
    constexpr size_t kHeader = 8 + 2 + 1 + 6;  // magic, version, "prefix" with its length
    bytes.insert(bytes.begin(), untouched.begin(), untouched.begin() + kHeader);
    ByteWriter(bytes).u64(checksum(bytes));
  }
  if (const Status restored = policy->restore(bytes); !restored) {
    require_clean(restored.error());
    require(policy->save() == untouched, "refused tables changed the policy");
    return;
  }
  // What was taken in can be worked with and kept again.
  const auto used = std::move(policy);
  policy = *evict::make_policy("prefix");
  for (uint64_t unit = 1; unit <= 8; ++unit)
    used->publish({{unit}, {unit / 2}, {unit % 3}, true}, {static_cast<int64_t>(unit * 1000)});
  std::vector<evict::UnitKey> chosen;
  evict::Ask ask;
  ask.now = {60'000};
  used->choose(ask, chosen);
  require(chosen.size() == 1, "nothing to evict");
  bytes = used->save();
  require(used->restore(bytes).has_value() && used->save() == bytes, "tables changed in a round trip");
}

}  // namespace kvcachefs
