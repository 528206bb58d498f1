"""CoLA's published development sentences, in the tokens of its training sentences.                        [torch]

    in_domain_dev.tsv, out_of_domain_dev.tsv --read--> 1,043 sentences --tokenizer--> ids    once, kept in .cache/

What is trained to a result is tested on them: the labels of the published test sentences are not public. The tokeniser
is the training sentences' own, so that none is made for what a model is judged by.
"""

from __future__ import annotations

from typing import Any

from filelock import FileLock

from scaling_study.datasets import COLA_DEVELOPMENT, NoData, cola_development, cola_file, packed_cola, packed_held_out
from scaling_study.workloads import cola
from scaling_study.workloads.cola import Sentences

SAMPLES = 1_043


def sentences() -> Sentences:
    """The development sentences. Raises NoData if they do not lie beside the training sentences, SystemExit if they are
    damaged."""
    train, files = cola.sentences(), cola_development()
    if not files:
        names = " or ".join(" and ".join(names) for names in COLA_DEVELOPMENT)
        raise NoData(
            f"CoLA has no development sentences ({names}) beside {cola_file()}, and what is trained to a result is "
            f"tested on them: unpack {cola.ARCHIVE} there"
        )
    folder = packed_held_out(packed_cola(), files)

    def encoded() -> tuple[Sentences, Any]:
        tokenizer = _tokenizer()
        return cola.encoded(*cola.read(files, SAMPLES), tokenizer, train.tokenizer), tokenizer

    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):  # ranks that start together wait for the first
                if not folder.is_dir():
                    cola.keep(folder, *encoded(), files)
        except OSError:  # a read-only checkout: slower starts, the same data
            return encoded()[0]
    return cola.kept(folder)


def _tokenizer() -> Any:
    """That of the training sentences."""
    from tokenizers import Tokenizer

    kept = packed_cola() / "tokenizer.json"
    return Tokenizer.from_file(str(kept)) if kept.is_file() else cola.tokenizer_of_training()
