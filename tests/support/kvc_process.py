"""Work done in another process, forked so that it can be any function; its result, exception or fatal signal comes back."""

import ctypes
import os
import pickle
import select
import signal
import traceback

import kvc_env

# Descriptors that no child may keep open: the other end waits for their end of file.
close_in_children = []


class ChildFailed(AssertionError):
    """The other process raised something that is not an OSError, or was killed by a signal."""


class Child:
    """Runs function(*arguments) in a forked process at once; result() waits for it."""

    def __init__(self, function, *arguments):
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(writer, function, arguments)
        os.close(writer)

    def _run(self, writer, function, arguments):
        code = 0
        try:
            os.close(self._reader)
            for descriptor in close_in_children:
                os.close(descriptor)
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: no client outlives the test run
            # What the parent does on these (pytest's own clean-up) is not a child's business.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            try:
                message = pickle.dumps(("value", function(*arguments)))
            except OSError as error:
                message = pickle.dumps(
                    ("oserror", (error.errno, error.strerror, error.filename, traceback.format_exc()))
                )
            except BaseException:  # noqa: B902: the parent must hear of everything
                message = pickle.dumps(("failure", traceback.format_exc()))
            view = memoryview(message)
            while view:
                view = view[os.write(writer, view) :]
        except BaseException:
            code = 1
        finally:
            os._exit(code)

    def result(self):
        pieces = []
        while True:
            piece = os.read(self._reader, 1 << 20)
            if not piece:
                break
            pieces.append(piece)
        os.close(self._reader)
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSIGNALED(status):
            raise ChildFailed(f"the client process was killed by {signal.Signals(os.WTERMSIG(status)).name}")
        if not pieces:
            raise ChildFailed(f"the client process ended without a result (status {status})")
        kind, value = pickle.loads(b"".join(pieces))
        if kind == "failure":
            raise ChildFailed(value)
        if kind == "oserror":
            error = OSError(value[0], f"{value[1]} [{value[2]!r}] in the client process:\n{value[3]}")
            raise error
        return value


def in_process(function, *arguments):
    return Child(function, *arguments).result()


def in_processes(calls):
    """calls: (function, argument...) tuples, all at once, each in its own process; the results in order. All are waited for before the first
    failure is raised."""
    children, results, failure = [], [], None
    try:
        for call in calls:
            children.append(Child(*call))
        while len(results) < len(children):
            try:
                results.append(children[len(results)].result())
            except Exception as error:  # kept until every child has ended
                results.append(None)
                failure = failure or error
    except BaseException:  # the run was interrupted
        for child in children[len(results) :]:
            os.kill(child.pid, signal.SIGKILL)
        raise
    if failure:
        raise failure
    return results


class Gate:
    """A point that several processes pass together: everybody waits until `parties` have come. Made before the fork."""

    def __init__(self, parties):
        self._parties = parties
        self._in_reader, self._in_writer = os.pipe()
        self._out_reader, self._out_writer = os.pipe()
        self._keeper = os.fork()
        if self._keeper == 0:
            arrived = 0
            while arrived < parties:
                arrived += len(os.read(self._in_reader, parties - arrived))
            os.write(self._out_writer, b"x" * parties)
            os._exit(0)

    def wait(self):
        os.write(self._in_writer, b"x")
        ready, _, _ = select.select([self._out_reader], [], [], 120 * kvc_env.SCALE)
        if not ready:
            raise AssertionError("the other processes never came to this gate: one of them has failed")
        os.read(self._out_reader, 1)

    def close(self):
        for descriptor in (self._in_reader, self._in_writer, self._out_reader, self._out_writer):
            os.close(descriptor)
        try:
            os.kill(self._keeper, signal.SIGKILL)
        except OSError:
            pass
        os.waitpid(self._keeper, 0)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
