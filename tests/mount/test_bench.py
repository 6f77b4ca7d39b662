"""`kvcachefs bench` and `kvcachefs replay` as a user runs them: a plain directory and a mount side by side, at a tiny scale."""

import contextlib
import errno
import gzip
import json
import math
import os
import re
import threading

import pytest

from kvc_data import payload
from kvc_env import KIB, MIB
from kvc_mount import run_command

pytestmark = pytest.mark.needs_daemon

# Nobody's caches are dropped, and what is moved is next to nothing.
TINY = [
    *("--rounds", "1", "--keep-caches", "--no-raw-limit", "--pool-bytes", "32M", "--pass-bytes", "256K"),
    *("--size", "16K", "--threads", "1,2", "--scale", "1e-5", "--time-scale", "1e4"),
]
LOAD = ("rate", "time", "load_p50", "load_p99", "client_cpu")
LONG_CONTEXT = ("256tokens/1560files-of-4K", "512tokens/780files-of-4K", "1024tokens/388files-of-4K", "2048tokens/192files-of-4K")


def rows(cases, measures):
    return {f"{case}/{measure}" for case in cases for measure in measures}


def by_threads(*styles):
    return [f"16K/{style}/{threads}t" for style in styles for threads in (1, 2)]


PASSES = {f"{phase}_{measure}" for phase in ("cold", "warm") for measure in LOAD}
STYLES = ("read", "odirect", "mmap", "vllm", "lmcache-gds", "sglang")
TURN = ("restore", "store", "ttft", "hit_chunks", "client_cpu")
SERVED = ("ttft_p50", "ttft_p95", "ttft_p99", "hit_tokens", "lost_after_probe", "restore_p50", "restore_p99", "read_rate", "store_rate")
PRESETS = {
    "restore": rows(by_threads(*STYLES), PASSES),
    "store": rows(
        by_threads("read"),
        ("return_rate", "durable_rate", "time_to_return", "time_to_durable", "put_p50", "put_p99", "put_minus_copy_p50", "client_cpu"),
    ),
    "long-context": rows([f"{case}/read" for case in LONG_CONTEXT], PASSES),
    "contexts": {f"10x5turns/4K/read/turn{turn}_{what}" for turn in range(1, 6) for what in TURN},
    "multi-round": rows(["15users/20rounds/4K/read"], (*SERVED, "hit_ratio", "client_cpu")),
    "probe": {
        f"read/{threads}t/{names}_{what}"
        for threads in (1, 2)
        for names in ("present_cold", "present", "absent")
        for what in ("rate", "client_cpu")
    },
    "scan": rows(["4sidecars"], ("cold_rate", "cold_time", "warm_rate", "warm_time")),
    "raw": rows(["1M/1M-depth-8"], ("read_rate", "write_rate")),
}


@pytest.fixture
def plain(temp_dir):
    """A plain directory; nothing may be left in it."""
    path = os.path.join(temp_dir, "plain")
    os.mkdir(path)
    yield path
    assert os.listdir(path) == []


@pytest.fixture
def mount(new_mount):
    made = new_mount({"memory": "64M", "capacity": "512M"})
    yield made
    assert os.listdir(made.path) == []


def measure(*arguments):
    """{directory: {metric: entry}} of a run with --json that must succeed."""
    result = run_command(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    entries = json.loads(result.stdout)
    found = {}
    for entry in entries:
        assert set(entry) == {"workload", "dir", "metric", "unit", "median", "min", "max", "ratio_to_first_dir"}
        assert all(math.isfinite(entry[name]) for name in ("min", "median", "max")), entry
        assert 0 <= entry["min"] <= entry["median"] <= entry["max"] or "minus" in entry["metric"], entry
        metrics = found.setdefault(entry["dir"], {})
        assert entry["metric"] not in metrics, f"twice: {entry}"
        metrics[entry["metric"]] = entry
    return found


def refused(*arguments):
    """The message of a run that must fail, and print nothing else."""
    result = run_command(*arguments)
    assert result.returncode == 1, f"{result.returncode}: {result.stdout}{result.stderr}"
    assert result.stdout == ""
    assert result.stderr.startswith(f"kvcachefs {arguments[0]}: "), result.stderr
    return result.stderr


def test_every_preset_is_tried():
    listed = re.findall(r"^  ([a-z-]+) +\S", run_command("bench", "--help").stdout.partition("Workloads:")[2], re.MULTILINE)
    assert set(listed) == set(PRESETS)


@pytest.mark.deadline(900)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_reports_all_it_should(preset, plain, mount):
    styles = ["--style", ",".join(STYLES)] if preset == "restore" else []
    found = measure("bench", preset, "--dir", plain, "--dir", mount.path, *TINY, *styles)
    assert set(found) == {plain, mount.path}
    for where, metrics in found.items():
        assert PRESETS[preset] <= set(metrics), f"missing for {where}: {sorted(PRESETS[preset] - set(metrics))}"
        for metric in PRESETS[preset]:
            if metric.endswith("_rate"):
                assert metrics[metric]["median"] > 0, metric
    if preset == "multi-round":
        lost = [metrics["15users/20rounds/4K/read/lost_after_probe"]["max"] for metrics in found.values()]
        hits = [metrics["15users/20rounds/4K/read/hit_tokens"]["median"] for metrics in found.values()]
        assert lost == [0, 0] and min(hits) > 0


def test_several_presets_in_one_run_and_a_table_for_people(plain, mount):
    result = run_command("bench", "restore", "store", "--dir", plain, "--dir", mount.path, *TINY)
    assert result.returncode == 0, result.stderr
    for word in ("restore", "store", "cold", "durable", plain, mount.path):
        assert word in result.stdout


DROP = 'setfattr -n user.kvcachefs.flush -v 1 "$KVCACHEFS_BENCH_MOUNT" && setfattr -n user.kvcachefs.drop_caches -v 1 "$KVCACHEFS_BENCH_MOUNT"'
# Eight bytes somewhere in a chunk, between two phases.
SPOIL = """
file=$(find "$KVCACHEFS_BENCH_DIR" -type f | sort | tail -n 1)
printf spoiled! | dd of="$file" bs=1 seek=7777 conv=notrunc status=none && echo "$file" >"$SPOILED"
"""


def restore_with(command, plain, mount, monkeypatch):
    spoiled = os.path.join(os.path.dirname(plain), "spoiled")
    monkeypatch.setenv("SPOILED", spoiled)
    arguments = ["bench", "restore", "--dir", plain, "--dir", mount.path, *TINY, "--style", "read,mmap", "--restart-command", command]
    return arguments, spoiled


def test_a_restart_adds_a_phase(plain, mount, monkeypatch):
    before = mount.status()["reads"]["bytes_from_volume"]
    arguments, _ = restore_with(DROP, plain, mount, monkeypatch)
    found = measure(*arguments)
    wanted = rows(by_threads("read", "mmap"), [f"restart_{name}" for name in LOAD])
    assert wanted <= set(found[mount.path])
    assert mount.status()["reads"]["bytes_from_volume"] > before


def test_a_wrong_byte_fails_the_run_and_names_the_file(plain, mount, monkeypatch):
    arguments, spoiled = restore_with(SPOIL, plain, mount, monkeypatch)
    message = refused(*arguments)
    with open(spoiled, encoding="utf-8") as file:
        name = os.path.basename(file.read().strip())
    assert name in message and mount.path in message and "wrong byte" in message, message


def test_a_failing_restart_fails_the_run(plain, mount, monkeypatch):
    arguments, _ = restore_with("exit 3", plain, mount, monkeypatch)
    assert "--restart-command" in refused(*arguments)


@pytest.mark.parametrize("preset", ["restore", "store", "contexts", "scan"])
def test_a_full_directory_is_told(preset, plain, new_mount):
    mount = new_mount({"capacity": "64M", "memory": "64M", "evict": "off"})
    for size in (MIB, 64 * KIB, 4 * KIB):
        for index in range(100):
            path = os.path.join(mount.path, f"filler{size}-{index}")
            try:
                with open(path, "wb", buffering=0) as file:
                    file.write(payload(path, size))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                with contextlib.suppress(FileNotFoundError):  # its create was refused
                    os.unlink(path)
                break
        else:
            pytest.fail("does not become full")
    before = sorted(os.listdir(mount.path))
    message = refused("bench", preset, "--dir", plain, "--dir", mount.path, *TINY)
    assert mount.path in message and re.search("space", message, re.IGNORECASE), message
    assert sorted(os.listdir(mount.path)) == before, "something was left behind"


@pytest.mark.parametrize("command", ["bench", "replay"])
def test_a_read_only_directory_is_told(command, plain, new_mount, temp_dir):
    mount = new_mount({"ro": True})
    arguments = ["restore", *TINY] if command == "bench" else [write_trace(temp_dir, CONVERSATIONS), *SMALL]
    message = refused(command, *arguments, "--dir", plain, "--dir", mount.path)
    assert mount.path in message and "Read-only file system" in message, message


# --- replay: ten conversations of three turns, each turn two blocks of 512 tokens longer ---

BLOCK = 512
SMALL = ["--keep-caches", "--bytes-per-token", "16", "--chunk-tokens", "512", "--pool-bytes", "32M"]


def conversations():
    return [
        {
            "timestamp": (turn * 10 + talk) * 100,
            "input_length": turn * 2 * BLOCK,
            "output_length": 7,
            "hash_ids": [talk * 100 + block for block in range(turn * 2)],
        }
        for turn in range(1, 4)
        for talk in range(10)
    ]


CONVERSATIONS = [json.dumps(request) for request in conversations()]
SESSIONS = [
    json.dumps(
        {
            "id": f"session{talk}",
            "models": ["unknown to us", {"deep": [1, [2, {"x": None}]]}],
            "block_size": BLOCK,
            "hash_id_scope": "local",
            "requests": [
                {"t": turn * 1.0 + talk / 10, "in": turn * 2 * BLOCK, "out": 3, "type": "s", "hash_ids": list(range(1, turn * 2 + 1))}
                for turn in range(1, 4)
            ],
        }
    )
    for talk in range(10)
]
HIT_TOKENS = 10 * (2 + 4) * BLOCK  # the second turn finds the first, the third the second


def write_trace(directory, lines, name="trace.jsonl"):
    path = os.path.join(directory, name)
    text = "".join(f"{line}\n" for line in lines).encode()
    with open(path, "wb") as file:
        file.write(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def hits(found):
    """{directory: tokens found}, after what must hold of every run."""
    tokens = {}
    for where, metrics in found.items():
        short = {name.rpartition("/")[2]: entry for name, entry in metrics.items()}
        tokens[where] = short["hit_tokens"]["median"]
        if where == "recompute-only":
            continue
        assert set(SERVED) <= set(short), f"missing for {where}: {set(SERVED) - set(short)}"
        assert short["lost_after_probe"]["max"] == 0
        assert short["written"]["median"] > 0
    return tokens


@pytest.mark.parametrize("order", ["prefix", "random"])
@pytest.mark.parametrize("style", ["vllm", "lmcache-gds", "sglang"])
def test_replay_finds_what_the_trace_repeats(style, order, plain, mount, temp_dir):
    trace = write_trace(temp_dir, CONVERSATIONS)
    found = measure(
        "replay", trace, "--dir", plain, "--dir", mount.path, *SMALL, "--style", style, "--store-order", order, "--workers", "1"
    )
    assert hits(found) == {plain: HIT_TOKENS, mount.path: HIT_TOKENS, "recompute-only": 0}


def test_replay_with_many_workers_and_rounds(plain, mount, temp_dir):
    trace = write_trace(temp_dir, CONVERSATIONS)
    found = measure("replay", trace, "--dir", plain, "--dir", mount.path, *SMALL, "--workers", "4", "--rounds", "2")
    for where, tokens in hits(found).items():
        assert (0 < tokens <= HIT_TOKENS) == (where != "recompute-only")


@pytest.mark.parametrize("order", ["prefix", "random"])
def test_replay_in_an_open_loop(order, plain, mount, temp_dir):
    trace = write_trace(temp_dir, CONVERSATIONS)
    found = measure(
        *("replay", trace, "--dir", plain, "--dir", mount.path, *SMALL, "--open-loop", "--time-scale", "10"),
        *("--prefill-tokens-per-s", "1e8", "--store-order", order),
    )
    for where, tokens in hits(found).items():
        assert (0 < tokens <= HIT_TOKENS) == (where != "recompute-only")


@pytest.mark.parametrize("lines", [CONVERSATIONS, SESSIONS], ids=["requests", "sessions"])
def test_replay_reads_gzip_and_ignores_fields_it_does_not_know(lines, plain, mount, temp_dir):
    bare = [json.dumps({**json.loads(line), "unknown": {"a": [1, 2, {"b": "\\"}]}, "priority": None}) for line in lines]
    for trace in (write_trace(temp_dir, lines, "t.jsonl.gz"), write_trace(temp_dir, bare, "extra.jsonl")):
        found = measure("replay", trace, "--dir", plain, "--dir", mount.path, *SMALL, "--workers", "1", "--store-order", "random")
        assert hits(found) == {plain: HIT_TOKENS, mount.path: HIT_TOKENS, "recompute-only": 0}


@pytest.mark.parametrize("name", ["bad.jsonl", "bad.jsonl.gz"])
@pytest.mark.parametrize(
    "line",
    [
        CONVERSATIONS[4][: len(CONVERSATIONS[4]) // 2],
        '{"timestamp": 1, "input_length": "many", "hash_ids": [1]}',
        '{"timestamp": 1, "input_length": 512}',
        '{"timestamp": 1, "input_length": 1024, "hash_ids": [1, -2.5]}',
        "nothing of the kind",
        "\x00\xff",
    ],
    ids=["truncated", "text-for-a-number", "no-blocks", "no-id", "no-json", "binary"],
)
def test_a_bad_line_is_named_before_anything_is_written(line, name, plain, mount, temp_dir):
    trace = write_trace(temp_dir, [*CONVERSATIONS[:4], line, *CONVERSATIONS[5:]], name)
    result = run_command("replay", trace, "--dir", plain, "--dir", mount.path, *SMALL)
    assert result.returncode == 2 and result.stdout == ""
    assert f"{trace}:5" in result.stderr, result.stderr
    assert mount.status()["writes"]["received_bytes"] == 0


def test_a_trace_cut_off_at_its_end_is_told(plain, mount, temp_dir):
    for name in ("cut.jsonl", "cut.jsonl.gz"):
        trace = write_trace(temp_dir, CONVERSATIONS * 50, name)
        os.truncate(trace, os.path.getsize(trace) - 40)
        result = run_command("replay", trace, "--dir", plain, "--dir", mount.path, *SMALL)
        assert result.returncode == 2 and trace in result.stderr, result.stderr
        assert re.search(r":\d+|line \d+", result.stderr), result.stderr


def test_replay_tells_a_wrong_byte(plain, new_mount, temp_dir):
    """Somebody else writes into every chunk."""
    mount = new_mount({"memory": "64M"})
    trace = write_trace(temp_dir, CONVERSATIONS)
    stop = threading.Event()

    def spoil():
        while not stop.is_set():
            for where, _, names in os.walk(mount.path):
                for name in names:
                    try:
                        with open(os.path.join(where, name), "r+b", buffering=0) as file:
                            file.seek(4096)
                            file.write(b"spoiled!")
                    except OSError:
                        pass

    thread = threading.Thread(target=spoil)
    thread.start()
    try:
        message = refused("replay", trace, "--dir", plain, "--dir", mount.path, *SMALL, "--rounds", "50")
    finally:
        stop.set()
        thread.join()
    assert mount.path in message and "wrong byte" in message, message
