"""The analysis from a command line: options, messages, exit codes. pandas is loaded when a command runs."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from analysis.prediction import network as quantities
from analysis.prediction.network import ALGORITHMS, CannotPredict, Link, ModelledNetwork, Rate
from scaling_study.errors import StudyError

if TYPE_CHECKING:
    from analysis.prediction.predict import Asked
    from analysis.show.layout import Listing

OK, INCOMPLETE, REFUSED = 0, 1, 2  # exit codes
Value = TypeVar("Value")
FOLDER = "A results folder, such as results/<study>, or a packed study, such as X.study.zip."
ResultsFolder = Annotated[Path, typer.Argument(metavar="RESULTS", help=FOLDER, show_default=False)]


def _option(metavar: str, help: str, group: str | None = None, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=group, show_default=False, **more)


OUT = "Write to DIR; default: RESULTS, or X/ beside X.study.zip."
Out = Annotated[Path | None, _option("DIR", OUT)]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Write the files, print no table.")]
OWN = "Published figures of your own, a CSV file, beside those shipped (docs/guide/read-a-report.md#published-speeds)."
OwnReferences = Annotated[Path | None, typer.Option("--references", metavar="FILE", help=OWN, show_default=False)]


def exit_code(
    command: Callable[[], int], unwritable: str, refusals: tuple[type[Exception], ...] = (), refused: int = REFUSED
) -> int:
    """The exit code of `command()`; `refused` where it raises NotResults, OSError or one of `refusals`.

    `unwritable`: how the line begins that explains an OSError. Skipped records are warnings; parts of the output that
    could not be made are errors, and make OK INCOMPLETE.
    """
    from analysis.execution import LostPart
    from analysis.frames.study import NotResults
    from analysis.frames.trials import SkippedRecord

    expected: tuple[type[Exception], ...] = (OSError, NotResults, *refusals)
    words: dict[type[Warning], str] = {SkippedRecord: "warning", LostPart: "error"}
    with warnings.catch_warnings(record=True) as caught:
        for kind in words:
            warnings.simplefilter("always", kind)
        try:
            code = command()
        except expected as error:
            why = f"{unwritable}: {error}" if isinstance(error, OSError) else error
            print(f"error: {why}", file=sys.stderr)
            code = refused
    said = dict.fromkeys((each.category, str(each.message)) for each in caught if each.category in words)
    for category, message in said:
        print(f"{words[category]}: {message}", file=sys.stderr)
    lost = any(category is LostPart for category, _ in said)
    return INCOMPLETE if lost and code == OK else code


def parsed(option: str, parse: Callable[[str], Value], text: str | None) -> Value | None:
    """The value of an option that was given. Raises typer.BadParameter with what `parse` says is wrong."""
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from error


def files_written(paths: list[Path]) -> str:
    """`12 files in a, b`."""
    return f"{len(paths)} files in {', '.join(sorted({str(path.parent) for path in paths}))}"


def tables(results: ResultsFolder, quiet: Quiet = False, references: OwnReferences = None, out: Out = None) -> int:
    """Print the tables of a study, and write its tables and figures."""

    def command() -> int:
        from rich.console import Console

        import analysis

        paths = analysis.write(results, None if quiet else Console(), out, references=references)
        print(files_written(paths))
        return OK

    return exit_code(command, f"{out or results} cannot be written to", (StudyError,))


def report_command(
    results: ResultsFolder,
    full: Annotated[bool, typer.Option("--full", help="Write every table into report.md too.")] = False,
    references: OwnReferences = None,
    out: Out = None,
) -> int:
    """Print the answer; write report.html, which needs no other file, report.md with the same text, tables, figures
    and samples.npz."""

    def command() -> int:
        from rich.console import Console

        import analysis

        paths = analysis.write(results, Console(highlight=False), out, True, references, full, answer_only=True)
        page = next(path for path in paths if path.suffix == ".html")
        print(f"{page} ({page.stat().st_size / 1e6:.1f} MB), and {len(paths) - 1} files beside it")
        return OK

    return exit_code(command, f"{out or results} cannot be written to", (StudyError,))


def references_command(
    model: Annotated[str, _option("NAME", "List only this model.")] = "",
    device: Annotated[str, _option("NAME", "List only this device, e.g. H100.")] = "",
    own: OwnReferences = None,
) -> int:
    """List published speeds with their sources. A report compares them with yours on the same class of device."""

    def command() -> int:
        from analysis.published import references

        every = references.published(own)
        chosen = [one for one in every if model in ("", one.model) and references.is_on(one, device)]
        if not chosen:
            models, devices = (", ".join(sorted({getattr(one, name) for one in every})) for name in ("model", "device"))
            raise StudyError([f"no reference is of model {model or 'any'} on device {device or 'any'}: there are of "
                              f"{models}; on {devices}"])  # fmt: skip
        print("\n".join(references.lines(chosen)))
        return OK

    return exit_code(command, "cannot read", (StudyError,))


# python -m analysis compare results/A results/B: what became slower or faster, configuration by configuration.
#
# For CI the exit code is the answer. A check that could never fail is none: where nothing could be tested, it is 3.

NO_REGRESSION, REGRESSION, COMPARE_REFUSED, CANNOT_TELL = 0, 1, 2, 3
# The differences that --expect names, for --help.
EXPECTABLE = ("machine", "driver", "versions", "commit", "environment", "window", "backend", "data")
EXPECT = f"Differences that are intended: {', '.join(EXPECTABLE)}, or a library such as torch."


def compare(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="A results folder or packed study: before.", show_default=False)
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="A results folder or packed study: now.", show_default=False)],
    threshold: Annotated[
        str, typer.Option(metavar="SHARE", help="Smallest change that counts: 2% or 0.02; 0: any.")
    ] = "1%",
    expect: Annotated[str, _option("WHAT,…", EXPECT)] = "",
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare in spite of differences, and list them.")] = False,
    markdown: Annotated[Path | None, _option("FILE", "Also write a comment for a pull request.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> int:
    """Compare two results of a study: which configurations became slower or faster from A to B.

    Exit codes: 0 no regression; 1 a regression (slower, fails now, or fails parity now); 2 refused, or no results;
    3 not tested: fewer than 3 launches on a side, or a configuration of A is missing in B or cannot be read there.
    """
    from analysis.compare.report import NothingToCompare

    share = parsed("--threshold", quantities.share, threshold) or 0.0
    expected = tuple(word.strip() for word in expect.split(",") if word.strip())

    def command() -> int:
        from rich.console import Console

        from analysis import execution
        from analysis.compare import report
        from analysis.frames.study import opened

        with opened(a) as before, opened(b) as now:
            comparison = report.compare(before.folder, now.folder, share, expected, anyway)
        if markdown:
            execution.write_text(markdown, report.to_markdown(comparison))
        if as_json:
            print(report.to_json(comparison))
        if comparison.refused:
            print(report.refusal(comparison), file=sys.stderr)
            return COMPARE_REFUSED
        if not as_json:
            report.to_terminal(comparison, Console(highlight=False))
        if comparison.regressed:
            return REGRESSION
        if comparison.says_nothing:
            print("nothing was tested: no pair has 3 launches on both sides", file=sys.stderr)
        if comparison.missing:
            print(f"not all was tested: {len(comparison.missing)} of A missing in B", file=sys.stderr)
        return CANNOT_TELL if comparison.says_nothing or comparison.missing else NO_REGRESSION

    return exit_code(command, "cannot read or write", (NothingToCompare,), COMPARE_REFUSED)


TOOLS = ("tensorboard", "mlflow", "wandb")


def export(
    results: ResultsFolder,
    tensorboard: Annotated[Path | None, _option("DIR", "Write TensorBoard's event files there.")] = None,
    mlflow: Annotated[Path | None, _option("DIR", "Write an MLflow database there.")] = None,
    wandb: Annotated[Path | None, _option("DIR", "Write offline runs of W&B there.")] = None,
) -> int:
    """Write results for another tool: a run for each configuration, a point for each launch. Nothing is sent."""
    folders = zip(TOOLS, (tensorboard, mlflow, wandb), strict=True)
    chosen = [(tool, folder) for tool, folder in folders if folder is not None]
    if len(chosen) != 1:
        raise typer.BadParameter("give exactly one of --tensorboard, --mlflow, --wandb")
    ((tool, folder),) = chosen
    from analysis.export import NEEDS, WRITERS, CannotExport, runs

    def command() -> int:
        from analysis.frames import results as frames
        from analysis.frames.study import opened

        with opened(results) as source:
            study = frames.read(source.folder)
        exported = runs(study)
        try:
            place = WRITERS[tool](exported, study.study.name, folder)
        except ImportError as error:
            needs = f"--{tool} needs a library that is not installed: pip install {NEEDS[tool]}"
            raise CannotExport(needs) from error
        print(f"{len(exported)} runs in {place}")
        return OK

    return exit_code(command, f"{folder} cannot be written to", (CannotExport,))


NETWORK = "The network (default: as a network_probe of the study measured it)"
REDUCTION = "The allreduce (default: as the study's frameworks did it)"
CROWDING = "Factor by which workers that share a host compute more slowly (default: as measured in the study, else 1)."
BETWEEN = {"min": 1, "max": quantities.MOST_WORKERS}
RATE = "Bandwidth between hosts: 400Gbit/host or 50GB/card; 25Gbit is of a host, and its workers share it."
PER_HOST = "Workers on a host (default: 1, or as many as the probe had)."
MACHINE = "Take the network from machines/NAME.yaml: its `topology`."
SHARE = "Share of a GPU that a running collective takes (default: 15%)."  # 20 of an H800's 132 multiprocessors
SPREAD = "Standard deviation of the hosts' lasting speeds, e.g. 3% (default: as measured in the study, else 0)."
CHECK = "Compare predictions with the study's runs of several workers (default where it measured its network)."


GRADIENTS = typer.Option(
    "--gradients", "--allreduce", metavar="NAME,…", help="Precision on the wire, e.g. fp32,fp16.",
    rich_help_panel=REDUCTION, show_default=False,
)  # fmt: skip


def predict(
    results: ResultsFolder,
    workers: Annotated[str, _option("N,N,…", "Numbers of workers, e.g. 64,512; at most 100,000.")],
    bandwidth: Annotated[str | None, _option("RATE", RATE, NETWORK)] = None,
    latency: Annotated[str | None, _option("TIME", "Latency between hosts, e.g. 5us.", NETWORK)] = None,
    cards_per_host: Annotated[int | None, _option("N", "Network cards of a host.", NETWORK, **BETWEEN)] = None,
    per_host: Annotated[int | None, _option("N", PER_HOST, NETWORK, **BETWEEN)] = None,
    local_bandwidth: Annotated[str | None, _option("RATE", "Bandwidth within a host.", NETWORK)] = None,
    local_latency: Annotated[str | None, _option("TIME", "Latency within a host.", NETWORK)] = None,
    machine: Annotated[str | None, _option("NAME|FILE", MACHINE, NETWORK)] = None,
    gpu_share: Annotated[str | None, _option("SHARE", SHARE, NETWORK)] = None,
    algorithm: Annotated[str | None, _option("NAME,…", f"Algorithms: {', '.join(ALGORITHMS)}.", REDUCTION)] = None,
    gradients: Annotated[str | None, GRADIENTS] = None,
    fusion_bytes: Annotated[str | None, _option("SIZE", "Largest fused allreduce, e.g. 64MiB.", REDUCTION)] = None,
    cycle: Annotated[str | None, _option("TIME", "Horovod's cycle time, e.g. 1ms.", REDUCTION)] = None,
    no_stragglers: Annotated[bool, typer.Option("--no-stragglers", help="Assume equally fast workers.")] = False,
    host_spread: Annotated[str | None, _option("SHARE", SPREAD)] = None,
    crowding: Annotated[str | None, _option("FACTOR", CROWDING)] = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK)] = False,
    quiet: Quiet = False,
    out: Out = None,
) -> int:
    """Predict throughput, efficiency and exposed communication of more workers than were measured.

    Two inputs: a study's runs with one worker, and a network that the study measured or that options describe.
    """
    links = (
        parsed("--bandwidth", quantities.rate, bandwidth),
        parsed("--latency", quantities.duration, latency),
        cards_per_host,
        per_host,
        parsed("--local-bandwidth", quantities.bandwidth, local_bandwidth),
        parsed("--local-latency", quantities.duration, local_latency),
    )
    taken = parsed("--gpu-share", quantities.share, gpu_share)
    differ = parsed("--host-spread", quantities.share, host_spread)
    counts = parsed("--workers", quantities.workers, workers) or ()
    algorithms = parsed("--algorithm", _algorithms, algorithm) or ()
    precisions = parsed("--gradients", _precisions, gradients) or ()
    fusion = parsed("--fusion-bytes", quantities.size, fusion_bytes)
    cycle_seconds = parsed("--cycle", quantities.duration, cycle)
    factor = parsed("--crowding", _crowding, crowding)

    def command() -> int:
        from rich.console import Console

        from analysis import terminal
        from analysis.prediction.predict import Asked

        if machine and any(links):
            raise CannotPredict("--machine names a network: give it, or its links by options")
        if no_stragglers and differ:
            raise CannotPredict("--no-stragglers and --host-spread exclude each other: give one")
        given = by_name(machine) if machine else network(*links)
        asked = Asked(
            counts, algorithms, precisions, given, per_host, taken, differ, fusion, cycle_seconds, not no_stragglers,
            factor, check,
        )  # fmt: skip
        paths, table, to_target = write_prediction(results, asked, out)
        if not quiet:
            console = Console(highlight=False)
            terminal.show_prediction(table, console)
            if to_target:
                shown = ("configuration", "workers", "global batch", "seconds", "error")
                terminal.show_listing(to_target, console, shown)
        print(files_written(paths))
        return OK

    return exit_code(command, f"{out or results} cannot be written to", (CannotPredict,))


GPU_MEMORY = "Memory of a GPU, e.g. 80GB (default: the machine file's)."
HARDWARE = "Take GPUs and network from machines/NAME.yaml: its `hardware` and `topology`."
OWN_LENGTH = "Tokens of a sequence (default: the model's own)."
MEASURED_STEP = "Take the step from a study that ran the model with one worker, in place of --utilisation."
UTILISATION = "Assumed share of a GPU's peak."
ESTIMATED_BATCH = "Sequences in a step (default: two for each worker)."
EVERY_MESH = "Print all meshes, not one screen of those that fit and are fastest."


def estimate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A Llama, e.g. llama_3_1_8b.", show_default=False)],
    workers: Annotated[str, _option("N,N,…", "Numbers of GPUs, e.g. 8,64.")],
    machine: Annotated[str, typer.Option(metavar="NAME|FILE", help=HARDWARE)] = "dgx-h100",
    memory: Annotated[str | None, _option("SIZE", GPU_MEMORY)] = None,
    sequence_length: Annotated[int | None, _option("N", OWN_LENGTH, min=4)] = None,
    global_batch: Annotated[int, _option("N", ESTIMATED_BATCH, min=0)] = 0,
    precision: Annotated[str, typer.Option(metavar="NAME", help="Precision of compute: bf16, fp16 or fp32.")] = "bf16",
    utilisation: Annotated[str, typer.Option(metavar="SHARE", help=UTILISATION)] = "40%",
    results: Annotated[Path | None, _option("RESULTS", MEASURED_STEP)] = None,
    whole: Annotated[bool, typer.Option("--all", help=EVERY_MESH)] = False,
    quiet: Quiet = False,
    out: Annotated[Path | None, _option("DIR", "Write estimate.md and .csv there.")] = None,
) -> int:
    """Estimate memory and speed of every way to split a Llama over so many GPUs. Nothing is run."""
    counts = parsed("--workers", quantities.workers, workers) or ()
    room = parsed("--memory", quantities.size, memory)
    share = parsed("--utilisation", quantities.share, utilisation) or 0.0

    def command() -> int:
        from rich.console import Console

        from analysis import outputs, terminal
        from analysis.frames import results as frames
        from analysis.frames.study import opened
        from analysis.prediction import inputs
        from analysis.views import meshes
        from scaling_study.study import machine_file
        from scaling_study.study.meshes import BYTES, SHAPES

        for word, known, what in ((model, SHAPES, "model with closed forms"), (precision, BYTES, "precision")):
            if word not in known:
                raise CannotPredict(f"{word} is no {what}: there are {', '.join(known)}")
        if not 0 < share < 1:
            raise CannotPredict(f"--utilisation {utilisation}: give a share above 0 and below 100 %")
        path = machine_file.find(machine)
        file = machine_file.load(path)
        gpus = file.hardware.gpus if file.hardware else None
        if not gpus or not (gpus.tflops or room):
            raise CannotPredict(f"{path} has no `hardware` with GPUs and their tflops: machines/dgx-h100.yaml shows it")
        length = sequence_length or SHAPES[model].length
        asked = meshes.Question(
            model, counts, by_name(machine) if file.topology and (gpus.tflops or results) else None,
            float(room or gpus.memory_gib * 2**30), gpus.tflops or 0.0, length, precision, global_batch, share,
        )  # fmt: skip
        if results:
            with opened(results) as source:
                read = frames.read(source.folder)
                alone = inputs.one_worker_of(read, source.folder, model, length, precision)
            asked = replace(asked, alone=alone)
        every = list(meshes.estimated(asked))
        if not every:
            raise CannotPredict(f"--global-batch {global_batch} divides on no mesh: give a multiple of --workers")
        table = meshes.listing(asked, every, whole)
        if not quiet:
            several = ["workers"] * (len(counts) > 1)
            shown = [*several, *meshes.NARROW]
            terminal.show_listing(table, Console(highlight=False), shown, left=2 + len(several))
        if out:
            print(files_written(outputs.write_table(out, "estimate", table, meshes.table(every))))
        return OK

    return exit_code(command, f"{out} cannot be written to", (CannotPredict, StudyError))


def write_prediction(
    results: Path, asked: Asked, out: Path | None = None
) -> tuple[list[Path], Listing, Listing | None]:
    """(files written, the table, that of seconds to a target where the study trained to one). Raises NotResults,
    CannotPredict, OSError."""
    from analysis import outputs
    from analysis.frames import results as frames
    from analysis.frames.study import opened
    from analysis.prediction import predict
    from analysis.views import figures, prediction

    with opened(results, out) as source:
        read, tables = frames.read(source.folder), source.out / "tables"
        forecast = predict.forecast(read, source.folder, asked)
        table, to_target = prediction.forecast_listing(forecast, read), None
        paths = outputs.write_table(tables, "prediction", table, predict.forecast_table(forecast))
        for name, picture in prediction.forecast_figures(forecast, read).items():
            paths += figures.save(name, picture, source.out / "figures").paths
        if expected := prediction.expected(read, forecast.predictions):
            to_target = prediction.to_target_listing(expected, read)
            numbers = prediction.to_target_table(expected, read)
            paths += outputs.write_table(tables, "prediction-to-target", to_target, numbers)
    return paths, table, to_target


def network(
    bandwidth: Rate | None,
    latency: float | None,
    cards: int | None,
    per_host: int | None,
    local_bandwidth: float | None,
    local_latency: float | None,
) -> ModelledNetwork | None:
    """The network that the command line describes, in bytes per second and seconds; None where it gives no link.

    Raises CannotPredict where half of one is given, or where it is open what a bandwidth is of.
    """
    of_a_card = _of_a_card(bandwidth, cards) if bandwidth else None
    between = _link(of_a_card, latency, "--bandwidth", "--latency")
    within = _link(local_bandwidth, local_latency, "--local-bandwidth", "--local-latency")
    problem = ""
    if between is None and (within or cards):
        problem = "hosts need a link between them: --bandwidth and --latency are missing"
    elif between and within is None and (per_host or 1) > 1:
        flags = "--local-bandwidth and --local-latency"
        problem = f"{per_host} workers a host need a link of their own: {flags} are missing"
    elif within and per_host is None:
        problem = "a link within hosts needs to know how many workers share one: --per-host is missing"
    if problem:
        raise CannotPredict(problem)
    return ModelledNetwork(between, within, per_host or 1, cards_per_host=cards or 1) if between else None


def _of_a_card(rate: Rate, cards: int | None) -> float:
    """Bytes a second of one card. Raises CannotPredict where the words leave open whose they are."""
    if rate.of == "card" and cards is None:
        raise CannotPredict("--bandwidth is of a card: give --cards-per-host too")
    if not rate.of and cards is not None:
        raise CannotPredict(
            "--cards-per-host: say whether --bandwidth is of a card or of a host: RATE/card or RATE/host"
        )
    return rate.bytes_per_second / (1 if rate.of == "card" else cards or 1)


def by_name(word: str) -> ModelledNetwork:
    """The network of a machine file's topology. Raises CannotPredict, with the file's line or key."""
    from scaling_study.study import machine_file

    try:
        path = machine_file.find(word)
        topology = machine_file.load(path).topology
    except StudyError as error:
        raise CannotPredict("; ".join(error.problems)) from error
    if topology is None:
        raise CannotPredict(f"{path} has no `topology`: machines/dgx-h100.yaml shows one")

    def link(written: machine_file.WrittenLink, key: str) -> Link:
        try:
            return Link(quantities.duration(written.latency), 1 / quantities.bandwidth(written.bandwidth))
        except ValueError as error:
            raise CannotPredict(f"{path}: topology.{key}: {error}") from error

    within = link(topology.within, "within") if topology.within else None
    return ModelledNetwork(
        link(topology.card, "card"), within, topology.workers_per_host,
        cards_per_host=topology.cards_per_host, source=f"of machine file {path.stem}",
    )  # fmt: skip


def _link(bandwidth: float | None, latency: float | None, *flags: str) -> Link | None:
    missing = [flag for flag, value in zip(flags, (bandwidth, latency), strict=True) if value is None]
    if len(missing) == 1:
        raise CannotPredict(f"a link has both a bandwidth and a latency: {missing[0]} is missing")
    return Link(latency, 1 / bandwidth) if latency is not None and bandwidth is not None else None


def _names(text: str, known: Iterable[str], what: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{unknown[0] or 'nothing'} is no {what}: {', '.join(known)}")
    return names


_algorithms = partial(_names, known=ALGORITHMS, what="allreduce algorithm known here")
_precisions = partial(_names, known=("fp32", "fp16", "bf16"), what="precision of gradients")


def _crowding(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.1 <= (value := float(text)) <= 10:
            return value
    raise ValueError(f"{text} is no factor between 0.1 and 10")
