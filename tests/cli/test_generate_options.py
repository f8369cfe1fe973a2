"""``trio-infer generate``: its sampling parameters, JSON, log probs, deadline and prompt files."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from tests.cli.endless import Endless
from tests.cli.options import LONG, to
from tests.programs import in_terminal, run, started
from trio_infer import SamplingParams
from trio_infer.cli.records import to_line
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.here import Here
    from tests.peers import ScriptedCoordinator

pytestmark = pytest.mark.slow


async def test_every_sampling_parameter_can_be_asked_for(coordinator: ScriptedCoordinator) -> None:
    options = (
        *("--num-tokens-total", "50", "--temperature", "0.5", "--top-p", "0.9", "--add-bos"),
        *("--termination-id", "7", "--stop", "end", "--detokenize-stop-sequence"),
        *("--prompt-log-probs", "--top-n-logprobs", "2", "--return-prompt-tokens"),
        *("--return-segments", "--streaming-interval", "3"),
        *("--param", "min_p=0.1", "--param", "mode=fast"),
    )
    async with started("generate", *to(coordinator), *options, "hi") as program:
        request = await coordinator.submission()
        asked = SamplingParams(
            num_tokens_total=50,
            temperature=0.5,
            top_p=0.9,
            add_BOS=True,
            termination_id=7,
            stop_words=["end"],
            detokenize_stop_sequence=True,
            return_log_probs=True,
            top_n_logprobs=2,
            return_prompt_tokens=True,
            return_segments=True,
            streaming_interval=3,
            extra={"min_p": 0.1, "mode": "fast"},
        )
        assert request.message.sampling_params == asked.serialize() | {"streaming": True}
        coordinator.reply(request, [])
        assert await program.ended() == 0


def test_prints_the_completion_as_json(here: Here) -> None:
    options = ("--json", "-n", "4", "--seed", "1", "--log-probs", "--termination-id", "-1")
    result = here.run("generate", *options, "A generator")
    assert (result.code, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    record = json.loads(result.stdout)
    assert record["generated_length"] == len(record["generated_log_probs"]) == 4
    assert record["finish_reason"] == "length"
    assert bytes(record["generated_tokens"]).decode() == record["generated_text"]
    assert None not in record.values()


def test_streams_deltas_as_json(here: Here) -> None:
    options = ("--json", "--stream", "-n", "4", "--seed", "1", "--termination-id", "-1")
    result = here.run("generate", *options, "A generator")
    *deltas, whole = map(json.loads, result.stdout.splitlines())
    assert [token for each in deltas for token in each["tokens"]] == whole["generated_tokens"]
    assert "".join(each["text"] for each in deltas) == whole["generated_text"]


def test_json_has_no_infinity() -> None:
    assert to_line({"a": [-math.inf, 1.5], "b": {"c": math.nan}, "d": b"x"}) == (
        '{"a": [null, 1.5], "b": {"c": null}, "d": "b\'x\'"}\n'
    )


def test_shows_log_probs_that_can_be_read(here: Here) -> None:
    options = ("-n", "3", "--seed", "1", "--top-n-logprobs", "2", "--prompt-log-probs")
    result = here.run("generate", *options, "--return-prompt-tokens", "A [b")
    assert result.code == 0
    head, *rows = result.stderr.splitlines()
    assert head.split() == ["token", "text", "log", "prob", "probability", "likeliest"]
    assert len(rows) == 3 + 3
    assert rows[1].split()[:2] == ["91", "'['"]
    assert all(row.count("%") == 3 for row in rows)
    assert len(result.stdout) >= 3


async def test_log_probs_lose_nothing_in_a_narrow_terminal(
    coordinator: ScriptedCoordinator,
) -> None:
    likeliest = {f"a token {number}": -1.0 * number for number in range(12)}
    options = ("--top-n-logprobs", "12")
    async with in_terminal(
        "generate", *to(coordinator), *options, "hi", env={"COLUMNS": "80"}
    ) as terminal:
        request = await coordinator.submission()
        fields = {
            "generated_log_probs": [-0.5],
            "generated_top_n_logprobs": [likeliest],
            "generated_text": "Hello",
        }
        coordinator.reply(request, [15496], **fields)
        screen = await terminal.screen.rest()
        assert screen.count("%") == 13
        assert "…" not in screen
        lines = screen.splitlines()
        assert all(len(line) <= 80 for line in lines)
        assert 3 < len(lines) < 14, "as many on a line as fit"


async def test_log_probs_of_unknown_tokens_are_shown_by_id(
    coordinator: ScriptedCoordinator,
) -> None:
    async with started("generate", *to(coordinator), "--log-probs", "hi") as program:
        request = await coordinator.submission()
        fields = {"generated_log_probs": [-0.5, -0.25], "generated_text": "Hello world"}
        coordinator.reply(request, [15496, 995], **fields)
        assert await program.stdout.rest() == "Hello world\n"
        rows = [row.split() for row in (await program.stderr.rest()).splitlines()[1:]]
        assert rows == [["15496", "-0.500", "60.7%"], ["995", "-0.250", "77.9%"]]


@pytest.mark.parametrize("as_json", [(), ("--json",)])
async def test_keeps_what_there_is_at_the_deadline(as_json: tuple[str, ...]) -> None:
    options = (*LONG, *as_json, "--deadline", "0.3")
    async with open_coordinator(model=Endless(), step_time=0.002) as coordinator:
        result = await run("generate", "--address", coordinator.address, *options, "hi")
        statistics = coordinator.statistics()
    assert (statistics.aborts, statistics.unroutable, result.code) == (1, 0, 0)
    text = json.loads(result.stdout)["generated_text"] if as_json else result.stdout.strip()
    assert text == "x" * statistics.tokens
    note = f"trio-infer: ended at the deadline of 0.3 s, after {statistics.tokens} tokens\n"
    assert result.stderr == note


async def test_keeps_what_has_come_where_the_deadline_gets_no_answer(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    options = ("--json", "--deadline", "0.5", "--tokenizer", "bytes")
    async with started("generate", *to(coordinator), *options, "hi") as program:
        coordinator.partial(await coordinator.submission(), list(b"Hel"))
        abort = await coordinator.abort()
        record = json.loads(await program.stdout.until("\n"))
        assert (record["generated_text"], record["from_deltas"]) == ("Hel", True)
        coordinator.reply(abort, list(b"Hello"))
        assert await program.ended() == 0


def test_a_deadline_is_refused_where_nothing_could_be_kept(here: Here) -> None:
    result = here.run("generate", "--dialect", "0.19", "--deadline", "1", "hi")
    told = "--deadline is nothing for the dialect 0.19, which has no abort (see trio-infer generate"
    assert told in result.stderr
    assert (result.code, result.stdout) == (2, "")


async def test_ctrl_c_prints_what_there_is_as_json(coordinator: ScriptedCoordinator) -> None:
    async with started("generate", *to(coordinator), "--json", "--stream", "hi") as program:
        coordinator.partial(await coordinator.submission(), [15496])
        assert json.loads(await program.stdout.until("\n")) == {"tokens": [15496]}
        program.process.terminate()
        assert await program.ended() == 143
        record = json.loads((await program.stdout.rest()).splitlines()[1])
        assert record["finish_reason"] == "abort"
        assert coordinator.of(Kind.ABORT_REQUEST)


def test_takes_the_prompt_from_a_file(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("A generator\n")
    options = ("-n", "20", "--seed", "1")
    from_file = here.run("generate", *options, "--prompt-file", str(file))
    assert from_file == here.run("generate", *options, "A generator")
    assert from_file.code == 0


@pytest.mark.parametrize(
    ("arguments", "complaint", "code"),
    [
        ("-f no-file", "'no-file': No such file or directory", 1),
        ("-f .", "'.': Is a directory", 1),
        ("-f no-file hi", "PROMPT and --prompt-file exclude each other", 2),
        ("--param min_p hi", "'min_p' is not of the form NAME=VALUE", 2),
        ("--param top_k=1 hi", "'top_k' has an option of its own", 2),
        (f"--param a={'[' * 100_000} hi", "the value of 'a' is nested too deeply", 2),
        ("-n 3 --num-tokens-total 5 hi", "exclude each other: give one budget", 2),
        ("--deadline 0 hi", "'--deadline': 0.0 is not in the range", 2),
        ("--deadline nan hi", "'--deadline': nan is not finite", 2),
        ("--termination-id x hi", "'x' is not a valid integer", 2),
    ],
)
def test_what_cannot_be_done_is_one_line(
    here: Here, arguments: str, complaint: str, code: int
) -> None:
    result = here.run("generate", *arguments.split())
    assert complaint in result.stderr
    assert (result.code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
