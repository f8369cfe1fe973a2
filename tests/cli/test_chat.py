"""``trio-infer chat``: turns at a terminal and in a pipe, and what Ctrl-C does to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trio

from tests.cli.options import to
from tests.cli.talking import END, Talker
from tests.peers import Received, ScriptedCoordinator, free_address, scripted_coordinator
from tests.programs import Program, in_terminal, run, started
from tests.waiting import until
from trio_infer.protocol.dialect import Kind

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tests.cli.here import Here

pytestmark = pytest.mark.slow

TALKER = "tests.cli.talking:Talker"
EMBEDDED = ("chat", "--model", TALKER)
GREETING = "trio-infer: Ctrl-C stops an answer, Ctrl-D ends this program; /reset begins a new"


def asking(coordinator: ScriptedCoordinator, *options: str) -> tuple[str, ...]:
    return ("chat", *to(coordinator), "--tokenizer", TALKER, *options)


def prompt_of(request: Received) -> list[int]:
    prompt = request.message.prompt
    assert isinstance(prompt, list)
    return prompt


def text_of(request: Received) -> str:
    return Talker().detokenize(prompt_of(request))


def answer(coordinator: ScriptedCoordinator, request: Received, text: str) -> None:
    coordinator.reply(request, [*text.encode(), END])


def chatting(
    coordinator: ScriptedCoordinator, *options: str
) -> AbstractAsyncContextManager[Program]:
    """A chat with that coordinator, in pipes."""
    return started(*asking(coordinator, *options), stdin=subprocess.PIPE)


def chatting_here(*options: str) -> AbstractAsyncContextManager[Program]:
    """One with a coordinator of its own."""
    return started(*EMBEDDED, *options, stdin=subprocess.PIPE)


async def half_answered(coordinator: ScriptedCoordinator, program: Program, lines: str) -> None:
    """Says these, and returns once "said" has come in answer to the first one, and been shown."""
    await program.say(lines)
    coordinator.partial(await coordinator.submission(), list(b"said"))
    await program.stdout.until("said")


# --- a terminal


async def test_answers_turn_by_turn_at_a_terminal_until_ctrl_d() -> None:
    async with in_terminal(*EMBEDDED) as terminal:
        await terminal.screen.until("> ")
        await terminal.type("hello\n")
        await terminal.screen.until("> hello\r\nYou say hello.\r\n> ")
        await terminal.type("\n")
        await terminal.screen.until("\n> \r\n> ")
        await terminal.type("history\n")
        await terminal.screen.until("> history\r\nuser:hello|assistant:You say hello.|\r\n> ")
        await terminal.type("\x04")
        assert await terminal.ended() == 0
        screen = await terminal.screen.rest()
        assert screen.startswith(GREETING)
        assert screen.endswith("|\r\n> \r\n")


async def test_ctrl_c_stops_the_answer_and_the_next_turn_goes_on_from_there(
    coordinator: ScriptedCoordinator,
) -> None:
    async with in_terminal(*asking(coordinator)) as terminal:
        await terminal.screen.until("> ")
        await terminal.type("one\n")
        first = await coordinator.submission()
        coordinator.partial(first, list(b"It is Zo" + b"\xc3"))
        await terminal.screen.until("It is Zo")
        await terminal.type("\x03")
        assert (await coordinator.abort()).id == first.id
        screen = await terminal.screen.until("stopped after 9 tokens\r\n> ")
        assert screen.endswith(
            "It is Zo^C\N{REPLACEMENT CHARACTER}\r\ntrio-infer: stopped after 9 tokens\r\n> "
        )
        await terminal.type("two\n")
        second = await coordinator.submission()
        said = [*prompt_of(first), *b"It is Zo\xc3", END]
        assert second.message.prompt == [*said, *b"user: two", END, *b"assistant: "]
        answer(coordinator, second, "2")
        await terminal.screen.until("2\r\n> ")
        await terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_ctrl_c_where_a_turn_is_typed_ends_the_program() -> None:
    async with in_terminal(*EMBEDDED) as terminal:
        await terminal.screen.until("> ")
        await terminal.type("half a tu")
        await terminal.screen.until("> half a tu")
        await terminal.type("\x03")
        assert await terminal.ended() == 130
        assert (await terminal.screen.rest()).endswith("> half a tu^C\r\n")


async def test_a_turn_that_was_stopped_before_a_word_does_not_count(
    coordinator: ScriptedCoordinator,
) -> None:
    async with in_terminal(*asking(coordinator)) as terminal:
        await terminal.screen.until("> ")
        await terminal.type("one\n")
        first = await coordinator.submission()
        await terminal.type("\x03")
        await coordinator.abort()
        await terminal.screen.until("^C\r\ntrio-infer: stopped; this turn does not count\r\n> ")
        await terminal.type("one\n")
        second = await coordinator.submission()
        assert second.message.prompt == first.message.prompt
        answer(coordinator, second, "1")
        await terminal.screen.until("1\r\n> ")
        await terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_an_answer_commands_no_terminal(coordinator: ScriptedCoordinator) -> None:
    async with in_terminal(*asking(coordinator)) as terminal:
        await terminal.type("one\n")
        answer(coordinator, await coordinator.submission(), "\x1b[31mred")
        await terminal.screen.until("\u241b[31mred\r\n> ")


# --- a pipe


async def test_each_line_of_a_pipe_is_a_turn_and_answers_alone_are_printed() -> None:
    result = await run(*EMBEDDED, stdin="hello\r\n\n  \nZoë\nhistory".encode())
    assert (result.code, result.stderr) == (0, "")
    assert result.stdout == (
        "You say hello.\nYou say Zoë.\n"
        "user:hello|assistant:You say hello.|user:Zoë|assistant:You say Zoë.|\n"
    )


async def test_a_system_prompt_comes_before_all_else_and_stays_after_reset() -> None:
    result = await run(*EMBEDDED, "--system", "Be.", stdin=b"a\n/reset\nhistory\n")
    assert result.stdout == "You say a.\nsystem:Be.|\n"
    assert result.stderr == "trio-infer: this is a new conversation\n"


async def test_answers_come_while_the_pipe_is_open_and_bit_by_bit(
    coordinator: ScriptedCoordinator,
) -> None:
    async with chatting(coordinator) as program:
        await program.say("one\n")
        request = await coordinator.submission()
        coordinator.partial(request, list(b"a"))
        await program.stdout.until("a")
        coordinator.partial(request, list(b"b"))
        await program.stdout.until("ab")
        answer(coordinator, request, "abc")
        await program.stdout.until("abc\n")
        await program.hang_up()
        assert await program.ended() == 0


async def test_all_that_was_said_is_sent_again_as_the_ids_that_it_was(
    coordinator: ScriptedCoordinator,
) -> None:
    async with chatting(coordinator) as program:
        await program.say("one\ntwo\n")
        first = await coordinator.submission()
        assert (first.message.sampling_params or {})["termination_id"] == END
        coordinator.reply(first, [*b"Zo", 0xFF])  # which no text becomes again
        second = await coordinator.submission()
        behind = [END, *b"user: two", END, *b"assistant: "]
        assert second.message.prompt == [*prompt_of(first), *b"Zo", 0xFF, *behind]
        answer(coordinator, second, "")
        await program.hang_up()
        assert await program.ended() == 0


async def test_ctrl_c_in_a_pipe_stops_one_answer_and_twice_all(
    coordinator: ScriptedCoordinator,
) -> None:
    async with chatting(coordinator) as program:
        await half_answered(coordinator, program, "one\ntwo\n")
        program.send(signal.SIGINT)
        await coordinator.abort()
        second = await coordinator.submission()
        assert text_of(second).startswith("user: one<end>assistant: said<end>user: two")
        while len(coordinator.of(Kind.ABORT_REQUEST)) < 2 and program.process.poll() is None:
            program.send(signal.SIGINT)  # too soon after the first it would be taken for that one
            await trio.sleep(0.05)
        assert await program.ended() == 130
        assert await program.stdout.rest() == "said\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_other_signals_end_it_as_they_end_the_others(
    coordinator: ScriptedCoordinator, number: signal.Signals, code: int
) -> None:
    async with chatting(coordinator) as program:
        await half_answered(coordinator, program, "one\n")
        program.send(number)
        await coordinator.abort()
        assert await program.ended() == code
        assert await program.stdout.rest() == "said\n"
        assert await program.stderr.rest() == "trio-infer: interrupted after 4 tokens\n"


async def test_ended_in_an_answer_it_tells_what_it_was_owed(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with chatting(coordinator) as program:
        await half_answered(coordinator, program, "one\n")
        program.send(signal.SIGTERM)
        await coordinator.abort()
        coordinator.close()
        assert await program.ended() == 143
        assert "owed its last reply still" in (await program.stderr.rest()).splitlines()[-1]


async def test_ends_with_the_embedded_coordinator_still_answering() -> None:
    async with chatting_here("-n", "100000") as program:
        await program.say("forever\n")
        await program.stdout.until("x")
        program.send(signal.SIGTERM)
        assert await program.ended() == 143
        assert "Traceback" not in await program.stderr.rest()


async def test_ends_where_nobody_reads_any_more() -> None:
    async with chatting_here("-n", "100000") as program:
        await program.say("forever\n")
        await program.stdout.until("x")
        await program.stdout.aclose()
        assert await program.ended() == 141
        assert await program.stderr.rest() == ""


# --- what goes wrong


async def test_a_lost_connection_keeps_what_was_said_and_the_next_turn_tries_again() -> None:
    address = free_address()
    options = ("--address", address, "--tokenizer", TALKER)
    async with started("chat", *options, stdin=subprocess.PIPE) as program:
        async with scripted_coordinator(address) as first:
            await program.say("one\n")
            first.partial(await first.submission(), list(b"said"))
            await program.stdout.until("said")
        await program.stderr.until("; what was said is kept\n")
        async with scripted_coordinator(address) as second:
            await program.say("two\n")
            request = await second.submission()
            assert text_of(request) == (
                "user: one<end>assistant: said<end>user: two<end>assistant: "
            )
            answer(second, request, "2")
            await program.stdout.until("said\n2\n")
            await program.hang_up()
            assert await program.ended() == 1


async def test_a_turn_without_a_coordinator_fails_after_the_time_for_connecting() -> None:
    address = free_address()
    options = ("--address", address, "--tokenizer", TALKER, "--connect-timeout", "3")
    async with started("chat", *options, stdin=subprocess.PIPE) as program:
        async with scripted_coordinator(address) as coordinator:
            await until(lambda: coordinator.connects)
            await program.say("one\n")
            answer(coordinator, await coordinator.submission(), "1")
            await program.stdout.until("1\n")
        await program.say("two\n")
        await program.hang_up()
        assert await program.ended() == 1
        (line,) = (await program.stderr.rest()).splitlines()
        assert line.endswith("; this turn does not count")


async def test_a_turn_that_the_engine_gives_up_on_does_not_count(
    coordinator: ScriptedCoordinator,
) -> None:
    async with chatting(coordinator) as program:
        await program.say("one\ntwo\n")
        coordinator.reply(await coordinator.submission(), [], status="FAILED")
        second = await coordinator.submission()
        assert text_of(second) == "user: two<end>assistant: "
        answer(coordinator, second, "2")
        await program.hang_up()
        assert await program.ended() == 1
        assert await program.stdout.rest() == "2\n"
        (line,) = (await program.stderr.rest()).splitlines()
        assert line.endswith("this turn does not count; /reset begins a new conversation")


async def test_a_full_context_is_told_and_reset_helps() -> None:
    model = "tests.cli.talking:Short"
    lines = b"hello\nhello\n/reset\nhello\nforever\n/reset\nforever\n"
    result = await run("chat", "--model", model, stdin=lines)
    room = 60 - len("user: forever|assistant: ")
    assert result.stdout == f"You say hello.\nYou say hello.\n{'x' * room}\n"
    full = "trio-infer: the model's context is full: 60 tokens, and with this turn the conversation"
    told = result.stderr.splitlines()
    assert told[0].startswith(full)
    assert told[1] == "trio-infer: this is a new conversation"
    assert told[2].startswith(full)
    assert told[4] == (
        f"trio-infer: cut off after {room} tokens: the model's context is full; "
        "/reset begins a new conversation"
    )
    assert result.code == 1


async def test_a_line_that_is_no_text_is_told_and_the_others_go_on() -> None:
    result = await run(*EMBEDDED, stdin=b"good \xff bad\nhello\n")
    assert (result.code, result.stdout) == (1, "You say hello.\n")
    assert result.stderr == (
        "trio-infer: that is not UTF-8: invalid start byte at byte 5 of the line\n"
    )


async def test_an_answer_that_is_cut_off_says_so() -> None:
    result = await run(*EMBEDDED, "-n", "3", stdin=b"hello\n")
    assert (result.code, result.stdout) == (0, "You\n")
    assert result.stderr == "trio-infer: cut off after 3 tokens: -n allows more\n"


async def test_stats_tell_of_tokens(coordinator: ScriptedCoordinator) -> None:
    async with chatting(coordinator, "--stats") as program:
        await program.say("one\n")
        request = await coordinator.submission()
        length = len(prompt_of(request))
        coordinator.reply(request, list(b"abc"), num_cached_tokens=7)
        told = f"trio-infer: {length} tokens of prompt, 7 of them cached; 3 generated in "
        await program.stderr.until(told)


@pytest.mark.parametrize("dialect", ["0.19", "0.18"])
async def test_without_streams_answers_come_whole_and_without_aborts_it_says_so(
    dialect: str,
) -> None:
    async with (
        scripted_coordinator(dialect=dialect) as coordinator,
        chatting(coordinator, "--dialect", dialect) as program,
    ):
        await program.say("one\ntwo\n")
        first = await coordinator.submission()
        program.send(signal.SIGINT)
        await program.stderr.until(
            "stopped; this turn does not count, and the engine goes on: this dialect has no abort\n"
        )
        second = await coordinator.submission()
        assert text_of(second) == "user: two<end>assistant: "
        coordinator.reply(first, list(b"late"))
        answer(coordinator, second, "2")
        await program.hang_up()
        assert await program.ended() == 0
        assert await program.stdout.rest() == "2\n"


async def test_a_stop_that_is_not_answered_is_told_and_the_next_turn_goes_on(
    coordinator: ScriptedCoordinator,
) -> None:
    coordinator.answers_aborts = False
    async with chatting(coordinator) as program:
        await half_answered(coordinator, program, "one\ntwo\n")
        program.send(signal.SIGINT)
        abort = await coordinator.abort()
        await program.stderr.until("after 4 tokens, and the coordinator has not answered that yet")
        second = await coordinator.submission()
        assert "assistant: said<end>user: two" in text_of(second)
        coordinator.reply(abort, list(b"said"))
        answer(coordinator, second, "2")
        await program.hang_up()
        assert await program.ended() == 0


async def test_a_tokenizer_that_does_not_fit_ends_it(coordinator: ScriptedCoordinator) -> None:
    async with chatting(coordinator) as program:
        await program.say("one\n")
        coordinator.partial(await coordinator.submission(), [65, 50000])
        assert await program.ended() == 2
        assert await program.stdout.rest() == ""
        (line,) = (await program.stderr.rest()).splitlines()
        assert "no token 50000: --tokenizer does not fit this coordinator" in line


# --- what cannot begin


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        ("", 2, "take --model smollm2 or a GGUF file, or an --address"),
        ("--model tests.cli.endless:Endless", 2, "no chat template"),
        ("--address tcp://localhost:1", 2, "needs its --tokenizer told"),
        (f"--model {TALKER} --tokenizer {TALKER}", 2, "--tokenizer is for a coordinator at"),
        (
            "--address tcp://localhost:1 --tokenizer nothing",
            2,
            "'--tokenizer': 'nothing' is not",
        ),
        ("--address tcp://localhost:1 --tokenizer {empty}", 1, "tokenizer"),
        ("--address tcp://localhost:1 --tokenizer sys:path", 1, "sys:path is no Vocabulary"),
        ("--address tcp://localhost:1 --tokenizer tests.cli.endless:Endless", 2, "chat template"),
        ("--model tests.cli.talking:Torn", 1, "the chat template is none of Jinja's"),
        ("--model tests.cli.talking:Unruly", 1, "the chat template refuses this"),
        ("--model tests.cli.talking:Refusing --system Be.", 1, "refuses this conversation: no sys"),
        ("--model tests.cli.talking:Illiterate --system Für", 1, "no tokens for this conversation"),
        (f"--model {TALKER} --system \udcff", 1, "surrogates not allowed"),
        (f"--model {TALKER} --log-probs", 2, "No such option"),
    ],
)
def test_what_cannot_begin_is_told_in_one_line(
    here: Here, tmp_path_factory: pytest.TempPathFactory, arguments: str, code: int, complaint: str
) -> None:
    empty = tmp_path_factory.mktemp("empty")
    result = here.run("chat", *arguments.format(empty=empty).split())
    assert (result.code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert complaint in line


async def test_a_turn_that_the_template_refuses_is_told_and_the_others_go_on() -> None:
    model = "tests.cli.talking:Refusing"
    result = await run("chat", "--model", model, "-n", "1", stdin=b"bad\n")
    assert (result.code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line == "trio-infer: the chat template refuses this conversation: bad words"


async def test_a_turn_that_has_no_tokens_is_told_and_the_others_go_on() -> None:
    model = "tests.cli.talking:Illiterate"
    result = await run("chat", "--model", model, stdin="Grüße\nhello\n".encode())
    assert (result.code, result.stdout) == (1, "You say hello.\n")
    (line,) = result.stderr.splitlines()
    assert line.endswith("the tokenizer has no tokens for this conversation: ü is no letter")


WITHOUT_JINJA = """
import sys
sys.modules["jinja2"] = None
from _trio_infer_start import main
sys.exit(main())
"""


async def test_without_jinja_the_extra_is_named() -> None:
    command = (sys.executable, "-c", WITHOUT_JINJA)
    result = await run(*EMBEDDED, command=command, cwd=os.getcwd())  # noqa: PTH109
    assert result.code == 1
    (line,) = result.stderr.splitlines()
    assert 'pip install "trio-infer[chat]"' in line
