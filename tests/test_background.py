from __future__ import annotations

import pytest
import trio
import trio.testing

from trio_infer.background import running_behind


async def crash() -> None:
    raise KeyError


async def end() -> None:
    await trio.lowlevel.checkpoint()


async def test_services_run_until_the_block_ends() -> None:
    ran = []

    async def service() -> None:
        ran.append("began")
        try:
            await trio.sleep_forever()
        finally:
            ran.append("ended")

    async with running_behind(service, end):
        await trio.testing.wait_all_tasks_blocked()
        assert ran == ["began"]
    assert ran == ["began", "ended"]


async def test_what_the_block_raises_comes_out_bare() -> None:
    error = ValueError()
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        async with running_behind(trio.sleep_forever, trio.sleep_forever):
            raise error
    assert caught.value is error


async def test_a_group_that_the_block_raises_stays_as_it_is() -> None:
    group = ExceptionGroup("the user's", [ValueError()])
    with pytest.raises(ExceptionGroup) as caught:
        async with running_behind(trio.sleep_forever):
            raise group
    assert caught.value is group
    assert len(group.exceptions) == 1


async def test_what_a_service_raises_ends_the_block_and_comes_out_bare() -> None:
    with pytest.raises(KeyError):
        async with running_behind(trio.sleep_forever, crash, crash):
            await trio.sleep_forever()


async def test_the_blocks_exception_comes_before_a_services() -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        async with running_behind(crash):
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError


async def test_a_cancelled_scope_is_left_as_any_other() -> None:
    async with running_behind(trio.sleep_forever):
        with trio.CancelScope() as scope:
            async with running_behind(trio.sleep_forever, trio.sleep_forever):
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_a_cancellation_that_the_block_did_not_notice_waits_for_the_next_checkpoint() -> None:
    with trio.CancelScope() as scope:
        async with running_behind(trio.sleep_forever, trio.sleep_forever):
            scope.cancel()
        assert not scope.cancelled_caught
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_the_blocks_exception_outlives_a_cancellation() -> None:
    with pytest.raises(ValueError), trio.CancelScope() as scope:  # noqa: PT011
        async with running_behind(trio.sleep_forever):
            scope.cancel()
            raise ValueError


async def test_a_crash_beside_the_blocks_exception_is_noted_on_it() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        async with running_behind(crash):
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise ValueError from None  # noqa: ASYNC104 - that is the point
    assert "KeyError()" in caught.value.__notes__[0]


async def test_ctrl_c_while_the_tasks_end_is_not_swallowed() -> None:
    async def interrupted() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with running_behind(interrupted):
            await trio.testing.wait_all_tasks_blocked()
            raise ValueError


async def test_ctrl_c_comes_before_a_crash() -> None:
    async def interrupted_in_a_crash() -> None:
        raise BaseExceptionGroup("two", [KeyError(), KeyboardInterrupt()])  # noqa: EM101

    with pytest.raises(KeyboardInterrupt):
        async with running_behind(interrupted_in_a_crash):
            await trio.sleep_forever()


async def test_while_a_cancelled_block_unwinds_the_services_are_still_there() -> None:
    ran: list[str] = []

    async def service() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ran.append("service")

    with trio.CancelScope() as scope:
        async with running_behind(service):
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                ran.append("block")
    assert scope.cancelled_caught
    assert ran == ["block", "service"]
