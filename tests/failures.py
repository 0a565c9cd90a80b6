"""How a test says which error it wants: all of its text, and where its caret stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilecat.errors import TileError


def fails(
    call: Callable[[], Any], kind: type[TileError], message: str, *, at: str, hint: str = ""
) -> TileError:
    """Calls, and compares the error.

    Args:
        call: what must fail.
        kind: the error's class.
        message: all of it, without the kind.
        at: text that the error's line has where the caret points.
        hint: all of it; empty: there is none.
    """
    with pytest.raises(TileError) as caught:
        call()
    error = caught.value
    assert type(error) is kind, error
    assert error.message == message
    assert (error.hint or "") == hint
    assert error.loc is not None, "an error has a place"
    line = error.loc.text
    col = max(error.loc.col, len(line) - len(line.lstrip()))  # a whole line has column 0
    assert line.encode()[col:].decode().startswith(at), (line, error.loc.col)
    lines = str(error).splitlines()
    assert lines[0].startswith(f"{kind.__name__.removesuffix('Error')}: ")
    caret = next(text for text in lines if text.rstrip().endswith("^") and text.startswith("   | "))
    shown = lines[lines.index(caret) - 1]
    assert shown[caret.index("^") :].startswith(at), str(error)
    assert Path(error.loc.file).is_file()
    return error
