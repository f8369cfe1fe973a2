"""``trio-infer batch``: a result for each line, whatever happens on the way."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from rich.console import Console

from tests.cli.options import to
from tests.programs import COMMAND, in_terminal, started
from tests.waiting import until
from trio_infer.cli.console import plain_text
from trio_infer.cli.progress import BatchView, Counts
from trio_infer.cli.results import BEGINNING, Results
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from tests.cli.here import Here
    from tests.peers import Received, ScriptedCoordinator

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def write(path: Path, *rows: dict[str, Any] | str) -> None:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))


def read(path: Path) -> list[dict[str, Any]]:
    assert path.read_bytes()[-1:] in {b"", b"\n"}
    return [json.loads(each) for each in path.read_text().splitlines()]


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def has_grown(path: Path, goal: int) -> bool:
    return size(path) >= goal


def has_results(path: Path, count: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= count


def prompts(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"p{number}"} for number in range(1, count + 1)]


def by_prompt(requests: list[Received]) -> dict[Any, Received]:
    return {request.message.prompt: request for request in requests}


def test_writes_a_result_for_each_line(here: Here, source: Path, output: Path) -> None:
    own = {"num_tokens_to_generate": 2, "termination_id": -1}
    ids = {"id": "b", "prompt": list(b"A generator"), "sampling_params": own}
    write(source, {"prompt": "hi"}, "", ids, {"id": 7, "prompt": "ho"})
    result = here.run("batch", str(source), "-o", str(output), "-n", "3", "--termination-id", "-1")
    assert (result.code, result.stdout) == (0, "")
    assert result.stderr == "trio-infer: 3 done, 0 failed, 0 bad lines\n"
    found = {each["line"]: each for each in read(output)}
    assert {line: each.get("id") for line, each in found.items()} == {1: None, 3: "b", 4: 7}
    assert {line: each["generated_length"] for line, each in found.items()} == {1: 3, 3: 2, 4: 3}
    assert all(len(each["generated_text"]) <= 3 for each in found.values())
    assert all(each["finish_reason"] == "length" for each in found.values())


def test_started_again_it_does_what_is_not_done(here: Here, source: Path, output: Path) -> None:
    write(source, {"prompt": "x", "id": "new"}, {"prompt": "x"}, {"prompt": "x", "id": 1},
          {"prompt": "x", "id": "1"}, {"prompt": "x"})  # fmt: skip
    before = '{"line": 77, "id": 1, "was": "here"}\n{"line": 2, "was": "here"}\n'
    output.write_text(before + '{"line": 5, "generated_te')
    result = here.run("batch", str(source), "-o", str(output), "-n", "1")
    assert result.code == 0
    assert output.read_text().startswith(before + '{"line": ')
    assert {(each["line"], each.get("id")) for each in read(output)[2:]} == {
        (1, "new"), (4, "1"), (5, None)
    }  # fmt: skip
    assert len(read(output)) == 5
    assert "last line was torn" in result.stderr
    assert "has 2 results already" in result.stderr
    assert "5 done (2 before), 0 failed" in result.stderr
    whole = output.read_bytes()
    assert here.run("batch", str(source), "-o", str(output)).code == 0
    assert output.read_bytes() == whole


def test_ended_while_it_finds_out_what_is_done_it_changes_nothing(output: Path) -> None:
    def end() -> None:
        raise KeyboardInterrupt

    before = b'{"line": 1}\n{"line": 2'
    output.write_bytes(before)
    with closing(Results(output)) as results, pytest.raises(KeyboardInterrupt):
        results.take_up(end)
    assert output.read_bytes() == before


@pytest.mark.parametrize("zeros", [b"", bytes(9)])
@pytest.mark.parametrize("torn", range(1, len(BEGINNING) + 1))
def test_a_line_torn_anywhere_is_cut_off(
    here: Here, source: Path, output: Path, torn: int, zeros: bytes
) -> None:
    write(source)
    output.write_bytes(b'{"line": 1}\n' + b'{"line": 23'[:torn] + zeros)
    assert here.run("batch", str(source), "-o", str(output)).code == 0
    assert output.read_bytes() == b'{"line": 1}\n'


@pytest.mark.parametrize(
    "content",
    ["dear diary", '{"prompt": "hi"}\n', '{"line": 1}\n{"line": "x"}\n', '{"line": 1}\nmine',
     '{"line": 1\n', '{"line": 99999999999}\n', '{"line": 1.5}\n'],
)  # fmt: skip
def test_a_file_that_is_no_output_is_left_alone(
    here: Here, source: Path, output: Path, content: str
) -> None:
    write(source, {"prompt": "hi"})
    output.write_text(content)
    result = here.run("batch", str(source), "-o", str(output))
    assert result.code == 1
    assert "is no result of a batch" in result.stderr
    assert output.read_text() == content


def test_bad_lines_are_reported_and_do_not_stop_the_rest(
    here: Here, source: Path, output: Path
) -> None:
    write(source, "nonsense", {"prompt": "hi", "id": 1}, {"prompt": ""}, {"prompt": "x", "id": 1},
          {"prompt": [-(2**80)]}, {"prompt": "hi"})  # fmt: skip
    result = here.run("batch", str(source), "-o", str(output), "-n", "1")
    assert result.code == 1
    assert sorted(each["line"] for each in read(output)) == [2, 6]
    for number, what in ((1, "no JSON"), (3, "empty"), (4, "id 1 is that of"), (5, "64 bits")):
        assert f"{source}, line {number}: " in result.stderr
        assert what in result.stderr
    assert result.stderr.endswith("2 done, 0 failed, 4 bad lines\n")


def test_the_first_bad_line_ends_it_if_asked_to(here: Here, source: Path, output: Path) -> None:
    write(source, {"prompt": "x"}, "nonsense", {"prompt": "x"})
    options = ("-n", "1", "--fail-fast", "--concurrency", "1")
    result = here.run("batch", str(source), "-o", str(output), *options)
    assert result.code == 1
    reason, rest = result.stderr.splitlines()[-2:]
    assert reason.startswith(f"trio-infer: {source}, line 2: it is no JSON")
    assert rest.startswith("trio-infer: ended early: ")
    assert rest.endswith("1 bad lines; the same command goes on from here")
    assert len(read(output)) <= 1  # the first was aborted, if it was not done yet


def test_what_the_engine_gives_up_on_is_tried_again(here: Here, source: Path, output: Path) -> None:
    write(source, {"prompt": "x" * (2**17 + 1)}, {"prompt": "x"})
    for before in ("", " (1 before)"):
        result = here.run("batch", str(source), "-o", str(output), "-n", "1")
        assert result.code == 1
        assert f"{source}, line 1: request " in result.stderr
        assert result.stderr.endswith(f"1 done{before}, 1 failed, 0 bad lines\n")
        assert [each["line"] for each in read(output)] == [2]


def test_two_runs_on_one_output_are_refused(here: Here, source: Path, output: Path) -> None:
    write(source, {"prompt": "x"})
    with output.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = here.run("batch", str(source), "-o", str(output))
    assert result.code == 1
    assert result.stderr == f"trio-infer: {output} is being written by another run\n"
    assert output.read_bytes() == b""


@pytest.mark.parametrize(
    ("arguments", "complaint", "code"),
    [
        ("nothing.jsonl -o out", "File 'nothing.jsonl' does not exist", 2),
        (". -o out", "File '.' is a directory", 2),
        ("in -o .", "'.': Is a directory", 1),
        ("in -o no/out", "'no/out': No such file or directory", 1),
        ("in -o /dev/null", "'/dev/null': it is no regular file", 1),
        ("in -o in", "are the same file", 2),
        ("in -o -", "'-o' / '--output': results go to a file, which the next run goes by", 2),
        ("in -o out --timeout 0", "'--timeout': 0.0 is not in the range", 2),
        ("in -o out --timeout nan", "'--timeout': nan is not finite", 2),
        ("in", "Missing option '-o'", 2),
        ("in -o out --dialect 0.18 --return-prompt-tokens", "no sampling parameter return_pro", 1),
        ("in -o out --top-k 1 --top-p 0.5", "--top-k and --top-p exclude each other", 2),
        ("in -o out --address nowhere", "'nowhere' is no address", 2),
        ("in -o out --address tcp://127.0.0.1:1 --connect-timeout 0.1", "no handshake with", 1),
    ],
)
def test_what_cannot_be_done_is_one_line(  # noqa: PLR0917
    here: Here,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    complaint: str,
    code: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("{}\n")
    result = here.run("batch", *arguments.split())
    assert complaint in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert Path("in").read_text() == "{}\n"
    assert not Path("-").exists()


async def test_results_are_written_as_they_come(
    coordinator: ScriptedCoordinator, output: Path
) -> None:
    arguments = ("batch", *to(coordinator), "-", "-o", str(output))
    async with started(*arguments, stdin=subprocess.PIPE) as program:
        for number in (1, 2):
            await program.say('{"prompt": "hi"}\n')
            coordinator.reply(await coordinator.submission(), [65])
            await until(partial(has_results, output, number))
        await program.hang_up()
        assert await program.ended() == 0
        assert [each["generated_text"] for each in read(output)] == ["A", "A"]


async def test_so_many_run_at_a_time(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    write(source, *prompts(4))
    arguments = ("batch", *to(coordinator), str(source), "-o", str(output), "--concurrency", "2")
    async with started(*arguments) as program:
        running = [await coordinator.submission(), await coordinator.submission()]
        for _ in range(2):
            coordinator.reply(running.pop(), [65])
            running.append(await coordinator.submission())
            assert len(coordinator.log) - len(read(output)) <= 2
        for request in running:
            coordinator.reply(request, [65])
        assert await program.ended() == 0
        assert len(read(output)) == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_ctrl_c_keeps_what_is_done_and_aborts_the_rest(
    coordinator: ScriptedCoordinator, source: Path, output: Path, number: int, code: int
) -> None:
    write(source, *prompts(3))
    async with started("batch", *to(coordinator), str(source), "-o", str(output)) as program:
        requests = by_prompt([await coordinator.submission() for _ in range(3)])
        coordinator.reply(requests["p2"], [65])
        await until(partial(has_results, output, 1))
        program.send(signal.Signals(number))
        assert await program.ended() == code
        aborted = coordinator.of(Kind.ABORT_REQUEST)
        assert sorted(aborted) == sorted(requests[each].id for each in ("p1", "p3"))
        assert [each["line"] for each in read(output)] == [2]
        said = await program.stderr.rest()
        assert "interrupted: 1 done, 0 failed, 0 bad lines, 2 aborted; the same command" in said


async def test_a_terminal_shows_how_far_it_is(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    write(source, "nonsense", *prompts(2))
    async with in_terminal("batch", *to(coordinator), str(source), "-o", str(output)) as terminal:
        request, _ = await coordinator.submission(), await coordinator.submission()
        await terminal.screen.until("1/3")
        await terminal.screen.until(" tokens/s")
        coordinator.reply(request, [65, 66])
        await terminal.screen.until("2/3")
        await terminal.screen.until(" left")
        await terminal.type("\x03")
        assert await terminal.ended() == 130
        screen = await terminal.screen.rest()
        assert "line 1: it is no JSON" in screen
        assert "interrupted: 1 done" in screen
        assert "Traceback" not in screen


@pytest.mark.parametrize("colour", ["FORCE_COLOR", "TTY_COMPATIBLE"])
async def test_a_pipe_that_wants_colours_gets_no_bar(
    coordinator: ScriptedCoordinator, source: Path, output: Path, colour: str
) -> None:
    write(source, "nonsense", *prompts(1))
    arguments = ("batch", *to(coordinator), str(source), "-o", str(output))
    async with started(*arguments, env={colour: "1"}) as program:
        coordinator.reply(await coordinator.submission(), [65])
        assert await program.ended() == 1
        lines = (await program.stderr.rest()).splitlines()
        assert len(lines) == 2
        assert all(line.startswith("\x1b[1mtrio-infer:\x1b[0m ") for line in lines)


async def test_a_terminal_that_wants_no_colours_gets_none(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    write(source, "nonsense", *prompts(1))
    arguments = ("batch", *to(coordinator), str(source), "-o", str(output))
    async with in_terminal(*arguments, env={"NO_COLOR": "1"}) as terminal:
        coordinator.reply(await coordinator.submission(), [65])
        assert "1 done" in await terminal.screen.rest()
        screen = b"".join(terminal.screen.pieces).decode()
        assert "requests/s" in screen
        assert not re.search(r"\x1b\[(?:\d+;)*[349]\d", screen)


def test_a_terminal_of_eighty_columns_shows_how_far_it_is_and_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.monotonic", partial(float, 0))
    counts = Counts(total=200_000)
    view = BatchView(counts, Console(file=StringIO(), width=80))
    monkeypatch.setattr("time.monotonic", partial(float, 5))
    counts.done, counts.tokens = 10_000, 160_000
    (line,) = plain_text(view.render()).splitlines()
    assert len(line) <= 80
    assert line.endswith("10000/200000 2000.0 requests/s, 32000 tokens/s, 0:01:35 left")


@pytest.mark.parametrize("width", [20, 40, 66])
def test_a_narrow_terminal_cuts_off_nothing_of_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr("time.monotonic", partial(float, 0))
    counts = Counts(total=200_000)
    screen = StringIO()
    view = BatchView(counts, Console(file=screen, width=width))
    monkeypatch.setattr("time.monotonic", partial(float, 5))
    counts.done, counts.tokens = 10_000, 160_000
    view.console.print(view.render())
    words = " ".join(screen.getvalue().split())
    assert words == "10000 of 200000 lines, 2000.0 requests/s, 32000 tokens/s, 0:01:35 left"


async def test_a_lost_connection_keeps_what_is_done(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    write(source, *prompts(3))
    async with started("batch", *to(coordinator), str(source), "-o", str(output)) as program:
        requests = [await coordinator.submission() for _ in range(3)]
        coordinator.reply(requests[0], [65])
        await until(partial(has_results, output, 1))
        coordinator.close()
        assert await program.ended() == 1
        lines = (await program.stderr.rest()).splitlines()
        assert "connection was lost" in lines[-2]
        assert "ended early: 1 done" in lines[-1]
        assert "goes on from here" in lines[-1]
        assert len(read(output)) == 1


async def test_a_request_that_a_hung_coordinator_never_answers_does_not_hold_up_the_rest(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    write(source, *prompts(2))
    arguments = ("batch", *to(coordinator), str(source), "-o", str(output), "--concurrency", "1")
    async with started(*arguments, "--timeout", "0.2") as program:
        requests = [await coordinator.submission() for _ in range(2)]
        assert await program.ended() == 1
        assert coordinator.of(Kind.ABORT_REQUEST) == [request.id for request in requests]
        assert (await program.stderr.rest()).splitlines() == [
            *(f"trio-infer: {source}, line {n}: it had no result within 0.2 s" for n in (1, 2)),
            "trio-infer: 0 done, 2 failed, 0 bad lines",
        ]
    async with started(*arguments) as program:
        for _ in range(2):
            coordinator.reply(await coordinator.submission(), [65])
        assert await program.ended() == 0
        assert [each["line"] for each in read(output)] == [1, 2]


IMPATIENT = """
import functools, sys
from trio_infer.cli import program, target
target.open_client = functools.partial(target.open_client, heartbeat_timeout=2.0)
sys.exit(program.run())
"""


async def test_a_coordinator_that_is_frozen_does_not_hold_it_for_ever(
    source: Path, output: Path
) -> None:
    write(source, {"prompt": "x"}, {"prompt": "x", "sampling_params": {"termination_id": -1}})
    command = (sys.executable, "-c", IMPATIENT)
    async with started("coordinator", "--step-time", "0.01") as serving:
        address = (await serving.stdout.until("\n")).strip()
        arguments = ("batch", str(source), "-o", str(output), "--address", address)
        options = ("-n", "100000", "--top-k", "1")
        async with started(*arguments, *options, command=command) as program:
            await serving.stderr.until("2 running")
            serving.send(signal.SIGSTOP)
            assert await program.ended() == 1
            assert "connection was lost" in await program.stderr.rest()


async def test_nobody_reads_what_it_reports(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    write(source, *prompts(1))
    async with started("batch", *to(coordinator), str(source), "-o", str(output)) as program:
        request = await coordinator.submission()
        await program.stderr.aclose()
        coordinator.reply(request, [65])
        assert await program.ended() == 141
        assert len(read(output)) == 1


async def test_results_that_nobody_would_find_are_not_gone_on_with(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    write(source, *prompts(3))
    async with started("batch", *to(coordinator), str(source), "-o", str(output)) as program:
        requests = [await coordinator.submission() for _ in range(3)]
        await trio.Path(output).unlink()
        coordinator.reply(requests[0], [65])
        assert await program.ended() == 1
        told = f"trio-infer: {output} was removed meanwhile, and all results in it are lost\n"
        assert await program.stderr.rest() == told


def test_the_output_is_no_input_on_standard_input_either(source: Path) -> None:
    source.touch()
    with source.open() as stdin:
        command = (*COMMAND, "batch", "-", "-o", str(source))
        result = subprocess.run(command, stdin=stdin, stderr=subprocess.PIPE, check=False)
    assert b"are the same file" in result.stderr
    assert result.returncode == 2


async def test_a_full_disk_leaves_whole_results(
    coordinator: ScriptedCoordinator, source: Path, output: Path
) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))

    write(source, *prompts(3))
    arguments = ("batch", *to(coordinator), str(source), "-o", str(output))
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}  # half of it would be worse than none
    async with started(*arguments, preexec_fn=limit, env=environment) as program:
        for request in [await coordinator.submission() for _ in range(3)]:
            coordinator.reply(request, [65] * 20)
        assert await program.ended() == 1
        assert "File too large" in await program.stderr.rest()
        assert 1 <= len(read(output)) < 3


@pytest.mark.slow
async def test_killed_at_any_moment_it_loses_nothing(source: Path, output: Path) -> None:
    chance = random.Random(11)
    count = 800
    write(source, *({"prompt": "A generator", **({"id": f"x{n}"} if n % 2 else {})}
                    for n in range(1, count + 1)))  # fmt: skip
    options = ("-o", str(output), "-n", "4", "--concurrency", "8")
    grown = 0
    async with open_coordinator(step_time=0.001) as coordinator:
        arguments = ("batch", str(source), *options, "--address", coordinator.address)
        for _ in range(20):
            async with started(*arguments) as program:
                before = size(output)
                goal = before + chance.randrange(0, 6_000)
                await until(partial(has_grown, output, goal))
                program.send(signal.SIGKILL)
                assert await program.ended() == -signal.SIGKILL
            grown += size(output) > before
            if chance.random() < 0.5:  # a machine that crashes may tear more than a kill does
                os.truncate(output, max(0, size(output) - chance.randrange(1, 20)))
        assert grown > 10
        assert not has_results(output, count)
        async with started(*arguments) as program:
            assert await program.ended() == 0
    results = read(output)
    assert sorted(each["line"] for each in results) == list(range(1, count + 1))
    assert all(each.get("id") == (f"x{each['line']}" if each["line"] % 2 else None)
               for each in results)  # fmt: skip
