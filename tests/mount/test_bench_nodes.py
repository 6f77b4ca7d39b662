"""`kvcachefs replay` and `kvcachefs bench multi-round` over the mounts of several nodes (--nodes), at a tiny scale."""

import json
import os

import pytest

import kvc_env
from kvc_mount import run_command

pytestmark = pytest.mark.needs_daemon

BLOCK = 512
TALKS = 9  # an odd number: with two engines in turn each turn is served by another than the one before
SMALL = ["--keep-caches", "--bytes-per-token", "16", "--chunk-tokens", "512", "--pool-bytes", "32M", "--workers", "1"]
WHOLE_HITS = TALKS * (2 + 4) * BLOCK  # the second turn finds the first, the third the second
OWN_HITS = TALKS * 2 * BLOCK  # the third turn finds the first
# 15 users, 20 rounds, 2048 tokens and 512 more each: what a turn finds of the turn before the last one.
MULTI_ROUND_OWN_HITS = 15 * (18 * 2048 + 512 * sum(range(18)))
OPTIONS = {"memory": "64M", "capacity": "512M"}


def requests(turn_s):
    """Conversations of three turns, each two blocks longer, `turn_s` seconds apart."""
    return [
        {
            "timestamp": turn_s * 1000 * (turn + talk / TALKS),
            "input_length": (turn + 1) * 2 * BLOCK,
            "output_length": 7,
            "hash_ids": [talk * 100 + block for block in range((turn + 1) * 2)],
        }
        for turn in range(3)
        for talk in range(TALKS)
    ]


def write_trace(directory, turn_s=1):
    path = os.path.join(directory, "trace.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(request) + "\n" for request in requests(turn_s))
    return path


@pytest.fixture
def nodes(new_mount):
    """Two mounts of one volume; nothing may be left in them."""
    first = new_mount({**OPTIONS, "node": "a"})
    made = [first, new_mount({**OPTIONS, "node": "b"}, volume=first.volume)]
    yield made
    assert [os.listdir(mount.path) for mount in made] == [[], []]


@pytest.fixture
def alone(new_mount):
    """Two mounts, each of a volume of its own."""
    made = [new_mount(OPTIONS), new_mount(OPTIONS)]
    yield made
    assert [os.listdir(mount.path) for mount in made] == [[], []]


def names(mounts):
    return ",".join(mount.path for mount in mounts)


def measure(*arguments):
    """{column: {metric without its scenario, but with its node: median}} and what was said beside it."""
    result = run_command(*arguments, "--json", timeout=600)
    assert result.returncode == 0, result.stderr
    found = {}
    for entry in json.loads(result.stdout):
        scenario, _, measured = entry["metric"].rpartition("/")
        node = scenario.rpartition("/")[2]
        name = f"{node}/{measured}" if node.startswith("node") else measured
        found.setdefault(entry["dir"], {})[name] = entry["median"]
    return found, result.stderr


def test_replay_over_directories_of_their_own(alone, temp_dir):
    plain = [os.path.join(temp_dir, name) for name in ("both", "a", "b")]
    for path in plain:
        os.mkdir(path)
    both, own = plain[0], ",".join(plain[1:])
    found, said = measure("replay", write_trace(temp_dir), "--dir", both, "--nodes", own, "--nodes", names(alone), *SMALL)
    assert found[both]["hit_tokens"] == WHOLE_HITS
    for column in (own, names(alone)):
        assert found[column]["hit_tokens"] == OWN_HITS
        assert found[column]["node1/hit_tokens"] + found[column]["node2/hit_tokens"] == OWN_HITS
        assert found[column]["unfound"] == (WHOLE_HITS - OWN_HITS) / BLOCK
        assert found[column]["lost_after_probe"] == 0
        assert 0 < found[column]["node2/ttft_p50"] <= found[column]["node2/ttft_p99"]
    assert found["recompute-only"]["hit_tokens"] == 0
    assert f"{names(alone)}: mounts of a volume each" in said
    assert [os.listdir(path) for path in plain] == [[], [], []]


@pytest.mark.deadline(900)
def test_replay_finds_on_one_node_what_the_other_stored(nodes, temp_dir):
    turn_s = 3 * kvc_env.SCALE  # only where nothing is exchanged at all is nothing found for so long
    trace = write_trace(temp_dir, turn_s)
    found, said = measure(
        *("replay", trace, "--nodes", names(nodes), *SMALL, "--style", "lmcache-gds", "--store-order", "random"),
        *("--open-loop", "--prefill-tokens-per-s", "1e8"),
    )
    column = found[names(nodes)]
    assert OWN_HITS < column["hit_tokens"] <= WHOLE_HITS
    assert column["lost_after_probe"] == 0
    assert f"{names(nodes)}: mounts of one volume" in said
    assert all(mount.status()["peers"][0]["batches"] > 0 for mount in nodes)


@pytest.mark.deadline(600)
def test_multi_round_on_one_mount_on_nodes_and_on_nodes_by_themselves(nodes, alone, new_mount):
    one = new_mount(OPTIONS)
    found, said = measure(
        *("bench", "multi-round", "--dir", one.path, "--nodes", names(nodes), "--nodes", names(alone), "--rounds", "1"),
        *("--keep-caches", "--no-raw-limit", "--pool-bytes", "32M", "--scale", "1e-5", "--time-scale", "1e3"),
    )
    for column in found.values():
        assert column["lost_after_probe"] == 0
        assert column["node1/hit_tokens"] + column["node2/hit_tokens"] == column["hit_tokens"]
        assert column["node1/written"] > 0 and column["node2/ttft_p50"] > 0
    hits = {name: column["hit_tokens"] for name, column in found.items()}
    assert hits[names(alone)] == MULTI_ROUND_OWN_HITS
    assert hits[names(nodes)] >= MULTI_ROUND_OWN_HITS
    assert found[names(nodes)]["hit_tokens_to_[3]"] == hits[names(nodes)] / hits[names(alone)]
    assert f"{names(nodes)}: mounts of one volume" in said
    assert os.listdir(one.path) == []


def refused(*arguments):
    result = run_command(*arguments)
    assert result.returncode == 2 and result.stdout == "", f"{result.returncode}: {result.stdout}{result.stderr}"
    return result.stderr


@pytest.mark.parametrize("command", ["bench", "replay"])
def test_nodes_that_are_none_are_told(command, nodes, temp_dir):
    a, b = (mount.path for mount in nodes)
    work = ["multi-round"] if command == "bench" else [write_trace(temp_dir)]
    directories = [os.path.join(a, name) for name in ("x", "y")]
    for path in directories:
        os.mkdir(path)
    try:
        message = refused(command, *work, "--nodes", ",".join(directories))
        assert f"are on one mount, {a};" in message and "-o node=" in message, message
    finally:
        for path in directories:
            os.rmdir(path)
    assert "one directory only" in refused(command, *work, "--nodes", a)
    assert f"{temp_dir} is on none" in refused(command, *work, "--nodes", f"{a},{temp_dir}")
    assert f"{b} is named twice" in refused(command, *work, "--nodes", f"{a},{b},{b}")
    missing = run_command(command, *work, "--nodes", f"{a},{b}/none")
    assert missing.returncode == 1 and f"{b}/none: No such file or directory" in missing.stderr, missing.stderr
