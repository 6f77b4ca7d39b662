"""LMCache 0.5.6 GdsBackend (`gds_path`): start scan, lookup by sidecar, batched put and get, layer-wise keys."""

import pytest

import harness

CLIENT = "lmcache_gds"
MODES = ["posix", "gds", "gds-direct"]  # use_gds: false; use_gds: true; the same with use_direct_io: true
NAMES = [f"chunk {i}" for i in range(12)]


def check_direct(mode: str, opens: dict, at_least: int) -> None:
    assert opens["refused"] == 0
    if mode == "gds-direct":
        assert opens["granted"] >= at_least
    else:
        assert opens["granted"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_put_and_get_in_another_process(client, volume, place, mode):
    arguments = {"path": str(place), "mode": mode, "names": NAMES, "tokens": 256}
    check_direct(mode, client.run("put", **arguments), len(NAMES))
    check_direct(mode, client.run("get_after_scan", **arguments), len(NAMES))
    assert not [path for path in place.rglob("*") if ".tmp" in path.name]
    volume.remount()
    client.run("get_after_scan", **arguments)


@pytest.mark.parametrize("mode", MODES)
def test_layerwise_keys(client, volume, place, mode):
    arguments = {"path": str(place), "mode": mode, "names": NAMES, "tokens": 128, "layerwise": True}
    client.run("put", **arguments)
    client.run("get_after_scan", **arguments)
    volume.remount()
    client.run("get_after_scan", **arguments)


@pytest.mark.parametrize("mode", MODES)
def test_lookup_by_sidecar_of_what_another_process_stored(client, place, mode):
    arguments = {"path": str(place), "mode": mode, "names": NAMES, "tokens": 256}
    found, stored = client.together(("lookup_while_stored", arguments), ("store_when_absent", arguments))
    assert found == stored == len(NAMES)


@pytest.mark.parametrize("mode", MODES)
def test_two_writers_of_the_same_keys(client, volume, place, mode):
    arguments = {"path": str(place), "mode": mode, "names": NAMES[:4], "tokens": 256, "rounds": 3}
    client.together(("put", arguments), ("put", arguments))
    client.run("get_after_scan", **arguments)
    volume.remount()
    client.run("get_after_scan", **arguments)


@pytest.mark.parametrize("mode", MODES)
def test_read_while_two_write(client, place, mode):
    arguments = {"path": str(place), "mode": mode, "names": NAMES[:4], "tokens": 256, "rounds": 3}
    results = client.together(("read_while_written", arguments), ("put", arguments), ("put", arguments))
    assert results[0] == 12


def test_two_writers_of_layerwise_keys(client, place):
    arguments = {"path": str(place), "mode": "posix", "names": NAMES, "tokens": 128, "layerwise": True, "rounds": 2}
    client.together(("put", arguments), ("put", arguments))
    client.run("get_after_scan", **arguments)


def test_large_chunks(client, volume, place):
    """18 MiB, an 8B model's chunk on two ranks: bodies far beyond one request of the kernel."""
    arguments = {"path": str(place), "mode": "posix", "names": NAMES[:4], "tokens": 2304}
    client.run("put", **arguments)
    client.run("get_after_scan", **arguments)
    volume.remount()
    client.run("get_after_scan", **arguments)


def test_damage_is_noticed(client, place):
    arguments = {"path": str(place), "mode": "posix", "names": NAMES[:2], "tokens": 256}
    client.run("put", **arguments)
    harness.flip_one_byte(next(place.rglob("*.kvcache.safetensors")))
    with pytest.raises(harness.ClientFailed, match="1 of .* bytes differ"):
        client.run("get_after_scan", **arguments)


@pytest.mark.parametrize("mode", MODES)
def test_a_capacity_of_a_third(client, volume, place, mode):
    names = [f"third {i}" for i in range(48)]  # 96 MiB
    harness.check_a_third(client, volume, len(names), 32 << 20, path=str(place), mode=mode, names=names, tokens=256,
                          remembers=True)
