import copy

import pytest
import torch

from dllm_decode import Memory
from dllm_decode.models.keeper import Keeper

CPU = torch.device("cpu")


def new(keeper: Keeper, num_rows: int, num_slots: int) -> Memory:
    return keeper.memory((2, num_rows, 1, num_slots, 4), dtype=torch.float64, device=CPU)


def place(memory: Memory) -> tuple[int, int]:
    return memory.keys.data_ptr(), memory.values.data_ptr()


def test_a_memory_has_a_spare_slot_and_a_multiple_of_64() -> None:
    for num_slots in (1, 63, 64, 200):
        memory = new(Keeper(), 3, num_slots)
        assert memory.keys.shape == memory.values.shape == (2, 3, 1, num_slots, 4)
        assert memory.whole.keys.shape[3] % 64 == 0
        assert memory.whole.keys.shape[3] - num_slots in range(1, 65)
        memory.keys[..., 0, :] = 1.0
        assert (memory.whole.keys[..., 1, :] == 1.0).all()
        assert not memory.whole.keys[..., 0, :].any()
        assert memory.num_bytes == 2 * memory.whole.keys.nbytes


@pytest.mark.parametrize("second", [(3, 40), (3, 63), (2, 40), (1, 100)], ids=str)
def test_the_next_memory_is_where_the_last_one_was_and_empty(second: tuple[int, int]) -> None:
    keeper = Keeper()
    memory = new(keeper, 3, 40)
    before = place(memory)
    memory.whole.keys.fill_(torch.nan)
    memory.whole.values.fill_(torch.nan)
    del memory
    memory = new(keeper, *second)
    assert place(memory) == before
    assert not memory.whole.keys.any()
    assert not memory.whole.values.any()


def test_a_memory_that_is_too_large_makes_room_for_those_behind_it() -> None:
    keeper = Keeper()
    new(keeper, 1, 10)
    places = [place(new(keeper, *size)) for size in ((5, 70), (1, 10), (5, 70), (2, 80))]
    assert len(set(places)) == 1


@pytest.mark.parametrize(
    "holds", [lambda memory: memory, lambda memory: memory.first(3), lambda m: m.widened(50)]
)
def test_two_memories_at_a_time_are_apart(holds) -> None:
    keeper = Keeper()
    one = holds(new(keeper, 3, 40))
    kept = place(one)
    one.keys.fill_(1.0)
    two = new(keeper, 3, 40)
    two.whole.keys.fill_(2.0)
    three = new(keeper, 3, 40)
    assert len({place(memory) for memory in (one, two, three)}) == 3
    assert (one.keys == 1.0).all()
    assert not three.keys.any()
    # Back to the kept one as soon as that is free, whoever else is there.
    del one
    assert place(new(keeper, 3, 40)) == kept
    assert (two.keys == 2.0).all()


def test_a_wider_memory_stays_where_it_is_as_long_as_there_is_room() -> None:
    memory = new(Keeper(), 2, 40)
    memory.keys.fill_(1.0)
    wider = memory.widened(60)
    assert place(wider) == place(memory)
    assert wider.keys.shape[3] == 60
    assert (wider.keys[..., :40, :] == 1.0).all()
    assert not wider.keys[..., 40:, :].any()
    assert wider.whole is memory.whole


def test_a_copy_has_a_spare_slot_too() -> None:
    memory = new(Keeper(), 2, 40)
    memory.keys.fill_(1.0)
    memory.values.fill_(2.0)
    wider = memory.widened(64)
    assert wider.keys.shape[3] == wider.values.shape[3] == 64
    assert wider.whole.keys.shape[3] == 128
    assert (wider.keys[..., :40, :] == 1.0).all()
    assert (wider.values[..., :40, :] == 2.0).all()
    assert not wider.keys[..., 40:, :].any()
    wider.keys.fill_(3.0)
    assert (memory.keys == 1.0).all()
    assert not wider.whole.keys[..., 0, :].any()


def test_a_memory_serves_in_and_out_of_inference_mode() -> None:
    keeper = Keeper()
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            memory = new(keeper, 1, 4)
            memory.keys.add_(1.0)
        memory.keys.add_(1.0)
        assert (memory.keys == 2.0).all()
        del memory


def test_a_copied_keeper_keeps_its_own() -> None:
    keeper = Keeper()
    kept = place(new(keeper, 1, 4))
    other = new(copy.deepcopy(keeper), 1, 4)
    assert place(other) != kept
    assert place(new(keeper, 1, 4)) == kept
