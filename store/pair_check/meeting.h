// Two processes find each other in a directory of a volume and then go in step: each says something and waits until the other one
// has said as much. They use files only, each written by one side and opened anew for each read, past the page cache where the volume supports
// that: the least that any file system offers. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/result.h"
#include "store/journal/block_buffer.h"
#include "store/volume/volume.h"

namespace kvcachefs {

class Meeting {
 public:
  static constexpr const char* kDirectory = ".kvcachefs-check-volume";
  static constexpr size_t kMostSaid = 3000;  // bytes in one step; more is cut

  struct Setup {
    std::string host;
    int64_t wait_ns = 0;      // how long to wait for the other side to come
    int64_t patience_ns = 0;  // how long to wait for it at each step
    int64_t stands_ns = 0;    // a side that says nothing new for so long was killed; more than patience_ns
    std::function<void(const std::string&)> tell;
  };
  // Blocks until both sides are there. The one that comes first makes the directory, and is side 1.
  static Result<std::unique_ptr<Meeting>> begin(Volume& volume, Setup setup);

  int side() const { return side_; }
  const std::string& other_host() const { return other_host_; }
  bool is_same_machine() const { return same_machine_; }

  // Says `said` in the next step, and returns what the other side says in it. What this side did before the call is completed when the other
  // side's exchange() returns. After an error the meeting is over.
  Result<std::string> exchange(std::string_view said = {});
  // Tells the other side that this one stops: the other's exchange() returns an error with `why`, and removes the directory. Side 1 waits a moment
  // for the other side to give up as well, and then removes the directory itself.
  void give_up(std::string_view why);
  // Call instead of another exchange(), once this side has heard all that it needs. Side 1 waits until the other side says so too, and removes
  // the directory.
  void end();

 private:
  struct Said {
    uint64_t by = 0, to = 0, step = 0;  // `to`: 0 while the other side is not known
    bool gave_up = false;
    std::string text;
    bool operator==(const Said&) const = default;
  };
  enum class Try : uint8_t {
    kMet,
    kAgain,     // another process has begun anew meanwhile
    kLeftovers  // the files there were left by a process that does not run any more
  };
  Meeting(Volume& volume, Setup setup);
  Result<Try> try_to_meet();
  Result<Try> meet_as_first();
  Result<Try> meet_as_second();
  Result<Try> look_at_others();
  Status say(const Said& said);
  Result<std::optional<Said>> hear(int side, uint64_t step);
  // Waits until `until_ns`, or until this side's file is gone. nullopt: the other side did not say that step.
  Result<std::optional<Said>> await(uint64_t step, int64_t until_ns, bool answers_me);
  Result<bool> is_listed(int side);
  Result<bool> is_mine();
  void know(const Said& other);
  bool remove_if_mine();
  // Removes the directory and all in it; anything that cannot be removed stays.
  static void remove(Volume& volume);
  std::string introduction() const;

  Volume& volume_;
  const Setup setup_;
  const uint64_t id_;
  int side_ = 0;
  uint64_t other_id_ = 0, step_ = 0;
  std::string other_host_;
  bool same_machine_ = false;
  FilePtr file_;  // of this side
  BlockBuffer buffer_;
};

}  // namespace kvcachefs
