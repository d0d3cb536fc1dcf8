"""The lock file has the versions of the constraints and hashes, and every locked package has a known license."""

from __future__ import annotations

import re

from tools.supply_chain import CONSTRAINTS_FILE, LICENSES_PAGE, LOCK_FILE, is_known_license, list_locked_packages


def normalize_package_name(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def test_locked_versions_are_those_of_the_constraints() -> None:
    lines = [line for line in CONSTRAINTS_FILE.read_text().splitlines() if "==" in line and not line.startswith("#")]
    constraints = {normalize_package_name(name): version for name, version in (line.split("==") for line in lines)}
    locked = {normalize_package_name(name): version for name, version in list_locked_packages().items()}
    assert len(locked) > 50
    assert {name: version for name, version in locked.items() if constraints.get(name, version) != version} == {}


def test_every_locked_package_has_a_hash() -> None:
    blocks = re.split(r"\n(?=[\w.-]+==)", LOCK_FILE.read_text())[1:]
    assert len(blocks) == len(list_locked_packages())
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


def test_every_locked_package_has_a_known_license() -> None:
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", LICENSES_PAGE.read_text(), flags=re.MULTILINE)
    listed = {
        normalize_package_name(name): (version, license_) for name, version, license_ in rows if name != "package"
    }
    assert {name: text for name, (_, text) in listed.items() if not is_known_license(text)} == {}
    other_systems = {"httpx2-jsfetch", "setuptools"}  # WebAssembly; installed with Python
    locked = {normalize_package_name(name): version for name, version in list_locked_packages().items()}
    assert {name: version for name, version in locked.items() if name not in other_systems} == {
        name: version for name, (version, _) in listed.items() if name != "torch"
    }
    assert not is_known_license("MIT AND GPL-3.0-only")
