"""``--weights``: a folder of a full-size model's weights, or one line that says why it is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures import pretrained
from fixtures.options import Orders
from fixtures.pretrained import PretrainedError
from fixtures.spec import Case
from fixtures.tables import MODELS
from selftests.plugin_fakes import Suite, assert_usage_error

MISTRAL = {**MODELS["mistral-7b"].config, "architectures": ["MistralForCausalLM"]}


def folder(at: Path, config: Any = MISTRAL, *, weights: str | None = "model-00001-of-00003.safetensors") -> Path:
    """A model folder with this config."""
    at.mkdir(exist_ok=True)
    (at / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights is not None:
        (at / weights).touch()
    return at


def test_the_models_own_folder_is_known(tmp_path: Path) -> None:
    """By architecture and sizes; what else its config says does not matter."""
    at = folder(tmp_path / "any-name", {**MISTRAL, "rope_theta": 1e6, "torch_dtype": "bfloat16"})
    assert pretrained.read(at) == ("mistral-7b", str(at))


@pytest.mark.parametrize("name", ["gpt2-large", "gpt2-xl", "granite-7b", "mistral-7b"])
def test_every_full_size_model_can_be_named(tmp_path: Path, name: str) -> None:
    """Each of the table, by its own config."""
    config = {**MODELS[name].config, "architectures": [MODELS[name].model_class]}
    assert pretrained.read(folder(tmp_path, config))[0] == name


@pytest.mark.parametrize(("config", "words"), [
    ({**MISTRAL, "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM, 32 layers of 4096, is no full-size model"),
    ({**MISTRAL, "num_hidden_layers": 16}, "16 layers of 4096, is no full-size model"),
    ({**MISTRAL, "vocab_size": 32768}, "is no full-size model"), ({}, "no architecture"),
    ("{", "its config.json is no JSON"), ("[1]", "holds no model config"),
])
def test_another_model_is_refused(tmp_path: Path, config: Any, words: str) -> None:
    """Its weights would not fit, or would be those of another experiment."""
    with pytest.raises(PretrainedError, match=words):
        pretrained.read(folder(tmp_path, config))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    """A config alone would train random weights under a pretrained name."""
    with pytest.raises(PretrainedError, match=r"no weights \(\*\.safetensors\) beside it"):
        pretrained.read(folder(tmp_path, weights=None))


def test_no_folder_is_refused(tmp_path: Path) -> None:
    """What does not exist, and what is a file."""
    for at in (tmp_path / "none", folder(tmp_path / "some") / "config.json"):
        with pytest.raises(PretrainedError, match=r"is no model folder \(config\.json: "):
            pretrained.read(at)


def orders(weights: tuple[str, str] | None, **changes: Any) -> Orders:
    """Of a session that was given ``weights``."""
    here = Path()
    words: dict[str, Any] = {"platform": "a100", "deadline_seconds": 1.0, "live": True, **changes}
    return Orders(root=here, run_dir=here, replay_dir=None, weights=weights, **words)


def test_only_its_own_model_starts_from_the_weights() -> None:
    """Their folder stands in the request, so that it alone repeats the run; other cases and rehearsals have none."""
    given = orders(("mistral-7b", "/models/m"))
    case = Case(model="mistral-7b", engine="fsdp2", precision="bf16-mixed", world_size=4, measure="alone")
    assert given.told(case, {})["weights"] == "/models/m"
    assert given.told(case.with_(model="granite-7b"), {}) == {}
    assert given.told(case.rehearsal, {}) == {}
    assert orders(None).told(case, {}) == {}
    assert Orders.from_json(given.to_json()).weights == given.weights


def test_a_wrong_folder_is_a_usage_error(suite: Suite, tmp_path: Path) -> None:
    """One line, exit status 4, before anything runs."""
    tester = suite("""
    @both
    def test_loss(case, judge):
        judge(finding(case))
    """)
    at = folder(tmp_path / "tiny", {**MISTRAL, "hidden_size": 64})
    assert_usage_error(tester.runpytest_inprocess(f"--weights={at}"), "is no full-size model")
    assert_usage_error(tester.runpytest_inprocess("--weights="), "is no model folder")
