"""YAML -> plain values, with the line on which each stands, and nothing that a hostile file could abuse.

Only the tags of plain values are built; duplicate keys are refused (YAML would silently keep the last). Size, depth and
the number of values, with aliases followed, are bounded: a bomb of nested aliases is an error and not a full memory.
What a message quotes is short, as an alias may repeat a megabyte.
"""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from scaling_study.errors import StudyError, quoted, shortened
from scaling_study.study import command
from scaling_study.trial import RENAMED, Trial

# Read in about a second: PyYAML takes some 20 microseconds for each value and each key.
MAX_BYTES, MAX_DEPTH, MAX_VALUES = 1_000_000, 20, 50_000
MAX_DIGITS = 100  # of a number or date; in base 60, as YAML has it, a megabyte of them takes a minute
YAML = "tag:yaml.org,2002:"
MAPPING, SEQUENCE, MERGE = f"{YAML}map", f"{YAML}seq", f"{YAML}merge"
MEASURED = tuple(f"{YAML}{kind}" for kind in ("int", "float", "timestamp"))
PLAIN = (*MEASURED, *(f"{YAML}{kind}" for kind in ("null", "bool", "str")))
# YAML 1.1 reads these otherwise than a person means them.
OCTAL, BASE_60 = re.compile(r"[-+]?0[0-9_]+"), re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
NO_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")  # it wants a point and a sign: 1.0e-3
Place = tuple[str | int, ...]  # ("sweeps", 1, "matrix", "workers")


@dataclass(frozen=True)
class Document:
    """A file's value, and where each part of it stands."""

    path: Path
    text: str
    value: Any
    lines: dict[Place, int]
    names: Mapping[str, str] = field(default_factory=dict)  # of keys: the program's -> the file's (renamed)

    def at(self, place: Place) -> str:
        """`sweeps.yaml:14` for a place, or for the nearest thing around it that the file does contain."""
        return f"{self.path}:{self.line(place)}"

    def line(self, place: Place) -> int:
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)

    def worded(self, problem: str) -> str:
        """A message with the file's names of keys: `allreduce=fp16` -> `gradients=fp16`."""
        return NAMED.sub(lambda found: self.names.get(found[0], found[0]), problem)

    @property
    def older_names(self) -> str:
        """A note on the older names that the file has; empty where it has none."""
        older = [f"{name} (now {RENAMED[name]})" for name, there in self.names.items() if name == there]
        return f"{self.path.name} has older names of keys, which stay valid: {', '.join(older)}" if older else ""


def read(path: Path) -> Document:
    """Read a YAML file. Raises StudyError with one clear line."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe would be waited for, a device has no end
            raise StudyError([f"{path}: a pipe or device; a study is a file"])
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise StudyError([f"{path}: larger than {MAX_BYTES:,} bytes; a study file is a page or two"])
        text = data.decode()
        node = yaml.SafeLoader(text).get_single_node()
    except FileNotFoundError as error:
        raise StudyError([f"{path}: no such file{_beside(path)}"]) from error
    except OSError as error:
        raise StudyError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise StudyError([f"{path}: not UTF-8 text (byte {error.start})"]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise StudyError([f"{path}:{line}: not YAML: {chr(error.character)!r} is not allowed in text"]) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise StudyError([f"{path}:{line}: not YAML: {shortened(str(error.problem or error.context), 200)}"]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise StudyError([f"{path}: not YAML: {shortened(str(error), 200)}"]) from error
    except RecursionError as error:
        raise StudyError([f"{path}: nested too deeply"]) from error
    if node is None:
        raise StudyError([f"{path}: empty; a study needs at least `study:` and `sweeps:`"])
    builder = _Builder(path)
    value = builder.build(node, ())
    if builder.problems:
        raise StudyError(builder.problems)
    return Document(path, text, value, builder.lines)


def _beside(path: Path) -> str:
    """`; did you mean 'sweeps.yaml'?`, where a file with a name like this one lies beside it."""
    files = {each.stem: each for each in sorted(path.parent.glob("*.y*ml"))}
    near = difflib.get_close_matches(path.stem, files, n=1)
    return f"; did you mean {str(files[near[0]])!r}?" if near else ""


class _Builder:
    """Nodes -> values, depth first, noting lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: dict[Place, int] = {}
        self.problems: list[str] = []
        self._values = 0
        self._scalars = yaml.SafeLoader("")

    def build(self, node: yaml.Node, place: Place) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        self._count(len(place), line)
        if node.tag not in (PLAIN if isinstance(node, yaml.ScalarNode) else (MAPPING, SEQUENCE)):
            return self._note(line, f"tag {quoted(node.tag)} is not allowed here")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*place, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and (why := _misread(node)):
            return self._note(line, why)
        try:
            return self._scalar(node)
        except (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError):  # the tags' own checks are few
            return self._note(line, f"{quoted(node.value)} cannot be read as {node.tag}")

    def _note(self, line: int, problem: str) -> Any:
        """Add a problem; None is in place of the value."""
        self.problems.append(f"{self.path}:{line}: {problem}")

    def _count(self, depth: int, line: int) -> None:
        self._values += 1
        if depth > MAX_DEPTH:
            raise StudyError([f"{self.path}:{line}: nested too deeply"])
        if self._values > MAX_VALUES:
            raise StudyError([f"{self.path}:{line}: more than {MAX_VALUES:,} values (keys and aliases count)"])

    def _scalar(self, node: yaml.Node) -> Any:
        if node.tag in MEASURED and len(node.value) > MAX_DIGITS:
            raise ValueError
        value = self._scalars.construct_object(node)
        if isinstance(value, int) and value.bit_length() > 63:
            raise OverflowError
        return value

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            self._count(len(place), line)
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(line, "a key must be a plain word")
            elif key_node.tag == MERGE:
                self._note(line, "<<, YAML's merge of mappings, is not read: write the keys out")
            elif key in result:
                self._note(line, f"{quoted(key)} is given twice (first on line {self.lines[(*place, key)]})")
            else:
                self.lines[(*place, key)] = line
                result[key] = self.build(value_node, (*place, key))
        return result


def _misread(node: yaml.ScalarNode) -> str:
    """Why YAML reads a value that is not quoted otherwise than a person means it, and what to write; empty if not."""
    text = node.value
    if node.style is not None or len(text) > MAX_DIGITS:
        return ""
    if BASE_60.fullmatch(text):
        return f'YAML reads {text} in base 60: in quotes, "{text}", it is a time or text; else write the number'
    if OCTAL.fullmatch(text):
        plain = text.replace("_", "").lstrip("+-0") or "0"
        return f"YAML reads numbers that begin with 0, as {text}, in base 8: write {text[0].strip('0+')}{plain}"
    if NO_FLOAT.fullmatch(text) and node.tag == f"{YAML}str":
        digits, exponent = re.split("[eE]", text)
        digits += "" if "." in digits else ".0"
        exponent = exponent if exponent[0] in "+-" else f"+{exponent}"
        return f"YAML reads {text} as text: write {digits}e{exponent}, or '{text}' in quotes where it is text"
    return ""


# Names of keys (trial.RENAMED). A study file has either name of a key, the same throughout. Once it is read a key has
# the older one, on which ids, records and tables rest; what is said of it has the file's.

OF_TRIALS = {f.name: RENAMED[f.name] for f in fields(Trial) if f.name in RENAMED and f.name != "warm"}
OF_STUDIES = {"sentinel": RENAMED["sentinel"]}
OF_MEASURE = {name: now for name, now in RENAMED.items() if name not in OF_TRIALS | OF_STUDIES}
SECTIONS: Mapping[Place, Mapping[str, str]] = {  # mapping of a study -> the keys of it that have two names
    (): OF_STUDIES,
    ("measure",): OF_MEASURE,
    ("sweeps",): OF_TRIALS | OF_MEASURE,
    ("baseline",): OF_TRIALS,
    ("sentinel",): OF_TRIALS,
    ("sweeps", "matrix"): OF_TRIALS,
    ("sweeps", "exclude"): OF_TRIALS,
    ("sweeps", "include"): OF_TRIALS,
}
WITH_PLACEHOLDERS = {"command", "env", "expect"}
NAMED = re.compile(rf"(?<![\w.-])({'|'.join(RENAMED)})(?=[='}}])")  # a key in a message: allreduce=fp16, 'allreduce'


def renamed(study: Document) -> Document:
    """A study with the program's names of its keys, and of those in the placeholders of its commands.

    Raises StudyError, with both lines, for a key that the file has under both names.
    """
    found: dict[str, dict[str, int]] = {}  # the program's name -> the file's, each with its first line
    lines: dict[Place, int] = {}

    def read_again(value: Any, there: Place, here: Place) -> Any:
        if there in study.lines:
            lines[here] = study.lines[there]
        if isinstance(value, list):
            return [read_again(each, (*there, at), (*here, at)) for at, each in enumerate(value)]
        if isinstance(value, str) and WITH_PLACEHOLDERS & set(here):
            return command.in_program_names(value)
        if not isinstance(value, dict):
            return value
        section = tuple(part for part in here if isinstance(part, str))
        both = SECTIONS.get(section[1:] if section[:1] == ("small",) else section, {})
        ours = {now: name for name, now in both.items()}
        result = {}
        for key, each in value.items():
            own: str = ours.get(str(key), str(key))
            if own in both:
                found.setdefault(own, {}).setdefault(key, study.line((*there, key)))
            result[own] = read_again(each, (*there, key), (*here, own))
        return result

    value = read_again(study.value, (), ())
    twice: list[tuple[int, str]] = []
    for name, spellings in found.items():
        if len(spellings) > 1:
            (first, line), (other, later) = sorted(spellings.items(), key=lambda each: each[1])
            words = (
                f"{other!r} and {first!r} (line {line}) are two names of one key: write {RENAMED[name]} in both places"
            )
            twice.append((later, f"{study.path}:{later}: {words}"))
    if twice:
        raise StudyError([problem for _, problem in sorted(twice)])
    names = RENAMED | {name: next(iter(spellings)) for name, spellings in found.items()}
    return replace(study, value=value, lines=lines, names=names)
