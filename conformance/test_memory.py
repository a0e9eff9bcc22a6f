"""Rung 9: the bytes that each rank holds. Sharding really saves what it says, nothing leaks, and all of it returns."""

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import memory, promises
from conformance.catalogue import (
    CHECKPOINTED,
    FITS,
    LEAKS,
    MEMORY,
    OFFLOADED,
    constrained,
    kept_whole,
    params,
    partners,
)
from fixtures import verdict
from fixtures.baseline import no_more
from fixtures.judging import Judge, Observe, Trained
from fixtures.spec import Case
from fixtures.verdict import Claim


@pytest.mark.parametrize("case", params(MEMORY))
def test_state_is_as_derived(case: Case, trained: Trained, judge: Judge) -> None:
    """Weights, masters, gradients and optimizer state are what the engine's arithmetic says, and nothing else is."""
    judge(memory.state(trained(case)))


ALIGNED = [case for case in LEAKS if case.engine != "ddp"]
NEXT_LARGER = {"zero1": "ddp", "zero2": "zero1", "zero3": "zero2", "fsdp1": "zero2", "fsdp2": "zero2"}


@pytest.mark.parametrize("case", params(ALIGNED))
def test_more_sharding_holds_less(case: Case, trained: Trained, judge: Judge) -> None:
    """ZeRO-1 holds less than DDP, ZeRO-2 less than ZeRO-1, ZeRO-3 and FULL_SHARD less than ZeRO-2, in aligned mode."""
    judge(memory.less(trained(case), trained(case.with_(engine=NEXT_LARGER[case.engine]))))


TWO_MODES = [case for case in LEAKS if constrained(case)]


@pytest.mark.parametrize("case", params(TWO_MODES))
def test_the_upcast_costs_what_it_must(case: Case, trained: Trained, judge: Judge) -> None:
    """Aligned mode keeps fp32 where memory-constrained mode keeps bf16: that, and nothing else, is the difference."""
    low = constrained(case)
    assert low is not None
    judge(memory.upcast(trained(case), trained(low)))


@pytest.mark.parametrize("case", params(CHECKPOINTED))
def test_checkpointing_saves_activations(case: Case, trained: Trained, judge: Judge) -> None:
    """Activation checkpointing lets go of what is inside the blocks, all of it."""
    judge(memory.checkpointing_saves(trained(case), trained(kept_whole(case))))


@pytest.mark.parametrize("case", params(OFFLOADED))
def test_offload_is_lower_still(case: Case, trained: Trained, judge: Judge) -> None:
    """State that the engine keeps in the host's memory is none of the device's: what stays is as derived, and less."""
    seen = trained(case)
    judge(
        verdict.same(
            Claim(subject=case.id, rung="memory", metric="offload", reference="what the case asks for"),
            seen.in_force()["engaged"].get("offload"), promises.engaged(case)["offload"],
        ),
        memory.on_device(seen), memory.offload_is_lower(seen, trained(kept_whole(case))),
    )


@pytest.mark.parametrize("case", params(LEAKS))
def test_a_resume_leaves_nothing_behind(case: Case, trained: Trained, judge: Judge) -> None:
    """Live bytes after the steps that follow a save and a load are those of before, to the byte."""
    judge(memory.resumed(trained(case)))


@pytest.mark.parametrize("case", params(LEAKS))
def test_nothing_leaks(case: Case, trained: Trained, judge: Judge) -> None:
    """Live bytes after each of sixteen steps do not grow by a single byte, but for the first and for a load."""
    judge(memory.steady(trained(case)))


@pytest.mark.parametrize("case", params(LEAKS))
def test_peaks_are_no_higher(case: Case, trained: Trained, judge: Judge, snapshot: SnapshotAssertion) -> None:
    """The most that is live in forward, backward and step is what it was before, or less."""
    peaks = memory.peaks(trained(case))
    judge(no_more(snapshot, peaks, subject=case.id, rung="memory", margin=memory.PEAK_MARGIN))


@pytest.mark.parametrize("case", params(MEMORY))
def test_memory_returns(case: Case, trained: Trained, judge: Judge) -> None:
    """A closed engine leaves nothing behind, so that the next model can have what this one had."""
    judge(memory.returned(trained(case)))


@pytest.mark.parametrize("case", params(FITS))
def test_target_batch_fits(case: Case, trained: Trained, judge: Judge) -> None:
    """The batch that the engine is chosen for trains within its budget, which a real limit enforces."""
    judge(memory.fits(trained(case)))


@pytest.mark.parametrize("partner", params([partner for case in FITS for partner in partners(case)]))
def test_partner_does_not_fit(partner: Case, observe: Observe, judge: Judge) -> None:
    """DDP at the same batch, and twice as many rows, run out of the same budget: it binds."""
    judge(memory.must_not_fit(observe(partner)))
