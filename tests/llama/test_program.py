"""``--model`` on the command line."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.llama.noisily import run, started
from trio_infer import SamplingParams, open_client

if TYPE_CHECKING:
    from pathlib import Path

    from trio_infer.embedded import LlamaModel

MODEL = ("--model", "smollm2")
PROMPT = "Structured concurrency is"
SHORT = ("-n", "12", "--temperature", "0", PROMPT)
START = " a type of concurrency"


async def test_generates_by_name_and_by_path(model: LlamaModel, tmp_path: Path) -> None:
    link = tmp_path / "model"  # a GGUF file is known by what is in it
    link.symlink_to(model.path)
    results = [await run("generate", "--model", each, *SHORT) for each in ("smollm2", str(link))]
    assert results[0].stdout.startswith(START)
    assert results[0].stderr == ""
    assert results[0] == results[1]


async def test_streams_the_text_of_its_own_tokenizer() -> None:
    whole = await run("generate", *MODEL, *SHORT)
    streamed = await run("generate", "--stream", *MODEL, *SHORT)
    assert (streamed.stdout, streamed.stderr) == (whole.stdout, "")


async def test_tells_the_text_of_each_token_beside_its_log_prob() -> None:
    result = await run("generate", *MODEL, "--log-probs", "--top-n-logprobs", "2", *SHORT)
    assert "' type'" in result.stderr


async def test_prints_deltas_with_their_text_as_json() -> None:
    result = await run("generate", *MODEL, "--stream", "--json", *SHORT)
    *deltas, last = map(json.loads, result.stdout.splitlines())
    text = "".join(delta["text"] for delta in deltas)
    assert text
    assert last["generated_text"].startswith(text)


async def test_ctrl_c_ends_it_and_keeps_what_was_said() -> None:
    endless = ("-n", "1500", "--termination-id", "-1", "--temperature", "0")
    async with started("generate", "--stream", *MODEL, *endless, PROMPT) as program:
        await program.stdout.until(START)
        program.send(signal.SIGINT)
        assert await program.ended() == 130
        assert (await program.stdout.rest()).startswith(START)
        assert "Traceback" not in await program.stderr.rest()


async def test_ctrl_c_ends_it_while_a_long_prompt_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("and another word " * 600)
    async with started("coordinator", *MODEL) as coordinator:
        address = (await coordinator.stdout.until("\n")).strip()
        async with started("generate", "--address", address, "-f", str(path)) as program:
            await coordinator.stderr.until("1 running")
            program.send(signal.SIGINT)
            assert await program.ended() == 130
        coordinator.send(signal.SIGINT)
        assert await coordinator.ended() == 0
        assert "Traceback" not in await coordinator.stderr.rest()


async def test_serves_others_and_ends_while_it_computes() -> None:
    params = SamplingParams(num_tokens_to_generate=1500, termination_id=-1)
    async with started("coordinator", *MODEL) as program:
        address = (await program.stdout.until("\n")).strip()
        hint = await program.stderr.until("\n")
        (tokenizer,) = re.findall("--tokenizer (.*) --address", hint)
        assert tokenizer.endswith(".gguf")
        async with open_client(address, close_timeout=0) as client:
            async with client.stream(PROMPT, params) as stream:
                await stream.receive()
                program.send(signal.SIGINT)
                assert await program.ended() == 0
        assert "Traceback" not in await program.stderr.rest()


async def test_makes_results_of_a_file_of_prompts(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text('{"prompt": "One is"}\n{"prompt": "Two is"}\n')
    result = await run("batch", *MODEL, "-n", "5", str(source), "-o", str(output))
    assert (result.code, len(output.read_text().splitlines())) == (0, 2)


@pytest.mark.parametrize("command", ["generate", "coordinator"])
async def test_a_file_that_llama_cpp_cannot_load_is_told_in_one_line(
    command: str, model: LlamaModel, tmp_path: Path
) -> None:
    path = tmp_path / "half.gguf"
    with model.path.open("rb") as whole:
        path.write_bytes(whole.read(1_000_000))
    result = await run(command, "--model", str(path), *(["hi"] if command == "generate" else []))
    assert (result.code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert "half.gguf" in line
