"""A user's recipe: how it becomes a case, how a model gets small, and what a bad file gets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import own_model
from fixtures import extensions
from fixtures.dialects import settings
from fixtures.launch import Launcher
from fixtures.observation import Request
from fixtures.recipes import given
from fixtures.recipes.plan import plan
from fixtures.recipes.scaling import parameters, scaled_down, too_small, without_dropout
from fixtures.spec import Case
from fixtures.translate.notes import TranslationError
from fixtures.translate.reading import read

ROOT = Path(__file__).resolve().parent.parent

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
         "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
         "max_position_embeddings": 131072, "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "bfloat16"}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 1280, "n_layer": 36, "n_head": 20, "n_positions": 1024,
        "n_ctx": 1024, "vocab_size": 50257, "bos_token_id": 50256, "resid_pdrop": 0.1, "attn_pdrop": 0.1}
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2,
           "head_dim": 128, "sliding_window": 4096}
FSDP: dict[str, Any] = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8, "fsdp_config": {
    "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
ZERO: dict[str, Any] = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}


def planned(document: dict[str, Any], config: dict[str, Any] | None = None, *, scale_down: bool = True) -> Any:
    """The plan for these contents."""
    return plan(read(document), document, name="my recipe.yaml", config=config, scale_down=scale_down)


@pytest.mark.parametrize("config", [LLAMA, GPT2, MIXTRAL], ids=["llama", "gpt2", "mixtral"])
def test_a_scaled_down_model_is_small_and_legal(config: dict[str, Any]) -> None:
    """Heads divide the width and each other, tokens fit the vocabulary, bytes fit in both."""
    small = scaled_down(config)
    assert parameters(small) < 1_000_000 < parameters(config)
    assert not too_small(small)
    heads = small.get("num_attention_heads") or small["n_head"]
    assert (small.get("hidden_size") or small["n_embd"]) % (2 * heads) == 0
    assert heads % small.get("num_key_value_heads", 1) == 0
    assert all(small[name] < small["vocab_size"] for name in small if name.endswith("token_id"))
    assert set(small) == set(config)


def test_grouped_heads_stay_grouped() -> None:
    """Eight query heads to a key-value head become four to one: the architecture's mark is kept."""
    assert scaled_down(LLAMA)["num_key_value_heads"] == 1
    assert scaled_down({**LLAMA, "num_key_value_heads": 64})["num_key_value_heads"] == 4


def test_dropout_is_named() -> None:
    """Random masks cannot be the oracle's, so they are turned off, and the plan says so."""
    config, names = without_dropout(GPT2)
    assert (config["resid_pdrop"], config["attn_pdrop"], sorted(names)) == (0.0, 0.0, ["attn_pdrop", "resid_pdrop"])
    assert any("attn_pdrop is 0" in line for line in planned(ZERO, GPT2).lines)


@pytest.mark.parametrize(
    ("document", "own", "twin", "precision"),
    [
        (FSDP, "fsdp2", "zero3", "bf16-mixed"),
        ({**FSDP, "mixed_precision": "no"}, "fsdp2", "zero3", "fp32"),
        ({**FSDP, "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": "SHARD_GRAD_OP"}}, "fsdp1-grad-op",
         "zero2", "bf16-mixed"),
        ({**FSDP, "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": "NO_SHARD"}}, "fsdp1-no-shard", "zero0",
         "bf16-mixed"),
        (ZERO, "zero2", "fsdp2-no-reshard", "bf16-mixed"),
        ({**ZERO, "zero_optimization": {"stage": 1}}, "zero1", "fsdp2-no-reshard", "bf16-mixed"),
        ({**ZERO, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
         "zero2", "fsdp2-no-reshard", "bf16-true"),
        ({"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}}, "zero3", "fsdp2", "fp32"),
    ],
)
def test_a_recipe_becomes_two_cases(document: dict[str, Any], own: str, twin: str, precision: str) -> None:
    """Engine and precision follow from the file; the twin is in the other dialect, with the same oracle."""
    made = planned(document)
    assert (made.own.engine, made.twin.engine) == (own, twin)
    assert made.own.precision == made.twin.precision == precision
    assert made.own.oracle == made.twin.oracle
    assert made.own.oracle.recipe is None
    assert made.own.id != made.twin.id


def test_loop_settings_go_to_both() -> None:
    """What DeepSpeed's config says of accumulation and clipping, the loop does under FSDP."""
    made = planned({**ZERO, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5})
    assert [(c.accumulation_steps, c.max_grad_norm) for c in (made.own, made.twin)] == [(4, 0.5)] * 2
    assert planned(ZERO).own.max_grad_norm == 1.0
    # An FSDP recipe's loop does not clip: DeepSpeed has to be told, or it clips to 1.0.
    twin = settings(planned(FSDP).twin)["recipe"]["deepspeed"]
    assert (planned(FSDP).own.max_grad_norm, twin["gradient_clipping"]) == (None, 0.0)


def test_checkpointing_is_asked_of_the_model_where_no_key_does() -> None:
    """FSDP's flag becomes the script's call under DeepSpeed."""
    made = planned({**FSDP, "fsdp_config": {**FSDP["fsdp_config"], "fsdp_activation_checkpointing": True}})
    assert [settings(case)["gradient_checkpointing"] for case in (made.own, made.twin)] == [False, True]


def test_the_file_is_told_as_it_is() -> None:
    """What is not for a CPU is changed, and each change has a line; the rest is word for word."""
    made = planned({**FSDP, "fsdp_config": {**FSDP["fsdp_config"], "fsdp_offload_params": True}})
    told = settings(made.own)["recipe"]["accelerate"]
    assert told["fsdp_config"] == {
        **FSDP["fsdp_config"], "fsdp_offload_params": False, "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_sync_module_states": False,
    }
    assert [line for line in made.lines if line.startswith("recipe: ")] == [
        "recipe: num_processes: 2 instead of 8",
        "recipe: fsdp_offload_params: off, all is on the CPU already, and there is no GPU to pin memory for",
        "recipe: fsdp_cpu_ram_efficient_loading and fsdp_sync_module_states: off, every rank builds the same weights",
    ]


def test_a_mended_file_is_another_case(tmp_path: Path) -> None:
    """What is judged is the file as it is now, also where an Accelerate config only names it: never an older copy."""
    named, recipe = tmp_path / "ds.json", tmp_path / "accelerate.yaml"
    recipe.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n")
    named.write_text(json.dumps(ZERO))
    for path in (named, recipe):
        named.write_text(json.dumps(ZERO))
        before = given.read(path, None, scale_down=True)
        named.write_text(json.dumps({**ZERO, "gradient_clipping": 0.25}))
        after = given.read(path, None, scale_down=True)
        assert (before.own.max_grad_norm, after.own.max_grad_norm) == (1.0, 0.25)
        assert not {before.own.id, before.twin.id} & {after.own.id, after.twin.id}
    assert after.lines[0] == f"recipe: settings of {named}"


def test_a_recipe_case_repeats_from_its_request() -> None:
    """Its JSON holds settings and model whole; another content is another id."""
    own = planned(FSDP, LLAMA).own
    again = Case.from_json(json.loads(json.dumps(own.to_json())))
    assert (again, again.id, settings(again)) == (own, own.id, settings(own))
    assert own.id.endswith(str(own.recipe))
    assert str(own.recipe).startswith("recipe_my_recipe_")
    assert planned({**FSDP, "mixed_precision": "no"}, LLAMA).own.id != own.id


@pytest.mark.parametrize(
    ("document", "config", "words"),
    [
        ({**FSDP, "mixed_precision": "fp16"}, None, "mixed_precision fp16 needs a GPU"),
        ({**FSDP, "mixed_precision": "fp8"}, None, "mixed_precision fp8 needs a GPU"),
        ({**ZERO, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, None,
         "parameter_offload to NVMe is not run"),
        ({**FSDP, "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": "HYBRID_SHARD"}}, None,
         "hybrid sharding needs more than one machine"),
        ({"zero_optimization": {"stage": 2}}, LLAMA, "weights of dtype bfloat16 under DeepSpeed without mixed"),
        (FSDP, {**LLAMA, "torch_dtype": "float16"}, "weights of dtype float16 cannot be trained on a CPU"),
        (FSDP, {**LLAMA, "architectures": ["BertModel"]}, "architectures names no causal language model"),
    ],
)
def test_what_cannot_be_run_here_is_said(document: dict[str, Any], config: dict[str, Any] | None, words: str) -> None:
    """One sentence, before anything runs."""
    with pytest.raises(TranslationError, match=re.escape(words)):
        planned(document, config)


def test_a_large_model_is_not_run_by_accident() -> None:
    """Without --scaled-down its size is the answer."""
    with pytest.raises(TranslationError, match="million parameters are too many for a CPU: add --scaled-down"):
        planned(FSDP, LLAMA, scale_down=False)


def pytest_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The suite, as a user starts it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (None, (), "recipe.yaml: No such file or directory"),
        ("a: [", (), "recipe.yaml: line 1: "),
        ("distributed_type: MULTI_GPU", (), "recipe.yaml: distributed_type MULTI_GPU shards nothing"),
        (json.dumps(FSDP), ("--recipe-model=/nowhere",), "/nowhere: No such file or directory"),
        (json.dumps({**FSDP, "mixed_precision": "fp16"}), (), "recipe.yaml: mixed_precision fp16 needs a GPU"),
    ],
)
def test_a_bad_recipe_gets_one_line(
    tmp_path: Path, content: str | None, arguments: tuple[str, ...], words: str,
) -> None:
    """Exit status 4, and the line names the file."""
    path = tmp_path / "recipe.yaml"
    if content is not None:
        path.write_text(content)
    ended = pytest_command(f"--recipe={path}", f"--run-dir={tmp_path / 'run'}", *arguments)
    assert ended.returncode == 4, ended.stdout + ended.stderr
    (line,) = [line for line in (ended.stdout + ended.stderr).splitlines() if line.startswith("ERROR")]
    assert words in line
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_recipe_is_a_usage_error() -> None:
    """--scaled-down alone asks for nothing."""
    ended = pytest_command("--scaled-down", "--collect-only")
    assert ended.returncode == 4
    assert "--recipe-model and --scaled-down go with --recipe=FILE" in ended.stdout + ended.stderr


def test_a_recipe_selects_its_own_tests_alone(tmp_path: Path) -> None:
    """None of the gate's cases is collected beside it, and it is not collected beside them."""
    (tmp_path / "recipe.yaml").write_text(json.dumps(FSDP))
    with_recipe = pytest_command("--collect-only", f"--recipe={tmp_path / 'recipe.yaml'}").stdout
    assert {line.partition("::")[0] for line in with_recipe.splitlines() if "::" in line} == {
        "conformance/test_recipe.py"
    }
    assert "test_recipe.py" not in pytest_command("--collect-only", "conformance").stdout


# -- real runs: a fault is seen under a recipe, too -------------------------------------------------------------------


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    """The gate's own."""
    extensions.ensure_built()
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(scope="module")
def recorded(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe, its twin and what they are compared with, on a scaled-down Llama."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "recipe.yaml").write_text(json.dumps(FSDP))
    made = given.read(folder / "recipe.yaml", folder, scale_down=True)
    for case in (made.own, made.twin, made.own.oracle, *own_model.cuts(made.own)):
        record(launcher, folder / "run", case)
    return folder


def record(launcher: Launcher, folder: Path, case: Case, fault: str | None = None) -> None:
    """Run ``case`` as the plugin does."""
    (folder / case.id).mkdir(parents=True)
    request = Request(case=case, settings=settings(case), fault=fault)
    seen = launcher.run(request, folder / case.id, deadline_seconds=120)
    assert seen.outcome == "ok", seen.error


def judged(folder: Path, run: Path) -> subprocess.CompletedProcess[str]:
    """The recipe judged from a record."""
    return pytest_command(
        f"--recipe={folder / 'recipe.yaml'}", f"--recipe-model={folder}", "--scaled-down", f"--replay={run}"
    )


def test_a_sound_recipe_passes(recorded: Path) -> None:
    """Every rung holds, for the file and for its translation."""
    ended = judged(recorded, recorded / "run")
    assert ended.returncode == 0, ended.stdout
    assert "2 of 2 gated cases" in ended.stdout


@pytest.mark.parametrize(
    ("fault", "rung"),
    [
        ("gradient_not_averaged", "gradients"), ("other_ranks_data", "data"),
        # Of the norm of step 2 it is the curve's neighbour: in low precision the one or the other shows it first.
        ("learning_rate_times_world_size", "gradients|curve"),
    ],
)
@pytest.mark.parametrize("which", ["own", "twin"])
def test_a_fault_under_a_recipe_is_seen(
    fault: str, rung: str, which: str, *, recorded: Path, launcher: Launcher, tmp_path: Path,
) -> None:
    """In the user's recipe or in its twin: the rung that breaks is the fault's."""
    case = getattr(given.read(recorded / "recipe.yaml", recorded, scale_down=True), which)
    run = tmp_path / "run"
    run.mkdir()
    for folder in (recorded / "run").iterdir():
        if folder.name != case.id:
            (run / folder.name).symlink_to(folder)
    record(launcher, run, case, fault)
    ended = judged(recorded, run)
    assert ended.returncode == 1, ended.stdout
    assert re.search(rf"\[({rung})\] {re.escape(case.id)}", ended.stdout), ended.stdout
