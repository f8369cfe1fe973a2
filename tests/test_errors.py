from __future__ import annotations

import copy
import inspect
import pickle
from typing import TYPE_CHECKING

import pytest

from trio_infer import Completion, errors
from trio_infer.errors import (
    ConnectError,
    ConnectionLost,
    ConnectTimeout,
    InferenceError,
    LocalProtocolError,
    NoneAccepted,
    ProtocolError,
    RemoteProtocolError,
    RequestFailed,
    UnsupportedByDialect,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPLETION = Completion(
    request_id=7,
    generated_tokens=[],
    generated_length=0,
    finish_reason="error",
    latency=0.5,
    status="FAILED",
)


def drawn_tree() -> Iterator[tuple[str, str]]:
    """Each error of the drawing in the module's docstring, and the one that it hangs on."""
    path: list[tuple[int, str]] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.split("::", 1)[1].splitlines():
        bare = line.lstrip(" │├└─")
        name = bare.partition(" ")[0]
        if inspect.isclass(vars(errors).get(name)):
            column = len(line) - len(bare)
            path = [(c, n) for c, n in path if c < column]
            yield name, path[-1][1] if path else "Exception"
            path.append((column, name))


def test_the_tree_is_as_it_is_drawn() -> None:
    tree = dict(drawn_tree())
    assert sorted(tree) == sorted(errors.__all__)
    assert tree == {name: vars(errors)[name].__base__.__name__ for name in errors.__all__}


def test_one_clause_catches_what_belongs_together() -> None:
    assert issubclass(ConnectTimeout, ConnectError)
    assert issubclass(UnsupportedByDialect, LocalProtocolError)
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)
    assert all(issubclass(vars(errors)[name], InferenceError) for name in errors.__all__)
    assert not issubclass(InferenceError, ValueError | TypeError | OSError)


def test_a_lost_connection_tells_the_tokens_so_far() -> None:
    tokens = [1, 2]
    error = ConnectionLost("gone", tokens=tokens)
    tokens.append(3)
    assert error.tokens == (1, 2)
    assert ConnectionLost("gone").tokens == ()
    assert str(error) == "gone"


def test_a_failure_brings_the_engines_reply() -> None:
    error = RequestFailed("failed", completion=COMPLETION, retryable=True)
    assert error.completion is COMPLETION
    assert error.retryable is True
    assert RequestFailed("failed", completion=COMPLETION).retryable is None


@pytest.mark.parametrize(
    "error",
    [
        ConnectTimeout("late"),
        ConnectionLost("gone", tokens=[1, 2]),
        RequestFailed("failed", completion=COMPLETION, retryable=False),
        NoneAccepted("nobody"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_in_a_worker_process_reaches_its_parent(error: InferenceError) -> None:
    error.add_note("from a worker")
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is type(error)
        assert str(same) == str(error)
        assert vars(same) == vars(error)
