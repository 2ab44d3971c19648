"""The address of a view, and files that somebody hands to the page. No Streamlit, no browser."""

import base64
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import BadInput, PerfModelError, UnknownName
from perfmodel.ui import ask, uploads
from perfmodel.ui.address import (
    DEFAULT,
    MOST_ADDRESS,
    MOST_UNPACKED,
    TOO_LARGE,
    View,
    from_address,
    keywords,
    pack,
    strategy_text,
    to_address,
    unpack,
)
from perfmodel.ui.words import plain

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
NODE = Path(__file__).parents[1] / "samples" / "probed-2x-h200-sxm.yaml"
SWEEP = b"concurrency,output_tok_s,input_tokens,output_tokens\n1,80,1024,1024\n8,350,1024,1024\n"
LEGAL = st.sampled_from(["tp=8", "tp=8,ep=8", "tp=1,pp=8", "tp=4,cuda_graphs=off,layers_per_stage=7,8", "tp=1"])
VIEWS = st.builds(
    View,
    page=st.sampled_from(["compare", "measured", "job"]),
    model=st.text(max_size=40),
    node=st.text(max_size=40),
    strategies=st.lists(LEGAL, max_size=4).map(tuple),
    context=st.integers(0, 10**8),
    concurrency=st.integers(1, 10**5),
    input_tokens=st.sampled_from(["1024", "lognormal:2500:0.8", "uniform:1:9"]),
    measured=st.text(max_size=300).map(pack),
    on=st.integers(0, 3),
    fit=st.booleans(),
    samples=st.integers(1, 10**9),
    price=st.floats(0, 1e6),
)


def as_query(view: View) -> dict[str, list[str]]:
    return {key: [text] if isinstance(text, str) else text for key, text in to_address(view).items()}


@given(view=VIEWS)
def test_every_view_comes_back_from_its_address(view: View) -> None:
    assert from_address(as_query(view)) == view


def test_what_is_as_by_default_is_not_in_the_address() -> None:
    assert to_address(DEFAULT) == {}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"modle": ["x"]}, "nearest: model"),
        ({"concurrency": ["many"]}, "must be a number"),
        ({"concurrency": ["0"]}, "between 1 and 100,000"),
        ({"price": ["nan"]}, "between 0 and 1,000,000"),
        ({"samples": ["9" * 5000]}, "between"),
        ({"fit": ["maybe"]}, "on or off"),
        ({"page": ["admin"]}, "unknown page"),
        ({"model": ["a", "b"]}, "2 times"),
        ({"strategies": ["tp=8"] * 5}, "at most 4"),
        ({"strategies": ["tp=8,colour=red"]}, "unknown keyword"),
        ({"strategies": ["tp=8;rm -rf"]}, "letters, digits"),
        ({"strategies": ["calibration=mine.yaml"]}, "names no calibration"),
        ({"measured": ["AAAA"]}, "damaged"),
        ({"config": ["ä"]}, "damaged"),
        ({"config": [TOO_LARGE]}, "too large for an address"),
    ],
)
def test_wrong_addresses_are_refused(query: dict[str, list[str]], says: str) -> None:
    with pytest.raises(PerfModelError) as refusal:
        from_address(query)
    assert says in refusal.value.message


def test_a_file_too_large_for_an_address_is_said_there() -> None:
    address = as_query(View(config="x" * (MOST_ADDRESS + 1)))
    assert address == {"config": [TOO_LARGE]}
    with pytest.raises(BadInput, match="too large for an address"):
        from_address(address)


def test_a_small_address_unpacks_to_a_bounded_text() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(b"0" * (MOST_UNPACKED + 1), 9)).decode()
    assert len(bomb) < MOST_ADDRESS
    with pytest.raises(BadInput, match="too large"):
        unpack(bomb)


@given(text=st.sampled_from(["tp=8", "tp=8,kv_dtype=fp8,memory_fraction=0.92", "tp=2,pp=4,patches=pp,engine=sglang"]))
def test_strategies_survive_the_sliders(text: str) -> None:
    assert keywords(strategy_text(keywords(text))) == keywords(text)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.yaml", "./models/kimi-k2.6.yaml", "a/b", "x\0y", "~/x.yaml", ""])
def test_names_are_never_paths(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        ask.model_of(replace(DEFAULT, model=name))
    with pytest.raises(UnknownName):
        ask.node_of(replace(DEFAULT, node=name))


def test_a_file_in_the_working_folder_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.yaml").write_text("token: 1")
    monkeypatch.chdir(tmp_path)
    for name in ("secret.yaml", str(tmp_path / "secret.yaml"), f".{os.sep}secret.yaml"):
        with pytest.raises(UnknownName):
            ask.model_of(replace(DEFAULT, model=name))


def test_an_uploaded_config_is_the_model() -> None:
    view = replace(DEFAULT, config=uploads.pack_model(json.dumps(LLAMA).encode()), node="4x-h100-sxm")
    assert ask.model_of(view).layers == 32
    found = ask.answers(view)
    assert [answer.label for answer in found][:1] == ["TP4"]
    assert found[0].memory is not None
    assert found[0].memory.fits


def test_an_uploaded_node_is_the_node_and_names_no_file() -> None:
    text = NODE.read_text()
    assert ask.node_of(replace(DEFAULT, machine=uploads.pack_node(text.encode()))).count == 2
    accelerator = uploads.node(uploads.pack_node(text.encode())).accelerator
    for path in ("/etc/passwd.yaml", "./x.yaml", f"x/{accelerator}"):
        with pytest.raises(UnknownName, match="accelerator"):
            uploads.pack_node(text.replace(f"accelerator: {accelerator}", f"accelerator: {path}").encode())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"model_type": 7}', b'{"a": 1' + b"0" * 5000 + b"}", b"null"]
)
def test_hostile_uploads_are_refused_in_words(data: bytes) -> None:
    for pack_it in (uploads.pack_model, uploads.pack_node, uploads.pack_log):
        with pytest.raises(PerfModelError):
            pack_it(data)


def test_large_uploads_are_refused() -> None:
    with pytest.raises(PerfModelError, match="at most"):
        uploads.pack_model(b" " * (uploads.MOST_BYTES + 1))
    with pytest.raises(PerfModelError, match="at most"):
        uploads.pack_benchmark([b"x"] * (uploads.MOST_FILES + 1))


@given(data=st.binary(max_size=300))
def test_any_bytes_are_a_log_or_refused(data: bytes) -> None:
    with pytest.raises(PerfModelError):
        uploads.pack_log(data)


def test_a_log_comes_back() -> None:
    packed = uploads.pack_log(b"Model loading took 14.99 GiB memory and 5 seconds\nGPU KV cache size: 476,016 tokens\n")
    assert uploads.log(packed).known == {"engine": "vllm", "weights_gib": 14.99, "kv_tokens": 476016}
    for wrong in ('{"kv_tokens": "many"}', '{"path": 1}', "[]"):
        with pytest.raises(PerfModelError):
            uploads.log(pack(wrong))


def test_a_benchmark_is_set_beside_and_fitted() -> None:
    view = replace(DEFAULT, strategies=("tp=8",), measured=uploads.pack_benchmark([SWEEP]))
    found = ask.fitted(view)
    assert found.measured.tolist() == pytest.approx([80, 350], abs=0, rel=1e-9)
    shipped = ask.answers(view)[0].curve
    after = ask.answers(replace(view, fit=True))[0].curve
    assert shipped is not None
    assert after is not None
    at = shipped.concurrency.tolist().index(8)
    assert abs(after.output_tok_s[0][at] - 350) < abs(shipped.output_tok_s[0][at] - 350)
    assert ask.calibration_yaml(found).startswith("schema: calibration/1")
    drawn = ask.measured_curve(view, found)
    assert drawn is not None
    assert drawn[1] == "rate"
    assert [c for c, _ in drawn[2]] == [1, 8]
    assert [tok_s for _, tok_s in drawn[2]] == pytest.approx([80, 350], abs=0, rel=1e-9)


def test_a_long_benchmark_is_kept_as_its_rows() -> None:
    details = os.urandom(20_000).hex()
    result = {"completed": 100, "total_input_tokens": 102400, "total_output_tokens": 102400, "max_concurrency": 8,
              "median_tpot_ms": 21.5, "output_throughput": 350.0, "request_throughput": 0.3, "duration": 300.0,
              "generated_texts": [details], "median_ttft_ms": 170.0, "backend": "vllm"}  # fmt: skip
    packed = uploads.pack_benchmark([json.dumps(result).encode()])
    assert len(packed) > MOST_ADDRESS
    view = replace(DEFAULT, strategies=("tp=8",), measured=packed)
    found = ask.fitted(view)
    short = uploads.shortened(packed, found.rows)
    assert len(short) < 400
    again = ask.fitted(replace(view, measured=short))
    assert again.measured.tolist() == pytest.approx(found.measured.tolist(), abs=0, rel=1e-9)
    assert again.after.tolist() == pytest.approx(found.after.tolist(), abs=0, rel=1e-6)


HOSTILE = ["![x](http://192.0.2.1/a)", "<img src=x>", "$x$ :red[a] ~~b~~", "[a](b)\n# c", "a | b"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_others_makes_nothing_in_markdown(text: str) -> None:
    bare = plain(text).replace("\\\\", "")
    for mark in "![]()<>$:~#|":
        assert bare.count(mark) == bare.count(f"\\{mark}")
