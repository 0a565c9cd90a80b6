"""Long convolution by FFT beside torch.fft on this GPU: forward, and gradients of the longest plan.

    python benchmarks/fft_conv.py OUT.json [ROUNDS]

Results are checked against float64; calls are interleaved, L2 is flushed before each. torch.fft is
`irfft(rfft(u.float()) * rfft(k))`, rounded to the dtype of u; causal ones pad to 2 L. `tc.fft_conv`
keeps the spectrum of k between calls; `torch.fft, spectrum kept` has it ready too, and u in f32.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

import tilecat as tc
from tilecat.bench import METHOD, record
from tilecat.testing import do_bench, ratio

# B, C, L; forward shapes of the comparison, and longer ones with as many elements.
SHAPES = ((64, 768, 1024), (64, 768, 4096), (16, 1024, 1024), (16, 1024, 4096), (64, 768, 2048),
          (32, 768, 8192), (16, 768, 16384), (8, 768, 32768))  # fmt: skip
BACKWARD = (64, 768, 4096)
LIMIT = 4e-3  # relative RMS error: bf16 results, f16 between the products


def transformed(x: Any, length: int) -> Any:
    """The spectrum, padded to a length."""
    return torch.fft.rfft(x, n=length)


def by_torch(u: Any, k: Any, size: int, spectrum: Any = None) -> Any:
    """The peer: u of any dtype; `spectrum` of k if it is kept."""
    found = transformed(k, size) if spectrum is None else spectrum
    y = torch.fft.irfft(transformed(u.float(), size) * found, n=size)[..., : u.shape[-1]]
    return y if spectrum is not None else y.to(u.dtype)


def error_of(y: Any, u: Any, k: Any, size: int) -> float:
    """Relative RMS error against float64, of some channels.

    Raises:
        TileError: it is too large.
    """
    some = slice(0, None, max(u.shape[1] // 48, 1))
    wanted = torch.fft.irfft(
        transformed(u[:, some].double(), size) * transformed(k[some].double(), size), n=size
    )[..., : u.shape[-1]]
    found = float((y[:, some].double() - wanted).norm() / wanted.norm())
    if not found < LIMIT:
        raise tc.TileError(f"fft_conv: error {found:.2e} at {tuple(u.shape)}")
    return found


def operands(batch: int, channels: int, length: int) -> tuple[Any, Any]:
    """u and k, so that results are as large as u."""
    torch.manual_seed(0)
    u = torch.randn(batch, channels, length, device="cuda").bfloat16()
    return u, torch.randn(channels, length, device="cuda") / length**0.5


def measure(shape: tuple[int, int, int], causal: bool, rounds: int) -> dict[str, Any]:
    """One problem beside the peer."""
    u, k = operands(*shape)
    size = shape[2] * (1 + causal)
    out, wide, kept = torch.empty_like(u), u.float(), transformed(k, size)
    functions: dict[str, Callable[[], Any]] = {
        "tilecat": functools.partial(tc.fft_conv, u, k, causal=causal),
        "torch.fft": functools.partial(by_torch, u, k, size),
        "torch.fft, spectrum kept": functools.partial(by_torch, wide, k, size, kept),
        "copy": functools.partial(out.copy_, u),
    }
    error = error_of(functions["tilecat"](), u, k, size)
    times = do_bench(list(functions.values()), repeats=rounds, budget_s=4.0)
    return row(shape, causal, functions, times, error)


def row(
    shape: tuple[int, int, int], causal: bool, functions: dict[str, Any], times: Any, error: float
) -> dict[str, Any]:
    """What a problem gave."""
    named = dict(zip(functions, times, strict=True))
    batch, channels, length = shape
    return {
        "label": f"B{batch} C{channels} L{length} {'causal' if causal else 'circular'}",
        "extents": {"B": batch, "C": channels, "L": length}, "causal": causal, "error": error,
        "times_us": {name: taken.summary() for name, taken in named.items()},
        "ratio_to_torch": ratio(named["torch.fft"], named["tilecat"]),
        "share_of_copy": named["copy"].median_us / named["tilecat"].median_us,
    }  # fmt: skip


def measure_backward(causal: bool, rounds: int) -> dict[str, Any]:
    """du and dk of one problem, each by itself."""
    u, k = operands(*BACKWARD)
    functions = {
        f"d{name}": functools.partial(
            tc.fft_conv_backward, u, u, k, causal=causal, wanted=(name,)
        )
        for name in ("u", "k")
    }
    times = do_bench(list(functions.values()), repeats=rounds, budget_s=2.0)
    return {
        "label": "backward " + ("causal" if causal else "circular"),
        "times_us": {name: t.summary() for name, t in zip(functions, times, strict=True)},
    }


def main(target: str, rounds: int = 12) -> None:
    """Measures all problems and writes the results file."""
    path = record.path_for("", target, overwrite=False)
    facts = record.environment(torch)
    rows: list[dict[str, Any]] = []
    for causal in (False, True):
        for shape in SHAPES:
            rows.append(measure(shape, causal, rounds))
            found = rows[-1]
            times = {name: taken["median"] for name, taken in found["times_us"].items()}
            print(found["label"], times, found["ratio_to_torch"], flush=True)
            torch.cuda.empty_cache()
        rows.append(measure_backward(causal, rounds))
        print(rows[-1], flush=True)
        results = {"environment": facts, "smi": record.smi(), "method": METHOD, "problems": rows}
        record.write(path, results)
    print(f"results: {path}")


if __name__ == "__main__":
    main(sys.argv[1], int((sys.argv[2:3] or ["12"])[0]))
