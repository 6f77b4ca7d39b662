// While no client uses the mount, reads chunks on the volume again and verifies their checksums, so that rot is found, and the chunk
// recomputed, before a request needs it. A pass goes over all bodies by id and continues after a restart where it stopped.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "store/base/backoff.h"
#include "store/base/clock.h"
#include "store/base/mutex.h"
#include "store/base/work_queue.h"
#include "store/commit/quarantine.h"
#include "store/index/index.h"
#include "store/load/body_reader.h"
#include "store/object/snapshot.h"
#include "store/tree/tree.h"
#include "store/upkeep/record_scrub.h"
#include "store/upkeep/scrub_pace.h"

namespace kvcachefs {

// Any thread may call begin_now(), set_rate() and counts(). mutex_ is a leaf.
class Scrubber {
 public:
  struct Parts {
    Index& index;
    Tree& tree;
    const BodyReader& reader;
    Quarantine& quarantine;
    Counters& counters;
    Clock& clock;
    BodyReader::Memory memory;
    std::function<uint64_t()> requests;  // number of clients' requests so far
    // Called once in a pass (RecordScrub). May be empty.
    std::function<RecordScrub::Read(const std::function<bool()>& goes_on)> verify_records = {};
  };
  explicit Scrubber(Parts parts);
  ~Scrubber() { stop(); }

  Status start();  // a thread (kvc-scrubber) that ticks once a second
  void stop();   // ends the thread; a tick under way ends with the unit it is reading

  void set_rate(uint64_t bytes_per_second);
  // Starts a pass from the beginning that includes recently written bodies and runs beside requests, until it or the mount ends.
  void begin_now();
  // Verifies this object of this node soon, even while clients send requests: another node read wrong bytes of it.
  void suspect(ObjectId id);
  // Verifies such objects: kSuspectedBytes, and one unit more, at most. Returns false if there was none. One thread, as for tick().
  bool look_at_suspected();
  // Verifies as much as the time since the last call allows. One thread, with no lock held; blocks on the volume.
  void tick();

  struct Counts {
    bool running = false;
    int64_t last_ended_ns = 0;  // end of the last whole pass; 0: none yet
    uint64_t passes = 0, bodies = 0, bytes = 0;  // in this run
    uint64_t damaged = 0;      // now in quarantine
    uint64_t unreadable = 0;   // the volume did not answer: looked at again in the next pass
  };
  Counts counts() const;

 private:
  static constexpr uint64_t kSuspectedBytes = ScrubPace::kAskedRate;  // in a second
  static constexpr size_t kMostSuspected = 1 << 12;                     // more are found by a pass
  static constexpr int64_t kYoungNs = int64_t{24} * 3600 * 1'000'000'000;
  struct Current {  // a body being verified
    ObjectId id;
    Snapshot stored;
    size_t next_unit = 0;
  };

  void begin(bool asked);
  void end_pass();
  void verify_records(uint64_t requests);
  bool next_body();
  bool next_suspected();
  uint64_t verify_unit(std::optional<Current>& body);
  void found_bad(const Current& current, const Error& error);
  static bool is_verifiable(const Body& body);
  bool is_to_be_verified(const ObjectRecord& record) const;

  const Parts parts_;
  std::atomic<bool> stopping_{false};
  Wakeup wakeup_;
  std::thread thread_;
  mutable LeafMutex mutex_;  // guards these
  ScrubPace pace_;
  std::unordered_set<ObjectId> suspected_;
  bool asked_ = false;  // begin_now() was called and no tick has run since
  Counts counts_;
  // of the thread that ticks
  ScrubMark mark_;
  bool all_ = false;  // a requested pass
  bool records_due_ = true;
  Backoff records_pause_{1'000'000'000, 3600'000'000'000};  // used when clients' requests interrupt the reading, which has to be done in one go
  std::vector<ObjectId> page_;
  size_t page_at_ = 0;
  std::optional<Current> current_, suspect_;
};

}  // namespace kvcachefs
