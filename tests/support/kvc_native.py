"""System calls that python's os module lacks or makes differently from the clients (python's mmap keeps a duplicate descriptor open, for one)."""

import ctypes
import mmap as python_mmap
import os
import shutil
import subprocess
import tempfile

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]

FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2
FALLOC_FL_COLLAPSE_RANGE = 8
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_STATX_FORCE_SYNC = 0x2000
STATX_SIZE = 0x200
MAP_POPULATE = 0x8000
MS_SYNC = 4
UTIME_NOW = 0x3FFFFFFF
UTIME_OMIT = 0x3FFFFFFE
PAGE = 4096


def _check(value, what):
    if value == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return value


def fallocate(fd, mode, offset, length):
    _check(_libc.fallocate(fd, mode, offset, length), "fallocate")


def renameat2(source, target, flags):
    _check(_libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags), "renameat2")


class _Statx(ctypes.Structure):
    _fields_ = [("mask", ctypes.c_uint), ("before_size", ctypes.c_ubyte * 36), ("size", ctypes.c_ulonglong), ("after_size", ctypes.c_ubyte * 208)]


def size_asked(fd):
    """As fstat(2) tells it, but the file system is asked, whatever the kernel knows."""
    result = _Statx()
    _check(_libc.statx(fd, b"", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_SIZE, ctypes.byref(result)), "statx")
    return result.size


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def utimensat(path, atime, mtime, follow=True):
    """atime and mtime: (seconds, nanoseconds), nanoseconds may be UTIME_NOW or UTIME_OMIT."""
    times = (_Timespec * 2)(_Timespec(*atime), _Timespec(*mtime))
    _check(_libc.utimensat(AT_FDCWD, os.fsencode(path), times, 0 if follow else 0x100), "utimensat")


class Mapping:
    """mmap(2) of a descriptor that may be closed right after; python's own mmap object would keep a duplicate of it."""

    def __init__(self, fd, size, shared, writable, populate=False, offset=0):
        protection = python_mmap.PROT_READ | (python_mmap.PROT_WRITE if writable else 0)
        flags = (python_mmap.MAP_SHARED if shared else python_mmap.MAP_PRIVATE) | (MAP_POPULATE if populate else 0)
        address = _libc.mmap(None, size, protection, flags, fd, offset)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, f"mmap: {os.strerror(number)}")
        self.address, self.size = address, size

    def read(self, offset=0, size=None):
        return ctypes.string_at(self.address + offset, self.size - offset if size is None else size)

    def write(self, offset, data):
        assert offset + len(data) <= self.size
        ctypes.memmove(self.address + offset, bytes(data), len(data))

    def sync(self):
        _check(_libc.msync(self.address, self.size, MS_SYNC), "msync")

    def close(self):
        if self.address:
            _check(_libc.munmap(self.address, self.size), "munmap")
            self.address = None


def aligned(data_or_size, shift=0):
    """A page-aligned buffer (moved by `shift` bytes) as a memoryview: O_DIRECT callers pass one."""
    data = None if isinstance(data_or_size, int) else data_or_size
    size = data_or_size if data is None else len(data)
    view = memoryview(python_mmap.mmap(-1, max(size + shift, 1)))[shift : shift + size]
    if data is not None:
        view[:] = data
    return view


class Native:
    """native/calls.c, compiled once a test run into a temporary directory."""

    _instance = None

    def __init__(self):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native", "calls.c")
        directory = tempfile.mkdtemp(prefix="kvcachefs-test-native-")
        try:
            library = os.path.join(directory, "libcalls.so")
            subprocess.run(
                ["gcc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", library, source, "-laio", "-luring"],
                check=True,
            )
            self._library = ctypes.CDLL(library)
        finally:
            shutil.rmtree(directory, ignore_errors=True)  # the loaded library stays mapped

    @classmethod
    def get(cls):
        if cls._instance is None:
            cls._instance = Native()
        return cls._instance

    def _batch(self, function, requests, *flags):
        count = len(requests)
        anchors = [(ctypes.c_char * max(1, len(view))).from_buffer(view) for _, view, _ in requests]
        fds = (ctypes.c_int * count)(*[fd for fd, _, _ in requests])
        buffers = (ctypes.c_void_p * count)(*[ctypes.addressof(anchor) for anchor in anchors])
        sizes = (ctypes.c_size_t * count)(*[len(view) for _, view, _ in requests])
        offsets = (ctypes.c_longlong * count)(*[offset for _, _, offset in requests])
        results = (ctypes.c_longlong * count)()
        rc = function(count, fds, buffers, sizes, offsets, *flags, results)
        if rc < 0:
            raise OSError(-rc, os.strerror(-rc))
        return list(results)

    def aio(self, requests, write):
        """requests: (fd, writable memoryview, offset); one io_submit. Returns bytes done or -errno of each."""
        return self._batch(self._library.kvc_aio_batch, requests, int(write))

    def uring(self, requests, write, polled=False):
        return self._batch(self._library.kvc_uring_batch, requests, int(write), int(polled))


def require_whole(results, requests):
    """Raises the first error or short count of a batch, as a client that checks does."""
    for result, (_, view, _) in zip(results, requests):
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        if result != len(view):
            raise OSError(5, f"short transfer: {result} of {len(view)} bytes")
