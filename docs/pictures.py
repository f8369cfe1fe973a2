"""Makes the pictures of the command line: ``nox -s pictures``, or ``python docs/pictures.py``.

They show the program's own views, in the midst of real work on an embedded coordinator.
"""

from __future__ import annotations

import json
import tempfile
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from rich.console import Console
from rich.text import Text

from trio_infer import SamplingParams, open_client
from trio_infer.background import running_behind
from trio_infer.cli.activity import ActivityView
from trio_infer.cli.figures import figures, report
from trio_infer.cli.load import Load, Plan
from trio_infer.cli.load_view import LoadView
from trio_infer.cli.progress import BatchView, Counts
from trio_infer.cli.results import Results
from trio_infer.cli.target import Target
from trio_infer.cli.work import Batch, Job
from trio_infer.embedded import open_coordinator

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from trio_infer.embedded import EmbeddedCoordinator

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 104
STEP_SECONDS = 0.02


def make_console() -> Console:
    return Console(
        record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor"
    )


def save(name: str, command: str, *shown: RenderableType) -> None:
    console = make_console()
    for each in (Text(f"$ {command}"), *shown):
        console.print(each, highlight=False)
    file = PICTURES / f"{name}.svg"
    console.save_svg(str(file), title=f"trio-infer {name}", unique_id=name)
    file.write_text(file.read_text().rstrip() + "\n")
    print(file)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - counters have no event
        await trio.sleep(0.05)


async def show_batch(directory: Path) -> None:
    source, output = directory / "prompts.jsonl", directory / "results.jsonl"
    lines = [json.dumps({"id": f"p{n}", "prompt": f"The {n}th generator"}) for n in range(240)]
    lines[7] = '{"prompt": 7}'
    source.write_text("\n".join(lines) + "\n")
    output.write_text("".join(f'{{"line": {n + 1}, "id": "p{n}"}}\n' for n in range(20, 60)))
    counts = Counts()
    console = make_console()
    view = BatchView(counts, console)
    with source.open() as file:
        job = Job(
            target=Target(
                address=None, dialect="framed", connect_timeout=10, seed=1, step_time=STEP_SECONDS
            ),
            sampling_params=SamplingParams(num_tokens_to_generate=48),
            name="prompts.jsonl",
            input=file.fileno(),
            results=Results(output),
            concurrency=16,
            fail_fast=False,
        )
        async with running_behind(view.refresh_now_and_then, Batch(job, counts, view).run):
            await until(lambda: counts.done > 80)
            notes = [line for line in console.export_text().splitlines() if ":" in line[:11]]
            command = "trio-infer batch prompts.jsonl -o results.jsonl --concurrency 16 -n 48"
            save("batch", command, *notes, view.render())


async def show_bench(address: str) -> None:
    plan = Plan(
        requests=120,
        rate=20,
        concurrency=None,
        prompt_tokens=64,
        output_tokens=48,
        cancel_fraction=0.1,
        seed=0,
    )
    load, percentiles = Load(plan), (99.0,)
    view = LoadView(load, percentiles, make_console())
    command = "trio-infer bench --rate 20 --requests 120 --output-tokens 48 --cancel-fraction 0.1"
    async with open_client(address) as client, trio.open_nursery() as nursery:
        nursery.start_soon(load.run, client)
        view.render()
        await until(lambda: load.completed > 60)
        shown = view.render()
        save("bench", command, shown)
    done = report(figures(load, percentiles), percentiles)
    save("bench-figures", command, Text(done.rstrip()))


def is_busy(coordinator: EmbeddedCoordinator) -> bool:
    return len(coordinator.running) == 10


async def show_coordinator() -> None:
    async with open_coordinator(
        bind="tcp://127.0.0.1:5555", engines=2, max_requests=5, step_time=STEP_SECONDS, seed=1
    ) as coordinator:
        view = ActivityView(coordinator, make_console())
        async with open_client(coordinator.address) as client, trio.open_nursery() as nursery:
            for number in range(24):
                prompt = f"The {number}th generator of {'many ' * (number % 5)}is"
                budget = 60 + 37 * number % 80
                params = SamplingParams(num_tokens_to_generate=budget, termination_id=-1)
                nursery.start_soon(client.generate, prompt, params)
            view.render()
            await until(lambda: coordinator.statistics().completed > 4 and is_busy(coordinator))
            command = (
                "trio-infer coordinator --bind tcp://127.0.0.1:5555 --engines 2 --max-requests 5"
            )
            save("coordinator", command, coordinator.address, view.render())
            nursery.cancel_scope.cancel()


async def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        await show_batch(Path(directory))
    async with open_coordinator(step_time=STEP_SECONDS, seed=1) as coordinator:
        await show_bench(coordinator.address)
    await show_coordinator()


trio.run(main)
