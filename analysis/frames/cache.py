"""What is derived from a study's results is derived once, however many tables and figures ask for it."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Concatenate, ParamSpec, TypeVar

from analysis.frames.results import Results

P = ParamSpec("P")
T = TypeVar("T")


def once(derive: Callable[Concatenate[Results, P], T]) -> Callable[Concatenate[Results, P], T]:
    """The same function, which remembers what it said of each Results for as long as that lives. What else it is asked
    with is hashable; what it says is shared, so nobody writes to it."""
    known: dict[int, dict[Hashable, Any]] = {}  # by identity: frames have no hash

    @functools.wraps(derive)
    def derived(results: Results, *args: P.args, **kwargs: P.kwargs) -> T:
        if (key := id(results)) not in known:
            known[key] = {}
            weakref.finalize(results, known.pop, key, None)
        of, asked = known[key], (args, tuple(kwargs.items()))
        if asked not in of:
            of[asked] = derive(results, *args, **kwargs)
        value: T = of[asked]
        return value

    return derived  # type: ignore[return-value]  # results is given by its place
