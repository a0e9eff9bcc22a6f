"""State in files (DeepSpeed's offload to NVMe): the same training, and the files were really there."""

import pytest

from conformance import claims, promises
from conformance.catalogue import SWAPPED, params
from fixtures import verdict
from fixtures.judging import Judge, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim

BYTES = 3 * 4
"""Per parameter: master and Adam's two averages, each in fp32. Norms stay in memory, weights come and go."""


@pytest.mark.parametrize("case", params([SWAPPED]))
def test_swapped_training_is_the_same(case: Case, trained: Trained, judge: Judge) -> None:
    """Rows, loss, gradients, curve and weights are the oracle's, and ZeRO-3's with its state in the host's memory.

    Files hold masters and optimizer state of all ranks.
    """
    seen, oracle, in_memory = trained(case), trained(case.oracle), trained(case.with_(offload="parameters"))
    due = BYTES * sum(len(values) for values in seen.group("parameters").values())
    swapped = [rank.engaged["local"].get("swapped_bytes", 0) for rank in seen.ranks]
    claim = Claim(subject=case.id, rung="engaged", metric="bytes in files", reference="masters and averages, fp32")
    judge(
        promises.engagement(case, seen.in_force()["engaged"]),
        verdict.holds(claim, min(swapped) >= 0.98 * due, observed=f"{min(swapped)}", allowed=f"98 % of {due}, or more"),
        claims.rows(seen),
        claims.training(seen, oracle, "oracle"),
        claims.training(seen, in_memory, "peer", scale=oracle),
    )
