from __future__ import annotations

import copy
import re

import attrs
import pytest

from tests.vector_files import read_json, read_vectors
from trio_infer import UnsupportedByDialect
from trio_infer.models.sampling_params import FIELD_NAMES
from trio_infer.protocol.dialect import Dialect, Kind, Layout
from trio_infer.protocol.dialects import DIALECTS, ENVIRONMENT, FRAMED, resolve_dialect

RECORDED = {name: name for name in DIALECTS} | {"framed": "0.20"}
"""Whose recordings hold for a dialect: the framed one kept the numbers and parameters of 0.20."""

INSIDE_ONLY = {"SEND_KV", "DISCONNECT", "TP_BROADCAST", "KV_HANDOFF_COMPLETE"}
"""What coordinators and engines say to each other, and no client hears."""

EVERY = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=repr)


def test_a_dialect_is_found_by_its_name() -> None:
    assert all(DIALECTS[name].name == name for name in DIALECTS)


@EVERY
def test_each_message_has_the_number_that_the_peer_gives_it(dialect: Dialect) -> None:
    numbers = read_json(f"{RECORDED[dialect.name]}-headers")["headers"]
    ours = {kind.name: number for kind, number in dialect.headers.items()}
    assert ours == {name: numbers[name] for name in numbers if name not in INSIDE_ONLY}


@EVERY
def test_a_number_leads_back_to_its_kind(dialect: Dialect) -> None:
    assert {dialect.kinds[number]: number for number in dialect.kinds} == dialect.headers


@EVERY
def test_the_sampling_parameters_are_the_peers_in_its_order(dialect: Dialect) -> None:
    vectors = read_vectors(f"{RECORDED[dialect.name]}-sampling_params")
    (defaults,) = (vector for vector in vectors if vector.get("kwargs") == {})
    assert dialect.sampling_fields == tuple(defaults["serialize"])
    assert set(dialect.sampling_fields) <= set(FIELD_NAMES)


@EVERY
def test_each_message_that_exists_has_a_layout(dialect: Dialect) -> None:
    assert dialect.headers.keys() <= dialect.layouts.keys()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("framed", "stream abort hand_off profile hash_blocks offload"),
        ("0.20", "stream abort hand_off profile"),
        ("0.19", "profile"),
        ("0.18", ""),
    ],
)
def test_what_a_dialect_can_is_what_its_release_can(name: str, expected: str) -> None:
    names = ("stream", "abort", "hand_off", "profile", "hash_blocks", "offload")
    can = {each for each in names if getattr(DIALECTS[name], f"can_{each}")}
    assert can == set(expected.split())


@pytest.mark.parametrize(
    ("name", "expected"),
    [("framed", ["image", "video"]), ("0.20", ["image"]), ("0.19", []), ("0.18", [])],
)
def test_the_media_that_a_dialect_takes(name: str, expected: list[str]) -> None:
    assert sorted(DIALECTS[name].modalities) == expected


@pytest.mark.parametrize("name", ["0.20", "0.19", "0.18"])
def test_the_older_dialects_have_one_frame_for_all(name: str) -> None:
    assert FRAMED.is_multipart
    assert not DIALECTS[name].is_multipart


def test_a_dialect_says_what_it_lacks() -> None:
    assert DIALECTS["0.20"].number(Kind.ABORT_REQUEST) == 23
    with pytest.raises(UnsupportedByDialect, match=r"the dialect '0.19' has no ABORT_REQUEST$"):
        DIALECTS["0.19"].number(Kind.ABORT_REQUEST)
    with pytest.raises(UnsupportedByDialect, match=r"the dialect 'framed' has no audio: sing$"):
        FRAMED.refuse("audio", "sing")


def test_a_dialect_whose_messages_have_no_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="'odd' has messages without a layout"):
        Dialect(name="odd", headers={Kind.CONNECT: 1}, layouts={}, sampling_fields=())


def test_a_dialect_keeps_its_own_copy_of_what_it_was_made_of() -> None:
    headers = {Kind.CONNECT: 1}
    layouts = {Kind.CONNECT: Layout()}
    dialect = Dialect(name="own", headers=headers, layouts=layouts, sampling_fields=())
    headers.clear()
    layouts.clear()
    assert dialect.number(Kind.CONNECT) == 1
    assert dialect.layouts == {Kind.CONNECT: Layout()}
    assert not dialect.can_hash_blocks


def test_a_dialect_of_ones_own() -> None:
    mute = Dialect(
        name="mute",
        headers={Kind.CONNECT: 1},
        layouts=dict.fromkeys(Kind, Layout()),
        sampling_fields=(),
    )
    assert not mute.can_stream
    assert not mute.can_hash_blocks
    assert mute.kinds == {1: Kind.CONNECT}
    assert resolve_dialect(mute) is mute


@EVERY
def test_nobody_can_change_the_table(dialect: Dialect) -> None:
    with pytest.raises(TypeError):
        dialect.headers[Kind.CONNECT] = 7  # type: ignore[index]
    with pytest.raises(TypeError):
        dialect.layouts[Kind.CONNECT] = Layout()  # type: ignore[index]
    with pytest.raises(TypeError):
        dialect.kinds[7] = Kind.CONNECT  # type: ignore[index]
    with pytest.raises(TypeError):
        DIALECTS["mine"] = dialect  # type: ignore[index]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        dialect.name = "mine"  # type: ignore[misc]


@EVERY
def test_a_dialect_is_known_by_its_name_or_by_itself(dialect: Dialect) -> None:
    assert resolve_dialect(dialect.name) is dialect
    assert resolve_dialect(dialect) is dialect
    assert repr(dialect) == f"<Dialect {dialect.name}>"
    assert len({dialect, copy.copy(dialect)}) == 2  # rows are compared by identity


@pytest.mark.parametrize("name", ["Framed", "", "0.1", 20, 0.18, b"framed", ["framed"]])
def test_an_unknown_dialect_is_refused_with_the_known_ones(name: object) -> None:
    known = re.escape(", ".join(map(repr, DIALECTS)))
    with pytest.raises(ValueError, match=f"dialect must be one of {known}, not ") as caught:
        resolve_dialect(name)
    assert "megatron-core 0.17 speaks '0.18', and its main branch 'framed'" in str(caught.value)


def test_the_environment_says_the_dialect_where_nobody_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    assert resolve_dialect() is FRAMED
    monkeypatch.setenv(ENVIRONMENT, "0.19")
    assert resolve_dialect(None) is DIALECTS["0.19"]
    assert resolve_dialect("0.18") is DIALECTS["0.18"]
    monkeypatch.setenv(ENVIRONMENT, "")
    assert resolve_dialect() is FRAMED


def test_a_wrong_dialect_in_the_environment_is_refused_by_the_variables_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "0.1")
    with pytest.raises(ValueError, match=r"TRIO_INFER_DIALECT must be one of .*, not '0.1'"):
        resolve_dialect()
