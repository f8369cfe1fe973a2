"""Which slot a sequence gets, and whose beginning it finds there."""

from __future__ import annotations

from trio_infer.embedded.llama.slots import LlamaSequence, Slot, Slots

RULES = [1, 2, 3, 4]


def occupy(slots: Slots, tokens: list[int], *, most: int = 100) -> tuple[LlamaSequence, Slot, int]:
    """A sequence that has been computed: its slot, and how much of it was found."""
    sequence = LlamaSequence()
    slot, source, length = slots.take(sequence, tokens, most)
    assert source.tokens[:length] == tokens[:length]
    slot.tokens[:] = tokens
    assert (sequence.slot, sequence.num_cached_tokens) == (slot, length)
    return sequence, slot, length


def test_nothing_is_found_at_first() -> None:
    assert occupy(Slots(2), RULES)[2] == 0


def test_a_beginning_is_found_where_it_is_computed_still_and_stays_there() -> None:
    slots = Slots(2)
    _, first, _ = occupy(slots, [*RULES, 5])
    _, second, length = occupy(slots, [*RULES, 6])
    assert length == 4
    assert second is not first
    assert first.tokens == [*RULES, 5]


def test_a_conversation_goes_on_where_it_is() -> None:
    slots = Slots(3)
    sequence, first, _ = occupy(slots, RULES)
    sequence.close()
    _, second, length = occupy(slots, [*RULES, 5, 6])
    assert (second, length) == (first, 4)


def test_another_end_leaves_the_idle_one_its_own() -> None:
    slots = Slots(2)
    sequence, first, _ = occupy(slots, [*RULES, 5, 5, 5])
    sequence.close()
    _, second, length = occupy(slots, [*RULES, 6])
    assert length == 4
    assert second is not first


def test_what_was_not_used_for_longest_makes_room() -> None:
    slots = Slots(3)
    taken = []
    for number in range(3):
        sequence, slot, _ = occupy(slots, [number, number])
        sequence.close()
        taken.append(slot)
    again, slot, _ = occupy(slots, [0, 0, 7])
    assert slot is taken[0]
    again.close()
    assert occupy(slots, [9])[1] is taken[1]


def test_a_slot_in_use_is_never_taken() -> None:
    slots = Slots(2)
    _, busy, _ = occupy(slots, RULES)
    for number in range(5):
        sequence, slot, _ = occupy(slots, [*RULES, number])
        assert slot is not busy
        sequence.close()


def test_no_more_is_found_than_may_be() -> None:
    slots = Slots(2)
    occupy(slots, RULES)
    assert occupy(slots, RULES, most=2)[2] == 2
