"""How the weights of a Hugging Face checkpoint are stored: its quantisation config -> a format for every module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perfmodel.catalog.hf_keys import Keys
from perfmodel.catalog.patterns import Patterns

Form = dict[str, Any]

# Sizes as the makers of each format define them: GPTQ and AWQ store an FP16 scale and a zero point a group (AutoGPTQ,
# AutoAWQ); block FP8 an FP32 scale a block; NVFP4 an FP8 scale per 16; MX formats an E8M0 scale per 32 (OCP MX v1.0)
FIXED: dict[str, Form] = {
    "fp8": {"bits": 8}, "int8": {"bits": 8}, "nvfp4": {"bits": 4, "group": 16, "scale_bits": 8},
    "mxfp4": {"bits": 4, "group": 32, "scale_bits": 8}, "mxfp8": {"bits": 8, "group": 32, "scale_bits": 8},
}  # fmt: skip
ALGORITHMS = {
    "NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "NVFP4_AWQ": "nvfp4", "W4A8_NVFP4_FP8": "nvfp4", "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "MXFP8": "mxfp8", "MXFP4": "mxfp4", "W4A8_MXFP4_FP8": "mxfp4",
    "W8A8_SQ_PER_CHANNEL": "int8",
}  # fmt: skip
KV_WORDS = {"FP8": "fp8", "NVFP4": "nvfp4", "INT8": "int8"}


@dataclass
class Scheme:
    """Which format a module is stored in: the first rule that matches, else `default`; None is unquantised."""

    formats: dict[str, Form] = field(default_factory=dict)
    rules: list[tuple[Callable[[str], bool], str | None]] = field(default_factory=list)
    default: str | None = None
    head: bool = False                  # lm_head is quantised too where a rule says so
    kv_cache: str | None = None

    def of(self, module: str) -> str | None:
        """Format of a module such as ``layers.3.mlp.experts.0.up_proj``."""
        for matches, form in self.rules:
            if matches(module):
                return form
        return self.default

    def add(self, name: str, form: Form | None = None) -> str:
        """Remember a format."""
        self.formats[name] = form or FIXED[name]
        return name


def scheme_of(c: Keys) -> Scheme:
    """The scheme of a `quantization_config`, or of the `quantization` of a hf_quant_config.json."""
    method = c.word("quant_method", default="modelopt" if c.has("quant_algo") else "").lower().replace("_", "-")
    if c.has("quant_algo") and c.has("quantized_layers"):
        method = "modelopt" if method != "fp8" else "fp8"
    if method not in METHODS:
        raise c.refuse("quant_method", f"{method!r} is not one of {', '.join(sorted(METHODS))}")
    return METHODS[method](c)


def _ignore(c: Keys, scheme: Scheme, *names: str) -> None:
    listed = c.words(*names, default=[])
    if listed:
        scheme.rules.append((Patterns(listed, c.file, c.path + names[0]).matches, None))


def _integer(bits: int, group: int | None, zero: bool) -> tuple[str, Form]:
    if group is None:
        return f"int{bits}", {"bits": bits}
    return f"int{bits}-g{group}", {"bits": bits, "group": group,
                                   "scale_bits": 16} | ({"zero_bits": bits} if zero else {})


def _group(c: Keys, *names: str) -> int | None:
    value = c.count(*names, default=-1, least=-1, most=10**6)
    return None if value == -1 else c.whole(names[0], value, 1, 10**6)


def compressed_tensors(c: Keys) -> Scheme:
    """compressed-tensors: groups of targets, each with its weights' format."""
    scheme = Scheme()
    _ignore(c, scheme, "ignore")
    groups = c.inner("config_groups")
    for key in groups.values:
        group = groups.inner(key)
        name, form = _weights(group.inner("weights"), c.word("format", default=""))
        scheme.add(name, form)
        targets = group.words("targets", default=["Linear"])
        if "Linear" in targets:
            scheme.default = name
        named = [target for target in targets if target != "Linear"]
        if named:
            scheme.rules.append((Patterns(named, c.file, f"{group.path}targets").matches, name))
    scheme.kv_cache = _kv_scheme(c)
    return scheme


def _weights(w: Keys, packing: str) -> tuple[str, Form]:
    bits, kind = w.count("num_bits", most=16), w.word("type", default="int")
    strategy = w.word("strategy", default="group" if w.has("group_size") else "channel")
    group = _group(w, "group_size") if strategy in ("group", "tensor_group") else None
    if kind == "float" and bits == 8:
        return ("mxfp8", FIXED["mxfp8"]) if group == 32 else _block(w) if strategy == "block" else ("fp8", FIXED["fp8"])
    if kind == "float" and bits == 4 and group in (16, 32):
        name = "nvfp4" if group == 16 else "mxfp4"
        return name, FIXED[name]
    if kind == "int":
        return _integer(bits, group, zero=not w.flag("symmetric", default=True))
    raise w.refuse("num_bits", f"{bits}-bit {kind} weights in groups of {group} are not a known format")


def _block(c: Keys) -> tuple[str, Form]:
    size = c.listed("weight_block_size", "block_structure", length=2)
    area = c.whole("weight_block_size", size[0], 1, 10**5) * c.whole("weight_block_size", size[1], 1, 10**5)
    return "fp8-block", {"bits": 8, "group": area, "scale_bits": 32}


def _kv_scheme(c: Keys) -> str | None:
    raw = c.values.get("kv_cache_scheme")
    if isinstance(raw, str):
        return KV_WORDS.get(c.word("kv_cache_scheme"))
    scheme = c.inner("kv_cache_scheme", default=None)
    return "fp8" if scheme.values and scheme.count("num_bits", most=16) == 8 else None


def fp8(c: Keys) -> Scheme:
    """FP8 by blocks or tensors (DeepSeek V3, Qwen3-FP8); experts in FP4 where DeepSeek V4 says so."""
    scheme = Scheme()
    name, form = _block(c) if c.has("weight_block_size") else ("fp8", FIXED["fp8"])
    scheme.default = scheme.add(name, form)
    if c.has("quantized_layers"):           # NVFP4 experts on top of an FP8 checkpoint
        _layers(c, scheme)
    expert = c.word("expert_dtype", default="")
    if expert:
        if expert != "fp4":
            raise c.refuse("expert_dtype", f"{expert!r} is not 'fp4'")
        mxfp4 = scheme.add("mxfp4")
        scheme.rules.append((lambda module: ".experts." in module, mxfp4))
    _ignore(c, scheme, "modules_to_not_convert", "ignored_layers")
    return scheme


def gptq(c: Keys) -> Scheme:
    """GPTQ, AutoRound: integers in groups, with the exceptions of `dynamic` and `extra_config`."""
    scheme = Scheme()
    name, form = _integer(c.count("bits", most=16), _group(c, "group_size"), zero=True)
    scheme.default = scheme.add(name, form)
    _ignore(c, scheme, "modules_to_not_convert")
    for pattern, change in c.inner("dynamic", default=None).values.items():
        matches = Patterns(["re:" + pattern[2:]], c.file, c.path + "dynamic").matches
        if pattern.startswith("-:"):
            scheme.rules.append((matches, None))
        elif isinstance(change, dict):
            scheme.rules.append((matches, _override(Keys(change, c.file, c.path + "dynamic."), scheme, name)))
    extra = c.inner("extra_config", default=None)
    by_form: dict[str | None, list[str]] = {}
    for module, change in extra.values.items():
        if isinstance(change, dict):
            form_name = _override(Keys(change, c.file, c.path + "extra_config."), scheme, name)
            by_form.setdefault(form_name, []).append("re:" + module if ".*" in module else module)
    for form_name, modules in by_form.items():
        scheme.rules.append((Patterns(modules, c.file, c.path + "extra_config").matches, form_name))
    scheme.head = c.flag("lm_head")
    return scheme


def _override(c: Keys, scheme: Scheme, name: str) -> str | None:
    base = scheme.formats[name]
    bits = c.count("bits", default=base["bits"], most=32)
    if bits >= 16:
        return None
    group = _group(c, "group_size") if c.has("group_size") else base.get("group")
    return scheme.add(*_integer(bits, group, zero=True))


def awq(c: Keys) -> Scheme:
    """AWQ: 4-bit integers with a zero point."""
    scheme = Scheme()
    name, form = _integer(c.count("bits", "w_bit", most=16), _group(c, "group_size", "q_group_size"),
                          zero=c.flag("zero_point", default=True))  # fmt: skip
    scheme.default = scheme.add(name, form)
    _ignore(c, scheme, "modules_to_not_convert")
    return scheme


def bitsandbytes(c: Keys) -> Scheme:
    """bitsandbytes: NF4 or FP4 in blocks of 64, or INT8."""
    scheme = Scheme()
    four, eight = c.flag("load_in_4bit", "_load_in_4bit"), c.flag("load_in_8bit", "_load_in_8bit")
    if four == eight:
        raise c.refuse("load_in_4bit", "either this or load_in_8bit must be true")
    double = c.flag("bnb_4bit_use_double_quant")
    nf4 = {"bits": 4, "group": 64, "scale_bits": 8 if double else 32}
    scheme.default = scheme.add(c.word("bnb_4bit_quant_type", default="fp4"), nf4) if four else scheme.add("int8")
    _ignore(c, scheme, "llm_int8_skip_modules")
    return scheme


def mxfp4(c: Keys) -> Scheme:
    """MXFP4 as gpt-oss uses it: the experts alone."""
    scheme = Scheme()
    name = scheme.add("mxfp4")
    _ignore(c, scheme, "modules_to_not_convert")
    scheme.rules.append((lambda module: ".experts." in module, name))
    return scheme


def modelopt(c: Keys) -> Scheme:
    """NVIDIA ModelOpt: one algorithm with exceptions, or a mix by layer."""
    scheme = Scheme()
    _ignore(c, scheme, "ignore", "exclude_modules")
    word = c.word("quant_algo").upper()
    if c.has("quantized_layers"):
        _layers(c, scheme)
    elif word == "MIXED_PRECISION":
        raise c.refuse("quantized_layers", "this key is missing: MIXED_PRECISION needs the algorithm of each layer")
    else:
        scheme.default = _algorithm(c, "quant_algo", word, scheme)
    kv = c.word("kv_cache_quant_algo", default="")
    scheme.kv_cache = KV_WORDS.get(kv.upper()) or _kv_scheme(c)
    return scheme


def _layers(c: Keys, scheme: Scheme) -> None:
    by_algorithm: dict[str, list[str]] = {}
    for module, change in c.inner("quantized_layers").values.items():
        if not isinstance(change, dict):
            raise c.refuse("quantized_layers", f"{module[:80]!r} is not an object")
        by_algorithm.setdefault(str(change.get("quant_algo")).upper(), []).append(module)
    c.used["quantized_layers"] = c.values["quantized_layers"]
    for word, modules in by_algorithm.items():
        name = _algorithm(c, "quantized_layers", word, scheme)
        scheme.rules.append((Patterns(modules, c.file, c.path + "quantized_layers").matches, name))
        scheme.head |= any(module.rpartition(".")[2] in ("lm_head", "head") for module in modules)


def _algorithm(c: Keys, key: str, word: str, scheme: Scheme) -> str:
    if word in ("W4A16_AWQ", "W4A8_AWQ"):
        return scheme.add(*_integer(4, _group(c, "group_size") or 128, zero=False))
    if word == "FP8_PB_WO":
        return scheme.add("fp8-block", {"bits": 8, "group": 128 * 128, "scale_bits": 32})
    if word not in ALGORITHMS:
        raise c.refuse(key, f"{word[:40]!r} is not one of {', '.join(sorted(ALGORITHMS))}, FP8_PB_WO, W4A16_AWQ")
    return scheme.add(ALGORITHMS[word])


def quark(c: Keys) -> Scheme:
    """AMD Quark: one weight format with exceptions."""
    scheme = Scheme()
    _ignore(c, scheme, "exclude")
    w = c.inner("global_quant_config").inner("weight")
    dtype = w.word("dtype")
    known = {"fp4": "mxfp4", "fp8_e4m3": "fp8", "int8": "int8"}
    if dtype not in known:
        raise w.refuse("dtype", f"{dtype!r} is not one of {', '.join(known)}")
    scheme.default = scheme.add(known[dtype])
    return scheme


METHODS: dict[str, Callable[[Keys], Scheme]] = {
    "compressed-tensors": compressed_tensors, "fp8": fp8, "fbgemm-fp8": fp8, "gptq": gptq, "auto-round": gptq,
    "auto-gptq": gptq, "awq": awq, "bitsandbytes": bitsandbytes, "mxfp4": mxfp4, "modelopt": modelopt, "quark": quark,
}  # fmt: skip
