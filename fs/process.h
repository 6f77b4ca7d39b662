// The process, as opposed to the mount: its limits, the report of its start, the signals that end it. Private to fs/.
#pragma once

#include <functional>
#include <string_view>

#include "fs/options.h"
#include "store/base/result.h"
#include "store/base/unique_fd.h"

namespace kvcachefs {

class RequestLoop;

// Sets up the log, and the kill point if a test asks for one.
Status set_up_process(const MountOptions& options);
// Makes the kernel kill other processes first when memory runs out: a dead mount stops an inference engine.
void lower_oom_score();
Status raise_descriptor_limit();  // kInvalid: the limit is too low for any work
// Returns kInvalid if the process may not write files as large as the store's, or is to be killed after some processor time; either would
// lose accepted data. The command has raised these limits as far as it may (tools/inherited.h).
Status check_limits();
// Makes free() return blocks of the heap to the machine from a size on that is small beside `memory`. Call before there are other threads, and again when
// the memory is known, if it was not.
void tune_heap(uint64_t memory_bytes);

// Reports how the start went: through a pipe to the command that waits for the daemon, or on stderr in the foreground.
class Readiness {
 public:
  // Forks unless in the foreground. The parent does not return: it waits for the report and exits with its status; after a failure it exits only
  // once the daemon has ended. It passes SIGTERM, SIGINT and SIGHUP on to the daemon. It kills a daemon that has not ended after some seconds,
  // or at the second signal. `clean_up` removes the mount of a killed daemon; `hangs`: the daemon hangs in the
  // kernel, so its mount does not answer ENOTCONN yet. Fails if there can be no daemon: a limit of processes or descriptors.
  static Result<Readiness> start(bool foreground, const std::function<void(bool hangs)>& clean_up);
  // From here on only abandoned() reports the death of the command; before, the daemon gets SIGTERM. Call in the thread that called start().
  void watch();
  // True if the command that waits for the report has ended.
  bool abandoned() const;
  bool foreground() const { return !forked_; }
  // Reports success. Returns false if the command that waited has ended.
  bool ready();
  // Reports the failure and returns the exit status. Call ready() or failed(), once.
  int failed(const Error& error);

 private:
  bool report(std::string_view text);
  bool forked_ = false;
  UniqueFd pipe_;
};

// While such an object exists, SIGTERM, SIGINT and SIGHUP end the loop given to set_loop(); the mount is then taken down in order.
// The daemon then writes out its staged data, which may take minutes; SIGTERM or SIGHUP does not stop that, and neither does the first
// SIGINT (Ctrl-C) of the process, whatever ended the loop. The second ends the daemon.
class StopOnSignals {
 public:
  StopOnSignals();
  StopOnSignals(const StopOnSignals&) = delete;
  StopOnSignals& operator=(const StopOnSignals&) = delete;
  ~StopOnSignals();
  void set_loop(RequestLoop& loop);  // must outlive this
  static bool wanted();              // a signal came

 private:
  static void set(int number, void (*handler)(int));
};

// Makes SIGALRM end the process within some seconds, whatever it waits for. For the end of a start that failed.
void end_soon();

}  // namespace kvcachefs
