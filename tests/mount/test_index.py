"""The index is disposable: deleted, older than the journals or corrupted, the same listing, bytes and attributes come back."""

import errno
import glob
import hashlib
import os
import random
import shutil

import pytest

import kvc_env
import kvc_mount
from kvc_data import payload
from kvc_env import KIB, MIB
from kvc_mount import SOON, run_command, wait_until

pytestmark = pytest.mark.needs_daemon


def snapshot(path):
    """{relative name: everything a user can see of it, apart from atime, which reading changes}"""
    tree = {}
    for where, directories, names in os.walk(path):
        for name in directories + names:
            full = os.path.join(where, name)
            found = os.lstat(full)
            body = None
            if os.path.islink(full):
                body = os.readlink(full)
            elif os.path.isfile(full):
                with open(full, "rb") as file:
                    body = hashlib.sha256(file.read()).hexdigest()
            xattrs = {
                key: os.getxattr(full, key, follow_symlinks=False)
                for key in os.listxattr(full, follow_symlinks=False)
                if key.startswith("user.") and not key.startswith("user.kvcachefs")
            }
            size = found.st_size if not os.path.isdir(full) else 0
            tree[os.path.relpath(full, path)] = (
                found.st_mode,
                found.st_uid,
                found.st_gid,
                size,
                found.st_mtime_ns,
                found.st_nlink,
                found.st_ino,
                found.st_blocks,
                body,
                xattrs,
            )
    return tree


def differences(before, after):
    lines = [f"gone: {name}" for name in sorted(set(before) - set(after))]
    lines += [f"new: {name}" for name in sorted(set(after) - set(before))]
    fields = ("mode", "uid", "gid", "size", "mtime", "nlink", "ino", "blocks", "body", "xattrs")
    for name in sorted(set(before) & set(after)):
        for field, old, new in zip(fields, before[name], after[name]):
            if old != new:
                lines.append(f"{name}: {field} {old!r} -> {new!r}")
    return lines[:20]


def assert_same(before, mount):
    assert not differences(before, snapshot(mount.path))


def populate(path, stage):
    base = os.path.join(path, f"stage{stage}")
    os.mkdir(base)
    for index, size in enumerate([0, 1, 300, 4096, 5000, 64 * KIB, 300 * KIB, MIB + 1, 9 * MIB]):
        name = os.path.join(base, f"f{index}")
        with open(f"{name}.tmp", "wb") as file:
            file.write(payload(f"{stage}/{index}", size))
        os.rename(f"{name}.tmp", name)
        os.utime(name, ns=(10**18, 10**18 + index))
        os.chmod(name, 0o600 + index)
    os.chown(os.path.join(base, "f2"), 1234, 4321) if os.geteuid() == 0 else None
    os.link(os.path.join(base, "f3"), os.path.join(base, "hard"))
    os.symlink("f4", os.path.join(base, "soft"))
    os.setxattr(os.path.join(base, "f5"), "user.tag", b"value %d" % stage)
    os.makedirs(os.path.join(base, "a", "b", "c"))
    os.setxattr(os.path.join(base, "a"), "user.dir", b"x")
    for index in range(200):
        with open(os.path.join(base, "a", "b", f"n{index:03}"), "wb") as file:
            file.write(payload(f"{stage}/n{index}", 2000))
    for index in range(0, 200, 7):
        os.unlink(os.path.join(base, "a", "b", f"n{index:03}"))
    with open(os.path.join(base, "f6"), "r+b") as file:  # overwritten in place
        file.seek(1000)
        file.write(b"overwritten")
    os.rename(os.path.join(base, "a", "b", "n001"), os.path.join(base, "a", "moved"))
    fd = os.open(os.path.join(base, "sparse"), os.O_WRONLY | os.O_CREAT)
    os.ftruncate(fd, 3 * MIB)
    os.pwrite(fd, b"island", 2 * MIB)
    os.close(fd)
    for name in ("f6", "sparse"):
        os.utime(os.path.join(base, name), ns=(10**18, 10**18 + 77))


def index_directory(mount):
    found = [
        os.path.join(where, "index")
        for where, directories, _ in os.walk(os.path.join(mount.volume, "nodes"))
        if "index" in directories
    ]
    assert len(found) == 1, f"index directories: {found}"
    return found[0]


def index_files(mount):
    directory = index_directory(mount)
    return [
        os.path.join(where, name)
        for where, _, names in os.walk(directory)
        for name in names
        if "lock" not in name.lower()
    ]


@pytest.fixture
def populated(new_mount):
    """A mount with two stages of content and a remount between them, its snapshot in .before; unmounted."""
    mount = new_mount()
    populate(mount.path, 1)
    mount.remount()
    populate(mount.path, 2)
    shutil.rmtree(os.path.join(mount.path, "stage1", "a", "b"))
    mount.remount()
    mount.before = snapshot(mount.path)
    assert len(mount.before) > 200
    mount.stop()
    return mount


def test_a_remount_changes_nothing(populated):
    populated.start()
    assert_same(populated.before, populated)


def test_index_deleted(populated):
    shutil.rmtree(index_directory(populated))
    populated.start()
    assert_same(populated.before, populated)
    populated.remount()
    assert_same(populated.before, populated)


def test_rebuild_command(populated):
    result = run_command("rebuild", populated.volume)
    assert result.returncode == 0, result.stdout + result.stderr
    populated.start()
    assert_same(populated.before, populated)


def damage_journal(mount):
    journals = sorted(glob.glob(os.path.join(mount.volume, "nodes", "*", "*", "journal", "*.log")), key=os.path.getsize)
    with open(journals[-1], "r+b") as journal:
        journal.seek(os.path.getsize(journals[-1]) // 2)
        byte = journal.read(1)[0]
        journal.seek(-1, os.SEEK_CUR)
        journal.write(bytes([byte ^ 0x10]))


def test_what_a_damaged_journal_lacks_is_kept_by_the_index(populated):
    damage_journal(populated)
    refused = run_command("rebuild", populated.volume)
    assert refused.returncode == 1 and "fsck --repair" in refused.stderr
    assert run_command("fsck", populated.volume).returncode == 4
    repaired = run_command("fsck", "--repair", populated.volume)
    assert repaired.returncode == 1, repaired.stdout
    assert run_command("fsck", populated.volume).returncode == 0
    assert run_command("rebuild", populated.volume).returncode == 0
    populated.start()
    assert_same(populated.before, populated)


def test_index_older_than_the_journals(populated):
    """A backup of the index put back after more was written, removed and replaced."""
    directory, backup = index_directory(populated), os.path.join(populated.base, "backup")
    shutil.copytree(directory, backup)
    populated.start()
    populate(populated.path, 3)
    shutil.rmtree(os.path.join(populated.path, "stage1"))
    os.rename(os.path.join(populated.path, "stage2", "f7"), os.path.join(populated.path, "stage2", "f6"))
    populated.remount()
    before = snapshot(populated.path)
    populated.stop()
    shutil.rmtree(directory)
    shutil.copytree(backup, directory)
    populated.start()
    assert_same(before, populated)


def corrupt(path, how, chooser):
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        if how == "garbage":
            file.write(chooser.randbytes(min(size, 4 * MIB)))
        elif how == "zeros":
            file.write(bytes(min(size, 4 * MIB)))
        elif how == "empty":
            file.truncate(0)
        elif how == "half":
            file.truncate(size // 2 // 4096 * 4096)
        elif how == "odd":
            file.truncate(max(1, size - 1000))
        elif how == "pages":
            for _ in range(max(1, min(size, 16 * MIB) // 4096 // 8)):
                file.seek(chooser.randrange(max(1, size // 4096)) * 4096)
                file.write(chooser.randbytes(4096))
        elif how == "flips":
            for _ in range(200):
                at = chooser.randrange(size)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ (1 << chooser.randrange(8))]))
        else:
            raise AssertionError(how)


@pytest.mark.parametrize("how", ["garbage", "zeros", "empty", "half", "odd", "pages"])
def test_index_corrupted(how, populated):
    chooser = random.Random(kvc_env.seed())
    files = index_files(populated)
    assert files
    for path in files:
        corrupt(path, how, chooser)
    populated.start()
    assert_same(populated.before, populated)
    populated.remount()
    assert_same(populated.before, populated)


def test_index_with_single_bits_flipped_never_gives_wrong_bytes(populated):
    """LMDB has no checksums, so a flipped bit in a row may only be noticed when the row is read: whatever is served must be right, and after the
    index is rebuilt everything is there."""
    chooser = random.Random(kvc_env.seed())
    for path in index_files(populated):
        corrupt(path, "flips", chooser)
    populated.start()
    before = populated.before
    for name, seen in before.items():
        path = os.path.join(populated.path, name)
        if seen[8] is None or os.path.islink(path):
            continue
        try:
            with open(path, "rb") as file:
                assert hashlib.sha256(file.read()).hexdigest() == seen[8], f"{name}: wrong bytes"
        except OSError:
            pass
    assert populated.alive(), "the daemon died of a corrupted index"
    populated.stop()
    shutil.rmtree(index_directory(populated))
    populated.start()
    assert_same(before, populated)


@pytest.mark.parametrize("index", ["kept", "deleted"])
def test_kill_9_under_durability_close(index, new_mount):
    mount = new_mount({"durability": "close"})
    populate(mount.path, 1)
    # close() answers for bytes; what utimensat, chmod and mkdir changed after it is answered for by an fsync of the directory.
    directory = os.open(mount.path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    before = snapshot(mount.path)
    mount.kill()
    mount.destroy()
    if index == "deleted":
        shutil.rmtree(index_directory(mount))
    mount.start()
    assert_same(before, mount)


def test_index_elsewhere(new_mount, temp_dir):
    """index=DIR: nothing of it on the volume; lost with its directory it is rebuilt."""
    place = os.path.join(temp_dir, "index")
    mount = new_mount({"index": place})
    populate(mount.path, 1)
    mount.remount()
    before = snapshot(mount.path)
    mount.stop()
    assert os.listdir(place)
    assert not [
        directory for _, directories, _ in os.walk(mount.volume) for directory in directories if directory == "index"
    ]
    shutil.rmtree(place)
    mount.start()
    assert_same(before, mount)


def test_an_index_of_another_volume_is_not_believed(new_mount, temp_dir):
    place = os.path.join(temp_dir, "index")
    first = new_mount({"index": place})
    with open(os.path.join(first.path, "of-the-first"), "wb") as file:
        file.write(b"1")
    first.stop()
    second = new_mount({"index": place}, start=False)
    try:
        second.start()
    except Exception as refusal:  # a refusal by name is as good as a rebuild
        assert place in str(refusal)
        return
    assert os.listdir(second.path) == []


def test_a_flipped_bit_under_the_mount_is_mended(new_mount):
    """One row cannot be answered for a moment; all others can, and the index is built anew without an unmount."""
    mount = new_mount()
    for n in range(40):
        with open(os.path.join(mount.path, f"some-name-{n:02}"), "wb") as file:
            file.write(payload(n, 8 * KIB))
    mount.remount()
    path = os.path.join(mount.status()["index"], "data.mdb")

    def flip_until_found():  # again if a commit moved the row meanwhile
        with open(path, "r+b") as file:
            data = file.read()
            at = data.find(b"some-name-17")
            while at >= 0:
                file.seek(at)
                file.write(bytes([data[at] ^ 1]))
                at = data.find(b"some-name-17", at + 1)
        try:
            os.stat(os.path.join(mount.path, "some-name-17"))
        except OSError as error:
            assert error.errno == errno.EIO
            return True
        return False

    wait_until(flip_until_found, SOON, "the damage is met")
    for n in set(range(40)) - {17}:
        with open(os.path.join(mount.path, f"some-name-{n:02}"), "rb") as file:
            assert file.read() == payload(n, 8 * KIB)
    wait_until(lambda: os.path.exists(os.path.join(mount.path, "some-name-17")), SOON, "the index is built anew")
    assert len(os.listdir(mount.path)) == 40
    wait_until(lambda: mount.status()["volume"]["state"] == "ok", SOON, "the state is told")
    mount.remount()
    with open(os.path.join(mount.path, "some-name-17"), "rb") as file:
        assert file.read() == payload(17, 8 * KIB)


def test_the_data_of_another_program_is_refused_and_untouched(new_mount, temp_dir):
    """LMDB environments of all programs have the same file names; what lies beside an index is not the check's to remove."""
    theirs, beside = os.path.join(temp_dir, "theirs"), os.path.join(temp_dir, "index.fsck")
    for directory, names in ((theirs, ("data.mdb", "lock.mdb")), (beside, ("notes",))):
        os.mkdir(directory)
        for name in names:
            with open(os.path.join(directory, name), "wb") as file:
                file.write(payload(name, 64 * KIB))
    before = {path: snapshot(path) for path in (temp_dir,)}
    mount = new_mount({"index": theirs}, start=False)
    with pytest.raises(kvc_mount.MountFailed, match="another program"):
        mount.start()
    assert not differences(before[temp_dir], snapshot(temp_dir))
    mount.start(index=os.path.join(temp_dir, "index"))
    with open(os.path.join(mount.path, "chunk"), "wb") as file:
        file.write(payload(1, 8 * KIB))
    mount.stop()
    for repair in ((), ("--repair",)):
        refused = run_command("fsck", mount.volume, "--index", theirs, *repair)
        assert refused.returncode != 0 and "another program" in refused.stdout + refused.stderr
        assert run_command("fsck", mount.volume, "--index", os.path.join(temp_dir, "index"), *repair).returncode == 0
    left = snapshot(temp_dir)
    assert not differences(before[temp_dir], {name: left[name] for name in before[temp_dir] if name in left})
    assert not [name for name in left if ".fsck-" in name], "scratch directories are left"


@pytest.mark.parametrize("stated", [False, True], ids=["not-stated", "without-index"])
def test_a_repair_that_does_not_see_the_index_of_the_mount(new_mount, temp_dir, stated):
    """With `index=` a check knows nothing of the index unless it is told where it lies."""
    index = os.path.join(temp_dir, "index")
    mount = new_mount({"index": index})
    for i in range(6):
        with open(os.path.join(mount.path, f"chunk-{i}"), "wb") as file:
            file.write(payload(i, 8 * KIB))
            os.fsync(file.fileno())
    before = snapshot(mount.path)
    mount.stop()
    damage_journal(mount)
    found = run_command("fsck", mount.volume)
    assert found.returncode == 4 and "--index DIR" in found.stdout, found.stdout
    repaired = run_command("fsck", "--repair", mount.volume, *(["--without-index"] if stated else []))
    assert repaired.returncode == 4 and ("lost: " in repaired.stdout) == stated, repaired.stdout
    if not stated:
        with_index = run_command("fsck", "--repair", mount.volume, "--index", index)
        assert with_index.returncode == 1, with_index.stdout
    mount.start()
    assert stated or snapshot(mount.path) == before
    assert os.path.exists(index + ".damaged") == stated, "it has what the repair has lost"
