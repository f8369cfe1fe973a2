from __future__ import annotations

import copy

import attrs
import pytest

from tests.vector_files import read_json, read_vectors
from trio_infer.protocol.dialects import DIALECTS, FRAMED, Dialect, Framing, Kind, resolve_dialect


def test_each_message_has_the_number_that_the_peer_gives_it() -> None:
    numbers = read_json("0.20-headers")["headers"]  # the framed dialect kept them
    assert {kind.name: number for kind, number in FRAMED.headers.items()} == {
        kind.name: numbers[kind.name] for kind in Kind
    }


def test_a_number_leads_back_to_its_kind() -> None:
    for dialect in DIALECTS.values():
        assert {dialect.kinds[number]: number for number in dialect.kinds} == dialect.headers


def test_the_sampling_parameters_are_the_peers_in_its_order() -> None:
    (defaults,) = (v for v in read_vectors("0.20-sampling_params") if v.get("kwargs") == {})
    assert FRAMED.sampling_fields == tuple(defaults["serialize"])


def test_what_exists_follows_from_the_headers() -> None:
    assert FRAMED.can_stream
    assert FRAMED.can_abort
    mute = Dialect(
        name="mute", framing=Framing.SINGLE, headers={Kind.CONNECT: 1}, sampling_fields=()
    )
    assert not mute.can_stream
    assert not mute.can_abort


def test_nobody_can_change_the_table() -> None:
    with pytest.raises(TypeError):
        FRAMED.headers[Kind.CONNECT] = 7  # type: ignore[index]
    with pytest.raises(TypeError):
        FRAMED.kinds[7] = Kind.CONNECT  # type: ignore[index]
    with pytest.raises(TypeError):
        DIALECTS["mine"] = FRAMED  # type: ignore[index]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        FRAMED.name = "mine"  # type: ignore[misc]


def test_a_dialect_is_known_by_its_name_or_by_itself() -> None:
    assert resolve_dialect("framed") is FRAMED
    assert resolve_dialect(FRAMED) is FRAMED
    assert repr(FRAMED) == "<Dialect framed>"
    assert DIALECTS["framed"] is FRAMED
    assert len({FRAMED, copy.copy(FRAMED)}) == 2  # rows are compared by identity


@pytest.mark.parametrize("name", ["Framed", "", "0.21", None, 20, b"framed", ["framed"]])
def test_an_unknown_dialect_is_refused_with_the_known_ones(name: object) -> None:
    with pytest.raises(ValueError, match="dialect must be a Dialect or one of 'framed'"):
        resolve_dialect(name)
