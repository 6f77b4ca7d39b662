"""NIXL's agent with the POSIX plugin: batches of requests into pool files, and the three ways it can submit them."""

import mmap
import os
import random

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from payload import check, payload
from workers.common import Meeting, direct_opens

ENGINES = {"libaio": "use_aio", "io_uring": "use_uring", "posix_aio": "use_posix_aio"}


def engine_in_use() -> str:
    """What the kernel says this process submits with, not what it was asked to."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        if any("/[aio]" in line for line in file):
            return "libaio"
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    return "io_uring" if "anon_inode:[io_uring]" in links else "posix_aio"


class Pool:
    """Pool files, a DRAM buffer as large as one of them, and an agent that moves requests between them."""

    def __init__(self, path: str, engine: str, direct: bool, files: int, requests: int, request_bytes: int):
        self.files, self.requests, self.request_bytes = files, requests, request_bytes
        self._agent = nixl_agent("pool", nixl_agent_config(backends=[]))
        self._agent.create_backend("POSIX", {ENGINES[engine]: "true"})
        self._map = mmap.mmap(-1, requests * request_bytes)
        self.memory = np.frombuffer(self._map, dtype=np.uint8)
        self._base = self.memory.ctypes.data
        flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0)
        self._fds = [os.open(os.path.join(path, f"pool_{number}.bin"), flags, 0o644) for number in range(files)]
        self._registered = [
            self._agent.register_memory([(self._base, len(self.memory), 0, "")], "DRAM"),
            self._agent.register_memory([(0, len(self.memory), fd, "") for fd in self._fds], "FILE"),
        ]

    def name(self, file: int, request: int) -> str:
        return f"pool file {file}, request {request} of {self.request_bytes} bytes"

    def slot(self, request: int) -> np.ndarray:
        return self.memory[request * self.request_bytes : (request + 1) * self.request_bytes]

    def transfer(self, direction: str, file: int, requests: list[int]) -> None:
        """One batch, in a shuffled order: neighbours in the file are not neighbours in the batch."""
        order = list(requests)
        random.Random(file).shuffle(order)
        offsets = [request * self.request_bytes for request in order]
        memory = self._agent.get_xfer_descs([(self._base + at, self.request_bytes, 0) for at in offsets], "DRAM")
        target = self._agent.get_xfer_descs([(at, self.request_bytes, self._fds[file]) for at in offsets], "FILE")
        handle = self._agent.initialize_xfer(direction, memory, target, "pool")
        state = self._agent.transfer(handle)
        while state == "PROC":
            state = self._agent.check_xfer_state(handle)
        assert state == "DONE", f"{direction} of {len(order)} requests ended in {state}"
        self._agent.release_xfer_handle(handle)

    def close(self) -> None:
        for registered in reversed(self._registered):
            self._agent.deregister_memory(registered)
        for fd in self._fds:
            os.close(fd)


def write(shape: dict, version: int = 0, every: int = 1, first: int = 0, meet=None):
    """Writes the requests first, first + every, ... of every file in place, one batch a file."""
    meeting = Meeting(meet)
    pool = Pool(**shape)
    requests = list(range(first, pool.requests, every))
    for file in range(pool.files):
        for request in requests:
            pool.slot(request)[:] = payload(pool.name(file, request), pool.request_bytes, version)
        meeting.at(f"file-{file}")
        pool.transfer("WRITE", file, requests)
    used = engine_in_use()
    pool.close()
    assert used == shape["engine"], f"submitted with {used}, asked for {shape['engine']}"
    return direct_opens()


def read(shape: dict, versions: list[int]):
    """Reads everything back; request i must hold version versions[i % len(versions)]."""
    pool = Pool(**shape)
    for file in range(pool.files):
        pool.memory.fill(0xEE)
        pool.transfer("READ", file, list(range(pool.requests)))
        for request in range(pool.requests):
            version = versions[request % len(versions)]
            check(pool.name(file, request), pool.slot(request), pool.request_bytes, version)
    used = engine_in_use()
    pool.close()
    assert used == shape["engine"], f"submitted with {used}, asked for {shape['engine']}"
    return direct_opens()
