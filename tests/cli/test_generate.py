"""``trio-infer generate``: what it asks for, and what it shows."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import click
import pytest

from tests.cli.options import BYTES, to
from tests.programs import Result, in_terminal, run, started
from trio_infer import SamplingParams, open_client
from trio_infer.cli.tokenizing import ByteDecoder
from trio_infer.embedded import open_coordinator

if TYPE_CHECKING:
    from tests.cli.here import Here
    from tests.peers import Received, ScriptedCoordinator

pytestmark = pytest.mark.slow

PARTY = "Zoë — 🎉\n"


async def test_prints_the_text_and_nothing_else() -> None:
    params = SamplingParams(num_tokens_to_generate=50)
    async with open_coordinator(seed=1) as own, open_client(own.address) as client:
        expected = (await client.generate("A generator", params)).generated_text
    result = await run("generate", "-n", "50", "--seed", "1", "A generator")
    assert (result.code, result.stdout, result.stderr) == (0, f"{expected}\n", "")


def test_streams_the_same_text(here: Here) -> None:
    whole = here.run("generate", "-n", "50", "--seed", "1", "A generator")
    assert len(whole.stdout) > 20
    assert here.run("generate", "--stream", "-n", "50", "--seed", "1", "A generator") == whole


@pytest.mark.parametrize("prompt", [(), ("-",)])
async def test_takes_the_prompt_from_standard_input(
    coordinator: ScriptedCoordinator, prompt: tuple[str, ...]
) -> None:
    async with started("generate", *to(coordinator), *prompt, stdin=subprocess.PIPE) as program:
        await program.say("Zoë\n\n")
        await program.hang_up()
        request = await coordinator.submission()
        assert request.message.prompt == "Zoë\n"
        coordinator.reply(request, [])
        assert await program.ended() == 0


async def test_wants_a_prompt_where_standard_input_is_a_terminal() -> None:
    async with in_terminal("generate") as terminal:
        await terminal.screen.until("no prompt: give one, or - to read it from standard input")
        assert await terminal.ended() == 2


async def test_reads_a_prompt_that_is_typed(coordinator: ScriptedCoordinator) -> None:
    async with in_terminal("generate", *to(coordinator), "-") as terminal:
        await terminal.type("A generator\n\x04")
        request = await coordinator.submission()
        assert request.message.prompt == "A generator"
        coordinator.reply(request, [])
        assert await terminal.ended() == 0


async def test_asks_for_what_its_options_say(coordinator: ScriptedCoordinator) -> None:
    sampling = ("--num-tokens", "7", "--temperature", "0.5", "--top-k", "3")
    stops = ("--stop", "end", "--stop", "the end")
    async with started("generate", *to(coordinator), *sampling, *stops, "hi") as program:
        request = await coordinator.submission()
        assert request.message.prompt == "hi"
        assert request.message.sampling_params is not None
        asked = {
            "num_tokens_to_generate": 7,
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.0,
            "stop_words": ["end", "the end"],
        }
        assert asked.items() <= request.message.sampling_params.items()
        coordinator.reply(request, [])
        assert await program.ended() == 0


async def test_asks_for_the_defaults(coordinator: ScriptedCoordinator) -> None:
    environment = {"TRIO_INFER_ADDRESS": coordinator.address}
    async with started("generate", "--top-p", "0.9", "hi", env=environment) as program:
        request = await coordinator.submission()
        assert request.message.sampling_params is not None
        defaults = SamplingParams(num_tokens_to_generate=256, top_p=0.9).serialize()
        assert request.message.sampling_params == defaults | {"streaming": True}
        coordinator.reply(request, [])
        assert await program.ended() == 0


async def test_streams_text_as_it_comes_but_no_half_characters(
    coordinator: ScriptedCoordinator,
) -> None:
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        request = await coordinator.submission()
        shown = ""
        for character in PARTY:
            for byte in character.encode():
                coordinator.partial(request, [byte])
            shown += character
            await program.stdout.until(shown)
        end(coordinator, request, [*PARTY.encode(), 256], PARTY)
        assert await program.stdout.rest() == PARTY
        assert [piece.decode() for piece in program.stdout.pieces if piece] == list(PARTY)
        assert await program.stderr.rest() == ""
        assert await program.ended() == 0


async def test_leaves_a_character_that_was_cut_to_the_coordinator(
    coordinator: ScriptedCoordinator,
) -> None:
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        request = await coordinator.submission()
        tokens = list(b"Zo\xc3")
        coordinator.partial(request, tokens)
        await program.stdout.until("Zo")
        coordinator.reply(request, tokens)
        assert await program.stdout.rest() == "Zo\N{REPLACEMENT CHARACTER}\n"


async def test_shows_ids_aside_where_it_does_not_know_the_tokenizer(
    coordinator: ScriptedCoordinator,
) -> None:
    async with started("generate", *to(coordinator), "--stream", "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, [15496, 995])
        assert await program.stderr.until("995 ") == "15496 995 "
        coordinator.partial(request, [0])
        assert await program.stderr.until(" 0 ") == "15496 995 0 "
        end(coordinator, request, [15496, 995, 0, 7], "Hello world!")
        assert await program.stdout.rest() == "Hello world!\n"
        assert await program.stderr.rest() == "15496 995 0 7 \n"
        assert await program.ended() == 0


async def test_shows_nothing_before_the_end_unless_asked_to(
    coordinator: ScriptedCoordinator,
) -> None:
    async with started("generate", *to(coordinator), "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, [15496])
        end(coordinator, request, [15496], "Hello")
        assert await program.stdout.rest() == "Hello\n"
        assert await program.stderr.rest() == ""


async def test_shows_ids_where_the_coordinator_sends_no_text(
    coordinator: ScriptedCoordinator,
) -> None:
    async with started("generate", *to(coordinator), "hi") as program:
        end(coordinator, await coordinator.submission(), [15496, 995], None)
        assert await program.stdout.rest() == ""
        assert await program.stderr.rest() == "15496 995 \n"
        assert await program.ended() == 0


async def test_refuses_a_tokenizer_that_knows_no_such_token(
    coordinator: ScriptedCoordinator,
) -> None:
    token = 257
    coordinator.answers_aborts = False
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, [65, 66])
        await program.stdout.until("AB")
        coordinator.partial(request, [token])
        end(coordinator, await coordinator.abort(), [65, 66, token], "Hello")
        assert f"token {token} is no byte" in await program.stderr.rest()
        assert program.stderr.text.count("\n") == 1
        assert await program.stdout.rest() == "AB\n"
        assert await program.ended() == 2


def test_no_negative_token_is_a_byte() -> None:
    with pytest.raises(click.UsageError, match="token -1 is no byte"):
        ByteDecoder().decode([65, -1])


async def test_says_so_where_the_text_is_another_than_was_shown(
    coordinator: ScriptedCoordinator,
) -> None:
    async with started("generate", *to(coordinator), *BYTES, "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, [65, 66])
        end(coordinator, request, [65, 66], "ba")
        assert await program.stdout.rest() == "AB\n"
        assert "--tokenizer does not fit" in await program.stderr.rest()
        assert await program.ended() == 0


def test_an_empty_text_is_no_line(here: Here) -> None:
    assert here.run("generate", "-n", "0", "hi") == Result(0, "", "")


async def test_a_text_that_ends_its_line_gets_no_other(coordinator: ScriptedCoordinator) -> None:
    async with started("generate", *to(coordinator), "hi") as program:
        coordinator.reply(await coordinator.submission(), list(b"Hello\n"))
        assert await program.stdout.rest() == "Hello\n"


async def test_a_terminal_is_not_commanded_by_the_model(coordinator: ScriptedCoordinator) -> None:
    async with in_terminal("generate", *to(coordinator), "hi") as terminal:
        coordinator.reply(await coordinator.submission(), list("\x1b[31m\t\x7f\u009bred".encode()))
        assert await terminal.screen.rest() == "\u241b[31m\t\u2421\ufffdred\r\n"


async def test_a_pipe_gets_the_text_as_it_is(coordinator: ScriptedCoordinator) -> None:
    async with started("generate", *to(coordinator), "hi") as program:
        coordinator.reply(await coordinator.submission(), list("\x1b[31m\u009bred".encode()))
        assert await program.stdout.rest() == "\x1b[31m\u009bred\n"


def test_streams_at_a_pace_that_can_be_watched(here: Here) -> None:
    began = time.monotonic()
    result = here.run("generate", "--stream", "-n", "100", "--top-k", "1", "hi")
    assert len(result.stdout.encode()) > 99
    assert time.monotonic() - began > 99 * 0.005


async def test_the_terminal_shows_a_stream(coordinator: ScriptedCoordinator) -> None:
    async with in_terminal("generate", *to(coordinator), *BYTES, "hi") as terminal:
        request = await coordinator.submission()
        coordinator.partial(request, list(b"one\n"))
        await terminal.screen.until("one\r\n")
        coordinator.partial(request, list(b"two"))
        await terminal.screen.until("two")
        coordinator.reply(request, list(b"one\ntwo"))
        assert await terminal.screen.rest() == "one\r\ntwo\r\n"
        assert await terminal.ended() == 0


def end(
    coordinator: ScriptedCoordinator, request: Received, tokens: list[int], text: str | None
) -> None:
    fields = {"generated_tokens": tokens, "generated_length": len(tokens), "generated_text": text}
    coordinator.reply(request, [], **fields)
