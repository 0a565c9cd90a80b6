"""Functions of scores on their way through torch's operators, which take tensors and strings.

`score_mod` and `mask_mod` become a name, `"alibi(tensor 0); near(512)"`, and the tensors that their
arguments are. The names are kept for good: graphs of torch.compile hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..captured import remembered
from ..errors import LayoutError
from .library import torch

Mod = tuple[Any, ...] | None  # (function, argument, ...)

_functions: dict[str, Callable[..., Any]] = {}
_names: dict[Callable[..., Any], str] = {}
_mods: dict[str, tuple[Mod, Mod]] = {}  # ("tensor", n) stands for the nth


def name_of(score_mod: Any, mask_mod: Any) -> tuple[str, list[Any]]:
    """A name for `restore`, and the tensors among the arguments of both functions.

    Args:
        score_mod, mask_mod: as `tilecat.attention` takes them.

    Raises:
        LayoutError: not a function, or an argument that is neither a tensor nor a number.
    """
    if score_mod is None and mask_mod is None:
        return "", []
    tensors: list[Any] = []
    given = []
    for option, mod in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        items = mod if isinstance(mod, tuple) and mod else (mod,)
        if mod is not None and not callable(items[0]):
            raise LayoutError(
                f"attention: {option} is a function, or a tuple of one and its arguments, got "
                f"{mod!r}", hint=f"{option}=(tc.score_mods.alibi, slopes)",
            )  # fmt: skip
        given.append(None if mod is None else _taken(option, items, tensors))
    return _register(given[0], given[1]), tensors


def _taken(option: str, items: tuple[Any, ...], tensors: list[Any]) -> tuple[Any, ...]:
    """The items, with places instead of tensors, which are appended."""
    found: list[Any] = [items[0]]
    for x in items[1:]:
        if isinstance(x, torch.Tensor):
            found.append(("tensor", len(tensors)))
            tensors.append(x)
        elif isinstance(x, int | float):
            found.append(x)
        else:
            raise LayoutError(
                f"attention: arguments of {option} are tensors and numbers, got {type(x).__name__}"
            )
    return tuple(found)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _register(score_mod: Mod, mask_mod: Mod) -> str:
    """The name of two functions and their arguments, known from now on."""
    mods = [mod and (remembered(mod[0]), *mod[1:]) for mod in (score_mod, mask_mod)]
    name = "; ".join("-" if mod is None else _shown(mod) for mod in mods)
    _mods.setdefault(name, (mods[0], mods[1]))
    return name


def _shown(mod: tuple[Any, ...]) -> str:
    arguments = [f"tensor {x[1]}" if isinstance(x, tuple) else repr(x) for x in mod[1:]]
    return f"{_function_name(mod[0])}({', '.join(arguments)})"


def _function_name(function: Callable[..., Any]) -> str:
    """Its own name; with a number where another function has that."""
    if function not in _names:
        plain = getattr(function, "__name__", type(function).__name__)
        name, count = plain, 1
        while name in _functions:
            count += 1
            name = f"{plain} {count}"
        _functions[name], _names[function] = function, name
    return _names[function]


def restore(name: str, tensors: list[Any]) -> tuple[Mod, Mod]:
    """The functions of a name with their arguments, as `tilecat.attention` takes them.

    Raises:
        LayoutError: no such name in this process.
    """
    if not name:
        return None, None
    if name not in _mods:
        raise LayoutError(
            f"attention: functions are known to the process that named them, got {name!r}",
            hint="call tilecat.torch.attention with them once, or compile here",
        )
    score_mod, mask_mod = (mod and _placed(mod, tensors) for mod in _mods[name])
    return score_mod, mask_mod


def _placed(mod: tuple[Any, ...], tensors: list[Any]) -> tuple[Any, ...]:
    return tuple(tensors[x[1]] if isinstance(x, tuple) else x for x in mod)
