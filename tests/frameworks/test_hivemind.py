"""Hivemind for real: two peers on this machine, what their rounds are, and that they train what one process would."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import psutil
import pytest
import torch
import trained
from torch.distributed import TCPStore
from trained import P

from scaling_study.launch import launchers
from scaling_study.measure.training import AveragingRounds, Phase
from scaling_study.processes.process import Exit
from scaling_study.records import outcome
from scaling_study.records.outcome import Outcome
from scaling_study.trial import Trial, Window

pytest.importorskip("hivemind")
from hivemind.averaging.control import AveragingStage
from hivemind.compression import CompressionInfo, Uniform8BitQuantization
from hivemind.compression.serialization import deserialize_torch_tensor
from hivemind.optim.state_averager import TrainingStateAverager, initialize_optimizer_state_

from scaling_study.worker import with_hivemind

pytestmark = pytest.mark.slow
TARGET, BATCH = 256, 32
BUSY = ("Shared memory manager connection has timed out", "did not begin within")  # on a machine that does much else
READS_8_BITS_AS_PUBLISHED = """
from hivemind.compression import Uniform8BitQuantization
from scaling_study.worker import with_hivemind
with_hivemind.Uniform8Bits.extract = Uniform8BitQuantization.extract
"""
FAILS_TO_START = """
from scaling_study.worker import with_hivemind
def broken(*given, **options):
    raise OSError("the planted fault of a constructor")
with_hivemind.hivemind.Optimizer.__init__ = broken
"""

SAYS_CORES = """
import os, psutil
from scaling_study.worker import with_hivemind
made = with_hivemind.Peer.__init__
def said(self, *given):
    made(self, *given)
    below = [one for one in psutil.Process().children(recursive=True) if "torch_shm" not in one.name()]
    theirs = {core for one in below for task in os.listdir(f"/proc/{one.pid}/task")
              for core in os.sched_getaffinity(int(task))}
    print(len(below), "processes on", sorted(theirs), "beside", sorted(os.sched_getaffinity(0)), flush=True)
with_hivemind.Peer.__init__ = said
"""


def a_trial(**keys: Any) -> Trial:
    known = {"batch_per_worker": BATCH, "target_batch_size": TARGET, "matchmaking_seconds": 1.5, "machine": "here"}
    return trained.a_trial("hivemind", **{**known, **keys})


def ran(trial: Trial, folder: Path, before: str = "") -> tuple[Outcome, subprocess.CompletedProcess[str]]:
    """A trial's outcome, and what was printed. `before`: what each rank does before it runs the script."""
    programs = [trained.after_doing(folder.parent, before)] if before else []
    done = trained.ran(trial, folder, *programs, TMPDIR=str(folder.parent))
    return outcome.judge(trial, folder, Exit(done.returncode, 1.0)), done


def left(folder: Path) -> list[str]:
    """Command lines of Hivemind's daemons that still live and have their sockets in a folder."""
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if "p2pd" in line and str(folder) in line]


@pytest.mark.long
def test_peers_that_a_person_starts_by_hand_find_each_other(tmp_path_factory: pytest.TempPathFactory) -> None:
    for _ in range(3):
        folder = tmp_path_factory.mktemp("hand")  # short enough for sockets
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        flags = f"--model resnet8 --data synthetic --device cpu --cores-per-worker 1 --target-batch-size {TARGET}"
        meet = f"--steps 2 --matchmaking-seconds 1.5 --dist-url tcp://127.0.0.1:{port} --world-size 2 --rank"
        words = [sys.executable, "decentralized/hivemind_peers.py", *flags.split(), *meet.split()]
        env = {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)}
        with ThreadPoolExecutor(2) as both:
            done = list(both.map(forked.alone, [[*words, "0"], [*words, "1"]], [env, env]))
        if not any(words in peer.stderr + peer.stdout for peer in done for words in BUSY):
            break
    assert [peer.returncode for peer in done] == [0, 0], "\n--- the other:\n".join(p.stderr[-3000:] for p in done)
    assert "Total images/sec on 2 worker(s)" in done[0].stdout
    assert not left(folder)


def test_every_round_averages_all_peers_and_says_what_it_waited_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By torchrun itself: the others here are forked. A busy machine loses parts of an average."""
    trial = a_trial()
    for _ in range(3):
        folder = tmp_path_factory.mktemp("timed")  # short enough for sockets
        argv = launchers.command(trial, folder / "record").argv
        done = forked.alone(argv, {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder)})
        result = outcome.judge(trial, folder / "record", Exit(done.returncode, 1.0))
        if "came without some peer's" not in result.reason:
            break
    assert (result.status, result.reason) == ("ok", ""), done.stderr[-3000:]
    assert not left(folder)
    for rank in result.ranks:
        assert (rank.allreduce_bytes, rank.communication_bytes) == (4 * P, {"allreduce": 4 * P, "weights": 4 * P})
        assert len(rank.rounds) == len(rank.step_seconds) == 2
        for each, seconds in zip(rank.rounds, rank.step_seconds, strict=True):
            assert (each.peers, each.failure) == (2, "")
            assert each.samples % BATCH == 0 and each.samples > 0
            assert 4 * P <= each.sent_bytes <= 12 * P  # two peers: as much as handed over; weights may be late
            assert 0.3 < each.matchmaking_seconds < seconds + 1.5  # of 1.5 s, as much as a busy machine looked at
            assert 0 < each.averaging_seconds < seconds
            assert 0 <= each.weights_blocked_seconds < seconds
            blocked = each.matchmaking_blocked_seconds + each.averaging_blocked_seconds
            assert 0 < each.averaging_blocked_seconds <= blocked < seconds
        # Weights of the last round may still be under way; Hivemind leaves out those of a round that ends meanwhile.
        first = rank.rounds[0]
        assert first.weights_peers in (2, None) and (first.weights_seconds > 0 or not first.weights_peers)
        assert rank.samples_seen == sum(each.samples for each in rank.rounds)
        assert rank.samples_per_step == TARGET // 2
        assert rank.phases and rank.phases.matchmaking_seconds is not None
        assert rank.phases.averaging_seconds and rank.phases.optimizer_seconds
        assert rank.phases.communication_seconds is None


def test_weights_travel_in_16_bits_and_the_daemon_has_a_core_of_its_own(tmp_path: Path) -> None:
    """Every second round; both peers share this machine's two cores alike."""
    keys = {"cores_per_worker": 2, "daemon_cores": 1, "oversubscribe": True, "window": Window(1, 3, 0.0, None, 3)}
    trial = a_trial(allreduce="fp16", state_allreduce="fp16", average_state_every=2, **keys)
    result, done = ran(trial, tmp_path / "record", before=SAYS_CORES)
    assert (result.status, result.reason) == ("ok", ""), done.stderr[-3000:]
    first, second = sorted(os.sched_getaffinity(0))[:2]
    assert f"4 processes on [{second}] beside [{first}]" in done.stdout
    for rank in result.ranks:
        assert (rank.cores, rank.threads, rank.backend["daemon_cores"]) == ([first, second], 1, f"{second}")
        assert rank.communication_bytes["allreduce"] == 2 * P and 0 <= P - rank.communication_bytes["weights"] < 60
        sent = [each.sent_bytes for each in rank.rounds]
        assert min(sent) >= 2 * P and sum(sent) <= 2 * P * (len(sent) + 2), "weights at most twice in three rounds"
        assert [each.weights_peers is None for each in rank.rounds] in ([True, False, True], [False, True, False])


@pytest.mark.parametrize(
    ("allreduce", "updates"), [pytest.param("int8", "delayed", marks=pytest.mark.long), ("fp32", "local")]
)
def test_delayed_and_local_updates(allreduce: str, updates: str, tmp_path: Path) -> None:
    trial = a_trial(allreduce=allreduce, updates=updates, matchmaking_seconds=3.0)  # a part may be as late
    result, done = ran(trial, tmp_path / "record")
    assert (result.status, result.reason) == ("ok", ""), done.stderr[-3000:]
    for rank in result.ranks:
        assert {each.peers for each in rank.rounds} <= {0, 2}  # 0: the last one's is still under way
        assert all(each.averaging_blocked_seconds == 0 for each in rank.rounds)


@pytest.mark.long
def test_an_averaging_that_silently_did_not_happen_fails_the_trial(tmp_path: Path) -> None:
    """Hivemind 1.1.12 cannot read its 8 bits with NumPy 2.4: every peer goes on by its own, and only a log says so."""
    result, _ = ran(a_trial(allreduce="int8"), tmp_path / "record", before=READS_8_BITS_AS_PUBLISHED)
    assert result.status == "failed"
    assert "rounds were not averaged over all peers" in result.reason
    assert len(result.ranks) == 2  # what was measured is kept


@pytest.mark.parametrize("answers", [True, False])
def test_a_peer_whose_request_is_lost_ends(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hivemind's own wait has no end."""
    ended, reasons = threading.Event(), list[str]()
    control = SimpleNamespace(done=lambda: True, cancelled=lambda: True, stage=None)

    def step(self: object) -> object:
        assert answers or ended.wait(60)
        return control

    monkeypatch.setattr(with_hivemind, "ANSWER_SECONDS", 0.6 if answers else 0.05)
    monkeypatch.setattr(with_hivemind, "give_up", lambda why: (reasons.append(why), ended.set()))
    monkeypatch.setattr(with_hivemind.DecentralizedAverager, "step", step)
    assert with_hivemind.Watching.__new__(with_hivemind.Watching).step() is control
    assert ended.wait(0.8) == (not answers) and reasons == [with_hivemind.UNANSWERED][: not answers]


def test_an_averaging_that_is_not_over_in_time_is_given_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hivemind would wait as long again, and then go on by this peer's gradients as if nothing were amiss."""
    endless = SimpleNamespace(done=lambda: False, stage=AveragingStage.RUNNING_ALLREDUCE)
    rounds, loaded = AveragingRounds(2), list[object]()
    monkeypatch.setattr(
        with_hivemind.hivemind.Optimizer, "_average_gradients_and_load_into_optimizer",
        lambda self, control: loaded.append(control),
    )  # fmt: skip
    watching = SimpleNamespace(
        watch=with_hivemind.AveragingWatch(endless, rounds.current, with_hivemind.Averaging.note_gradients)
    )
    settings = {"phase": Phase(torch.device("cpu")), "averaging_timeout": 0.2, "wire_type": None}
    peer = unstarted(with_hivemind.Peer, rounds=rounds, grad_averager=watching, **settings)
    start = time.monotonic()
    peer._average_gradients_and_load_into_optimizer(endless)
    assert time.monotonic() - start < 60
    assert loaded == [None], "this peer's own gradients, without another wait"
    rounds.end()
    assert [(each.peers, each.failure) for each in rounds.since(0)] == [(1, "not over after 0.2 s")]


def unstarted(kind: type, **attributes: Any) -> Any:
    """A peer, or the keeper of its weights, without Hivemind's processes."""
    without = type("Unstarted", (kind,), {"__del__": lambda self: None})
    made = without.__new__(without)
    vars(made).update(attributes)
    return made


@pytest.mark.parametrize(("seen", "why"), [(1, "there were no other peers"), (2, "Hivemind's log has why")])
def test_a_step_by_a_peers_own_gradients_is_a_failed_round(
    seen: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hivemind goes on so where it sees no other peer, or cannot begin; what it still takes part in mends nothing."""
    monkeypatch.setattr(with_hivemind.hivemind.Optimizer, "_begin_averaging_gradients", lambda self, scaler: False)
    rounds = AveragingRounds(2)
    watch = SimpleNamespace(round=rounds.current)
    tracker = SimpleNamespace(global_progress=SimpleNamespace(num_peers=seen))
    peer = unstarted(with_hivemind.Peer, rounds=rounds, tracker=tracker, grad_averager=SimpleNamespace(watch=watch))
    assert peer._begin_averaging_gradients(None) is False
    rounds.end()
    assert [(each.peers, each.failure) for each in rounds.since(0)] == [(1, f"no averaging began: {why}")]
    assert watch.round is None


def test_a_peer_that_was_behind_has_failed_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops what it has read. Local updates catch up so."""
    monkeypatch.setattr(with_hivemind.hivemind.Optimizer, "load_state_from_peers", lambda self: None)
    for local, failure in ((False, "this peer was behind, and took another's weights"), (True, "")):
        peer = unstarted(with_hivemind.Peer, rounds=AveragingRounds(2), local=local)
        peer.load_state_from_peers()
        assert peer.rounds.current.failure == failure


def two_swarms() -> list[Any]:
    """What two peers share."""
    host = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    guest = TCPStore("127.0.0.1", host.port, 2, is_master=False)
    return [with_hivemind.Swarm(host, 0, 2), with_hivemind.Swarm(guest, 1, 2)]


def test_weights_that_are_not_the_same_are_seen() -> None:
    swarms = two_swarms()
    ranks = [SimpleNamespace(swarm=swarm, total=swarm.total) for swarm in swarms]
    for apart, weights_as, wrong in (
        (1e-12, None, False), (1e-7, None, True), (5e-4, torch.float16, False), (2e-3, torch.float16, True),
    ):  # fmt: skip
        seen: dict[int, str] = {}

        def check(rank: int, apart: float = apart, weights_as: Any = weights_as, seen: dict[int, str] = seen) -> None:
            model = torch.nn.Linear(2, 2).double()
            for parameter in model.parameters():
                torch.nn.init.constant_(parameter, 1.0 + apart * rank)
            types = {"wire_type": None, "state_wire_type": weights_as}
            try:
                unstarted(with_hivemind.Peer, ranks=ranks[rank], **types).checked_weights(model)
                seen[rank] = ""
            except RuntimeError as error:
                seen[rank] = str(error)

        with ThreadPoolExecutor(2) as both:
            list(both.map(check, (0, 1), timeout=30))
        assert [why.startswith(f"peers hold other weights: off by {apart:.1e}") for why in seen.values()] == [wrong] * 2


def test_an_update_that_waits_for_weights_is_no_updating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hivemind has one thread for both: an update begins once the weights of the round before are averaged."""
    averaged = threading.Event()
    with ThreadPoolExecutor(1) as executor:

        def step(self: Any, optimizer_step: bool = False, averaging_round: bool = False) -> None:
            threading.Timer(1.0, averaged.set).start()
            executor.submit(self._do, None, optimizer_step).result()

        monkeypatch.setattr(TrainingStateAverager, "step", step)
        monkeypatch.setattr(TrainingStateAverager, "_do", lambda self, *_: None)
        phase = Phase(torch.device("cpu"))
        phase.on = True
        weights = unstarted(with_hivemind.Weights, phase=phase, rounds=AveragingRounds(2), reuse_tensors=True)
        executor.submit(averaged.wait, 60)
        weights.step(optimizer_step=True)
    blocked = weights.rounds.current.weights_blocked_seconds
    assert weights.phase.seconds["averaging"] == blocked > 0.25 > weights.phase.seconds["optimizer"]


def test_weights_that_are_averaged_late_take_no_update_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that ends meanwhile averages none, and its update stays: Hivemind writes the older means over it."""
    averaged = threading.Event()
    control = SimpleNamespace(
        triggered=False,
        done=lambda: False,
        allow_allreduce=lambda: None,
        result=lambda timeout: averaged.wait(60) and {},
    )
    monkeypatch.setattr(with_hivemind.Watching, "step", lambda self, **_: control)
    weight = torch.ones(1, requires_grad=True)
    buffers = [weight.detach().clone()]
    with ThreadPoolExecutor(1) as executor:
        weights = unstarted(
            with_hivemind.Weights, phase=Phase(torch.device("cpu")), rounds=None, local_epoch=0,
            step_executor=executor, pending_updates=set(), reuse_tensors=False, delta_rule_averaging=False,
            offload_optimizer=False, custom_gradients=False, optimizer=torch.optim.SGD([weight], lr=1.0),
            lock_optimizer=threading.Lock(), lock_averaging=threading.Lock(),
            finished_optimizer_step=threading.Event(),
            finished_averaging_round=threading.Event(), sync_epoch_when_averaging=False, status_loglevel=10,
            delay_before_averaging=SimpleNamespace(update=lambda **_: None), _allreduce_timeout=60.0,
            _update_scheduler=lambda: None, _local_tensors=lambda: [weight],
            get_tensors=lambda: contextlib.nullcontext(buffers),
        )  # fmt: skip
        averaging = {"averaging_round": True, "delay_averaging": True}
        for options in (averaging, {}, averaging):
            weight.grad = torch.ones(1)
            threading.Timer(0.2, averaged.set).start()
            weights.step(optimizer_step=True, increment_epoch=True, **options)
        weights.step(wait_for_delayed_updates=True)
    assert weight.item() == -2.0, "three updates of 1"


@pytest.mark.parametrize(("cores", "says"), [((3,), "no core to compute on"), ((), "with a GPU are not")])
def test_a_peer_that_a_person_starts_keeps_a_core_to_compute_on(cores: tuple[int, ...], says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        with_hivemind.parted(cores, 1)
    assert with_hivemind.parted(cores, 0) == ()


def test_a_constructor_that_fails_ends_the_process(tmp_path: Path) -> None:
    start = time.monotonic()
    result, done = ran(a_trial(), tmp_path / "record", before=FAILS_TO_START)
    assert time.monotonic() - start < 300
    assert done.returncode != 0
    assert result.status == "failed" and "the planted fault of a constructor" in result.reason
    assert not left(tmp_path)


def test_an_epoch_has_whole_rounds() -> None:
    """390 batches of 128, eight of them a round: as many updates as others have in 48 steps of 1,024."""
    workload: Any = SimpleNamespace(steps_per_epoch=390)
    peers: Any = SimpleNamespace(world_size=2)
    trial = Trial(framework="hivemind", workers=2, batch_per_worker=64, target_batch_size=1024)
    assert with_hivemind.one_round_a_step(workload, trial, peers).steps_per_epoch == 48
    assert workload.samples_per_step == 512


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_the_step_that_makes_an_optimisers_state_is_taken_back(name: str) -> None:
    how: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1} | ({"momentum": 0.9} if name == "SGD" else {})

    def stepped(initialised: bool) -> torch.Tensor:
        weights = torch.linspace(-1, 1, 7, requires_grad=True)
        optimizer = getattr(torch.optim, name)([weights], **how)
        if initialised:
            before = [weights.detach().clone()]
            initialize_optimizer_state_(optimizer)
            assert not torch.equal(weights, before[0])  # it decayed them
            with_hivemind.take_back_first_step(optimizer, before)
        for _ in range(3):
            weights.grad = torch.arange(7.0)
            optimizer.step()
        return weights.detach()

    assert torch.equal(stepped(True), stepped(False))


def test_eight_bits_are_read() -> None:
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    packed = with_hivemind.Uniform8Bits().compress(tensor, CompressionInfo.from_tensor(tensor))
    off = (deserialize_torch_tensor(packed) - tensor).norm() / tensor.norm()
    assert 0.001 < off < 0.05
    with pytest.raises(TypeError):  # once this is mended, ours can go
        Uniform8BitQuantization().extract(packed)


def test_weights_averaged_in_16_bits_stay_a_rounding_apart_and_their_mean_stays() -> None:
    """As Hivemind does: a part is averaged with the other's rounded, which gets the rounded difference from its own."""
    wire = with_hivemind.COMPRESSION["fp16"]()

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        there: torch.Tensor = wire.extract(wire.compress(tensor, CompressionInfo.from_tensor(tensor)))
        return there

    generator = torch.Generator().manual_seed(1)
    mine = theirs = exact = 0.05 * torch.randn(10_000, generator=generator)
    apart = []
    for _ in range(50):
        update = 1e-3 * torch.randn(10_000, generator=generator)
        mine, theirs, exact = mine + update, theirs + update, exact + update
        sent = rounded(theirs)
        mean = (mine + sent) / 2
        mine, theirs = mean, theirs + rounded(mean - sent)
        apart.append(float((mine - theirs).abs().max() / exact.abs().max()))
    assert with_hivemind.APART[torch.float16] < apart[0] and max(apart) < with_hivemind.STATES_APART
    assert float(((mine + theirs) / 2 - exact).abs().max() / exact.abs().max()) < 1e-5


def test_weights_of_any_size_reach_the_other_ranks() -> None:
    """As one value, the store closes the connection at some 8 MiB; ResNet-18 in fp64 has 89 MB."""
    swarms = two_swarms()
    data = bytes(range(256)) * (10 * with_hivemind.MOST_BYTES // 256) + b"and a part of a part"
    assert [swarms[0].bytes_of_first(data), swarms[1].bytes_of_first(bytes(len(data)))] == [data, data]
