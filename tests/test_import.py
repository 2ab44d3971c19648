"""Import of checkpoints: what each quantisation stores, what is refused and how, and bytes beside arithmetic."""

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel.catalog import ModelArch, load_model
from perfmodel.catalog.gguf import MAX_KEYS
from perfmodel.catalog.hf import model_from_hf
from perfmodel.catalog.hf_keys import MAX_BYTES, MAX_DEPTH, parse_json
from perfmodel.catalog.patterns import Patterns
from perfmodel.catalog.safetensors import MAX_HEADER, checkpoint_bytes
from perfmodel.catalog.yaml import parse_yaml
from perfmodel.cli.import_ import import_command
from perfmodel.errors import DescriptorError, UnknownName
from perfmodel.placement.checkpoint import disagreements, expected_bytes
from perfmodel.placement.inventory import parameter_count

SMALL: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "vocab_size": 1000, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "mlp_only_layers": [0], "torch_dtype": "bfloat16",
}  # fmt: skip


def quantized(**quantization: Any) -> ModelArch:
    return model_from_hf(SMALL | {"quantization_config": quantization})


def weights(bits: int, kind: str, group: int | None, strategy: str, symmetric: bool = True) -> dict[str, Any]:
    return {"weights": {"num_bits": bits, "type": kind, "group_size": group, "strategy": strategy,
                        "symmetric": symmetric},
            "targets": ["Linear"]}


# ---------------------------------------------------------------- quantisation

@pytest.mark.parametrize(("quantization", "storage", "bits_each"), [
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": weights(4, "int", 32, "group")},
      "ignore": ["lm_head", "re:.*self_attn.*"]}, {"experts": "int4-g32", "dense": "int4-g32"}, 4.5),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": weights(8, "float", None, "channel")},
      "ignore": ["lm_head"]}, {"attention": "fp8", "experts": "fp8", "dense": "fp8"}, 8),
    ({"quant_method": "compressed-tensors", "config_groups": {"group_0": weights(4, "float", 16, "tensor_group")},
      "ignore": ["re:.*mlp.experts.*"]}, {"attention": "nvfp4", "dense": "nvfp4"}, 4.5),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
     {"attention": "int4-g128", "experts": "int4-g128", "dense": "int4-g128"}, 4 + 20 / 128),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*self_attn.*": {}}},
     {"experts": "int4-g128", "dense": "int4-g128"}, 4 + 20 / 128),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "modules_to_not_convert": ["mlp"]},
     {"attention": "int4-g64"}, 4 + 20 / 64),
    ({"quant_method": "auto-round", "bits": 4, "group_size": 128,
      "extra_config": {"model.layers.0.mlp.gate_proj": {"bits": 16}}},
     {"attention": "int4-g128", "experts": "int4-g128"}, 4 + 20 / 128),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
     {"attention": "nf4", "experts": "nf4", "dense": "nf4"}, 4.5),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]},
     {"attention": "fp8-block", "experts": "fp8-block", "dense": "fp8-block"}, 8 + 32 / 16384),
    ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, {"experts": "mxfp4"}, 4.25),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
      "exclude_modules": ["lm_head", "model.layers.*.self_attn*"]}, {"experts": "nvfp4", "dense": "nvfp4"}, 4.5),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "quantized_layers": {f"model.layers.{i}.mlp.experts": {"quant_algo": "NVFP4"} for i in range(1, 4)}},
     {"experts": "nvfp4"}, 4.5),
    ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}},
      "exclude": ["lm_head", "*self_attn*"]},
     {"experts": "mxfp4", "dense": "mxfp4"}, 4.25),
], ids=lambda value: value.get("quant_method") if isinstance(value, dict) else None)  # fmt: skip
def test_what_each_quantisation_stores(quantization: dict[str, Any], storage: dict[str, str], bits_each: float) -> None:
    model = quantized(**quantization)
    assert {role: form for role, form in model.storage.items() if role != "default"} == storage
    form = model.formats[next(iter(storage.values()))]
    assert form.bits + (form.scale_bits + form.zero_bits) / (form.group or 1) == bits_each


def test_layers_that_are_stored_otherwise_get_a_section_of_their_own() -> None:
    model = quantized(quant_method="modelopt", quant_algo="NVFP4",
                      exclude_modules=["model.layers.2.self_attn*", "lm_head"])
    assert [block.attention for block in model.blocks for _ in range(block.layers)] == ["gqa", "gqa", "gqa-2", "gqa"]
    assert {key: form for key, form in model.storage.items() if key.startswith("gqa-2.")} == {
        "gqa-2.q_proj": "bf16", "gqa-2.kv_proj": "bf16", "gqa-2.o_proj": "bf16"}  # fmt: skip
    plain = 256 * (8 * 32 + 2 * 2 * 32) + 8 * 32 * 256
    whole = quantized(quant_method="modelopt", quant_algo="NVFP4", exclude_modules=["lm_head"])
    gap = expected_bytes(model)["attention"] - expected_bytes(whole)["attention"]
    assert gap == pytest.approx(plain * (2 - 0.5625), rel=1e-9, abs=0)


def test_modelopts_own_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(
        {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}))
    model = load_model(tmp_path)
    assert (model.storage["experts"], model.kv_cache, model.name) == ("nvfp4", "fp8",
                                                                      tmp_path.name.lower().replace("_", "-"))


def test_mtp_layers_that_are_ignored_stay_unquantised() -> None:
    """Qwen3.6 27B NVFP4 keeps its MTP layer in BF16: 20.4 GiB with it, and 20.57 in a public start-up log."""
    table = expected_bytes(load_model("qwen3.6-27b-nvfp4"))
    assert sum(table.values()) / 2**30 == pytest.approx(20.57, rel=0.01, abs=0)
    plain = expected_bytes(load_model("qwen3.6-27b"))
    assert table["mtp"] == plain["mtp"]


def test_formats_survive_another_quantisation() -> None:
    from perfmodel.deployment.quantization import storage_formats

    formats, notes = storage_formats(load_model("kimi-k2.6-nvfp4"), "fp8")
    assert formats["experts"][0] == "fp8" and formats["default"][0] == "bf16" and notes
    assert not [key for key in storage_formats(load_model("nemotron-3-nano-30b-a3b-nvfp4"), "bf16")[0] if "." in key]


# ---------------------------------------------------------------- patterns

@pytest.mark.parametrize(("pattern", "module", "meant"), [
    ("model.layers.3.self_attn.q_proj", "layers.3.self_attn.q_proj", True), ("lm_head", "lm_head", True),
    ("model.layers.3.self_attn.q_proj", "layers.31.self_attn.q_proj", False), ("gate", "layers.3.mlp.gate_proj", False),
    ("model.layers.3", "layers.3.mlp.up_proj", True), ("model.layers.3", "layers.30.mlp.up_proj", False),
    ("mlp.experts", "layers.3.mlp.experts.0.up_proj", True), ("*.mlp.experts.*", "layers.3.mlp.experts.0.w1", True),
    ("language_model.model.layers.0*", "layers.0.mlp.up_proj", True),
    ("model.layers.1*", "layers.12.mlp.up_proj", True),
    ("model.layers.*.self_attn", "layers.7.self_attn.q_proj", True),
    ("re:.*self_attn.*", "layers.7.self_attn.q_proj", True),
    ("re:model.layers.7.*", "layers.7.mlp.up_proj", True), (r"re:.*mlp\.(gate|up)_proj", "layers.7.mlp.up_proj", True),
    (r"re:.*mlp\.(gate|up)_proj", "layers.7.mlp.experts.0.up_proj", False),
])  # fmt: skip
def test_patterns(pattern: str, module: str, meant: bool) -> None:
    assert Patterns([pattern], "config.json", "ignore").matches(module) is meant


@pytest.mark.parametrize("pattern", [
    "re:(a+)+$", "re:(.*a)*b", "re:" + "a" * 201, "re:(a|b*)*c", "re:[", "re:.*a.*b.*c.*d.*e.*f", r"re:(a)\1",
    "re:(?i)x",
    "a*b*c*d*e*f*g", "re:((a*)b)*",
])  # fmt: skip
def test_patterns_that_may_run_away_are_refused(pattern: str) -> None:
    with pytest.raises(DescriptorError, match="ignore - "):
        Patterns([pattern], "config.json", "ignore")


def test_patterns_that_are_allowed_are_quick() -> None:
    slow = Patterns(["re:.*a.*b.*c$"] * 50, "config.json", "ignore")
    start = time.perf_counter()
    assert not slow.matches("layers.1." + "ab" * 60)
    assert time.perf_counter() - start < 1.0


# ---------------------------------------------------------------- what is refused

@pytest.mark.parametrize(("change", "key"), [
    ({"model_type": "no_such_model"}, "model_type"), ({"model_type": None}, "model_type"),
    ({"hidden_size": None}, "hidden_size"),
    ({"hidden_size": -256}, "hidden_size"), ({"hidden_size": 256.0}, "hidden_size"),
    ({"hidden_size": "256"}, "hidden_size"),
    ({"hidden_size": 10**30}, "hidden_size"), ({"hidden_size": True}, "hidden_size"),
    ({"hidden_size": float("nan")}, "hidden_size"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"), ({"num_hidden_layers": 10**7}, "num_hidden_layers"),
    ({"num_hidden_layers": [4]}, "num_hidden_layers"), ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_key_value_heads": 16}, "num_key_value_heads"), ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ({"num_experts": 8, "num_local_experts": 16}, "num_experts"), ({"vocab_size": None}, "vocab_size"),
    ({"max_position_embeddings": float("inf")}, "max_position_embeddings"),
    ({"mlp_only_layers": [99]}, "mlp_only_layers"),
    ({"mlp_only_layers": "all"}, "mlp_only_layers"), ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ({"torch_dtype": "int3"}, "torch_dtype"), ({"vision_config": {"hidden_size": 1}}, "vision_config"),
    ({"architectures": ["LlamaForCausalLMEagle3"]}, "architectures"),
    ({"quantization_config": {"quant_method": "exl3"}}, "quant_method"),
    ({"quantization_config": []}, "quantization_config"), ({"quantization_config": {"quant_method": "gptq"}}, "bits"),
    ({"quantization_config": {"quant_method": "gptq", "bits": -4, "group_size": 128}}, "bits"),
    ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "INT2"}}, "quant_algo"),
    ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}, "quantized_layers"),
    ({"quantization_config": {"quant_method": "compressed-tensors"}}, "config_groups"),
    ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}}, "weight_block_size"),
])  # fmt: skip
def test_a_wrong_config_is_refused_with_its_key(change: dict[str, Any], key: str) -> None:
    values = {name: value for name, value in (SMALL | change).items() if value is not None}
    with pytest.raises(DescriptorError) as caught:
        model_from_hf(values)
    assert key in caught.value.message and "\n" not in caught.value.message and len(caught.value.message) < 1500


@pytest.mark.parametrize(("change", "key"), [
    ({"layer_types": ["full_attention"] * 3}, "layer_types"),
    ({"layer_types": ["full_attention"] * 3 + ["odd"]}, "layer_types"),
    ({"full_attention_interval": 0}, "full_attention_interval"),
    ({"linear_conv_kernel_dim": None}, "linear_conv_kernel_dim"),
    ({"mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype"),
])  # fmt: skip
def test_a_hybrid_that_contradicts_itself_is_refused(change: dict[str, Any], key: str) -> None:
    hybrid = SMALL | {"model_type": "qwen3_next", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                      "linear_key_head_dim": 8,
                      "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
                      "shared_expert_intermediate_size": 64}  # fmt: skip
    assert parameter_count(model_from_hf(hybrid)) > 0
    with pytest.raises(DescriptorError, match=key):
        model_from_hf({name: value for name, value in (hybrid | change).items() if value is not None})


@pytest.mark.parametrize(("text", "message"), [
    ('{"a": 1, "a": 2}', "key 'a' appears twice"), ('{"a": ', "not JSON"), ("[1]", "an object is needed"),
    ("{" * 50, "not JSON|nested"), ('{"a": ' + "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2) + "}", "nested deeper"),
    ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper"), ('{"a": ' + "9" * 5000 + "}", "not JSON"),
])  # fmt: skip
def test_json_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        parse_json(text)


def test_files_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(DescriptorError, match="larger than"):
        load_model(path)
    with pytest.raises(DescriptorError, match="cannot be read"):
        load_model(tmp_path / "folder" / "config.json")
    path.write_text(json.dumps(SMALL)[:200])
    with pytest.raises(DescriptorError, match="not JSON"):
        load_model(tmp_path)


def test_a_hub_id_is_refused_where_there_is_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest: (_ for _ in ()).throw(ImportError(name))
                        if name.startswith("huggingface_hub") else real(name, *rest))  # fmt: skip
    with pytest.raises(UnknownName):
        load_model("nobody/no-such-model-here")


# ---------------------------------------------------------------- bytes on disk

def write_checkpoint(folder: Path, config: dict[str, Any], shrink: str = "") -> None:
    """A folder whose tensors are those of SMALL in BF16, headers only; one whose name holds `shrink` lacks a row."""
    wanted = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    h, heads, kv, dim = (config[key] for key in wanted)
    tensors = {"model.embed_tokens.weight": [config["vocab_size"], h], "lm_head.weight": [config["vocab_size"], h],
               "model.norm.weight": [h]}  # fmt: skip
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        tensors |= {at + "input_layernorm.weight": [h], at + "post_attention_layernorm.weight": [h],
                    at + "self_attn.q_proj.weight": [heads * dim, h], at + "self_attn.o_proj.weight": [h, heads * dim],
                    at + "self_attn.k_proj.weight": [kv * dim, h], at + "self_attn.v_proj.weight": [kv * dim, h],
                    at + "self_attn.q_norm.weight": [dim], at + "self_attn.k_norm.weight": [dim]}  # fmt: skip
        if i in config["mlp_only_layers"]:
            tensors |= {f"{at}mlp.{n}_proj.weight": [h, config["intermediate_size"]] for n in ("gate", "up", "down")}
        else:
            tensors[at + "mlp.gate.weight"] = [config["num_experts"], h]
            tensors |= {f"{at}mlp.experts.{e}.{n}_proj.weight": [h, config["moe_intermediate_size"]]
                        for e in range(config["num_experts"]) for n in ("gate", "up", "down")}  # fmt: skip
    header, end = {}, 0
    for name, shape in tensors.items():
        shape = [shape[0] // 2, *shape[1:]] if shrink and shrink in name else shape
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_checkpoint_agrees_with_its_architecture(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SMALL)
    model = load_model(tmp_path)
    assert disagreements(model, tmp_path) == ()
    assert sum(checkpoint_bytes(tmp_path).values()) == 2 * parameter_count(model) == sum(expected_bytes(model).values())


@pytest.mark.parametrize(("shrink", "name"), [("experts.3.up", "experts"), ("q_proj", "attention"),
                                              ("lm_head", "head")])
def test_a_disagreement_names_the_class(tmp_path: Path, shrink: str, name: str) -> None:
    write_checkpoint(tmp_path, SMALL, shrink)
    (line,) = disagreements(load_model(tmp_path), tmp_path)
    assert line.startswith(f"{name}: the checkpoint has ")


def test_an_index_alone_is_compared_by_its_total(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    model = load_model(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 2 * parameter_count(model)}, "weight_map": {}}))
    assert disagreements(model, tmp_path) == ()
    index.write_text(json.dumps({"metadata": {"total_size": 10**8}, "weight_map": {"a": "gone.safetensors"}}))
    assert "all tensors" in disagreements(model, tmp_path)[0]
    with pytest.raises(DescriptorError, match=r"gone\.safetensors is missing"):
        checkpoint_bytes(tmp_path)


@pytest.mark.parametrize("raw", [
    b"", b"\x01", struct.pack("<Q", MAX_HEADER + 1) + b"{}", struct.pack("<Q", 2**63),
    struct.pack("<Q", 4) + b"{}  "[:3],
    struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b"{\"a}", struct.pack("<Q", 8) + b'{"a": 1}',
    struct.pack("<Q", 61) + b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,9]}}      ',
    struct.pack("<Q", 59) + b'{"a":{"dtype":"BF16","shape":[-2],"data_offsets":[0,4]}}   ',
])  # fmt: skip
def test_broken_safetensors_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)
    with pytest.raises(DescriptorError, match=r"model\.safetensors"):
        checkpoint_bytes(tmp_path)


# ---------------------------------------------------------------- GGUF

def gguf_text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def gguf(path: Path, arch: str = "llama", version: int = 3, drop: str = "") -> None:
    numbers = {"block_count": 2, "embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 4,
               "attention.head_count_kv": 2, "context_length": 2048, "vocab_size": 1000}  # fmt: skip
    meta = [gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text(arch)]
    meta += [gguf_text(f"{arch}.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items() if key != drop]
    meta.append(gguf_text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + gguf_text("a") + gguf_text("b"))
    shapes = {"token_embd.weight": ([256, 1000], 14), "output.weight": ([256, 1000], 14),
              "output_norm.weight": ([256], 0)}
    for i in range(2):
        shapes |= {f"blk.{i}.{name}.weight": value for name, value in {
            "attn_q": ([256, 256], 12), "attn_k": ([256, 128], 12), "attn_v": ([256, 128], 14),
            "attn_output": ([256, 256], 12),
            "ffn_gate": ([256, 512], 12), "ffn_up": ([256, 512], 12), "ffn_down": ([512, 256], 12),
            "attn_norm": ([256], 0),
            "ffn_norm": ([256], 0)}.items()}  # fmt: skip
    rows = [gguf_text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
            + struct.pack("<IQ", kind, 0) for name, (shape, kind) in shapes.items()]  # fmt: skip
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, len(rows), len(meta)) + b"".join(meta) + b"".join(rows))


def test_gguf_bytes_come_out_exactly(tmp_path: Path) -> None:
    gguf(tmp_path / "a.gguf")
    model = load_model(tmp_path / "a.gguf")
    q4, q6 = 144 / 256, 210 / 256
    layer = q4 * (2 * 256 * 256 + 256 * 128 + 3 * 256 * 512) + q6 * 256 * 128 + 4 * 2 * 256
    assert sum(expected_bytes(model).values()) == pytest.approx(2 * layer + 2 * q6 * 256_000 + 4 * 256, rel=1e-9, abs=0)
    assert (model.layers, model.storage["dense"], model.vocab) == (2, "q4_k", 1000)


@pytest.mark.parametrize(("change", "message"), [
    ({"arch": "rwkv"}, "general.architecture"), ({"version": 9}, "version 9"),
    ({"drop": "block_count"}, "num_hidden_layers"),
])  # fmt: skip
def test_gguf_that_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    gguf(tmp_path / "a.gguf", **change)
    with pytest.raises(DescriptorError, match=message):
        load_model(tmp_path / "a.gguf")


@pytest.mark.parametrize("raw", [
    b"", b"GGML", b"GGUF", b"GGUF" + struct.pack("<IQQ", 3, 1, 2**60),
    b"GGUF" + struct.pack("<IQQ", 3, 0, MAX_KEYS + 1),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**40),
    b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + gguf_text("a")
    + struct.pack("<I", 99),
])  # fmt: skip
def test_broken_gguf_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "a.gguf").write_bytes(raw)
    with pytest.raises(DescriptorError, match=r"a\.gguf"):
        load_model(tmp_path / "a.gguf")


# ---------------------------------------------------------------- the command

def test_the_command_writes_what_loads_again(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SMALL, "lm_head")
    out = tmp_path / "mine.yaml"
    result = CliRunner().invoke(import_command, [str(tmp_path), "--name", "mine", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "disagrees: head: " in result.stderr and "written to" in result.stdout
    assert parameter_count(load_model(out)) == parameter_count(load_model(tmp_path))
    again = CliRunner().invoke(import_command, [str(tmp_path), "-o", str(out)])
    assert "is there already" in str(again.exception)


def test_the_command_prints_json(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, SMALL)
    answer = json.loads(CliRunner().invoke(import_command, [str(tmp_path), "--json"]).stdout)
    assert answer["parameters"] == parameter_count(load_model(tmp_path))
    assert answer["disagreements"] == []
    text = CliRunner().invoke(import_command, [str(tmp_path)]).stdout
    assert parse_yaml(text[text.index("schema:"):])["name"] == answer["name"]
