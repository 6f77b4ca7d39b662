"""What an operator looks at: ls, du, df, find, cp -a, getfattr, the virtual directory, status, info, fsck."""

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import time

import pytest

from kvc_data import assert_bytes, payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, run_command, wait_until

pytestmark = pytest.mark.needs_daemon

STATUS_FIELDS = {
    "version": None,
    "features": None,
    "options": None,
    "capacity": ["limit_bytes", "physical_bytes", "live_bytes", "reclaimable_bytes", "staged_bytes",
                 "reserve_bytes", "claim_bytes", "wish_bytes", "unclaimed_bytes", "room_waits", "room_wait_ms", "room_wait_max_ms"],
    "objects": ["total", "inline", "packed", "solo", "raw", "quarantined"],
    "memory": ["limit_bytes", "used_bytes"],
    "probes": ["hit", "miss", "miss_never_seen", "miss_evicted", "miss_quarantined", "before_store", "hit_1min_ratio",
               "hit_1h_ratio", "hit_1d_ratio", "miss_evicted_1min_ratio", "miss_evicted_1h_ratio", "miss_evicted_1d_ratio"],
    "reads": ["bytes_from_ram", "bytes_from_volume", "passthrough_opens", "opens"],
    "prefetch": ["read_bytes", "used_bytes", "wasted_bytes", "late_bytes"],
    "writes": ["received_bytes", "volume_bytes"],
    "evictions": ["objects", "bytes", "background_bytes", "direct_bytes", "lease_broken_bytes", "age_below_1min_bytes",
                  "age_below_1h_bytes", "age_below_1d_bytes", "age_above_1d_bytes", "coldest_age_s", "came_back"],
    "leases": ["objects"],
    "pins": ["objects", "bytes"],
    "errors": None,
    "volume": ["state", "since", "reason"],
}


def put_chunk(directory, index, size):
    """One chunk of a chain the way LMCache's GDS backend names and publishes it."""
    path = os.path.join(directory, f"chunk{index}.kvcache.safetensors")
    with open(f"{path}.tmp0a1b2c3d", "wb") as file:
        file.write(payload(f"chain/{index}", size))
    os.rename(f"{path}.tmp0a1b2c3d", path)


def run(*command):
    return subprocess.run(
        command, capture_output=True, text=True, errors="surrogateescape", check=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout


@pytest.fixture
def filled(new_mount):
    """A mount with a small tree of known files."""
    mount = new_mount()
    sizes = {"inline": 200, "small": 5000, "packed": 300 * KIB, "large": 9 * MIB + 1}
    for name, size in sizes.items():
        os.makedirs(os.path.join(mount.path, "tree", name))
        for index in range(3):
            with open(os.path.join(mount.path, "tree", name, f"f{index}"), "wb") as file:
                file.write(payload(f"{name}/{index}", size))
            os.chmod(os.path.join(mount.path, "tree", name, f"f{index}"), 0o640)
            os.utime(os.path.join(mount.path, "tree", name, f"f{index}"), ns=(10**18 + index, 10**18 + 1000 * index))
    mount.drain()
    mount.sizes = sizes
    return mount


def test_ls_and_stat(filled):
    tree = os.path.join(filled.path, "tree")
    for name, size in filled.sizes.items():
        lines = run("ls", "-l", "--time-style=full-iso", os.path.join(tree, name)).splitlines()[1:]
        assert [line.split()[-1] for line in lines] == ["f0", "f1", "f2"]
        for line in lines:
            fields = line.split()
            assert fields[0] == "-rw-r-----" and int(fields[4]) == size
        found = run("stat", "-c", "%s %a %h %Y %F", os.path.join(tree, name, "f1")).strip()
        assert found == f"{size} 640 1 1000000000 regular file"


def test_du_counts_what_is_there(filled):
    total = 3 * sum(filled.sizes.values())
    apparent = int(run("du", "-s", "--apparent-size", "-B1", os.path.join(filled.path, "tree")).split()[0])
    blocks = int(run("du", "-s", "-B1", os.path.join(filled.path, "tree")).split()[0])
    assert total <= apparent <= total + 1 * MIB
    assert total - 12 * 4096 <= blocks <= total + 1 * MIB


def test_df_shows_the_capacity(new_mount):
    mount = new_mount({"capacity": "512M"})
    fields = run("df", "-B1", "--output=fstype,size,used,avail", mount.path).splitlines()[1].split()
    assert fields[0] == "fuse.kvcachefs"
    size, used, available = map(int, fields[1:])
    assert 500 * MIB <= size <= 512 * MIB
    assert used + available <= size
    with open(os.path.join(mount.path, "f"), "wb") as file:
        file.write(payload("f", 64 * MIB))
    later = int(run("df", "-B1", "--output=avail", mount.path).splitlines()[1])
    assert 60 * MIB <= available - later <= 72 * MIB, "df does not see what is staged"
    os.unlink(os.path.join(mount.path, "f"))
    again = int(run("df", "-B1", "--output=avail", mount.path).splitlines()[1])
    assert again - later >= 60 * MIB
    assert int(run("stat", "-f", "-c", "%S", mount.path)) == 4096


def test_find(filled):
    found = run("find", os.path.join(filled.path, "tree"), "-type", "f", "-size", "+1M", "-printf", "%P\n").split()
    assert sorted(found) == ["large/f0", "large/f1", "large/f2"]
    assert len(run("find", filled.path).splitlines()) == 1 + 1 + 4 + 12, "find enters what readdir must not list"


def test_cp_a_out_and_in(filled, temp_dir):
    """Copies carry names, bytes, modes, times and the user's own xattrs, and nothing of kvcachefs."""
    source = os.path.join(filled.path, "tree")
    os.setxattr(os.path.join(source, "small", "f0"), "user.mine", b"kept")
    os.symlink("f0", os.path.join(source, "small", "link"))
    outside, inside = os.path.join(temp_dir, "copy"), os.path.join(filled.path, "copy")
    for origin, target in ((source, outside), (outside, inside)):
        result = subprocess.run(["cp", "-a", origin, target], capture_output=True, text=True, check=False)
        assert result.returncode == 0 and result.stderr == "", result.stderr
        for name, size in filled.sizes.items():
            for index in range(3):
                path = os.path.join(target, name, f"f{index}")
                with open(path, "rb") as file:
                    assert_bytes(file.read(), payload(f"{name}/{index}", size), path)
                found = os.stat(path)
                assert stat.S_IMODE(found.st_mode) == 0o640
                assert found.st_mtime_ns == 10**18 + 1000 * index
        assert os.readlink(os.path.join(target, "small", "link")) == "f0"
        assert os.getxattr(os.path.join(target, "small", "f0"), "user.mine") == b"kept"
    for where, directories, names in os.walk(outside):
        for name in directories + names:
            carried = [
                key
                for key in os.listxattr(os.path.join(where, name), follow_symlinks=False)
                if key.startswith("user.kvcachefs")
            ]
            assert not carried, f"cp -a carried {carried}"


def test_copies_by_python_carry_nothing_false(filled, temp_dir):
    """What rsync -aX does: listxattr, getxattr, setxattr of each on the copy."""
    source = os.path.join(filled.path, "tree", "small", "f0")
    target = os.path.join(temp_dir, "copy")
    shutil.copy2(source, target)
    assert not [key for key in os.listxattr(target) if key.startswith("user.kvcachefs")]
    result = subprocess.run(
        ["cp", "--preserve=xattr", source, os.path.join(filled.path, "copy")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0 and result.stderr == "", result.stderr


@pytest.mark.parametrize("name", ["inline", "small", "packed", "large"])
def test_getfattr_tells_about_a_file(name, filled):
    text = run(
        "getfattr", "--absolute-names", "-d", "-m", "user.kvcachefs", os.path.join(filled.path, "tree", name, "f0")
    )
    attributes = dict(re.findall(r'^(user\.kvcachefs\.[a-z_.]+)="?(.*?)"?$', text, re.MULTILINE))
    words = " ".join(attributes)
    for wanted in ("place", "checksum", "kind", "hits", "age", "state"):
        assert wanted in words, f"no attribute tells {wanted}: {text}"
    for key in attributes:
        run("getfattr", "--absolute-names", "-n", key, os.path.join(filled.path, "tree", name, "f0"))


def test_the_facts_are_listed_on_request_only(filled):
    """Programs that list attributes see those of the user; who asks for ours by the pattern sees ours, and by name everything does."""
    path = os.path.join(filled.path, "tree", "small", "f0")
    os.setxattr(path, "user.mine", b"kept")
    for options in (["-d"], ["-d", "-m", "-"], ["-d", "-m", "^user"], ["-d", "-e", "hex"]):
        text = run("getfattr", "--absolute-names", *options, path)
        assert "user.mine=" in text and "kvcachefs." not in text.replace(path, ""), text
    for pattern in (["-m", "user.kvcachefs"], ["-muser.kvcachefs"], ["--match=^user\\.kvcachefs\\.place"]):
        text = run("getfattr", "--absolute-names", "-d", *pattern, path)
        assert "user.kvcachefs.place=" in text and "user.mine" not in text, text
    assert os.listxattr(path) == ["user.mine"]
    facts = dict(line.split(" ", 1) for line in os.getxattr(path, "user.kvcachefs.info").decode().splitlines())
    assert facts["state"] == os.getxattr(path, "user.kvcachefs.state").decode()
    told = run_command("info", path).stdout
    for name, value in facts.items():
        if name not in ("age_s", "hits"):
            assert re.search(rf"^{name} +{re.escape(value)}$", told, re.MULTILINE), told


def test_getfattr_names_successors_of_a_chain(new_mount):
    mount = new_mount()
    for index in range(6):
        put_chunk(mount.path, index, 256 * KIB)
    mount.drain()
    text = run(
        "getfattr",
        "--absolute-names",
        "-d",
        "-m",
        "user.kvcachefs",
        os.path.join(mount.path, "chunk2.kvcache.safetensors"),
    )
    assert "successor" in text and "predecessor" in text, text


def test_virtual_directory(filled):
    assert ".kvcachefs" not in os.listdir(filled.path)
    virtual = os.path.join(filled.path, ".kvcachefs")
    assert stat.S_ISDIR(os.stat(virtual).st_mode)
    assert {"status", "metrics", "options", "log", "chains"} <= set(os.listdir(virtual))
    for name in ("status", "metrics", "options", "log", "chains"):
        path = os.path.join(virtual, name)
        text = run("cat", path)
        if name != "log":
            assert text.strip(), f"{name} is empty"
        with pytest.raises(OSError):
            os.open(path, os.O_WRONLY)
        with pytest.raises(OSError):
            os.unlink(path)
    for line in run("cat", os.path.join(virtual, "metrics")).splitlines():
        assert line.startswith("#") or re.fullmatch(
            r"[a-z_:][a-z0-9_:]*(\{[^}]*\})? [-+0-9.eE]+(nan|inf)?", line
        ), f"not Prometheus text: {line}"
    for call in (
        lambda: os.mkdir(virtual),
        lambda: os.rmdir(virtual),
        lambda: os.rename(virtual, filled.path + "/x"),
        lambda: open(os.path.join(virtual, "new"), "wb"),
        lambda: os.rename(os.path.join(filled.path, "tree"), virtual),
    ):
        with pytest.raises(OSError):
            call()


def test_status_json_has_every_documented_field(filled):
    with open(os.path.join(filled.path, "tree", "packed", "f0"), "rb") as file:
        file.read()
    assert not os.path.exists(os.path.join(filled.path, "absent"))
    # The kernel keeps a name for a second: only then it asks again, and that is a hit.
    wait_until(lambda: os.stat(file.name) and filled.status()["probes"]["hit"], SOON, "a probe hits")
    status = filled.status()
    for field, below in STATUS_FIELDS.items():
        assert field in status, f"{field} is missing"
        for name in below or []:
            assert name in status[field], f"{field}.{name} is missing"
    assert status["objects"]["total"] >= 12
    assert status["capacity"]["live_bytes"] >= 3 * sum(filled.sizes.values()) - 64 * KIB
    assert 0 < status["capacity"]["physical_bytes"] <= status["capacity"]["limit_bytes"]
    assert status["writes"]["received_bytes"] >= 3 * sum(filled.sizes.values())
    assert status["probes"]["miss"] >= 1 and status["probes"]["hit"] >= 1
    assert status["reads"]["opens"] >= 1
    assert status["memory"]["used_bytes"] <= status["memory"]["limit_bytes"]
    assert status["volume"]["state"]
    assert status["version"] in run("cat", os.path.join(filled.path, ".kvcachefs", "status"))


def test_status_for_people(filled):
    text = run_command("status", filled.path)
    assert text.returncode == 0
    for word in ("capacity", "objects", "memory"):
        assert word in text.stdout.lower()
    missing = run_command("status", filled.base)
    assert missing.returncode != 0 and filled.base in missing.stderr


def test_staged_bytes_reach_the_volume_by_themselves(new_mount):
    """Without any further request the flush interval empties the staging."""
    mount = new_mount({"flush_interval_ms": 100})
    with open(os.path.join(mount.path, "f"), "wb") as file:
        file.write(payload("f", 8 * MIB))
    deadline = time.monotonic() + 60
    while mount.status()["capacity"]["staged_bytes"]:
        assert time.monotonic() < deadline, "still staged"
        time.sleep(0.05)
    mount.kill()
    mount.start()
    with open(os.path.join(mount.path, "f"), "rb") as file:
        assert_bytes(file.read(), payload("f", 8 * MIB), "f")


def test_info(filled):
    result = run_command("info", os.path.join(filled.path, "tree", "packed", "f0"))
    assert result.returncode == 0, result.stderr
    assert str(filled.sizes["packed"]) in result.stdout
    missing = run_command("info", os.path.join(filled.path, "absent"))
    assert missing.returncode != 0 and "absent" in missing.stderr


def test_fsck_of_a_clean_volume(filled):
    filled.stop()
    result = run_command("fsck", filled.volume)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"\b12\b", result.stdout), f"12 objects are not counted: {result.stdout}"
    missing = run_command("fsck", os.path.join(filled.base, "absent"))
    assert missing.returncode != 0 and "absent" in missing.stderr


def test_fsck_finds_a_flipped_byte_and_the_mount_never_serves_it(filled):
    """The largest extent gets one byte flipped inside a body: fsck tells by its exit code, readers get EIO or ENOENT, the others their bytes."""
    filled.stop()
    extents = [
        os.path.join(where, name)
        for where, _, names in os.walk(os.path.join(filled.volume, "nodes"))
        for name in names
        if name.endswith((".pack", ".solo"))
    ]
    victim = max(extents, key=os.path.getsize)
    with open(victim, "r+b") as file:
        file.seek(os.path.getsize(victim) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    result = run_command("fsck", filled.volume)
    assert result.returncode != 0, "fsck did not notice"
    assert os.path.basename(victim) in result.stdout + result.stderr
    filled.start(verify="always")
    wrong = 0
    for name, size in filled.sizes.items():
        for index in range(3):
            try:
                with open(os.path.join(filled.path, "tree", name, f"f{index}"), "rb") as file:
                    assert_bytes(file.read(), payload(f"{name}/{index}", size), f"{name}/{index}")
            except OSError:
                wrong += 1
    assert wrong == 1, f"{wrong} files are unreadable after one flipped byte"


def test_st_ino_is_stable_over_remounts(filled):
    path = os.path.join(filled.path, "tree", "packed", "f0")
    before = os.stat(path).st_ino
    filled.remount()
    assert os.stat(path).st_ino == before


@pytest.mark.parametrize("wanted", ["auto", "on", "off"])
def test_io_uring_tells_what_became_of_it(new_mount, wanted):
    mount = new_mount({"io_uring": wanted})
    features = mount.status()["features"]
    state, used = features["fuse_io_uring_state"], features["fuse_io_uring"]
    assert used == (state == "in use") and features["fuse_enable_uring"] in ("Y", "N", "-")
    assert state in run_command("status", mount.path).stdout, "not said to people"
    if wanted == "off":
        assert state == "off: io_uring=off" and "io_uring" not in features["lost"]
    elif features["fuse_enable_uring"] != "Y":
        assert not used and ("enable_uring" in state or "kernel" in state or "libfuse" in state)
        assert (state in features["lost"]) == (wanted == "on"), features
        wait_until(lambda: (state in mount.log_text()) == (wanted == "on"), SOON, "the log says it")


def test_pack_below_is_by_what_is_passed_through(new_mount):
    for options in ({}, {"verify": "always"}, {"passthrough": "off"}):
        status = new_mount(options).status()
        expected = "4M" if status["features"]["passthrough"] else "32M"
        assert status["options"]["pack_below"] == expected, options
        assert not options or expected == "32M"


def refused(call, *arguments, **keywords):
    """The name of the errno that a call fails with."""
    with pytest.raises(OSError) as failure:
        call(*arguments, **keywords)
    return errno.errorcode[failure.value.errno]


def test_every_request_about_a_control_node_is_answered_by_it(new_mount):
    """No operation on `.kvcachefs/` reaches the store: each has an answer of its own."""
    mount = new_mount()
    virtual, chunk, target = (os.path.join(mount.path, name) for name in (".kvcachefs", "chunk", "target"))
    with open(chunk, "wb") as file:
        file.write(b"x" * 4096)
    status = os.path.join(virtual, "status")
    # names
    assert refused(os.stat, os.path.join(virtual, "absent")) == "ENOENT"
    for call, *arguments in (
        (os.mkdir, os.path.join(virtual, "new")),
        (os.mknod, os.path.join(virtual, "new")),
        (os.symlink, "to", os.path.join(virtual, "new")),
        (os.open, os.path.join(virtual, "new"), os.O_CREAT | os.O_WRONLY),
        (os.link, status, target),
        (os.link, chunk, os.path.join(virtual, "new")),
        (os.unlink, status),
        (os.rmdir, virtual),
        (os.rename, status, target),
        (os.rename, chunk, os.path.join(virtual, "new")),
        (os.rename, chunk, status),
        (os.rename, chunk, virtual),
    ):
        assert refused(call, *arguments) in ("EPERM", "EISDIR"), call
    assert refused(os.readlink, status) == "EINVAL"
    assert os.path.isfile(os.path.join(virtual, "..", "chunk"))
    # attributes
    assert refused(os.chmod, status, 0o600) == "EPERM"
    assert refused(os.utime, status) == "EPERM"
    assert refused(os.truncate, status, 0) == "EPERM"
    assert os.listxattr(status) == []
    assert refused(os.getxattr, status, "user.any") == "ENODATA"
    assert refused(os.getxattr, status, "user.kvcachefs.info") == "ENODATA"
    assert refused(os.setxattr, status, "user.any", b"1") == "EPERM"
    assert refused(os.removexattr, status, "user.any") == "EPERM"
    assert os.statvfs(status).f_namemax == 255
    # an open file
    assert refused(os.open, status, os.O_RDWR) == "EACCES"
    with open(status, "rb") as file, open(chunk, "r+b") as other:
        os.fsync(file.fileno())
        assert json.loads(file.read())["mountpoint"] == mount.path
        assert os.pread(file.fileno(), 10, 1 << 20) == b""
        assert refused(fcntl.flock, file.fileno(), fcntl.LOCK_SH) == "ENOLCK"
        assert refused(fcntl.lockf, file.fileno(), fcntl.LOCK_SH) == "ENOLCK"
        assert refused(fcntl.fcntl, file.fileno(), fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)) == "ENOLCK"
        assert refused(fcntl.ioctl, file.fileno(), 0x5401) == "ENOTTY"
        assert refused(os.lseek, file.fileno(), 0, os.SEEK_DATA) in ("EINVAL", "ENXIO")
        # The size is 0, so the kernel may answer 0 without a request.
        try:
            assert os.copy_file_range(file.fileno(), other.fileno(), 10, 0, 0) == 0
        except OSError as failure:
            assert failure.errno == errno.EXDEV
    # the directory
    descriptor = os.open(virtual, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
        assert sorted(os.listdir(descriptor)) == ["chains", "log", "metrics", "options", "status"]
    finally:
        os.close(descriptor)
    with open(chunk, "rb") as file:
        assert file.read() == b"x" * 4096
