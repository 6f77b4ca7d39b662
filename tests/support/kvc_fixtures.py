"""pytest fixtures and hooks shared by tests/calls and tests/mount (their conftest.py import everything from here)."""

import os
import shutil
import signal

import pytest

import kvc_env
import kvc_mount
import kvc_native
import kvc_process


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "deadline(seconds): abort the mounts and fail when the test takes longer (default 400)"
    )
    config.addinivalue_line("markers", "needs_daemon: has no meaning on a plain directory")
    config.addinivalue_line(
        "markers",
        "beyond_plain(unless=None): what a plain directory cannot do: must fail there, or may where `unless` tells what can make it pass",
    )
    config.addinivalue_line("markers", "needs_root: needs root (other uids, mount namespaces)")
    if not kvc_env.PLAIN and not os.access(kvc_env.BINARY, os.X_OK):
        raise pytest.UsageError(
            "set KVCACHEFS_BIN to the path of the kvcachefs command (or KVCACHEFS_PLAIN=1 to try a plain directory)"
        )
    kvc_mount.watchdog()
    # An interrupted run ends like one stopped by the keyboard: fixtures clean up.
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number, frame):
    raise KeyboardInterrupt(f"signal {number}")


def pytest_unconfigure(config):
    kvc_mount.stop_watchdog()


def pytest_collection_modifyitems(items):
    for item in items:
        if kvc_env.PLAIN:
            if item.get_closest_marker("needs_daemon"):
                item.add_marker(pytest.mark.skip(reason="no daemon: KVCACHEFS_PLAIN=1"))
            elif beyond := item.get_closest_marker("beyond_plain"):
                unless = beyond.kwargs.get("unless")
                reason = "a plain directory cannot do this" + (f", unless {unless}" if unless else "")
                item.add_marker(pytest.mark.xfail(reason=reason, strict=unless is None))
        if item.get_closest_marker("needs_root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        item.stash[_FAILED] = True
        for mount in item.stash.get(_MOUNTS, []):
            report.sections.append((f"daemon log of {mount.path}", mount.log_text()[-6000:]))


_FAILED = pytest.StashKey()
_MOUNTS = pytest.StashKey()


def _note_mount(request, mount):
    request.node.stash.setdefault(_MOUNTS, []).append(mount)


@pytest.fixture(autouse=True)
def _deadline(request):
    """A hang becomes a failure: the watchdog aborts the FUSE connections, which fails every blocked call."""
    marker = request.node.get_closest_marker("deadline")
    seconds = (marker.args[0] if marker else 400) * kvc_env.SCALE
    kvc_mount.watchdog().tell(op="arm", seconds=seconds, what=request.node.nodeid)
    yield
    kvc_mount.watchdog().tell(op="disarm")


@pytest.fixture(scope="session", autouse=True)
def _native():
    """Compiled once, before any test forks the processes that use it."""
    kvc_native.Native.get()


@pytest.fixture
def temp_dir():
    """A directory outside of every mount."""
    path = kvc_mount.make_temp_dir()
    yield path
    kvc_mount.remove_temp_dir(path)


@pytest.fixture
def new_mount(request):
    """new_mount(options, user=None, start=True, volume=None): a Mount on a fresh volume, gone after the test."""
    mounts = []

    def make(options=None, user=None, start=True, volume=None):
        mount = kvc_mount.Mount(kvc_mount.make_temp_dir(), options, user, volume)
        mounts.append(mount)
        _note_mount(request, mount)
        return mount.start() if start else mount

    yield make
    for mount in reversed(mounts):  # one may lie on the volume of one before
        mount.destroy()
        kvc_mount.remove_temp_dir(mount.base)


class Root:
    """A fresh directory for one test on a mount shared by the tests of a module."""

    def __init__(self, mount, name):
        self.mount = mount
        self.path = os.path.join(mount.path, name)
        os.mkdir(self.path)

    def join(self, *names):
        return os.path.join(self.path, *names)

    def remount(self):
        """Unmounts (which drains) and mounts again; on a plain directory nothing happens."""
        self.mount.remount()

    def check_everywhere(self, check, *arguments):
        """check(*arguments) must hold in this moment, in another process, and again after a remount in yet another process."""
        kvc_process.in_process(check, *arguments)
        self.remount()
        kvc_process.in_process(check, *arguments)


class _SharedMount:
    def __init__(self):
        self.mount = None
        self.count = 0

    def get(self):
        if self.mount is not None and not self.mount.alive():
            self.drop()
        if self.mount is None:
            self.mount = kvc_mount.Mount(kvc_mount.make_temp_dir())
            self.mount.start()
        return self.mount

    def drop(self):
        if self.mount is not None:
            self.mount.destroy()
            kvc_mount.remove_temp_dir(self.mount.base)
            self.mount = None


@pytest.fixture(scope="module")
def _shared_mount():
    shared = _SharedMount()
    yield shared
    shared.drop()


@pytest.fixture
def root(request, _shared_mount):
    """A fresh directory (Root) on the module's mount; a failed test leaves no mount behind for the next one to stumble over."""
    mount = _shared_mount.get()
    _note_mount(request, mount)
    _shared_mount.count += 1
    root = Root(mount, f"t{_shared_mount.count}")
    yield root
    if request.node.stash.get(_FAILED, False) or not mount.alive():
        _shared_mount.drop()
    else:
        shutil.rmtree(root.path)
