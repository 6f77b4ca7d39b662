"""safetensors 0.8.0 (save_file, load_file, get_slice) and torch (save, load plain and by mmap, from_file shared)."""

import pytest

import harness

CLIENT = "tensors"
FILES = [f"tensors {i}" for i in range(4)]
SIZES = {"1 MiB": 1 << 20, "64 KiB": 64 << 10}  # of each of the four tensors in a file
SAVED = {"safetensors": ["safetensors"], "torch": ["torch", "torch mmap"]}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", SAVED)
def test_save_and_load_in_another_process(client, volume, place, kind, size):
    arguments = {"path": str(place), "files": FILES, "size_bytes": SIZES[size]}

    def load_every_way(version):
        for how in SAVED[kind]:
            client.run("load", kind=how, **arguments, version=version)
        if kind == "safetensors":
            client.run("load_slices", **arguments, version=version)

    for version in range(2):  # the second replaces the files of the first
        client.run("save", kind=kind, **arguments, version=version)
        load_every_way(version)
    assert len(list(place.iterdir())) == len(FILES)
    volume.remount()
    load_every_way(1)


@pytest.mark.parametrize("kind", SAVED)
def test_two_writers_of_the_same_files(client, volume, place, kind):
    arguments = {"path": str(place), "files": FILES, "size_bytes": SIZES["1 MiB"]}
    client.together(("save", {"kind": kind, **arguments}), ("save", {"kind": kind, **arguments}))
    client.run("load", kind=kind, **arguments)
    volume.remount()
    client.run("load", kind=kind, **arguments)


@pytest.mark.parametrize("size", SIZES)
def test_shared_mapping(client, volume, place, size):
    arguments = {"path": str(place), "files": FILES, "size_bytes": SIZES[size]}
    for version in range(2):
        client.run("write_shared", **arguments, version=version)
        client.run("read_shared", **arguments, version=version)
    volume.remount()
    client.run("read_shared", **arguments, version=1)


def test_two_writers_through_one_shared_mapping(client, volume, place):
    arguments = {"path": str(place), "files": FILES, "size_bytes": SIZES["1 MiB"]}
    client.together(
        ("write_shared", {**arguments, "every": 2, "first": 0}), ("write_shared", {**arguments, "every": 2, "first": 1})
    )
    client.run("read_shared", **arguments)
    volume.remount()
    client.run("read_shared", **arguments)


def test_damage_is_noticed(client, place):
    arguments = {"path": str(place), "kind": "safetensors", "files": FILES[:1], "size_bytes": SIZES["64 KiB"]}
    client.run("save", **arguments)
    harness.flip_one_byte(next(place.iterdir()))
    with pytest.raises(harness.ClientFailed, match="1 of .* bytes differ"):
        client.run("load", **arguments)
