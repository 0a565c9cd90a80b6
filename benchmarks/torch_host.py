"""Host time of a call through the torch operators, beside torch's own functions.

    python benchmarks/torch_host.py OUT.json

Microseconds a call of a size that the device has done before the host comes again: the medians of
`tilecat.testing.host_time`. On a machine without a GPU there is nothing to measure.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tilecat as tc
from tilecat.bench import record
from tilecat.testing import host_time, require_gpu


def calls(torch) -> dict:
    import tilecat.torch as tt

    functional = torch.nn.functional
    options = {"device": "cuda", "dtype": torch.bfloat16}
    a, b = (torch.randn(128, 128, **options) for _ in range(2))
    bias = torch.randn(128, **options)
    q, k, v = (torch.randn(1, 2, 128, 64, **options) for _ in range(3))
    leaf = torch.randn(128, 128, **options).requires_grad_()
    trained = torch.randn(1, 2, 128, 64, **options).requires_grad_()
    sdpa = functional.scaled_dot_product_attention
    one, caches = torch.randn(4, 1, 8, 64, **options), torch.randn(2, 4, 256, 2, 64, **options)
    lengths = torch.full((4,), 200, device="cuda", dtype=torch.int32)
    return {
        "tilecat.matmul": lambda: tc.matmul(a, b),
        "tilecat.torch.matmul": lambda: tt.matmul(a, b),
        "torch.mm": lambda: torch.mm(a, b),
        "tilecat.torch.matmul, a trains": lambda: tt.matmul(leaf, b),
        "torch.mm, a trains": lambda: torch.mm(leaf, b),
        "tilecat.torch.linear": lambda: tt.linear(a, b, bias),
        "F.linear": lambda: functional.linear(a, b, bias),
        "tilecat.attention": lambda: tc.attention(q, k, v),
        "tilecat.attention_decode": lambda: tc.attention_decode(
            one, *caches, cache_seqlens=lengths),
        "tilecat.torch.attention": lambda: tt.attention(q, k, v),
        "tilecat.torch.sdpa": lambda: tt.sdpa(q, k, v),
        "F.scaled_dot_product_attention": lambda: sdpa(q, k, v),
        "tilecat.torch.sdpa, q trains": lambda: tt.sdpa(trained, k, v),
        "F.scaled_dot_product_attention, q trains": lambda: sdpa(trained, k, v),
        "tilecat.torch.sdpa and gradients": lambda: tt.sdpa(trained, k, v).backward(k),
        "F.scaled_dot_product_attention and gradients": lambda: sdpa(trained, k, v).backward(k),
    }


def measure(torch) -> dict[str, float]:
    named = calls(torch)
    for call in named.values():
        call()
    found = {
        name: round(us, 2)
        for name, us in zip(named, host_time(list(named.values())), strict=True)
    }
    for name, us in found.items():
        print(f"{us:8.2f} us  {name}")
    return found


def main(target: str) -> None:
    torch = require_gpu()
    row = {"table": "torch_host", "label": "small sizes", "host_us": measure(torch)}
    record.write(Path(target), {"environment": record.environment(torch), "rows": [row]})


if __name__ == "__main__":
    main(sys.argv[1])
