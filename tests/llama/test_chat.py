"""``trio-infer chat`` with the real model."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from tests.llama.noisily import run, started
from trio_infer.cli.conversation import Conversation
from trio_infer.embedded.llama.vocabulary import open_vocabulary

if TYPE_CHECKING:
    from trio_infer.embedded import LlamaModel

CHAT = ("chat", "--model", "smollm2", "--temperature", "0")
STATS = re.compile(r"(\d+) tokens of prompt, (\d+) of them cached; (\d+) generated")


def stats(text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, found)) for found in STATS.findall(text)]


async def test_turns_are_answered_and_all_that_was_said_is_cached() -> None:
    result = await run(*CHAT, "--stats", "-n", "20", stdin=b"My name is Ada.\nWhat is my name?\n")
    assert result.code == 0
    assert "Ada" in result.stdout
    (first, _, said), (second, cached, _) = stats(result.stderr)
    assert second > first + said
    assert cached in {first + said, first + said - 1}  # nothing was computed behind the last token


async def test_the_model_ends_its_turn_itself() -> None:
    result = await run(*CHAT, "-n", "200", stdin=b"Say hi.\n")
    assert result.code == 0
    assert "cut off" not in result.stderr
    assert "<|im_end|>" not in result.stdout


async def test_ctrl_c_keeps_what_was_said_and_the_next_turn_goes_on() -> None:
    options = ("--stats", "-n", "200", "--termination-id", "-1")
    async with started(*CHAT, *options, stdin=subprocess.PIPE) as program:
        await program.say("Count to a thousand.\n")
        await program.stdout.until(" ")
        program.send(signal.SIGINT)
        await program.stderr.until("generated in")
        ((first, _, said),) = stats(program.stderr.text)
        assert f"stopped after {said} tokens" in program.stderr.text
        assert 0 < said < 200
        await program.say("Go on.\n")
        await program.hang_up()
        assert await program.ended() == 0
        (_, (second, cached, _)) = stats(await program.stderr.rest())
        assert first + said - 1 <= cached < second


async def test_a_conversation_is_as_long_as_its_context_allows() -> None:
    lines = b"Count to a thousand.\n"
    result = await run(*CHAT, "--context", "60", "--termination-id", "-1", stdin=lines)
    assert "the model's context is full; /reset" in result.stderr


async def test_sigterm_ends_it_in_the_midst_of_an_answer() -> None:
    async with started(*CHAT, "-n", "1500", stdin=subprocess.PIPE) as program:
        await program.say("Count to a thousand.\n")
        await program.stdout.until(" ")
        program.send(signal.SIGTERM)
        assert await program.ended() == 143
        assert "Traceback" not in await program.stderr.rest()


async def test_a_coordinator_elsewhere_is_asked_by_the_tokenizer_of_the_file() -> None:
    async with started("coordinator", "--model", "smollm2") as coordinator:
        address = (await coordinator.stdout.until("\n")).strip()
        options = ("--address", address, "--tokenizer", "smollm2", "--temperature", "0")
        result = await run("chat", *options, "-n", "40", stdin=b"Say hi.\n")
        own = await run(*CHAT, "-n", "40", stdin=b"Say hi.\n")
        assert (result.code, result.stdout) == (0, own.stdout)
        generated = [
            await run("generate", *options, *stream, "-n", "20", "A generator")
            for stream in ((), ("--stream",))
        ]
        assert generated[0] == generated[1]


def test_prompts_are_those_of_llama_cpp(model: LlamaModel) -> None:
    formats: Any = importlib.import_module("llama_cpp.llama_chat_format")
    messages = [{"role": "user", "content": "Zoë?"}]
    formatter = formats.Jinja2ChatFormatter(
        template=model.chat_template, eos_token="<|im_end|>", bos_token="<|im_start|>"
    )
    expected = formatter(messages=messages).prompt
    vocabulary = open_vocabulary("smollm2")
    conversation = Conversation(vocabulary, None)
    assert vocabulary.detokenize(conversation.prompt("Zoë?")) == expected
    assert conversation.prompt("Zoë?") == model.tokenize(expected)
    assert conversation.end_of_turn == model.end_token


def test_a_vocabulary_alone_is_that_of_the_model(model: LlamaModel) -> None:
    vocabulary = open_vocabulary(model.path)
    for name in ("vocab_size", "end_token", "end_tokens", "begin_token", "chat_template"):
        assert getattr(vocabulary, name) == getattr(model, name)
