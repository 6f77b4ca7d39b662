#include "store/pair_check/pair_check.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "store/pair_check/meeting.h"
#include "store/pair_check/properties.h"

namespace kvcachefs {
namespace {

constexpr unsigned kLeastRounds = 4;  // each way of making a name once

struct Trial {
  const char* name;
  const char* consequence;
  Result<Failures> (*run)(Volume&, Meeting&, unsigned rounds);
};

constexpr std::array<Trial, 4> kTrials = {{
    {"a completed write is seen by the other machine",
     "nodes would read old journals of each other: give each machine a volume of its own, or mount the file system without caches of data (FUSE "
     "clients: direct I/O, no writeback cache)",
     try_completed_writes},
    {"of two that make the same name one succeeds",
     "two daemons could begin the same node or volume: give each machine a volume of its own", try_exclusive_names},
    {"a name that was made is in the next listing",
     "nodes would find each other late or never: give each machine a volume of its own, or mount the file system without caches of directories",
     try_listings},
    {"a lock keeps the other machine out",
     "a second daemon of a live node's name is found only by what that writes, a second later, and a daemon that was cut off is not fenced: mount "
     "NFS without nolock and local_lock, Lustre with -o flock; or see to it that no two daemons have the same node=",
     try_locks},
}};

// Both sides send both their failures, one to a line.
std::string joined(const Failures& failures) {
  std::string text;
  for (const std::string& each : failures) text += each + "\n";
  return text;
}

void add_lines(std::string_view text, const std::string& prefix, Failures& failures) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    failures.push_back(prefix + std::string(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// The number of rounds that both sides run.
Result<unsigned> agree_on_rounds(Meeting& meeting, unsigned rounds) {
  KVC_ASSIGN(const std::string others, meeting.exchange(fmt::format("{}", rounds)));
  unsigned number = 0;
  if (std::from_chars(others.data(), others.data() + others.size(), number).ec != std::errc() || number == 0)
    return fail(Code::kCanceled, fmt::format("the check on {} is of another version: it says '{}'", meeting.other_host(), others.substr(0, 100)));
  return std::max(kLeastRounds, std::min(rounds, number));
}

Status run_trials(Volume& volume, Meeting& meeting, const PairCheckRequest& request, PairCheckReport& report) {
  KVC_ASSIGN(const unsigned rounds, agree_on_rounds(meeting, request.rounds));
  for (size_t i = 0; i < kTrials.size(); ++i) {
    const Trial& trial = kTrials[i];
    if (request.tell) request.tell(fmt::format("trying: {}", trial.name));
    KVC_ASSIGN(const Failures saw, trial.run(volume, meeting, rounds));
    KVC_ASSIGN(const std::string others, meeting.exchange(joined(saw)));
    PairCheckReport::Property& property = report.properties[i];
    property.name = trial.name;
    add_lines(joined(saw), "", property.failures);
    add_lines(others, "on " + meeting.other_host() + ": ", property.failures);
    if (!property.failures.empty()) property.consequence = trial.consequence;
  }
  return {};
}

}  // namespace

bool PairCheckReport::holds() const {
  return std::ranges::all_of(properties, [](const Property& each) { return each.failures.empty(); });
}

Result<PairCheckReport> check_volume(const std::string& root, const PairCheckRequest& request) {
  KVC_ASSIGN(const std::shared_ptr<Volume> volume, open_posix_volume(root, {.io_uring = false}));
  return check_volume(*volume, request);
}

Result<PairCheckReport> check_volume(Volume& volume, const PairCheckRequest& request) {
  KVC_ASSIGN(const std::unique_ptr<Meeting> meeting,
             Meeting::begin(volume, {.host = request.host,
                                     .wait_ns = request.wait_ns,
                                     .patience_ns = request.patience_ns,
                                     .stands_ns = request.stands_ns,
                                     .tell = request.tell}));
  PairCheckReport report;
  report.root = volume.root();
  report.filesystem = volume.features().filesystem;
  report.other_host = meeting->other_host();
  report.same_machine = meeting->is_same_machine();
  if (request.tell) request.tell(fmt::format("together with {}", report.other_host));
  Status done = run_trials(volume, *meeting, request, report);
  if (!done) {
    meeting->give_up(done.error().message);
    Error error = std::move(done).error();
    for (const PairCheckReport::Property& each : report.properties)
      if (!each.failures.empty()) error.message += fmt::format("; before that: fails: {}: {}", each.name, each.failures.front());
    return std::unexpected(std::move(error));
  }
  meeting->end();
  return report;
}

}  // namespace kvcachefs
