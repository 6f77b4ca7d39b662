#include "store/pair_check/meeting.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "store/base/boot_id.h"
#include "store/base/bytes.h"
#include "store/base/checksum.h"
#include "store/base/clock.h"
#include "store/base/units.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kMagic = 0x3152494150435643;  // "CVCPAIR1"
constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kGivesUpNs = 2 * kSecondNs;  // if both sides give up, they do so at the same step
constexpr auto kPause = std::chrono::milliseconds(2);

std::string name_of(int side) { return fmt::format("side-{}", side); }
std::string path_of(int side) { return fmt::format("{}/{}", Meeting::kDirectory, name_of(side)); }

bool has(const std::vector<DirectoryEntry>& entries, int side) {
  return std::ranges::find(entries, name_of(side), &DirectoryEntry::name) != entries.end();
}

uint64_t random_id() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32 | random()) | 1;
}

Bytes encode(uint64_t by, uint64_t to, uint64_t step, bool gave_up, std::string_view text) {
  Bytes bytes;
  ByteWriter out(bytes);
  out.u64(kMagic);
  out.u64(by);
  out.u64(to);
  out.u64(step);
  out.u8(gave_up ? 1 : 0);
  out.text(text.substr(0, Meeting::kMostSaid));
  out.u64(checksum(bytes));
  return bytes;
}

}  // namespace

Meeting::Meeting(Volume& volume, Setup setup) : volume_(volume), setup_(std::move(setup)), id_(random_id()) {}

Result<std::unique_ptr<Meeting>> Meeting::begin(Volume& volume, Setup setup) {
  const int64_t until_ns = system_clock().monotonic_ns() + std::max(setup.wait_ns, setup.stands_ns + 2 * kSecondNs);
  std::mt19937_64 random(random_id());
  for (;;) {
    std::unique_ptr<Meeting> meeting(new Meeting(volume, setup));
    KVC_ASSIGN(const Try tried, meeting->try_to_meet());
    if (tried == Try::kMet) return meeting;
    meeting->file_.reset();  // an open file keeps a name on some file systems
    if (tried == Try::kLeftovers) {
      if (setup.tell) setup.tell("what was left of a check that was killed is removed");
      remove(volume);
    }
    if (system_clock().monotonic_ns() >= until_ns)
      return fail(Code::kBusy, fmt::format("{}/{}: others come and go there: remove it when no check-volume runs. If two alone do, they do not see each "
                                           "other's files, and the volume cannot be shared",
                                           volume.root(), kDirectory));
    std::this_thread::sleep_for(std::chrono::milliseconds(10 + random() % 200));  // random, so that two sides that clear up at the same time do not collide again
  }
}

Result<Meeting::Try> Meeting::try_to_meet() {
  Status made = volume_.make_directory(kDirectory);
  if (!made && made.error().code != Code::kExists) return std::unexpected(std::move(made).error());
  if (!made) {  // side 1 is the first to come, and the last to go
    const auto there = volume_.list(kDirectory);
    if (!there && there.error().code == Code::kNotFound) return Try::kAgain;
    KVC_TRY(there);
    if (!has(*there, 1) && !there->empty()) return Try::kLeftovers;
  }
  for (side_ = 1; side_ <= 2; ++side_) {
    auto file = volume_.open(path_of(side_), {.create_exclusive = true, .direct = volume_.features().direct_io});
    if (!file && file.error().code == Code::kExists) continue;
    if (!file && file.error().code == Code::kNotFound) return Try::kAgain;  // the directory was removed
    KVC_TRY(file);
    file_ = std::move(*file);
    return side_ == 1 ? meet_as_first() : meet_as_second();
  }
  return look_at_others();
}

Result<Meeting::Try> Meeting::meet_as_first() {
  KVC_TRY(say({id_, 0, 0, false, introduction()}));
  if (setup_.tell) setup_.tell(fmt::format("waiting for `kvcachefs check-volume` on another machine, on the same directory ({} here)", volume_.root()));
  KVC_ASSIGN(const auto other, await(0, system_clock().monotonic_ns() + setup_.wait_ns, true));
  if (other) {
    know(*other);
    KVC_TRY(say({id_, other_id_, 0, false, introduction()}));
    return Try::kMet;
  }
  if (!remove_if_mine()) return Try::kAgain;  // another process took it for a leftover
  return fail(Code::kBusy, fmt::format("{}: nobody came within {} s: run `kvcachefs check-volume` on this directory on a second machine meanwhile. If it "
                                       "runs there, that machine does not see the files of this one, and the volume cannot be shared",
                                       volume_.root(), setup_.wait_ns / kSecondNs));
}

// Side 1 may have been there for long, or not run any more: its answer shows that it runs.
Result<Meeting::Try> Meeting::meet_as_second() {
  const int64_t begun_ns = system_clock().monotonic_ns();
  KVC_ASSIGN(const auto first, await(0, begun_ns + setup_.stands_ns, false));
  if (first) {
    KVC_TRY(say({id_, first->by, 0, false, introduction()}));
    KVC_ASSIGN(auto answer, await(0, begun_ns + std::min(kSecondNs, setup_.stands_ns), true));
    if (!answer && setup_.tell) setup_.tell(fmt::format("a check is there already: waiting {} s for whether it still runs", setup_.stands_ns / kSecondNs));
    if (!answer) {
      KVC_ASSIGN(answer, await(0, begun_ns + setup_.stands_ns, true));
    }
    if (answer) {
      know(*answer);
      return Try::kMet;
    }
  }
  KVC_ASSIGN(const bool mine, is_mine());
  return mine ? Try::kLeftovers : Try::kAgain;
}

void Meeting::know(const Said& other) {
  other_id_ = other.by;
  const size_t line = other.text.find('\n');
  other_host_ = other.text.substr(0, line);
  const std::string boot = boot_id();
  same_machine_ = !boot.empty() && line != std::string::npos && other.text.substr(line + 1) == boot;
}

std::string Meeting::introduction() const { return setup_.host + "\n" + boot_id(); }

// Both names are taken: by two sides that go in step, by processes just finding each other or clearing up, or by leftovers.
Result<Meeting::Try> Meeting::look_at_others() {
  std::array<std::optional<Said>, 4> before, after;
  const auto look = [this](std::array<std::optional<Said>, 4>& into) -> Status {
    for (size_t at = 0; at < into.size(); ++at) {
      KVC_ASSIGN(into[at], hear(at < 2 ? 1 : 2, at % 2));
    }
    return {};
  };
  KVC_TRY(look(before));
  const int64_t until_ns = system_clock().monotonic_ns() + setup_.stands_ns;
  while (system_clock().monotonic_ns() < until_ns) {
    std::this_thread::sleep_for(kPause * 25);
    KVC_TRY(look(after));
    if (after == before) continue;
    const bool in_step = std::ranges::any_of(after, [](const auto& said) { return said && said->step > 0; });
    if (in_step) return fail(Code::kBusy, fmt::format("{}: two others check it just now", volume_.root()));
    return Try::kAgain;
  }
  return Try::kLeftovers;
}

// A step and the next one lie in different blocks. The step after that overwrites this one: its writer has heard the other side's answer to this one.
Status Meeting::say(const Said& said) {
  if (!file_) return fail(Code::kCanceled, "the meeting is over");
  KVC_TRY(buffer_.write(*file_, encode(said.by, said.to, said.step, said.gave_up, said.text), said.step % 2 * kBlockBytes));
  return file_->is_direct() ? Status() : file_->sync_data();
}

Result<bool> Meeting::is_listed(int side) {
  const auto there = volume_.list(kDirectory);
  if (!there && there.error().code == Code::kNotFound) return false;
  KVC_TRY(there);
  return has(*there, side);
}

// nullopt: it is not there, or is just being written. A client that once found a file absent may go on doing so: it is looked for in a listing.
Result<std::optional<Meeting::Said>> Meeting::hear(int side, uint64_t step) {
  if (other_id_ == 0) {
    KVC_ASSIGN(const bool listed, is_listed(side));
    if (!listed) return std::nullopt;
  }
  const auto file = volume_.open(path_of(side), {.direct = volume_.features().direct_io});
  if (!file && file.error().code == Code::kNotFound) return std::nullopt;
  KVC_TRY(file);
  Bytes block(kBlockBytes);
  KVC_ASSIGN(const size_t got, buffer_.read(**file, block, step % 2 * kBlockBytes));
  ByteReader in(ByteSpan(block).first(got));
  const uint64_t magic = in.u64();
  Said said;
  said.by = in.u64();
  said.to = in.u64();
  said.step = in.u64();
  said.gave_up = in.u8() != 0;
  said.text = in.text();
  const size_t length = in.position();
  const uint64_t sum = in.u64();
  if (!in.ok() || magic != kMagic || sum != checksum(ByteSpan(block).first(length))) return std::nullopt;
  return said;
}

// nullopt: it did not come.
Result<std::optional<Meeting::Said>> Meeting::await(uint64_t step, int64_t until_ns, bool answers_me) {
  for (int64_t looked_ns = system_clock().monotonic_ns();;) {
    KVC_ASSIGN(auto said, hear(3 - side_, step));
    const bool right = said && said->step == step && (other_id_ == 0 || said->by == other_id_) && (!answers_me || said->to == id_);
    if (right) return said;
    const int64_t now_ns = system_clock().monotonic_ns();
    if (now_ns >= until_ns) return std::nullopt;
    if (other_id_ == 0 && now_ns - looked_ns >= kSecondNs / 2) {
      looked_ns = now_ns;
      KVC_ASSIGN(const bool mine, is_mine());
      if (!mine) return std::nullopt;
    }
    std::this_thread::sleep_for(other_id_ == 0 ? kPause * 10 : kPause);
  }
}

// Whether this side's file is still there under its name. A block that cannot be read now proves nothing.
Result<bool> Meeting::is_mine() {
  KVC_ASSIGN(const bool listed, is_listed(side_));
  if (!listed) return false;
  for (const uint64_t block : {0U, 1U}) {
    KVC_ASSIGN(const auto said, hear(side_, block));
    if (said && said->by != id_) return false;
  }
  return true;
}

Result<std::string> Meeting::exchange(std::string_view said) {
  ++step_;
  KVC_TRY(say({id_, other_id_, step_, false, std::string(said)}));
  KVC_ASSIGN(const auto other, await(step_, system_clock().monotonic_ns() + setup_.patience_ns, false));
  if (other && !other->gave_up) return other->text;
  remove_if_mine();  // nobody else will
  if (other) return fail(Code::kCanceled, fmt::format("the check on {} gave up: {}", other_host_, other->text));
  return fail(Code::kCanceled, fmt::format("{}: the check on {} has said nothing for {} s. If it runs, that machine or this one does not see what the other one "
                                           "writes, and the volume cannot be shared",
                                           volume_.root(), other_host_, setup_.patience_ns / kSecondNs));
}

void Meeting::end() {
  ++step_;
  const Status said = say({id_, other_id_, step_, false, {}});
  if (side_ != 1 || !said) return;
  static_cast<void>(await(step_, system_clock().monotonic_ns() + setup_.patience_ns, false));
  remove_if_mine();
}

void Meeting::give_up(std::string_view why) {
  ++step_;
  const Status said = say({id_, other_id_, step_, true, std::string(why)});
  if (side_ != 1 || !said) return;
  const auto other = await(step_, system_clock().monotonic_ns() + std::min(setup_.patience_ns, kGivesUpNs), false);
  if (other && *other && (*other)->gave_up) remove_if_mine();
}

// Leaves the directory alone if another process has begun there meanwhile.
bool Meeting::remove_if_mine() {
  const bool mine = is_mine().value_or(false);
  file_.reset();  // NFS keeps a name of an open file in the directory
  if (mine) remove(volume_);
  return mine;
}

void Meeting::remove(Volume& volume) {
  const auto clear = [&volume](const auto& self, const std::string& directory) -> void {
    const auto entries = volume.list(directory);
    if (!entries) return;
    for (const DirectoryEntry& entry : *entries) {
      const std::string path = directory + "/" + entry.name;
      if (entry.is_directory)
        self(self, path);
      else
        static_cast<void>(volume.remove_file(path));
    }
    static_cast<void>(volume.remove_directory(directory));
  };
  clear(clear, kDirectory);
}

}  // namespace kvcachefs
