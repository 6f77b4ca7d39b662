"""LMCache 0.5.6, multi-process L2 adapter `fs_native`: batches cut into one run per worker thread, all writers of a key
through one temporary name."""

import pytest

import harness

CLIENT = "lmcache_fs_native"
NAMES = [f"object {i}" for i in range(16)]
OPTIONS = {
    "4 workers": {"num_workers": 4},
    "8 workers, head read": {"num_workers": 8, "read_ahead_size": 4096},
    "O_DIRECT": {"num_workers": 4, "use_odirect": True},
}
SIZES = {"2 MiB": 2 << 20, "odd": 148_993}  # the odd one is padded to pages by the adapter under O_DIRECT
one_temp_name = pytest.mark.fails_on_plain_directory("both writers use one temporary name: the second rename is ENOENT")


def check_direct(options: dict, opens: dict) -> None:
    assert opens["refused"] == 0
    assert (opens["granted"] >= len(NAMES)) == options.get("use_odirect", False)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", OPTIONS)
def test_put_and_get_in_another_process(client, volume, place, how, size):
    arguments = {"path": str(place), "options": OPTIONS[how], "names": NAMES, "size_bytes": SIZES[size]}
    check_direct(OPTIONS[how], client.run("put", **arguments))
    check_direct(OPTIONS[how], client.run("get", **arguments))
    assert len(list(place.glob("*.data"))) == len(NAMES)
    assert not list(place.rglob("*.tmp"))
    volume.remount()
    client.run("get", **arguments)


@one_temp_name
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", OPTIONS)
def test_two_writers_of_the_same_keys(client, volume, place, how, size):
    arguments = {"path": str(place), "options": OPTIONS[how], "names": NAMES[:8], "size_bytes": SIZES[size],
                 "rounds": 3}
    client.together(("put", arguments), ("put", arguments))
    client.run("get", **arguments)
    volume.remount()
    client.run("get", **arguments)


def test_delete(client, volume, place):
    arguments = {"path": str(place), "options": OPTIONS["4 workers"], "names": NAMES}
    client.run("put", **arguments, size_bytes=SIZES["odd"])
    assert client.run("delete", **arguments) == [False] * len(NAMES)
    volume.remount()
    assert not list(place.glob("*.data"))


def test_rewrite_by_a_new_process(client, place):
    arguments = {"path": str(place), "options": OPTIONS["4 workers"], "names": NAMES[:8], "size_bytes": SIZES["2 MiB"]}
    client.run("put", **arguments)
    client.run("put", **arguments)
    client.run("get", **arguments)


def test_damage_is_noticed(client, place):
    arguments = {"path": str(place), "options": OPTIONS["4 workers"], "names": NAMES[:2], "size_bytes": SIZES["odd"]}
    client.run("put", **arguments)
    harness.flip_one_byte(next(place.glob("*.data")))
    with pytest.raises(harness.ClientFailed, match="1 of .* bytes differ"):
        client.run("get", **arguments)


@pytest.mark.parametrize("how", OPTIONS)
def test_a_capacity_of_a_third(client, volume, place, how):
    names = [f"third {i}" for i in range(48)]
    harness.check_a_third(client, volume, len(names), 32 << 20, path=str(place), options=OPTIONS[how], names=names,
                          size_bytes=SIZES["2 MiB"])
