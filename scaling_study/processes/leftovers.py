"""Leftovers of a killed trial: processes, files, shared memory, ports in use, GPU memory."""

from __future__ import annotations

import contextlib
import errno
import getpass
import hashlib
import os
import re
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from scaling_study.machine import LEAST_CONTEXT_BYTES, visible_gpus
from scaling_study.processes.process import Stop

# --- ports: checked before each launch that is told its own

WAIT_SECONDS, POLL_SECONDS = 3.0, 0.25  # for one that the trial before still holds
ANYWHERE = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))  # where torch's store listens, in this order


def choose_port(preferred: int, among: range, stop: Stop) -> tuple[int, str]:
    """(a free port, a note if it is not the preferred one). A port in use is waited for first.

    Then it is the next free one `among` the others; the preferred one after all where none is free.
    """
    for _ in range(round(WAIT_SECONDS / POLL_SECONDS)):
        if is_free(preferred):
            return preferred, ""
        if select.select([stop.fileno()], [], [], POLL_SECONDS)[0]:
            break
    place = among.index(preferred)
    port = next((port for port in (*among[place + 1 :], *among[:place]) if is_free(port)), preferred)
    return port, f"port {preferred} is in use by {holder(preferred)}; {port} was used instead"


def is_free(port: int) -> bool:
    """True where a server could listen on every address of this host."""
    for family, address in ANYWHERE:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as all servers do: TIME_WAIT is free
                server.bind((address, port))
                server.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # a host without IPv6 has nothing there to hold
                return False
    return True


def holder(port: int) -> str:
    """`process 123 (python)`, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "a process of another user"


# --- memory of GPUs, by NVML and without torch, as in machine.py

GPU_WAIT_SECONDS, GPU_POLL_SECONDS = 30.0, 0.5


class GpuMemory:
    """The least memory seen in use on each visible GPU: that of other programs, and of no trial of ours."""

    def __init__(self) -> None:
        self._least: dict[str, int] = {}

    def wait_until_freed(self, stop: Stop) -> list[str]:
        """Wait until no GPU holds more than that; in words, what still does after WAIT_SECONDS."""
        deadline = time.monotonic() + GPU_WAIT_SECONDS
        while held := list(self._held()):
            if time.monotonic() > deadline or select.select([stop.fileno()], [], [], GPU_POLL_SECONDS)[0]:
                break
        return held

    def _held(self) -> Iterator[str]:
        """One clause for each GPU of which more is in use than before; none where there is no NVML."""
        with contextlib.suppress(ImportError):
            import pynvml

            for uuid, name in visible_gpus().items():
                with contextlib.suppress(pynvml.NVMLError):
                    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                    used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
                    least = self._least[uuid] = min(used, self._least.get(uuid, used))
                    if used > least + LEAST_CONTEXT_BYTES:
                        pids = [str(user.pid) for user in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
                        who = f"process {', '.join(pids)}" if pids else "an unknown process"
                        yield f"{(used - least) / 2**30:.1f} GiB of {name} were still in use before it began, by {who}"


# --- what a killed trial leaves outside its folder
#
#     processes        carry the results folder in their environment, so that the next driver on that folder knows
#                      them as its own, also when neither driver nor supervisor lived to end them
#     temporary files  lie in a folder of the trial's own (TMPDIR): torchrun never removes its own, and Open MPI does
#                      not start where it finds those of a killed mpirun of the same process number
#     shared memory    has names that its libraries chose; what is newer than the trial and unused is removed
#
# The last two are cleaned up on this host only.

MARK = "SCALING_STUDY_RESULTS"  # in the environment of every process of a sweep
LAUNCHES = "launches"  # folder below results, with a folder for each shared launch, whose processes carry its name
LONGEST_TEMPORARY, SHORT_PLACES = 30, ("/tmp", "/var/tmp")  # bytes
SHARED_MEMORY = Path("/dev/shm")  # Linux; elsewhere there is nothing to look at
SEGMENTS = ("sm_segment.", "vader_segment.", "nccl-", "torch_", "psm_", "psm2_shm.", "ucx_shm_posix_", "sem.mp-")
FIRST_IPC, FIRST_PID = "ipc:[4026531839]", "pid:[4026531836]"  # the kernel's own namespaces (linux/proc_ns.h)


def temporary_folder(results: Path) -> Path:
    """Make a folder for what one trial writes beside its results.

    Its path is short: processes that read data, and torch's shared memory, have sockets in it, whose paths have at most
    107 bytes. Where TMPDIR is longer they wait for each other until the time-out.
    """
    return Path(tempfile.mkdtemp(prefix=_prefix(results), dir=_temporary_places()[0]))


def _temporary_places() -> list[str]:
    """Folders for temporary files: the usual one, or a shorter one where there is one."""
    usual = tempfile.gettempdir()
    short = [place for place in SHORT_PLACES if os.access(place, os.W_OK | os.X_OK)]
    return [usual] if len(os.fsencode(usual)) <= LONGEST_TEMPORARY else [*short, usual]


def environment(results: Path, temporary: Path) -> dict[str, str]:
    """The variables that mark a trial's processes and send their temporary files where they can be removed."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user number without a name, as in containers
        user = str(os.getuid())
    own = "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
    kernels = os.path.join(tempfile.gettempdir(), own)  # where torch keeps them without a TMPDIR:
    home = os.path.expanduser("~")  # Horovod and Open MPI write there; some services' accounts have none
    return {  # what one trial has compiled, the next reuses
        MARK: str(results.resolve()),
        "TMPDIR": str(temporary),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", kernels),
        **({} if os.path.isdir(home) else {"HOME": str(temporary)}),
    }


def clean(results: Path) -> list[str]:
    """End the processes and remove the temporary files that earlier sweeps into this folder left; names of the former.

    Only for the holder of the folder's lock: no other sweep can own them then.
    """
    ended = end_marked(str(results.resolve()))
    for marked in (results, *results.glob(f"{LAUNCHES}/*/*")):
        for place in _temporary_places():
            for folder in Path(place).glob(f"{_prefix(marked)}*"):
                shutil.rmtree(folder, ignore_errors=True)
    return ended


def end_marked(mark: str) -> list[str]:
    """End every process with this mark on this host, but for this one and its ancestors; their names."""
    ended = []
    while processes := list(_marked(mark)):  # a process may have forked meanwhile
        for process in processes:
            with contextlib.suppress(psutil.Error):
                ended.append(f"{process.name()} (process {process.pid})")
                process.kill()
        psutil.wait_procs(processes, timeout=3.0)
    return ended


def is_marked(pid: int, results: Path) -> bool:
    """True of a process here that carries the mark of this very folder, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        return bool(psutil.Process(pid).environ().get(MARK) == str(results.resolve()))
    return False


def remove_segments(since: float) -> None:
    """Remove this user's shared memory that libraries made after `since` (Unix time) and no process uses."""
    with contextlib.suppress(OSError):
        segments = [
            entry
            for entry in os.scandir(SHARED_MEMORY)
            if entry.name.startswith(SEGMENTS) and entry.stat().st_uid == os.getuid() and entry.stat().st_ctime >= since
        ]
        if segments and not _others_are_hidden():
            used = set(_mapped())
            for entry in segments:
                if entry.path not in used and (entry.stat().st_dev, entry.inode()) not in used:
                    Path(entry.path).unlink(missing_ok=True)


def _marked(results: str) -> Iterator[psutil.Process]:
    """Processes of earlier sweeps into this folder: those that carry its mark, or that of a launch in it which several
    configurations shared; less this one and its ancestors."""
    mine = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = "" if process.pid in mine else process.environ().get(MARK, "")
            ours = mark == results or mark.startswith(f"{results}/{LAUNCHES}/")
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _others_are_hidden() -> bool:
    """True in a container with the memory, but not with the processes, of its host: `docker run --ipc=host`.
    Other ways to share memory with hidden processes cannot be detected."""
    ours = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("ipc", "pid")]
    return ours[0] == FIRST_IPC and ours[1] != FIRST_PID


def _mapped() -> Iterator[str | tuple[int, int]]:
    """Path, and (device, inode), of every file under /dev/shm that a process of ours has mapped.

    The path is not enough: a semaphore is made under another name, which stays in the maps of the process that made it
    ("/dev/shm/sem.qzr2yt (deleted)"), and other namespaces may have the same memory elsewhere.
    """
    device = os.stat(SHARED_MEMORY).st_dev
    on_it = f" {os.major(device):02x}:{os.minor(device):02x} "  # 7f5e-7f5f rw-s 00000000 00:1b 33927    /dev/shm/...
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            for line in maps.read_text(errors="replace").split("\n"):
                if on_it in line:
                    yield device, int(line.split(on_it)[1].split()[0])
                if f" {SHARED_MEMORY}/" in line:
                    yield line[line.index(f"{SHARED_MEMORY}/") :]


def _prefix(results: Path) -> str:
    return f"scaling-study-{hashlib.sha256(os.fsencode(results.resolve())).hexdigest()[:10]}-"


def clock() -> float:
    """Now, as the kernel stamps files: a tick behind the clock that Python reads."""
    return time.time() - 0.01


# --- files that a user's command writes, which another one may write too

EVERY_SECONDS = 0.5  # between two looks at the files that are open
MOST_FILES = 20_000  # of the folder in which commands start, whose times are compared
NOBODYS = re.compile(r"/\.|/__pycache__/|^/dev/|^/proc/")  # caches, locks, devices


@contextlib.contextmanager
def files_written(ours: Path) -> Iterator[set[str]]:
    """Watch which files outside the folder `ours` the processes below this one write; the set is whole at the end.

    Those that are open for writing are looked at now and then, and those of the current folder that are newer at the
    end.
    """
    found, ended, began = set[str](), threading.Event(), clock()

    def watch() -> None:
        while not ended.wait(EVERY_SECONDS):
            found.update(_open_for_writing())

    watching = threading.Thread(target=watch, name="files", daemon=True)
    watching.start()
    try:
        yield found
    finally:
        ended.set()
        watching.join()
        own = f"{ours.resolve()}{os.sep}"
        found.update(_newer(Path.cwd(), began))
        found -= {name for name in found if name.startswith(own) or NOBODYS.search(name)}


def _open_for_writing() -> Iterator[str]:
    with contextlib.suppress(psutil.Error):
        for each in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                yield from (file.path for file in each.open_files() if file.mode != "r")


def _newer(folder: Path, since: float) -> Iterator[str]:
    """Files below `folder` that are newer, of the first MOST_FILES; none in hidden folders."""
    left = MOST_FILES
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names[:left]:
            with contextlib.suppress(OSError):
                if os.stat(os.path.join(place, name)).st_mtime >= since:
                    yield os.path.join(place, name)
        left -= len(names)
        if left <= 0:
            return
