"""Products of torch tensors seen before: by their layout, launches of the kernel made ready.

A product whose operands lie as those of an earlier one skips every check and choice. What then
differs is where they lie: of addresses seen before too the launch is at hand, of others the
parameters are copied and the addresses in them replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .driver import Movable
from .gemm_call import Options
from .gemm_parts import Places
from .kernels.gemm import matmul as kernel
from .runtime.arrays import TENSORS, allocator, view

MAX_PRODUCTS = 4096  # layouts remembered
MAX_LAUNCHES = 1024  # addresses of one layout
NUMBERS = (float, int)
TURNED, STRAIGHT = (1, 0, 2), (0, 1, 2)  # the kernel's arrays by those of the call

_products: dict[Any, Product] = {}


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
    """

    def __init__(self, make: Callable[[], Any], places: Places):
        self.make = make
        self.places = places
        self._launches: dict[tuple[int, ...], Callable[[Any], None]] = {}
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
        launch = self._launches.get(addresses) or self._moved(addresses)
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
            if len(self._launches) >= MAX_LAUNCHES:
                self._launches.clear()
            self._launches[addresses] = launch
        return launch


def find(a: Any, b: Any, out: Any, out_dtype: Any, alpha: Any, beta: Any) -> Product | None:
    """What is known of such a product without scales and epilogue; of other arrays nothing."""
    return _products.get(_key(a, b, out, out_dtype, alpha, beta))


def remember(given: tuple[Any, Any, Any], options: Options, out: Any, launched: Launched) -> None:
    """Keeps what ran, if the arrays are the caller's and lie on a GPU.

    Args:
        given: a, b and out of the call.
        options: of the call.
        out: what the caller gets.
        launched: what ran; further arguments other than partial sums are the same in every call.
    """
    key = _key(*given, options.out_dtype, options.alpha, options.beta)
    if key is None or not out.is_cuda:
        return
    arrays, shared = launched.arrays, launched.args[: 2 * bool(launched.places.count)]
    order = (TURNED if launched.turned else STRAIGHT) + (3, 4)[: len(shared)]
    addresses = tuple(x.data_ptr() for x in (*given[:2], out, *shared))
    if [view(x).ptr for x in arrays] != [addresses[at] for at in order[:3]]:
        return  # copies, which another call makes anew
    movable = kernel.movable(*arrays, *launched.args, **launched.params)
    if movable is None:
        return
    if key not in _products and len(_products) >= MAX_PRODUCTS:
        _products.clear()
    like = view(out)
    make = allocator(out, tuple(like.shape), like.dtype)
    product = _products.setdefault(key, Product(make, launched.places))
    further = launched.args[len(shared) :]
    rest = [view(x).ptr if hasattr(x, "shape") else 0 for x in further]
    product.learn(addresses, movable, order, rest)


def _key(a: Any, b: Any, out: Any, out_dtype: Any, alpha: Any, beta: Any) -> Any:
    """The layout of a product of torch tensors; None for other arrays, and unusual options.

    -0.0 equals 0.0, and gives other signs: no alpha of 0 has a key.
    """
    if not (type(a) in TENSORS and type(b) in TENSORS and type(alpha) in NUMBERS and alpha):
        return None
    if type(beta) not in NUMBERS:
        return None
    if out_dtype is not None:
        out_dtype = getattr(out_dtype, "name", out_dtype)
        if type(out_dtype) is not str:
            return None
    if out is None:
        return (
            a.shape, a.stride(), a.dtype, a.get_device(),
            b.shape, b.stride(), b.dtype, b.get_device(), out_dtype, alpha, beta,
        )  # fmt: skip
    if type(out) not in TENSORS:
        return None
    return (
        a.shape, a.stride(), a.dtype, a.get_device(),
        b.shape, b.stride(), b.dtype, b.get_device(),
        out.shape, out.stride(), out.dtype, out.get_device(), out_dtype, alpha, beta,
    )  # fmt: skip


def _alignment(addresses: Sequence[int]) -> tuple[int, ...]:
    return tuple([address & 15 for address in addresses])
