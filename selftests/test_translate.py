"""Recipes in other dialects: our reading is Accelerate's, what is written can be loaded, what goes missing is named."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.translate import files
from fixtures.translate.notes import Note, TranslationError
from fixtures.translate.reading import LAUNCH, SECTIONS, read
from fixtures.translate.table import DIALECTS, FSDP, ROWS, ZERO_ONLY
from fixtures.translate.words import put
from fixtures.translate.writing import translate

ROOT = Path(__file__).resolve().parent.parent
SAMPLES: Mapping[str, tuple[Any, ...]] = {
    "gradient_accumulation_steps": (1, 4), "gradient_clipping": (0.0, 0.5, 1.0), "micro_batch": (2,),
    "global_batch": (8,), "partition_size": (1, 2), "parameter_nvme_path": ("/nvme",),
    "optimizer_nvme_path": ("/nvme",), "reduce_dtype": ("fp32",), "accumulation_dtype": ("fp32",),
    "wrap_layers": ("LlamaDecoderLayer",), "wrap_min_parameters": (2000,), "unsharded_modules": (".*head",),
    "moe_leaf_layers": ("MixtralSparseMoeBlock",),
}
"""Values of the rows that take any."""

Document = dict[str, Any]


def empty(dialect: str) -> Document:
    """A file that says its dialect and nothing else."""
    launch: Document = {"compute_environment": "LOCAL_MACHINE", "num_processes": 2, "num_machines": 1}
    if dialect == "deepspeed-json":
        return {"zero_optimization": {"stage": 0}, "train_micro_batch_size_per_gpu": "auto"}
    if dialect == "deepspeed":
        return {**launch, "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}}
    return {**launch, "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": int(dialect[-1])}}


def words(dialect: str) -> Iterator[tuple[str, str, Any]]:
    """Row, path and what can be written there, of every setting of a dialect."""
    for name, row in ROWS.items():
        if dialect not in row.words or (name, dialect) == ("mixed_precision", "deepspeed-json"):
            continue
        word = row.words[dialect]
        yield from ((name, word.path, word.write(value)) for value in word.values or SAMPLES[name])


def with_needs(document: Document, name: str, dialect: str) -> Document:
    """Some words are read beside another only."""
    if name == "activation_offload":
        put(document, "fsdp_config.fsdp_activation_checkpointing", True)
    if name == "broadcast_weights":
        put(document, "fsdp_config.fsdp_cpu_ram_efficient_loading", False)
    if name == "wrap_min_parameters":
        put(document, "fsdp_config.fsdp_auto_wrap_policy", "SIZE_BASED_WRAP")
    if name in ("parameter_offload", "parameter_nvme_path", "efficient_loading"):
        stage = {"deepspeed": "deepspeed_config.zero_stage", "deepspeed-json": "zero_optimization.stage"}
        if dialect in stage:
            put(document, stage[dialect], 3)
    if name in ("masters", "optimizer_state_dtype"):
        put(document, "bf16.enabled", True)
    return document


def single() -> Iterator[Any]:
    """For every dialect, word and value a file that says it."""
    for dialect in DIALECTS:
        for name, path, written in words(dialect):
            document = with_needs(empty(dialect), name, dialect)
            put(document, path, written)
            yield pytest.param(document, id=f"{dialect}-{name}-{written}".replace("/", ""))
    for name in ("bf16", "fp16"):
        yield pytest.param({**empty("deepspeed-json"), name: {"enabled": True}}, id=f"deepspeed-json-{name}")


def mixtures(dialect: str, count: int) -> Iterator[Document]:
    """Files that say many things at once, the same in every run."""
    drawn = random.Random(dialect)
    for _ in range(count):
        document = empty(dialect)
        for name, path, written in drawn.sample(list(words(dialect)), k=6):
            put(with_needs(document, name, dialect), path, written)
        yield document


SINGLE = list(single())
MIXED = [document for dialect in DIALECTS for document in mixtures(dialect, 40)]
DOCUMENTS = [param.values[0] for param in SINGLE] + MIXED


def unnamed(document: Document, target: str, notes: list[Note] | None = None) -> list[str]:
    """Settings that are others after a round trip to ``target`` although no note of either way names them."""
    before = read(document)
    there = translate(before, target)
    back = translate(read(dict(there.document)), before.dialect)
    after = read(dict(back.document))
    told = {note.setting for note in ((*there.notes, *back.notes) if notes is None else notes)}
    return [name for name in ROWS if before.values[name] != after.values[name] and name not in told]


@pytest.mark.parametrize("target", DIALECTS)
def test_a_round_trip_loses_only_what_was_named(target: str) -> None:
    """Every word of every dialect, alone and with others, comes back as it was, or a note says that it does not."""
    trips = [d for d in DOCUMENTS if read(d).dialect != target]
    assert len(trips) > 100
    assert not [(found, document) for document in trips if (found := unnamed(document, target))]


@pytest.mark.parametrize("target", DIALECTS)
def test_without_notes_the_loss_would_show(target: str) -> None:
    """The comparison is not blind: with the notes taken away, settings are missing on every way."""
    assert any(unnamed(d, target, notes=[]) for d in DOCUMENTS if read(d).dialect != target)


@pytest.mark.parametrize("target", DIALECTS)
def test_what_was_said_and_is_not_written_is_named(target: str) -> None:
    """One way, too: a said setting holds in the new file, or a note names it."""
    for document in DOCUMENTS:
        recipe = read(document)
        if recipe.dialect == target:
            continue
        there = translate(recipe, target)
        now, told = read(dict(there.document)).values, {note.setting for note in there.notes}
        assert not [name for name in recipe.said if now[name] != recipe.values[name] and name not in told], document


# -- Accelerate's own reading -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_accelerate(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Document, dict[str, Any]]]:
    """Each single file, and each of them in each other dialect, with what Accelerate's classes make of it."""
    folder = tmp_path_factory.mktemp("recipes")
    documents = [param.values[0] for param in SINGLE]
    for document in list(documents):
        recipe = read(document)
        documents += [dict(translate(recipe, target).document) for target in DIALECTS if target != recipe.dialect]
    paths = []
    for number, document in enumerate(documents):
        dialect = read(document).dialect
        paths.append(folder / f"{number}.{'json' if dialect == 'deepspeed-json' else 'yaml'}")
        # A DeepSpeed config does not say how many processes there are; `accelerate launch` wants to be told.
        launched = {} if dialect == "deepspeed-json" else {"num_processes": 2}
        paths[-1].write_text(files.dump({**launched, **document}, dialect))
    command = [sys.executable, "-m", "selftests.accelerate_reader", *map(str, paths)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(told) == len(documents) > 200, ended.stderr
    return list(zip(documents, told, strict=True))


def test_accelerate_reads_what_we_read(by_accelerate: list[tuple[Document, dict[str, Any]]]) -> None:
    """For every file, as it was written and translated, its plugins hold our neutral values, defaults included."""
    for document, told in by_accelerate:
        if document.get("mixed_precision") == "fp8":  # it wants another package, before it reads on
            continue
        assert "error" not in told, (document, told)
        values = read(document).values
        assert {name: values[name] for name in told} == told, document


def test_accelerates_reading_covers_every_kind_of_word(by_accelerate: list[tuple[Document, dict[str, Any]]]) -> None:
    """What is compared above is most of the table, with more than one value each."""
    seen = {name: {str(told[name]) for _, told in by_accelerate if name in told} for name in ROWS}
    assert {name for name, values in seen.items() if len(values) > 1} >= {
        "mixed_precision", "masters", "sharding", "partition_size", "parameter_offload", "optimizer_offload",
        "efficient_loading", "wrap_policy", "activation_checkpointing", "checkpoint_form", "forward_prefetch",
        "backward_prefetch", "original_parameters", "broadcast_weights", "gradient_accumulation_steps",
        "gradient_clipping",
    }


# -- what is said about it --------------------------------------------------------------------------------------------

FSDP1 = empty("fsdp1")
ZERO2 = {**empty("deepspeed-json"), "zero_optimization": {"stage": 2}}

NAMED: list[tuple[Document, str, str]] = [
    ({**ZERO2, "gradient_clipping": 0.5}, "fsdp2",
     "script: gradient_clipping: FSDP has no key for it: accelerator.clip_grad_norm_(model.parameters(), 0.5)"),
    # Unsaid is 1.0 under DeepSpeed, and off in a loop that does not clip.
    (ZERO2, "fsdp2",
     "script: gradient_clipping: FSDP has no key for it: accelerator.clip_grad_norm_(model.parameters(), 1.0)"),
    (FSDP1, "deepspeed", "changed: gradient_clipping: DeepSpeed clips to this number and ignores the one given to"),
    (FSDP1, "deepspeed", "default: sharding: everything where the file says nothing; unsaid it would be gradients"),
    ({**ZERO2, "gradient_clipping": 0}, "deepspeed", "changed: gradient_clipping: 0 here would be taken for unsaid"),
    ({**ZERO2, "zero_optimization": {"stage": 1}}, "fsdp2", "changed: sharding: FSDP has no ZeRO-1"),
    ({**ZERO2, "zero_optimization": {"stage": 0}}, "fsdp2", "changed: sharding: FSDP2 always divides"),
    ({**ZERO2, "communication_data_type": "fp32"}, "fsdp2", "script: reduce_dtype: fp32: no key says so"),
    ({**ZERO2, "gradient_accumulation_steps": 4}, "fsdp1", "script: gradient_accumulation_steps: FSDP has no key"),
    ({**ZERO2, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"}}}, "fsdp2",
     "changed: parameter_offload: to the CPU's memory"),
    ({**ZERO2, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "fsdp2",
     "changed: parameter_offload: FSDP offloads all or nothing"),
    ({**ZERO2, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "fsdp2",
     "ignored: parameter_offload: DeepSpeed offloads weights at stage 3 only"),
    ({**ZERO2, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "fsdp2",
     "changed: mixed_precision: no: bf16 masters are FSDP's without mixed precision"),
    ({**ZERO2, "optimizer": {"type": "AdamW"}}, "fsdp2", "script: optimizer: build it in the script"),
    ({**ZERO2, "zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "fsdp1",
     "lost: zero_optimization.zero_quantized_weights: True: no engine but ZeRO++"),
    ({**ZERO2, "bogus": 1}, "fsdp1", "lost: bogus: no setting known to this table"),
    ({**FSDP1, "fsdp_config": {"fsdp_version": 1, "fsdp_reshard_after_forward": "SHARD_GRAD_OP"}}, "fsdp2",
     "ignored: fsdp_config.fsdp_reshard_after_forward: with fsdp_version 1 the plugin takes fsdp_sharding_strategy"),
    ({**FSDP1, "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": "HYBRID_SHARD"}}, "deepspeed",
     "changed: sharding: only DeepSpeed's own config has zero_hpz_partition_size"),
    ({**FSDP1, "fsdp_config": {"fsdp_version": 1, "fsdp_activation_checkpointing": True}}, "deepspeed",
     "script: activation_checkpointing: no key of DeepSpeed does it"),
    ({**empty("fsdp2"), "parallelism_config": {"parallelism_config_tp_size": 2, "parallelism_config_cp_size": 1}},
     "deepspeed", "lost: parallelism_config.parallelism_config_tp_size: no setting known to this table"),
    ({**FSDP1, "mixed_precision": "bf16"}, "deepspeed", "changed: mixed_precision: DeepSpeed keeps fp32 masters"),
    ({**empty("deepspeed"), "mixed_precision": "bf16"}, "fsdp1", "changed: mixed_precision: the fp32 masters are an"),
    ({**empty("deepspeed"), "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": True}}, "fsdp1",
     "changed: efficient_loading: rank 0 loads all of it"),
]


@pytest.mark.parametrize(("document", "target", "words"), NAMED)
def test_the_loss_is_named(document: Document, target: str, words: str) -> None:
    """Each thing that a user would trip over has its sentence."""
    notes = [str(note) for note in translate(read(document), target).notes]
    assert [note for note in notes if note.startswith(words)], notes


def test_hybrid_sharding_goes_over_where_machines_are_known() -> None:
    """Four machines of eight: a parallelism_config for FSDP2, a secondary partition for ZeRO++."""
    document = {**FSDP1, "num_processes": 32, "num_machines": 4,
                "fsdp_config": {"fsdp_version": 1, "fsdp_sharding_strategy": "HYBRID_SHARD"}}
    fsdp2 = translate(read(document), "fsdp2").document
    assert fsdp2["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 4, "parallelism_config_dp_shard_size": 8
    }
    zero = translate(read(document), "deepspeed-json").document["zero_optimization"]
    assert (zero["stage"], zero["zero_hpz_partition_size"]) == (3, 8)


def test_spelling_is_as_free_as_accelerates() -> None:
    """Text for booleans, any case, keys without their prefix, ``no`` that YAML takes for false."""
    said = {"version": 2, "offload_params": "True", "fsdp_auto_wrap_policy": "transformer_based_wrap",
            "fsdp_reshard_after_forward": "false"}
    values = read({"distributed_type": "FSDP", "fsdp_config": said, "mixed_precision": False}).values
    assert [values[name] for name in ("parameter_offload", "wrap_policy", "sharding", "mixed_precision")] == [
        "cpu", "layers", "gradients", "no"
    ]


def test_an_older_files_word_for_fp16_is_taken() -> None:
    """Accelerate converts it, unless the file says mixed_precision."""
    older = {**empty("fsdp2"), "fp16": True}
    assert read(older).values["mixed_precision"] == "fp16"
    assert read({**older, "mixed_precision": "bf16"}).values["mixed_precision"] == "bf16"
    assert read({**older, "fp16": False}).values["mixed_precision"] == "no"


def test_every_key_that_accelerate_knows_is_known() -> None:
    """The installed release's fields: a new one would be refused here and taken there."""
    program = ("import dataclasses, json; from accelerate.commands.config.config_args import ClusterConfig; "
               "print(json.dumps([field.name for field in dataclasses.fields(ClusterConfig)]))")
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(json.loads(told.stdout.splitlines()[-1])) <= {*SECTIONS, *LAUNCH}


def test_two_files_are_read_as_one(tmp_path: Path) -> None:
    """A YAML that names a DeepSpeed config adds its two words to it."""
    (tmp_path / "ds.json").write_text(json.dumps({**ZERO2, "bf16": {"enabled": True}}))
    (tmp_path / "a.yaml").write_text(files.dump(
        {"distributed_type": "DEEPSPEED", "num_processes": 2, "deepspeed_config": {
            "deepspeed_config_file": "ds.json", "zero3_init_flag": False}}, "deepspeed"))
    recipe = files.recipe(tmp_path / "a.yaml")
    assert recipe.dialect == "deepspeed-json"
    assert [recipe.values[name] for name in ("mixed_precision", "sharding", "efficient_loading")] == [
        "bf16", "gradients", False
    ]


def test_no_sentence_is_unfinished() -> None:
    """Every row says something for every dialect without a word, unless its value there is fixed anyway."""
    for row in ROWS.values():
        for dialect in DIALECTS:
            if dialect not in row.words:
                assert row.without.get(dialect) or row.default(dialect) is not None, (row.name, dialect)
    assert all(text for _, text in ZERO_ONLY.values())


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, as a user types it."""
    command = [sys.executable, "-m", "fixtures.translate", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", None, "No such file or directory"),
        ("a.yaml", "", "holds nothing, not settings by name"),
        ("a.yaml", "- 1", "holds list, not settings by name"),
        ("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nmixed_precison: bf16",
         "mixed_precison is no key that Accelerate knows: did you mean mixed_precision?"),
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nwhatever: 1",
         "whatever is no key that Accelerate knows, and refuses the file"),
        ("a.yaml", "a: [", "line 1: "),
        ("a.json", "{", "line 1: Expecting property name"),
        ("a.json", "{}", "neither an Accelerate config (no distributed_type) nor a DeepSpeed config"),
        ("a.yaml", "distributed_type: MULTI_GPU", "distributed_type MULTI_GPU shards nothing"),
        ("a.yaml", "distributed_type: FSDP", "fsdp_config is missing or empty"),
        ("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 3}", "fsdp_config.fsdp_version: '3' is not"),
        ("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL}",
         "fsdp_config.fsdp_sharding_strategy: 'FULL' is not one of FULL_SHARD, SHARD_GRAD_OP"),
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 7}",
         "deepspeed_config.zero_stage: 7 is not one of 0, 1, 2, 3"),
        ("a.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: gone.json}",
         "gone.json: No"),
        ("a.json", '{"zero_optimization": {}, "bf16": {"enabled": true}, "fp16": {"enabled": true}}',
         "bf16.enabled and fp16.enabled cannot both be true"),
    ],
)
def test_a_bad_file_gets_one_line(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    """It names the file and what is wrong in it; status 4."""
    if text is not None:
        (tmp_path / name).write_text(text)
    ended = run(tmp_path / name, "--to", "deepspeed-json" if name.endswith("yaml") else "fsdp2")
    assert (ended.returncode, ended.stdout) == (4, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("fixtures.translate: ")
    assert str(tmp_path) in line
    assert words in line


@pytest.mark.parametrize("arguments", [("x.yaml",), ("x.yaml", "--to", "fsdp3"), ("x.yaml", "--to"), ("--bogus",)])
def test_a_bad_command_gets_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Status 4, whatever is missing or unknown."""
    (tmp_path / "x.yaml").write_text(files.dump(FSDP1, "fsdp1"))
    ended = run(*(tmp_path / word if word == "x.yaml" else word for word in arguments))
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (4, "", 1)


def test_the_command_writes_a_file_that_it_reads(tmp_path: Path) -> None:
    """Out and back in; the notes are on standard error, the file alone on standard output."""
    (tmp_path / "a.yaml").write_text(files.dump({**FSDP1, "mixed_precision": "bf16"}, "fsdp1"))
    shown = run(tmp_path / "a.yaml", "--to", "deepspeed-json")
    assert (shown.returncode, json.loads(shown.stdout)["bf16"]) == (0, {"enabled": True})
    assert "changed: mixed_precision" in shown.stderr
    assert run(tmp_path / "a.yaml", "--to", "deepspeed", "--out", tmp_path / "b.yaml").returncode == 0
    assert files.recipe(tmp_path / "b.yaml").values["sharding"] == "everything"


def test_the_table_is_printed_whole() -> None:
    """Every setting, with every dialect under it."""
    shown = run()
    assert shown.returncode == 0
    assert [line for line in shown.stdout.splitlines() if line.split(":")[0] in ROWS and line[0] != " "] == [
        f"{row.name}: {row.meaning}" for row in ROWS.values()
    ]
    assert all(shown.stdout.count(f"\n  {dialect} ") >= len(ROWS) for dialect in DIALECTS)


def test_a_recipe_in_the_same_dialect_is_refused() -> None:
    """There is nothing to translate, and rewriting would drop what the table does not know."""
    with pytest.raises(TranslationError, match="in the dialect fsdp1 already"):
        translate(read(FSDP1), "fsdp1")
    assert read(FSDP1).dialect in FSDP
