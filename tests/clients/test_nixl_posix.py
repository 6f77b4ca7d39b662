"""NIXL 1.5.1 nixl_agent, POSIX plugin: libaio, io_uring and POSIX AIO, buffered and O_DIRECT, requests of 4 KiB and
4 MiB into pool files that are overwritten in place."""

import pytest

import harness

CLIENT = "nixl_posix"
SHAPES = {
    "4 KiB": {"files": 4, "requests": 512, "request_bytes": 4 << 10},
    "4 MiB": {"files": 2, "requests": 2, "request_bytes": 4 << 20},
}


def in_every_way(test):
    for argument, values, ids in (
        ("engine", ["libaio", "io_uring", "posix_aio"], None),
        ("direct", [False, True], ["buffered", "O_DIRECT"]),
        ("size", list(SHAPES), None),
    ):
        test = pytest.mark.parametrize(argument, values, ids=ids)(test)
    return test


def shape_of(place, engine, direct, size):
    return {"path": str(place), "engine": engine, "direct": direct, **SHAPES[size]}


def check_direct(shape: dict, opens: dict) -> None:
    assert opens == {"granted": shape["files"] if shape["direct"] else 0, "refused": 0}


@in_every_way
def test_write_overwrite_in_place_and_read_by_another_process(client, volume, place, engine, direct, size):
    shape = shape_of(place, engine, direct, size)
    check_direct(shape, client.run("write", shape=shape))
    check_direct(shape, client.run("read", shape=shape, versions=[0]))
    client.run("write", shape=shape, version=1, every=2)
    client.run("read", shape=shape, versions=[1, 0])
    volume.remount()
    client.run("read", shape=shape, versions=[1, 0])
    client.run("write", shape=shape, version=2, every=2, first=1)
    client.run("read", shape=shape, versions=[1, 2])


@in_every_way
def test_two_writers_of_the_same_requests(client, place, engine, direct, size):
    shape = shape_of(place, engine, direct, size)
    client.together(("write", {"shape": shape}), ("write", {"shape": shape}))
    client.run("read", shape=shape, versions=[0])


@in_every_way
def test_two_writers_of_alternating_requests(client, volume, place, engine, direct, size):
    shape = shape_of(place, engine, direct, size)
    client.together(
        ("write", {"shape": shape, "version": 1, "every": 2, "first": 0}),
        ("write", {"shape": shape, "version": 2, "every": 2, "first": 1}),
    )
    client.run("read", shape=shape, versions=[1, 2])
    volume.remount()
    client.run("read", shape=shape, versions=[1, 2])


def test_damage_is_noticed(client, place):
    shape = shape_of(place, "libaio", False, "4 KiB")
    client.run("write", shape=shape)
    harness.flip_one_byte(place / "pool_0.bin")
    with pytest.raises(harness.ClientFailed, match="1 of .* bytes differ"):
        client.run("read", shape=shape, versions=[0])
