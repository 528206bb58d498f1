"""The house stands as docs/internals/architecture.md says: imports, the look of a script, what things are called.

Read from the source itself, and where only running shows it, from a fresh interpreter.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaling_study.frameworks import FRAMEWORKS
from scaling_study.models import OURS
from scaling_study.settings import CHECKOUT

# The rooms of the library: a folder, or modules at the root. A room imports only from the rooms above its own.
ROOMS = {
    "stats": {"stats"},
    "shared": {
        "control_groups",
        "datasets",
        "errors",
        "frameworks",
        "machine",
        "models",
        "settings",
        "targets",
        "trial",
        "variables",
    },
    "observer": {"observe"},  # runs in other environments, without the rest of the library
    "processes": {"processes"},
    "hosts": {"hosts"},
    "study": {"study"},
    "records": {"records"},
    "launch": {"launch"},
    "sweep": {"estimate", "sweep"},
    "slurm": {"slurm"},
    "commands": {"cli", "commands"},
}
# The same for the analysis, with its front doors last.
ANALYSIS_ROOMS = {
    "files and text": {"execution", "text"},
    "records to frames": {"frames"},
    "statistics": {"statistics"},
    "prediction": {"prediction"},
    "how things are shown": {"show"},
    "reasons to doubt": {"findings"},
    "questions": {"views", "published"},
    "report": {"report", "terminal"},
    "other results, other tools": {"compare", "export"},
    "commands": {"outputs", "commands", "__main__"},
}
# The rooms with torch, which run inside a trial's ranks. Of the above they see what is described, never the driver.
TORCH_ROOMS = {
    "ranks": {"ranks"},
    "workloads": {"workloads"},
    "measure": {"measure"},
    "models in parts": {"parity", "stages"},
    "training to a result": {"train"},
    "evaluation by hand": {"evaluate"},
    "maps of a model": {"maps"},
    "worker": {"worker"},
}
DESCRIPTIONS = {"stats", *ROOMS["shared"], *ROOMS["observer"], "study", "records"}
# Driver modules that a rank never loads, in rooms that it does.
DRIVER_ONLY = {"scaling_study.study.plan", "scaling_study.study.combinations", "scaling_study.records.results"}

# What plans: no clock, no process, no network. Folders whole, and single modules of the others.
PURE = {
    "scaling_study/stats/",
    "scaling_study/study/",
    "scaling_study/hosts/hosts.py",
    "scaling_study/records/manifest.py",
    "scaling_study/records/outcome.py",
    *(f"scaling_study/launch/{name}.py" for name in ("decisions", "launchers", "repeats")),
    *(f"scaling_study/{name}.py" for name in ("errors", "estimate", "frameworks", "models", "trial")),
}
STARTS_PROCESSES = {
    "processes/process": "every trial",
    "launch/supervisor": "and the process that runs them for a driver",
    "datasets": "prepares the data, so that the driver never imports torch",
    "settings": "asks git for the commit",
    "machine": "asks Slurm whether a job still runs",
    "cli": "what loads torch, which the driver never imports",
    "commands/doctor": "asks torch and Horovod, which the driver never imports",
    "hosts/connections": "ssh to another host",
    "hosts/on_each_host": "a launcher",
    "slurm/jobs": "asks Slurm",
    "workloads/surgical_scenes/__init__": "draws scenes, once, before anything is timed",
}
FRAMEWORKS_OF_OTHERS = {"horovod", "mpi4py", "fairscale", "deepspeed", "lightning", "hivemind"}
OPTIONAL = FRAMEWORKS_OF_OTHERS | {"transformers", "tokenizers", "timm", "nvidia", "pytorch_grad_cam"}
TORCH = {"torch", "torchvision"}
ADAPTERS = {  # where what several scripts of one library share stands -> the only library that it may import
    "scaling_study/worker/with_hivemind.py": "hivemind",
    "scaling_study/worker/with_lightning.py": "lightning",
    "scaling_study/worker/with_horovod.py": "horovod",
    "scaling_study/worker/with_mpi.py": "mpi4py",
}
READS_BY = {  # what few users have, loaded inside a function: the library, or the module
    "scaling_study/workloads/dali_input.py": "nvidia",
    "scaling_study/maps/scored.py": "pytorch_grad_cam",
}
FORKS_TRIALS = "scaling_study/worker/in_turn.py"  # inside the ranks of one launch, which processes/process watches

SCRIPT_FOLDERS = sorted({Path(framework.script).parts[0] for framework in FRAMEWORKS.values()})
SOURCES = {  # "scaling_study/measure/clock.py" -> its tree
    str(path.relative_to(CHECKOUT)): ast.parse(path.read_text(encoding="utf-8"))
    for folder in ("scaling_study", "analysis", "environment", "benchmarks", "tests", *SCRIPT_FOLDERS)
    for path in sorted((CHECKOUT / folder).rglob("*.py"))
} | {"run_sweep.py": ast.parse((CHECKOUT / "run_sweep.py").read_text(encoding="utf-8"))}
SCRIPTS = sorted(n for n in SOURCES if n.split("/")[0] in SCRIPT_FOLDERS and not n.endswith("__init__.py"))


@functools.cache
def imports(name: str) -> frozenset[str]:
    """Every module that a source imports, anywhere in it, as dotted names; `from a import b` gives a and a.b."""
    found: set[str] = set()
    for node in ast.walk(SOURCES[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: imports are written in full"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


@functools.cache
def packages(name: str) -> frozenset[str]:
    return frozenset(module.split(".")[0] for module in imports(name))


def dotted(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def library_parts(name: str) -> set[str]:
    """Which modules of the library a source imports, by their first word: `measure` for scaling_study.measure.clock."""
    parts = {module.split(".")[1] for module in imports(name) if module.startswith("scaling_study.")}
    return parts & {path.stem for path in (CHECKOUT / "scaling_study").iterdir()}


def library() -> Iterator[tuple[str, str]]:
    """(the part's first word, source) of every module of the library."""
    for name in SOURCES:
        if name.startswith("scaling_study/") and name != "scaling_study/__init__.py":
            yield name.split("/")[1].removesuffix(".py"), name


# --- who imports whom ---


def test_every_module_of_the_library_is_in_a_room() -> None:
    placed = [part for room in [*ROOMS.values(), *TORCH_ROOMS.values()] for part in room]
    assert sorted(placed) == sorted({part for part, _ in library()}), "a new folder or module is given its room here"


@pytest.mark.parametrize("rooms", [ROOMS, TORCH_ROOMS], ids=["without torch", "with torch"])
def test_a_room_imports_only_from_the_rooms_above_its_own(rooms: dict[str, set[str]]) -> None:
    above = set(DESCRIPTIONS) if rooms is TORCH_ROOMS else set()
    for room in rooms.values():
        above |= room
        for part, name in library():
            if part in room and name != "scaling_study/parity/__main__.py":  # a front door, like cli
                assert library_parts(name) <= above, f"{name} imports from below"
                assert rooms is ROOMS or not imports(name) & DRIVER_ONLY, f"{name} loads the driver into a rank"


def test_a_room_of_the_analysis_imports_only_from_the_rooms_above_its_own() -> None:
    part_of = {name: name.split("/")[1].removesuffix(".py") for name in SOURCES if name.startswith("analysis/")}
    assert set(part_of.values()) == set().union(*ANALYSIS_ROOMS.values()) | {"__init__"}, "a new folder gets its room"
    above: set[str] = set()
    for room in ANALYSIS_ROOMS.values():
        above |= room
        for name in (name for name, part in part_of.items() if part in room):
            seen = {module.split(".")[1] for module in imports(name) if module.startswith("analysis.")}
            assert seen & set(part_of.values()) <= above, f"{name} imports from below: {sorted(seen - above)}"


@pytest.mark.parametrize("package", ["scaling_study", "analysis"])
def test_imports_go_nowhere_in_circles(package: str) -> None:
    module_of = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in SOURCES}
    graph = {
        module: {other for other in imports(name) & set(module_of) if not f"{module}.".startswith(f"{other}.")}
        for module, name in module_of.items()
        if module.startswith(f"{package}.")
    }
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_torch_is_imported_only_where_it_is_marked() -> None:
    with_torch = set().union(*TORCH_ROOMS.values())
    for part, name in library():
        marked = "[torch]" in (ast.get_docstring(SOURCES[name]) or "").split("\n")[0]
        if packages(name) & TORCH:
            assert part in with_torch and marked, f"{name} imports torch and does not say so"
        assert not marked or part in with_torch, f"{name} is marked [torch] and has no business with it"


def test_optional_frameworks_are_imported_only_by_their_own_scripts() -> None:
    for name in SOURCES:
        if name in SCRIPTS:
            own = next(framework for framework in FRAMEWORKS.values() if framework.script == name)
            needs = {*own.needs, *(name for some in own.launcher_needs.values() for name in some)}
            allowed = {library.replace("-", "_") for library in needs}
            adapted = {library for adapter, library in ADAPTERS.items() if dotted(adapter) in imports(name)}
            assert packages(name) & (OPTIONAL | TORCH) | adapted <= allowed, f"{name} needs what it does not list"
        elif name in ADAPTERS:
            assert packages(name) & OPTIONAL == {ADAPTERS[name]}, f"{name} adapts one library"
        elif name in READS_BY:
            assert packages(name) & OPTIONAL == {READS_BY[name]}, f"{name} reads by one library"
        elif name.startswith("scaling_study/workloads/"):
            needed = {library for model in OURS.values() for library in model.needs}
            assert packages(name) & OPTIONAL <= needed, f"{name} needs what no model lists"
            top = {node.module or "" for node in SOURCES[name].body if isinstance(node, ast.ImportFrom)}
            assert not {module.split(".")[0] for module in top} & OPTIONAL, f"{name} makes everybody pay for it"
        elif not name.startswith(("tests/", "benchmarks/")):
            assert not packages(name) & OPTIONAL, f"{name} imports an optional framework"


def test_what_imports_an_optional_library_is_loaded_by_scripts_or_inside_a_function() -> None:
    def at_once(name: str) -> set[str]:
        return {(node.module or "").split(".")[0] for node in SOURCES[name].body if isinstance(node, ast.ImportFrom)}

    eager = {dotted(name) for name, library in READS_BY.items() if library in at_once(name)}
    for name in (name for name in SOURCES if not name.startswith("tests/")):
        top = [node for node in SOURCES[name].body if isinstance(node, ast.ImportFrom)]
        loaded = {f"{node.module}.{alias.name}" for node in top for alias in node.names}
        assert not loaded & eager, name
        assert name in {*SCRIPTS, *ADAPTERS} or not imports(name) & set(map(dotted, ADAPTERS)), name


def test_frameworks_are_imported_at_the_top_of_a_script() -> None:
    for name in SCRIPTS:
        own = next(framework for framework in FRAMEWORKS.values() if framework.script == name)
        if not own.trains:  # which library it measures is known only once it runs
            continue
        top = {node for node in SOURCES[name].body if isinstance(node, ast.Import | ast.ImportFrom)}
        all_of_them = {node for node in ast.walk(SOURCES[name]) if isinstance(node, ast.Import | ast.ImportFrom)}
        assert top == all_of_them, f"{name} imports inside a function"


def test_the_observer_needs_nothing_but_python_3_9() -> None:
    for part, name in library():
        if part == "observe":
            assert library_parts(name) <= {"observe"} and packages(name) <= sys.stdlib_module_names | {"scaling_study"}
            ast.parse((CHECKOUT / name).read_text(encoding="utf-8"), feature_version=(3, 9))


def test_scripts_see_only_what_scripts_are_made_of() -> None:
    for name in SCRIPTS:
        stages = {"stages"} if name.startswith(("pipeline/", "tensor/")) else set()
        seen = {"measure", "ranks", "train", "trial", "worker", "workloads"}
        assert library_parts(name) <= seen | stages, name
        assert not packages(name) & {"analysis", "benchmarks", "environment"}, name


def test_nothing_imports_a_script() -> None:
    for name in SOURCES:
        assert not packages(name) & set(SCRIPT_FOLDERS), f"{name} imports from a folder of scripts"


def test_analysis_reads_records_and_starts_nothing() -> None:
    ours = [name for name in SOURCES if name.startswith("analysis/")]
    for name in ours:
        door = {"cli"} if name == "analysis/__main__.py" else set()
        assert library_parts(name) <= {"stats", "study", "records", *ROOMS["shared"], *door}, name
        assert not imports(name) & DRIVER_ONLY, name
        assert not packages(name) & (TORCH | {"subprocess", "multiprocessing", "concurrent", "psutil", "pynvml"}), name


def test_only_the_front_door_knows_the_analysis() -> None:
    assert [name for _, name in library() if "analysis" in packages(name)] == ["scaling_study/commands/options.py"]


def test_the_library_knows_neither_tests_nor_benchmarks_nor_the_setting_up() -> None:
    for name in SOURCES:
        if not name.startswith(("tests/", "benchmarks/", "environment/")):
            assert not packages(name) & {"tests", "benchmarks", "environment", "pytest", "hypothesis"}, name


def test_processes_are_started_in_one_place() -> None:
    sends = {"multiprocessing.connection", "multiprocessing.connection.Connection", "multiprocessing.connection.wait"}
    starting = {"subprocess", "multiprocessing", "pty"}
    starters = {name for _, name in library() if {module.split(".")[0] for module in imports(name) - sends} & starting}
    assert starters == {f"scaling_study/{part}.py" for part in STARTS_PROCESSES}
    for _, name in library():
        for node in ast.walk(SOURCES[name]):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                started = re.fullmatch(r"system|popen|fork|forkpty|(exec|spawn|posix_spawn)\w*", node.attr)
                assert not started or (name, node.attr) == (FORKS_TRIALS, "fork"), name


def test_planning_looks_at_no_clock_process_or_network() -> None:
    impure = {"subprocess", "multiprocessing", "threading", "time", "datetime", "socket", "psutil", "signal", "secrets"}
    for _, name in library():
        if name in PURE or f"{Path(name).parent}/" in PURE:
            assert not packages(name) & impure, name


# --- what only running shows ---


FRONT_DOORS = {"analysis": ["-m", "analysis", "--help"], "help": ["run_sweep.py", "--help"],
               "dry run": ["run_sweep.py", "sweeps.yaml", "--dry-run"]}  # fmt: skip


def in_a_fresh_interpreter(**request: Any) -> Any:
    """What tests/forked_commands.py answers."""
    program = [sys.executable, str(CHECKOUT / "tests" / "forked_commands.py"), json.dumps(request)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(program, cwd=CHECKOUT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def laptop() -> Any:
    """All but training imported as where torch is not installed; from there the front doors as where it is."""
    without_torch = set().union(*ROOMS.values())
    modules = [name for name in SOURCES if name.startswith("analysis/") and not name.endswith("__main__.py")]
    modules += [name for part, name in library() if part in without_torch]
    return in_a_fresh_interpreter(
        modules=[dotted(name) for name in modules],
        absent=sorted(TORCH | OPTIONAL | {"pynvml", "filelock"}),
        commands=list(FRONT_DOORS.values()),
    )


@pytest.mark.slow
def test_everything_but_training_imports_on_a_laptop_without_torch(laptop: Any) -> None:
    assert not {module.split(".")[0] for module in laptop["asked"]} & (TORCH | OPTIONAL), "not even where it is caught"


@pytest.mark.slow
@pytest.mark.parametrize("door", FRONT_DOORS)
def test_the_front_doors_start_without_torch(laptop: Any, door: str) -> None:
    done = laptop["commands"][list(FRONT_DOORS).index(door)]
    assert done["code"] == 0 and done["stdout"], done["stderr"][-2000:]
    assert "scaling_study" in done["loaded"] and not set(done["loaded"]) & (TORCH | OPTIONAL)


# --- what a script looks like ---


def test_every_script_is_in_the_table_and_its_folder_says_what_it_is() -> None:
    assert sorted(SCRIPTS) == sorted({framework.script for framework in FRAMEWORKS.values()})
    for folder in SCRIPT_FOLDERS:
        tree = SOURCES[f"{folder}/__init__.py"]
        assert ast.get_docstring(tree) and len(tree.body) == 1, "a one-line docstring and nothing else"


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_has_the_four_movements_in_order(script: str) -> None:
    source = (CHECKOUT / script).read_text(encoding="utf-8")
    functions = {node.name: node for node in SOURCES[script].body if isinstance(node, ast.FunctionDef)}
    places = [*map(functions.get, ("join", "build", "build")), SOURCES[script].body[-1]]
    movements = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and re.match(r"# \d ", token.string)
    ]
    starts = ["# 1 join", "# 2 build", "# 3 ", "# 4 measure"]
    for movement, start, place in zip(movements, starts, places, strict=True):
        assert movement.string.startswith(start), movement.string
        assert place and place.lineno <= movement.start[0] <= (place.end_lineno or 0), f"{start} is elsewhere"


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_ends_by_running_its_own_framework(script: str) -> None:
    own = next(name for name, framework in FRAMEWORKS.items() if framework.script == script)
    clock = "" if FRAMEWORKS[own].trains else ", measure=probe"
    ending = f"if __name__ == '__main__':\n    run('{own}', join, build{clock})"
    assert ast.unparse(SOURCES[script].body[-1]) == ending
    assert len((CHECKOUT / script).read_text(encoding="utf-8").splitlines()) <= 130, "one file shows one framework"


def test_no_script_or_folder_is_named_like_a_package_that_is_imported() -> None:
    """Python puts a script's folder first on the path, so that fsdp/fairscale.py would import itself."""
    ours = {"scaling_study", "analysis", "benchmarks", "environment", "tests"}
    third_party = set().union(*(packages(name) for name in SOURCES)) - ours | OPTIONAL | set(sys.stdlib_module_names)
    needed = {library.replace("-", "_") for framework in FRAMEWORKS.values() for library in framework.needs}
    for name in SCRIPTS:
        assert Path(name).stem not in third_party | needed | ours, name
    for folder in (path.name for path in CHECKOUT.iterdir() if path.is_dir() and (path / "__init__.py").exists()):
        assert folder not in third_party | needed, folder


# --- names and sizes ---


def test_modules_have_names_docstrings_and_at_most_700_lines() -> None:
    of_nothing = {"utils", "util", "common", "helpers", "helper", "misc", "lib", "tools"}
    for name, tree in SOURCES.items():
        assert not {part.removesuffix(".py") for part in Path(name).parts} & of_nothing, name
        if not name.startswith("tests/"):
            assert len((CHECKOUT / name).read_text(encoding="utf-8").splitlines()) <= 700, name
            assert not tree.body or ast.get_docstring(tree), f"{name} has no docstring"


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest would import the first in place of the second."""
    files = [Path(name).name for name in SOURCES if Path(name).name.startswith("test_")]
    assert sorted(files) == sorted(set(files))
