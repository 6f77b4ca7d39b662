#include "store/pair_check/meeting.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "store/base/boot_id.h"
#include "store/base/bytes.h"
#include "store/base/checksum.h"
#include "store/base/clock.h"
#include "store/base/units.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kMagic = 0x3152494150435643;  // "CVCPAIR1"
constexpr auto kPause = std::chrono::milliseconds(2);

std::string path_of(int side) { return fmt::format("{}/side-{}", Meeting::kDirectory, side); }

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
  constexpr int kMostTries = 4;  // each clears away what was left of others
  for (int tries = 0; tries < kMostTries; ++tries) {
    std::unique_ptr<Meeting> meeting(new Meeting(volume, setup));
    KVC_ASSIGN(const bool met, meeting->try_to_meet());
    if (met) return meeting;
    if (setup.tell) setup.tell("what was left of a check that was killed is removed");
    remove(volume);
  }
  return fail(Code::kBusy, fmt::format("{}/{}: others come and go there: remove it when no check-volume runs", volume.root(), kDirectory));
}

// False: what is there was left by somebody who does not run any more.
Result<bool> Meeting::try_to_meet() {
  Status made = volume_.make_directory(kDirectory);
  if (!made && made.error().code != Code::kExists) return std::unexpected(std::move(made).error());
  if (!made) {  // side 1 is the first to come, and the last to go
    KVC_ASSIGN(const auto there, volume_.list(kDirectory));
    const bool has_first = std::ranges::any_of(there, [](const DirectoryEntry& each) { return path_of(1).ends_with("/" + each.name); });
    if (!has_first && !there.empty()) return false;
  }
  for (side_ = 1; side_ <= 2; ++side_) {
    auto file = volume_.open(path_of(side_), {.create_exclusive = true, .direct = volume_.features().direct_io});
    if (!file && file.error().code == Code::kExists) continue;
    KVC_TRY(file);
    file_ = std::move(*file);
    if (side_ == 2) return meet_as_second();
    KVC_TRY(meet_as_first());
    return true;
  }
  KVC_ASSIGN(const bool stands, stands_still());
  if (!stands) return fail(Code::kBusy, fmt::format("{}: two others check it just now", volume_.root()));
  return false;
}

Status Meeting::meet_as_first() {
  KVC_TRY(say({id_, 0, 0, false, introduction()}));
  if (setup_.tell) setup_.tell(fmt::format("waiting for `kvcachefs check-volume` on another machine, on the same directory ({} there)", volume_.root()));
  auto other = await(0, setup_.wait_ns, true);
  if (other && *other) {
    know(**other);
    return say({id_, other_id_, 0, false, introduction()});
  }
  remove(volume_);
  KVC_TRY(other);
  return fail(Code::kBusy, fmt::format("{}: nobody came within {} s: run `kvcachefs check-volume` on this directory on a second machine meanwhile. If it "
                                       "runs there, that machine does not see the files of this one, and the volume cannot be shared",
                                       volume_.root(), setup_.wait_ns / 1'000'000'000));
}

// Side 1 may be there for long, or not run any more: it shows by its answer.
Result<bool> Meeting::meet_as_second() {
  KVC_ASSIGN(const auto first, await(0, setup_.stands_ns, false));
  if (!first) return false;
  KVC_TRY(say({id_, first->by, 0, false, introduction()}));
  KVC_ASSIGN(const auto answer, await(0, setup_.stands_ns, true));
  if (!answer) return false;
  know(*answer);
  return true;
}

void Meeting::know(const Said& other) {
  other_id_ = other.by;
  const size_t line = other.text.find('\n');
  other_host_ = other.text.substr(0, line);
  const std::string boot = boot_id();
  same_machine_ = !boot.empty() && line != std::string::npos && other.text.substr(line + 1) == boot;
}

std::string Meeting::introduction() const { return setup_.host + "\n" + boot_id(); }

// Of the two sides that are there already.
Result<bool> Meeting::stands_still() {
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
    std::this_thread::sleep_for(kPause * 50);
    KVC_TRY(look(after));
    if (after != before) return false;
  }
  return true;
}

// A step and the one after it lie in blocks of their own: who writes the one behind that has heard the other side's answer to this one.
Status Meeting::say(const Said& said) {
  KVC_TRY(buffer_.write(*file_, encode(said.by, said.to, said.step, said.gave_up, said.text), said.step % 2 * kBlockBytes));
  return file_->is_direct() ? Status() : file_->sync_data();
}

// Nothing: it is not there, or is just being written. A file that a client once found absent may stay so for it: it is looked for in a listing.
Result<std::optional<Meeting::Said>> Meeting::hear(int side, uint64_t step) {
  const std::string path = path_of(side);
  if (other_id_ == 0) {
    const auto there = volume_.list(kDirectory);
    if (!there && there.error().code == Code::kNotFound) return std::nullopt;
    KVC_TRY(there);
    if (std::ranges::none_of(*there, [&path](const DirectoryEntry& each) { return path.ends_with("/" + each.name); })) return std::nullopt;
  }
  const auto file = volume_.open(path, {.direct = volume_.features().direct_io});
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

// Nothing: it did not come.
Result<std::optional<Meeting::Said>> Meeting::await(uint64_t step, int64_t patience_ns, bool answers_me) {
  const int64_t until_ns = system_clock().monotonic_ns() + patience_ns;
  for (;;) {
    KVC_ASSIGN(auto said, hear(3 - side_, step));
    const bool right = said && said->step == step && (other_id_ == 0 || said->by == other_id_) && (!answers_me || said->to == id_);
    if (right) return said;
    if (system_clock().monotonic_ns() >= until_ns) return std::nullopt;
    std::this_thread::sleep_for(other_id_ == 0 ? kPause * 25 : kPause);
  }
}

Result<std::string> Meeting::exchange(std::string_view said) {
  ++step_;
  KVC_TRY(say({id_, other_id_, step_, false, std::string(said)}));
  KVC_ASSIGN(const auto other, await(step_, setup_.patience_ns, false));
  if (other && !other->gave_up) return other->text;
  remove(volume_);  // nobody else will
  if (other) return fail(Code::kCanceled, fmt::format("the check on {} gave up: {}", other_host_, other->text));
  return fail(Code::kCanceled, fmt::format("{}: the check on {} has said nothing for {} s", volume_.root(), other_host_, setup_.patience_ns / 1'000'000'000));
}

void Meeting::end() {
  ++step_;
  const Status said = say({id_, other_id_, step_, false, {}});
  if (side_ != 1 || !said) return;
  static_cast<void>(await(step_, setup_.patience_ns, false));
  remove(volume_);
}

void Meeting::give_up(std::string_view why) { static_cast<void>(say({id_, other_id_, step_ + 1, true, std::string(why)})); }

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
