// What belongs to the process and not to the mount: its limits, how its start is reported, which signals end it. Private to fs/.
#pragma once

#include <atomic>

#include "fs/options.h"
#include "store/base/result.h"

namespace kvcachefs {

class RequestLoop;

// What is the process's and not the mount's.
Status set_up_process(const MountOptions& options);
// An engine without its cache goes on; a dead mount takes it down.
void lower_oom_score();
void raise_descriptor_limit();

// Tells who started the daemon how it went: through a pipe to the waiting parent, or on stderr.
class Readiness {
 public:
  // Forks unless in the foreground; the parent waits for the report and exits with it.
  static Readiness start(bool foreground);
  void ready();
  int failed(const Error& error);

 private:
  void report(std::string_view text);
  int pipe_ = -1;
};

// SIGTERM, SIGINT and SIGHUP end the loop; the mount is then taken down in order. Not before it was announced: who announces
// it asks the mount, and waits for the answer. Afterwards what is staged is written out, which may take minutes: a second
// SIGTERM or SIGHUP must not lose it. Ctrl-C pressed again still ends the daemon.
class StopOnSignals {
 public:
  explicit StopOnSignals(RequestLoop& loop);
  static void mount_is_announced();
  ~StopOnSignals();

 private:
  static inline std::atomic<RequestLoop*> loop_to_stop{nullptr};  // of the handler
  static inline std::atomic<bool> wanted{false}, announced{false};

  static void set(int number, void (*handler)(int));
};

}  // namespace kvcachefs
