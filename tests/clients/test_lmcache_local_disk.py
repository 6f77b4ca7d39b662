"""LMCache 0.5.6 LocalDiskBackend: flat `.pt` files written in place, buffered and O_DIRECT, own LRU under a cap."""

import pytest

import harness

CLIENT = "lmcache_local_disk"
NAMES = [f"chunk {i}" for i in range(8)]
SIZES = {"2 MiB": 2 << 20, "64 KiB": 64 << 10}


def check_direct(direct: bool, opens: dict) -> None:
    assert opens["refused"] == 0
    assert (opens["granted"] >= len(NAMES)) == direct


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("direct", [False, True], ids=["buffered", "O_DIRECT"])
def test_put_and_get_in_another_process(client, volume, place, direct, size):
    arguments = {"path": str(place), "direct": direct, "names": NAMES, "size_bytes": SIZES[size]}
    check_direct(direct, client.run("put", **arguments))
    check_direct(direct, client.run("get", **arguments))
    volume.remount()
    client.run("get", **arguments)


@pytest.mark.parametrize("direct", [False, True], ids=["buffered", "O_DIRECT"])
def test_rewrite_by_a_new_process(client, volume, place, direct):
    arguments = {"path": str(place), "direct": direct, "names": NAMES, "size_bytes": SIZES["2 MiB"]}
    for version in range(2):
        client.run("put", **arguments, version=version)
        client.run("get", **arguments, version=version)
    volume.remount()
    client.run("put", **arguments, version=2)
    client.run("get", **arguments, version=2)


@pytest.mark.parametrize("direct", [False, True], ids=["buffered", "O_DIRECT"])
def test_two_writers_of_the_same_keys(client, volume, place, direct):
    arguments = {"path": str(place), "direct": direct, "names": NAMES[:4], "size_bytes": SIZES["2 MiB"], "rounds": 3}
    client.together(("put", arguments), ("put", arguments))
    client.run("get", **arguments)
    volume.remount()
    client.run("get", **arguments)


def test_own_lru_under_a_cap(client, volume, place):
    size, kept_at_most = SIZES["2 MiB"], 4
    kept = client.run("fill_beyond_cap", path=str(place), names=NAMES, size_bytes=size, cap_bytes=kept_at_most * size)
    assert len(kept) == kept_at_most
    assert NAMES[0] in kept and NAMES[-1] in kept
    volume.remount()
    assert len(list(place.glob("*.pt"))) == kept_at_most


def test_damage_is_noticed(client, place):
    arguments = {"path": str(place), "direct": False, "names": NAMES[:2], "size_bytes": SIZES["64 KiB"]}
    client.run("put", **arguments)
    harness.flip_one_byte(next(place.glob("*.pt")))
    with pytest.raises(harness.ClientFailed, match="1 of .* bytes differ"):
        client.run("get", **arguments)


@pytest.mark.parametrize("direct", [False, True], ids=["buffered", "O_DIRECT"])
def test_a_capacity_of_a_third(client, volume, place, direct):
    names = [f"third {i}" for i in range(48)]
    with volume.room_for(32 << 20) as evicted:
        arguments = {"path": str(place), "direct": direct, "names": names, "size_bytes": SIZES["2 MiB"]}
        served = client.run("serve", **arguments, passes=2)
        again = client.run("serve", **arguments, passes=1)
    assert again["absent"] == len(names)  # as far as the backend knows
    assert served["absent"] >= len(names) and sum(served[what] for what in ("absent", "loaded", "gone")) == 2 * len(names)
    if volume.is_mount:
        assert evicted["objects"] >= len(names) // 2
        assert served["gone"] + served["early"] >= len(names) // 3, "it remembers them, and learns by the load that they are gone"
