"""The machine stands alone: it must not share a mistake with the generator."""

import ast
from pathlib import Path

import tilecat.sim

ALLOWED = {"tilecat.errors", "tilecat.addresses", "tilecat.dtypes"}
OUTSIDE = {"numpy", "ml_dtypes", "threadpoolctl"}
STANDARD = {
    "__future__", "bisect", "collections", "ctypes", "dataclasses", "functools", "re", "struct",
    "threading", "typing",
}  # fmt: skip


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names.add(node.module)
            names |= {f"{node.module}.{a.name}" for a in node.names if node.module == "tilecat"}
    return names


def test_sim_imports_nothing_of_the_generator():
    files = sorted(Path(tilecat.sim.__file__).parent.glob("*.py"))
    assert len(files) > 15
    for path in files:
        for name in _imports(path) - {"tilecat"}:
            if name.startswith("tilecat"):
                inside = name == "tilecat.sim" or name.startswith("tilecat.sim.")
                assert inside or name in ALLOWED, f"{path.name} imports {name}"
            else:
                top = name.split(".")[0]
                assert top in OUTSIDE | STANDARD or name.startswith("collections"), (
                    f"{path.name} imports {name}"
                )
