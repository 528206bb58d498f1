"""What peers that leave cost: seconds that one peer loses when the other is killed, and when another one joins late.

    a ------------------------------------------------- | stop     rounds of a are watched
    b ---------- killed                                            with all that it started, as by a loss of power
    c                           joins late ------------ | stop     loads a's state, then takes part

Hivemind waits for a peer that is gone until a round's averaging times out (`averaging_timeout`), and round after round
until the DHT forgets that it was there (`metadata_expiration`). Both are chosen numbers; Hivemind's own are 60 s each.
Seconds lost are those by which rounds after the event took longer than the usual round of one peer alone, where they
took more than 1.5 times as long. Also: how long the state took to load, and by how much the weights of both peers
differ after the same round at the end.

Measured on this machine, a peer a core, over the loopback: the waiting is of clocks, and needs no slow link. The figure
is leaving_peers.png beside the numbers. Not shown: larger models, whose state takes longer to load; more than two
peers, of whom the others could go on together; a peer that takes its leave.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import jobs, publish
from benchmarks.options import Options, Unavailable
from benchmarks.paired import Finding
from scaling_study.machine import installed, this_machine
from scaling_study.records import store
from scaling_study.settings import CHECKOUT
from scaling_study.stats.intervals import between_repeats

TIMEOUTS, EXPIRATIONS = (5.0, 15.0, 30.0, 60.0), (15.0, 60.0)
QUICK = ((3.0,), (6.0,))
TARGET, MATCHMAKING_SECONDS = 512, 1.5
ROUNDS, QUICK_ROUNDS = (5, 6, 4), (2, 3, 2)  # of two peers, of one that has its pace again, and of two again
SLOW = 1.5  # times the usual round: what is longer has lost something
DEADLINE_SECONDS = 300.0  # beyond what is waited for
START_SECONDS = 120.0


@dataclass(frozen=True)
class Round:
    """Of one peer: when it was over, and how long it took."""

    at: float
    seconds: float
    peers: int


@dataclass
class Lost:
    """What one run came to."""

    killed_seconds: float = 0.0  # lost by the one that stays
    joined_seconds: float = 0.0  # lost by the one that was there
    loaded_seconds: float = 0.0  # the joiner took for the state
    apart: float = 0.0  # largest difference of weights after the last round, over the largest weight
    usual_seconds: float = 0.0  # of a round alone
    rounds: list[list[float]] = field(default_factory=list)  # [seconds since the kill, seconds, peers]


def run(options: Options) -> list[Finding]:
    if not installed("hivemind"):
        raise Unavailable("hivemind is not installed")
    if this_machine().cores < 2:
        raise Unavailable("two peers need two cores")
    findings = []
    timeouts, expirations = QUICK if options.quick else (TIMEOUTS, EXPIRATIONS)
    counts = QUICK_ROUNDS if options.quick else ROUNDS
    for expiration in expirations:
        for timeout in timeouts:
            runs = [one(timeout, expiration, counts) for _ in range(options.pairs(3))]
            findings += found(timeout, expiration, runs)
            print(
                f"  averaging timeout {timeout:g} s, expiration {expiration:g} s: {runs[-1].killed_seconds:.0f} s lost"
            )
    if not options.quick:
        killed = [finding for finding in findings if finding.evidence["measured"] == "killed_seconds"]
        publish.write_figure("leaving_peers", lambda: draw(killed))
    return findings


def found(timeout: float, expiration: float, runs: Sequence[Lost]) -> Iterator[Finding]:
    chosen = f"averaging timeout {timeout:g} s, expiration {expiration:g} s"
    evidence = {"averaging_timeout_seconds": timeout, "metadata_expiration_seconds": expiration}
    for claim, name, unit in (
        ("lost by a peer whose only other one is killed", "killed_seconds", "s"),
        ("lost by a peer when another joins", "joined_seconds", "s"),
        ("state loaded by one that joins", "loaded_seconds", "s"),
        ("weights of both after the same round, largest difference over the largest", "apart", ""),
    ):
        values = [float(getattr(each, name)) for each in runs]
        kept = {**evidence, "measured": name, "runs": values}
        if name == "killed_seconds":
            kept |= {"usual_seconds": [each.usual_seconds for each in runs], "rounds": [each.rounds for each in runs]}
        yield Finding(f"{claim}; {chosen}", between_repeats(values), unit=unit, evidence=kept)


def one(timeout: float, expiration: float, counts: tuple[int, int, int]) -> Lost:
    """One run, with so many rounds (ROUNDS). Raises Unavailable where a peer ends by itself, or nothing happens for too
    long."""
    before_kill, by_itself, in_the_end = counts
    settings = ["--target", str(TARGET), "--matchmaking", str(MATCHMAKING_SECONDS)]
    settings += ["--averaging-timeout", str(timeout), "--expiration", str(expiration)]
    with tempfile.TemporaryDirectory(prefix="leaving-") as made, contextlib.ExitStack() as until_over:
        peers = Peers(Path(made), "leaving_peer", until_over)
        first = peers.start("a", "--core", "0", *settings)
        peers.until("the first peer's address", (peers.folder / "addresses").exists, START_SECONDS)
        second = peers.start("b", "--core", "1", *settings)
        peers.until("rounds of two", lambda: together(peers.rounds("a")) >= before_kill, START_SECONDS)
        killed_at = time.time()
        end_all([second])
        patience = expiration + timeout + DEADLINE_SECONDS
        peers.until("rounds of one", lambda: alone(since(peers.rounds("a"), killed_at)) >= by_itself, patience)
        usual = median(each.seconds for each in peers.rounds("a")[1 - by_itself :])
        joined_at = time.time()
        third = peers.start("c", "--core", "1", *settings, "--late")
        peers.until("rounds of two again", lambda: together(peers.rounds("c")) >= in_the_end, patience)
        last = max(each["epoch"] for each in peers.said("a")) + 2
        store.write_json(peers.folder / "stop", last)
        peers.until("weights", lambda: all((peers.folder / f"{n}.pt").exists() for n in "ac"), patience)
        rounds, before = peers.rounds("a"), joined_at
        result = Lost(
            lost([r for r in since(rounds, killed_at) if r.at < before], usual), lost(since(rounds, joined_at), usual),
            next(each["loaded_seconds"] for each in peers.said("c") if "loaded_seconds" in each),
            apart(peers.folder / "a.pt", peers.folder / "c.pt"), usual,
            [[r.at - killed_at, r.seconds, r.peers] for r in rounds],
        )  # fmt: skip
        end_all([first, third])
        return result


def lost(rounds: Sequence[Round], usual: float) -> float:
    """Seconds by which slow rounds took longer than the usual one."""
    return sum(each.seconds - usual for each in rounds if each.seconds > SLOW * usual)


def together(rounds: Sequence[Round]) -> int:
    """The latest rounds in which two peers were seen, in a row."""
    return next((place for place, each in enumerate(reversed(rounds)) if each.peers < 2), len(rounds))


def alone(rounds: Sequence[Round]) -> int:
    """Likewise, in which one was."""
    return next((place for place, each in enumerate(reversed(rounds)) if each.peers > 1), len(rounds))


def since(rounds: Sequence[Round], moment: float) -> list[Round]:
    """Those that were over later."""
    return [each for each in rounds if each.at > moment]


def apart(one: Path, other: Path) -> float:
    """Of two files of weights."""
    import torch

    a, b = torch.load(one, weights_only=True), torch.load(other, weights_only=True)
    return float((a - b).abs().max() / a.abs().max())


class Peers:
    """Processes of a module in one folder, which is told them with a name; all are killed in the end."""

    def __init__(self, folder: Path, module: str, until_over: contextlib.ExitStack) -> None:
        self.folder, self.module, self.until_over = folder, f"benchmarks.{module}", until_over
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *settings: str) -> subprocess.Popen[bytes]:
        log = self.until_over.enter_context((self.folder / f"{name}.log").open("wb"))
        started = subprocess.Popen(
            [sys.executable, "-m", self.module, str(self.folder), name, *settings], cwd=CHECKOUT, stdout=log,
            stderr=log, env=jobs.environment(TMPDIR=str(self.folder), OMP_NUM_THREADS="1"), start_new_session=True,
        )  # fmt: skip
        self.running[name] = started
        self.until_over.callback(end_all, [started])
        return started

    def said(self, name: str) -> list[dict[str, Any]]:
        """Its whole lines so far."""
        path = self.folder / f"{name}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def rounds(self, name: str) -> list[Round]:
        """All but the first, whose beginning is not known."""
        lines = [each for each in self.said(name) if "peers" in each]
        pairs = itertools.pairwise(lines)
        return [Round(each["at"], each["at"] - before["at"], each["peers"]) for before, each in pairs]

    def until(self, what: str, there: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not there():
            ended = [name for name, each in self.running.items() if each.poll() not in (None, -signal.SIGKILL)]
            if ended or time.monotonic() > deadline:
                why = f"peer {ended[0]} ended by itself" if ended else f"no {what} within {seconds:.0f} s"
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
                raise Unavailable(f"waiting for {what}: {why}", logs)
            time.sleep(0.1)


def draw(findings: Sequence[Finding]) -> Any:
    """One axes: averaging timeout, and seconds that the peer loses whose other one is killed, a line an expiration."""
    from matplotlib.figure import Figure

    from analysis.show import style

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.subplots()
    for place, expiration in enumerate(sorted({each.evidence["metadata_expiration_seconds"] for each in findings})):
        mine = [each for each in findings if each.evidence["metadata_expiration_seconds"] == expiration]
        mine.sort(key=lambda each: each.evidence["averaging_timeout_seconds"])
        x = [each.evidence["averaging_timeout_seconds"] + 0.4 * place for each in mine]  # so that intervals are seen
        publish.draw_line(axes, x, [each.figure for each in mine], f"{expiration:g} s", place)
    axes.set(xlabel="averaging timeout, s", ylabel="lost by the peer that stays, s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, title="metadata expiration")
    axes.set_title("Hivemind, two peers, one is killed; 95 % intervals", fontsize=style.SMALL, loc="left")
    return figure


def end_all(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill processes and all that they started, at once: nobody says goodbye."""
    for each in started:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(each.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    one.kill()
        each.wait()
