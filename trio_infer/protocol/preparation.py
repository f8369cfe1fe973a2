"""A request as its caller gives it, checked before anything is sent, and packed.

Checking is done at once. Packing is as well, unless there is so much to pack that other tasks would
feel it: then it is left to whoever hands the request over, for another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from ..models import KVHandoff, SamplingParams
from ..models.frozen import freeze, freeze_mapping, thaw
from ..models.sampling_params import to_sampling_params
from .client_codec import ClientCodec, Submission
from .dialect import Kind
from .hashing import PrefixHashing
from .media import Media, check_media
from .packing import Frames, pack, pack_plain
from .prompt import coerce_ints, coerce_prompt
from .sampling import sampling_fields

if TYPE_CHECKING:
    from ..models import Prompt, SupportsSerialize

__all__ = ["Preparation", "Prepared"]

HEAVY_BYTES: Final = 2**18
"""So much media, or text, takes a millisecond or so to hash and to pack."""

HEAVY_TOKENS: Final = 2**14
"""So do so many token ids."""

_PROMPT: Final = b"\xc1"
"""A placeholder: the one byte that MessagePack never uses."""


@attrs.define(eq=False)
class Prepared:
    """A request that wants nothing but an id, and perhaps some time.

    Attributes:
        asked: the sampling parameters that it carries.
        prompt_length: how many tokens its prompt has; None for text.
        frames: makes its message, under an id.
        is_heavy: whether that takes so long that it should be done in another thread.
    """

    asked: Mapping[str, Any]
    prompt_length: int | None
    frames: Callable[[int], Frames]
    is_heavy: bool = False


def _prepared(
    asked: Mapping[str, Any],
    prompt: str | list[int],
    lay_out: Callable[[], Submission],
    media: Media | None = None,
) -> Prepared:
    """A request that is laid out now, if that is soon done."""
    length = None if isinstance(prompt, str) else len(prompt)
    if _is_heavy(prompt, media):
        return Prepared(
            asked, length, lambda request_id: lay_out().frames(request_id), is_heavy=True
        )
    return Prepared(asked, length, lay_out().frames)


@attrs.define(eq=False)
class _Plain:
    """A request packed but for its id and its prompt, wherever that belongs."""

    opening: bytes
    before: bytes
    behind: bytes
    bodies: Frames  # and something in the first frame's place
    place: int  # of the prompt among them; 0: it stands in the first frame

    @classmethod
    def of(cls, submission: Submission) -> _Plain:
        """A request that was laid out with a placeholder for its prompt."""
        bodies: Frames = [b"", *submission.bodies]
        place = bodies.index(_PROMPT) if _PROMPT in bodies else 0
        fields = submission.fields
        split = len(fields) if place else fields.index(_PROMPT)
        before, behind = b"".join(fields[:split]), b"".join(fields[split + 1 :])
        return cls(submission.opening, before, behind, bodies, place)

    def frames(self, prompt: bytes, request_id: int) -> Frames:
        """The request's message, with a prompt, under an id."""
        frames = self.bodies.copy()
        if self.place:
            frames[self.place], prompt = prompt, b""
        parts = (self.opening, pack_plain(request_id), self.before, prompt, self.behind)
        frames[0] = b"".join(parts)
        return frames


@attrs.define(eq=False)
class _Asked:
    """Sampling parameters, what is sent of them, and that packed, once somebody has packed it.

    Attributes:
        given: the parameters, as the caller gave them.
        fields: what is sent of them.
        plain: a request with them that lacks no more than its prompt, once one was laid out.
    """

    given: object
    fields: Mapping[str, Any]
    plain: _Plain | None = None
    _packed: bytes = b""

    def packed(self) -> bytes:
        self._packed = self._packed or pack(self.fields)
        return self._packed


@attrs.frozen
class Preparation:
    """What a client does with each request before it is handed over.

    Raises:
        UnsupportedByDialect: block hashes are wanted, and the dialect has none.
    """

    codec: ClientCodec
    prefix_hashing: PrefixHashing = attrs.field(factory=PrefixHashing)
    _asked_last: dict[bool, _Asked] = attrs.field(factory=dict, init=False, repr=False, eq=False)
    _sends_hashes: bool = attrs.field(init=False, repr=False, eq=False)

    @_sends_hashes.default
    def _are_hashes_wanted(self) -> bool:
        return self.prefix_hashing.is_wanted

    def __attrs_post_init__(self) -> None:
        dialect = self.codec.dialect
        if self.prefix_hashing != PrefixHashing() and not dialect.can_hash_blocks:
            dialect.refuse(
                "block hashes",
                "leave out block_size_tokens and prefix_caching_coordinator_policy, since its "
                "coordinators hash by themselves",
            )

    def prepare(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | SupportsSerialize | None = None,
        *,
        multi_modal_data: Mapping[str, Any] | None = None,
        offload_params: object = None,
        kv_handoff: object = None,
        streaming: bool = False,
    ) -> Prepared:
        """Checks a request, and packs it if that is soon done.

        Raises:
            TypeError, ValueError: for a wrong argument.
            UnsupportedByDialect: for what the dialect has no words for.
        """
        asked = self._asked(sampling_params, streaming=streaming)
        if kv_handoff is None:
            return self._ordinary(prompt, asked, multi_modal_data, offload_params)
        if not isinstance(kv_handoff, KVHandoff):
            msg = f"kv_handoff must be a KVHandoff, not {type(kv_handoff).__name__}"
            raise TypeError(msg)
        if multi_modal_data is not None or offload_params is not None:
            msg = "kv_handoff goes without multi_modal_data and offload_params: leave them out"
            raise ValueError(msg)
        return self._going_on(prompt, asked, kv_handoff)

    def _asked(
        self, given: SamplingParams | SupportsSerialize | None, *, streaming: bool
    ) -> _Asked:
        """The parameters to send. Many requests share one object, so the last one is remembered."""
        asked = self._asked_last.get(streaming)
        if asked is not None and asked.given is given:
            return asked
        params = to_sampling_params(given)
        if params.do_kv_handoff:
            msg = "do_kv_handoff is for prefill() to set: leave it out"
            raise ValueError(msg)
        asked = _Asked(given, sampling_fields(params, self.codec.dialect, streaming=streaming))
        if given is params or given is None:  # else it may change
            self._asked_last[streaming] = asked
        return asked

    def prepare_prefill(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | SupportsSerialize | None = None,
        *,
        multi_modal_data: Mapping[str, Any] | None = None,
        offload_params: object = None,
    ) -> Prepared:
        """As `prepare`, of a request whose KV cache blocks another deployment goes on from.

        Its budget is one token, if it has none of its own.
        """
        dialect = self.codec.dialect
        if not dialect.can_hand_off:
            dialect.refuse("KV handoff", "let one deployment do both, by generate() or stream()")
        params = to_sampling_params(sampling_params)
        if params.num_tokens_to_generate is params.num_tokens_total is None:
            params = attrs.evolve(params, num_tokens_to_generate=1)
        asked = _Asked(params, sampling_fields(params, dialect) | {"do_kv_handoff": True})
        return self._ordinary(prompt, asked, multi_modal_data, offload_params)

    def _ordinary(
        self,
        prompt: Prompt,
        asked: _Asked,
        multi_modal_data: Mapping[str, Any] | None = None,
        offload_params: object = None,
    ) -> Prepared:
        coerced = coerce_prompt(prompt)
        is_plain = multi_modal_data is offload_params is None and not self._sends_hashes
        if is_plain and len(coerced) < HEAVY_TOKENS:  # by far the most
            length = None if type(coerced) is str else len(coerced)
            plain = asked.plain or self._lay_out_plain(asked)
            return Prepared(asked.fields, length, partial(plain.frames, pack_plain(coerced)))
        dialect = self.codec.dialect
        media = None if multi_modal_data is None else check_media(multi_modal_data, dialect)
        if offload_params is not None and not dialect.can_offload:
            dialect.refuse("offload parameters", "leave out offload_params")
        offload = (
            None
            if offload_params is None
            else thaw(freeze(offload_params, "offload_params", finite=False))
        )
        lay_out = partial(self._lay_out, coerced, asked, media, offload)
        return _prepared(asked.fields, coerced, lay_out, media)

    def _lay_out(
        self,
        prompt: str | list[int],
        asked: _Asked,
        media: Media | None,
        offload_params: object,
    ) -> Submission:
        parts: dict[str, bytes | list[bytes]] = {
            "prompt": pack_plain(prompt),
            "sampling_params": asked.packed(),
        }
        key = None
        if media is not None and self.codec.dialect.is_multipart:
            key = media.cache_key()
            parts |= {"media_meta": pack(media.descriptor(key)), "media": media.packed()}
        elif media is not None:
            parts["multi_modal_data"] = media.inline_pieces()
        hashes = self.prefix_hashing.of(prompt, salt=key)
        if hashes is not None:
            parts["block_hashes"] = pack_plain(hashes)
        if offload_params is not None:
            parts["offload_params"] = pack(offload_params)
        return self.codec.lay_out(Kind.SUBMIT_REQUEST, parts)

    def _lay_out_plain(self, asked: _Asked) -> _Plain:
        """As `_lay_out`, of a request that is no more than a prompt, whatever that is."""
        parts = {"prompt": _PROMPT, "sampling_params": asked.packed()}
        asked.plain = _Plain.of(self.codec.lay_out(Kind.SUBMIT_REQUEST, parts))
        return asked.plain

    def _going_on(self, prompt: Prompt, asked: _Asked, kv_handoff: KVHandoff) -> Prepared:
        """A request that goes on from what another deployment has computed of its prompt."""
        dialect = self.codec.dialect
        if not dialect.can_hand_off:
            dialect.refuse("KV handoff", "leave out kv_handoff, and let it compute the prompt anew")
        if asked.fields["return_log_probs"]:
            msg = "kv_handoff goes without return_log_probs: leave it out, the engine dies of it"
            raise ValueError(msg)
        ids = coerce_prompt(prompt)
        if isinstance(ids, str):
            msg = "kv_handoff goes with token ids, not with text: the engine dies of it"
            raise ValueError(msg)  # noqa: TRY004 - text is no wrong type for a prompt
        parts = {
            "sampling_params": asked.fields,
            "prompt": ids,
            "kv_meta": thaw(freeze_mapping(kv_handoff.kv_meta, "kv_meta", finite=False)),
            "src_block_ids": coerce_ints(kv_handoff.src_block_ids, "src_block_ids"),
        }

        def lay_out() -> Submission:
            packed = {name: pack(part) for name, part in parts.items()}
            return self.codec.lay_out(Kind.SUBMIT_REQUEST_WITH_KV, packed)

        return _prepared(asked.fields, ids, lay_out)


def _is_heavy(prompt: str | list[int], media: Media | None) -> bool:
    most = HEAVY_BYTES if isinstance(prompt, str) else HEAVY_TOKENS
    return len(prompt) >= most or (media is not None and media.packed_size >= HEAVY_BYTES)
