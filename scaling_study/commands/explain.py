"""`scaling-study explain 'COMMAND'`: ten questions about one training command, without edits, on one page.

The test run, the study and the interleaved launches are those of bench (compared.py), in results/explain-NAME. The
answers are the analysis's (analysis/compare/explained.py).
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from scaling_study.commands import compared, options
from scaling_study.commands.options import INTERRUPTED, OK, exit_code
from scaling_study.errors import HostError
from scaling_study.machine import gpu_memory_bytes
from scaling_study.records import results as results_folder

MARGIN = 0.05  # of a ratio or, with one configuration, of its throughput: more launches until then
NOTHING_YET = "So far, no launch has ended: nothing is known yet."

COMMAND = "A training command, in quotes; {workers}, {batch_per_worker}, {port} and {run_dir} are filled in."
WORKERS = "Values of {workers}; 1 and another value show the cost of the network and the scaling limit."
BATCHES = "Values of {batch_per_worker}; two values show which batch fits into memory."
SAMPLES = "Samples per step of one process, if they cannot be observed."
PEAK = "Peak TFLOP/s of the device of one process, for MFU."
NAME = "Results go to DIR/explain-NAME; default: a hash of the command."
OUT = "Also write the page there, in Markdown."


def explain(
    context: typer.Context,
    command: Annotated[str, typer.Argument(metavar="COMMAND", help=COMMAND, show_default=False)],
    workers: Annotated[str, options.option("N,…", WORKERS, options.TRIALS)] = "",
    batch_per_worker: Annotated[str, options.option("N,…", BATCHES, options.TRIALS)] = "",
    samples_per_step: Annotated[str, options.option("N", SAMPLES, options.TRIALS)] = "",
    shell: Annotated[bool, options.flag("--shell", compared.SHELL, options.TRIALS)] = False,
    dry_run: Annotated[bool, options.flag("--dry-run", compared.MINE, options.TRIALS)] = False,
    peak_tflops: Annotated[float | None, options.option("X", PEAK, options.OUTPUT, min=0.001)] = None,
    name: Annotated[str, options.option("NAME", NAME, options.OUTPUT)] = "",
    out: Annotated[Path | None, options.option("FILE", OUT, options.OUTPUT)] = None,
    results: options.Results = Path("results"),
    as_json: options.Json = False,
) -> int:
    """Answer ten questions about a training command, without edits: where its time goes, and what to change first.

    The command is started several times, as typed and with your rights. Exit codes: 0 the page was written, 1 the
    command failed, 130 stopped (run the same command again to resume).
    """

    def asked() -> int:
        axes = {"workers": workers, "batch_per_worker": batch_per_worker}
        peak_flops = peak_tflops and 1e12 * peak_tflops
        candidates = list(compared.expanded("explain", [command], axes, shell))
        given = compared.samples_of(samples_per_step, [each.label for each in candidates])
        folder = compared.folder_of(results, "explain", name, candidates)
        console = Console(stderr=as_json, highlight=False, soft_wrap=True)
        compared.announce(console, candidates, folder)
        if dry_run:
            return OK
        again = shlex.join(["scaling-study", "explain", *options.words_again(context)])
        try:
            looks = compared.looked_at(candidates, folder, console, given)
            for label, look in looks.items():
                if not look.samples:
                    why = f"{label}: its samples per step were not observed ({look.unknown})"
                    raise HostError(f"{why}: give --samples-per-step, of one process")
            code = compared.in_turns(candidates, looks, folder, MARGIN, console, again)
            if code == INTERRUPTED:
                say_so_far(folder, peak_flops, console)
                return code
        except KeyboardInterrupt:
            console.print(f"Stopped; what is measured is kept. To resume: {escape(again)}")
            return INTERRUPTED
        compared.refuse_two_versions(candidates, looks, folder)
        said = options.explained(folder, peak_flops, gpu_memory_bytes())
        if out is not None:
            out.write_text(said.to_markdown(), encoding="utf-8")
        if as_json:
            print(json.dumps({**said.to_dict(), "results": str(folder)}))
        else:
            compared.say(console, said.lines())
        return code

    return exit_code(asked)


def say_so_far(folder: Path, peak_flops: float | None, console: Console) -> None:
    """Print the answers by the launches that had ended when explain was stopped."""
    ended = results_folder.finished(folder)
    said = options.explained(folder, peak_flops, gpu_memory_bytes()).so_far() if ended else []
    compared.say(console, said or [NOTHING_YET])
