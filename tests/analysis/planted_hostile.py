"""A results folder that somebody else made: whatever words a name or a message can hold."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from planted import Planted, plant

from scaling_study.records import store

XML = "XML's"
WORDS = {
    "markup": "[red]a[/red] [/] [link=file:///etc/passwd]b[/link]",
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)> & &lt;b&gt;",
    "Markdown": "a | b || c \\| [x](javascript:alert(1)) ![y](http://z) `d` **e**",
    "mathematics": r"$\frac{1}{2$ $x_{$ $$ \undefined{$a$}",
    "a terminal's": "\x1b[2J\x1b]0;mine\x07 a\rb \x9b31m \x08 \u202e",
    XML: "a\x00b \x0b \ufffe ]]> <!-- &nope;",
    "a line break": "a\n\n# heading\n| x |\n|---|",
    "a spreadsheet's": '=cmd|"/c calc"!A1',
}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def results_of(folder: Path, words: str) -> Path:
    """A results folder whose every name and message holds these words."""
    one = Planted("single", model=words)
    planted = [
        one,
        replace(one, framework="horovod", workers=2, allreduce="fp32", speed=160.0),
        replace(one, framework="horovod", workers=2, allreduce="fp16", speed=180.0, keys=(("data", words),)),
        replace(one, framework="torch_ddp", workers=2, allreduce="fp32", status="failed", reason=f"rank 0: {words}"),
        replace(one, framework="mpi_allreduce", workers=2, allreduce="fp32", speed=120.0),
    ]
    machine = {"cores": 2, "cpu": words, "gpus": [words], "memory_bytes": 8 << 30, "fingerprint": "abcd1234"}
    plant(folder, planted, study=words, machine=machine, baseline={"framework": "single", "data": "cifar10"})
    for path in (folder / "trials").glob("*/record.json"):
        record = store.read_record(path)
        if path.parent.name.startswith("mpi"):  # a framework that this version does not know
            record = replace(record, trial=replace(record.trial, framework=words, schedule=words))
        ranks = [replace(rank, notes=[words], data_source=words, device_name=words) for rank in record.ranks]
        store.write_record(path.parent, replace(record, error=words, notes=[words], ranks=ranks))
    return folder
