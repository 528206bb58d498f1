"""Names in results that tell who measured where: found, listed, and replaced by words that tell nothing.

User names, host names, and values of environment variables. Each is replaced by the same word everywhere (user1, host2,
value3), so what was alike stays alike. Keys, ids and what a trial is asked for are never touched: ids are hashes of it.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import yaml

from scaling_study.records import store

HOME = re.compile(r"/(?:home|Users)/([^/\s:'\",;)\]}]+)")
LOGIN = re.compile(r"(?<![\w.-])([\w.-]+)@([\w.-]*\w)")  # alice@h1
NOBODY = {"", "root", "localhost", "127.0.0.1"}  # everybody's
TELLING = re.compile(r"(?=.*[A-Za-z])(?=.*[^A-Za-z_]).*", re.DOTALL)  # a value that is no plain word or number
HOST_KEYS, VARIABLES = ("host", "hosts"), "environment"
AS_THEY_ARE = {  # keys whose values are this program's own words
    *("id", "configuration", "configurations", "alone", "sentinel", "trial", "window", "status", "study", "launch"),
    *("schema", "commit", "versions", "libraries", "fingerprint", "baseline", "measure", "scaling", "parity"),
}


class CarriedNames:
    """The names in all files that `find` has looked into. `replaced` and `in_file` are for when it has seen all."""

    def __init__(self) -> None:
        self._hosts, self._users, self._own = set[str](), set[str](), set[str]()
        self._logins = set[tuple[str, str]]()  # (user, host), if that is a host
        self._variables = set[tuple[str, str]]()
        self._node = platform.node()
        self._here = _any_of({self._node, _me()} - NOBODY)

    @property
    def hosts(self) -> list[str]:
        return sorted(self._hosts - NOBODY)

    @property
    def users(self) -> list[str]:
        return sorted((self._users | {user for user, host in self._logins if host in self._hosts}) - NOBODY)

    @property
    def variables(self) -> list[tuple[str, str]]:
        """(name, value) of environment variables."""
        return sorted((name, value) for name, value in self._variables if value)

    def find(self, file: str, content: bytes) -> None:
        """Look into a file: JSON, YAML with its comments, or another text."""
        text = content.decode("utf-8", "surrogateescape")
        self._find(_parsed(file, text), "")
        if file.endswith(".yaml"):
            self._find(text, "")

    def _find(self, value: Any, key: str) -> None:
        if isinstance(value, dict):
            if key == VARIABLES:
                self._variables |= {(name, text) for name, text in value.items() if isinstance(text, str)}
            if key == "trial":
                self._own |= {word for word in value.values() if isinstance(word, str)}
            for name, inner in value.items():
                self._find(inner, str(name))
        elif isinstance(value, list):
            if not value or not isinstance(value[0], float):  # thousands of step times
                for inner in value:
                    self._find(inner, key)
        elif isinstance(value, str):
            if key in HOST_KEYS:
                self._hosts.add(value.partition(":")[0])
            self._users.update(HOME.findall(value))
            self._logins.update(LOGIN.findall(value))
            for word in self._here.findall(value):
                (self._hosts if word == self._node else self._users).add(word)

    @cached_property
    def _values(self) -> dict[str, str]:
        """Value of a variable -> the word in its place."""
        return _numbered("value", {value for _, value in self.variables})

    @cached_property
    def _host_words(self) -> dict[str, str]:
        return _numbered("host", self.hosts)

    @cached_property
    def _words(self) -> dict[str, str]:
        """Each name -> the word in its place, in running text. A value such as `none` or `fp16` is replaced there only
        behind the name of its variable: it may also be a word of ours."""
        words = {text: word for text, word in self._values.items() if TELLING.fullmatch(text)}
        words |= _numbered("user", self.users) | self._host_words
        words = {text: word for text, word in words.items() if text not in self._own}
        return words | {f"{name}={text}": f"{name}={self._values[text]}" for name, text in self.variables}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _any_of(self._words)

    def replaced(self, value: Any, key: str = "") -> Any:
        """A copy of a JSON value with the names replaced."""
        if isinstance(value, dict):
            if key == VARIABLES:
                return {name: self._values.get(text, text) for name, text in value.items()}
            return {k: inner if k in AS_THEY_ARE else self.replaced(inner, k) for k, inner in value.items()}
        if isinstance(value, list):
            return [self.replaced(inner, key) for inner in value]
        if not isinstance(value, str):
            return value
        host, colon, slots = value.partition(":")
        if key in HOST_KEYS and host in self._host_words:
            return f"{self._host_words[host]}{colon}{slots}"
        return self._in_text(value)

    def in_file(self, file: str, content: bytes) -> bytes:
        """A file without the names: JSON as we write it, another text as it is, anything else unchanged."""
        if not file.endswith((".json", ".yaml", ".txt")):
            return content
        text = content.decode("utf-8", "surrogateescape")
        value = _parsed(file, text) if file.endswith(".json") else None
        if isinstance(value, dict | list):
            return store.encoded(self.replaced(value))
        return self._in_text(text).encode("utf-8", "surrogateescape")

    def _in_text(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._words[found[0]], text)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """One of the names as a word of its own, the longest that is there."""
    longest = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest)) or '(?!)'})(?!\w)")


def _numbered(word: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{word}{number}" for number, name in enumerate(sorted(names), start=1)}


def _parsed(file: str, text: str) -> Any:
    """The value of a JSON or YAML file; its text where it is not whole."""
    try:
        return yaml.safe_load(text) if file.endswith(".yaml") else json.loads(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return text


def _me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return ""
