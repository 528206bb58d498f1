"""What others wrote is shown: whole where it can be, printable always, and never long."""

from __future__ import annotations

import ast
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from scaling_study.errors import MOST_CHARACTERS, MOST_PROBLEMS, MOST_SHOWN, HostError, StudyError, printable, quoted
from scaling_study.settings import CHECKOUT


def test_what_cannot_be_printed_is_written_out():
    assert printable("é ≈ 漢 \x1b[2J a\nb\u202e") == r"é ≈ 漢 \x1b[2J a\nb\u202e"


@given(st.text())
def test_any_text_becomes_printable_and_printable_text_stays(text):
    made = printable(text)
    assert made.isprintable() and printable(made) == made
    assert made == text or not text.isprintable()
    kept = printable(text, but="\n\t")
    assert kept.count("\n") == text.count("\n") and kept.replace("\n", "").replace("\t", "").isprintable()


@given(st.text() | st.text(min_size=100, max_size=300) | st.integers() | st.floats() | st.binary() | st.dates())
def test_any_value_is_quoted_short_and_printable(value):
    made = quoted(value)
    assert len(made) <= MOST_SHOWN + 20 and made.isprintable()
    if isinstance(value, str) and len(repr(value)) <= MOST_SHOWN:
        assert ast.literal_eval(made) == value


def test_a_refusal_can_be_read_however_much_is_wrong():
    wrong = StudyError([f"a.yaml:{n}: \x1b[2J{'x' * 5000}" for n in range(1000)], more=23)
    assert len(wrong.problems) == MOST_PROBLEMS + 1 and wrong.problems[-1] == "... and 923 more problems"
    assert all(len(line) <= MOST_CHARACTERS and line.isprintable() for line in wrong.problems)
    assert StudyError(["one"]).problems == ["one"] and str(StudyError(["one", "two"])) == "one\ntwo"
    assert str(HostError("a\x1b[2J\nb")) == r"a\x1b[2J\nb"


def test_what_a_terminal_has_no_sign_for_ends_nothing():
    code = "from scaling_study.errors import *; shown_in_any_locale(); print('a ★')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False,
                          env={"PATH": "", "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(CHECKOUT)})  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"a ?\n")
