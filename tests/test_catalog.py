"""Descriptors: what they add up to, how they are found, and how a wrong one is refused."""

import os
import sys
from pathlib import Path

import pytest

from perfmodel.catalog import (
    Accelerator,
    Calibration,
    ModelArch,
    Node,
    load_accelerator,
    load_calibration,
    load_model,
    load_node,
    load_observations,
    merge,
    names,
)
from perfmodel.catalog.load import validate
from perfmodel.catalog.lookup import files, find, fold
from perfmodel.catalog.yaml import MAX_DEPTH, parse_yaml, read_yaml
from perfmodel.errors import BadInput, DescriptorError, UnknownName


def mla_bytes(model: ModelArch) -> int:
    """One MLA layer in BF16, with its two norms: DeepSeek V2 report, section 2.1, as stored by Hugging Face."""
    a, hidden = model.attention["mla"], model.hidden
    query = a.heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
    q = hidden * a.q_lora_rank + a.q_lora_rank + a.q_lora_rank * query if a.q_lora_rank else hidden * query
    kv = hidden * (a.kv_lora_rank + a.qk_rope_head_dim) + a.kv_lora_rank
    kv_b = a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)
    return 2 * (q + kv + kv_b + a.heads * a.v_head_dim * hidden + 2 * hidden)


def kimi_bytes(model: ModelArch) -> dict[str, float]:
    """Every tensor of the text model, in bytes, by plain arithmetic on the descriptor."""
    moe, dense, hidden = model.mlp["moe"], model.mlp["dense"], model.hidden
    int4 = model.formats[model.storage["experts"]]
    expert_weights = 3 * hidden * moe.intermediate
    layers = {block.mlp: block.layers for block in model.blocks}
    return {
        "embedding and head": 2 * 2 * model.vocab * hidden,
        "final norm": 2 * hidden,
        "attention": (layers["dense"] + layers["moe"]) * mla_bytes(model),
        "dense": layers["dense"] * 2 * 3 * hidden * dense.intermediate,
        "experts": layers["moe"] * moe.experts * expert_weights * (int4.bits + int4.scale_bits / int4.group) / 8,
        "shared": layers["moe"] * moe.shared_experts * 2 * expert_weights,
        "router": layers["moe"] * (2 * moe.experts * hidden + 4 * moe.experts * moe.router_bias),
    }


@pytest.mark.parametrize("name", ["kimi-k2.6", "kimi-k2.5"])
def test_kimi_text_model_is_594_gb(name: str) -> None:
    """594.2 GB = 553.4 GiB, of which 507.3 GB INT4 and 63.4 GB scales: headers of the checkpoint's tensors.

    The headers add up to 594.206 GB with the `weight_shape` of every packed weight, two integers each.
    """
    parts = kimi_bytes(load_model(name))
    shapes = 60 * 384 * 3 * 2 * 8
    assert sum(parts.values()) + shapes == pytest.approx(594.206e9, rel=0.0005 / 594.206, abs=0)
    assert sum(parts.values()) == pytest.approx(594.2e9, rel=0.05 / 594.2, abs=0)
    assert sum(parts.values()) / 2**30 == pytest.approx(553.4, rel=0.05 / 553.4, abs=0)
    assert parts["experts"] == pytest.approx(570.8e9, rel=0.05 / 570.8, abs=0)
    assert parts["experts"] / 60 / 384 == pytest.approx(24.8e6, rel=0.05 / 24.8, abs=0)


def test_kimi_layers() -> None:
    model = load_model("kimi-k2.6")
    assert model.layers == 61
    assert [block.layers for block in model.blocks] == [1, 60]


def test_kimi_vision_tower_from_its_dimensions() -> None:
    """MoonViT: 27 layers of 1152 with an MLP of 4304, 14 x 14 patches, 64 x 64 positions; projector 4608-4608-7168."""
    vision, hidden, mlp, merged, text = load_model("kimi-k2.6").vision, 1152, 4304, 4 * 1152, 7168
    assert vision is not None
    attention = vision.layers * (4 * hidden**2 + 4 * hidden)
    layers = vision.layers * (2 * hidden * mlp + mlp + hidden + 4 * hidden)
    patches = 3 * 14 * 14 * hidden + hidden + 64 * 64 * hidden
    norms = 2 * hidden + 2 * hidden
    projector = merged * merged + merged + merged * text + text
    assert vision.hidden == hidden
    assert vision.parameters_sharded == attention
    assert vision.parameters_replicated == layers + patches + norms + projector
    for tp, gib in ((1, 0.88), (8, 0.64)):
        size = 2 * (vision.parameters_sharded / tp + vision.parameters_replicated)
        assert size / 2**30 == pytest.approx(gib, rel=0.005 / gib, abs=0)


def test_llama_has_8_billion_parameters() -> None:
    model = load_model("llama-3.1-8b")
    a, h = model.attention["gqa"], model.hidden
    layer = h * a.head_dim * (2 * a.heads + 2 * a.kv_heads) + 3 * h * model.mlp["dense"].intermediate + 2 * h
    assert model.layers * layer + 2 * model.vocab * h + h == 8_030_261_248      # as the model card's safetensors say


def test_deepseek_v2_lite_has_15_7_billion_parameters() -> None:
    model = load_model("deepseek-v2-lite")
    moe, h = model.mlp["moe"], model.hidden
    experts = 26 * (moe.experts + moe.shared_experts) * 3 * h * moe.intermediate + 26 * moe.experts * h
    total = 27 * mla_bytes(model) // 2 + experts + 3 * h * model.mlp["dense"].intermediate + 2 * model.vocab * h + h
    assert total / 1e9 == pytest.approx(15.7, rel=0.05 / 15.7, abs=0)


# ---------------------------------------------------------------- names

@pytest.mark.parametrize(
    "name",
    ["Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "llama3.1-8b", "LLAMA_3.1_8B", "meta-llama/Meta-Llama-3.1-8B-Instruct"],
)
def test_case_organisation_and_separators_do_not_count(name: str) -> None:
    assert load_model(name) is load_model("llama-3.1-8b")


def test_a_stem_is_found_without_reading_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[fold.__module__], "read_text", lambda path: pytest.fail("no file needs to be read"))
    assert load_model("kimi_k2.6").name == "kimi-k2.6"


@pytest.mark.parametrize(("load", "name", "near"), [
    (load_model, "kimi-k26x", "kimi-k2.6"), (load_node, "8x-rtx-pro-6000-srv", "8x-rtx-pro-6000-server"),
    (load_accelerator, "h200sx", "h200-sxm"), (load_node, "8x-", "8x"), (load_model, "", "codellama"),
    (load_model, "../kimi", "kimi"),
])  # fmt: skip
def test_an_unknown_name_lists_the_nearest(load, name, near) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnknownName, match="nearest|known") as caught:
        load(name)
    assert near in str(caught.value)


def test_kimi_k2_is_not_taken_for_another_model() -> None:
    """Kimi K2 Instruct is FP8 with a shorter context; a name that nobody uses is refused with the near ones."""
    k2 = load_model("moonshotai/Kimi-K2-Instruct")
    assert (k2.storage["experts"], k2.max_context) == ("fp8-block", 131072)
    with pytest.raises(UnknownName, match=r"kimi-k2"):
        load_model("kimi-k2-instructive")


def test_paths_and_perfmodel_path_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = files("model")[fold("llama-3.1-8b")].read_text()
    own = tmp_path / "models"
    own.mkdir()
    (own / "llama-3.1-8b.yaml").write_text(text.replace("vocab: 128256", "vocab: 1000"))
    assert load_model(own / "llama-3.1-8b.yaml").vocab == 1000
    assert load_model("llama-3.1-8b").vocab == 128256
    monkeypatch.setenv("PERFMODEL_PATH", os.pathsep.join([str(tmp_path / "none"), str(tmp_path)]))
    assert load_model("Llama-3.1-8B").vocab == 1000
    assert "kimi-k2.6" in names("model")


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    text = "schema: accelerator/1\nname: a\n"
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(DescriptorError, match="this key is missing"):
        load_accelerator(path)


def test_kinds_of_names() -> None:
    assert "8x-h200-sxm" in names("node")
    with pytest.raises(UnknownName, match="nearest: model"):
        names("models")


@pytest.mark.parametrize("name", ["missing.yaml", "config.json", "/dev/zero.yaml"])
def test_paths_that_cannot_be_read_are_refused_in_a_line(name: str) -> None:
    with pytest.raises(DescriptorError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- nodes that nobody described

@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("gpu", ["rtx-pro-6000-server", "rtx-pro-6000-max-q", "h200-sxm"])
def test_nodes_are_put_together_for_any_number(count: int, gpu: str) -> None:
    node = load_node(f"{count}x-{gpu}")
    assert (node.count, node.accelerator) == (count, gpu)
    described = fold(node.name) in map(fold, names("node"))
    assert bool(node.assumptions) != described
    assert {link.kind for link in node.topology.links} <= {*node.topology.link_kinds}


def test_sockets_of_a_pcie_node() -> None:
    assert load_node("4x-rtx-pro-6000-server").host.sockets == 1
    six = load_node("6x-rtx-pro-6000-server")
    assert six.host.sockets == 2
    ports = [link.b for link in six.topology.links if link.a.startswith("gpu")]
    assert ports.count("cpu0") == ports.count("cpu1") == 3


def test_a_node_file_wins_over_putting_one_together() -> None:
    assert load_node("8X RTX_PRO_6000 server") is load_node("8x-rtx-pro-6000-server")
    assert load_node("8x-rtx-pro-6000").name == "8x-rtx-pro-6000-server"
    assert load_node("4x-rtx-pro-6000").name == "4x-rtx-pro-6000-server"


@pytest.mark.parametrize("name", ["0x-h200-sxm", "99999x-h200-sxm"])
def test_numbers_of_gpus_out_of_range(name: str) -> None:
    with pytest.raises(BadInput, match="1 to"):
        load_node(name)


def test_sxm_nodes_hold_eight_and_then_there_are_more() -> None:
    kinds = [*load_node("20x-h200-sxm").topology.vertices.values()]
    assert kinds.count("nvswitch") == 3
    assert "network" in kinds


# ---------------------------------------------------------------- the all-reduce of the nodes

@pytest.mark.parametrize(("node", "variant", "message_bytes", "printed_us", "within"), [
    ("8x-rtx-pro-6000-server", "tuned", 16384, 19.8, 0.15),         # PyNCCL 2.30.3 in a CUDA graph
    ("8x-rtx-pro-6000-server", "tuned", 524288, 59.5, 0.15),
    ("8x-rtx-pro-6000-server", "tuned", 16777216, 726.9, 0.05),
    ("8x-rtx-pro-6000-server", "stock", 16384, 27.5, 0.1),          # vLLM 0.24.0 in a CUDA graph
    ("8x-rtx-pro-6000-server", "stock", 33554432, 2546.5, 0.05),
    ("8x-rtx-pro-6000-server-2switch", "tuned", 16777216, 664.7, 0.05),
    ("8x-h200-sxm", "stock", 8192, 16.67, 0.1),
    ("8x-h200-sxm", "stock", 268435456, 1052.63, 0.1),
])  # fmt: skip
def test_all_reduce_figures_give_back_measured_times(node, variant, message_bytes, printed_us, within) -> None:  # type: ignore[no-untyped-def]
    collectives = load_node(node).collectives
    assert collectives is not None
    a, n = collectives.variants[variant], 8
    protocols = [(a.base_s, a.hop_s, a.ll_busbw), (a.ll128_base_s, a.ll128_hop_s, a.ll128_busbw),
                 (a.simple_base_s, a.simple_hop_s, a.simple_busbw)]  # fmt: skip
    seconds = min(float(base) + 2 * (n - 1) * float(hop) + 2 * (n - 1) / n * message_bytes / float(bw)
                  for base, hop, bw in protocols if base and hop and bw)  # fmt: skip
    assert 1e6 * seconds == pytest.approx(printed_us, rel=within, abs=0)


# ---------------------------------------------------------------- what is refused

def broken(kind: str, name: str, old: str, new: str) -> DescriptorError:
    text = files(kind)[fold(name)].read_text()
    assert old in text
    noun = {"model": ModelArch, "node": Node, "accelerator": Accelerator}[kind]
    with pytest.raises(DescriptorError) as caught:
        validate(noun, kind, parse_yaml(text.replace(old, new, 1), f"{name}.yaml"), f"{name}.yaml")
    return caught.value


@pytest.mark.parametrize(("old", "new", "message"), [
    ("4.8 TB/s", "4.8TB/s", "h200-sxm.yaml: memory.bandwidth.value - '4.8TB/s' is not a quantity; write a number"),
    ("4.8 TB/s", "4.8 TB", "memory.bandwidth.value - '4.8 TB' is in B; a quantity in B/s is needed"),
    ("4.8 TB/s", "0 TB/s", "must be above zero"),
    ("4.8 TB/s", ".nan", "is not a quantity"),
    ("  bandwidth:", "  bandwith:", "memory - unknown key 'bandwith'; did you mean 'bandwidth'"),
    ("source: smi", "source: smii", "memory.total: source 'smii' is not one of mamf, nvidia, smi"),
    (", source: smi", "", "memory.total: a source is missing"),
    ("kind: datasheet", "kind: rumour", "kind - input should be 'datasheet', 'derived', 'measured' or 'assumed'"),
    ("schema: accelerator/1", "schema: node/1", "schema - 'node/1' where 'accelerator/1' is needed"),
    ("form: sxm", "form: sxm\nform: pcie", "key 'form' appears twice"),
    ("vendor: nvidia\n", "", "vendor - this key is missing"),
])  # fmt: skip
def test_a_wrong_accelerator_is_refused_with_its_place(old: str, new: str, message: str) -> None:
    assert message in str(broken("accelerator", "h200-sxm", old, new))


@pytest.mark.parametrize(("kind", "name", "old", "new", "message"), [
    ("node", "8x-h200-sxm", "count: 8", "count: 7", "count is 7, but the topology has 8 GPUs"),
    ("node", "8x-h200-sxm", "b: nvswitch0", "b: switch9", "'switch9' is not a vertex"),
    ("node", "8x-h200-sxm", "default: stock", "default: tuned", "default 'tuned' is not one of stock"),
    ("model", "kimi-k2.6", "experts: int4-g32", "experts: int4", "storage.experts: format 'int4' is not one of"),
    ("model", "kimi-k2.6", "attention: mla, mlp: moe", "attention: gqa, mlp: moe", "a block names 'gqa'"),
    ("model", "kimi-k2.6", "hidden: 7168", "hidden: -7168", "hidden - input should be greater than or equal to 1"),
    ("model", "kimi-k2.6", "kind: mla", "kind: mqa", "attention.mla - "),
    ("model", "kimi-k2.6", "per_token: 8", "per_tokens: 8", "did you mean 'per_token'"),
])  # fmt: skip
def test_a_wrong_node_or_model_is_refused(kind: str, name: str, old: str, new: str, message: str) -> None:
    assert message in str(broken(kind, name, old, new))


@pytest.mark.parametrize(("text", "message"), [
    ("a: &x 1\nb: *x", "anchors and aliases are not allowed"),
    ("a: !!python/object/apply:os.system [ls]", "tags such as"),
    ("a: 1\na: 2", "key 'a' appears twice"),
    ("<<: {a: 1}", "merge keys are not allowed"),
    ("1: a", "a key must be text"),
    ("? [a]\n: b", "a key must be text"),
    ("a: " + "[" * 5000 + "]" * 5000, "nested deeper|nesting depth"),
    ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested deeper"),
    ("a: 1e999", "not a finite number"),
    ("- a", "a mapping is needed"), ("", "a mapping is needed"), ("a: [", "line"), ("a: 1\n---\nb: 2", "one document"),
    ("a: \x00", "not YAML|not allowed|unacceptable"),
])  # fmt: skip
def test_yaml_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        parse_yaml(text, "a.yaml")


def test_words_and_times_stay_text() -> None:
    assert parse_yaml("a: no\nb: 12:30\nc: 2026-08-22\nd: 010\ne: 1.5e3\nf: ~\ng: '8'\nh: 4.8e12") == {
        "a": "no", "b": "12:30", "c": "2026-08-22", "d": 10, "e": 1500.0, "f": None, "g": "8", "h": 4.8e12,
    }  # fmt: skip


def test_files_that_are_too_large_or_not_text(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: " + b"x" * 2**20)
    with pytest.raises(DescriptorError, match="larger than"):
        read_yaml(path)
    path.write_bytes(b"a: \xff\xfe")
    with pytest.raises(DescriptorError, match="not UTF-8"):
        read_yaml(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DescriptorError, match="not a plain file"):
        read_yaml(path)


# ---------------------------------------------------------------- calibrations

def calibration(name: str, parameters: dict[str, object], **rest: object) -> Calibration:
    raw = {"schema": "calibration/1", "name": name, "sources": {"s": {"title": "T"}}, "parameters": parameters, **rest}
    return validate(Calibration, "calibration", raw, f"{name}.yaml")


def factor(value: object, **rest: object) -> dict[str, object]:
    return {"value": value, "sd": 0.1, "kind": "measured", "source": "s", **rest}


def test_later_files_win_one_parameter_at_a_time() -> None:
    low = calibration("low", {"a": factor(1.0), "b": factor("3 us"), "c": factor(2.0)},
                      correlations={"a|b": 0.5, "a|c": 0.2}, residual_sd=0.3, fitted_on=["x"])  # fmt: skip
    high = calibration("high", {"b": factor("4 us")}, accelerator="h200-sxm", fitted_on=["y"])
    both = merge([low, high])
    assert both.used == ("low", "high")
    assert (both.parameters["a"].value, both.parameters["b"].value) == (1.0, 4e-6)
    assert both.parameters["b"].unit == "s"
    assert both.parameters["b"].source == "high:s" and both.parameters["a"].source == "low:s"
    assert both.correlations == {"a|c": 0.2}
    assert (both.residual_sd, both.fitted_on, both.accelerator) == (0.3, ("x", "y"), "h200-sxm")


@pytest.mark.parametrize(("parameter", "message"), [
    (factor("3 miles"), "not a quantity"), (factor("3 us", unit="B"), "is in s, but unit says 'B'"),
    (factor(1.0, sd=-1), "greater than or equal"), (factor(1.0, source="t"), "source 't' is not one of s"),
    (factor(float("nan")), "finite number"),
])  # fmt: skip
def test_wrong_parameters_are_refused(parameter: dict[str, object], message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        calibration("x", {"a": parameter})


def test_calibration_of_an_unknown_accelerator_is_the_priors() -> None:
    assert load_calibration("no-such-gpu").used == ("priors",)
    found = load_calibration("no-such-gpu", "vllm==0.24.0")
    assert found.used == ("priors", "priors+vllm"), "what the engine takes elsewhere stands above the priors"
    assert found.parameters


def test_a_named_calibration_goes_on_top(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("schema: calibration/1\nname: mine\nsources: {s: {title: T}}\n"
                    "parameters: {kernel_s: {value: 9 us, sd: 0.1, kind: measured, source: s}}\n")  # fmt: skip
    found = load_calibration("no-such-gpu", None, path)
    assert found.used == ("priors", "mine")
    assert found.parameters["kernel_s"].value == 9e-6
    with pytest.raises(UnknownName):
        load_calibration(None, None, "no-such-calibration-at-all")


# ---------------------------------------------------------------- observations

def test_the_deployment_that_must_be_explained() -> None:
    rows = {row.id: row for row in load_observations("kimi-case-sglang")}
    assert rows["case-pp8-c8"].value == 95.6
    assert (rows["case-pp8-c8"].tp, rows["case-pp8-c8"].pp, rows["case-pp8-c8"].cuda_graphs) == (1, 8, "off")
    assert [rows[f"case-tp8-c{c}"].value for c in (8, 16, 32)] == [136.6, 311.3, 577.8]


@pytest.mark.parametrize(("old", "new", "message"), [
    ("26.45", "nan", "value is 'nan'"), ("26.45", "", "value is ''"), (",fit,", ",train,", "use is 'train'"),
    ("case-tp8-c8", "case-tp8-c1", "appears twice"), ("case-tp8-c1,", "case-tp8-c1,x,", "cells where"),
    ("n_gpus", "gpus", "columns differ"), (",8,1,1,1,1,1,sglang", ",8.5,1,1,1,1,1,sglang", "tp is '8.5', not a count"),
])  # fmt: skip
def test_wrong_observations_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    source = find("observations", "kimi-case-sglang")
    assert source is not None
    text = source.read_text()
    assert old in text
    path = tmp_path / "mine.csv"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DescriptorError, match=message):
        load_observations(path)
