"""Every prefix is the power that it is called, and nothing but a quantity is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.units import BASE, BINARY, DECIMAL, SMALL, format_bytes, gb_gib, parse, si, split


@pytest.mark.parametrize(("power", "prefix"), list(enumerate(["", "k", "M", "G", "T", "P", "E"])))
@pytest.mark.parametrize("base", BASE)
def test_decimal_prefixes_are_powers_of_a_thousand(power: int, prefix: str, base: str) -> None:
    assert parse(f"1 {prefix}{base}", base) == 1000**power


@pytest.mark.parametrize(("power", "prefix"), list(enumerate(["Ki", "Mi", "Gi", "Ti", "Pi"], start=1)))
@pytest.mark.parametrize("base", ["B", "B/s"])
def test_binary_prefixes_are_powers_of_1024(power: int, prefix: str, base: str) -> None:
    assert parse(f"1 {prefix}{base}", base) == 1024**power


@pytest.mark.parametrize(("power", "prefix"), list(enumerate(["m", "u", "n", "p"], start=1)))
def test_small_prefixes_divide_by_powers_of_a_thousand(power: int, prefix: str) -> None:
    assert parse(f"1 {prefix}s", "s") == 1 / 1000**power


def test_no_prefix_escapes_these_tests() -> None:
    assert [*DECIMAL] == ["", "k", "M", "G", "T", "P", "E"]
    assert [*BINARY] == ["Ki", "Mi", "Gi", "Ti", "Pi"]
    assert [*SMALL] == ["m", "u", "n", "p"]


@pytest.mark.parametrize(
    "text",
    ["4.8TB/s", "4.8 TBps", "1 KB", "", "1 mB", "1 KiFLOP", "nan", "inf", "NaN s", "-inf", "1e", "1,000 B", "0x10 B",
     "1 GB x", "--1 s", True, None, "1 " + "k" * 10_000 + "B"],
)  # fmt: skip
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        split(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [float("nan"), float("inf"), "1e400", "1e308 TB"])
def test_numbers_that_are_not_finite_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="not a quantity|not a finite number"):
        split(text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["4.8e12", "4.8 TB", 0.8, "1 s"])
def test_the_wrong_dimension_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="a quantity in B/s is needed"):
        parse(text, "B/s")  # type: ignore[arg-type]


@given(st.floats(min_value=0, max_value=1e15, allow_subnormal=False))
def test_a_printed_float_is_read_back(value: float) -> None:
    assert parse(repr(value)) == value
    assert parse(f"{value!r} B", "B") == value


@given(st.floats(min_value=1e-11, max_value=1e20))
def test_si_keeps_the_value_to_its_digits(value: float) -> None:
    text = si(value, "s", digits=4)
    assert parse(text, "s") == pytest.approx(value, rel=6e-4, abs=0)


@pytest.mark.parametrize(
    ("value", "text"), [(999.96, "1 kB/s"), (1000, "1 kB/s"), (999.4, "999 B/s"), (1.792e12, "1.79 TB/s"), (0, "0 B/s")]
)
def test_si_chooses_the_prefix_after_rounding(value: float, text: str) -> None:
    assert si(value, "B/s") == text


def test_bytes_in_both_units() -> None:
    assert gb_gib(2**30, 2) == "1.07 GB (1.00 GiB)"
    assert format_bytes(97887 * 2**20, "MiB", 0) == "97,887 MiB"
    with pytest.raises(ValueError, match="not a unit of bytes"):
        format_bytes(1.0, "GBit")
