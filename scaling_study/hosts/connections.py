"""The lines of a sweep to the agents of other hosts: kept alive by a beat, and watched for being cut.

with lines.trial(hosts, mark, temporary, stop) as trial:      begins it on every host, ends it on every host
    exit = process.run(..., stop=trial)                       readable when a host fails, or the driver says stop
exit = trial.judged(exit)                                     names the host that failed, if one did
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from scaling_study.hosts.connection import OPEN_SECONDS, Line, Lost
from scaling_study.processes.process import Exit, Stop

BEAT_SECONDS = 1.0


class Lines:
    """The lines of one sweep, opened when a trial first needs them and kept for the next."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._over = threading.Event()
        self._beating: threading.Thread | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._beating:
            self._beating.join()
        for line in self._lines.values():
            line.close()

    @contextlib.contextmanager
    def trial(self, hosts: Sequence[str], mark: str, temporary: str, stop: Stop) -> Iterator[Trial]:
        """A trial on these hosts. Raises Lost if one is not there at its beginning."""
        begin = {"ask": "begin", "mark": mark, "temporary": temporary}
        if lost := self._each(hosts, lambda line: line.ask(begin)):
            raise lost
        trial = Trial([self._lines[host] for host in hosts], stop)
        try:
            yield trial
        finally:
            trial.close()
            if gone := self._each(hosts, lambda line: line.ask({"ask": "end"}), again=False):
                trial.lost = trial.lost or str(gone)
                self._each(hosts, lambda line: line.ask(begin) and line.ask({"ask": "end"}))  # its ranks may live

    def _each(self, hosts: Sequence[str], ask: Callable[[Line], object], again: bool = True) -> Lost | None:
        """Ask every host, all at once; what the first that cannot be reached said. `again`: not without a new line."""

        def asked(host: str) -> Lost | None:
            known = host in self._lines
            try:
                ask(self._line(host))
            except Lost as lost:
                if line := self._lines.pop(host, None):
                    line.close()
                return asked(host) if known and again else lost
            return None

        if not hosts:
            return None
        with ThreadPoolExecutor(len(hosts)) as pool:
            return next(filter(None, list(pool.map(asked, hosts))), None)

    def _line(self, host: str) -> Line:
        """The host's line, opened if there is none."""
        if host not in self._lines:
            line = Line(host)
            try:
                line.ask({"ask": "clock"}, OPEN_SECONDS)
            except Lost:
                line.close()
                raise
            self._lines[host] = line
            self._beat()
        return self._lines[host]

    def _beat(self) -> None:
        if not self._beating:
            self._beating = threading.Thread(target=self._beats, daemon=True)
            self._beating.start()

    def _beats(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            for line in list(self._lines.values()):
                line.beat()


class Trial:
    """What can end a running trial: the driver's word, or a host that fails."""

    def __init__(self, lines: Sequence[Line], stop: Stop) -> None:
        self._lines, self.lost = lines, ""
        self._any = select.epoll()
        for one in (stop, *lines):
            self._any.register(one.fileno(), select.EPOLLIN | select.EPOLLHUP)

    def fileno(self) -> int:
        """Readable once one of them has come."""
        return self._any.fileno()

    def close(self) -> None:
        """Note which host's line was cut meanwhile: nothing is asked while a trial runs, so none has spoken."""
        self._any.close()
        cut = [line for line in self._lines if select.select([line.fileno()], [], [], 0)[0]]
        self.lost = cut[0].why("the line was cut") if cut else ""

    def judged(self, exit: Exit) -> Exit:
        """How the command ended, with the host that failed, if one did."""
        return replace(exit, node=self.lost, interrupted=exit.interrupted and not self.lost) if self.lost else exit
