#include "store/base/kill_point.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvcachefs {

namespace {
std::atomic<uint64_t> passings_left{0};
}

Status arm_kill_point(std::string_view text) {
  if (text.empty()) return {};
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  uint64_t count = 1;
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if (error != std::errc{} || end != digits.data() + digits.size() || count == 0)
      return fail(Code::kInvalid, fmt::format("kill point '{}': '{}' is not a number from 1 on", text, digits));
  }
  const auto found = std::find(kKillPoints.begin(), kKillPoints.end(), name);
  if (found == kKillPoints.end())
    return fail(Code::kInvalid,
                fmt::format("there is no kill point '{}'; there are {}", name, fmt::join(kKillPoints, ", ")));
  passings_left.store(count);
  detail::armed_kill_point.store(static_cast<uint32_t>(found - kKillPoints.begin()));
  return {};
}

namespace detail {

bool last_passing() { return passings_left.fetch_sub(1) == 1; }

void die() {
  for (;;) ::kill(::getpid(), SIGKILL);  // the signal may take a moment to arrive
}

}  // namespace detail
}  // namespace kvcachefs
