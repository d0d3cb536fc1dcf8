"""The packages that Head to Head installs: pinned with hashes, with their licenses, and as an SBOM.

    python -m tools.supply_chain lock       write requirements.lock with the versions of constraints.txt (uv)
    python -m tools.supply_chain licenses   write docs/licenses.md from the installed packages (pip-licenses)
    python -m tools.supply_chain sbom FILE  write a CycloneDX SBOM of requirements.lock (cyclonedx-bom)

`make supply-chain` installs the three tools in an environment of their own. torch and the CUDA packages that its builds
depend on are not in requirements.lock, because the builds for CPU and CUDA come from different indexes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT_ROOT = Path(__file__).resolve().parents[1]
LOCK_FILE = PROJECT_ROOT / "requirements.lock"
LICENSES_PAGE = PROJECT_ROOT / "docs" / "licenses.md"
CONSTRAINTS_FILE = PROJECT_ROOT / "constraints.txt"
INSTALLED_WITH_TORCH = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")
PINNED_PACKAGE = re.compile(r"^([\w.-]+)==(\S+)")
LOCK_HEADER = """\
# Written by `python -m tools.supply_chain lock`. Install torch first, then:
#   pip install --require-hashes -r requirements.lock && pip install --no-deps headtohead
"""
KNOWN_LICENSES = {
    *("0BSD", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "3-Clause BSD License", "BSL-1.0", "CC0-1.0"),
    *("Apache 2.0", "Apache 2.0 License", "Apache Software License", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"),
    *("MIT", "MIT License", "ISC License (ISCL)", "Zlib", "PSF-2.0", "CNRI-Python"),
    *("MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)"),  # copyleft of single files
}
PAGE_HEADER = """\
# Licenses

Head to Head is licensed under Apache-2.0. This page lists the packages that `pip install 'headtohead[all]'` installs on
Linux, besides the CUDA packages of torch, with the licenses that they declare. All of them allow use and distribution
with software under Apache-2.0. The Mozilla Public License 2.0 requires that changed files of these packages stay under
it. `make supply-chain` writes this page and `requirements.lock`, and fails for a license that is not known.

| package | version | license |
|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.supply_chain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["lock", "licenses", "sbom"])
    parser.add_argument(
        "file", nargs="?", type=Path, default=PROJECT_ROOT / "build" / "headtohead.cdx.json", help="of the SBOM"
    )
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment with the packages")
    arguments = parser.parse_args()
    if arguments.action == "lock":
        write_lock()
    elif arguments.action == "licenses":
        write_licenses(arguments.python)
    else:
        arguments.file.parent.mkdir(parents=True, exist_ok=True)
        run_tool(
            "cyclonedx-py", "requirements", str(LOCK_FILE), "--pyproject", "pyproject.toml", "-o", str(arguments.file)
        )
    return 0


def write_lock() -> None:
    """Write the versions and hashes of all packages but those that come with torch."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "lock"
        run_tool(
            *("uv", "pip", "compile", "pyproject.toml", "--extra", "all", "--universal", "--python-version", "3.11.7"),
            *("--generate-hashes", "--no-header", "--no-annotate", "--quiet"),
            *("-c", str(CONSTRAINTS_FILE), "-o", str(output)),
        )
        blocks = re.split(r"\n(?=\S)", output.read_text(encoding="utf-8").strip())
    locked_blocks = [block for block in blocks if not INSTALLED_WITH_TORCH.match(block)]
    LOCK_FILE.write_text(LOCK_HEADER + "\n".join(locked_blocks) + "\n", encoding="utf-8")


def list_locked_packages() -> dict[str, str]:
    """Return the version of each package in requirements.lock."""
    matches = (PINNED_PACKAGE.match(line) for line in LOCK_FILE.read_text(encoding="utf-8").splitlines())
    return {match[1]: match[2] for match in matches if match}


def write_licenses(python: str) -> None:
    """Write the licenses of the installed packages; raise SystemExit if one of them is not known."""
    command = ("pip-licenses", "--python", python, "--from", "mixed", "--format", "json", "--packages")
    packages = json.loads(run_tool(*command, "torch", *list_locked_packages()))
    unknown_licenses = [
        f"{package['Name']}: {package['License']}" for package in packages if not is_known_license(package["License"])
    ]
    if unknown_licenses:
        raise SystemExit("licenses that are not in the list of known ones:\n" + "\n".join(unknown_licenses))
    lines = [f"| {package['Name']} | {package['Version']} | {package['License']} |" for package in packages]
    LICENSES_PAGE.write_text(PAGE_HEADER + "\n".join(lines) + "\n", encoding="utf-8")


def is_known_license(expression: str) -> bool:
    """Return whether all licenses of an SPDX expression, or of a list separated by semicolons, are known."""
    return all(name in KNOWN_LICENSES for name in re.split(r" AND | OR |; ", expression))


def run_tool(*command: str) -> str:
    """Run a command in the project root and return its output."""
    return subprocess.run(command, cwd=PROJECT_ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
