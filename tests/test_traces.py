"""Traces and length files of others: read as published, refused in words when broken."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import toy
from command_line import ask as command

import perfmodel as pm
from perfmodel.errors import BadInput, PerfModelError
from perfmodel.serving.lengths import parse_lengths, quantiles, sample
from perfmodel.serving.prefix import PrefixCache
from perfmodel.serving.traces import read_trace

# first lines of the published files: github kvcache-ai/Mooncake, Azure/AzurePublicDataset, HPMLL/BurstGPT
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2, 3, 4]}
{"timestamp": 0, "input_length": 7319, "output_length": 490, "hash_ids": [0, 14, 15]}
{"timestamp": 3052, "input_length": 7234, "output_length": 794, "hash_ids": [0, 28]}
"""
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
PLAIN = "arrival_s,input_tokens,output_tokens\n2.5,10,20\n0.5,30,40\n"


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_published_formats_are_read(tmp_path: Path) -> None:
    trace = read_trace(file(tmp_path, "m.jsonl", MOONCAKE))
    assert trace.form == "mooncake" and trace.hash_ids == ((0, 1, 2, 3, 4), (0, 14, 15), (0, 28))
    assert trace.arrival_s.tolist() == [0, 0, 3.052] and trace.inputs.tolist() == [6755, 7319, 7234]
    azure = read_trace(file(tmp_path, "a.csv", AZURE))
    assert azure.form == "azure" and azure.outputs.tolist() == [44, 109]
    assert azure.arrival_s[1] == pytest.approx(4.314579, rel=1e-6, abs=0)
    burst = read_trace(file(tmp_path, "b.csv", BURSTGPT), speed=2.0)
    assert (burst.form, burst.dropped, burst.arrival_s.tolist()) == ("burstgpt", 1, [0.0, 56.5])
    plain = read_trace(file(tmp_path, "p.csv", PLAIN))
    assert plain.arrival_s.tolist() == [0.0, 2.0] and plain.inputs.tolist() == [30, 10]
    assert len(read_trace(tmp_path / "m.jsonl", limit=2).inputs) == 2


@pytest.mark.parametrize(("name", "text"), [
    ("empty.csv", ""), ("head.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"), ("other.csv", "a,b\n1,2\n"),
    ("nan.csv", AZURE + "2023-11-16 18:15:51,nan,3\n"), ("minus.csv", PLAIN + "3,-4,5\n"),
    ("half.csv", PLAIN + "3,4.5,5\n"), ("time.csv", AZURE + "yesterday,4,5\n"), ("back.csv", PLAIN + "-1,4,5\n"),
    ("no.jsonl", "{"), ("list.jsonl", "[1, 2]\n"), ("deep.jsonl", "[" * 100_000 + "\n"),
    ("ids.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ["x"]}\n'),
    ("some.jsonl", MOONCAKE + '{"timestamp": 9000, "input_length": 5, "output_length": 5}\n'),
    ("bool.jsonl", '{"timestamp": true, "input_length": 5, "output_length": 5}\n'),
    ("turns.jsonl", '{"delay": 10, "session_id": "a", "input_length": 5, "output_length": 5}\n'),
    ("failed.csv", "Timestamp,Request tokens,Response tokens\n1,5,0\n"),
])  # fmt: skip
def test_a_broken_trace_is_refused_in_words(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_trace(file(tmp_path, name, text))
    assert 10 < len(caught.value.message) < 400


def test_lengths_come_from_files(tmp_path: Path) -> None:
    table = file(tmp_path, "l.csv", "input_tokens,output_tokens\n100,10\n300,20\n200,60\n")
    assert parse_lengths(f"file:{table}").mean == 30
    assert parse_lengths(f"file:{table}", "input_tokens").mean == 200
    assert parse_lengths(f"file:{table}:input_tokens").values == (100, 200, 300)
    lines = file(tmp_path, "l.jsonl", '{"output_length": 7}\n{"output_length": 9}\n')
    assert sorted(sample(parse_lengths(f"file:{lines}"), 4)) == [7, 7, 9, 9]
    curve = pm.predict(pm.deploy(toy(), node="1x-h100-sxm"), concurrency=4, output_tokens=f"file:{table}")
    assert curve.output_tokens == 30


def test_lengths_come_from_parquet_and_from_text(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"output_tokens": [5, 15]}), tmp_path / "l.parquet")
    assert parse_lengths(f"file:{tmp_path / 'l.parquet'}").mean == 10
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    text = file(tmp_path, "t.jsonl", '{"answer": "a b a"}\n{"answer": "b"}\n')
    assert parse_lengths(f"file:{text}:answer:{tmp_path / 'tokenizer.json'}").mean == 2
    with pytest.raises(BadInput, match="text"):
        parse_lengths(f"file:{text}:answer")


@pytest.mark.parametrize(
    "text", ["file:", "file:/nowhere.csv", "file:{0}", "file:{0}:nothing", "file:{0}:output_tokens:no"]
)
def test_a_file_without_lengths_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(PerfModelError):
        parse_lengths(text.format(file(tmp_path, "e.csv", "output_tokens\n")))


def test_falling_lengths_have_the_mean_and_the_end_that_they_say() -> None:
    lengths = parse_lengths("falling:200")
    many = sample(lengths, 100_000, 1)
    assert many.mean() == pytest.approx(200, rel=0.002, abs=0)
    assert many.std() / many.mean() == pytest.approx(lengths.spread, rel=0.005, abs=0)
    assert quantiles(lengths, 0.999999) < 600


def test_a_prefix_that_is_used_again_is_found_and_old_ones_give_way() -> None:
    cache = PrefixCache(100)
    assert cache.take([1, 2, 3], 350, free=1000) == 0
    cache.give([1, 2, 3])
    assert cache.take([1, 2, 9], 300, free=1000) == 200
    assert cache.take([1, 2, 9], 300, free=1000) == 299  # the last token is always computed
    assert cache.saved == 300
    cache.give([1, 2, 9])
    cache.give([1, 2, 9])
    assert cache.saved == 0
    assert cache.take([1, 2], 200, free=150) == 0  # room for one idle block alone: the newest, 9


def test_hash_ids_shorten_prefills_and_the_answer_says_by_how_much(tmp_path: Path) -> None:
    d = pm.deploy("llama-3.1-8b", node="1x-h100-sxm")
    load: dict[str, Any] = {"inputs": [5120] * 8, "outputs": [50] * 8, "arrivals": np.arange(8) * 2.0}
    cold = pm.simulate(d, **load, hash_ids=[range(10 * i, 10 * i + 10) for i in range(8)])
    warm = pm.simulate(d, **load, hash_ids=[range(10)] * 8)
    assert cold.hit_tokens == 0 and warm.hit_tokens == 7 * 5119
    assert np.all(warm.ttft_s[1:] < 0.7 * cold.ttft_s[1:])
    assert warm.ttft_s[0] == pytest.approx(cold.ttft_s[0], rel=1e-12, abs=0)


BASE = ["simulate", "--model", "llama-3.1-8b", "--node", "1x-h100-sxm"]


def test_the_command_replays_a_trace(tmp_path: Path) -> None:
    path = str(file(tmp_path, "m.jsonl", MOONCAKE))
    picture = tmp_path / "t.png"
    done = command(*BASE, "--trace", path, "--ttft-limit", "2s", "--json", "--plot", str(picture))
    assert done.exit_code == 0 and picture.stat().st_size > 1000
    answer = json.loads(done.stdout)
    assert answer["requests"] == 3 and answer["good_share"] == 1.0 and answer["prefix_hit_rate"] > 0
    assert {"ttft_p95_ms", "tpot_p99_ms", "e2e_p50_ms", "goodput_req_s", "output_tok_s", "timeline"} <= set(answer)
    text = command(*BASE, "--requests", "50", "--request-rate", "5")
    assert text.exit_code == 0 and all(len(line) <= 80 for line in text.stdout.splitlines())
    assert command(*BASE, "--requests", "50", "--ttft-limit", "1ms").exit_code == 1


@pytest.mark.parametrize("words", [
    [], ["--requests", "0"], ["--requests", "5", "--trace", "x"], ["--trace", "/nowhere.jsonl"], ["--requests", "many"],
    ["--requests", "5", "--concurrency", "2", "--request-rate", "1"], ["--requests", "5", "--request-rate", "0"],
    ["--requests", "5", "--ttft-limit", "soon"], ["--requests", "5", "--router", "magic"],
    ["--requests", "5", "--output-tokens", "file:/nowhere.csv"],
])  # fmt: skip
def test_the_command_refuses_in_words(words: list[str]) -> None:
    done = command(*BASE, *words)
    assert done.exit_code == 2 and done.stderr.lstrip().startswith("error: ")
