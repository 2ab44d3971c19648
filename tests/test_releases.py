"""The lock covers what pyproject.toml asks for; the wheel would hold the package and its descriptors."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
if not (ROOT / "requirements-dev.lock").is_file():
    pytest.skip("the lock lies in the checkout", allow_module_level=True)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, Version]:
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): Version(version) for name, version in pairs}


def asked() -> list[Requirement]:
    extras, needs, todo = PROJECT["project"]["optional-dependencies"], list(PROJECT["project"]["dependencies"]), ["dev"]
    while todo:
        for need in map(Requirement, extras[todo.pop()]):
            if need.name == "perfmodel":
                todo += sorted(need.extras)
            else:
                needs.append(str(need))
    return [Requirement(need) for need in needs]


def test_the_lock_satisfies_every_bound() -> None:
    versions = locked()
    assert len(asked()) > 12
    for need in asked():
        assert canonical(need.name) in versions, f"{need.name} is not in requirements-dev.lock"
        assert versions[canonical(need.name)] in need.specifier, need


def test_every_dependency_has_a_lower_bound_and_no_upper_one() -> None:
    for need in PROJECT["project"]["dependencies"]:
        assert [part.operator for part in Requirement(need).specifier] == [">="], need


def test_the_wheel_takes_only_the_package_and_its_descriptors() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["only-include"] == ["perfmodel", "hardware", "models"]
    found = [path for folder in ("hardware", "models") for path in (ROOT / folder).rglob("*")]
    endings = {path.suffix for path in found if path.is_file()}
    assert endings <= {".yaml", ".csv", ".md"}                                     # nothing there can run
