"""Random operations on the mount and on a plain directory: the same names, bytes, stat fields and errnos, also after remounts.

One process and one thread make every call, so neither of the mount's two exceptions to POSIX that concern several writers can show. The other
one does: a read-only descriptor may keep the bytes it opened when the file is changed afterwards. Such a descriptor is 'stale' here; it must
still work, but what it shows is not compared.
"""

import errno
import os
import random
import stat

import pytest

import kvc_env
import kvc_mount
import kvc_native
from kvc_data import describe_difference
from kvc_env import KIB, MIB
from kvc_native import RENAME_EXCHANGE, RENAME_NOREPLACE, Mapping

OPERATIONS = 200_000 if kvc_env.LONG else 4_000 if kvc_env.QUICK else 10_000
REMOUNTS = 40 if kvc_env.LONG else 6
NAMES = [f"n{index}" for index in range(7)] + ["chunk.tmp", "chunk.data", "x" * 255, "caf\udce9", "-rf"]
DIRECTORIES = ["d0", "d1", "d2", "chunk.dir"]
SIZES = [0, 1, 100, 1000, 4095, 4096, 4097, 20_000, 64 * KIB, 256 * KIB + 1, MIB, 3 * MIB]
FILE_LIMIT = 8 * MIB


class Side:
    """One of the two trees, with its open descriptors by number."""

    def __init__(self, path):
        self.path = path
        self.fds = {}

    def at(self, name):
        return os.path.join(self.path, name)


class Handle:
    def __init__(self, inode, version, readable, writable):
        self.inode, self.version, self.readable, self.writable = inode, version, readable, writable


class Comparison:
    def __init__(self, mounted, plain, seed):
        self.mounted, self.plain = Side(mounted), Side(plain)
        self.chooser = random.Random(seed)
        self.handles = {}
        self.next_handle = 0
        self.versions = {}  # plain inode -> how often its content was changed
        self.trace = []
        self.counts = {}
        self.operations = 0
        self.known_names, self.known_since = [], 0

    # --- plumbing ---

    def both(self, what, call):
        """call(side) on both; results and errnos must be equal. Returns (value, errno) of the plain directory."""
        answers = []
        for side in (self.plain, self.mounted):
            try:
                answers.append((call(side), None))
            except OSError as error:
                answers.append((None, error.errno))
        self.trace.append(f"{what} -> {self.outcome(answers[0])}")
        del self.trace[:-60]
        key = what.split(" ")[0]
        self.counts[key] = self.counts.get(key, 0) + 1
        if answers[0] != answers[1]:
            plain, mounted = answers
            detail = ""
            if isinstance(plain[0], bytes) and isinstance(mounted[0], bytes):
                detail = f" ({describe_difference(mounted[0], plain[0])})"
            pytest.fail(
                f"{what}: plain directory {self.outcome(plain)}, mount {self.outcome(mounted)}{detail}\nlast operations:\n  "
                + "\n  ".join(self.trace)
            )
        return answers[0]

    @staticmethod
    def outcome(answer):
        value, number = answer
        if number is not None:
            return errno.errorcode.get(number, str(number))
        if isinstance(value, bytes):
            return f"{len(value)} bytes"
        return repr(value)

    def name(self):
        """A relative path of one to three names; many exist, many do not, and some lead through a file."""
        above = [
            self.chooser.choice(DIRECTORIES if self.chooser.random() < 0.95 else NAMES)
            for _ in range(self.chooser.choice([0, 0, 1, 1, 2]))
        ]
        return "/".join([*above, self.chooser.choice(NAMES if self.chooser.random() < 0.9 else DIRECTORIES)])

    def directory(self):
        return "/".join(self.chooser.choice(DIRECTORIES) for _ in range(self.chooser.choice([1, 1, 2])))

    def known(self):
        """Mostly a path that exists, or did a few operations ago."""
        if self.operations - self.known_since >= 25 or not self.known_names:
            self.known_since = self.operations
            self.known_names = sorted(
                os.path.relpath(os.path.join(where, name), self.plain.path)
                for where, directories, names in os.walk(self.plain.path)
                for name in directories + names
            )
        if self.known_names and self.chooser.random() < 0.75:
            return self.chooser.choice(self.known_names)
        return self.name()

    def inode_of(self, name):
        try:
            return os.stat(self.plain.at(name)).st_ino
        except OSError:
            return None

    def changed(self, inode):
        if inode is not None:
            self.versions[inode] = self.versions.get(inode, 0) + 1

    def stale(self, handle):
        return not handle.writable and self.versions.get(handle.inode, 0) != handle.version

    def some_handle(self, readable=False, writable=False):
        fitting = [
            number
            for number, handle in self.handles.items()
            if (handle.readable or not readable) and (handle.writable or not writable)
        ]
        return self.chooser.choice(fitting) if fitting else None

    def bytes(self, size):
        return (
            self.chooser.randbytes(size)
            if size < 64 * KIB
            else self.chooser.randbytes(4096) * (size // 4096) + b"\1" * (size % 4096)
        )

    # --- operations by name ---

    def op_create_whole(self):
        name, body = self.name(), self.bytes(self.chooser.choice(SIZES))
        inode = self.inode_of(name)

        def call(side):
            fd = os.open(side.at(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                return os.write(fd, body)
            finally:
                os.close(fd)

        if self.both(f"create_whole {name!r} {len(body)}", call)[1] is None:
            self.changed(inode)

    def op_put(self):
        """temp + rename, the clients' way"""
        name, body = self.name(), self.bytes(self.chooser.choice(SIZES))
        temp = f"{name}.tmp" if len(name.split("/")[-1]) < 200 else os.path.join(os.path.dirname(name), "t")

        def call(side):
            fd = os.open(side.at(temp), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                os.write(fd, body)
            finally:
                os.close(fd)
            try:
                os.rename(side.at(temp), side.at(name))
            except OSError:
                os.unlink(side.at(temp))
                raise

        self.both(f"put {name!r} {len(body)}", call)

    def op_read_whole(self):
        name = self.known()

        def call(side):
            fd = os.open(side.at(name), os.O_RDONLY)
            try:
                return os.read(fd, 16 * MIB)
            finally:
                os.close(fd)

        self.both(f"read_whole {name!r}", call)

    def op_unlink(self):
        name = self.known()
        self.both(f"unlink {name!r}", lambda side: os.unlink(side.at(name)))

    def op_rename(self):
        source, target = self.known(), self.name()
        self.both(f"rename {source!r} {target!r}", lambda side: os.rename(side.at(source), side.at(target)))

    def op_renameat2(self):
        source, target, flags = (
            self.known(),
            self.known() if self.chooser.random() < 0.5 else self.name(),
            self.chooser.choice([RENAME_NOREPLACE, RENAME_EXCHANGE]),
        )
        self.both(
            f"renameat2 {source!r} {target!r} {flags}",
            lambda side: kvc_native.renameat2(side.at(source), side.at(target), flags),
        )

    def op_link(self):
        source, target = self.known(), self.name()
        self.both(f"link {source!r} {target!r}", lambda side: os.link(side.at(source), side.at(target)))

    def op_symlink(self):
        target, name = self.chooser.choice(NAMES + DIRECTORIES), self.name()
        self.both(f"symlink {target!r} {name!r}", lambda side: os.symlink(target, side.at(name)))

    def op_mkdir(self):
        name, mode = self.directory() if self.chooser.random() < 0.8 else self.name(), self.chooser.choice(
            [0o755, 0o700]
        )
        self.both(f"mkdir {name!r}", lambda side: os.mkdir(side.at(name), mode))

    def op_rmdir(self):
        name = self.directory()
        self.both(f"rmdir {name!r}", lambda side: os.rmdir(side.at(name)))

    def op_truncate(self):
        name, size = self.known(), self.chooser.choice(SIZES)
        inode = self.inode_of(name)
        if self.both(f"truncate {name!r} {size}", lambda side: os.truncate(side.at(name), size))[1] is None:
            self.changed(inode)

    def op_chmod(self):
        name, mode = self.known(), self.chooser.choice([0o600, 0o644, 0o755, 0o1755, 0o444])
        self.both(f"chmod {name!r} {mode:o}", lambda side: os.chmod(side.at(name), mode))

    def op_chown(self):
        if os.geteuid() == 0:
            name, owner = self.known(), self.chooser.choice([0, 1000, 65534])
            self.both(f"chown {name!r} {owner}", lambda side: os.lchown(side.at(name), owner, owner))

    def op_utimens(self):
        name, seconds = self.known(), self.chooser.randrange(1, 900_000_000)
        times = ((seconds, self.chooser.randrange(10**9)), (seconds, self.chooser.randrange(10**9)))
        follow = self.chooser.random() < 0.8
        self.both(f"utimens {name!r}", lambda side: kvc_native.utimensat(side.at(name), *times, follow=follow))

    def op_setxattr(self):
        name, key = self.known(), f"user.t{self.chooser.randrange(3)}"
        value, flags = self.bytes(self.chooser.choice([0, 1, 100])), self.chooser.choice(
            [0, 0, os.XATTR_CREATE, os.XATTR_REPLACE]
        )
        self.both(f"setxattr {name!r} {key} {flags}", lambda side: os.setxattr(side.at(name), key, value, flags))

    def op_getxattr(self):
        name, key = self.known(), f"user.t{self.chooser.randrange(3)}"
        self.both(f"getxattr {name!r} {key}", lambda side: os.getxattr(side.at(name), key))

    def op_removexattr(self):
        name, key = self.known(), f"user.t{self.chooser.randrange(3)}"
        self.both(f"removexattr {name!r} {key}", lambda side: os.removexattr(side.at(name), key))

    def op_listxattr(self):
        name = self.known()
        self.both(
            f"listxattr {name!r}",
            lambda side: sorted(key for key in os.listxattr(side.at(name)) if key.startswith("user.t")),
        )

    def op_stat(self):
        name = self.known()
        self.both(f"stat {name!r}", lambda side: describe(os.stat(side.at(name))))

    def op_lstat(self):
        name = self.known()
        self.both(f"lstat {name!r}", lambda side: describe(os.lstat(side.at(name))))

    def op_access(self):
        name, mode = self.known(), self.chooser.choice([os.F_OK, os.R_OK, os.W_OK, os.X_OK])
        self.both(f"access {name!r} {mode}", lambda side: os.access(side.at(name), mode))

    def op_readlink(self):
        name = self.known()
        self.both(f"readlink {name!r}", lambda side: os.readlink(side.at(name)))

    def op_listdir(self):
        name = self.chooser.choice(["", self.directory()])
        self.both(f"listdir {name!r}", lambda side: sorted(os.listdir(side.at(name))))

    def op_copy_range(self):
        source, target = self.known(), self.name()
        length, start, to = self.chooser.choice(SIZES), self.chooser.choice(SIZES), self.chooser.choice(SIZES)
        inode = self.inode_of(target)

        def call(side):
            source_fd = os.open(side.at(source), os.O_RDONLY)
            try:
                target_fd = os.open(side.at(target), os.O_WRONLY | os.O_CREAT, 0o644)
                try:
                    copied = 0
                    while copied < length:
                        done = os.copy_file_range(source_fd, target_fd, length - copied, start + copied, to + copied)
                        if not done:
                            break
                        copied += done
                    return copied
                finally:
                    os.close(target_fd)
            finally:
                os.close(source_fd)

        if source != target and (inode is None or inode != self.inode_of(source)):
            self.both(f"copy_range {source!r} {target!r} {length} {start} {to}", call)
            self.changed(inode)

    def op_mmap_read(self):
        name = self.known()

        def call(side):
            fd = os.open(side.at(name), os.O_RDONLY)
            try:
                size = os.fstat(fd).st_size
                if not stat.S_ISREG(os.fstat(fd).st_mode) or size == 0:
                    return b""
                mapping = Mapping(fd, size, shared=False, writable=False, populate=True)
            finally:
                os.close(fd)
            body = mapping.read()
            mapping.close()
            return body

        self.both(f"mmap_read {name!r}", call)

    def op_mmap_put(self):
        """ftruncate, shared mapping, close, write, munmap"""
        name, body = self.name(), self.bytes(self.chooser.choice([size for size in SIZES if size]))
        inode = self.inode_of(name)

        def call(side):
            fd = os.open(side.at(name), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                os.ftruncate(fd, len(body))
                mapping = Mapping(fd, len(body), shared=True, writable=True)
            finally:
                os.close(fd)
            mapping.write(0, body)
            mapping.close()

        if self.both(f"mmap_put {name!r} {len(body)}", call)[1] is None:
            self.changed(inode)

    # --- operations by descriptor ---

    def op_open(self):
        if len(self.handles) >= 12:
            return
        name = self.known()
        flags = self.chooser.choice([os.O_RDONLY, os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        flags |= self.chooser.choice(
            [
                0,
                0,
                os.O_CREAT,
                os.O_CREAT | os.O_TRUNC,
                os.O_CREAT | os.O_EXCL,
                os.O_APPEND if flags else 0,
                os.O_NOFOLLOW,
            ]
        )
        number = self.next_handle
        self.next_handle += 1

        def call(side):
            fd = os.open(side.at(name), flags, 0o644)
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                os.close(fd)
                return "directory"
            side.fds[number] = fd
            return "file"

        before = self.inode_of(name)
        value, _ = self.both(f"open {name!r} {flags:#o} as {number}", call)
        if value == "file":
            inode = os.fstat(self.plain.fds[number]).st_ino
            if flags & os.O_ACCMODE and before is not None:
                self.changed(inode)  # from the open on: a writer may be given a new inode beside passthrough readers
            readable = flags & os.O_ACCMODE != os.O_WRONLY
            self.handles[number] = Handle(inode, self.versions.get(inode, 0), readable, bool(flags & os.O_ACCMODE))

    def op_close(self):
        number = self.some_handle()
        if number is not None:
            self.both(f"close {number}", lambda side: os.close(side.fds.pop(number)))
            del self.handles[number]

    def op_pwrite(self):
        number = self.some_handle(writable=True)
        if number is not None:
            body, offset = self.bytes(self.chooser.choice(SIZES[1:])), self.chooser.randrange(4 * MIB)
            self.both(
                f"pwrite {number} {len(body)} at {offset}", lambda side: os.pwrite(side.fds[number], body, offset)
            )
            self.changed(self.handles[number].inode)

    def op_write(self):
        number = self.some_handle(writable=True)
        if number is not None and os.fstat(self.plain.fds[number]).st_size < FILE_LIMIT:
            body = self.bytes(self.chooser.choice(SIZES[1:8]))
            self.both(f"write {number} {len(body)}", lambda side: os.write(side.fds[number], body))
            self.changed(self.handles[number].inode)

    def op_pread(self):
        number = self.some_handle(readable=True)
        if number is None:
            return
        size, offset = self.chooser.choice(SIZES), self.chooser.randrange(4 * MIB)
        if self.stale(self.handles[number]):
            os.pread(self.mounted.fds[number], size, offset)  # must not fail
            return
        self.both(f"pread {number} {size} at {offset}", lambda side: os.pread(side.fds[number], size, offset))

    def op_lseek(self):
        number = self.some_handle()
        if number is not None and not self.stale(self.handles[number]):
            offset, whence = self.chooser.randrange(-100, 4 * MIB), self.chooser.choice(
                [os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]
            )
            self.both(f"lseek {number} {offset} {whence}", lambda side: os.lseek(side.fds[number], offset, whence))

    def op_ftruncate(self):
        number = self.some_handle(writable=True)
        if number is not None:
            size = self.chooser.choice(SIZES)
            self.both(f"ftruncate {number} {size}", lambda side: os.ftruncate(side.fds[number], size))
            self.changed(self.handles[number].inode)

    def op_fallocate(self):
        number = self.some_handle(writable=True)
        if number is not None:
            mode = self.chooser.choice(
                [0, kvc_native.FALLOC_FL_KEEP_SIZE, kvc_native.FALLOC_FL_KEEP_SIZE | kvc_native.FALLOC_FL_PUNCH_HOLE]
            )
            offset, length = self.chooser.randrange(2 * MIB), self.chooser.choice(SIZES)
            self.both(
                f"fallocate {number} {mode} {offset} {length}",
                lambda side: kvc_native.fallocate(side.fds[number], mode, offset, length),
            )
            self.changed(self.handles[number].inode)

    def op_fsync(self):
        number = self.some_handle()
        if number is not None:
            self.both(f"fsync {number}", lambda side: os.fsync(side.fds[number]))

    def op_fstat(self):
        number = self.some_handle()
        if number is None:
            return
        if self.stale(self.handles[number]):
            os.fstat(self.mounted.fds[number])
            return
        self.both(f"fstat {number}", lambda side: describe(os.fstat(side.fds[number])))

    def op_dup_close(self):
        """close of a duplicate: a FLUSH, and the handle lives on"""
        number = self.some_handle()
        if number is not None:
            self.both(f"dup_close {number}", lambda side: os.close(os.dup(side.fds[number])))

    # --- the whole ---

    WEIGHTS = {
        "create_whole": 5,
        "put": 8,
        "read_whole": 6,
        "unlink": 7,
        "rename": 6,
        "renameat2": 2,
        "link": 3,
        "symlink": 2,
        "mkdir": 6,
        "rmdir": 3,
        "truncate": 3,
        "chmod": 2,
        "chown": 1,
        "utimens": 2,
        "setxattr": 3,
        "getxattr": 2,
        "removexattr": 1,
        "listxattr": 1,
        "stat": 6,
        "lstat": 3,
        "access": 3,
        "readlink": 1,
        "listdir": 4,
        "copy_range": 1,
        "mmap_read": 2,
        "mmap_put": 2,
        "open": 9,
        "close": 8,
        "pwrite": 6,
        "write": 5,
        "pread": 8,
        "lseek": 2,
        "ftruncate": 2,
        "fallocate": 2,
        "fsync": 1,
        "fstat": 4,
        "dup_close": 2,
    }

    def step(self):
        self.operations += 1
        kind = self.chooser.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
        getattr(self, f"op_{kind}")()

    def close_all(self):
        for number in list(self.handles):
            self.both(f"close {number}", lambda side: os.close(side.fds.pop(number)))
        self.handles.clear()

    def compare_trees(self, when):
        plain, mounted = tree(self.plain.path), tree(self.mounted.path)
        trace = "\nlast operations:\n  " + "\n  ".join(self.trace)
        assert sorted(plain) == sorted(mounted), f"{when}: names differ: {sorted(set(plain) ^ set(mounted))}{trace}"
        for name, (fields, body, xattrs) in plain.items():
            assert mounted[name][0] == fields, f"{when}: {name!r}: plain {fields}, mount {mounted[name][0]}{trace}"
            assert mounted[name][2] == xattrs, f"{when}: {name!r}: xattrs {xattrs} and {mounted[name][2]}{trace}"
            if body is not None:
                assert (
                    mounted[name][1] == body
                ), f"{when}: {name!r}: {describe_difference(mounted[name][1], body)}{trace}"


def describe(found):
    """The stat fields that must be equal. Times only where they were set explicitly (to before 2000): the clocks of two calls differ. A
    directory's size and link count are the file system's own affair."""
    fields = {"mode": oct(found.st_mode), "uid": found.st_uid, "gid": found.st_gid}
    if not stat.S_ISDIR(found.st_mode):
        fields["size"], fields["nlink"] = found.st_size, found.st_nlink
        fields["mtime"] = found.st_mtime_ns if found.st_mtime < 946_684_800 else "recent"
    return fields


def tree(path):
    """{relative name: (stat fields, bytes, xattrs)}"""
    found = {}
    for where, directories, names in os.walk(path):
        for name in directories + names:
            full = os.path.join(where, name)
            status = os.lstat(full)
            body = None
            if stat.S_ISLNK(status.st_mode):
                body = os.fsencode(os.readlink(full))
            elif stat.S_ISREG(status.st_mode):
                with open(full, "rb") as file:
                    body = file.read()
            xattrs = {
                key: os.getxattr(full, key, follow_symlinks=False)
                for key in os.listxattr(full, follow_symlinks=False)
                if key.startswith("user.t")
            }
            found[os.path.relpath(full, path)] = (describe(status), body, xattrs)
    return found


@pytest.mark.deadline(7200 if kvc_env.LONG else 900)
def test_mount_equals_plain_directory(new_mount, temp_dir):
    seed = kvc_env.seed()
    mount = new_mount({"memory": "256M"})
    mounted, plain = os.path.join(mount.path, "tree"), os.path.join(temp_dir, "plain")
    os.mkdir(mounted)
    os.mkdir(plain)
    comparison = Comparison(mounted, plain, seed)
    old_mask = os.umask(0o022)
    try:
        part = OPERATIONS // (REMOUNTS + 1)
        for life in range(REMOUNTS + 1):
            for number in range(part):
                comparison.step()
                if number % 500 == 499:
                    comparison.both("listdir ''", lambda side: sorted(os.listdir(side.path)))
            comparison.close_all()
            comparison.compare_trees(f"before remount {life}")
            mount.remount()
            comparison.compare_trees(f"after remount {life}")
    finally:
        os.umask(old_mask)
        for side in (comparison.mounted, comparison.plain):
            for fd in side.fds.values():
                try:
                    os.close(fd)
                except OSError:
                    pass
    assert set(comparison.counts) >= set(Comparison.WEIGHTS) - {"chown"}, "an operation was never tried"
    kvc_mount.remove_temp_dir(plain)
