"""``trio-infer engines``: signals to the engines, which nobody acknowledges."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import click

from ..engines import EngineControl
from ..models.scalars import INT64_MAX
from .exits import EXIT_CODES, show_help
from .interruption import Interruption, run_interruptible
from .output import Output
from .target import Target, target_options

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["engines"]

_Send: TypeAlias = Callable[[EngineControl], None]

UNACKNOWLEDGED: Final = (
    "nothing acknowledges it, and a coordinator drops what does not fit its state"
)

HASTE: Final = (
    "it takes engines some twenty steps: unpause, suspend or stop before they are through kills"
    " them"
)

EXAMPLES: Final = """
\b
Examples:
  trio-infer engines pause --address tcp://localhost:5555
  trio-infer engines epoch 7 --address tcp://localhost:5555
  trio-infer engines profile start --address tcp://localhost:5555
"""

_SIGNALS: Final[Mapping[str, tuple[str, str, _Send]]] = {
    "pause": ("Ask the engines to stop stepping.", HASTE, EngineControl.pause),
    "unpause": ("Let paused engines go on.", "", lambda each: each.unpause(force=True)),
    "suspend": (
        "Ask paused engines to give back the memory of their KV cache.",
        "",
        lambda each: each.suspend(force=True),
    ),
    "resume": (
        "Ask suspended engines to take their memory again; they are paused then.",
        "",
        lambda each: each.resume(force=True),
    ),
    "stop": (
        "End paused or suspended engines for good.",
        "the coordinator waits for new engines, and ends if a request comes before them",
        lambda each: each.stop(force=True),
    ),
}
_PROFILER: Final[Mapping[str, tuple[str, str, _Send]]] = {
    "start": (
        "Start the CUDA profiler of every engine.",
        "",
        EngineControl.start_cuda_profiler,
    ),
    "stop": ("Stop the CUDA profiler of every engine.", "", EngineControl.stop_cuda_profiler),
}


@attrs.frozen
class _Job:
    """What the command line asks for."""

    target: Target
    name: str
    send: _Send
    warning: str


@click.group(
    invoke_without_command=True,
    short_help="Signals to the engines: pause, stop, and others.",
    epilog=EXAMPLES + EXIT_CODES,
)
@click.pass_context
def engines(context: click.Context) -> int:
    """Send a signal to all engines behind a coordinator.

    Nothing acknowledges a signal. A coordinator drops one that does not fit its state, with a line
    in its own log, so let engines be paused before you suspend or stop them.
    """
    return show_help(context)


@click.group(
    invoke_without_command=True,
    short_help="The CUDA profiler of every engine.",
    epilog=EXAMPLES + EXIT_CODES,
)
@click.pass_context
def profile(context: click.Context) -> int:
    """Start or stop the CUDA profiler of every engine."""
    return show_help(context)


@click.command(
    short_help="Set the generation epoch of the tokens to come.",
    epilog=EXAMPLES + EXIT_CODES,
    context_settings={"ignore_unknown_options": True},  # so that -1 is a number, and refused as one
)
@click.argument("number", type=click.IntRange(0, INT64_MAX))
@target_options
def epoch(*, number: int, target: Target) -> int:
    """Set the generation epoch to NUMBER, such as that of the weight updates so far.

    It holds for the tokens of requests in flight and of those to come.
    """
    job = _Job(target, f"epoch {number}", lambda each: each.set_generation_epoch(number), "")
    return run_interruptible(_run, job)


def _make_command(name: str, prefix: str, told: str, warning: str, send: _Send) -> click.Command:
    @target_options
    def command(*, target: Target) -> int:
        return run_interruptible(_run, _Job(target, f"{prefix}{name}", send, warning))

    described = f"{told}\n\nNothing acknowledges it."
    if warning:
        described += f" Mind: {warning}."
    make = click.command(name, short_help=told, help=described, epilog=EXAMPLES + EXIT_CODES)
    return make(command)


for _name, _row in _SIGNALS.items():
    engines.add_command(_make_command(_name, "", *_row))
for _name, _row in _PROFILER.items():
    profile.add_command(_make_command(_name, "profile ", *_row))
engines.add_command(epoch)
engines.add_command(profile)


async def _run(interruption: Interruption, job: _Job) -> None:
    output = Output()
    async with job.target.serving() as address, output.writing():
        with interruption.cancels():
            async with job.target.open_client(address) as client:
                job.send(client.engines)
                output.note(f"{job.name} was sent to {_whom(job.target)}; {UNACKNOWLEDGED}")
                if job.warning:
                    output.note(job.warning)


def _whom(target: Target) -> str:
    if target.address is None:
        return "an embedded coordinator, which ends with this command, as no --address was given"
    return target.address
