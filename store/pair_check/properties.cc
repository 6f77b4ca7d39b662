#include "store/pair_check/properties.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "store/base/bytes.h"
#include "store/base/units.h"
#include "store/journal/block_buffer.h"

namespace kvcachefs {
namespace {

constexpr size_t kMostTold = 3;  // failures of a property on one side
constexpr unsigned kNamesOfRound = 8;

std::string at(std::string_view name) { return fmt::format("{}/{}", Meeting::kDirectory, name); }

void note(Failures& failures, std::string what) {
  if (failures.size() < kMostTold) failures.push_back(std::move(what));
}

OpenOptions direct_if_there(const Volume& volume, bool create) {
  return {.writable = create, .create_exclusive = create, .direct = volume.features().direct_io};
}

// The number of a round, in a block of its own.
class Numbers {
 public:
  static Result<Numbers> open(Volume& volume, const std::string& path, bool create) {
    KVC_ASSIGN(FilePtr file, volume.open(path, direct_if_there(volume, create)));
    return Numbers(std::move(file));
  }
  Status write(uint64_t number, uint64_t offset) {
    Bytes bytes;
    ByteWriter(bytes).u64(number);
    KVC_TRY(buffer_.write(*file_, bytes, offset));
    return file_->is_direct() ? Status() : file_->sync_data();
  }
  // 0: there is none.
  Result<uint64_t> read(uint64_t offset) {
    Bytes bytes(sizeof(uint64_t));
    KVC_ASSIGN(const size_t got, buffer_.read(*file_, bytes, offset));
    return got < bytes.size() ? 0 : ByteReader(bytes).u64();
  }

 private:
  explicit Numbers(FilePtr file) : file_(std::move(file)) {}
  FilePtr file_;
  BlockBuffer buffer_;
};

// For each side in turn: prepare() on the side that looks, act() on the other one, look() on the first. Rounds count from 1.
template <class Prepare, class Act, class Look>
Status take_turns(Meeting& meeting, unsigned rounds, const Prepare& prepare, const Act& act, const Look& look) {
  for (const int actor : {1, 2}) {
    for (unsigned round = 1; round <= rounds; ++round) {
      if (meeting.side() != actor) KVC_TRY(prepare(round));
      KVC_TRY(meeting.exchange());
      if (meeting.side() == actor) KVC_TRY(act(round));
      KVC_TRY(meeting.exchange());
      if (meeting.side() != actor) KVC_TRY(look(round));
    }
    KVC_TRY(meeting.exchange());
  }
  return {};
}

}  // namespace

Result<Failures> try_completed_writes(Volume& volume, Meeting& meeting, unsigned rounds) {
  const std::array<std::string, 2> kinds = {"overwritten", "appended"};
  const auto path = [&](int side, size_t kind) { return at(fmt::format("{}-by-{}", kinds[kind], side)); };
  const auto offset_of = [](size_t kind, unsigned round) { return kind == 0 ? 0 : round * uint64_t{kBlockBytes}; };
  std::vector<Numbers> mine, others;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    KVC_ASSIGN(Numbers made, Numbers::open(volume, path(meeting.side(), kind), true));
    KVC_TRY(made.write(0, 0));
    mine.push_back(std::move(made));
  }
  KVC_TRY(meeting.exchange());
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    KVC_ASSIGN(Numbers seen, Numbers::open(volume, path(3 - meeting.side(), kind), false));
    others.push_back(std::move(seen));
  }
  Failures failures;
  const auto prepare = [&](unsigned round) -> Status {  // lets this machine cache something older
    for (size_t kind = 0; kind < kinds.size(); ++kind) KVC_TRY(others[kind].read(offset_of(kind, round)));
    return {};
  };
  const auto act = [&](unsigned round) -> Status {
    for (size_t kind = 0; kind < kinds.size(); ++kind) KVC_TRY(mine[kind].write(round, offset_of(kind, round)));
    return {};
  };
  const auto look = [&](unsigned round) -> Status {
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      const auto check = [&](Numbers& numbers, const char* how) -> Status {
        KVC_ASSIGN(const uint64_t found, numbers.read(offset_of(kind, round)));
        if (found != round) note(failures, fmt::format("a block {} in round {} shows {} when {}", kinds[kind], round, found, how));
        return {};
      };
      if (volume.features().direct_io) KVC_TRY(check(others[kind], "it is read past the page cache of a file open for long"));
      KVC_ASSIGN(Numbers fresh, Numbers::open(volume, path(3 - meeting.side(), kind), false));
      KVC_TRY(check(fresh, "its file is opened anew"));
    }
    return {};
  };
  KVC_TRY(take_turns(meeting, rounds, prepare, act, look));
  return failures;
}

Result<Failures> try_exclusive_names(Volume& volume, Meeting& meeting, unsigned rounds) {
  const std::array<std::string, 3> ways = {"made exclusively", "made as a directory", "linked to"};
  const std::array<const char*, 3> prefix = {"file", "directory", "link"};
  const auto path = [&](size_t way, unsigned round, unsigned number) { return at(fmt::format("{}-{}-{}", prefix[way], round, number)); };
  const auto draft = [&](int side, unsigned round, unsigned number) { return at(fmt::format("draft-{}-{}-{}", side, round, number)); };
  const auto try_it = [&](size_t way, unsigned round, unsigned number) -> Status {
    if (way == 1) return volume.make_directory(path(way, round, number));
    if (way == 2) return volume.publish(draft(meeting.side(), round, number), path(way, round, number));
    auto made = volume.open(path(way, round, number), {.create_exclusive = true});
    return made ? Status() : std::unexpected(std::move(made).error());
  };
  Failures failures;
  for (unsigned round = 1; round <= rounds; ++round) {
    for (unsigned number = 0; number < kNamesOfRound; ++number) {
      KVC_ASSIGN(Numbers mine, Numbers::open(volume, draft(meeting.side(), round, number), true));
      KVC_TRY(mine.write(static_cast<uint64_t>(meeting.side()), 0));
    }
    KVC_TRY(meeting.exchange());
    std::string won;  // '1' for each name that this side made
    for (unsigned number = 0; number < kNamesOfRound; ++number) {
      for (size_t way = 0; way < ways.size(); ++way) {
        Status done = try_it(way, round, number);
        if (!done && done.error().code != Code::kExists) return std::unexpected(std::move(done).error());
        won += done ? '1' : '0';
      }
    }
    KVC_ASSIGN(const std::string others, meeting.exchange(won));
    for (size_t i = 0; i < won.size(); ++i) {
      const unsigned number = static_cast<unsigned>(i / ways.size());
      const size_t way = i % ways.size();
      const bool other_won = i < others.size() && others[i] == '1';
      if ((won[i] == '1') == other_won)
        note(failures, fmt::format("a name that was {} by both at once in round {}: {} succeeded", ways[way], round, other_won ? "both" : "neither"));
      if (way != 2) continue;
      auto linked = Numbers::open(volume, path(way, round, number), false);
      if (!linked && linked.error().code == Code::kNotFound) {
        note(failures, fmt::format("a name that was linked to in round {} is not found", round));
        continue;
      }
      if (!linked) return std::unexpected(std::move(linked).error());
      KVC_ASSIGN(const uint64_t by, linked->read(0));
      const int winner = other_won ? 3 - meeting.side() : meeting.side();
      if ((won[i] == '1') != other_won && by != static_cast<uint64_t>(winner))
        note(failures, fmt::format("a name that was linked to in round {} by one machine has the file of the other", round));
    }
  }
  KVC_TRY(meeting.exchange());
  return failures;
}

Result<Failures> try_listings(Volume& volume, Meeting& meeting, unsigned rounds) {
  const std::array<std::string, 4> ways = {"file", "directory", "link", "renamed file"};
  const auto directory = [](int side) { return at(fmt::format("listing-of-{}", side)); };
  const auto name = [&](unsigned round) { return fmt::format("{}", round); };
  const auto draft = [&](unsigned round) { return at(fmt::format("unlisted-{}-{}", meeting.side(), round)); };
  KVC_TRY(volume.make_directory(directory(meeting.side())));
  KVC_TRY(meeting.exchange());
  Failures failures;
  const auto prepare = [&](unsigned) -> Status {
    KVC_TRY(volume.list(directory(3 - meeting.side())));
    return {};
  };
  const auto act = [&](unsigned round) -> Status {
    const std::string path = directory(meeting.side()) + "/" + name(round);
    const size_t way = round % ways.size();
    if (way == 1) return volume.make_directory(path);
    KVC_TRY(volume.open(way == 0 ? path : draft(round), {.create_exclusive = true}));
    if (way == 2) return volume.publish(draft(round), path);
    return way == 3 ? volume.rename(draft(round), path) : Status();
  };
  const auto look = [&](unsigned round) -> Status {
    KVC_ASSIGN(const auto there, volume.list(directory(3 - meeting.side())));
    if (std::ranges::find(there, name(round), &DirectoryEntry::name) == there.end())
      note(failures, fmt::format("a {} made in round {} is not in the listing", ways[round % ways.size()], round));
    return {};
  };
  KVC_TRY(take_turns(meeting, rounds, prepare, act, look));
  return failures;
}

Result<Failures> try_locks(Volume& volume, Meeting& meeting, unsigned rounds) {
  const std::string path = at("LOCK");
  Failures failures;
  std::unique_ptr<VolumeLock> held;
  for (const int actor : {1, 2}) {
    for (unsigned round = 1; round <= rounds; ++round) {
      const bool acts = meeting.side() == actor;
      if (acts) {
        auto had = volume.lock(path);
        if (!had && had.error().code != Code::kBusy) return std::unexpected(std::move(had).error());
        if (!had) note(failures, fmt::format("a lock that nobody held was refused in round {}", round));
        if (had) held = std::move(*had);
      }
      KVC_TRY(meeting.exchange());
      if (!acts) {
        auto had = volume.lock(path);
        if (!had && had.error().code != Code::kBusy) return std::unexpected(std::move(had).error());
        if (had) note(failures, fmt::format("a lock that the other machine held was given in round {}", round));
      }
      KVC_TRY(meeting.exchange());
      held.reset();
      KVC_TRY(meeting.exchange());
      if (!acts) {
        auto had = volume.lock(path);
        if (!had && had.error().code != Code::kBusy) return std::unexpected(std::move(had).error());
        if (!had) note(failures, fmt::format("a lock that the other machine had given up was refused in round {}", round));
      }
      KVC_TRY(meeting.exchange());
    }
  }
  return failures;
}

}  // namespace kvcachefs
