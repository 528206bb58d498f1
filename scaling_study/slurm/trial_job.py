"""`run_sweep.py --job results/<study>/slurm/<name>`: what a job of one trial runs. It writes the trial's record.

The trial is started, watched, timed out and judged by the same code as in a sweep, in the job itself: no submitter
need be alive when it ends. Many such jobs share a results folder; each writes to its own trial's folder alone.
"""

from __future__ import annotations

from pathlib import Path

from scaling_study.launch.attempts import Attempts
from scaling_study.launch.supervisor import SupervisorClient
from scaling_study.machine import this_machine
from scaling_study.processes import process
from scaling_study.records import store
from scaling_study.slurm import jobs
from scaling_study.study.cluster import Cluster
from scaling_study.study.documents import Document
from scaling_study.study.plan import Plan, Planned
from scaling_study.study.schema import Measure
from scaling_study.study.study import Study
from scaling_study.study.support import unsupported
from scaling_study.sweep import Run
from scaling_study.trial import Trial

INTERRUPTED = 130


def run(folder: Path, cluster: Cluster) -> int:
    """Run the trial of the job whose folder this is; the exit code."""
    results = folder.parent.parent
    job, begun = jobs.read(folder / jobs.FILE), store.read_record(folder / jobs.BEGUN)
    trial = Trial.from_dict({**begun.trial, "window": begun.window})
    measure, machine = Measure.model_validate(job.measure), this_machine()
    planned = Planned(trial, measure, unsupported(trial, machine, cluster))  # on what the job really got
    study = Study(begun.study, "weak", None, 0, measure, (), Document(Path(), "", {}, {}))
    sweep = Run(Plan(study, machine, (planned,), (), cluster=cluster), results, prune=False)
    with (
        process.Interruption() as interruption,
        SupervisorClient(results / "trials" / trial.id, interruption) as supervisor,
    ):
        record = sweep.run_trial(trial, planned, Attempts(supervisor, cluster))
    print(f"{trial.id}: {record.status} {record.reason}" if record else f"{trial.id}: interrupted", flush=True)
    return 0 if record else INTERRUPTED
