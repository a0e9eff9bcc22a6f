"""The three circles: what a module of ``fixtures/``, ``conformance/`` and ``gate/`` may import.

* **pure**: the standard library and other pure modules. A recorded run can be judged anywhere.
* **pytest**: also pytest and its like, never a framework. Collection is quick, and pytest owns no CUDA context.
* **ranks**: also the frameworks, never pytest and never a module of the pytest circle. Torchrun can start one by hand.

Imports inside functions count: they are how a circle is broken unseen. Strings do not: another process runs those.
"""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CIRCLES: Mapping[str, str] = {
    "conformance.alarms": "pytest",
    "conformance.buffers": "pure",
    "conformance.calibrate": "pytest",
    "conformance.catalogue": "pytest",
    "conformance.claims": "pure",
    "conformance.conftest": "pytest",
    "conformance.continuity": "pure",
    "conformance.epochs": "pure",
    "conformance.first_night": "pytest",
    "conformance.footprint": "pure",
    "conformance.full_size": "pytest",
    "conformance.effort": "pure",
    "conformance.memory": "pure",
    "conformance.nightly": "pytest",
    "conformance.own_model": "pure",
    "conformance.programs": "pure",
    "conformance.promises": "pure",
    "conformance.published": "pytest",
    "conformance.rehearsal": "pure",
    "conformance.scaling": "pure",
    "conformance.stand_ins": "pure",
    "conformance.sensitivity": "pytest",
    "conformance.test_*": "pytest",
    "conformance.tolerances": "pure",
    "conformance.trials": "pure",
    "fixtures": "pure",
    "fixtures.adapters": "ranks",
    "fixtures.buffers": "pure",
    "fixtures.account": "pytest",
    "fixtures.baseline": "pytest",
    "fixtures.checkpoints": "ranks",
    "fixtures.checkpoints.*": "ranks",
    "fixtures.changes": "pure",
    "fixtures.corpus": "pure",
    "fixtures.dialects": "pure",
    "fixtures.engines": "ranks",
    "fixtures.engines.*": "ranks",
    "fixtures.epochs": "ranks",
    "fixtures.epochs.*": "ranks",
    "fixtures.extension_cache": "pure",
    "fixtures.files": "pure",
    "fixtures.freezing": "pure",
    "fixtures.evaluation": "ranks",
    "fixtures.extensions": "pytest",
    "fixtures.faults": "ranks",
    "fixtures.history": "pure",
    "fixtures.history.__main__": "pytest",
    "fixtures.history.drift": "pure",
    "fixtures.history.figures": "pure",
    "fixtures.history.keep": "pytest",
    "fixtures.history.store": "pure",
    "fixtures.graphs": "ranks",
    "fixtures.gpu": "ranks",
    "fixtures.gpu.*": "ranks",
    "fixtures.hardware": "pure",
    "fixtures.hardware.*": "pytest",
    "fixtures.hardware.failures": "pure",
    "fixtures.hardware.flight_recorder": "pure",
    "fixtures.hardware.visible": "pure",
    "fixtures.judging": "pytest",
    "fixtures.known_failures": "pure",
    "fixtures.launch": "pytest",
    "fixtures.launchers": "pure",
    "fixtures.launchers.*": "pytest",
    "fixtures.launchers.command": "pure",
    "fixtures.launchers.endings": "pure",
    "fixtures.launchers.lost": "pure",
    "fixtures.launchers.place": "pure",
    "fixtures.launchers.pulse": "pure",
    "fixtures.launchers.rank": "pure",
    "fixtures.launchers.surroundings": "pure",
    "fixtures.late": "ranks",
    "fixtures.legs": "ranks",
    "fixtures.limit": "ranks",
    "fixtures.live": "pytest",
    "fixtures.max_batch": "pure",
    "fixtures.max_batch.evidence": "pure",
    "fixtures.max_batch.picture": "pytest",
    "fixtures.max_batch.plugin": "pytest",
    "fixtures.max_batch.report": "pytest",
    "fixtures.max_batch.search": "pure",
    "fixtures.max_batch.subject": "pure",
    "fixtures.calls": "ranks",
    "fixtures.memory": "ranks",
    "fixtures.migration": "ranks",
    "fixtures.models": "ranks",
    "fixtures.observation": "pure",
    "fixtures.options": "pytest",
    "fixtures.outside": "pytest",
    "fixtures.overhead": "pytest",
    "fixtures.packages": "pytest",
    "fixtures.phases": "pure",
    "fixtures.platforms": "pytest",
    "fixtures.plots": "pytest",
    "fixtures.plugin": "pytest",
    "fixtures.pretrained": "pure",
    "fixtures.probes": "ranks",
    "fixtures.rehearsal": "pure",
    "fixtures.rehearsal.cards": "pure",
    "fixtures.rehearsal.forecast": "pure",
    "fixtures.rehearsal.*": "ranks",
    "fixtures.reading": "ranks",
    "fixtures.rebaseline": "pytest",
    "fixtures.resuming": "ranks",
    "fixtures.report": "pure",
    "fixtures.report.*": "pytest",
    "fixtures.report.charts": "pure",
    "fixtures.schedules": "pure",
    "fixtures.session": "pytest",
    "fixtures.soak": "pytest",
    "fixtures.spec": "pure",
    "fixtures.tables": "pure",
    "fixtures.summary": "pytest",
    "fixtures.swapping": "ranks",
    "fixtures.system_kills": "pure",
    "fixtures.template": "ranks",
    "fixtures.throughput": "pure",
    "fixtures.throughput.conditions": "pytest",
    "fixtures.throughput.figures": "pure",
    "fixtures.throughput.floor": "pure",
    "fixtures.throughput.heats": "pytest",
    "fixtures.throughput.judged": "pytest",
    "fixtures.throughput.machine": "pure",
    "fixtures.throughput.pacer": "ranks",
    "fixtures.throughput.plan": "pure",
    "fixtures.throughput.race": "pytest",
    "fixtures.throughput.ratio": "pure",
    "fixtures.throughput.turns": "pure",
    "fixtures.trainer": "ranks",
    "fixtures.trainer.*": "ranks",
    "fixtures.training": "ranks",
    "fixtures.translate": "pure",
    "fixtures.translate.*": "pure",
    "fixtures.translate.__main__": "pytest",
    "fixtures.translate.files": "pytest",
    "fixtures.recipes": "pure",
    "fixtures.recipes.*": "pure",
    "fixtures.recipes.given": "pytest",
    "fixtures.turns": "pure",
    "fixtures.verdict": "pure",
    "fixtures.worker": "ranks",
    "gate": "pure",
    "gate.__main__": "pytest",
    "gate.asked": "pytest",
    "gate.attribution": "pytest",
    "gate.attribution_text": "pure",
    "gate.bisection": "pure",
    "gate.comparing": "pytest",
    "gate.comparison": "pure",
    "gate.crossing": "pytest",
    "gate.environments": "pytest",
    "gate.gating": "pytest",
    "gate.imports": "ranks",
    "gate.matrix": "pytest",
    "gate.matrix_page": "pure",
    "gate.pip": "pytest",
    "gate.plan": "pytest",
    "gate.power": "pytest",
    "gate.problems": "pure",
    "gate.records": "pure",
    "gate.regressions": "pytest",
    "gate.report": "pure",
    "gate.runs": "pytest",
    "gate.symptoms": "pure",
    "gate.verdict": "pure",
}
"""Every module and its circle; ``*`` stands for one file name. A new module gets a line here."""

MAY_IMPORT = {"pure": {"pure"}, "pytest": {"pure", "pytest"}, "ranks": {"pure", "ranks"}}
FRAMEWORKS = {"accelerate", "deepspeed", "peft", "safetensors", "torch", "transformers"}
HARNESS = {"_pytest", "pluggy", "pytest", "syrupy", "xdist"}
FOREIGN = {"pytest": FRAMEWORKS, "ranks": HARNESS}
"""Packages that a circle may not import; pure may import none at all."""


def read_sources() -> dict[str, str]:
    """The text of every module, by dotted name."""
    files = sorted(path for folder in ("conformance", "fixtures", "gate") for path in (ROOT / folder).rglob("*.py"))
    return {_dotted(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circle_of(module: str, circles: Mapping[str, str]) -> str | None:
    """The circle of ``module``; a line that spells its name goes before a pattern."""
    if module in circles:
        return circles[module]
    parent, _, name = module.rpartition(".")
    for pattern, circle in circles.items():
        pattern_parent, _, pattern_name = pattern.rpartition(".")
        if parent == pattern_parent and fnmatch.fnmatchcase(name, pattern_name):
            return circle
    return None


def imports(module: str, sources: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that ``module`` imports, wherever the import stands."""
    for node in ast.walk(ast.parse(sources[module])):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, module, sources)
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if whole in sources else base
        elif isinstance(node, ast.Call) and _is_import_call(node):
            yield node.lineno, ast.literal_eval(node.args[0])


def _base(node: ast.ImportFrom, module: str, sources: Mapping[str, str]) -> str:
    """What stands after ``from``, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    is_package = any(name.startswith(module + ".") for name in sources)
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _is_import_call(node: ast.Call) -> bool:
    """Whether this is ``import_module("x")``, ``__import__("x")`` or ``importorskip("x")`` with a name written out."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    spelled = bool(node.args) and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    return spelled and called in {"__import__", "import_module", "importorskip"}


def breaches(sources: Mapping[str, str], circles: Mapping[str, str]) -> list[str]:
    """One line for each import that a circle forbids, and for each module that has no circle."""
    lines = []
    for module in sources:
        circle = circle_of(module, circles)
        if circle is None:
            lines.append(f"{module} is in no circle: give it a line in selftests/test_circles.py")
            continue
        for number, target in imports(module, sources):
            reason = _reason(module, circle, target, circles)
            if reason:
                lines.append(f"{module}:{number} imports {target}: {reason}")
    return lines


def _reason(module: str, circle: str, target: str, circles: Mapping[str, str]) -> str | None:
    """Why ``module`` may not import ``target``; ``None`` if it may."""
    package = target.partition(".")[0]
    if package in {"fixtures", "conformance", "gate"}:
        own = module.partition(".")[0]
        if own == "fixtures" and package == "conformance":
            return "fixtures/ knows nothing of conformance/"
        if own != "gate" and package == "gate":
            return f"{own}/ knows nothing of gate/"
        other = circle_of(target, circles)
        return None if other is None or other in MAY_IMPORT[circle] else f"{circle} may not import {other}"
    if circle == "pure":
        return None if package in sys.stdlib_module_names else "pure is the standard library alone"
    return f"{circle} may not import {package}" if package in FOREIGN[circle] else None


def test_every_module_keeps_to_its_circle() -> None:
    """No import crosses a circle, and every module is in one."""
    assert not breaches(read_sources(), CIRCLES)


def test_every_circle_is_inhabited() -> None:
    """The reader finds modules of all three circles: an empty folder would pass everything."""
    assert {circle_of(module, CIRCLES) for module in read_sources()} == set(MAY_IMPORT)


def test_every_line_of_the_table_names_a_module() -> None:
    """A line that nothing matches is a module that went away."""
    modules = read_sources()
    stale = [line for line in CIRCLES if not any(circle_of(name, {line: CIRCLES[line]}) for name in modules)]
    assert not stale


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        ("fixtures.spec", "import filelock", "imports filelock: pure is the standard library alone"),
        ("fixtures.spec", "import torch.nn as nn", "imports torch.nn: pure is the standard library alone"),
        ("fixtures.spec", "from fixtures import launch", "imports fixtures.launch: pure may not import pytest"),
        ("fixtures.spec", "from . import launch", "imports fixtures.launch: pure may not import pytest"),
        ("fixtures.spec", "from .engines import ddp", "imports fixtures.engines.ddp: pure may not import ranks"),
        ("fixtures.launch", "import torch", "imports torch: pytest may not import torch"),
        ("fixtures.launch", "from deepspeed.ops import op", "imports deepspeed.ops: pytest may not import deepspeed"),
        ("fixtures.launch", "def f():\n    import accelerate", "imports accelerate: pytest may not import accelerate"),
        ("fixtures.launch", "importlib.import_module('torch')", "imports torch: pytest may not import torch"),
        ("fixtures.launch", "pytest.importorskip('torch')", "imports torch: pytest may not import torch"),
        ("fixtures.launch", "import fixtures.worker", "imports fixtures.worker: pytest may not import ranks"),
        ("fixtures.worker", "import pytest", "imports pytest: ranks may not import pytest"),
        ("fixtures.worker", "def late():\n    from syrupy import x", "imports syrupy: ranks may not import syrupy"),
        ("fixtures.engines.ddp", "from ..launch import run", "imports fixtures.launch: ranks may not import pytest"),
        ("fixtures.engines", "from ..launch import Launcher", "imports fixtures.launch: ranks may not import pytest"),
        ("fixtures.launch", "import conformance.claims", "imports conformance.claims: fixtures/ knows nothing of"),
        ("fixtures.launch", "import gate", "imports gate: fixtures/ knows nothing of gate/"),
        ("conformance.test_new", "from gate import runs", "knows nothing of gate/"),
        ("conformance.test_new", "import torch", "imports torch: pytest may not import torch"),
        ("fixtures.brand_new", "", "is in no circle"),
        ("fixtures.engines.deep.down", "", "is in no circle"),
    ],
)
def test_a_broken_rule_is_reported(module: str, source: str, breach: str) -> None:
    """Each way to break a circle gives one line that says which."""
    known = ("conformance.claims", "fixtures.engines", "fixtures.engines.ddp", "fixtures.launch", "fixtures.worker")
    (line,) = breaches({**dict.fromkeys(known, ""), module: source}, CIRCLES)
    assert breach in line
    assert line.startswith(module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fixtures.spec", "import dataclasses, pydoc_data.topics"),
        ("fixtures.launch", "COMMAND = 'import torch'\nimport pytest, filelock\nfrom fixtures import spec"),
        ("fixtures.worker", "import torch, transformers\nfrom .engines import ddp\nfrom fixtures.spec import Case"),
        ("conformance.test_new", "import pytest\nfrom conformance.claims import CASES\nfrom fixtures.launch import x"),
    ],
)
def test_what_a_circle_allows_is_not_reported(module: str, source: str) -> None:
    """The reader is not merely strict: allowed imports, and frameworks named in strings, pass."""
    known = ("conformance.claims", "fixtures.engines", "fixtures.engines.ddp", "fixtures.launch", "fixtures.spec")
    assert not breaches({**dict.fromkeys(known, ""), module: source}, CIRCLES)


def modules_of(circle: str) -> list[str]:
    """The modules of ``circle`` that can be imported outside a test run."""
    return [name for name in read_sources() if circle_of(name, CIRCLES) == circle and ".test_" not in name]


def run_python(*options: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a fresh interpreter, with the checkout to import from."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_pure_modules_import_without_any_package() -> None:
    """They load in an interpreter that sees no installed package at all."""
    result = run_python("-I", "-S", code=f"import {', '.join(modules_of('pure'))}")
    assert result.returncode == 0, result.stderr


def test_pytest_modules_load_no_framework() -> None:
    """Not even by way of another package: after importing all of them no framework is loaded."""
    names = ", ".join([*modules_of("pure"), *modules_of("pytest")])
    result = run_python(code=f"import {names}; print(sorted({FRAMEWORKS!r} & set(sys.modules)))")
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr
