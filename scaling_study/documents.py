"""YAML -> plain values, with the line on which each stands, and nothing that a hostile file could abuse.

Only the safe tags are built; duplicate keys are refused (YAML would silently keep the last); size, depth and
the number of values after aliases are bounded, so a bomb of nested aliases is an error and not a full memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scaling_study.errors import Problems

MAX_BYTES, MAX_DEPTH, MAX_VALUES = 1_000_000, 20, 100_000
MAPPING, SEQUENCE = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"
NOTHING = object()
Place = tuple[str | int, ...]  # ("sweeps", 1, "matrix", "workers")


@dataclass(frozen=True)
class Document:
    """A file's value, and where each part of it stands."""

    path: Path
    text: str
    value: Any
    lines: dict[Place, int]

    def at(self, place: Place) -> str:
        """`sweeps.yaml:14` for a place, or for the nearest thing around it that the file does contain."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.path}:{self.lines.get(place, 1)}"


def read(path: Path) -> Document:
    """Read a YAML file. Raises Problems with one clear line."""
    try:
        with path.open("rb") as stream:  # at most so much, whatever the path leads to
            data = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise Problems([f"{path}: larger than {MAX_BYTES:,} bytes; a study file is a page or two"])
        text = data.decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError as error:
        raise Problems([f"{path}: no such file"]) from error
    except OSError as error:
        raise Problems([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise Problems([f"{path}: not UTF-8 text (byte {error.start})"]) from error
    except RecursionError as error:
        raise Problems([f"{path}: nested too deeply"]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Problems([f"{path}:{line}: not YAML: {chr(error.character)!r} may not stand in a text"]) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Problems([f"{path}:{line}: not YAML: {error.problem or error.context}"]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise Problems([f"{path}: not YAML: {error}"]) from error
    if node is None:
        raise Problems([f"{path}: empty; a study needs at least `study:` and `sweeps:`"])
    builder = _Builder(path)
    value = builder.build(node, ())
    if builder.problems:
        raise Problems(builder.problems)
    return Document(path, text, value, builder.lines)


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
        self._values += 1
        if len(place) > MAX_DEPTH or self._values > MAX_VALUES:
            what = "nested too deeply" if len(place) > MAX_DEPTH else f"more than {MAX_VALUES:,} values (aliases count)"
            raise Problems([f"{self.path}:{line}: {what}"])
        if not isinstance(node, yaml.ScalarNode) and node.tag not in (MAPPING, SEQUENCE):
            self.problems.append(f"{self.path}:{line}: tag {node.tag} is not allowed here")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*place, index)) for index, item in enumerate(node.value)]
        try:
            value = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError):  # the tags' own checks are few
            value = NOTHING
        if value is NOTHING or (isinstance(value, int) and value.bit_length() > 64):
            self.problems.append(f"{self.path}:{line}: {_short(node.value)!r} cannot be read as {_short(node.tag)}")
            return None
        return value

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"{self.path}:{line}: a key must be a plain word")
            elif key in result:
                first = self.lines[(*place, key)]
                self.problems.append(f"{self.path}:{line}: {key!r} is given twice (first on line {first})")
            else:
                self.lines[(*place, key)] = line
                result[key] = self.build(value_node, (*place, key))
        return result


def _short(word: str) -> str:
    return word if len(word) <= 60 else word[:57] + "..."
