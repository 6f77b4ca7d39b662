"""SGLang 0.5.23 HiCacheFile: pages of 12 KiB (page size 1) and of 16.5 MiB (from 16 MiB on, tofile preallocates)."""

import pytest

import harness

CLIENT = "sglang_file"
KIB, MIB = 1 << 10, 1 << 20
PAGES = {"12 KiB": (1000, 12 * KIB), "16.5 MiB": (3, 33 * MIB // 2)}


@pytest.mark.parametrize("kind", PAGES)
def test_backup_and_prefetch_by_another_process(client, volume, place, kind):
    pages, size = PAGES[kind]
    arguments = {"path": str(place), "pages": pages, "size_bytes": size}
    client.run("put", **arguments)
    client.run("get", **arguments)
    assert not list(place.glob(".*"))  # its temporary files are hidden ones
    volume.remount()
    client.run("get", **arguments)
    assert client.run("clear", path=str(place)) == []


@pytest.mark.parametrize("kind", PAGES)
def test_two_writers_of_the_same_pages(client, volume, place, kind):
    pages, size = PAGES[kind]
    arguments = {"path": str(place), "pages": pages, "size_bytes": size}
    client.together(("put", arguments), ("put", arguments))
    client.run("get", **arguments)
    volume.remount()
    client.run("get", **arguments)


@pytest.mark.parametrize("kind", PAGES)
def test_read_while_two_write(client, place, kind):
    pages, size = PAGES[kind]
    arguments = {"path": str(place), "pages": pages, "size_bytes": size}
    client.together(("read_while_written", arguments), ("put", arguments), ("put", arguments))


def test_own_lru_under_a_cap(client, volume, place):
    pages, size = 512, 12 * KIB
    arguments = {"path": str(place), "pages": pages, "size_bytes": size}
    cap = 100 * size
    left = client.run("fill_beyond_cap", **arguments, cap_bytes=cap)
    assert len(left["kept"]) * size == left["bytes"] <= cap
    assert left["kept"] == list(range(pages - len(left["kept"]), pages)) and len(left["kept"]) >= 80
    volume.remount()
    assert client.run("summary", **arguments) == left


def test_damage_is_noticed(client, place):
    arguments = {"path": str(place), "pages": 3, "size_bytes": 12 * KIB}
    client.run("put", **arguments)
    harness.flip_one_byte(next(place.glob("*.bin")))
    with pytest.raises(harness.ClientFailed, match="1 of .* bytes differ"):
        client.run("get", **arguments)


@pytest.mark.parametrize("kind", {"12 KiB": (4096, 12 * KIB), "256 KiB": (384, 256 * KIB)}.items(), ids=lambda kind: kind[0])
def test_a_capacity_of_a_third(client, volume, place, kind):
    pages, size = kind[1]
    harness.check_a_third(client, volume, pages, max(pages * size // 3, 24 * MIB), path=str(place), pages=pages,
                          size_bytes=size)
