"""Files are told apart byte for byte, and read no further than that needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling_study.workloads import held_out


def test_files_are_alike_where_all_their_bytes_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = b"e" * held_out.END
    contents = [b"a", b"b", b"a", b"", b"longer", b"x" + end, b"y" + end, b"x" + end, b"z" + end[:-1] + b"f"]
    files = [tmp_path / str(number) for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    whole, read_whole = held_out._whole, []
    monkeypatch.setattr(held_out, "_whole", lambda file: read_whole.append(file.name) or whole(file))
    numbers = held_out.file_digests(files).tolist()
    assert [numbers.index(number) for number in numbers] == [contents.index(content) for content in contents]
    assert read_whole == ["0", "2", "5", "6", "7"], "only those of one size and one end"
