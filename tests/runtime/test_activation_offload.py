"""What a segment's saved tensors take in the host's memory, and on the device again."""

import torch

from autoplan.runtime.memory.activation_offload import CopyStream, SavedTensors


def test_a_part_of_a_joined_product_takes_the_memory_of_its_own_elements() -> None:
    gate, up = torch.randn(16, 192).split((128, 64), -1)
    for part in (gate, up, up.view(16, 4, 16).transpose(0, 1)):
        copies, saved = CopyStream(), SavedTensors(None)
        offloaded = copies.to_host(saved, part)
        back = copies.to_device(saved, offloaded)
        assert torch.equal(back, part)
        for tensor in (offloaded.memory, back):
            assert tensor.untyped_storage().nbytes() == part.numel() * part.itemsize


def test_a_dense_tensor_comes_back_as_it_lay() -> None:
    x = torch.randn(4, 8, 16).transpose(0, 2)
    copies, saved = CopyStream(), SavedTensors(None)
    back = copies.to_device(saved, copies.to_host(saved, x))
    assert torch.equal(back, x) and back.stride() == x.stride()


def test_what_is_repeated_along_a_dim_is_offloaded() -> None:
    x = torch.randn(1, 1024).expand(3, -1)
    copies, saved = CopyStream(), SavedTensors(None)
    assert torch.equal(copies.to_device(saved, copies.to_host(saved, x)), x)
