// Classes of ASCII characters, whatever the locale, by one table: names are classified several times a request.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace kvcachefs::ascii {

namespace internal {
inline constexpr uint8_t kDigit = 1, kLetter = 2, kHexLetter = 4;
constexpr std::array<uint8_t, 256> make_classes() {
  std::array<uint8_t, 256> classes{};
  for (int c = '0'; c <= '9'; ++c) classes[static_cast<size_t>(c)] = kDigit;
  for (int c = 'a'; c <= 'z'; ++c) {
    const uint8_t as = c <= 'f' ? kLetter | kHexLetter : kLetter;
    classes[static_cast<size_t>(c)] = classes[static_cast<size_t>(c - 'a' + 'A')] = as;
  }
  return classes;
}
inline constexpr std::array<uint8_t, 256> kClasses = make_classes();
constexpr bool is(char c, uint8_t classes) { return (kClasses[static_cast<unsigned char>(c)] & classes) != 0; }
}  // namespace internal

constexpr bool is_digit(char c) { return internal::is(c, internal::kDigit); }
constexpr bool is_letter(char c) { return internal::is(c, internal::kLetter); }
constexpr bool is_alnum(char c) { return internal::is(c, internal::kDigit | internal::kLetter); }
constexpr bool is_hex(char c) { return internal::is(c, internal::kDigit | internal::kHexLetter); }
constexpr char to_lower(char c) { return is_letter(c) ? static_cast<char>(c | 0x20) : c; }

constexpr bool equal_but_for_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return to_lower(x) == to_lower(y); });
}

}  // namespace kvcachefs::ascii
