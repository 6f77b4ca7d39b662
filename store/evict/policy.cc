#include "store/evict/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "store/base/checksum.h"
#include "store/evict/flat_policies.h"
#include "store/evict/lru_policy.h"
#include "store/evict/prefix_policy.h"

namespace kvcachefs::evict {

namespace {
constexpr std::string_view kMagic = "KVCEVICT";
constexpr uint16_t kVersion = 1;
constexpr size_t kChecksumBytes = 8;
constexpr size_t kMostBytes = size_t{16} << 20;
}  // namespace

// Layout: magic, version, name of the policy, its tables, XXH3-64 of all that.
Bytes Policy::save() const {
  Bytes bytes;
  ByteWriter out(bytes);
  out.raw(as_bytes(kMagic));
  out.u16(kVersion);
  out.text(name());
  save_tables(out);
  out.u64(checksum(bytes));
  return bytes;
}

Status Policy::restore(ByteSpan bytes) {
  const auto corrupt = [](std::string what) { return fail(Code::kCorrupt, "tables of the eviction policy: " + std::move(what)); };
  if (bytes.size() < kMagic.size() + sizeof(kVersion) + 1 + kChecksumBytes || bytes.size() > kMostBytes)
    return corrupt(fmt::format("{} bytes cannot be", bytes.size()));
  if (as_text(bytes.first(kMagic.size())) != kMagic) return corrupt("they do not begin as such");
  const ByteSpan body = bytes.first(bytes.size() - kChecksumBytes);
  ByteReader trailer(bytes.subspan(body.size()));
  if (trailer.u64() != checksum(body)) return corrupt("the checksum is wrong");
  ByteReader in(body.subspan(kMagic.size()));
  if (const uint16_t version = in.u16(); version != kVersion) {
    return fail(Code::kVersion, fmt::format("tables of the eviction policy: version {}, this program knows {}", version,
                                            kVersion));
  }
  if (const std::string_view of = in.text(); of != name())
    return corrupt(fmt::format("they are those of \"{}\", not of \"{}\"", of.substr(0, 32), name()));
  if (Status restored = restore_tables(in); !restored)
    return std::unexpected(std::move(restored).error().at("tables of the eviction policy"));
  return {};
}

Status Policy::restore_tables(ByteReader& in) {
  if (!in.ok() || !in.at_end()) return fail(Code::kCorrupt, "there is more than there should be");
  return {};
}

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names = {"prefix", "lru", "fifo-reinsert", "s3fifo"};
  return names;
}

Result<std::unique_ptr<Policy>> make_policy(std::string_view name, uint64_t seed) {
  if (name == "prefix") return std::make_unique<PrefixPolicy>(seed);
  if (name == "lru") return std::make_unique<LruPolicy>();
  if (name == "fifo-reinsert") return std::make_unique<FifoReinsert>();
  if (name == "s3fifo") return std::make_unique<S3Fifo>();
  return fail(Code::kInvalid,
              fmt::format("there is no eviction policy \"{}\": choose one of {}", name, fmt::join(policy_names(), ", ")));
}

}  // namespace kvcachefs::evict
