// The process, as opposed to the mount: its limits, the report of its start, the signals that end it. Private to fs/.
#pragma once

#include <functional>
#include <string_view>

#include "fs/options.h"
#include "store/base/result.h"
#include "store/base/unique_fd.h"

namespace kvcachefs {

class RequestLoop;

// Sets up the log, and the kill point of a test.
Status set_up_process(const MountOptions& options);
// Makes the kernel kill other processes first when memory runs out: a dead mount takes an engine down.
void lower_oom_score();
Status raise_descriptor_limit();  // kInvalid: there are too few for any work
// kInvalid: the process may write no files as large as the store's, or is to be killed after some time on the processor; either would
// lose what was accepted. Whoever starts the process has raised these limits as far as may be.
Status check_limits();
// Makes free() return large pieces of the heap to the machine. Call before there are other threads.
void give_back_large_pieces();

// Tells how the start went: through a pipe to the command that waits for the daemon, or on stderr where it is the command itself.
class Readiness {
 public:
  // Forks unless in the foreground. The parent does not return: it waits for the report and exits with it, and after a failure only
  // once the daemon has ended. It passes SIGTERM, SIGINT and SIGHUP on to the daemon; one that has not ended after some seconds, or
  // at the second signal, is killed. `clean_up` removes the mount of a daemon that was killed; `hangs`: in the
  // kernel, so its mount does not answer ENOTCONN yet.
  static Readiness start(bool foreground, const std::function<void(bool hangs)>& clean_up);
  // From here on the death of the command is seen by abandoned() alone; before, it is a SIGTERM. In the thread that started.
  void watch();
  // The command that waits for the report is gone.
  bool abandoned() const;
  bool foreground() const { return !forked_; }
  // Reports success. False if the command that waited is gone.
  bool ready();
  // Reports the failure and returns the exit status. Call ready() or failed(), once.
  int failed(const Error& error);

 private:
  bool report(std::string_view text);
  bool forked_ = false;
  UniqueFd pipe_;
};

// While one lives, SIGTERM, SIGINT and SIGHUP end the loop, which is told to it later; the mount is then taken down in order.
// The daemon then writes out its staged data, which may take minutes; a second SIGTERM or SIGHUP does not stop that. A second Ctrl-C
// ends the daemon.
class StopOnSignals {
 public:
  StopOnSignals();
  StopOnSignals(const StopOnSignals&) = delete;
  StopOnSignals& operator=(const StopOnSignals&) = delete;
  ~StopOnSignals();
  void set_loop(RequestLoop& loop);  // which outlives this
  static bool wanted();              // a signal came

 private:
  static void set(int number, void (*handler)(int));
};

// The process ends within some seconds, by SIGALRM, whatever it waits for: for the end of a start that failed.
void end_soon();

}  // namespace kvcachefs
