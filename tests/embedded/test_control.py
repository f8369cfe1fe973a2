"""Control signals, epochs and handoffs, as a coordinator and its engines take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pytest

from tests.messages import laid_out
from trio_infer import SamplingParams
from trio_infer.embedded.core import CoordinatorCore
from trio_infer.embedded.engine import Engine
from trio_infer.embedded.lifecycle import STEPS_TO_PAUSE, CoordinatorState, EngineState
from trio_infer.protocol.client_codec import ClientCodec
from trio_infer.protocol.dialect import Kind
from trio_infer.protocol.dialects import DIALECTS, FRAMED
from trio_infer.protocol.hashing import PrefixHashing
from trio_infer.protocol.packing import unpack_map

if TYPE_CHECKING:
    from trio_infer.embedded import LanguageModel

CLIENT = b"A"


@attrs.define
class Serving:
    """A coordinator, and one client of it."""

    core: CoordinatorCore
    codec: ClientCodec
    now: float = 0.0

    def signal(self, *kinds: Kind, **values: int) -> None:
        for kind in kinds:
            self.core.receive(CLIENT, self.codec.signal(kind, **values), self.now)

    def submit(self, request_id: int, prompt: Any = (97,), **params: Any) -> None:
        self.send(request_id, laid_out(self.codec, list(prompt), full(params)))

    def send(self, request_id: int, submission: Any) -> None:
        self.core.receive(CLIENT, submission.frames(request_id), self.now)

    def submit_handoff(
        self, request_id: int, handoff: dict[str, Any], prompt: Any = (97,), **params: Any
    ) -> None:
        submission = laid_out(
            self.codec,
            prompt if isinstance(prompt, str) else list(prompt),
            full(params),
            Kind.SUBMIT_REQUEST_WITH_KV,
            kv_meta=handoff["kv_meta"],
            src_block_ids=handoff["block_ids"],
        )
        self.send(request_id, submission)

    def release(self, engine_id: int) -> None:
        self.core.receive(CLIENT, self.codec.release(engine_id), self.now)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 1
            self.core.step(self.now)

    def replies(self) -> dict[int, dict[str, Any]]:
        """The final replies that went out since the last call, by the client's ids."""
        messages = [self.codec.decode(each.frames) for each in self.core.take_outgoing()]
        return {m.request_id: unpack_map(m.body) for m in messages if m.kind is Kind.ENGINE_REPLY}

    @property
    def states(self) -> list[EngineState]:
        return list(self.core.fleet.states)


def full(params: dict[str, Any]) -> dict[str, Any]:
    return SamplingParams(top_k=1, num_tokens_to_generate=1).serialize() | params


def make(
    model: LanguageModel, *, engines: int = 1, dialect: str = "framed", **options: Any
) -> Serving:
    row = DIALECTS[dialect]
    core = CoordinatorCore(
        row,
        [Engine(model, sampling_fields=row.sampling_fields, **options) for _ in range(engines)],
    )
    serving = Serving(core, ClientCodec(row))
    core.receive(CLIENT, serving.codec.connect(), 0.0)
    core.take_outgoing()
    return serving


@pytest.fixture
def serving(alphabet: LanguageModel) -> Serving:
    return make(alphabet)


# Signals


def test_a_pause_takes_effect_after_some_steps_and_lasts(serving: Serving) -> None:
    serving.submit(0, num_tokens_to_generate=100)
    serving.step()
    serving.signal(Kind.PAUSE)
    assert serving.core.state is CoordinatorState.PAUSED
    tokens = []
    for _ in range(STEPS_TO_PAUSE):
        assert serving.states == [EngineState.PAUSING]
        serving.step()
        tokens.append(serving.core.statistics().tokens)
    assert serving.states == [EngineState.PAUSED]
    assert tokens == [2, 3, 3]  # it went on meanwhile
    serving.step(5)
    assert serving.core.statistics().tokens == 3
    serving.signal(Kind.UNPAUSE)
    serving.step()
    assert serving.core.statistics().tokens == 4


def test_idle_engines_pause_as_well(serving: Serving) -> None:
    serving.signal(Kind.PAUSE)
    assert serving.core.wants_step
    serving.step(STEPS_TO_PAUSE)
    assert serving.states == [EngineState.PAUSED]
    assert not serving.core.wants_step


@pytest.mark.parametrize("kind", [Kind.UNPAUSE, Kind.SUSPEND, Kind.STOP])
@pytest.mark.parametrize("steps", range(STEPS_TO_PAUSE))
def test_a_signal_that_overtakes_a_pause_kills_the_engines_without_a_word(
    serving: Serving, kind: Kind, steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    serving.submit(0, num_tokens_to_generate=100)
    serving.step()
    serving.signal(Kind.PAUSE)
    serving.step(steps)
    serving.signal(kind)
    assert serving.states == [EngineState.DEAD]
    assert f"engine 0 died: {kind.name} came while it was PAUSING" in caplog.text
    serving.step(10)
    assert serving.replies() == {}
    statistics = serving.core.statistics()
    assert (statistics.submitted, statistics.lost, statistics.running) == (1, 1, 0)
    assert serving.core.idle


@pytest.mark.parametrize(
    ("signals", "state", "engine"),
    [
        ([], CoordinatorState.RUNNING, EngineState.RUNNING),
        ([Kind.PAUSE], CoordinatorState.PAUSED, EngineState.PAUSED),
        ([Kind.PAUSE, Kind.PAUSE], CoordinatorState.PAUSED, EngineState.PAUSED),
        ([Kind.PAUSE, Kind.UNPAUSE], CoordinatorState.RUNNING, EngineState.RUNNING),
        ([Kind.PAUSE, Kind.SUSPEND], CoordinatorState.SUSPENDED, EngineState.SUSPENDED),
        ([Kind.PAUSE, Kind.SUSPEND, Kind.PAUSE], CoordinatorState.SUSPENDED, EngineState.SUSPENDED),
        ([Kind.PAUSE, Kind.SUSPEND, Kind.RESUME], CoordinatorState.PAUSED, EngineState.PAUSED),
        ([Kind.PAUSE, Kind.STOP], CoordinatorState.RUNNING, EngineState.STOPPED),
        ([Kind.PAUSE, Kind.SUSPEND, Kind.STOP], CoordinatorState.RUNNING, EngineState.STOPPED),
    ],
    ids=str,
)
def test_the_states_that_signals_lead_to(
    serving: Serving, signals: list[Kind], state: CoordinatorState, engine: EngineState
) -> None:
    for kind in signals:
        serving.signal(kind)
        serving.step(STEPS_TO_PAUSE)
    assert serving.core.state is state
    assert serving.states == [engine]


@pytest.mark.parametrize(
    ("before", "kind"),
    [
        ([], Kind.UNPAUSE),
        ([], Kind.SUSPEND),
        ([], Kind.RESUME),
        ([], Kind.STOP),
        ([Kind.PAUSE], Kind.RESUME),
        ([Kind.PAUSE, Kind.SUSPEND], Kind.UNPAUSE),
        ([Kind.PAUSE, Kind.SUSPEND], Kind.SUSPEND),
    ],
    ids=str,
)
def test_a_signal_that_does_not_fit_is_dropped_with_a_warning(
    serving: Serving, before: list[Kind], kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    for each in before:
        serving.signal(each)
        serving.step(STEPS_TO_PAUSE)
    was, states = serving.core.state, serving.states
    serving.signal(kind)
    assert f"{kind.name} of client b'A' was dropped: the coordinator is {was.name}" in caplog.text
    assert (serving.core.state, serving.states) == (was, states)


def test_a_second_pause_is_dropped_without_a_warning(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    serving.signal(Kind.PAUSE, Kind.PAUSE)
    assert caplog.text == ""


def test_suspend_and_resume_need_no_pause_in_between(serving: Serving) -> None:
    serving.signal(Kind.PAUSE)
    serving.step(STEPS_TO_PAUSE)
    serving.signal(Kind.SUSPEND, Kind.RESUME, Kind.UNPAUSE)
    assert serving.states == [EngineState.RUNNING]


def test_profiler_signals_change_nothing(serving: Serving) -> None:
    serving.signal(Kind.START_CUDA_PROFILER, Kind.STOP_CUDA_PROFILER)
    assert serving.states == [EngineState.RUNNING]
    assert serving.core.statistics().malformed == 0


def test_stopped_engines_answer_nothing_and_the_next_request_ends_the_coordinator(
    alphabet: LanguageModel,
) -> None:
    serving = make(alphabet, engines=2)
    serving.submit(0, num_tokens_to_generate=100)
    serving.step()
    serving.signal(Kind.PAUSE)
    serving.step(STEPS_TO_PAUSE)
    serving.signal(Kind.STOP)
    assert serving.states == [EngineState.STOPPED] * 2
    ended = [serving.core.stopped]
    serving.submit(1)
    ended.append(serving.core.stopped)
    assert ended == [False, True]
    statistics = serving.core.statistics()
    assert (statistics.submitted, statistics.lost) == (1, 1)


def test_others_go_on_where_one_engine_has_died(alphabet: LanguageModel) -> None:
    serving = make(alphabet, engines=2, kv_handoff=False)
    serving.submit(0, do_kv_handoff=True)
    assert serving.states == [EngineState.DEAD, EngineState.RUNNING]
    for request_id in (1, 2, 3):
        serving.submit(request_id)
    serving.step(2)
    assert serving.replies().keys() == {1, 2, 3}
    assert serving.core.statistics().lost == 1


def test_signals_of_strangers_are_ignored(serving: Serving) -> None:
    serving.core.receive(b"B", serving.codec.signal(Kind.PAUSE), 0.0)
    assert serving.core.state is CoordinatorState.RUNNING


def test_a_stopped_engine_hears_nothing_of_signals_for_its_successors(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    serving.signal(Kind.PAUSE)
    serving.step(STEPS_TO_PAUSE)
    serving.signal(Kind.STOP, Kind.PAUSE, Kind.UNPAUSE)
    assert serving.states == [EngineState.STOPPED]
    assert "died" not in caplog.text


def kill(serving: Serving, client: bytes = CLIENT) -> None:
    for kind in (Kind.PAUSE, Kind.UNPAUSE):
        serving.core.receive(client, serving.codec.signal(kind), serving.now)


def test_nothing_is_left_of_dead_engines(alphabet: LanguageModel) -> None:
    serving = make(alphabet, max_requests=1)
    prefilled(serving)
    for request_id in (1, 2):
        serving.submit(request_id, num_tokens_to_generate=100)
    serving.step()
    kill(serving)
    statistics = serving.core.statistics()
    assert (statistics.running, statistics.waiting, statistics.lost) == (0, 0, 2)
    assert serving.core.fleet.pinned == ()
    assert not serving.core.fleet.paused
    assert serving.core.idle


def test_the_id_of_a_request_that_died_with_its_engine_may_be_used_again(
    alphabet: LanguageModel,
) -> None:
    serving = make(alphabet, engines=2, kv_handoff=False)
    serving.submit(0, do_kv_handoff=True)
    serving.submit(0)
    serving.step(2)
    assert serving.replies()[0]["status"] == "COMPLETED"


def test_an_engine_may_die_with_requests_of_a_client_that_has_left(serving: Serving) -> None:
    serving.submit(0, num_tokens_to_generate=100)
    serving.step()
    serving.core.undeliverable(CLIENT)
    serving.core.receive(b"B", serving.codec.connect(), serving.now)
    kill(serving, b"B")
    assert serving.states == [EngineState.DEAD]
    assert serving.core.statistics().lost == 1


# Pausing by hand, without a signal


def test_engines_that_were_paused_by_hand_can_be_unpaused_by_a_client_and_the_reverse(
    serving: Serving,
) -> None:
    states = []
    serving.core.pause()
    states += serving.states
    serving.signal(Kind.UNPAUSE)
    states += serving.states
    serving.signal(Kind.PAUSE)
    states += serving.states
    serving.core.unpause()
    states += serving.states
    serving.signal(Kind.PAUSE)
    states += serving.states
    assert states == [
        *(EngineState.PAUSED, EngineState.RUNNING),
        *(EngineState.PAUSING, EngineState.RUNNING, EngineState.PAUSING),
    ]


def test_pausing_by_hand_leaves_suspended_engines_to_who_suspended_them(serving: Serving) -> None:
    serving.signal(Kind.PAUSE)
    serving.step(STEPS_TO_PAUSE)
    serving.signal(Kind.SUSPEND)
    for act in (serving.core.pause, serving.core.unpause):
        act()
        assert serving.states == [EngineState.SUSPENDED]
        assert serving.core.state is CoordinatorState.SUSPENDED
    serving.signal(Kind.RESUME, Kind.UNPAUSE)
    assert serving.states == [EngineState.RUNNING]


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_time_per_token_does_not_count_a_pause(serving: Serving, *, by_hand: bool) -> None:
    serving.submit(0, num_tokens_to_generate=8)
    serving.step(2)
    if by_hand:
        serving.core.pause()
    else:
        serving.signal(Kind.PAUSE)
        serving.step(STEPS_TO_PAUSE)
    serving.now += 1000
    if by_hand:
        serving.core.unpause()
    else:
        serving.signal(Kind.UNPAUSE)
    serving.step(10)
    assert max(serving.replies()[0]["tpot"]) == 1


# Epochs


def test_epochs_are_stamped_where_they_begin(serving: Serving) -> None:
    serving.submit(0, prompt=(97, 98, 99), num_tokens_to_generate=6)
    serving.step(2)
    serving.signal(Kind.SET_GENERATION_EPOCH, epoch=7)
    serving.step(2)
    serving.signal(Kind.SET_GENERATION_EPOCH, epoch=8)
    serving.submit(1, num_tokens_to_generate=1)
    serving.step(3)
    replies = serving.replies()
    # The first epoch holds from the start; the second from the last token that there was.
    assert replies[0]["policy_epoch"] == replies[0]["kv_cache_epoch"] == [[0, 7], [6, 8]]
    assert replies[1]["policy_epoch"] == [[0, 8]]


def test_requests_that_wait_for_their_turn_are_stamped_as_well(alphabet: LanguageModel) -> None:
    serving = make(alphabet, max_requests=1)
    for request_id in (0, 1):
        serving.submit(request_id, num_tokens_to_generate=2)
    serving.step()
    serving.signal(Kind.SET_GENERATION_EPOCH, epoch=7)
    serving.step(6)
    assert serving.replies()[1]["policy_epoch"] == [[0, 7]]


def test_without_an_epoch_none_is_told(serving: Serving) -> None:
    serving.submit(0)
    serving.step(2)
    assert serving.replies()[0]["policy_epoch"] is None


# Handoffs


def prefilled(serving: Serving, request_id: int = 0, prompt: Any = (97,)) -> dict[str, Any]:
    serving.submit(request_id, prompt, do_kv_handoff=True)
    serving.step(2)
    handoff: dict[str, Any] = serving.replies()[request_id]["disaggregated_params"]
    return handoff


def test_blocks_stay_pinned_until_they_are_released_by_the_engines_number(
    alphabet: LanguageModel,
) -> None:
    serving = make(alphabet, engines=2)
    serving.submit(5)  # so that the numbers differ
    serving.step(2)
    serving.replies()
    handoff = prefilled(serving, 0, range(97, 117))
    number = handoff["request_id"]
    assert number != 0
    assert len(handoff["block_ids"]) == 2  # of 16 tokens
    pinned = [serving.core.fleet.pinned]
    for each in (0, 99, number, number):
        serving.release(each)
        pinned.append(serving.core.fleet.pinned)
    assert pinned == [(number,), (number,), (number,), (), ()]
    assert serving.states == [EngineState.RUNNING] * 2


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (16, 1), (17, 2)])
def test_a_block_is_pinned_for_every_sixteen_tokens_begun(
    serving: Serving, tokens: int, blocks: int
) -> None:
    assert len(prefilled(serving, 0, range(97, 97 + tokens))["block_ids"]) == blocks


def test_another_deployment_goes_on_from_a_handoff(alphabet: LanguageModel) -> None:
    prefill, decode = make(alphabet), make(alphabet)
    handoff = prefilled(prefill, 0, (97, 98))
    decode.submit_handoff(3, handoff, (97, 98), num_tokens_to_generate=2)
    decode.step(3)
    reply = decode.replies()[3]
    assert (reply["status"], reply["generated_tokens"]) == ("COMPLETED", [99, 100])
    assert reply["disaggregated_params"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_meta": {}}, "no transfer backend None"),
        ({"kv_meta": {"transfer_backend": "nixl"}}, "no transfer backend 'nixl'"),
        ({"block_ids": [77]}, "the blocks have been released"),
    ],
)
def test_a_handoff_that_cannot_be_had_fails_the_request(
    serving: Serving, change: dict[str, Any], reason: str
) -> None:
    handoff = prefilled(serving) | change
    serving.submit_handoff(1, handoff)
    reply = serving.replies()[1]
    assert reply["status"] == "FAILED"
    (error,) = (e for e in reply["events"] if e["type"] == "ERROR_NONTRANSIENT")
    assert reason in error["payload"]["message"]


def test_blocks_that_were_released_before_they_were_fetched_fail_the_request(
    serving: Serving,
) -> None:
    handoff = prefilled(serving)
    serving.release(handoff["request_id"])
    serving.submit_handoff(1, handoff)
    assert "released" in str(serving.replies()[1]["events"])


def test_the_blocks_of_another_prompt_fail_the_request(serving: Serving) -> None:
    handoff = prefilled(serving, 0, (97, 98))
    serving.submit_handoff(1, handoff, (97, 99))
    assert "another prompt" in str(serving.replies()[1]["events"])


def test_an_engine_far_away_is_believed(serving: Serving) -> None:
    handoff = prefilled(serving)
    handoff["kv_meta"]["engine"] = "in another process"
    serving.submit_handoff(1, handoff | {"block_ids": [77]})
    serving.step(2)
    assert serving.replies()[1]["status"] == "COMPLETED"


@pytest.mark.parametrize("params", [{"return_log_probs": True}, {}], ids=str)
def test_a_handoff_with_text_or_log_probs_kills_the_engine(
    serving: Serving, params: dict[str, Any]
) -> None:
    handoff = prefilled(serving)
    serving.submit_handoff(1, handoff, (97,) if params else "a", **params)
    assert serving.states == [EngineState.DEAD]
    assert serving.replies() == {}


def test_no_engine_dies_of_a_handoff_for_no_tokens_at_all(serving: Serving) -> None:
    serving.submit_handoff(1, prefilled(serving), ())
    assert serving.states == [EngineState.RUNNING]
    assert serving.replies()[1]["status"] == "FAILED"


@pytest.mark.parametrize("what", ["prefill", "decode", "release"])
def test_engines_that_are_not_set_up_for_handoffs_die_of_them(
    alphabet: LanguageModel, what: str
) -> None:
    handoff = prefilled(make(alphabet))
    serving = make(alphabet, kv_handoff=False)
    if what == "prefill":
        serving.submit(0, do_kv_handoff=True)
    elif what == "decode":
        serving.submit_handoff(0, handoff)
    else:
        serving.release(0)
    assert serving.states == [EngineState.DEAD]


def test_an_aborted_prefill_keeps_its_blocks_all_the_same(serving: Serving) -> None:
    serving.submit(0, num_tokens_to_generate=100, do_kv_handoff=True)
    serving.step()
    serving.core.receive(CLIENT, serving.codec.abort(0), serving.now)
    serving.step()
    assert serving.replies()[0]["disaggregated_params"]["request_id"] == 0
    assert serving.core.fleet.pinned == (0,)


@pytest.mark.parametrize("dialect", ["0.19", "0.18"])
def test_older_engines_know_nothing_of_handoffs(alphabet: LanguageModel, dialect: str) -> None:
    serving = make(alphabet, dialect=dialect, kv_handoff=False)
    serving.submit(0, do_kv_handoff=True)
    serving.step(2)
    assert serving.replies()[0]["status"] == "COMPLETED"


# Media, which the models do not see


MEDIA = {"media_cache_key": "k1", "modality": "image"}


def test_equal_prompts_beside_other_media_share_no_blocks(alphabet: LanguageModel) -> None:
    serving = make(alphabet, block_size_tokens=2)
    cached = []
    for request_id, key in enumerate(["k1", "k1", "k2", None, None]):
        parts: dict[str, Any] = (
            {} if key is None else {"media_meta": MEDIA | {"media_cache_key": key}, "media": [b""]}
        )
        serving.send(request_id, laid_out(serving.codec, [97, 98, 99], full({}), **parts))
        serving.step(2)
        cached.append(serving.replies()[request_id]["num_cached_tokens"])
    assert cached == [0, 2, 0, 0, 2]


def test_where_media_have_no_key_their_prompts_are_not_cached(alphabet: LanguageModel) -> None:
    serving = make(alphabet, dialect="0.20", block_size_tokens=2)
    for request_id in (0, 1):
        media = {"image": [b""]}
        submission = laid_out(serving.codec, [97, 98], full({}), multi_modal_data=media)
        serving.send(request_id, submission)
        serving.step(2)
        assert serving.replies()[request_id]["num_cached_tokens"] == 0


def test_the_coordinator_hashes_with_the_key_where_the_client_did_not(
    alphabet: LanguageModel,
) -> None:
    engines = [Engine(alphabet, max_requests=9, block_size_tokens=2) for _ in range(3)]
    core = CoordinatorCore(FRAMED, engines, prefix_hashing=PrefixHashing(2, "longest_prefix"))
    serving = Serving(core, ClientCodec(FRAMED))
    core.receive(CLIENT, serving.codec.connect(), 0.0)
    for request_id, key in enumerate(["k1", "k2", "k1"]):
        parts: dict[str, Any] = {"media_meta": MEDIA | {"media_cache_key": key}, "media": [b""]}
        serving.send(request_id, laid_out(serving.codec, [97, 98], full({}), **parts))
    assert [engine.load for engine in engines] == [2, 1, 0]
