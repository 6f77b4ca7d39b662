#include "store/base/mountinfo.h"

#include <algorithm>

namespace kvcachefs {

std::string unescape_mountinfo(std::string_view text) {
  constexpr size_t kDigits = 3;
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view digits = text.substr(at + 1, kDigits);
    const bool escaped = text[at] == '\\' && digits.size() == kDigits &&
                         std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '7'; });
    if (!escaped) {
      plain += text[at];
      continue;
    }
    plain += static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0'));
    at += kDigits;
  }
  return plain;
}

}  // namespace kvcachefs
