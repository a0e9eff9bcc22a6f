"""Full size. With ``--rehearse``: what each case will need of a card; without: 7B models on four of them."""

import pytest
from syrupy.assertion import SnapshotAssertion

from conformance import full_size, promises, rehearsal, trials
from conformance.full_size import GRANITE_TRIAL, MISTRAL_TRIAL, FullSize, Trial
from fixtures.baseline import no_more
from fixtures.judging import Judge, Trained
from fixtures.spec import Case

ELEMENTS = 6.74e9
"""Parameters of Granite 7B, as the published MFU counts them."""
SLOWER = 0.05
"""How much longer than its baseline a step may take, as for all paces."""


@pytest.mark.parametrize(("case", "platform", "row"), full_size.params())
def test_full_size_fits_where_it_should(
    case: Case, platform: str, row: FullSize, trained: Trained, judge: Judge,
) -> None:
    """The rehearsed peak fits on the platform's card, or does not, as the case says; it is what is booked for it."""
    rehearsed = trained(case)
    judge(
        rehearsal.verdict_of(rehearsed, platform, fits=platform in row.fits_on), rehearsal.straight(rehearsed),
        rehearsal.booked(rehearsed, row.gib),
    )


@pytest.mark.parametrize("case", full_size.runs())
def test_run_is_the_engine_and_fits(case: Case, trained: Trained, judge: Judge) -> None:
    """The asked engine is there, and the card held no more than the rehearsal foretold."""
    seen = trained(case)
    judge(promises.engagement(case, seen.in_force()["engaged"]), trials.within(seen, full_size.need(case)))


@pytest.mark.parametrize(("case", "trial"), [*full_size.trial(GRANITE_TRIAL), *full_size.trial(MISTRAL_TRIAL)])
def test_engines_give_one_curve(case: Case, trial: Trial, trained: Trained, judge: Judge) -> None:
    """FSDP2 and ZeRO-3 train one model: their curves lie as close as rounding lets them."""
    run, other, cut = (trained(one) for one in trial.three)
    judge(trials.one_curve(run, other, cut), [trials.timed(one) for one in (run, other, cut)])


@pytest.mark.parametrize(("case", "trial"), [
    *full_size.trial(GRANITE_TRIAL)[:1], *full_size.trial(MISTRAL_TRIAL)[:1],
])
def test_loss_falls(case: Case, trial: Trial, trained: Trained, judge: Judge) -> None:
    """In aligned mode both engines learn; two curves that stand still would agree, too."""
    judge(trials.learns(trained(one)) for one in trial.three)


@pytest.mark.parametrize(("case", "trial"), full_size.trial(MISTRAL_TRIAL)[:1])
def test_bf16_weights_stay_behind(case: Case, trial: Trial, trained: Trained, judge: Judge) -> None:
    """Mistral 7B at a low rate, as published: memory-constrained FSDP stays above aligned FSDP, whatever its rate.

    Its twin, DeepSpeed with bf16 masters, stays behind as it does.
    """
    aligned, cut = trained(case), trained(trial.runs[trial.cut])
    low = [trained(run) for name, run in trial.runs.items() if name.startswith("constrained")]
    judge(trials.stays_behind(one, aligned, cut) for one in low)


@pytest.mark.parametrize(("case", "trial"), full_size.trial(GRANITE_TRIAL)[:1])
def test_fsdp_is_as_fast_as_deepspeed(case: Case, trial: Trial, trained: Trained, judge: Judge) -> None:
    """Tokens per second of Granite 7B lie as close together as published, and are steady enough to say so."""
    run, other = (trained(one) for one in trial.three[:2])
    judge(trials.as_fast(run, other, elements=ELEMENTS), trials.steady(run), trials.steady(other))


@pytest.mark.parametrize(("case", "trial"), full_size.trial(GRANITE_TRIAL)[:1])
def test_step_takes_no_longer(
    case: Case, trial: Trial, trained: Trained, judge: Judge, snapshot: SnapshotAssertion,
) -> None:
    """A step of Granite 7B takes no longer than it did on this platform."""
    found = trials.milliseconds([trained(one) for one in trial.three[:2]])
    judge(no_more(snapshot, found, subject=case.id, rung="throughput", margin=SLOWER, unit="ms"))
