"""Names that others replace and remove all the time: what is told is what was true at some moment of the call, and never ESTALE."""

import errno
import os
import time

from kvc_data import payload
from kvc_process import in_process, in_processes

SECONDS = 2


def until(end, call):
    while time.monotonic() < end:
        call()


def test_a_created_file_is_opened_while_others_remove_it(root):
    """O_CREAT on a lock file that its users remove: no error at all, on any local file system."""
    flags = [
        os.O_CREAT | os.O_WRONLY,
        os.O_CREAT | os.O_RDWR | os.O_TRUNC,
        os.O_CREAT | os.O_RDONLY,
        os.O_CREAT | os.O_APPEND | os.O_WRONLY,
    ]
    end = time.monotonic() + SECONDS

    def work(seed):
        turn = seed
        while time.monotonic() < end:
            turn = turn * 1103515245 + 12345 & 0x7FFFFFFF
            path = root.join(f"l{turn >> 8 & 1}.lock")
            fd = os.open(path, flags[turn >> 12 & 3], 0o644)
            os.fstat(fd)
            if turn >> 12 & 3 == 1:
                os.write(fd, b"1234\n")
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            os.close(fd)

    in_processes([(work, seed) for seed in range(1, 7)])


def replace_all_the_time(root, end):
    """Two names that are never absent, from a temp name of each writer's own."""
    turn = 0
    temp = root.join(f"{os.getpid()}.tmp")
    while time.monotonic() < end:
        turn += 1
        with open(temp, "wb", buffering=0) as file:
            file.write(payload("x", 3000))
        os.setxattr(temp, "user.x", b"1")
        os.rename(temp, root.join(f"there{turn % 2}"))


def look_all_the_time(root, end):
    calls = [
        os.stat,
        os.lstat,
        lambda path: os.getxattr(path, "user.x"),
        os.listxattr,
        lambda path: os.chmod(path, 0o644),
        lambda path: os.utime(path),
        lambda path: os.access(path, os.R_OK),
        lambda path: os.close(os.open(path, os.O_RDONLY)),
        lambda path: os.close(os.open(path, os.O_RDWR)),
        lambda path: os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o644)),
        lambda path: os.truncate(path, 3000),
        os.statvfs,
        read_whole,
    ]
    turn = 0
    while time.monotonic() < end:
        turn += 1
        calls[turn % len(calls)](root.join(f"there{turn // len(calls) % 2}"))


def read_whole(path):
    with open(path, "rb", buffering=0) as file:
        assert file.read() == payload("x", 3000)


def test_a_name_that_is_always_there_is_always_found(root):
    for number in range(2):
        with open(root.join(f"there{number}"), "wb", buffering=0) as file:
            file.write(payload("x", 3000))
        os.setxattr(root.join(f"there{number}"), "user.x", b"1")
    end = time.monotonic() + SECONDS
    in_processes([(replace_all_the_time, root, end)] * 2 + [(look_all_the_time, root, end)] * 3)


def test_what_is_open_by_path_only_is_told_of_after_it_is_gone(root):
    path = root.join("gone")
    with open(path, "wb") as file:
        file.write(b"x" * 100)
    fd = os.open(path, os.O_PATH)
    os.unlink(path)
    time.sleep(1.1)  # past what the kernel remembers
    assert (os.fstat(fd).st_nlink, os.fstat(fd).st_size) == (0, 100)
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.ENOENT
    os.close(fd)


def test_a_directory_that_is_gone_is_told_as_such(root):
    os.mkdir(root.join("d"))

    def inside():
        os.chdir(root.join("d"))
        os.rmdir(root.join("d"))
        for call in (lambda: open("x", "w"), lambda: os.mkdir("y"), lambda: os.stat("x"), lambda: os.rename("x", "y")):
            try:
                call()
            except OSError as error:
                assert error.errno == errno.ENOENT

    in_process(inside)
