"""Options, volumes, mountpoints and names that are wrong: refused at the start, with a message that helps; nothing published is lost by it."""

import contextlib
import ctypes
import errno
import os
import re
import resource
import subprocess

import pytest

from kvc_data import assert_bytes, payload
from kvc_env import MIB
from kvc_mount import SOON, MountFailed, mount_entry, run_command, wait_until

# option, value, words one of which the message must have to tell what is allowed (None: a number or unit of the allowed range)
BAD_OPTIONS = [
    ("no_such_option", "1", ["unknown"]),
    ("capasity", "1G", ["unknown"]),
    ("no_such_flag", None, ["unknown"]),
    ("capacity", "lots", None),
    ("capacity", "", None),
    ("capacity", "-1G", None),
    ("capacity", "10X", None),
    ("capacity", "1G1", None),
    ("capacity", "0", None),
    ("capacity", "101%", None),
    ("capacity", "99999999999999999999T", None),
    ("keep_free", "120%", None),
    ("memory", "12Q", None),
    ("memory", "1", None),
    ("memory", "nan", None),
    ("durability", "maybe", ["none", "close", "sync"]),
    ("durability", "Close", ["none", "close", "sync"]),
    ("verify", "never", ["auto", "always"]),
    ("pack_below", "huge", None),
    ("inline_below", "-1", None),
    ("extent_size", "1", None),
    ("extent_size", "abc", None),
    ("flush_interval_ms", "-5", None),
    ("flush_interval_ms", "soon", None),
    ("flush_interval_ms", "1.5", None),
    ("passthrough", "maybe", ["auto", "on", "off"]),
    ("io_uring", "maybe", ["auto", "on", "off"]),
    ("threads", "0", None),
    ("threads", "100000", None),
    ("threads", "two", None),
    ("log_level", "loud", ["info", "debug", "warn"]),
    ("journal", "never", ["auto", "packed", "blocks"]),
    ("node", "../escape", None),
    ("capacity", "64MB", ["64M", "64MiB"]),
    ("memory", "1.5Gb", ["1.5G", "1.5GiB"]),
    ("pack_below", "512kB", ["512k", "512kiB"]),
    ("node", "", None),
]


def refused(mount, *named):
    """The mount must fail, leave nothing mounted, and say something that has each of the given words."""
    with pytest.raises(MountFailed) as caught:
        mount.start()
    output = caught.value.output
    for word in named:
        assert word in output, f"{word!r} is not in the message: {output}"
    assert caught.value.returncode > 0, f"killed by signal {-caught.value.returncode}"
    assert mount_entry(mount.path) is None
    assert "terminate called" not in output and "Assertion" not in output
    return output


pytestmark = pytest.mark.needs_daemon


@pytest.mark.parametrize("kind", ["beside a file", "of another program", "a file", "not writable"])
def test_a_bad_index_is_refused_before_anything_is_made(new_mount, temp_dir, kind):
    where = os.path.join(temp_dir, "where")
    os.mkdir(where)
    index = os.path.join(where, "index")
    if kind == "of another program":
        os.mkdir(index)
        with open(os.path.join(index, "letters"), "w", encoding="ascii") as file:
            file.write("mine")
    elif kind == "not writable":
        index = "/proc/kvcachefs-index"
    else:
        with open(where + "/file", "w", encoding="ascii") as file:
            file.write("mine")
        index = where + ("/file/index" if kind == "beside a file" else "/file")
    mount = new_mount({"index": index}, start=False)
    before = os.path.exists(mount.volume) and os.listdir(mount.volume)
    refused(mount, index)
    assert (os.path.exists(mount.volume) and os.listdir(mount.volume)) == before, "nothing was made"


@pytest.mark.parametrize(
    "option, value, allowed", BAD_OPTIONS, ids=[f"{option}={value}" for option, value, _ in BAD_OPTIONS]
)
def test_bad_option(option, value, allowed, new_mount):
    mount = new_mount({option: value}, start=False)
    output = refused(mount, option, value or "")
    rest = output.replace(f"{option}={value}", "").replace(value or "\0", "")
    if allowed is None:
        assert re.search(r"\d|[a-z]+ of|such as|like", rest), f"the message does not say what is allowed: {output}"
    else:
        assert any(word in rest for word in allowed), f"the message does not say what is allowed: {output}"
    assert (
        not os.path.exists(mount.volume) or os.listdir(mount.volume) == []
    ), "a refused mount left something on the volume"


@pytest.mark.parametrize(
    "options, named",
    [
        ({"verify": "always", "passthrough": "on"}, ["verify", "passthrough"]),
        ({"capacity": "1G,capacity=2G"}, ["capacity", "twice"]),
        ({"inline_below": "64K", "pack_below": "4K"}, ["inline_below", "pack_below"]),
        ({"auto_unmount": None}, ["auto_unmount"]),
    ],
    ids=["verify-passthrough", "twice", "inline-pack", "auto_unmount"],
)
def test_contradictory_or_refused_options(options, named, new_mount):
    output = refused(new_mount(options, start=False), *named)
    if "auto_unmount" in options:
        assert len(output) > len("auto_unmount") + 40, f"the reason is missing: {output}"


@pytest.mark.parametrize(
    "option, value",
    [
        ("capacity", "1G"),
        ("capacity", "50%"),
        ("memory", "256M"),
        ("keep_free", "1%"),
        ("durability", "close"),
        ("durability", "sync"),
        ("verify", "always"),
        ("passthrough", "off"),
        ("io_uring", "off"),
        ("threads", "2"),
        ("flush_interval_ms", "50"),
        ("log_level", "debug"),
        ("inline_below", "2K"),
        ("pack_below", "8M"),
        ("extent_size", "64M"),
        ("raw_above", "4M"),
        ("node", "engine-7"),
    ],
)
def test_good_option_is_shown_and_works(option, value, new_mount):
    """Every option of the vocabulary is taken, shown in .kvcachefs/options, and chunks of all sizes still survive a remount with it."""
    mount = new_mount({option: value})
    with open(os.path.join(mount.path, ".kvcachefs", "options"), encoding="utf-8") as file:
        assert option in file.read()
    for size in (100, 5000, 300_000, 5 * MIB):
        with open(os.path.join(mount.path, f"f{size}"), "wb") as file:
            file.write(payload(f"f{size}", size))
    mount.remount()
    for size in (100, 5000, 300_000, 5 * MIB):
        with open(os.path.join(mount.path, f"f{size}"), "rb") as file:
            assert_bytes(file.read(), payload(f"f{size}", size), f"f{size} with {option}={value}")


def test_live_option_by_setfattr(new_mount):
    mount = new_mount()
    os.setxattr(mount.path, "user.kvcachefs.option.log_level", b"debug")
    for name, value in (("log_level", b"loud"), ("no_such_option", b"1"), ("volume", b"/")):
        with pytest.raises(OSError) as caught:
            os.setxattr(mount.path, f"user.kvcachefs.option.{name}", value)
        assert caught.value.errno in (errno.EINVAL, errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM)


@pytest.mark.parametrize(
    "option, value, told",
    [
        ("io_uring", "off", "cannot be changed while mounted; unmount and mount with -o io_uring=off"),
        ("io_uring", "junk", "expected auto, on or off"),
        ("threads", "0", "expected a number"),
        ("node", "a/b", "a/b"),
        ("node", "other", "unmount and mount with -o node=other"),
        ("bogus", "1", "unknown option 'bogus'"),
        ("x-bogus", "1", "unknown option 'x-bogus'"),
        ("ro", "1", "mount -o remount,ro"),
        ("allow_other", "1", "with or without -o allow_other"),
        ("capacity", "junk", "90%"),
    ],
)
def test_the_advice_about_a_live_change_is_one_that_a_mount_takes(new_mount, option, value, told):
    mount = new_mount()
    with pytest.raises(OSError) as caught:
        os.setxattr(mount.path, f"user.kvcachefs.option.{option}", value.encode())
    assert caught.value.errno == errno.EINVAL
    mount.wait_for_log(f"user.kvcachefs.option.{option}:")
    line = [line for line in mount.log_text().splitlines() if f"user.kvcachefs.option.{option}:" in line][-1]
    assert told in line, line
    if value in ("junk", "0", "a/b", "1"):
        assert f"-o {option}={value}" not in line, line


def test_a_shorter_flush_interval_acts_at_once(new_mount):
    mount = new_mount({"flush_interval_ms": 60_000, "durability": "none"})
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload("chunk", MIB))
    assert mount.status()["capacity"]["staged_bytes"] > 0
    os.setxattr(mount.path, "user.kvcachefs.option.flush_interval_ms", b"50")
    wait_until(lambda: mount.status()["capacity"]["staged_bytes"] == 0, 45, "what is staged is on the volume")  # before the first interval is over


@pytest.mark.parametrize("node", ["directory", "directory/chunk"])
def test_a_command_to_the_mount_may_be_told_anywhere_below(new_mount, node):
    """Before, it was taken for a fact that a copy brings along: accepted, and nothing done."""
    mount = new_mount({"flush_interval_ms": 60_000, "durability": "none"})
    os.mkdir(os.path.join(mount.path, "directory"))
    with open(os.path.join(mount.path, "directory/chunk"), "wb") as file:
        file.write(payload("chunk", MIB))
    assert mount.status()["capacity"]["staged_bytes"] > 0
    os.setxattr(os.path.join(mount.path, node), "user.kvcachefs.flush", b"1")
    assert mount.status()["capacity"]["staged_bytes"] == 0
    os.setxattr(os.path.join(mount.path, node), "user.kvcachefs.option.flush_interval_ms", b"50")
    assert os.getxattr(mount.path, "user.kvcachefs.option.flush_interval_ms") == b"50"
    with pytest.raises(OSError) as error:
        os.setxattr(os.path.join(mount.path, node), "user.kvcachefs.option.flush_interval_ms", b"soon")
    assert error.value.errno == errno.EINVAL


@pytest.mark.parametrize("options, writable", [("ro,rw", True), ("rw,ro", False), ("ro,rw,ro", False)])
def test_the_last_of_ro_and_rw_counts(options, writable, new_mount):
    mount = new_mount({options: None})
    assert ("rw" in mount_entry(mount.path)[1].split(",")) == writable
    try:
        os.mkdir(os.path.join(mount.path, "d"))
    except OSError as error:
        assert error.errno == errno.EROFS and not writable
    else:
        assert writable


# --- volumes ---


def test_volume_with_a_missing_parent(new_mount):
    mount = new_mount(start=False)
    mount.volume = os.path.join(mount.base, "no", "such", "volume")
    refused(mount, os.path.join(mount.base, "no"))
    assert not os.path.exists(os.path.join(mount.base, "no"))


def test_volume_that_is_a_file(new_mount):
    mount = new_mount(start=False)
    with open(mount.volume, "w", encoding="ascii") as file:
        file.write("x")
    refused(mount, mount.volume, "directory")
    assert os.path.isfile(mount.volume)


def test_volume_that_holds_something_else(new_mount):
    mount = new_mount(start=False)
    os.mkdir(mount.volume)
    with open(os.path.join(mount.volume, "photo.jpg"), "w", encoding="ascii") as file:
        file.write("x")
    refused(mount, mount.volume)
    assert os.listdir(mount.volume) == ["photo.jpg"]


def with_changed_volume_file(mount, change):
    """Writes a chunk, unmounts, changes the VOLUME file; returns its old bytes."""
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload("chunk", MIB))
    mount.stop()
    path = os.path.join(mount.volume, "VOLUME")
    with open(path, "rb") as file:
        old = file.read()
    with open(path, "wb") as file:
        file.write(change(old))
    return old


@pytest.mark.parametrize("what", ["every byte in turn", "cut", "empty", "text"])
def test_damaged_volume_file(what, new_mount):
    """Any damage is refused by a message that names the file; put right again the volume is what it was."""
    mount = new_mount(start=False)
    old = with_changed_volume_file(mount, lambda bytes_: bytes_)
    damaged = {
        "cut": [old[: len(old) // 2], old[:-1]],
        "empty": [b""],
        "text": [b"this is not a volume\n"],
        "every byte in turn": [
            old[:at] + bytes([old[at] ^ 0x41]) + old[at + 1 :] for at in range(0, len(old), max(1, len(old) // 12))
        ],
    }[what]
    path = os.path.join(mount.volume, "VOLUME")
    for version in damaged:
        with open(path, "wb") as file:
            file.write(version)
        refused(mount, mount.volume)
        with open(path, "rb") as file:
            assert file.read() == version, "a refused mount rewrote the VOLUME file"
    with open(path, "wb") as file:
        file.write(old)
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert_bytes(file.read(), payload("chunk", MIB), "chunk")


@pytest.fixture
def other_filesystem(temp_dir):
    """other_filesystem(type, options): an empty file system of that type, gone after the test."""
    mounted = []

    def make(fstype, options=""):
        path = os.path.join(temp_dir, f"fs{len(mounted)}")
        os.mkdir(path)
        subprocess.run(["mount", "-t", fstype, *(["-o", options] if options else []), fstype, path], check=True)
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=False)


@pytest.mark.needs_root
def test_read_only_volume(new_mount, other_filesystem):
    backing = other_filesystem("tmpfs", "size=64M")
    mount = new_mount({"capacity": "32M"}, start=False)
    mount.volume = os.path.join(backing, "volume")
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload("chunk", MIB))
    mount.stop()
    subprocess.run(["mount", "-o", "remount,ro", backing], check=True)
    refused(mount, mount.volume, "must be writable")
    for arguments in (("mount", mount.volume, mount.path, "-o", "ro"), ("fsck", mount.volume), ("fsck", mount.volume, "--repair"), ("rebuild", mount.volume)):
        result = run_command(*arguments)
        assert result.returncode != 0 and "remount its file system read-write, or check a copy" in result.stdout + result.stderr, result
    subprocess.run(["mount", "-o", "remount,rw", backing], check=True)
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert_bytes(file.read(), payload("chunk", MIB), "chunk")


@pytest.mark.needs_root
def test_full_volume(new_mount, other_filesystem):
    """The file system under the volume is filled by somebody else: what is published stays readable, also after a remount or a clean refusal
    of one, and a store is refused with ENOSPC."""
    backing = other_filesystem("tmpfs", "size=96M")
    mount = new_mount({"keep_free": "0", "evict": "off"}, start=False)
    mount.volume = os.path.join(backing, "volume")
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload("chunk", MIB))
    mount.drain()
    with open(os.path.join(backing, "somebody"), "wb") as file:
        try:
            while True:
                file.write(bytes(MIB))
                file.flush()
        except OSError as error:
            assert error.errno == errno.ENOSPC
    told = []
    for index in range(8):
        try:
            with open(os.path.join(mount.path, "more.tmp"), "wb", buffering=0) as file:
                file.write(payload("more", 4 * MIB))
                os.fsync(file.fileno())
            os.rename(os.path.join(mount.path, "more.tmp"), os.path.join(mount.path, f"more{index}"))
        except OSError as error:
            told.append(error.errno)
    assert told and set(told) <= {errno.ENOSPC}, f"told {told}"
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert_bytes(file.read(), payload("chunk", MIB), "chunk")
    mount.kill()
    mount.destroy()
    try:
        mount.start()
    except MountFailed as failure:
        assert mount.volume in failure.output and (
            "space" in failure.output or "full" in failure.output
        ), failure.output
    else:
        mount.destroy()
    os.unlink(os.path.join(backing, "somebody"))
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert_bytes(file.read(), payload("chunk", MIB), "chunk")


def fill(directory):
    """Until the file system is full; returns the file that does it."""
    path = os.path.join(directory, "somebody")
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(MIB))
    return path


@pytest.mark.needs_root
def test_whichever_node_begins_finds_room_where_others_have_filled_the_file_system(new_mount, other_filesystem):
    backing = other_filesystem("tmpfs", "size=96M")
    nodes = [new_mount({"capacity": "64M", "keep_free": "0", "node": name}, start=False) for name in "ab"]
    for node in nodes:
        node.volume = os.path.join(backing, "volume")
        node.start()
        with open(os.path.join(node.path, node.options["node"]), "wb") as file:
            file.write(payload("chunk", MIB))
    a, b = nodes
    a.stop()
    b.stop()
    kept = [name for name in "ab" if os.path.exists(os.path.join(a.volume, "nodes", name, "RESERVE"))]
    assert kept == ["b"], "that of the last one"
    somebody = fill(backing)
    a.start()
    wait_until(lambda: sorted(os.listdir(a.path)) == ["a", "b"], SOON, "all is seen")
    os.unlink(os.path.join(a.path, "a"))
    a.drain()
    os.unlink(somebody)
    a.stop()
    b.start()
    wait_until(lambda: os.listdir(b.path) == ["b"], SOON, "all is seen")


@pytest.fixture
def mount_that_cannot_drain(new_mount, other_filesystem):
    backing = other_filesystem("tmpfs", "size=96M")
    mount = new_mount({"keep_free": "0", "flush_interval_ms": 60_000}, start=False)
    mount.volume = os.path.join(backing, "volume")
    mount.start()
    for index in range(4):
        with open(os.path.join(mount.path, f"chunk{index}"), "wb") as file:
            file.write(payload(f"chunk{index}", 2 * MIB))
    mount.filler = fill(backing)
    return mount


def check_staged(mount):
    for index in range(4):
        with open(os.path.join(mount.path, f"chunk{index}"), "rb") as file:
            assert_bytes(file.read(), payload(f"chunk{index}", 2 * MIB), f"chunk{index}")
    mount.stop()


@pytest.mark.needs_root
def test_umount_leaves_mounted_what_the_volume_does_not_take(mount_that_cannot_drain):
    mount = mount_that_cannot_drain
    result = run_command("umount", mount.path)
    assert result.returncode == 1 and "unmounted" not in result.stdout, result.stdout
    for word in (mount.path, "MiB", os.strerror(errno.ENOSPC), "--lazy"):
        assert word in result.stderr, result.stderr
    assert mount.alive()
    os.unlink(mount.filler)
    mount.remount()
    check_staged(mount)


@pytest.mark.needs_root
@pytest.mark.parametrize("full", [True, False])
def test_umount_of_what_was_made_read_only_meanwhile(mount_that_cannot_drain, full):
    """The kernel lets no attribute of a read-only mount be set: it is asked otherwise to write out what was staged before."""
    mount = mount_that_cannot_drain
    if not full:
        os.unlink(mount.filler)
    assert mount.status()["capacity"]["staged_bytes"] >= 8 * MIB
    subprocess.run(["mount", "-i", "-o", "remount,bind,ro", mount.path], check=True)
    result = run_command("umount", mount.path)
    if full:
        assert result.returncode == 1 and os.strerror(errno.ENOSPC) in result.stderr, result.stderr
        assert mount.alive()
        os.unlink(mount.filler)
        result = run_command("umount", mount.path)
    assert result.returncode == 0 and "written out" in result.stdout, result.stderr
    mount._wait_for_end(60)
    mount.start()
    check_staged(mount)


@pytest.fixture
def ext4(temp_dir):
    """Its directory and the name of its device; read-only after an error."""
    image, path = os.path.join(temp_dir, "image"), os.path.join(temp_dir, "ext4")
    os.mkdir(path)
    with open(image, "wb") as file:
        file.truncate(300 * MIB)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", "-e", "remount-ro", image], check=False)
    if made.returncode != 0 or subprocess.run(["mount", "-o", "loop", image, path], check=False).returncode != 0:
        pytest.skip("no ext4 in a file here")
    source = subprocess.run(["findmnt", "-no", "SOURCE", path], capture_output=True, text=True, check=True).stdout.strip()
    yield path, os.path.basename(source)
    subprocess.run(["umount", "-l", path], check=False)


def flag_files(volume, flag):
    paths = [path for path, _, names in os.walk(volume)]
    paths += [os.path.join(path, name) for path, _, names in os.walk(volume) for name in names]
    subprocess.run(["chattr", flag, *paths], check=True)


@pytest.mark.needs_root
@pytest.mark.parametrize("problem", [errno.EROFS, errno.EPERM])
def test_umount_leaves_mounted_what_the_volume_forbids_to_write(new_mount, ext4, problem):
    """That errno is not one of a caller who may not ask for it."""
    backing, device = ext4
    mount = new_mount({"flush_interval_ms": 60_000}, start=False)
    mount.volume = os.path.join(backing, "volume")
    mount.start()
    for index in range(4):
        with open(os.path.join(mount.path, f"chunk{index}"), "wb") as file:
            file.write(payload(f"chunk{index}", 2 * MIB))
    if problem == errno.EPERM:
        flag_files(mount.volume, "+i")
    else:
        with open(f"/sys/fs/ext4/{device}/trigger_fs_error", "wb") as file:
            file.write(b"1")
    try:
        result = run_command("umount", mount.path)
        assert result.returncode == 1 and "unmounted" not in result.stdout, result.stdout
        assert os.strerror(problem) in result.stderr and "8 MiB" in result.stderr, result.stderr
        assert mount.alive()
    finally:
        if problem == errno.EPERM:
            flag_files(mount.volume, "-i")
    if problem == errno.EPERM:
        mount.remount()
        check_staged(mount)
    else:
        mount.destroy()


@pytest.mark.needs_root
def test_lazy_umount_does_not_write_out_first(mount_that_cannot_drain):
    mount = mount_that_cannot_drain
    fd = os.open(os.path.join(mount.path, "chunk0"), os.O_RDONLY)
    result = run_command("umount", "--lazy", mount.path)
    assert result.returncode == 0 and not result.stderr, result.stderr
    assert mount_entry(mount.path) is None
    os.unlink(mount.filler)
    assert "could not be written" not in mount.log_text(), "it was tried before"
    os.close(fd)
    mount._wait_for_end(60)
    mount.start()
    check_staged(mount)


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "fstype",
    [
        "ramfs",
        "tmpfs",
    ],
)
def test_volume_without_o_direct_or_hole_punching_works(fstype, new_mount, other_filesystem):
    """ramfs has neither; the daemon says in its log or status what is lost."""
    backing = other_filesystem(fstype)
    mount = new_mount({"capacity": "256M"}, start=False)
    mount.volume = os.path.join(backing, "volume")
    mount.start()
    for index in range(10):
        with open(os.path.join(mount.path, f"chunk{index}"), "wb") as file:
            file.write(payload(f"chunk{index}", 2 * MIB))
    mount.remount()
    for index in range(10):
        with open(os.path.join(mount.path, f"chunk{index}"), "rb") as file:
            assert_bytes(file.read(), payload(f"chunk{index}", 2 * MIB), f"chunk{index}")
        os.unlink(os.path.join(mount.path, f"chunk{index}"))
    if fstype == "ramfs":
        text = (mount.log_text() + run_command("status", mount.path).stdout).lower()
        assert "o_direct" in text or "direct i/o" in text or "punch" in text, "nothing says what this volume lacks"
    mount.stop()


@pytest.mark.parametrize("name", ["a,b", "a,noexec", "a\\,b", "a\\054b", "a b#c"])
def test_the_name_of_a_volume_is_no_option(name, new_mount):
    mount = new_mount(start=False)
    mount.volume = os.path.join(mount.base, name)
    mount.start()
    entry = mount_entry(mount.path)
    assert entry[3] == mount.volume
    assert "noexec" not in entry[1].split(",")
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload("chunk", MIB))
    mount.remount()
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert_bytes(file.read(), payload("chunk", MIB), "chunk")
    mount.stop()


# --- mountpoints ---


def test_missing_mountpoint(new_mount):
    mount = new_mount(start=False)
    os.rmdir(mount.path)
    refused(mount, mount.path)


def test_mountpoint_that_is_a_file(new_mount):
    mount = new_mount(start=False)
    os.rmdir(mount.path)
    open(mount.path, "wb").close()
    refused(mount, mount.path)


def test_mountpoint_that_is_not_empty(new_mount):
    mount = new_mount(start=False)
    with open(os.path.join(mount.path, "precious"), "wb") as file:
        file.write(b"x")
    refused(mount, mount.path, "nonempty")
    mount.start(nonempty=None)
    assert os.listdir(mount.path) == []
    mount.stop()
    assert os.listdir(mount.path) == ["precious"]
    os.unlink(os.path.join(mount.path, "precious"))


def test_mountpoint_inside_the_volume(new_mount):
    mount = new_mount()
    mount.stop()
    inside = os.path.join(mount.volume, "mnt")
    result = run_command("mount", mount.volume, inside)
    assert result.returncode != 0
    os.mkdir(inside)
    for path in (inside, mount.volume, os.path.join(mount.volume, "..", os.path.basename(mount.volume), "mnt")):
        result = run_command("mount", mount.volume, path, "-o", "nonempty")
        assert result.returncode != 0 and mount.volume in result.stderr, result.stderr
    link = os.path.join(mount.base, "link")
    os.symlink(inside, link)
    assert (
        run_command("mount", mount.volume, link).returncode != 0
    ), "a symbolic link hides that the mountpoint is inside the volume"
    assert mount_entry(inside) is None and mount_entry(mount.volume) is None


@pytest.mark.parametrize("option,below", [("index", "mnt"), ("log_file", "mnt"), ("log_file", "volume")])
def test_paths_that_the_mount_would_hide_are_refused(new_mount, option, below):
    """Before anything is made: the next mount, without the option, works."""
    mount = new_mount(start=False)
    where = mount.path if below == "mnt" else mount.volume
    mount.options[option] = where if option == "index" else os.path.join(where, "log")
    refused(mount, option, where)
    assert os.listdir(mount.path) == []
    del mount.options[option]
    mount.start()


def test_too_few_descriptors(new_mount):
    mount = new_mount(start=False)
    result = run_command("mount", mount.volume, mount.path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)))
    if os.geteuid() == 0 and result.returncode == 0:  # root may raise it again
        assert run_command("umount", mount.path).returncode == 0
        pytest.skip("root with CAP_SYS_RESOURCE raises the limit")
    assert result.returncode == 1 and "ulimit" in result.stderr and "32" in result.stderr, result.stderr
    assert mount_entry(mount.path) is None


@pytest.mark.parametrize("limit", [3 << 29, 3 << 30, 6 << 30, 12 << 30])
def test_too_little_address_space(new_mount, limit):
    mount = new_mount({"memory": "64M"}, start=False)
    result = run_command("mount", mount.volume, mount.path, "-o", "memory=64M", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert result.returncode == 1 and "RLIMIT_AS" in result.stderr, result.stderr
    assert mount_entry(mount.path) is None


PR_CAPBSET_DROP, CAP_SYS_RESOURCE = 24, 24
LIMITS = [(resource.RLIMIT_FSIZE, 64 * MIB, "ulimit -f"), (resource.RLIMIT_CPU, 3600, "ulimit -t")]


@pytest.mark.needs_root
@pytest.mark.parametrize("limit,value,advice", LIMITS)
def test_a_limit_that_would_end_the_daemon(new_mount, limit, value, advice):
    libc = ctypes.CDLL(None, use_errno=True)

    def lowered():
        if libc.prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0) != 0:
            os._exit(77)
        resource.setrlimit(limit, (value, value))

    mount = new_mount(start=False)
    result = run_command("mount", mount.volume, mount.path, preexec_fn=lowered)
    if result.returncode == 77:
        pytest.skip("no CAP_SETPCAP")
    assert result.returncode == 1 and advice in result.stderr and str(value) in result.stderr, result.stderr
    assert mount_entry(mount.path) is None


def test_a_soft_limit_of_the_size_of_files_is_raised(new_mount):
    """Its signal would end the daemon in the middle of a write to the volume."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if hard != resource.RLIM_INFINITY:
        pytest.skip("a hard limit")
    mount = new_mount(start=False)
    result = run_command("mount", mount.volume, mount.path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (24 * MIB, hard)))
    assert result.returncode == 0, result.stderr
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload("chunk", 40 * MIB))
    result = run_command("umount", mount.path)
    assert result.returncode == 0 and "written out" in result.stdout, result.stdout + result.stderr
    mount.start()
    with open(os.path.join(mount.path, "chunk"), "rb") as file:
        assert_bytes(file.read(), payload("chunk", 40 * MIB), "chunk")


def test_missing_arguments():
    for arguments in (
        ["mount"],
        ["mount", "/nonexistent/volume"],
        ["umount"],
        ["mount", "a", "b", "c"],
        ["mount", "a", "b", "--no-such-flag"],
    ):
        result = run_command(*arguments)
        assert result.returncode != 0
        assert result.stderr.strip(), f"{arguments}: no message"


# --- names ---


def odd_names():
    return [
        b"x" * 255,
        "ü".encode() * 127,
        b"-rf",
        b"--help",
        b"new\nline",
        b"tab\tand space ",
        b"caf\xe9-not-utf8",
        bytes(range(1, 47)),
        b"\xff\xfe\x80",
        b"...",
        b" ",
        b"*",
        b"a'b\"c\\d",
        b"%2F%00",
        b".hidden",
        b".kvcachefs-not",
        b"\xe2\x80\xae",
    ]


def test_odd_names(root_or_mount):
    path, remount = root_or_mount
    names = odd_names()
    for name in names:
        with open(os.path.join(path, name), "wb") as file:
            file.write(b"body of " + name)
        os.mkdir(os.path.join(path, b"d" + name[:254]))
        os.symlink(name, os.path.join(path, b"s" + name[:254]))

    def check():
        expected = sorted(names + [b"d" + name[:254] for name in names] + [b"s" + name[:254] for name in names])
        assert sorted(os.listdir(path)) == expected
        assert sorted(entry.name for entry in os.scandir(path)) == expected
        for name in names:
            with open(os.path.join(path, name), "rb") as file:
                assert file.read() == b"body of " + name
            assert os.readlink(os.path.join(path, b"s" + name[:254])) == name

    check()
    remount()
    check()
    for name in names:
        os.rename(os.path.join(path, name), os.path.join(path, b"d" + name[:254], name))
        os.unlink(os.path.join(path, b"d" + name[:254], name))
        os.rmdir(os.path.join(path, b"d" + name[:254]))


@pytest.fixture
def root_or_mount(new_mount):
    mount = new_mount()
    path = os.path.join(mount.path, "names").encode()
    os.mkdir(path)
    return path, mount.remount


def test_names_that_are_too_long(root_or_mount):
    path, _ = root_or_mount
    long_name = os.path.join(path, b"y" * 256)
    good = os.path.join(path, b"good")
    with open(good, "wb"):
        pass
    for call in (
        lambda: os.open(long_name, os.O_WRONLY | os.O_CREAT),
        lambda: os.mkdir(long_name),
        lambda: os.stat(long_name),
        lambda: os.symlink(b"x", long_name),
        lambda: os.rename(good, long_name),
        lambda: os.link(good, long_name),
        lambda: os.unlink(long_name),
        lambda: os.mknod(long_name),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENAMETOOLONG
    with pytest.raises(OSError) as caught:
        os.symlink(b"z" * 5000, os.path.join(path, b"link"))
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.listdir(path) == [b"good"]
    assert os.statvfs(path).f_namemax == 255


def test_deep_paths(root_or_mount):
    """300 levels of 100 bytes: far beyond PATH_MAX, walked by descriptors."""
    path, remount = root_or_mount
    name = b"deep" * 25

    def descend(make):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        for _ in range(300):
            if make:
                os.mkdir(name, dir_fd=fd)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        return fd

    fd = descend(True)
    file = os.open(b"bottom", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(file, b"reached")
    os.close(file)
    os.close(fd)
    remount()
    fd = descend(False)
    file = os.open(b"bottom", os.O_RDONLY, dir_fd=fd)
    assert os.read(file, 100) == b"reached"
    os.close(file)
    os.close(fd)


def test_xattr_limits(root_or_mount):
    path, _ = root_or_mount
    target = os.path.join(path, b"f")
    open(target, "wb").close()
    with pytest.raises(OSError) as caught:
        os.setxattr(target, b"user." + b"n" * 251, b"v")
    assert caught.value.errno in (errno.ERANGE, errno.ENAMETOOLONG)
    with pytest.raises(OSError) as caught:
        os.setxattr(target, "user.v", bytes(65537))
    assert caught.value.errno in (errno.E2BIG, errno.ERANGE, errno.ENOSPC)
    for name, wanted in (("nowhere", errno.EOPNOTSUPP), ("nobody.x", errno.EOPNOTSUPP), ("user.", errno.EINVAL)):
        with pytest.raises(OSError) as caught:
            os.setxattr(target, name, b"v")
        assert caught.value.errno == wanted, name
    for name in ("system.x", "system.", "system.posix_acl_other"):
        for call in (lambda: os.setxattr(target, name, b"1"), lambda: os.getxattr(target, name), lambda: os.removexattr(target, name)):
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == errno.EOPNOTSUPP, name
    with contextlib.suppress(OSError):  # refused, or taken and dropped so that copies give no error
        os.setxattr(target, "user.kvcachefs.kind", b"forged")
    with contextlib.suppress(OSError):
        assert os.getxattr(target, "user.kvcachefs.kind") != b"forged"
    assert not [name for name in os.listxattr(target) if not name.startswith("user.kvcachefs.")]
