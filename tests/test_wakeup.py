"""How the reader of a request is woken: as by a memory channel with one place."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_infer.wakeup import Wakeup


async def test_news_that_came_before_is_not_waited_for() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    with trio.testing.assert_checkpoints():
        await wakeup.wait()
    with trio.move_on_after(0) as scope:
        await wakeup.wait()
    assert scope.cancelled_caught, "it came once"


async def test_who_waits_is_woken_by_news_and_goes_on_waiting_for_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wakeup, woken_at = Wakeup(), []

    async def read() -> None:
        while True:
            await wakeup.wait()
            woken_at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        began_at = trio.current_time()
        nursery.start_soon(read)
        for _ in range(3):
            await trio.sleep(1)
            wakeup.set()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert woken_at == [began_at + 1, began_at + 2, began_at + 3]


async def test_who_is_cancelled_takes_no_news_away() -> None:
    wakeup = Wakeup()
    wakeup.set()
    with trio.CancelScope() as scope:
        scope.cancel()
        await wakeup.wait()
    assert scope.cancelled_caught
    await wakeup.wait()


async def test_news_for_who_was_cancelled_while_waiting_are_kept_for_the_next() -> None:
    wakeup = Wakeup()
    with trio.move_on_after(0):
        await wakeup.wait()
    wakeup.set()
    await wakeup.wait()


async def test_who_waits_is_told_of_the_end_and_so_is_who_comes_later() -> None:
    wakeup = Wakeup()

    async def read() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await wakeup.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        wakeup.close()
        wakeup.set()
    wakeup.set()
    with trio.testing.assert_checkpoints():
        await read()
