"""Other kernels, the same training: torch.compile, flash attention, fused AdamW. On GPUs alone."""

import pytest

from conformance import claims, promises
from conformance.catalogue import KERNELS, params
from conformance.tolerances import reference_kind
from fixtures import verdict
from fixtures.judging import Judge, Trained
from fixtures.observation import Observation
from fixtures.spec import Case
from fixtures.verdict import Claim, Finding


@pytest.mark.parametrize("case", params(KERNELS))
def test_kernel_trains_as_the_oracle(case: Case, trained: Trained, judge: Judge) -> None:
    """Loss, gradients, curve and weights are those of the plain oracle, which compiles and fuses nothing."""
    seen = trained(case)
    judge(claims.training(seen, trained(case.oracle), reference_kind(case)))


@pytest.mark.parametrize("case", params(KERNELS))
def test_kernel_is_in_use(case: Case, trained: Trained, judge: Judge) -> None:
    """The engine is there, and with it what the case asks for: compiled frames, or the fused optimizer.

    Attention that cannot take the flash kernel raises, so a run that ended has taken it.
    """
    seen = trained(case)
    judge(promises.engagement(case, seen.in_force()["engaged"]), in_use(seen))


def in_use(seen: Observation) -> list[Finding]:
    """What the live engine says of compiler and optimizer."""
    told = promises.look(seen.in_force()["settings"], "accelerate") or {}
    case = seen.case

    def claim(metric: str) -> Claim:
        return Claim(subject=case.id, rung="engaged", metric=metric, reference="what the case asks for")

    frames = told.get("compiled_frames", 0)
    fits = frames > 0 if case.compiler != "none" else frames == 0
    return [
        verdict.holds(claim("compiled frames"), fits, observed=f"{frames}",
                      allowed="some" if case.compiler != "none" else "none"),
        verdict.same(claim("fused optimizer"), bool(told.get("optimizer_defaults", {}).get("fused")), case.fused),
    ]
