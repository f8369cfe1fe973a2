"""What every command tells of itself, and what a shell can complete."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from trio_infer.cli.completion import SHELLS, VARIABLE
from trio_infer.cli.program import program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.here import Here

DOCS = Path(__file__).parents[2] / "docs" / "command-line.md"


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, *path, name)


COMMANDS = dict(commands(program))


def examples(text: str) -> list[list[str]]:
    """The arguments of all lines that start the program."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    started = [re.sub(r"^eval .\$\((.*)\).$", r"\1", each.strip("$ ")) for each in lines]
    return [
        shlex.split(re.split(r"\s[|<>]", line)[0])[1:]
        for line in started
        if line.startswith("trio-infer ")
    ]


TOLD = [each for command in COMMANDS.values() for each in examples(command.epilog or "")]
DOCUMENTED = examples(DOCS.read_text(encoding="utf-8"))
RUN = [
    each
    for each in TOLD
    if each[0] in {"generate", "ping", "completion"} and not {"--address", "--stream"} & {*each}
]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_examples_and_exit_codes(here: Here, path: tuple[str, ...]) -> None:
    result = here.run(*path, "--help")
    assert (result.code, result.stderr) == (0, "")
    assert "Examples:\n    " in result.stdout
    assert "Exit codes:\n    0    it worked" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


@pytest.mark.parametrize("group", ["", "engines", "engines profile"])
def test_a_group_alone_shows_its_help(here: Here, group: str) -> None:
    result = here.run(*group.split())
    assert (result.code, result.stdout) == (2, "")
    assert "\nCommands:\n" in result.stderr


def test_every_command_is_documented() -> None:
    documented = {each[0] for each in DOCUMENTED}
    assert {path[0] for path in COMMANDS if path} <= documented


@pytest.mark.parametrize("arguments", TOLD + DOCUMENTED, ids=" ".join)
def test_examples_make_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").touch()
    for command in COMMANDS.values():
        monkeypatch.setattr(command, "callback", lambda **_: 0)
    assert program.main(arguments, standalone_mode=False) == 0


@pytest.mark.parametrize("arguments", RUN, ids=" ".join)
def test_examples_work(here: Here, arguments: list[str]) -> None:
    result = here.run(*arguments)
    assert result.code == 0
    assert result.stdout


def completions(here: Here, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    monkeypatch.setenv(VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    result = here.run()
    assert (result.code, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("trio-infer b", ["plain,batch", "plain,bench"]),
        ("trio-infer engines s", ["plain,stop", "plain,suspend"]),
        ("trio-infer engines profile st", ["plain,start", "plain,stop"]),
        ("trio-infer ping --dialect 0.1", ["plain,0.19", "plain,0.18"]),
        ("trio-infer completion z", ["plain,zsh"]),
        ("trio-infer batch --conc", ["plain,--concurrency"]),
        ("trio-infer batch in", ["file,in"]),
        ("trio-infer generate --tokenizer b", ["plain,bytes"]),
        ("trio-infer chat --tokenizer s", ["plain,smollm2"]),
        ("trio-infer chat --tokenizer mod", ["file,mod"]),
    ],
)
def test_shells_complete(
    here: Here, monkeypatch: pytest.MonkeyPatch, words: str, completed: list[str]
) -> None:
    found = completions(here, monkeypatch, words)
    assert sorted(found) == sorted(completed)


def test_a_shell_that_click_does_not_know_gets_an_exit_code(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "csh_complete")
    assert here.run().code == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_prints_a_script_for_each_shell(here: Here, shell: str) -> None:
    result = here.run("completion", shell)
    assert result.code == 0
    assert f"{VARIABLE}={shell}_complete" in result.stdout


def test_bash_completes_with_that_script(here: Here, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(here.run("completion", "bash").stdout)
    installed = tmp_path / "trio-infer"
    installed.write_text(f'#!/bin/sh\nexec {sys.executable} -m trio_infer "$@"\n')
    installed.chmod(0o755)
    line = (
        f"source {script}; COMP_WORDS=(trio-infer coord); COMP_CWORD=1;"
        "_trio_infer_completion trio-infer; echo ${COMPREPLY[@]}"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-c", line], capture_output=True, check=False, env=os.environ | {"PATH": path}
    )
    assert answer.stdout == b"coordinator\n"
