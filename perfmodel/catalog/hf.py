"""Hugging Face config.json (a file, a folder or its contents) -> ModelArch. What it does not say is refused by key."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from perfmodel.catalog.architecture import NONE, ModelArch
from perfmodel.catalog.hf_families import FAMILIES
from perfmodel.catalog.hf_keys import Keys, check_depth, read_json
from perfmodel.catalog.hf_modules import GROUPS, modules_of
from perfmodel.catalog.hf_parts import Layer, Part
from perfmodel.catalog.hf_quant import Scheme, scheme_of
from perfmodel.catalog.hf_vision import vision_of
from perfmodel.errors import UnknownName

SOURCED = {"source": "config", "source_kind": "datasheet"}
# The text model inside a multimodal one, where `text_config` does not name it (or there is none)
TEXT_TYPES = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "llama4": "llama4_text", "mistral3": "mistral",
    "qwen2_5_vl": "qwen2_5_vl_text", "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "kimi_k25": "kimi_k2", "kimi_vl": "deepseek_v3",
    "kimi_k3": "kimi_linear", "minimax_m3_vl": "minimax_m3",
}  # fmt: skip
# What the makers' own configuration classes fill in where their files are silent (transformers 5.24)
DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                    "max_position_embeddings": 131072},
    "qwen2_5_vl_text": {"max_position_embeddings": 128000},
}  # fmt: skip
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
DRAFTS = ("speculators", "eagle", "eagle3")


def model_from_hf(source: str | os.PathLike[str] | dict[str, Any], name: str | None = None) -> ModelArch:
    """A model from a config.json, a folder that holds one, or its contents."""
    from perfmodel.catalog.load import validate

    raw = raw_from_hf(source, name)
    return validate(ModelArch, "model", raw, f"{raw['name']} (config.json)")


def raw_from_hf(source: str | os.PathLike[str] | dict[str, Any], name: str | None = None, hf_id: str | None = None,
                side: dict[str, Any] | None = None, used: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same as it would stand in a file of models/.

    ``side`` is the `quantization` of ModelOpt's hf_quant_config.json, read from beside the file where there is one;
    ``used`` takes the keys that were read.
    """
    values, beside, file, found = _read(source)
    name = slug(name or hf_id or found or "imported model")
    top = Keys(values, file)
    model_type = top.word("model_type")
    text, text_type = _text(top, model_type)
    built = FAMILIES[text_type](text)
    hidden = text.count("hidden_size", most=10**6)
    scheme = _scheme(top, text, side or beside)
    sections = _sections(built["layers"], scheme, text_type)
    exceptions = sections.pop("exceptions")
    base = DTYPES.get((top if top.has("dtype", "torch_dtype") else text).word("dtype", "torch_dtype",
                                                                              default="bfloat16"))
    if base is None:
        raise top.refuse("torch_dtype", f"is not one of {', '.join(DTYPES)}")
    tied = top if top.has("tie_word_embeddings") else text
    raw: dict[str, Any] = {
        "schema": "model/1", "name": name, "title": hf_id or found or name, "aliases": [hf_id] if hf_id else [],
        "sources": {"config": {"title": f"{hf_id or found or name} config.json"} | _url(hf_id)}, **SOURCED,
        "architecture": _architecture(top), "model_type": model_type, "hidden": hidden,
        "vocab": text.count("vocab_size", most=10**7),
        "max_context": text.count("max_position_embeddings", "n_positions", most=10**9),
        "tied_embeddings": tied.flag("tie_word_embeddings", default=bool(built.get("tied"))),
    }  # fmt: skip
    notes = list(built.get("notes", ()))
    if not built["layers"]:
        raise text.refuse("num_hidden_layers", "a model without layers")
    for key in ("norms", "hyper_connections", "position_embeddings"):
        if built.get(key):
            raw[key] = built[key]
    raw |= sections | {"formats": {}, "storage": {}}
    _store(raw, scheme, base, exceptions)
    if scheme.kv_cache:
        raw["kv_cache"] = scheme.kv_cache
    vision = vision_of(top, hidden)
    if vision:
        raw["vision"] = vision | {"source": "config", "source_kind": "derived"}
    if "mtp" in built:
        raw["mtp"] = _mtp(built["mtp"], raw)
        _store_mtp(raw, scheme, base, built["mtp"]["like"], len(built["layers"]), text_type)
    if built.get("per_layer_input"):
        raw["per_layer_input"] = built["per_layer_input"] | SOURCED
    if used is not None:
        used |= top.used
    return raw | ({"note": "; ".join(notes)} if notes else {})


def slug(name: str) -> str:
    """A name as the files of models/ have it.

    >>> slug("meta-llama/Llama-3.1-8B Instruct")
    'llama-3.1-8b-instruct'
    """
    word = re.sub(r"[^a-z0-9.+-]+", "-", name.rpartition("/")[2].lower()).strip("-.")
    return word[:100] or "imported-model"


def _url(hf_id: str | None) -> dict[str, str]:
    return {"url": f"https://huggingface.co/{hf_id}/blob/main/config.json"} if hf_id else {}


def _read(source: Any) -> tuple[dict[str, Any], dict[str, Any] | None, str, str]:
    """Contents, ModelOpt's own file beside them, the name for messages, the model's name."""
    if isinstance(source, dict):
        check_depth(source, "config")
        return source, None, "config", str(source.get("_name_or_path") or "")[:100]
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    values = read_json(path)
    beside = path.with_name("hf_quant_config.json")
    side = read_json(beside).get("quantization") if beside.is_file() else None
    return values, side if isinstance(side, dict) else None, path.name, path.resolve().parent.name


def _architecture(top: Keys) -> str:
    names = top.words("architectures", default=[])
    return str(names[0]) if names else top.word("model_type")


def _text(top: Keys, model_type: str) -> tuple[Keys, str]:
    """The keys of the text model, and which family it is."""
    names = top.words("architectures", default=[]) or [""]
    if model_type in DRAFTS or "Eagle" in names[0] or "NextN" in names[0]:
        raise top.refuse("architectures", f"{names[0] or model_type!r} is a draft model, not a model of its own")
    text = top.inner("text_config", "llm_config") if top.has("text_config", "llm_config") else top
    text_type = text.word("model_type", default="") if text is not top else model_type
    if text_type not in FAMILIES:
        text_type = TEXT_TYPES.get(text_type) or TEXT_TYPES.get(model_type) or text_type
    if text_type not in FAMILIES:
        raise text.refuse("model_type", UnknownName("type", str(text_type or model_type), FAMILIES).message)
    defaults = {key: value for key, value in DEFAULTS.get(text_type, {}).items() if text.values.get(key) is None}
    if defaults:
        text.values = text.values | defaults
    return text, text_type


def _scheme(top: Keys, text: Keys, side: dict[str, Any] | None) -> Scheme:
    """Quantisation of the whole model: beside the config, in it, or in its text part."""
    holder = top if top.has("quantization_config") else text
    conf = holder.inner("quantization_config", default=None)
    method = str(conf.values.get("quant_method", "modelopt"))
    if side is not None and method.startswith("modelopt"):
        return scheme_of(Keys(side, "hf_quant_config.json", "quantization."))
    if not conf.values:
        return Scheme()
    if text.has("expert_dtype") and "expert_dtype" not in conf.values:
        conf.values = conf.values | {"expert_dtype": text.word("expert_dtype")}
    return scheme_of(conf)


def _sections(layers: list[Layer], scheme: Scheme, family: str) -> dict[str, Any]:
    """Runs of layers with named halves; layers that are stored otherwise get a name of their own."""
    named: dict[str, dict[str, str]] = {"attention": {}, "mlp": {}}
    parts: dict[str, dict[str, Part]] = {"attention": {}, "mlp": {}}
    stored: dict[str, dict[str, str | None]] = {}
    pairs = []
    for index, layer in enumerate(layers):
        pair = []
        for half, section in zip(("attention", "mlp"), layer, strict=True):
            if section is None:
                pair.append(NONE)
                continue
            forms = {tensor: scheme.of(f"layers.{index}.{path}") for tensor,
                     path in modules_of(family, section).items()}
            key = json.dumps([section, forms], sort_keys=True)
            if key not in named[half]:
                name = _free(_title(section), parts[half])
                named[half][key], parts[half][name], stored[name] = name, section, forms
            pair.append(named[half][key])
        pairs.append((pair[0], pair[1]))
    return {"blocks": blocks_of(pairs), "attention": _sourced(parts["attention"]), "mlp": _sourced(parts["mlp"]),
            "exceptions": (stored, Counter(name for pair in pairs for name in pair))}


def _title(part: Part) -> str:
    if part["kind"] == "gqa":
        return "sliding" if part.get("window") else "chunked" if part.get("chunk") else "gqa"
    if part["kind"] == "compressed":
        return {0: "sliding", 128: "heavy"}.get(part.get("ratio", 0), "sparse")
    return str(part.get("rule") or {"mamba2": "mamba"}.get(part["kind"], part["kind"]))


def _free(name: str, taken: dict[str, Part]) -> str:
    return next(word for n in range(1, 10**6) if (word := name if n == 1 else f"{name}-{n}") not in taken)


def _sourced(parts: dict[str, Part]) -> dict[str, Part]:
    return {name: part | SOURCED for name, part in parts.items()}


def blocks_of(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Runs of equal layers, a repeated pattern of runs written once.

    >>> blocks_of([("a", "x"), ("b", "x")] * 3)
    [{'repeat': 3, 'of': [{'layers': 1, 'attention': 'a', 'mlp': 'x'}, {'layers': 1, 'attention': 'b', 'mlp': 'x'}]}]
    """
    runs: list[list[Any]] = []
    for pair in pairs:
        if runs and runs[-1][0] == pair:
            runs[-1][1] += 1
        else:
            runs.append([pair, 1])
    written: list[dict[str, Any]] = []
    at = 0
    while at < len(runs):
        best, times = 1, 1
        for length in range(2, min(24, len(runs) - at) + 1):
            piece, count = runs[at:at + length], 1
            while runs[at + count * length:at + (count + 1) * length] == piece:
                count += 1
            if count > 1 and count * length - length > best * times - best:
                best, times = length, count
        rows = [{"layers": count, "attention": pair[0], "mlp": pair[1]} for pair, count in runs[at:at + best]]
        written += [{"repeat": times, "of": rows}] if times > 1 else rows
        at += best * times
    return written


def _store(raw: dict[str, Any], scheme: Scheme, base: str, exceptions: Any) -> None:
    """`formats` and `storage`: the usual format of every role, then tensors and sections that differ."""
    stored, layers = exceptions
    raw["formats"][base] = {"bits": 16, **SOURCED}
    raw["storage"]["default"] = base
    usual: dict[str, str | None] = {}
    for role, tensors in GROUPS["roles"].items():
        votes: Counter[str | None] = Counter()
        for name, forms in stored.items():
            for tensor, form in forms.items():
                votes[form] += layers[name] if tensor in tensors else 0
        if not votes or votes.total() == 0:
            continue
        usual[role] = votes.most_common(1)[0][0]
        inherited = usual.get("attention") if role == "linear" else None
        if usual[role] != inherited:
            raw["storage"][role] = usual[role] or base
        for tensor in tensors:
            own = {name: forms[tensor] for name, forms in stored.items() if tensor in forms}
            common = Counter({form: 0 for form in own.values()})
            for name, form in own.items():
                common[form] += layers[name]
            most = common.most_common(1)[0][0] if own else usual[role]
            if most != usual[role]:
                raw["storage"][tensor] = most or base
            raw["storage"] |= {f"{name}.{tensor}": form or base for name, form in own.items() if form != most}
    if scheme.head and scheme.of("lm_head"):
        raw["storage"]["head"] = scheme.of("lm_head")
    raw["formats"] |= {name: form | SOURCED for name, form in scheme.formats.items() if name in raw["storage"].values()}


def _store_mtp(raw: dict[str, Any], scheme: Scheme, base: str, like: Layer, layers: int, family: str) -> None:
    """MTP layers that an ignore list names stay unquantised: a storage key "mtp.role" for every quantised role."""
    paths = [path for section in like if section for path in modules_of(family, section).values()]
    named = [{scheme.of(f"{at}.{path}") for path in paths} for at in ("mtp.layers.0", f"layers.{layers}")]
    if scheme.formats and {None} in named:
        roles = [key for key, form in raw["storage"].items() if form != base and key in GROUPS["roles"]]
        raw["storage"] |= {f"mtp.{role}": base for role in roles}


def _mtp(mtp: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    names = []
    for half, part in zip(("attention", "mlp"), mtp["like"], strict=True):
        wanted = (part or {}) | SOURCED
        name = next((word for word, known in raw[half].items() if known == wanted), NONE if part is None else "")
        if not name:
            name = _free(_title(part or {}), raw[half])
            raw[half][name] = wanted
        names.append(name)
    made: dict[str, Any] = {"layers": mtp["layers"], "attention": names[0], "mlp": names[1]}
    return made | ({"copies": True} if mtp.get("copies") else {}) | SOURCED

