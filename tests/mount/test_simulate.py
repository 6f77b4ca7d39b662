"""`kvcachefs simulate` as a user runs it. It needs no mount, only the command."""

import gzip
import json
import os
import xml.etree.ElementTree

import pytest

from kvc_mount import run_command

pytestmark = pytest.mark.needs_daemon  # the command, that is

BLOCK = 512


def conversations():
    """Ten conversations of three turns, two blocks longer each; the last block of a turn is half full."""
    lines = []
    for turn in range(1, 4):
        for talk in range(10):
            blocks = [talk * 100 + block for block in range(turn * 2)] + [talk * 100 + 50 + turn]
            request = {"timestamp": (turn * 10 + talk) * 1000, "input_length": turn * 2 * BLOCK + BLOCK // 2, "output_length": 7}
            lines.append(json.dumps({**request, "hash_ids": blocks}))
    return lines


def sessions():
    requests = [{"t": turn * 60.0, "in": turn * 2 * 64, "hash_ids": list(range(1, turn * 2 + 1))} for turn in range(1, 4)]
    return [json.dumps({"id": str(n), "block_size": 64, "hash_id_scope": "local", "requests": requests}) for n in range(10)]


def write_trace(directory, lines, name="trace.jsonl"):
    path = os.path.join(directory, name)
    text = "".join(f"{line}\n" for line in lines).encode()
    with open(path, "wb") as file:
        file.write(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def simulate(*arguments):
    """{(policy, capacity in tokens): entry}"""
    done = run_command("simulate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "progress is for terminals"
    entries = json.loads(done.stdout)
    for entry in entries:
        assert 0 <= entry["prefix_hit_ratio"] <= entry["hit_ratio"] <= 1
    return {(entry["policy"], entry["capacity_tokens"]): entry for entry in entries}


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_everything_is_found_where_all_fits(name, temp_dir):
    trace = write_trace(temp_dir, conversations(), name)
    found = simulate(trace, "--policy", "prefix,s3fifo", "--capacity", "1M,10K")
    assert set(found) == {(policy, tokens) for policy in ("prefix", "s3fifo", "lru", "min") for tokens in (1953 * BLOCK, 19 * BLOCK)}
    for policy in ("prefix", "s3fifo", "lru", "min"):
        entry = found[policy, 1953 * BLOCK]
        assert entry["requests"] == 30 and entry["chunks"] == 10 * (3 + 5 + 7)
        assert entry["prefix_hits"] == entry["chunk_hits"] == 10 * (2 + 4)
        assert entry["hit_tokens"] == 10 * (2 + 4) * BLOCK
        assert entry["tokens"] == 10 * (2 + 4 + 6) * BLOCK + 30 * BLOCK // 2
        assert found[policy, 19 * BLOCK]["prefix_hits"] <= found["min", 19 * BLOCK]["prefix_hits"]


def test_sessions_and_percentages(temp_dir):
    trace = write_trace(temp_dir, sessions())
    arguments = [trace, "--capacity", "50%,100%", "--chunk-tokens", "128", "--policy", "prefix"]
    found = simulate(*arguments)
    assert {tokens for _, tokens in found} == {15 * 128, 30 * 128}
    assert found["prefix", 30 * 128]["prefix_hits"] == 10 * (1 + 2)
    again = simulate(*arguments, "--seed", "1")
    assert {key: entry["prefix_hits"] for key, entry in found.items()} == {key: entry["prefix_hits"] for key, entry in again.items()}


def test_traces_by_themselves_and_joined(temp_dir):
    chat = write_trace(temp_dir, conversations(), "chat.jsonl")
    agents = write_trace(temp_dir, sessions(), "agents.jsonl")
    done = run_command("simulate", chat, agents, "--capacity", "50%")
    assert done.returncode == 0 and "chat.jsonl" in done.stdout and "agents.jsonl" in done.stdout
    done = run_command("simulate", chat, agents, "--join", "after", "--capacity", "50%", "--chunk-tokens", "128", "--windows", "4")
    # Chunks of 128 tokens fit both blocks of 512 and of 64.
    assert done.returncode == 0 and "chat.jsonl, then agents.jsonl" in done.stdout and "by parts" in done.stdout


@pytest.mark.parametrize(
    "extra",
    [
        ["--learn-links", "--interleave", "3"],
        ["--lost-boundaries", "0.5", "--cut-requests", "0.5"],
        ["--restart", "tables", "--skip", "0.5"],
        ["--restart", "lost"],
        ["--scan", "5"],
        ["--extents", "--extent-size", "1M"],
        ["--extents", "--punch"],
        ["--extents", "--give-up", "4"],
    ],
    ids=" ".join,
)
def test_what_else_can_be_seen(extra, temp_dir):
    trace = write_trace(temp_dir, conversations())
    found = simulate(trace, "--capacity", "20%", "--policy", "prefix,lru,fifo-reinsert", *extra)
    for entry in found.values():
        if "--extents" in extra and entry["policy"] != "min":
            assert entry["write_amplification"] >= 1
            assert "--punch" not in extra or entry["rewritten_bytes"] == 0


def test_the_plot_is_a_picture(temp_dir):
    trace = write_trace(temp_dir, conversations())
    path = os.path.join(temp_dir, "hits.svg")
    done = run_command("simulate", trace, "--policy", "prefix,s3fifo", "--capacity", "5%,20%,80%", "--plot", path)
    assert done.returncode == 0, done.stderr
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"prefix", "s3fifo", "lru", "min", "trace.jsonl", "capacity, tokens"} <= texts
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 4


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--policy", "mru"], "prefix, lru, fifo-reinsert, s3fifo, lru-list, min"),
        (["--policy", ""], "policy"),
        (["--capacity", "0"], "above 0"),
        (["--capacity", "-5%"], "above 0"),
        (["--capacity", "120%"], "more than all"),
        (["--capacity", "10Q"], "unknown unit"),
        (["--capacity", "lots"], "not a number"),
        (["--capacity", "nan"], "not a number"),
        (["--capacity", "100"], "less than one chunk"),
        (["--capacity", "1e300"], "too large"),
        (["--chunk-tokens", "300"], "must divide"),
        (["--extents", "--extent-size", "1"], "--extent-size"),
        (["--punch"], "--extents"),
        (["--give-up", "2"], "--extents"),
        (["--skip", "2"], "--skip"),
        (["--restart", "now"], "--restart"),
    ],
)
def test_wrong_arguments_are_told(arguments, said, temp_dir):
    if "--capacity" not in arguments:
        arguments = [*arguments, "--capacity", "50%"]
    done = run_command("simulate", write_trace(temp_dir, conversations()), *arguments)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr and done.stdout == ""


def test_bad_traces_are_told(temp_dir):
    assert run_command("simulate", os.path.join(temp_dir, "nothing.jsonl")).returncode == 1
    broken = write_trace(temp_dir, [*conversations()[:4], "{"], "broken.jsonl")
    done = run_command("simulate", broken)
    assert done.returncode == 2 and "broken.jsonl:5" in done.stderr
    done = run_command("simulate", write_trace(temp_dir, sessions(), "short.jsonl"), "--chunk-tokens", "1024")
    assert done.returncode == 2 and "short.jsonl: no request fills" in done.stderr
    empty = write_trace(temp_dir, [], "empty.jsonl")
    done = run_command("simulate", empty)
    assert done.returncode == 2 and "empty.jsonl" in done.stderr
    done = run_command("simulate", write_trace(temp_dir, conversations()), "--capacity", "50%", "--plot", os.path.join(temp_dir, "no", "such.svg"))
    assert done.returncode == 1 and "no/such.svg" in done.stderr
