"""Runs one client library: imports a worker module once, then forks a fresh process for every request.

Importing torch and a client takes seconds; a fork takes milliseconds. The parent of the forks never touches the
directory under test, so a forked process knows of the stored data only what it reads there.

usage: client_process.py MODULE      requests on standard input, one JSON object a line:
    {"id", "op", "args", "log", "result"}     runs MODULE.op(**args); its return value is written to `result` as JSON
answers on standard output: {"id", "pid"} when started, {"id", "status"} when ended.
"""

import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
import traceback

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """No process is left behind, also when the one above is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_request(worker, request) -> int:
    log_fd = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    try:
        result = getattr(worker, request["op"])(**request["args"])
        with open(request["result"], "w", encoding="utf-8") as file:
            json.dump(result, file)
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what client libraries print must not mix with the answers
    worker = importlib.import_module(sys.argv[1])
    answers.write(json.dumps({"imported": sys.argv[1]}) + "\n")

    selector = selectors.DefaultSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ, None)
    pending = b""
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                request_id, pid, pid_fd = key.data
                selector.unregister(pid_fd)
                os.close(pid_fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                answers.write(json.dumps({"id": request_id, "status": status}) + "\n")
                continue
            chunk = os.read(sys.stdin.fileno(), 65536)
            if not chunk:
                os._exit(0)
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    die_with_parent()
                    os._exit(run_request(worker, request))
                pid_fd = os.pidfd_open(pid)
                selector.register(pid_fd, selectors.EVENT_READ, (request["id"], pid, pid_fd))
                answers.write(json.dumps({"id": request["id"], "pid": pid}) + "\n")


if __name__ == "__main__":
    main()
