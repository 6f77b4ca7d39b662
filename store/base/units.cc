#include "store/base/units.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace kvcachefs {

namespace {
// 0 if the letter is no unit.
uint64_t unit_bytes(char letter) {
  switch (letter) {
    case 'k':
    case 'K': return kKiB;
    case 'm':
    case 'M': return kMiB;
    case 'g':
    case 'G': return kGiB;
    case 't':
    case 'T': return kTiB;
    default: return 0;
  }
}
}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
  auto refuse = [&] {
    return fail(Code::kInvalid, fmt::format("'{}' is not a size (examples: 4096, 64K, 1.5G, 2T)", text));
  };
  // "64MB" means 64 x 1000 x 1000 to some users and 64 x 1024 x 1024 to others.
  auto refuse_ambiguous = [&](const char* letter) {
    const std::string_view number(text.data(), static_cast<size_t>(letter - text.data()));
    return fail(Code::kInvalid, fmt::format("'{}' may mean powers of 1000 or of 1024: write {}{} or {}{}iB, which are of 1024, or the "
                                            "number of bytes",
                                            text, number, *letter, number, *letter));
  };
  double number = 0;
  const char* end = text.data() + text.size();
  auto [stop, ec] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (ec != std::errc() || stop == text.data() || number < 0 || !std::isfinite(number)) return refuse();
  uint64_t unit = 1;
  if (stop != end) {
    unit = unit_bytes(*stop);
    if (unit == 0) return refuse();
    const std::string_view rest(stop + 1, static_cast<size_t>(end - stop - 1));
    if (rest == "B" || rest == "b") return refuse_ambiguous(stop);
    if (!rest.empty() && rest != "i" && rest != "iB") return refuse();
  }
  const double bytes = number * static_cast<double>(unit);
  if (bytes >= 9.2e18 || (unit == 1 && bytes != std::floor(bytes))) return refuse();  // fractions of a unit like "226.8G" are cut to whole bytes
  return static_cast<uint64_t>(bytes);
}

std::string format_size(uint64_t bytes) {
  constexpr std::pair<uint64_t, char> kUnits[] = {{kTiB, 'T'}, {kGiB, 'G'}, {kMiB, 'M'}, {kKiB, 'K'}};
  for (auto [unit, letter] : kUnits) {
    if (bytes < unit) continue;
    if (bytes % unit == 0) return fmt::format("{}{}", bytes / unit, letter);
    return fmt::format("{:.1f}{}", static_cast<double>(bytes) / static_cast<double>(unit), letter);
  }
  return fmt::format("{}", bytes);
}

}  // namespace kvcachefs
