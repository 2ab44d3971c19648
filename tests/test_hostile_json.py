"""JSON and tables of strangers: nothing is said twice, truth is no number, and a number is one that JSON has."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from fuzz.parsers import PARSERS
from fuzz.run import outcome
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog.once import loads
from perfmodel.errors import PerfModelError
from perfmodel.probe.plan import Task

SERVED = {"completed": 64, "total_input_tokens": 65536, "total_output_tokens": 8192, "output_throughput": 409.6,
          "max_concurrency": 8, "median_tpot_ms": 17.5}
RECORD = {"task": Task("copy", "device_to_device", mode="graph", message_bytes=4096).to_dict(), "us": 1.5,
          "us_min": 1.0, "us_max": 2.0, "iterations": 10, "repeats": 3}
NCCL = {"collective_test": "all_reduce_perf", "results": [{"size": 1024, "count": 256, "type": "float", "redop": "sum",
        "in_place": {"time": 5.0, "bus_bw": 1.0, "nwrong": 0}}]}
TRACE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
# parser of tests/fuzz: an object that it reads, and a key of it whose number counts
READ: dict[str, tuple[dict[str, Any], str]] = {
    "trace jsonl": (TRACE, "input_length"),
    "requests jsonl": ({"input_tokens": 100, "output_tokens": 20}, "output_tokens"),
    "progress": ({"samples_done": 1200, "seconds": 5400}, "samples_done"),
    "bench": (SERVED, "median_tpot_ms"),
    "journal": (RECORD, "us"),
    "nccl-tests": (NCCL, "results"),
    "launch list": ({"launch_command": "vllm serve a", "rows": 1}, "launch_command"),
    "config": (json.loads(PARSERS["config"].samples()[0]), "hidden_size"),
}


def refused(name: str, text: str) -> str:
    """The refusal of a text by a parser."""
    assert outcome(PARSERS[name].read, text.encode()) == "refused"
    with pytest.raises(PerfModelError) as refusal:
        PARSERS[name].read(text.encode())
    return refusal.value.message


@pytest.mark.parametrize("name", READ)
def test_a_key_with_two_values_is_refused(name: str) -> None:
    row, key = READ[name]
    text = json.dumps(row)
    assert outcome(PARSERS[name].read, text.encode()) == "read"
    same = f"{text[:-1]}, {json.dumps(key)}: {json.dumps(row[key])}}}"
    assert outcome(PARSERS[name].read, same.encode()) == "read"
    assert f"{key!r} appears twice" in refused(name, f"{text[:-1]}, {json.dumps(key)}: 7}}")
    assert "twice" in refused(name, f"{text[:-1]}, \"odd\": {{\"a\": 1, \"a\": 2}}}}")


@pytest.mark.parametrize("value", ["true", "false", "NaN", "Infinity", "-Infinity", "1e999", "-1", "[5]", "{}", "null",
                                   '"x"', "9" * 10_000, '"' + "9" * 10_000 + '"'])
@pytest.mark.parametrize("name", [name for name in READ if name not in ("nccl-tests", "launch list")])
def test_a_number_is_a_number(name: str, value: str) -> None:
    row, key = READ[name]
    if name == "bench" and value in ("null", "false"):
        pytest.skip("not measured")
    said = refused(name, json.dumps(row | {key: "HERE"}).replace('"HERE"', value))
    assert len(said) < 400 and "set_int_max_str_digits" not in said


@pytest.mark.parametrize(("key", "value", "says"), [
    ("hash_ids", [True, False], "hash_ids must be"), ("hash_ids", [1.0], "hash_ids must be"),
    ("hash_ids", [2**64], "64 bits"), ("hash_ids", "12", "hash_ids must be"),
    ("hash_ids", {"1": 2}, "hash_ids must be"),
    ("output_length", True, "whole number"), ("timestamp", False, "the time must be"),
])  # fmt: skip
def test_traces_take_no_truth_for_a_number(key: str, value: object, says: str) -> None:
    assert says in refused("trace jsonl", json.dumps(TRACE | {key: value}))


@pytest.mark.parametrize(("key", "value"), [("iterations", True), ("repeats", "3"), ("l2", 5), ("date", None),
                                            ("us_min", False), ("us_max", "2")])
def test_journals_hold_measurements(key: str, value: object) -> None:
    assert "no measurement" in refused("journal", json.dumps(RECORD | {key: value}))


@pytest.mark.parametrize(("key", "value"), [("gpus", True), ("message_bytes", "4096"), ("m", 1.5), ("mode", 1)])
def test_tasks_of_a_journal_are_tasks(key: str, value: object) -> None:
    assert "no measurement" in refused("journal", json.dumps(RECORD | {"task": RECORD["task"] | {key: value}}))


@pytest.mark.parametrize(("name", "text"), [
    ("trace csv", "arrival_s,input_tokens,output_tokens,input_tokens\n0,10,20,30\n"),
    ("requests csv", "input_tokens,output_tokens,output_tokens\n10,20,30\n"),
    ("lengths", "output_tokens,output_tokens\n20,30\n"), ("progress", "samples_done,seconds,seconds\n1,2,3\n"),
    ("bench", "concurrency,output_tok_s,concurrency\n8,700,9\n"),
    ("measured", "concurrency,output_tok_s,concurrency\n8,7,9\n"),
    ("launch list", "id,command,command\n1,vllm serve a,vllm serve b\n"),
    ("kernels", "table,latency_us,latency_us\na,1,2\n"),
])  # fmt: skip
def test_a_column_that_stands_twice_is_refused(name: str, text: str) -> None:
    assert "appears twice" in refused(name, text)


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                      lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_what_says_nothing_twice_is_read_as_json(value: object) -> None:
    assert loads(json.dumps(value)) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=1), st.data())
def test_a_key_twice_is_found_wherever_it_stands(values: dict[str, int], data: st.DataObject) -> None:
    pairs = [f"{json.dumps(key)}: {value}" for key, value in values.items()]
    key = data.draw(st.sampled_from(sorted(values)))
    pairs.insert(data.draw(st.integers(0, len(pairs))), f"{json.dumps(key)}: {values[key] + 1}")
    with pytest.raises(ValueError, match=re.escape("appears twice")):
        loads(f'[{{"a": {{{", ".join(pairs)}}}}}]')


@pytest.mark.parametrize("read", [loads, lambda text: loads(text, finite=True)])
def test_only_some_readers_take_nan(read: Callable[[str], Any]) -> None:
    if read is loads:
        assert read("[Infinity]") == [float("inf")]
    else:
        with pytest.raises(ValueError, match="Infinity is no number"):
            read("[Infinity]")
