#include "store/evict/unit_name.h"

#include <algorithm>
#include <span>

#include "store/base/ascii.h"
#include "store/base/bytes.h"
#include "store/base/checksum.h"

namespace kvcachefs::evict {

using ascii::is_alnum;
using ascii::is_digit;
using ascii::is_hex;

namespace {

constexpr size_t kShortestHash = 8;
constexpr std::string_view kSidecarSuffix = ".metadata";

// Hashes its input without a buffer for the whole name.
class Absorber {
 public:
  explicit Absorber(uint64_t seed) : hash_(seed) {}
  void add(char c) {
    word_ = (word_ << 8) | static_cast<unsigned char>(c);
    if (++count_ == 8) fold();
  }
  uint64_t digest() {
    fold();
    return mix_key(hash_ + 1);
  }

 private:
  void fold() {
    hash_ = mix_key(hash_ ^ mix_key(word_ + 0x9e3779b97f4a7c15ULL * (count_ + 1)));
    word_ = 0;
    count_ = 0;
  }
  uint64_t hash_;
  uint64_t word_ = 0;
  uint64_t count_ = 0;
};

// "8B", "350M": a number with a unit at the end of a word distinguishes models, so it is no field.
bool is_model_size(std::string_view text, size_t end) {
  if (end >= text.size()) return false;
  constexpr std::string_view kUnits = "bBmMkKtT";
  return kUnits.find(text[end]) != std::string_view::npos && (end + 1 == text.size() || !is_alnum(text[end + 1]));
}

// Replaces every number by '#': "0x1f" as a whole, elsewhere the run of digits. A field of the single letter k or v (the halves of a chunk
// that some clients store separately) becomes '#', too.
void mask(std::string_view text, Absorber& out) {
  for (size_t at = 0; at < text.size();) {
    const bool starts_word = at == 0 || !is_alnum(text[at - 1]);
    if (starts_word && text[at] == '0' && at + 2 < text.size() && text[at + 1] == 'x' && is_hex(text[at + 2])) {
      at += 2;
      while (at < text.size() && is_hex(text[at])) ++at;
      out.add('#');
    } else if (is_digit(text[at])) {
      size_t end = at;
      while (end < text.size() && is_digit(text[end])) ++end;
      if (is_model_size(text, end)) {
        for (; at < end; ++at) out.add(text[at]);
      } else {
        out.add('#');
        at = end;
      }
    } else {
      const bool half = starts_word && at > 0 && (text[at] == 'k' || text[at] == 'v') &&
                        (at + 1 == text.size() || !is_alnum(text[at + 1]));
      out.add(half ? '#' : text[at]);
      ++at;
    }
  }
}

// Returns the longest run of hexadecimal digits, the first of equals; a prefix "0x" does not belong to it.
std::string_view longest_run(std::string_view name) {
  std::string_view best;
  for (size_t at = 0; at < name.size();) {
    size_t end = at;
    while (end < name.size() && is_hex(name[end])) ++end;
    if (end - at > best.size()) best = name.substr(at, end - at);
    at = std::max(end, at + 1);
  }
  return best;
}

// A component that is one to three hexadecimal digits, or begins with two or three before a field, only spreads names out.
size_t fan_out_length(std::string_view name) {
  size_t length = 0;
  while (length < name.size() && is_hex(name[length])) ++length;
  if (length == name.size()) return length <= 3 ? length : 0;
  return (length == 2 || length == 3) && (name[length] == '_' || name[length] == '-') ? length : 0;
}

}  // namespace

StemKey directory_stem(StemKey parent, std::string_view name) {
  Absorber stem(parent.value);
  const size_t fan_out = fan_out_length(name);
  if (fan_out > 0) stem.add('*');
  mask(name.substr(fan_out), stem);
  stem.add('/');
  return {stem.digest()};
}

UnitName unit_name(StemKey directory, std::string_view name) {
  if (name.size() > kSidecarSuffix.size() && name.ends_with(kSidecarSuffix)) name.remove_suffix(kSidecarSuffix.size());
  const std::string_view run = longest_run(name);
  Absorber stem(directory.value);
  if (run.size() < kShortestHash) {  // not named by content: its whole name identifies it
    const size_t dot = name.rfind('.');
    if (dot != std::string_view::npos) mask(name.substr(dot), stem);
    stem.add('?');
    const StemKey key{stem.digest()};
    const uint64_t unit = mix_key(checksum(as_bytes(name), key.value));
    return {{unit == 0 ? 1 : unit}, key};
  }
  const auto start = static_cast<size_t>(run.data() - name.data());
  mask(name.substr(0, start), stem);
  stem.add('*');
  mask(name.substr(start + run.size()), stem);
  const StemKey key{stem.digest()};
  const uint64_t unit = mix_key(checksum(as_bytes(run), key.value));
  return {{unit == 0 ? 1 : unit}, key};
}

UnitName unit_of_path(std::string_view path) {
  StemKey directory = kRootStem;
  for (;;) {
    const size_t slash = path.find('/');
    if (slash == std::string_view::npos) return unit_name(directory, path);
    if (slash > 0) directory = directory_stem(directory, path.substr(0, slash));
    path.remove_prefix(slash + 1);
  }
}

}  // namespace kvcachefs::evict
