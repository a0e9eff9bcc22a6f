"""Which failures stand for all: few enough to be run again and again while their cause is searched. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fixtures.tables import ENGINES
from gate.bisection import Answer
from gate.records import Judged, Side
from gate.verdict import Verdict, decide, lowest

MOST = 4
"""Symptoms that are followed up: one per rung and engine family is enough to tell causes apart."""

IMPORT = "import"

_SUSPECTS = {
    "deepspeed": ("deepspeed", "accelerate", "torch", "transformers"),
    "fsdp": ("accelerate", "torch", "transformers", "deepspeed"),
    "ddp": ("accelerate", "torch", "transformers", "deepspeed"),
    "plain": ("transformers", "torch", "accelerate", "deepspeed"),
}


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """One failure to search the cause of.

    :param tests: the conformance tests that show it. :param case: the case it shows in.
    :param rung: the lowest rung that breaks. :param metric: what is off there.
    :param told: the finding in one line. :param signature: what tells it from other failures on the same rung.
    :param difference: whether it is a difference from the pinned side, no broken claim.
    """

    tests: tuple[str, ...]
    case: str
    rung: str
    metric: str
    told: str
    signature: str = ""
    difference: bool = False

    @property
    def what(self) -> str:
        """For sentences: ``[dtypes] dtype, at_rest, in llama-tiny-fsdp2-bf16_mixed-x2``."""
        return f"[{self.rung}] {self.metric}, in {self.case}"


def choose(verdict: Verdict, pinned: Side, candidate: Side) -> list[Symptom]:
    """At most :data:`MOST` symptoms that stand for all, lowest rung first, the quickest case of each kind."""
    found = [_of_break(one) for one in lowest(verdict.breaks)]
    found += [
        Symptom(tests=_tests(one.case, pinned), case=one.case, rung=one.rung, metric=one.metric, told=one.sentence,
                difference=True)
        for one in verdict.differences
    ]
    by_kind: dict[tuple[str, str, str], list[Symptom]] = {}
    for symptom in found:
        if symptom.tests:
            kind = (symptom.rung, family(symptom.case, candidate), symptom.signature)
            by_kind.setdefault(kind, []).append(symptom)

    def seconds(symptom: Symptom) -> float:
        seen = pinned.observations.get(symptom.case)
        return seen.wall_seconds if seen is not None else 0.0

    return [min(alike, key=seconds) for alike in by_kind.values()][:MOST]


def _tests(case: str, side: Side) -> tuple[str, ...]:
    """Those of the case, or, if it has none and is only what another is held against, those that say so."""
    own = tuple(nodeid for nodeid in side.by_test if f"[{case}]" in nodeid)
    word = re.compile(rf"(?<![\w.-]){re.escape(case)}(?![\w.-])")
    return own or tuple(
        nodeid for nodeid, found in side.by_test.items() if any(word.search(one.finding.sentence) for one in found)
    )


def _of_break(one: Judged) -> Symptom:
    finding = one.finding
    return Symptom(
        tests=(one.nodeid,), case=finding.subject.split(" ~ ")[0], rung=finding.rung, metric=finding.metric,
        told=finding.sentence, signature=signature(one),
    )


def signature(one: Judged) -> str:
    """For a case that died, how: ``crashed (ValueError``, on whichever rank; for a number that is off, nothing."""
    if one.finding.metric != "outcome":
        return ""
    return re.sub(r"rank \d+: ", "", one.finding.observed).partition(":")[0]


def shown(symptom: Symptom, pinned: Side, trial: Side) -> Answer:
    """Whether ``trial`` shows the symptom: the same test breaks on the same rung, in the same way."""
    compared = decide(pinned, trial)
    if symptom.difference:
        beyond = any((one.case, one.metric) == (symptom.case, symptom.metric) for one in compared.differences)
        ran = getattr(trial.observations.get(symptom.case), "outcome", None) == "ok"
        return "bad" if beyond else "good" if ran else "unclear"
    (test,) = symptom.tests
    floor = lowest([one for one in compared.breaks if one.nodeid == test])
    if any((one.finding.rung, signature(one)) == (symptom.rung, symptom.signature) for one in floor):
        return "bad"
    judged = any(one.finding.passed for one in trial.by_test.get(test, ()))
    return "good" if judged and not floor else "unclear"


def family(case: str, side: Side) -> str:
    """The engine family of a case by its id."""
    seen = side.observations.get(case)
    return ENGINES[seen.case.engine].family if seen is not None else "ddp"


def suspects(changed: Iterable[str], families: Sequence[str]) -> list[str]:
    """What changed, the most likely culprit first: the package that an engine is of, then what it stands on."""
    order = _SUSPECTS[families[0]] if families else _SUSPECTS["ddp"]
    return sorted(changed, key=lambda name: (order.index(name) if name in order else len(order), name))
