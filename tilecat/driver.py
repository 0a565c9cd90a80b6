"""From a decorated function to a run: trace, check, emit, assemble, then launch or simulate.

The stages are one flat list, and one can stop after any of them.
"""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .arch import DEFAULT_TARGET, arch_of, arch_of_device
from .binding import Bound, Movable, bind, by_position, default_specialization
from .captured import Surroundings, is_own, remembered
from .check import CheckedKernel, check
from .codegen.emit import generate
from .codegen.module import PtxModule
from .errors import ResourceError, ScopeError, SyncError
from .ir import Kernel, Op, TensorArg
from .language.kernel import (
    Signature,
    Specialization,
    TensorSpec,
    complete_params,
    signature_of,
    trace,
)
from .ops.global_memory import GlobalAccess
from .ops.tma import BulkTransfer, TileTransfer, TmaPrefetch
from .runtime import compile as runtime_compile
from .runtime import deferred
from .runtime.arrays import ArrayView, call_key, view
from .runtime.disassemble import disassemble
from .tiles import GlobalType

STAGES = ("ir", "ptx", "sass")
DEBUG_WAITS = 4_000_000  # looks of about 1 us
MAX_PREPARED = 1024  # call shapes remembered by one kernel
_TRACING = threading.RLock()  # ops find the kernel that is traced in one place


@dataclass(frozen=True)
class Resources:
    """What one compiled kernel uses.

    Args:
        registers: a thread, at launch (`setmaxnreg` moves them between roles after).
        spill_bytes: 0 in every kernel that assembles.
        shared_bytes: dynamic shared memory of a CTA.
        threads: of a CTA.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    threads: int


class Compiled:
    """One specialisation of a kernel, compiled for one target as far as it is asked.

    Attributes:
        kernel: the IR.
        module: the PTX text, its parameters and names for its addresses.
    """

    def __init__(self, kernel: Kernel, checked: CheckedKernel, module: PtxModule):
        self.kernel = kernel
        self.checked = checked
        self.module = module
        self.outputs = _written(kernel)
        self.rules = tuple(kernel.facts.get("extents", ()))
        self._launcher: Any = None

    @property
    def ir(self) -> str:
        """The IR as text."""
        return str(self.kernel)

    @property
    def ptx(self) -> str:
        """The PTX text: what the GPU and the PTX machine both run."""
        return self.module.text

    @cached_property
    def assembled(self) -> runtime_compile.Assembled:
        """What ptxas made of it, or the disk cache had.

        Raises:
            ResourceError: no ptxas, spills, or a performance warning.
        """
        return runtime_compile.assemble(self.module)

    @property
    def cubin(self) -> bytes:
        """The machine code."""
        return self.assembled.cubin

    @cached_property
    def sass(self) -> str:
        """The machine code, disassembled."""
        return disassemble(self.cubin)

    @property
    def resources(self) -> Resources:
        """Registers, spills, shared memory, threads."""
        made = self.assembled
        return Resources(
            made.registers, made.spill_bytes, self.module.smem_bytes, self.module.threads
        )

    def launch(self, args: Sequence[Any], stream: Any = None, grid: Any = None) -> None:
        """Launches on the GPU the arrays are on; does not wait.

        Args:
            args: ArrayViews and numbers, in the kernel's order, already validated.
            stream: None for the current one.
            grid: CTAs; None for as many as the device holds.
        """
        if self._launcher is None:
            self._launcher = deferred.launch().Launcher(self.module, self.cubin)
        self._launcher(args, stream, grid=grid)

    def prepare(self, args: Sequence[Any]) -> Callable[[Any], None]:
        """A launch with these very arguments, made ready: `call(stream)`."""
        if self._launcher is None:
            self._launcher = deferred.launch().Launcher(self.module, self.cubin)
        return self._launcher.prepare(args)  # type: ignore[no-any-return]

    def movable(self, args: Sequence[Any]) -> Callable[[Sequence[int]], Callable[[Any], None]]:
        """Launches with arguments like these: `at(addresses)` makes one ready."""
        if self._launcher is None:
            self._launcher = deferred.launch().Launcher(self.module, self.cubin)
        return self._launcher.movable(args)  # type: ignore[no-any-return]

    def simulate(self, args: Sequence[Any], **options: Any) -> Any:
        """Runs on the PTX machine; returns its `Result`, reports and all.

        Args:
            args: ArrayViews of NumPy arrays and numbers, in the kernel's order.
            options: grid, seed, races, progress.
        """
        return deferred.machine().launch(self.module, args, **options)


def _written(kernel: Kernel) -> tuple[int, ...]:
    targets = (op.stores for op in kernel.body.walk())
    return tuple(sorted({arg.index for arg in targets if arg is not None}))


def _untiled(kernel: Kernel, count: int) -> frozenset[int]:
    """Arguments whose text and trace do not depend on whether TMA can reach them, or how."""
    found = (_laid_out(op) for op in kernel.body.walk())
    tiled = {arg.index for arg in found if arg is not None}
    asked = {arg.index for arg in kernel.args if isinstance(arg, TensorArg) and arg.asked}
    return frozenset(range(count)) - tiled - asked


def _laid_out(op: Op) -> TensorArg | None:
    """The tensor whose layout in memory an op's text depends on."""
    if isinstance(op, GlobalAccess):
        return op.arg if op.needs_layout else None
    return op.arg if isinstance(op, TileTransfer | TmaPrefetch | BulkTransfer) else None


class KernelFunction:
    """A kernel: call it on arrays, or compile it for a target.

    CUDA arrays launch; NumPy arrays and CPU tensors run on the PTX machine, the same text.
    """

    def __init__(self, function: Callable[..., Any], names: Mapping[str, Any] | None = None):
        self.signature: Signature = signature_of(function, names)
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.compiles = 0
        self._compiled: dict[tuple[Any, ...], Compiled] = {}
        self._untiled: dict[tuple[Any, ...], frozenset[int]] = {}  # by compile-time parameters
        self._ends: dict[tuple[Any, ...], frozenset[int]] = {}  # whose ends decide how to store
        self._prepared: dict[Any, tuple[Bound, Compiled]] = {}
        self._ready: dict[Any, Callable[[Any], None]] = {}  # launches of tensors seen before
        self._own = is_own(function)
        self._around: Surroundings | None = None  # what a user's kernel read at its last trace

    def __repr__(self) -> str:
        """Its signature."""
        return f"<kernel {self.signature.describe()}>"

    def specialize(self, specialization: Specialization, target: str) -> Compiled:
        """The compiled kernel of one specialisation; traced, checked and emitted once.

        Raises:
            TileError: whatever rule the kernel breaks, at its line.
        """
        with _TRACING:
            return self._specialize(specialization, target)

    def _specialize(self, specialization: Specialization, target: str) -> Compiled:
        # 1, 1.0 and True are equal, and may trace differently.
        limit = debug_waits()
        types = [type(value) for _, value in specialization.params]
        params = (limit, *specialization.params, *types, *specialization.args)
        found = self._compiled.get((target, params, self._relevant(specialization, params)))
        if found is not None:
            return found
        arch = arch_of(target)
        kernel = trace(self.function, self.signature, specialization, arch)
        kernel.facts["debug_waits"] = limit
        checked = check(kernel, arch)
        fit = kernel.facts.pop("fit", None)  # a pipeline of roles asks ptxas what each takes
        if fit is not None:
            fit(checked)
        compiled = Compiled(kernel, checked, generate(checked))
        self._remember(kernel, params)
        self._compiled[target, params, self._relevant(specialization, params)] = compiled
        self.compiles += 1
        self._around = None if self._own else Surroundings(self.function)
        return compiled

    def _today(self, params: dict[str, Any]) -> dict[str, Any]:
        """Compile-time parameters, functions as `remembered`; of a user's kernel.

        What was traced is forgotten when the body would read other values now.
        """
        if self._own:
            return params
        if self._around is not None and self._around.changed():
            for kept in (self._compiled, self._untiled, self._ends, self._prepared, self._ready):
                kept.clear()
        return {name: remembered(x) if callable(x) else x for name, x in params.items()}

    def _relevant(self, specialization: Specialization, params: Any) -> tuple[TensorSpec, ...]:
        """What of the tensors the text depends on: of those read by address alone, no layout."""
        untiled = self._untiled.get(params, frozenset())
        args = specialization.args or self.signature.args
        indices = (i for i, (_, kind) in enumerate(args) if isinstance(kind, GlobalType))
        ends = self._ends.get(params, frozenset())
        return tuple(
            replace(
                spec if index not in untiled else replace(spec, order="row", tma=True),
                whole=spec.whole or index not in ends,
            )
            for index, spec in zip(indices, specialization.tensors, strict=True)
        )

    def _remember(self, kernel: Kernel, params: Any) -> None:
        """What the text of these parameters depends on, in this specialisation or one before."""
        count, asked = len(kernel.args), (getattr(arg, "whole_asked", False) for arg in kernel.args)
        untiled = _untiled(kernel, count)
        self._untiled[params] = self._untiled.get(params, untiled) & untiled
        ends = frozenset(index for index, one in enumerate(asked) if one)
        self._ends[params] = self._ends.get(params, frozenset()) | ends

    def compile(
        self, *args: Any, target: str = DEFAULT_TARGET, dtype: Any = None, **params: Any
    ) -> Compiled:
        """Compiles without running, for any target, on any machine.

        Args:
            args: example arrays, or none for row-major arrays that TMA can reach.
            target: e.g. `sm_90a`.
            dtype: without arrays, the choice for a kernel's dtype parameter (its first if None).
            params: compile-time parameters.
        """
        compiled = self.traced(*args, target=target, dtype=dtype, **params)
        _ = compiled.assembled
        return compiled

    def traced(
        self, *args: Any, target: str = DEFAULT_TARGET, dtype: Any = None, **params: Any
    ) -> Compiled:
        """Traced, checked and emitted as `compile` does, not yet assembled."""
        params = self._today(params)
        if args:
            bound = bind(self.signature, [self._view(a) for a in args], params)
            return self.specialize(bound.specialization, target)
        complete = complete_params(self.signature, params)
        return self.specialize(default_specialization(self.signature, complete, dtype), target)

    def __call__(self, *args: Any, stream: Any = None, grid: Any = None, **params: Any) -> None:
        """Runs the kernel on arrays; outputs are written in place.

        Args:
            args: arrays and scalars, in order.
            stream: CUDA stream; None for the current one.
            grid: CTAs; None for as many as the device holds (4 on the PTX machine).
            params: compile-time parameters.

        Raises:
            TileError: arguments that do not fit, before anything runs; on the PTX machine also
                races, deadlocks and other findings.
        """
        params = self._today(params)
        key = _ready_key(args, params) if grid is None else None
        if key is not None and (ready := self._ready.get(key)) is not None:
            ready(stream)
            return
        if params and len(args) < len(self.signature.args):
            args, params = by_position(self.signature, args, params)
            key = None
        views = [self._view(a) for a in args]
        bound, compiled = self._prepare(views, params)
        bound.check(views, compiled.outputs, compiled.rules)
        _check_count(self.__name__, "grid", grid, 1)
        if bound.empty(compiled.outputs):
            return
        if bound.device == "cpu":
            result = compiled.simulate(views, grid=grid)
            raise_reports(self.__name__, result)
        elif key is None:
            compiled.launch(views, stream, grid)
        else:
            if len(self._ready) >= MAX_PREPARED:
                self._ready.clear()
            ready = self._ready[key] = compiled.prepare(views)
            ready(stream)

    def __getitem__(self, grid: Any) -> Any:
        """Refuses the form `kernel[grid](...)` of other languages.

        Raises:
            ScopeError: always; the grid is an argument of the call.
        """
        raise ScopeError(
            f"{self.__name__}: the grid is an argument of the call, got {self.__name__}[{grid!r}]",
            hint=f"{self.__name__}(..., grid=2); without it as many CTAs as the device holds",
        )

    def movable(self, *args: Any, **params: Any) -> Movable | None:
        """Launches of a call with GPU tensors, also where they lie elsewhere.

        Args:
            args: arrays and scalars, in order.
            params: compile-time parameters.

        Returns:
            None where there is nothing to launch: every output is empty.

        Raises:
            TileError: arguments that do not fit.
        """
        params = self._today(params)
        views = [self._view(a) for a in args]
        bound, compiled = self._prepare(views, params)
        bound.check(views, compiled.outputs, compiled.rules)
        if bound.empty(compiled.outputs):
            return None
        return Movable(bound, compiled.outputs, compiled.movable(views))

    def simulate(self, *args: Any, target: str = DEFAULT_TARGET, **options: Any) -> Any:
        """Runs on the PTX machine and returns its `Result` instead of raising its reports.

        Args:
            args: NumPy arrays (or CPU tensors) and scalars, in order.
            target: architecture whose text is run.
            options: grid, seed, races, progress; the rest are compile-time parameters.
        """
        known = ("grid", "seed", "races", "progress")
        run = {k: options.pop(k) for k in known if k in options}
        options = self._today(options)
        views = [self._view(a) for a in args]
        bound = bind(self.signature, views, options)
        compiled = self.specialize(bound.specialization, target)
        bound.check(views, compiled.outputs, compiled.rules)
        if bound.device != "cpu":
            raise ResourceError(
                f"simulate: wants arrays in CPU memory, got {bound.device}", hint="x.cpu()"
            )
        _check_count("simulate", "grid", run.get("grid"), 1)
        _check_count("simulate", "seed", run.get("seed"), 0)
        return compiled.simulate(views, **run)

    @staticmethod
    def _view(value: Any) -> Any:
        if type(value) is ArrayView or isinstance(value, bool | int | float):
            return value
        return value.item() if isinstance(value, np.generic) else view(value)

    def _prepare(self, views: list[Any], params: dict[str, Any]) -> tuple[Bound, Compiled]:
        key = (
            *[
                (v.dtype, v.shape, v.strides, v.ptr & 15, v.device)
                if type(v) is ArrayView
                else type(v)
                for v in views
            ],
            *[(name, type(value), value) for name, value in params.items()],
        )
        try:
            return self._prepared[key]
        except (KeyError, TypeError):  # a new call shape, or what `bind` will refuse as unhashable
            pass
        bound = bind(self.signature, views, params)
        compiled = self.specialize(bound.specialization, _target_of(bound.device))
        if len(self._prepared) >= MAX_PREPARED:
            self._prepared.clear()
        self._prepared[key] = (bound, compiled)
        return bound, compiled


def _target_of(device: str) -> str:
    """The target of arrays' device; of arrays in CPU memory the default.

    Raises:
        ArchError: a GPU that tilecat does not compile for.
    """
    if device == "cpu":
        return DEFAULT_TARGET
    gpu = deferred.driver().device(int(device.partition(":")[2]))
    return arch_of_device(gpu.capability, gpu.name).target


def _ready_key(args: tuple[Any, ...], params: dict[str, Any]) -> Any:
    """What a launch of torch tensors depends on; None for other arrays, or unusual parameters."""
    key = call_key(args)
    if key is None or not params:
        return key
    values = tuple(params.values())
    for value in values:
        if type(value) is not int:
            return _unusual_key(key, params)
    return (key, values, *params)


def _unusual_key(key: Any, params: dict[str, Any]) -> Any:
    """With parameters that are not all integers: 1 and True are equal, and trace differently."""
    values = tuple(params.values())
    if not all(type(value) in (int, bool, str, tuple) for value in values):
        return None
    found = (key, values, *params, *map(type, values))
    try:
        hash(found)
    except TypeError:  # a tuple of lists: `bind` will say so
        return None
    return found


def _check_count(who: str, name: str, value: Any, low: int) -> None:
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is None or (number and value >= low):
        return
    raise ResourceError(
        f"{who}: {name} is an int from {low} up, got {name}={value!r} ({type(value).__name__})",
        hint="kernels have one line of CTAs, which share the tasks: grid=132" * (name == "grid"),
    )


def debug_waits() -> int:
    """Looks at a barrier before a wait gives up, from TILECAT_DEBUG_WAITS; 0: it never does.

    Raises:
        ResourceError: the variable is no number of looks.
    """
    text = os.environ.get("TILECAT_DEBUG_WAITS", "").strip() or "0"
    if not text.isdecimal():
        raise ResourceError(
            f"waits: TILECAT_DEBUG_WAITS is a number of looks at a barrier, got {text!r}",
            hint=f"TILECAT_DEBUG_WAITS=1 allows {DEBUG_WAITS:,}; 0 turns it off",
        )
    return DEBUG_WAITS if int(text) == 1 else int(text)


def raise_reports(name: str, result: Any) -> None:
    """Raises what the PTX machine found.

    Raises:
        SyncError: with the first reports, both user lines each.
    """
    if result.reports:
        shown = "\n".join(str(r) for r in result.reports[:3])
        more = len(result.reports) - 3
        tail = f"\n... and {more} more" if more > 0 else ""
        raise SyncError(f"{name}: the PTX machine reports\n{shown}{tail}")


def kernel(function: Callable[..., Any]) -> KernelFunction:
    """Decorator: makes a Python function a kernel.

    Positional arguments are tensors (`A: gl[bf16, "M", "K"]`) and run-time scalars (`s: f32`);
    keyword-only arguments are compile-time parameters. The body is traced at each new
    specialisation; extents are run-time values, so a new shape compiles nothing.
    """
    frame = inspect.currentframe()
    here = frame.f_back if frame is not None else None
    return KernelFunction(function, here.f_locals if here is not None else None)
