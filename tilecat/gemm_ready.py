"""Products of torch tensors seen before: by their layout, launches of the kernel made ready.

A product whose operands lie as those of an earlier one skips every check and choice. What then
differs is where they lie: of addresses seen before too the launch is at hand, of others the
parameters are copied and the addresses in them replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .captured import remembered
from .driver import Movable
from .gemm_call import Options
from .gemm_parts import Places
from .kernels.gemm import matmul as kernel
from .runtime.arrays import TENSORS, allocator, view

MAX_PRODUCTS = 4096  # layouts remembered
MAX_LAUNCHES = 4096  # by addresses
NUMBERS = (float, int)
TURNED, STRAIGHT = (1, 0, 2), (0, 1, 2)  # the kernel's arrays by those of the call

_products: dict[Any, Product] = {}
_seen: set[Any] = set()  # keys of products that ran once
_launches: dict[Any, Callable[[Any], None]] = {}  # by layout and addresses, where out was given


@dataclass(frozen=True)
class Launched:
    """What ran.

    Args:
        arrays: of the kernel.
        args: further ones.
        params: compile-time parameters.
        turned: whether A and B changed places.
        places: for partial sums; those of the call are the first of its further arguments.
    """

    arrays: tuple[Any, Any, Any]
    args: tuple[Any, ...]
    params: dict[str, Any]
    turned: bool
    places: Places


class Product:
    """What is known of products of one layout.

    Args:
        make: allocates the output.
        places: for partial sums, which each stream has elsewhere.

    Attributes:
        launches: by the addresses of A, B, the output and the places.
    """

    def __init__(self, make: Callable[[], Any], places: Places):
        self.make = make
        self.places = places
        self.launches: dict[tuple[int, ...], Callable[[Any], None]] = {}
        self._like: dict[tuple[int, ...], tuple[Movable, Sequence[int], Sequence[int]]] = {}

    def __call__(self, a: Any, b: Any, out: Any) -> Any:
        """Launches; the output, or None if these operands have to be looked at.

        Args:
            a, b: operands.
            out: None to allocate it.
        """
        if out is None:
            out = self.make()
        addresses: tuple[int, ...] = (a.data_ptr(), b.data_ptr(), out.data_ptr())
        if self.places.count:
            addresses += tuple(x.data_ptr() for x in self.places.arguments(a))
        launch = self.launches.get(addresses) or self._moved(addresses)
        if launch is None:
            return None
        launch(None)
        return out

    def learn(
        self, addresses: tuple[int, ...], movable: Movable, order: Sequence[int], rest: list[int]
    ) -> None:
        """Takes the kernel that ran for operands aligned as these are.

        Args:
            addresses: of A, B and the output, and of the places for partial sums.
            movable: its launches.
            order: which of them is each of its first arguments.
            rest: addresses of its further arguments.
        """
        self._like[_alignment(addresses)] = movable, order, rest

    def _moved(self, addresses: tuple[int, ...]) -> Callable[[Any], None] | None:
        found = self._like.get(_alignment(addresses))
        if found is None:
            return None
        movable, order, rest = found
        launch = movable([*(addresses[at] for at in order), *rest])
        if launch is not None:
            if len(self.launches) >= MAX_LAUNCHES:
                self.launches.clear()
            self.launches[addresses] = launch
        return launch


def again(
    a: Any, b: Any, out: Any, out_dtype: Any, alpha: Any, beta: Any, more: tuple[Any, ...] | None
) -> Any:
    """The output of a product, launched; None if it is not known.

    Of torch tensors on a GPU alone something is known.

    Args:
        a, b, out, out_dtype, alpha, beta: of the call.
        more: `tokens` of its further options.
    """
    options = _options(out_dtype, alpha, beta, more)
    if options is None or type(a) not in TENSORS or type(b) not in TENSORS:
        return None
    if out is None:
        key = (
            a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype,
            a.get_device(), b.get_device(), *options,
        )  # fmt: skip
        product = _products.get(key)
        return None if product is None else product(a, b, None)
    if type(out) not in TENSORS:
        return None
    key = (
        a.shape, b.shape, out.shape, a.stride(), b.stride(), out.stride(),
        a.dtype, b.dtype, out.dtype, a.get_device(), b.get_device(), out.get_device(),
        *options, a.data_ptr(), b.data_ptr(), out.data_ptr(),
    )  # fmt: skip
    launch = _launches.get(key)
    if launch is not None:
        launch(None)
        return out
    product = _products.get(key[:-3])
    if product is None or product(a, b, out) is None:
        return None
    if not product.places.count:
        if len(_launches) >= MAX_LAUNCHES:
            _launches.clear()
        _launches[key] = product.launches[key[-3:]]
    return out


def remember(
    given: tuple[Any, Any, Any], options: Options, more: tuple[Any, ...] | None, out: Any,
    launched: Launched,
) -> None:  # fmt: skip
    """Keeps what ran for the second time, if the arrays are the caller's and lie on a GPU.

    Args:
        given: a, b and out of the call.
        options: of the call.
        more: `tokens` of its scales, second operand and steps.
        out: what the caller gets.
        launched: what ran.
    """
    tensors = [x for x in given if x is not None]
    numbers = _options(options.out_dtype, options.alpha, options.beta, more)
    if numbers is None or not all(type(x) in TENSORS for x in tensors) or not out.is_cuda:
        return
    key = (*_layout(*tensors), *numbers)
    if key not in _products and key not in _seen:  # a seed may be another in each call
        if len(_seen) >= MAX_PRODUCTS:
            _seen.clear()
        _seen.add(key)
        return
    arrays, shared = launched.arrays, launched.args[: 2 * bool(launched.places.count)]
    order = (TURNED if launched.turned else STRAIGHT) + (3, 4)[: len(shared)]
    addresses = tuple(x.data_ptr() for x in (*given[:2], out, *shared))
    if [view(x).ptr for x in arrays] != [addresses[at] for at in order[:3]]:
        return  # copies, which another call makes anew
    further = launched.args[len(shared) :]
    rest = [view(x).ptr if hasattr(x, "shape") else 0 for x in further]
    if not {0, *_addresses(*options.scales, options.second, options.epilogue)}.issuperset(rest):
        return
    movable = kernel.movable(*arrays, *launched.args, **launched.params)
    if movable is None:
        return
    if key not in _products and len(_products) >= MAX_PRODUCTS:
        _products.clear()
    like = view(out)
    make = allocator(out, tuple(like.shape), like.dtype)
    product = _products.setdefault(key, Product(make, launched.places))
    product.learn(addresses, movable, order, rest)


def _layout(*tensors: Any) -> tuple[Any, ...]:
    """How tensors lie, wherever they are: in the order in which `again` writes it out."""
    shapes, strides = [x.shape for x in tensors], [x.stride() for x in tensors]
    return (*shapes, *strides, *[x.dtype for x in tensors], *[x.get_device() for x in tensors])


def tokens(*options: Any) -> tuple[Any, ...] | None:
    """Scales, second operands and steps as part of a key; None for other than torch's tensors.

    Of tensors the address is part: their launches are for them alone.
    """
    found: list[Any] = []
    for x in options:
        if x is None:
            found.append(None)
            continue
        kind = type(x)
        if kind in TENSORS:
            found.append((x.data_ptr(), x.get_device(), x.dtype, x.shape, x.stride()))
        elif kind in NUMBERS:
            found.append((kind, x or repr(x)))  # 0.0 and -0.0 differ
        elif kind is bool or kind is str:
            found.append((kind, x))
        elif kind is tuple:
            inner = tokens(*x)
            if inner is None:
                return None
            found.append(inner)
        elif callable(x) and _is_hashable(x):
            found.append(remembered(x))
        else:
            return None
    return tuple(found)


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _addresses(*options: Any) -> Iterator[int]:
    for x in options:
        if type(x) in TENSORS:
            yield x.data_ptr()
        elif type(x) is tuple:
            yield from _addresses(*x)


def _options(
    out_dtype: Any, alpha: Any, beta: Any, more: tuple[Any, ...] | None
) -> tuple[Any, ...] | None:
    """Options as part of a key; None for unusual ones.

    -0.0 equals 0.0, and gives other signs: no alpha of 0 has a key.
    """
    if type(alpha) not in NUMBERS or type(beta) not in NUMBERS or not alpha or more is None:
        return None
    if out_dtype is not None:
        out_dtype = getattr(out_dtype, "name", out_dtype)
        if type(out_dtype) is not str:
            return None
    return out_dtype, alpha, beta, more


def _alignment(addresses: Sequence[int]) -> tuple[int, ...]:
    return tuple([address & 15 for address in addresses])
