"""Media and other large requests, on their way through a client."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio
import trio.testing

from tests.peers import ScriptedCoordinator, scripted_coordinator
from tests.waiting import until
from trio_infer import InferenceClient, SamplingParams, open_client
from trio_infer.embedded import open_coordinator
from trio_infer.protocol.client_codec import ClientCodec

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio_infer.protocol.client_codec import Submission

IMAGE = bytes(range(256)) * 4096  # 1 MiB


class Packing:
    """Watches where requests are laid out, and holds that up on demand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        monkeypatch.setattr(ClientCodec, "lay_out", self._watched(ClientCodec.lay_out))

    def _watched(self, lay_out: Callable[..., Submission]) -> Callable[..., Submission]:
        def watched(*args: Any) -> Submission:
            self.threads.append(threading.get_ident())
            assert self.may_go_on.wait(60)
            return lay_out(*args)

        return watched


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Packing:
    return Packing(monkeypatch)


async def submitted(
    coordinator: ScriptedCoordinator, client: InferenceClient, *args: Any, **kwargs: Any
) -> Any:
    """The message of a request that is left again."""
    async with client.stream(*args, **kwargs):
        return (await coordinator.submission()).message


@pytest.mark.parametrize(
    ("prompt", "media"),
    [("see", {"image": IMAGE}), ("x" * 2**18, None), (list(range(2**14)), None)],
    ids=["image", "text", "ids"],
)
async def test_what_is_large_is_packed_while_other_tasks_run(
    coordinator: ScriptedCoordinator,
    client: InferenceClient,
    packing: Packing,
    prompt: Any,
    media: dict[str, Any] | None,
) -> None:
    message = await submitted(coordinator, client, prompt, multi_modal_data=media)
    assert message.prompt == prompt
    assert message.media == (None if media is None else [IMAGE])
    assert len(packing.threads) == 1
    assert threading.get_ident() not in packing.threads


async def test_what_is_small_is_packed_at_once(
    coordinator: ScriptedCoordinator, client: InferenceClient, packing: Packing
) -> None:
    data = {"image": bytearray(b"small")}
    stream = client.stream("see", multi_modal_data=data)
    assert packing.threads == [threading.get_ident()]
    data["image"][:] = b"other"
    async with stream:
        assert (await coordinator.submission()).message.media == [b"small"]


async def test_other_requests_overtake_one_that_is_being_packed(
    coordinator: ScriptedCoordinator, client: InferenceClient, packing: Packing
) -> None:
    packing.may_go_on.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.generate, "large", multi_modal_data={"image": IMAGE}))
        await until(lambda: bool(packing.threads))
        packing.may_go_on.set()
        large = await coordinator.submission()
        packing.may_go_on.clear()
        nursery.start_soon(partial(client.generate, "larger", multi_modal_data={"image": IMAGE}))
        await until(lambda: len(packing.threads) == 2)
        packing.may_go_on.set()
        async with client.stream("small"):
            prompts = [(await coordinator.submission()).message.prompt for _ in range(2)]
        assert sorted(map(str, prompts)) == ["larger", "small"]
        assert large.message.prompt == "large"
        nursery.cancel_scope.cancel()


async def test_cancelled_while_it_is_packed_a_request_sends_nothing_and_does_not_wait(
    coordinator: ScriptedCoordinator, client: InferenceClient, packing: Packing
) -> None:
    packing.may_go_on.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.generate, "see", multi_modal_data={"image": IMAGE}))
        await until(lambda: bool(packing.threads))
        nursery.cancel_scope.cancel()
    assert client.statistics().submitted == 0
    packing.may_go_on.set()
    await submitted(coordinator, client, "next")
    assert [received.message.prompt for received in coordinator.log[:1]] == ["next"]


async def test_a_client_closed_while_a_request_is_packed_sends_nothing(
    coordinator: ScriptedCoordinator, client: InferenceClient, packing: Packing
) -> None:
    async def generate() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await client.generate("see", multi_modal_data={"image": IMAGE})

    packing.may_go_on.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        await until(lambda: bool(packing.threads))
        await client.aclose()
        packing.may_go_on.set()
    assert coordinator.log == []


@pytest.mark.parametrize("dialect", ["framed", "0.20"])
async def test_large_media_arrive_as_they_were(dialect: str) -> None:
    images = [IMAGE * 8, b"", IMAGE]
    async with scripted_coordinator(dialect=dialect) as coordinator:
        async with open_client(coordinator.address, dialect=dialect) as client:
            for _ in range(3):
                message = await submitted(
                    coordinator, client, "see", multi_modal_data={"image": images}
                )
                sent = message.media or message.multi_modal_data["image"]
                assert sent == images


async def test_tensors_arrive_as_nested_lists(
    coordinator: ScriptedCoordinator, client: InferenceClient
) -> None:
    imgs = np.arange(2 * 3 * 200 * 200, dtype=np.float32).reshape(2, 3, 200, 200)[:, :, ::-1]
    data = {"image": {"imgs": imgs, "imgs_sizes": np.array([[200, 200]] * 2)}}
    message = await submitted(coordinator, client, [1, 2], multi_modal_data=data)
    assert message.media == {"imgs": imgs.tolist(), "imgs_sizes": [[200, 200]] * 2}
    assert message.media_meta["modality"] == "image"


async def test_media_are_the_salt_of_the_hashes(coordinator: ScriptedCoordinator) -> None:
    hashing: dict[str, Any] = {
        "block_size_tokens": 2,
        "prefix_caching_coordinator_policy": "longest_prefix",
    }
    async with open_client(coordinator.address, **hashing) as client:
        for image in (None, b"a", b"a", b"b"):
            data = None if image is None else {"image": image}
            await submitted(coordinator, client, [1, 2, 3], multi_modal_data=data)
    bare, first, again, other = coordinator.block_hashes
    assert first == again
    assert len({tuple(hashes or ()) for hashes in (bare, first, other)}) == 3


async def test_embedded_models_run_the_prompt_alone() -> None:
    params = SamplingParams(num_tokens_to_generate=3, top_k=1)
    async with open_coordinator() as coordinator, open_client(coordinator.address) as client:
        seeing = await client.generate("hi", params, multi_modal_data={"video": [b"a", b"b"]})
        blind = await client.generate("hi", params)
    assert seeing.generated_tokens == blind.generated_tokens
