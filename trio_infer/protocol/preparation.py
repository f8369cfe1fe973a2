"""A request as its caller gives it, checked and packed before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ..models.frozen import freeze, thaw
from ..models.sampling_params import to_sampling_params
from .client_codec import ClientCodec, Submission
from .hashing import PrefixHashing
from .prompt import coerce_prompt
from .sampling import sampling_fields

if TYPE_CHECKING:
    from ..models import SamplingParams, SupportsSerialize
    from .prompt import Prompt

__all__ = ["Preparation", "Prepared"]


@attrs.frozen
class Prepared:
    """A request that wants nothing but an id.

    Attributes:
        submission: its messages.
        asked: the sampling parameters in them.
    """

    submission: Submission
    asked: dict[str, Any]


@attrs.frozen
class Preparation:
    """What a client does with each request before it is handed over.

    Raises:
        UnsupportedByDialect: block hashes are wanted, and the dialect has none.
    """

    codec: ClientCodec
    prefix_hashing: PrefixHashing = attrs.field(factory=PrefixHashing)

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
        offload_params: object = None,
        streaming: bool = False,
    ) -> Prepared:
        """Checks a request and packs it.

        Raises:
            TypeError, ValueError: for a wrong argument.
            UnsupportedByDialect: for what the dialect has no words for.
        """
        dialect = self.codec.dialect
        params = to_sampling_params(sampling_params)
        if params.do_kv_handoff:
            msg = "do_kv_handoff cannot be asked of an ordinary request: leave it out"
            raise ValueError(msg)
        if offload_params is not None and not dialect.can_offload:
            dialect.refuse("offload parameters", "leave out offload_params")
        asked = sampling_fields(params, dialect, streaming=streaming)
        coerced = coerce_prompt(prompt)
        submission = self.codec.pack(
            coerced,
            asked,
            block_hashes=self.prefix_hashing.of(coerced),
            offload_params=thaw(freeze(offload_params, "offload_params")),
        )
        return Prepared(submission, asked)
