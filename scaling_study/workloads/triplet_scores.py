"""What a model's scores of surgical triplets come to: the average precision of each part, and of what parts make.

| figure | scores | labels |
| --- | --- | --- |
| `ap_i` `ap_v` `ap_t` `ap_ivt` | a head's own | the instruments, verbs, targets, triplets of a frame |
| `ap_iv` `ap_it` | the product of both heads' probabilities | whether a triplet of that pair is in the frame |
| `ap_i_of_triplets` ... `ap_it_of_triplets` | the likeliest triplet that has the class, or the pair | the same |
| `ap_heads` | the mean of the four heads' own, by which the best model is chosen | |
| `top5_ivt` | the five likeliest triplets of a frame | the share of all its triplets that are among them |

Two heads cannot tell which instrument does which verb where a frame has two of each; the triplet head can. What is
published as IV and IT is of triplet scores (Nwoye et al., Medical Image Analysis 78, 2022), as their package derives
every component: that says nothing of a component's own head, so both kinds have names of their own.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scaling_study.stats import average_precision as ap
from scaling_study.targets import CHOSEN_BY, TRIPLETS

COLUMNS = {"i": slice(0, 6), "v": slice(6, 16), "t": slice(16, 31), "ivt": slice(31, 131)}  # of labels and logits
WIDTH, TOP = 131, 5
PARTS_OF = {"i": (0,), "v": (1,), "t": (2,), "iv": (0, 1), "it": (0, 2)}  # -> columns of maps.txt
Logits = NDArray[np.floating[Any]]


class Surgery(Protocol):
    """What is asked of the data (cholect45.py): n frames of some videos."""

    @property
    def labels(self) -> NDArray[np.uint8]:
        """(n, 131) multi-hot."""

    @property
    def video(self) -> NDArray[np.int64]:
        """(n,) the number of each frame's video."""

    @property
    def triplets(self) -> NDArray[np.int64]:
        """(100, 3): instrument, verb and target of each."""


def figures(logits: Logits, ids: NDArray[np.int64], surgery: Surgery) -> dict[str, float]:
    """targets.TRIPLETS of frames `ids`, (n,), with `logits`, (n, 131); nan where a score is no number, or none is."""
    if not len(ids) or not np.isfinite(logits).all():
        return dict.fromkeys(TRIPLETS, float("nan"))
    labels, video = surgery.labels[ids], surgery.video[ids]
    heads = {name: (logits[:, columns], labels[:, columns]) for name, columns in COLUMNS.items()}
    scores, true = heads["ivt"]
    values = {f"ap_{name}": ap.mean(*of_head, video) for name, of_head in heads.items()}
    values[CHOSEN_BY] = sum(values.values()) / len(values)
    values["top5_ivt"] = ap.in_top(scores, true, TOP)
    for name, parts in PARTS_OF.items():
        groups = members(surgery.triplets, parts)
        shown = ap.grouped(true, list(groups.values()))
        values[f"ap_{name}_of_triplets"] = ap.mean(ap.grouped(scores, list(groups.values())), shown, video)
        if len(parts) > 1:
            classes = np.array(list(groups))
            of_heads = [log_probability(heads[letter][0])[:, at] for letter, at in zip(name, classes.T, strict=True)]
            values[f"ap_{name}"] = ap.mean(np.sum(of_heads, axis=0), shown, video)
    return {name: values[name] for name in TRIPLETS}


def members(triplets: NDArray[np.int64], parts: tuple[int, ...]) -> dict[tuple[int, ...], list[int]]:
    """Class of these parts, or pair of classes -> the triplets that have it; in order."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, triplet in enumerate(triplets):
        groups.setdefault(tuple(int(triplet[part]) for part in parts), []).append(number)
    return dict(sorted(groups.items()))


def log_probability(logits: Logits) -> Logits:
    """Exact where the probability itself rounds to 0 or 1. Sums of these have the order of the products."""
    return -np.logaddexp(0.0, -logits)
