"""The names of OpenTelemetry's semantic conventions for generative AI, in one table.

They are those of version 1.41, the last before these conventions got a repository of their own, and
still in development: the metrics have been renamed there since. To follow, this module is changed,
and nothing else has to be.
"""

from __future__ import annotations

from typing import Final

import attrs

__all__ = [
    "OPERATION",
    "Metric",
    "Name",
    "Token",
    "duration",
    "time_per_output_chunk",
    "time_to_first_chunk",
    "token_usage",
]


class Name:
    """The names of attributes."""

    OPERATION: Final = "gen_ai.operation.name"
    PROVIDER: Final = "gen_ai.provider.name"
    MODEL: Final = "gen_ai.request.model"
    SERVER: Final = "server.address"
    PORT: Final = "server.port"
    ERROR: Final = "error.type"

    MAX_TOKENS: Final = "gen_ai.request.max_tokens"
    TEMPERATURE: Final = "gen_ai.request.temperature"
    TOP_K: Final = "gen_ai.request.top_k"
    TOP_P: Final = "gen_ai.request.top_p"
    STOP: Final = "gen_ai.request.stop_sequences"
    STREAM: Final = "gen_ai.request.stream"

    FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
    FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
    INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
    CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
    OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
    TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - no secret

    # Of this package
    OUTCOME: Final = "trio_infer.outcome"
    REQUEST_ID: Final = "trio_infer.request_id"
    DIALECT: Final = "trio_infer.dialect"


class Token:
    """The values of `Name.TOKEN_TYPE`."""

    INPUT: Final = "input"
    OUTPUT: Final = "output"


OPERATION: Final = "text_completion"

SECONDS: Final = tuple(0.01 * 2**n for n in range(14))
"""The boundaries of times: a hundredth of a second, doubled, to 82 seconds."""

TOKENS: Final = tuple(4.0**n for n in range(14))


@attrs.frozen
class Metric:
    """A histogram."""

    name: str
    unit: str
    description: str
    boundaries: tuple[float, ...]


duration: Final = Metric(
    "gen_ai.client.operation.duration", "s", "From making a request to its end.", SECONDS
)
time_to_first_chunk: Final = Metric(
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    "From making a request to its first partial result.",
    SECONDS,
)
time_per_output_chunk: Final = Metric(
    "gen_ai.client.operation.time_per_output_chunk",
    "s",
    "From each partial result to the next one.",
    SECONDS,
)
token_usage: Final = Metric(
    "gen_ai.client.token.usage", "{token}", "How many tokens went in and came out.", TOKENS
)
