"""``--tokenizer DIRECTORY``: tokenizers as Hugging Face's models bring them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.options import to
from tests.programs import run, started
from trio_infer.cli.conversation import Conversation
from trio_infer.cli.hugging_face import HuggingFaceVocabulary
from trio_infer.cli.tokenizing import ModelDecoder

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.here import Here
    from tests.peers import ScriptedCoordinator

tokenizers = pytest.importorskip("tokenizers")

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG = {
    "bos_token": {"content": "<s>"},
    "eos_token": "</s>",
    "chat_template": [
        {"name": "tools", "template": "?"},
        {"name": "default", "template": TEMPLATE},
    ],
}


def vocabulary() -> dict[str, int]:
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    return {letter: number for number, letter in enumerate(sorted(letters))}


def write(directory: Path, config: dict[str, Any] | None = None, **others: str) -> Path:
    """A tokenizer of bytes in whatever order, with marks behind them."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<|user|>", "<|assistant|>", "<|turn|>"])
    tokenizer.enable_truncation(3)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(CONFIG if config is None else config)
    )
    for name, text in others.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def test_a_conversation_is_made_by_the_default_template(tmp_path: Path) -> None:
    found = HuggingFaceVocabulary(
        write(tmp_path, generation_config__json='{"eos_token_id": [260]}')
    )
    conversation = Conversation(found, None)
    prompt = conversation.prompt(" Zoë ")
    assert found.detokenize(prompt) == "<s><|user|>Zoë<|turn|>\n<|assistant|>"
    assert prompt[0] == 256, "the marks are tokens of their own"
    assert conversation.end_of_turn == 260
    answer = [*found.tokenize("é")[:1], 260]
    conversation.keep("Zoë", prompt, answer)
    following = conversation.prompt("b")
    behind = found.tokenize("<|turn|>\n<|user|>b<|turn|>\n<|assistant|>")
    assert following == [*prompt, answer[0], *behind]


def test_a_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    found = HuggingFaceVocabulary(
        write(tmp_path, chat_template__jinja="{{ messages[-1].content }}")
    )
    conversation = Conversation(found, None)
    assert found.detokenize(conversation.prompt("hi")) == "hi"
    assert conversation.end_of_turn == 257, "the end of texts, since turns have none"


def test_it_decodes_without_any_word_on_marks(tmp_path: Path) -> None:
    found = HuggingFaceVocabulary(write(tmp_path, {}))
    assert (found.chat_template, found.end_token, found.end_tokens) == (None, -1, {-1})
    decoder = ModelDecoder(found)
    tokens = found.tokenize("Zoë!")
    assert [decoder.decode([token]) for token in tokens] == ["Z", "o", "", "ë", "!"]


async def test_the_stream_of_a_coordinator_is_read_by_it(
    coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    found = HuggingFaceVocabulary(write(tmp_path))
    options = ("--stream", "--tokenizer", str(tmp_path))
    async with started("generate", *to(coordinator), *options, "hi") as program:
        request = await coordinator.submission()
        coordinator.partial(request, found.tokenize("Zoë"))
        await program.stdout.until("Zoë")


async def test_it_serves_a_chat(coordinator: ScriptedCoordinator, tmp_path: Path) -> None:
    found = HuggingFaceVocabulary(write(tmp_path))
    source = tmp_path / "questions"
    source.write_text("hi")
    options = ("--tokenizer", str(tmp_path))
    with source.open() as questions:
        async with started("chat", *to(coordinator), *options, stdin=questions.fileno()) as program:
            request = await coordinator.submission()
            assert request.message.prompt == Conversation(found, None).prompt("hi")
            coordinator.reply(request, [*found.tokenize("yes"), 257])
            assert await program.ended() == 0
            assert await program.stdout.rest() == "yes\n"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("tokenizer.json", None, "No such file"),
        ("tokenizer.json", "{}", "tokenizer.json is no tokenizer"),
        ("tokenizer_config.json", "{", "tokenizer_config.json is no JSON"),
        ("generation_config.json", "[]", "generation_config.json is no object of JSON"),
        ("tokenizer_config.json", '{"chat_template": 1}', "no chat template"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line(
    here: Here, tmp_path: Path, name: str, text: str | None, complaint: str
) -> None:
    path = write(tmp_path) / name
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    result = here.run("chat", "--address", "tcp://localhost:1", "--tokenizer", str(tmp_path))
    (line,) = result.stderr.splitlines()
    assert complaint in line


WITHOUT = """
import sys
sys.modules["tokenizers"] = None
from _trio_infer_start import main
sys.exit(main())
"""


async def test_without_the_package_the_extra_is_named(tmp_path: Path) -> None:
    arguments = ("--address", "tcp://localhost:1", "--tokenizer", str(write(tmp_path)), "hi")
    result = await run("generate", *arguments, command=(sys.executable, "-c", WITHOUT))
    assert result.code == 1
    (line,) = result.stderr.splitlines()
    assert 'pip install "trio-infer[chat]"' in line
