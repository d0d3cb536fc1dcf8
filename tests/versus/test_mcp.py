"""Programs plan, run, watch and judge comparisons over the Model Context Protocol."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp.server", reason="the extra mcp is not installed")
from mcp import Client, StdioServerParameters

from headtohead.versus.mcp_server import build_server

FILE = """metric = "val_loss"
seeds = 3
check_determinism = false
[baseline]
command = "{script} --seed {{seed}} --sleep {sleep}"
[variants.gain]
command = "{script} --seed {{seed}} --gain 0.2"
"""


async def call(client: Client, tool: str, **arguments: str) -> dict[str, Any]:
    """Call a tool and return its structured result."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content or {}


def test_a_comparison_is_planned_run_watched_and_judged(script: str, tmp_path: Path) -> None:
    file, runs = tmp_path / "gain.toml", tmp_path / "runs"
    file.write_text(FILE.format(script=script, sleep=0.3))

    async def use_server() -> None:
        async with Client(build_server(runs)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {
                "list",
                "plan",
                "run",
                "watch",
                "judge",
            }
            planned = await call(client, "plan", file=str(file))
            assert (planned["runs"], planned["direction"]) == (6, "minimize")
            await call(client, "run", file=str(file))
            early = await call(client, "judge", name="gain")
            assert early["state"] == "running"
            assert early["verdicts"] == []
            assert "there is no verdict before all have" in early["message"]
            for _ in range(2400):
                progress = await call(client, "watch", name="gain")
                if progress["state"] != "running":
                    break
                await asyncio.sleep(0.1)
            assert (progress["state"], progress["ended"]) == ("finished", 6)
            (verdict,) = (await call(client, "judge", name="gain"))["verdicts"]
            assert (verdict["variant"], verdict["outcome"]) == ("gain", "helped")
            listed = await call(client, "list")
            assert [item["name"] for item in listed["result"]] == ["gain"]
            shutil.rmtree(runs / "gain" / "gain" / "seed-2")
            late = await call(client, "judge", name="gain")
            assert (late["state"], late["verdicts"]) == ("interrupted", [])
            unknown = await client.call_tool("watch", {"name": "../gain"})
            assert unknown.is_error
            assert "no comparison '../gain'; known: gain" in str(unknown.content)

    asyncio.run(use_server())


def test_a_comparison_that_cannot_run_is_never_judged(script: str, tmp_path: Path) -> None:
    file, runs = tmp_path / "gain.toml", tmp_path / "runs"

    async def finish(client: Client) -> dict[str, Any]:
        await call(client, "run", file=str(file))
        for _ in range(2400):
            progress = await call(client, "watch", name="gain")
            if progress["state"] != "running":
                return progress
            await asyncio.sleep(0.1)
        raise TimeoutError

    async def use_server() -> None:
        async with Client(build_server(runs)) as client:
            file.write_text(FILE.format(script="no-such-program", sleep=0))
            progress = await finish(client)
            assert (progress["state"], progress["ended"]) == ("interrupted", 0)
            assert "no-such-program: No such file or directory" in progress["error"]
            file.write_text(FILE.format(script=script, sleep=0))
            assert (await finish(client))["state"] == "finished"
            file.write_text(FILE.format(script=script, sleep=0).replace("--gain 0.2", "--gain 0.3"))
            refused = await client.call_tool("run", {"file": str(file)})
            assert refused.is_error
            assert "holds a different comparison" in str(refused.content)
            file.write_text(FILE.format(script=script, sleep=0).replace("seeds = 3", "seeds = 4"))
            await call(client, "run", file=str(file))
            early = await call(client, "judge", name="gain")
            assert (early["state"], early["verdicts"]) == ("running", [])
            assert "of 8 planned runs have ended" in early["message"]
            while (await call(client, "watch", name="gain"))["state"] == "running":
                await asyncio.sleep(0.1)

    asyncio.run(use_server())


def test_the_command_serves_over_standard_input_and_output(tmp_path: Path) -> None:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "headtohead.cli", "mcp"], cwd=str(tmp_path), env={**os.environ}
    )

    async def use_server() -> None:
        async with Client(parameters) as client:
            result = await call(client, "list")
            assert result == {"result": []}

    asyncio.run(use_server())
