"""SGLang 0.5.23 HiCacheNixl (POSIX plugin): 128 pages a call, whole or as zero-copy K and V halves, in place."""

import pytest

import harness

CLIENT = "sglang_nixl"
PAGES = 128
PAGE_BYTES = {"256 KiB": 256 << 10, "56 KiB": 56 << 10}


def in_every_way(test):
    for argument, values, ids in (
        ("direct", [False, True], ["buffered", "O_DIRECT"]),
        ("zero_copy", [False, True], ["pages", "halves"]),
    ):
        test = pytest.mark.parametrize(argument, values, ids=ids)(test)
    return test


def check_direct(direct: bool, opens: dict) -> None:
    assert opens["refused"] == 0
    assert (opens["granted"] >= PAGES) == direct


@in_every_way
@pytest.mark.parametrize("size", PAGE_BYTES)
def test_backup_and_prefetch_by_another_process(client, volume, place, direct, zero_copy, size):
    arguments = {"path": str(place), "pages": PAGES, "page_bytes": PAGE_BYTES[size],
                 "direct": direct, "zero_copy": zero_copy}
    check_direct(direct, client.run("put", **arguments))
    check_direct(direct, client.run("get", **arguments))
    volume.remount()
    client.run("get", **arguments)
    assert client.run("clear", **arguments) == {"exist": 0, "files": []}


@in_every_way
def test_rewrite_in_place(client, volume, place, direct, zero_copy):
    arguments = {"path": str(place), "pages": PAGES, "page_bytes": PAGE_BYTES["56 KiB"],
                 "direct": direct, "zero_copy": zero_copy}
    for version in range(2):
        client.run("put", **arguments, version=version)
        client.run("get", **arguments, version=version)
    volume.remount()
    client.run("get", **arguments, version=1)
    client.run("put", **arguments, version=2)
    client.run("get", **arguments, version=2)


@in_every_way
def test_two_writers_of_the_same_pages(client, volume, place, direct, zero_copy):
    arguments = {"path": str(place), "pages": PAGES, "page_bytes": PAGE_BYTES["56 KiB"],
                 "direct": direct, "zero_copy": zero_copy, "rounds": 2}
    client.together(("put", arguments), ("put", arguments))
    client.run("get", **arguments)
    volume.remount()
    client.run("get", **arguments)


def test_damage_is_noticed(client, place):
    arguments = {"path": str(place), "pages": 4, "page_bytes": PAGE_BYTES["56 KiB"], "direct": False, "zero_copy": True}
    client.run("put", **arguments)
    harness.flip_one_byte(next(place.rglob("*_k")))
    with pytest.raises(harness.ClientFailed, match="1 of .* bytes differ"):
        client.run("get", **arguments)
