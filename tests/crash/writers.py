"""What a writer process does until the daemon dies under it: put by temp + rename, replace, unlink; each name belongs to one writer."""

import errno
import os
import random

import manifest
from kvc_data import payload

DEAD = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
NAMES = 12
SIZES = (100, 4096, 30_000, 262_144, 700_001)
LARGE = (20 << 20) + 4097  # more than the least memory a mount can have: it is spilled while it is written


def version_of_round(round_number):
    """The versions of a round begin here."""
    return round_number * 1_000_000


def size_of(name, version):
    if name.startswith("large"):
        return LARGE
    return SIZES[random.Random(f"{name}#{version}").randrange(len(SIZES))]


def body_of(name, version):
    return payload(name, size_of(name, version), version)


def put(root, name, version, log):
    temporary = os.path.join(root, f"{name}.tmp{version}")
    log.begin(f"{name}.tmp{version}", version)
    with open(temporary, "xb", buffering=0) as file:
        body = memoryview(body_of(name, version))
        while body:
            body = body[file.write(body[:131_072]) :]
    log.done(f"{name}.tmp{version}", version)
    log.begin(f"{name}.tmp{version}", 0)
    log.begin(name, version)
    os.rename(temporary, os.path.join(root, name))
    log.done(f"{name}.tmp{version}", 0)
    log.done(name, version)


def remove(root, name, log):
    log.begin(name, 0)
    os.unlink(os.path.join(root, name))
    log.done(name, 0)


def stop_file(directory):
    """Beside the manifest: while it is there, writers come to an end between two operations."""
    return directory + ".stop"


def put_large_until_dead(root, directory, number, round_number):
    """One file too large for the memory, replaced again and again. Returns how many operations were acknowledged."""
    log = manifest.Writer(os.path.join(directory, f"writer{number}"))
    operations = 0
    try:
        while not os.path.exists(stop_file(directory)):
            put(root, "large", version_of_round(round_number) + operations, log)
            operations += 1
    except OSError as error:
        if error.errno not in DEAD:
            raise
    return operations


def write_until_dead(root, directory, number, round_number, seed, present):
    """Returns how many operations were acknowledged. `present`: names of this writer that are there."""
    log = manifest.Writer(os.path.join(directory, f"writer{number}"))
    choose = random.Random(f"{seed}/{round_number}/{number}")
    present = set(present)
    operations = 0
    version = version_of_round(round_number)
    try:
        while not os.path.exists(stop_file(directory)):
            name = f"w{number}n{choose.randrange(NAMES)}"
            if name in present and choose.random() < 0.3:
                remove(root, name, log)
                present.discard(name)
            else:
                version += 1
                put(root, name, version, log)
                present.add(name)
            operations += 1
    except OSError as error:
        if error.errno not in DEAD:
            raise
    return operations
