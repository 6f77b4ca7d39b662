"""Two nodes of one volume: an engine on one finds what an engine on the other stored, and both may store the same at once."""

import pytest

KIB, MIB = 1 << 10, 1 << 20
NAMES = [f"chunk {i}" for i in range(12)]
# Of each client: the operations that store and that read and compare everything, and their arguments.
ENGINES = {
    "lmcache_gds": ("put", "get_after_scan", {"mode": "gds", "names": NAMES, "tokens": 256}),
    "lmcache_fs_native": ("put", "get", {"options": {"num_workers": 4}, "names": NAMES, "size_bytes": 2 * MIB}),
    "lmcache_local_disk": ("put", "get", {"direct": False, "names": NAMES, "size_bytes": 2 * MIB}),
    "sglang_file": ("put", "get", {"pages": 200, "size_bytes": 12 * KIB}),
    "tensors": ("save", "load", {"kind": "safetensors", "files": NAMES, "size_bytes": MIB}),
}
engines = pytest.mark.parametrize("client", ENGINES, indirect=True, scope="module")


def make_places(nodes, client, test: str) -> list[str]:
    """The same directory as both nodes know it."""
    name = f"{client.module}-{test}"
    (nodes.paths[0] / name).mkdir()
    nodes.meet()
    return [str(path / name) for path in nodes.paths]


@engines
def test_what_one_node_stored_the_other_restores(client, nodes):
    store, load, arguments = ENGINES[client.module]
    here, there = make_places(nodes, client, "restores")
    client.run(store, path=here, **arguments)
    nodes.meet()
    client.run(load, path=there, **arguments)
    client.run(load, path=here, **arguments)


@engines
def test_both_store_the_same_at_once(client, nodes):
    store, load, arguments = ENGINES[client.module]
    here, there = make_places(nodes, client, "at-once")
    client.together((store, {"path": here, **arguments}), (store, {"path": there, **arguments}))
    nodes.meet()
    nodes.meet()  # what each said of the other's is answered
    client.run(load, path=there, **arguments)
    client.run(load, path=here, **arguments)


@engines
def test_one_stores_again_what_the_other_has(client, nodes):
    store, load, arguments = ENGINES[client.module]
    here, there = make_places(nodes, client, "again")
    client.run(store, path=here, **arguments)
    nodes.meet()
    client.run(store, path=there, **arguments)
    nodes.meet()
    client.run(load, path=here, **arguments)
    client.run(load, path=there, **arguments)


def test_nothing_was_damaged_or_kept(nodes):
    """Behind the others: no byte was wrong, and neither node holds back what the other gave up."""
    for status in nodes.status():
        assert status["errors"]["checksum"] == 0
        assert status["errors"]["volume_read"] == 0
