"""What the programs do within a node: node.py COMMAND JSON-ARGUMENTS; the answer is one line of JSON, the last of the output."""

import errno
import json
import os
import random
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import chunks  # noqa: E402

CONTROL = ".kvcachefs"


def say(**line):
    print(json.dumps(line), flush=True)


def store(root, name, size, version=0, sync=False):
    """As clients do: under another name, then renamed."""
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{socket.gethostname()}.{os.getpid()}.tmp"
    with open(temporary, "wb", buffering=0) as file:
        view = memoryview(chunks.make(name, size, version))
        while view:
            view = view[file.write(view) :]
        if sync:
            os.fsync(file.fileno())
    os.rename(temporary, path)


def read(path):
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def errno_name(error):
    return errno.errorcode.get(error.errno, str(error.errno))


# --- commands -------------------------------------------------------------------------------------------------------


def write(root, names, sizes, version=0, sync=False, pause=0.0, again=False):
    """Stores names in turn, each round of `again` with the next version; tells each whose rename has returned."""
    errors = {}
    while True:
        for index, name in enumerate(names):
            try:
                store(root, name, sizes[index % len(sizes)], version, sync)
                say(name=name, version=version)
            except OSError as error:
                say(error=errno_name(error), name=name)
                errors[errno_name(error)] = errors.get(errno_name(error), 0) + 1
                if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                    say(errors=errors)
                    return
            if pause:
                time.sleep(pause)
        version += 1
        if not again:
            break
    say(errors=errors)


def announce(root, names, size, every, to, port):
    """Stores a chunk every `every` seconds and tells the reader by a datagram, as soon as its rename has returned."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    next_at = time.monotonic()
    late = 0
    for index, name in enumerate(names):
        content = chunks.make(name, size)
        path = os.path.join(root, name)
        now = time.monotonic()
        if now < next_at:
            time.sleep(next_at - now)
        elif now - next_at > every:
            late += 1
        next_at = max(next_at + every * random.uniform(0.5, 1.5), time.monotonic())  # in step with no timer
        with open(path + ".tmp", "wb", buffering=0) as file:
            file.write(content)
        os.rename(path + ".tmp", path)
        sender.sendto(struct.pack("<I", index), (to, port))
    say(stored=len(names), late=late)


def watch(root, names, every, port, ahead, limit):
    """Opens each name every `every` seconds, from before it is there, until that succeeds: seconds since its announcement."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("", port))
    receiver.setblocking(False)
    say(ready=True)
    waiting = list(range(min(ahead, len(names))))
    told, seen, round_times = {}, {}, []
    next_at = time.monotonic()
    end = next_at + limit
    while len(seen) < len(names) and time.monotonic() < end:
        try:
            while True:
                index = struct.unpack("<I", receiver.recv(16))[0]
                told[index] = time.monotonic()
                if index + ahead < len(names):
                    waiting.append(index + ahead)
        except BlockingIOError:
            pass
        begin = time.monotonic()
        for index in list(waiting):
            try:
                os.close(os.open(os.path.join(root, names[index]), os.O_RDONLY))
            except FileNotFoundError:
                continue
            seen[index] = time.monotonic()
            waiting.remove(index)
        round_times.append(time.monotonic() - begin)
        next_at = max(next_at + every, time.monotonic())
        # What is announced wakes this up too: else a datagram would be timed up to `every` late, the figure that much too good.
        while True:
            left = next_at - time.monotonic()
            if left <= 0:
                break
            receiver.settimeout(left)
            try:
                index = struct.unpack("<I", receiver.recv(16))[0]
                told[index] = time.monotonic()
                if index + ahead < len(names):
                    waiting.append(index + ahead)
            except (TimeoutError, BlockingIOError):
                break
        receiver.setblocking(False)
    lags = [max(0.0, seen[index] - told[index]) if index in told else 0.0 for index in seen]
    say(lags=lags, unseen=[names[index] for index in range(len(names)) if index not in seen], untold=len(names) - len(told),
        longest_round=max(round_times, default=0))


def verify(root, names, version=None, absent_ok=False):
    """Reads names whole; wrong: bytes that no writer wrote, or another version than the one given; missing: ENOENT."""
    wrong, missing, errors, versions, total = [], [], [], {}, 0
    begin = time.monotonic()
    for name in names:
        try:
            content = read(os.path.join(root, name))
        except FileNotFoundError:
            missing.append(name)
            continue
        except OSError as error:
            errors.append(f"{name}: {errno_name(error)}")
            continue
        total += len(content)
        found, why = chunks.what_is_wrong(name, content)
        if why:
            wrong.append(f"{name}: {why}")
        else:
            versions[name] = found
            if version is not None and found != version:
                wrong.append(f"{name}: version {found} instead of {version}")
    say(read=len(versions), bytes=total, wrong=wrong, missing=missing, errors=errors, versions=versions, seconds=time.monotonic() - begin)


def restore(root, names):
    """Reads names whole into one buffer, as an engine does, and judges nothing: for times and counts of requests."""
    buffer = bytearray(4 << 20)
    total = 0
    begin = time.monotonic()
    for name in names:
        descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
        while count := os.readv(descriptor, [buffer]):
            total += count
        os.close(descriptor)
    say(bytes=total, seconds=time.monotonic() - begin)


def direct(path, block):
    """One O_DIRECT stream over a file, as dd iflag=direct would."""
    import mmap

    buffer = mmap.mmap(-1, block)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    total = 0
    begin = time.monotonic()
    while True:
        count = os.readv(descriptor, [buffer])
        total += count
        if count < block:
            break
    seconds = time.monotonic() - begin
    os.close(descriptor)
    say(bytes=total, seconds=seconds)


def fill(path, size, block):
    import mmap

    buffer = mmap.mmap(-1, block)
    buffer.write(os.urandom(block))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o600)
    for _ in range(size // block):
        os.writev(descriptor, [buffer])
    os.close(descriptor)
    say(bytes=size)


def probe(root, names):
    """stat of each name; how many are there."""
    present = 0
    begin = time.monotonic()
    for name in names:
        try:
            os.stat(os.path.join(root, name))
            present += 1
        except FileNotFoundError:
            pass
    say(present=present, absent=len(names) - present, seconds=time.monotonic() - begin)


def tree(root):
    """All paths below root; sizes of files."""
    paths, errors = {}, []
    for directory, directories, files in os.walk(root, onerror=lambda error: errors.append(f"{error.filename}: {errno_name(error)}")):
        inside = os.path.relpath(directory, root)
        if inside == ".":
            directories[:] = [each for each in directories if each != CONTROL]
        paths[inside] = None
        for name in files:
            path = os.path.join(directory, name)
            try:
                paths[os.path.join(inside, name)] = os.stat(path).st_size
            except OSError as error:
                errors.append(f"{path}: {errno_name(error)}")
    say(paths=paths, errors=errors)


def calls(steps):
    """System calls one after another: [[name, arguments...], ...]; each answer is a value or the name of its errno."""
    answers, opened = [], []
    for name, *arguments in steps:
        try:
            if name == "open":
                flags = 0
                for flag in arguments[1].split("|"):
                    flags |= getattr(os, flag)
                opened.append(os.open(arguments[0], flags, 0o644))
                answers.append(len(opened) - 1)
            elif name == "pread":
                answers.append(os.pread(opened[arguments[0]], arguments[1], arguments[2]).decode(errors="replace"))
            elif name == "pwrite":
                answers.append(os.pwrite(opened[arguments[0]], arguments[1].encode(), arguments[2]))
            elif name == "close":
                os.close(opened[arguments[0]])
                answers.append(0)
            elif name == "verify":  # path, name of the chunk
                found, why = chunks.what_is_wrong(arguments[1], read(arguments[0]))
                answers.append(why or found)
            elif name == "store":  # root, name, size, version
                store(*arguments)
                answers.append(0)
            elif name == "exists":
                answers.append(os.path.exists(arguments[0]))
            elif name == "list":
                answers.append(sorted(os.listdir(arguments[0])))
            elif name == "getxattr":
                answers.append(os.getxattr(*arguments).decode(errors="replace"))
            elif name == "setxattr":
                os.setxattr(arguments[0], arguments[1], arguments[2].encode())
                answers.append(0)
            elif name == "mode":
                answers.append(oct(os.stat(arguments[0]).st_mode & 0o7777))
            elif name == "sleep":
                time.sleep(arguments[0])
                answers.append(0)
            else:
                answers.append(getattr(os, name)(*arguments))
                answers[-1] = 0 if answers[-1] is None else answers[-1]
        except OSError as error:
            answers.append(errno_name(error))
    for descriptor in opened:
        try:
            os.close(descriptor)
        except OSError:
            pass
    say(answers=answers)


def hold(root, names, release):
    """Opens names, maps the last one, tells so, and when `release` is there reads all of them through the old descriptors."""
    import mmap

    descriptors = [(name, os.open(os.path.join(root, name), os.O_RDONLY)) for name in names]
    size = os.fstat(descriptors[-1][1]).st_size
    mapping = mmap.mmap(descriptors[-1][1], size, prot=mmap.PROT_READ)
    say(held=True)
    while not os.path.exists(release):
        time.sleep(0.05)
    wrong = []
    for name, descriptor in descriptors:
        try:
            content = b"".join(iter(lambda d=descriptor: os.read(d, 1 << 20), b""))
            _, why = chunks.what_is_wrong(name, content)
        except OSError as error:
            why = errno_name(error)
        if why:
            wrong.append(f"{name}: {why}")
    # What cannot be read of a mapping ends a process.
    child = os.fork()
    if child == 0:
        os._exit(0 if chunks.what_is_wrong(names[-1], mapping[:])[1] is None else 1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended:
        wrong.append(f"{names[-1]} mapped: {'EIO' if ended == -7 else 'wrong bytes'}")
    say(wrong=wrong)


def at_once(root, names, size, release, version):
    """Stores all names as soon as `release` is there: two nodes do the same at the same moment."""
    say(ready=True)
    while not os.path.exists(release):
        time.sleep(0.001)
    for name in names:
        store(root, name, size, version)
    say(stored=len(names))


COMMANDS = {each.__name__: each for each in (write, announce, watch, verify, restore, direct, fill, probe, tree, calls, hold, at_once)}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](**json.loads(open(sys.argv[2]).read() if len(sys.argv) > 2 else "{}"))
