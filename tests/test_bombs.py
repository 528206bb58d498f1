"""Study files that are small, or small enough, and ask for a great deal: each is refused, soon and in little memory.

One process reads them all under a limit on its memory. What is just within the limits is planned in seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scaling_study import errors
from scaling_study.machine import Machine
from scaling_study.settings import CHECKOUT
from scaling_study.study import combinations, plan, study

MOST_TURNS = 300  # million turns of a loop, some ten seconds: as much work on a slow machine; the dearest takes 140
LAUGHS = "a0: &a0 [x, y]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 60))
ONE = "study: a\nsweeps: [{framework: single}]\n"
COUNTS = ("batch_per_worker", "workers", "stages", "replicas", "micro_batches", "virtual_stages", "image_size", "seed",
          "epochs", "warmup_epochs", "cores_per_worker")  # fmt: skip
BOMBS: dict[str, tuple[str | bytes, str]] = {
    "10 MB of comments": ("# " + "x" * 10_000_000, "larger than 1,000,000 bytes"),
    "10 MB of values": ("[" + "1," * 5_000_000 + "1]", "larger than 1,000,000 bytes"),
    "nested anchors": (LAUGHS, "more than 50,000 values"),
    "a list in itself": ("&a [*a, *a]", "nested too deeply"),
    "100,000 brackets": ("[" * 100_000, "nested too deeply"),
    "100,000 dashes": ("- " * 100_000, "nested too deeply"),
    "a million values": ("[" + "1," * 499_000 + "]", "more than 50,000 values"),
    "a megabyte quoted 45,000 times": (f"study: &a {'x' * 400_000}\nsweeps: [{'*a,' * 45_000}]", "more problems"),
    "a long key given 20,000 times": (f"? &a {'x' * 400_000}\n: 1\n" + "? *a\n: 1\n" * 20_000, "is given twice"),
    "a list of doubles seen 1,000 times": (
        "a: &a {" + "b: 1, " * 20_000 + f"}}\nc: [{'*a,' * 1000}]", "more than 50,000 values",
    ),
    "24,000 keys, each a slip of ours": (ONE + "".join(f"wor{i}kers: 1\n" for i in range(24_000)), "more problems"),
    "24,000 wrong sweeps": ("study: a\nsweeps: [" + "{framework: singel}," * 16_000 + "]", "more problems"),
    "a key of a megabyte": (ONE + f"? {'x' * 900_000}\n: 1", "unknown key 'xxx"),
    "a value of a megabyte": (f"study: {'x' * 900_000}\nsweeps: []", "is not right"),
    "an alias of a megabyte": (f"a: *{'x' * 900_000}", "not YAML: found undefined alias"),
    "a tag of a megabyte": (f"a: !{'x' * 900_000} 1", "is not allowed here"),
    "a number of a megabyte": ("a: " + "9" * 900_000, "cannot be read as"),
    "a number in base 60": ("a: 1" + ":1" * 450_000, "cannot be read as"),
    "a fraction in base 60": ("a: 1" + ":1" * 450_000 + ".5", "cannot be read as"),
    "200,000 documents": ("---\n" * 200_000, "not YAML"),
    "900,000 lines": (ONE + "\n" * 900_000 + "x: 1", "900003: unknown key 'x'"),
    "UTF-16": (ONE.encode("utf-16"), "not UTF-8 text"),
    "Latin-1": (ONE.replace(": a", ": \xe9t\xe9").encode("latin-1"), "not UTF-8 text"),
    "NUL": (ONE + "description: '\0'", "is not allowed in text"),
    "zeros": (b"\0" * 900_000, "is not allowed in text"),
    "an escape sequence": (ONE + '"a\\e[2Jb": 1', "unknown key 'a\\x1b[2Jb'"),
    "a million combinations": (
        f"study: a\nsweeps: [{{framework: single, matrix: {{seed: &a {list(range(1000))}, image_size: "
        f"{list(range(8, 1008))}}}}}]", "1,000,000 combinations; the limit is 50,000",
    ),
    "more combinations than atoms": (
        "study: a\nsweeps: [{framework: torch_ddp, matrix: {" + ", ".join(
            f"{key}: {list(range(10, 1000))}" for key in
            ("seed", "image_size", "batch_per_worker", "workers", "sequence_length", "epochs", "bucket_bytes")
        ) + "}}]", "combinations; the limit is 50,000",
    ),
    "40 million trials": (
        f"study: a\nsweeps: [{{framework: single, repeats: 1000, matrix: {{seed: {list(range(40_000))}}}}}]",
        "40,000,000 trials, with every repeat; the limit is 200,000",
    ),
    "10,000,000,000 repeats": (ONE + "measure: {repeats: 1000000000, max_repeats: 10000000000}", "is not right"),
    "48,000 whole trials a thousand times": (
        f"study: a\nsweeps: [{{framework: single, repeats: 1000, include: [{'{},' * 48_000}]}}]", "48,000,000 trials",
    ),
    "700 kinds of exclude for 40,000 combinations": (
        f"study: a\nsweeps: [{{framework: torch_pipeline, matrix: {{seed: {list(range(200))}, epochs: "
        f"{list(range(1, 200))}}}, exclude: [" + "".join(
            "{" + ", ".join(f"{key}: 9" for bit, key in enumerate(COUNTS) if number >> bit & 1) + "},"
            for number in range(1, 700)
        ) + "]}]", "to compare with entries of exclude",
    ),
    "8,000 entries of exclude that match nothing": (
        f"study: a\nsweeps: [{{framework: single, matrix: {{seed: {list(range(20_000))}}}, exclude: ["
        + "".join(f"{{seed: {number}}}," for number in range(100_000, 108_000)) + "]}]", "matches nothing",
    ),
    "40,000 batches that nothing divides": (
        f"study: a\nsweeps: [{{framework: horovod, workers: 7, matrix: {{global_batch: {list(range(1, 40_000))}}}}}]",
        "workers=7 does not divide global_batch=1",
    ),
}  # fmt: skip
MIB, MOST_MIB = 2**20, 300
READ_ALL = """
import json, resource, sys, time
from pathlib import Path
from scaling_study.study import plan, study
from scaling_study.errors import StudyError
from scaling_study.machine import Machine

machine = Machine(2, "", 8 << 30, (), {"torch": "2", "torchvision": "1", "horovod": "0"})
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[1]), size + int(sys.argv[1])))

def seconds_of_a_million_turns():
    start = time.process_time()
    for _ in range(500_000):
        pass
    return (time.process_time() - start) / 0.5

for path in map(Path, sys.argv[2:]):
    before, start = seconds_of_a_million_turns(), time.process_time()
    try:
        plan.make(study.load(path), machine)
        said = []
    except StudyError as wrong:
        said = wrong.problems
    seconds = time.process_time() - start
    print(json.dumps([path.stem, seconds / max(before, seconds_of_a_million_turns()), said]))
"""


@pytest.fixture(scope="module")
def read_bombs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, list[str]]]:
    """Bomb -> (million turns, what is said of it), all of them read in one process that may take 300 MiB more."""
    folder = tmp_path_factory.mktemp("bombs")
    paths = {f"{index}": folder / f"{index}.yaml" for index in range(len(BOMBS))}
    for path, (content, _) in zip(paths.values(), BOMBS.values(), strict=True):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    program = [sys.executable, "-c", READ_ALL, str(MOST_MIB * MIB), *map(str, paths.values())]
    done = subprocess.run(program, cwd=CHECKOUT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout[-200:]}{done.stderr[-2000:]}"
    lines = map(json.loads, done.stdout.splitlines())
    return {name: (turns, said) for name, (_, turns, said) in zip(BOMBS, lines, strict=True)}


@pytest.mark.long
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_seconds_and_300_mib(read_bombs: dict[str, tuple[float, list[str]]], name: str) -> None:
    turns, said = read_bombs[name]
    assert any(BOMBS[name][1] in line for line in said), [line[:300] for line in said[:3]]
    assert len(said) <= errors.MOST_PROBLEMS + 1 and all(len(line) < 500 and line.isprintable() for line in said)
    assert turns < MOST_TURNS


@pytest.mark.long
def test_as_much_as_can_be_planned_takes_no_longer_for_each(
    study_file: Callable[..., Path], machine: Callable[..., Machine]
) -> None:
    """What is just within the limits, 50,000 configurations and 200,000 trials, beside a tenth of it."""

    def seconds(seeds: int) -> float:
        axes = f"seed: {list(range(seeds))}, batch_per_worker: {list(range(2, 402, 2))}"
        sweep = f"{{framework: horovod, workers: 2, repeats: 4, matrix: {{{axes}}}}}"
        start = time.process_time()
        made = plan.make(study.load(study_file(f"study: a\nsweeps: [{sweep}]\n")), machine())
        trials = sum(1 for _, planned in made.trials() if planned.trial.find is None)
        assert (len(made.configurations), trials) == (200 * seeds, 800 * seeds)
        return time.process_time() - start

    assert (combinations.MAX_CONFIGURATIONS, combinations.MAX_TRIALS) == (200 * 250, 800 * 250)
    seconds(1)  # what only a first plan takes
    assert seconds(250) < 2 * 10 * seconds(25)
